"""How runs are configured and looked at before they start whose models label texts. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from recurra.core.configuration import content_hash
from recurra.core.record import AuditResult
from recurra.data.configuration import DataConfig, RunData
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.tokenization import check_tokenizer, default_tokenizer, load_tokenizer
from recurra.data.vocabulary import describe_tokenizer
from recurra.models.names import PRESET_NAMES, PRESETS
from recurra.tasks.base import DataCost, Given, Task, named_options, refuse_options
from recurra.tasks.labelling.data import count_lengths, labelled
from recurra.tasks.machine import Machine
from recurra.tasks.presentation import Shown, ShownTable
from recurra.tasks.profile import ENCODER
from recurra.tasks.runs import RunConfig
from recurra.training.protocols import PROTOCOLS

LINEAR, LINEAR_TUNED, STATIC = "linear", "linear-tuned", "static"
_KEYS = {
    "--tokenizer": "tokenizer",
    "--data-protocol": "protocol",
    "--text-column": "text_column",
    "--label-column": "label_column",
    "--group-column": "group_column",
    "--validation": "validation",
    "--test": "test",
}


class LabellingTask(Task):
    """Base of the tasks whose data are labelled texts; each says what their labels are."""

    data_config: ClassVar[type[DataConfig]]
    presets: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = PRESETS
    protocols = PROTOCOLS
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {LINEAR: {}, LINEAR_TUNED: {}, STATIC: {ENCODER: "minilm"}}
    starts_from_encoders = True
    advice = f"a classifier: {', '.join(PRESET_NAMES)}"
    kind_of_data = "labelled data"
    data_options = frozenset({*_KEYS, "--latency"})

    def __init__(self) -> None:
        # Planning looks at many runs of the same data.
        self._label_names: dict[str, list[str]] = {}

    def misfit(self, model: str, data_name: str) -> str:
        """Says that data have no labels."""
        kind = "is a linear classifier" if model in self.controls else "classifies texts"
        return f"'{model}' {kind}, and '{data_name}' is running text without labels; give it labelled data"

    @abstractmethod
    def data_audits(self, dataset: TextDataset) -> list[AuditResult]:
        """Audits of data that need no model."""

    def configure_data(
        self,
        name: str,
        options: Given,
        assigned: Mapping[str, Any],
        data_root: Path | None,
        *,
        model: tuple[str, Mapping[str, Any]] | None = None,
    ) -> tuple[DataConfig, str]:
        """Builds the configuration of the data and chooses the tokenizer if none is named."""
        refuse_options(options, self.data_options, f"'{name}' is labelled data")
        values = {**named_options(options, _KEYS), "name": name, **assigned}
        note = ""
        if "tokenizer" not in values:
            values["tokenizer"] = default_tokenizer(str(values["name"]), data_root)
            note = f"tokenizer: {values['tokenizer']} (choose with --tokenizer)"
        if model is not None and model[0] in self.controls:
            note = ""
        return self.data_config.parse(values, source="data"), note

    def describe_data(self, data: RunData, data_root: Path | None) -> Shown:
        """Splits, labels, lengths, fingerprints and left-out rows."""
        record = load_dataset(labelled(data), data_root).record()
        headings = ["Split", "Rows", *record.label_names, "Words, mean", "median", "90 %", "longest", "Fingerprint"]
        rows = [
            [
                name,
                f"{split.rows:,}",
                *(f"{split.label_counts[label]:,}" for label in record.label_names),
                f"{split.words.mean:.1f}",
                f"{split.words.median:.0f}",
                f"{split.words.p90:.0f}",
                f"{split.words.max}",
                split.fingerprint,
            ]
            for name, split in record.splits.items()
        ]
        title = f"{record.name}, protocol {record.protocol}, fingerprint {record.fingerprint}"
        dropped = [f"left out, {reason}: {count:,}" for reason, count in record.dropped.items() if count]
        return Shown(record.model_dump(mode="json"), [ShownTable(title, headings, rows), [*record.notes, *dropped]])

    def prepare_data(self, data: RunData, data_root: Path | None, cache_dir: Path | None) -> Shown:
        """Tokenises all splits; ``cut`` counts the rows at the limit of tokens."""
        config = labelled(data)
        dataset = load_dataset(config, data_root)
        tokenizer = load_tokenizer(config, dataset, data_root)
        splits = [
            _describe_encoded(name, encode_split(split, tokenizer, config.max_length, cache_dir), config.max_length)
            for name, split in dataset.splits.items()
        ]
        tokens = describe_tokenizer(tokenizer)
        pieces = f"{tokens['kind']} of {tokens['vocab_size']:,} pieces"
        title = f"{dataset.name}: {pieces}, at most {config.max_length} tokens"
        rows = [
            [
                split["name"],
                f"{split['rows']:,}",
                f"{split['tokens']:,}",
                f"{split['mean_tokens']:.1f}",
                f"{split['longest_tokens']}",
                f"{split['cut']:,}",
            ]
            for split in splits
        ]
        plain = {
            "name": dataset.name,
            "protocol": dataset.protocol,
            "fingerprint": dataset.fingerprint,
            "tokenizer": tokens,
            "max_length": config.max_length,
            "splits": splits,
        }
        headings = ["Split", "Rows", "Tokens", "Mean", "Longest", "Rows at the limit"]
        return Shown(plain, [ShownTable(title, headings, rows)])

    def audit_data(self, data: RunData, data_root: Path | None) -> tuple[str, list[AuditResult]]:
        """Leakage between splits, and shortcuts to the label."""
        dataset = load_dataset(labelled(data), data_root)
        title = f"{dataset.name}, protocol {dataset.protocol}, fingerprint {dataset.fingerprint}"
        return title, self.data_audits(dataset)

    def preflight(self, config: RunConfig, machine: Machine) -> None:
        """Looks at data, tokenizer and model configuration."""
        key = content_hash([config.data.plain(), config.data_hash, str(machine.data_root)])
        if key not in self._label_names:
            self._label_names[key] = load_dataset(labelled(config.data), machine.data_root).label_names
        if config.is_control:
            return
        if ENCODER not in config.model_overrides:
            check_tokenizer(labelled(config.data), machine.data_root)
        # A preset as it stands is known to be good; looking at it would load transformers.
        if config.model_overrides:
            from recurra.tasks.labelling.configuration import model_configuration

            model_configuration(config, self._label_names[key], None)

    def data_cost(self, data: RunData, machine: Machine) -> DataCost:
        """Counts training rows, and auxiliary ones, by their length."""
        config = labelled(data)
        dataset = load_dataset(config, machine.data_root)
        tokenizer = load_tokenizer(config, dataset, machine.data_root)

        def counted(split: TextSplit | None) -> dict[str, int]:
            if split is None:
                return {}
            return count_lengths(encode_split(split, tokenizer, config.max_length, machine.cache_dir).lengths)

        auxiliary = counted(dataset.auxiliary)
        return DataCost(list(dataset.label_names), counted(dataset.splits["train"]), auxiliary_lengths=auxiliary)

    def training_share(self, data: RunData) -> float:
        """The fraction, of a length tail that of its tail."""
        config = labelled(data)
        return config.fraction * (config.tail_fraction if config.length_tail else 1.0)


def _describe_encoded(name: str, encoded: EncodedSplit, limit: int) -> dict[str, Any]:
    lengths = encoded.lengths
    return {
        "name": name,
        "rows": len(encoded),
        "tokens": int(lengths.sum()),
        "mean_tokens": float(lengths.mean()),
        "longest_tokens": int(lengths.max()),
        "cut": int((lengths >= limit).sum()),
    }
