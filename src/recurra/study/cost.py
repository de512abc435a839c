"""What a run costs: training operations counted exactly from the lengths of its rows.

A training step is a forward pass and a backward pass of twice its operations (Kaplan et al. 2020, section 2.1); an
epoch is every training row once, at its own length and without padding. Early stopping may end a run sooner, so a run's
cost is the most that it can take. What an epoch costs is kept beside the cached tokens, because counting it anew means
to load and tokenise the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurra.core.configuration import content_hash
from recurra.core.errors import StorageError
from recurra.core.files import read_json, write_json
from recurra.data.language.configuration import LanguageDataConfig
from recurra.study.machine import Machine
from recurra.study.spec import RunConfig
from recurra.study.tasks import AnyDataConfig
from recurra.study.variants import LINEAR

if TYPE_CHECKING:
    from recurra.data.dataset import TextSplit

BACKWARD = 2  # passes that the backward pass costs
_AUXILIARY = " on auxiliary rows"
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass
class DataCost:
    """What an epoch on some data is made of.

    Attributes:
        label_names: Names of the classes.
        lengths: Training rows of each length in tokens, by the length as text (a key of JSON).
        flops: Operations of a training epoch, by model.
        vocab_size: Tokens that a language model tells apart; none for classifiers, whose heads are of no weight.
        flops: Operations of a training epoch, by model; of an epoch on auxiliary rows, by model and `_AUXILIARY`.
        auxiliary_lengths: Auxiliary rows of each length in tokens.
    """

    label_names: list[str]
    lengths: dict[str, int]
    flops: dict[str, float] = field(default_factory=dict)
    vocab_size: int | None = None
    auxiliary_lengths: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Training rows."""
        return sum(self.lengths.values())

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return sum(int(length) * rows for length, rows in self.lengths.items())


class CostBook:
    """Costs of runs; data are looked at once.

    Args:
        machine: Where data lie and tokens are cached.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._stamp: str | None = None
        self._data: dict[str, tuple[Path, DataCost]] = {}

    def training_flops(self, run: RunConfig, epochs: int | None = None) -> float | None:
        """Operations of a run's training.

        Args:
            run: The run.
            epochs: How many epochs; none takes the most that its protocol allows. Those of pretraining come on top,
                each counted as one of the classifier: the most that they can take but for the guesses themselves.

        Returns:
            The operations; none for the linear control, whose solver decides how long it works.

        Raises:
            RecurraError: If the data or the model configuration cannot be used.
        """
        if run.model == LINEAR:
            return None
        path, data = self._look_at(run)
        model = content_hash([run.model, run.model_overrides])
        if model not in data.flops or model + _AUXILIARY not in data.flops:
            data.flops[model] = epoch_flops(run, data.label_names, data.lengths, data.vocab_size)
            rows = data.auxiliary_lengths
            data.flops[model + _AUXILIARY] = epoch_flops(run, data.label_names, rows) if rows else 0.0
            _keep(path, data)
        passes = (run.protocol.max_epochs if epochs is None else epochs) + run.protocol.pretraining_epochs
        return data.flops[model] * passes + data.flops[model + _AUXILIARY] * run.protocol.auxiliary_epochs

    def data(self, run: RunConfig) -> DataCost:
        """What an epoch on a run's data is made of.

        Raises:
            RecurraError: If the data cannot be used.
        """
        return self._look_at(run)[1]

    def _look_at(self, run: RunConfig) -> tuple[Path, DataCost]:
        key = content_hash([run.data.plain(), run.data_hash])
        if key not in self._data:
            folder = self.machine.cache_dir or Path.home() / ".cache" / "recurra" / "tokens"
            path = folder / f"{content_hash([key, self._sources()])}.cost.json"
            self._data[key] = path, _kept(path) or _counted(run.data, self.machine)
        return self._data[key]

    def _sources(self) -> str:
        """What the counts depend on besides the configuration: the local corpora, and our own code."""
        if self._stamp is None:
            folders = [_PACKAGE / "data", _PACKAGE / "models"]
            folders += [self.machine.data_root] if self.machine.data_root else []
            self._stamp = content_hash([_stamp(folder) for folder in folders])
        return self._stamp


def epoch_flops(
    run: RunConfig, label_names: Sequence[str], lengths: Mapping[str, int], vocab_size: int | None = None
) -> float:
    """Operations of one training epoch, forward and backward.

    Args:
        run: Whose model is trained.
        label_names: Names of the classes.
        lengths: Rows of each length in tokens, by the length as text.
        vocab_size: Tokens that a language model tells apart.

    Raises:
        ConfigurationError: If the model configuration is wrong.
    """
    from recurra.models.accounting import forward_flops, language_flops
    from recurra.study.language_preflight import language_configuration
    from recurra.study.preflight import model_configuration

    if run.models_language:
        shape = language_configuration(run, vocab_size, None)
        forward = sum(rows * language_flops(shape, int(length), with_exits=True) for length, rows in lengths.items())
    else:
        config = model_configuration(run, list(label_names), None)
        forward = sum(rows * forward_flops(config, int(length)) for length, rows in lengths.items())
    return (1 + BACKWARD) * forward


def _counted(config: AnyDataConfig, machine: Machine) -> DataCost:
    import numpy as np

    if isinstance(config, LanguageDataConfig):
        return _counted_text(config, machine)

    from recurra.data.corpora import load_dataset
    from recurra.data.encoding import encode_split
    from recurra.data.tokenization import load_tokenizer

    dataset = load_dataset(config, machine.data_root)
    tokenizer = load_tokenizer(config, dataset, machine.data_root)

    def counted(split: TextSplit | None) -> dict[str, int]:
        if split is None:
            return {}
        encoded = encode_split(split, tokenizer, config.max_length, machine.cache_dir)
        lengths, rows = np.unique(encoded.lengths, return_counts=True)
        return {str(length): int(count) for length, count in zip(lengths, rows, strict=True)}

    return DataCost(
        list(dataset.label_names), counted(dataset.splits["train"]), auxiliary_lengths=counted(dataset.auxiliary)
    )


def _counted_text(config: LanguageDataConfig, machine: Machine) -> DataCost:
    import numpy as np

    from recurra.data.language.corpora import load_language_dataset
    from recurra.data.language.preparation import encode_for, make_samples
    from recurra.data.language.tokenization import load_language_tokenizer

    dataset = load_language_dataset(config, machine.data_root, ["train"])
    tokenizer = load_language_tokenizer(config, dataset, machine.data_root)
    samples = make_samples(encode_for(dataset.splits["train"], config, tokenizer, machine.cache_dir), config)
    lengths, rows = np.unique(samples.lengths, return_counts=True)
    counts = {str(length): int(count) for length, count in zip(lengths, rows, strict=True)}
    return DataCost([], counts, vocab_size=len(tokenizer))


def _kept(path: Path) -> DataCost | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return DataCost(**read_json(path))
    return None


def _keep(path: Path, data: DataCost) -> None:
    # A cache that cannot be written costs time only.
    with contextlib.suppress(StorageError):
        write_json(path, asdict(data), indent=None)


def _stamp(folder: Path) -> Sequence[Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
