"""How runs are configured and looked at before they start whose models label texts. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recurra.core.configuration import content_hash
from recurra.core.errors import UnavailableError
from recurra.core.record import AuditResult, DataRecord
from recurra.data.cleaning import CAREFUL, FIRST
from recurra.data.configuration import DataConfig, RunData
from recurra.data.corpora import CORPORA, load_dataset
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.lengths import (
    HELD_SHARE,
    LIMITS,
    Lengths,
    added_tokens,
    choose_max_length,
    cut_texts,
    samples_of,
    say_cut,
    token_lengths,
)
from recurra.data.tokenization import check_tokenizer, counting_tokenizer, default_tokenizer, load_tokenizer
from recurra.data.vocabulary import MODEL_MAX_LENGTH, describe_tokenizer
from recurra.evaluation.audits.grading import control_right, grade, needs_predictions
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.models.names import PRESET_NAMES, PRESETS
from recurra.tasks.base import DataCost, Given, Task, named_options, refuse_options
from recurra.tasks.labelling.data import count_lengths, labelled
from recurra.tasks.machine import Machine
from recurra.tasks.presentation import Shown, ShownTable
from recurra.tasks.profile import ENCODER, WORDS_AND_ENCODER, check_method, encoder_of
from recurra.tasks.runs import RunConfig
from recurra.training.protocols import PROTOCOLS

# Of a data set with more labels than twice as many, so many at either end are shown.
_LABELS_AT_EITHER_END = 10
LINEAR, LINEAR_TUNED, STATIC = "linear", "linear-tuned", "static"
_KEYS = {
    "--tokenizer": "tokenizer",
    "--data-protocol": "protocol",
    "--text-column": "text_column",
    "--label-column": "label_column",
    "--label-columns": "label_columns",
    "--label-separator": "label_separator",
    "--id-column": "id_column",
    "--encoding": "encoding",
    "--group-column": "group_column",
    "--validation": "validation",
    "--test": "test",
    "--max-length": "max_length",
    "--windows": "windows",
    "--folds": "folds",
    "--form-must-not-predict": "form_must_not_predict",
    "--skip-unlabelled": "skip_unlabelled",
    "--unlabelled": "unlabelled",
}
Model = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Counted:
    """Tokens of some texts of each split by one tokenizer, and how many of them it adds to each text."""

    lengths: Mapping[str, Lengths]
    added: int


@dataclass(frozen=True)
class _Looked:
    """What was looked at of some data: labels, some texts of each split, and their tokens by tokenizer."""

    label_names: list[str]
    texts: Mapping[str, Sequence[str]]
    counts: dict[str, _Counted] = field(default_factory=dict)


class LabellingTask(Task):
    """Base of the tasks whose data are labelled texts; each says what their labels are."""

    data_config: ClassVar[type[DataConfig]]
    presets: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = PRESETS
    protocols = PROTOCOLS
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        LINEAR: {},
        LINEAR_TUNED: {},
        STATIC: {ENCODER: "minilm"},
        WORDS_AND_ENCODER: {ENCODER: "minilm"},
    }
    starts_from_encoders = True
    advice = f"a classifier: {', '.join(PRESET_NAMES)}"
    kind_of_data = "labelled data"
    data_options = frozenset({*_KEYS, "--latency"})

    def __init__(self) -> None:
        # Planning looks at many runs of the same data.
        self._looked: dict[str, _Looked] = {}

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
        models: Sequence[Model] | None = None,
    ) -> tuple[DataConfig, str]:
        """Builds the configuration; chooses the tokenizer and, for a file that models are to read, the length."""
        refuse_options(options, self.data_options, f"'{name}' is labelled data")
        values = {**named_options(options, _KEYS), "name": name, **assigned}
        if values.get("clean") is None:
            values["clean"] = CAREFUL if _is_file(str(values["name"])) else FIRST
        readers = [each for each in models or () if each[0] not in self.controls]
        controls_alone = bool(models) and not readers
        notes = []
        if "tokenizer" not in values:
            values["tokenizer"] = default_tokenizer(str(values["name"]), data_root)
            # Controls and encoders read with tokenizers of their own.
            if not models or any(ENCODER not in keys for _, keys in readers):
                notes.append(f"tokenizer: {values['tokenizer']} (choose with --tokenizer)")
        if models is not None and not controls_alone and "max_length" not in values and _is_file(str(values["name"])):
            values["max_length"], why = self._choose_length(self.data_config.parse(values), data_root, readers)
            notes.append(f"max_length: {values['max_length']}, {why} (choose with --max-length)")
        return self.data_config.parse(values, source="data"), "; ".join(notes)

    def _choose_length(self, config: DataConfig, data_root: Path | None, readers: Sequence[Model]) -> tuple[int, str]:
        """The limit of tokens for a user's file, and why."""
        texts = {"train": samples_of(load_dataset(config, data_root))["train"]}
        longest = min((self._longest_input(*each) for each in readers), default=MODEL_MAX_LENGTH)
        tokenizers = {_reads_by(config, reader) for _, reader in readers} or {config.tokenizer}
        lengths: Lengths = np.max(
            [_count(config, texts, each, data_root).lengths["train"] for each in tokenizers], axis=0
        )
        chosen = choose_max_length(lengths, longest)
        held = f"holds {(lengths <= chosen).mean():.1%} of {len(lengths):,} training rows whole"
        if chosen == longest:
            return chosen, f"all that the model reads; it {held}"
        return chosen, f"the smallest of {', '.join(map(str, LIMITS))} that holds {HELD_SHARE:.0%}: it {held}"

    def _longest_input(self, model: str, overrides: Mapping[str, Any]) -> int:
        """Tokens that a model reads, at most."""
        longest = self.shape(model, overrides).get("max_position_embeddings", MODEL_MAX_LENGTH)
        return min(longest, MODEL_MAX_LENGTH) if isinstance(longest, int) else MODEL_MAX_LENGTH

    def describe_data(self, data: RunData, data_root: Path | None) -> Shown:
        """Splits, labels, lengths, fingerprints and left-out rows; and how many rows each limit of tokens cuts."""
        config = labelled(data)
        dataset = load_dataset(config, data_root)
        record = dataset.record()
        headings = ["Split", "Rows", "Mean words", "Median", "90 %", "Most", "Fingerprint"]
        rows = [
            [
                name,
                f"{split.rows:,}",
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
        cut = _cut_by_limit(config, dataset, data_root)
        shares = ", ".join(f"{share:.1%} at {limit}" for limit, share in cut.items())
        said = [f"training rows that a limit of tokens cuts ({config.tokenizer} tokenizer): {shares}"] if cut else []
        plain = {**record.model_dump(mode="json"), "cut": {str(limit): share for limit, share in cut.items()}}
        lines = [*said, *record.notes, *dropped]
        return Shown(plain, [ShownTable(title, headings, rows), _describe_labels(record), lines])

    def prepare_data(self, data: RunData, data_root: Path | None, cache_dir: Path | None) -> Shown:
        """Tokenises all splits; ``cut`` counts the rows at the limit of tokens, or with as many windows as allowed."""
        config = labelled(data)
        dataset = load_dataset(config, data_root)
        tokenizer = load_tokenizer(config, dataset, data_root)
        splits = [
            _describe_encoded(
                name, encode_split(split, tokenizer, config.max_length, cache_dir, windows=config.windows), config
            )
            for name, split in dataset.splits.items()
        ]
        tokens = describe_tokenizer(tokenizer)
        pieces = f"{tokens['kind']} of {tokens['vocab_size']:,} pieces"
        title = f"{dataset.name}: {pieces}, at most {config.max_length} tokens"
        if config.windows > 1:
            title += f" in each of at most {config.windows} windows"
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
            "windows": config.windows,
            "splits": splits,
        }
        headings = ["Split", "Rows", "Tokens", "Mean", "Longest", "Rows at the limit"]
        return Shown(plain, [ShownTable(title, headings, rows)])

    def audit_data(self, data: RunData, data_root: Path | None) -> tuple[str, list[AuditResult]]:
        """Leakage between splits and shortcuts to the label, graded by the linear control; and what is cut."""
        config = labelled(data)
        dataset = load_dataset(config, data_root)
        title = f"{dataset.name}, protocol {dataset.protocol}, fingerprint {dataset.fingerprint}"
        found = self.data_audits(dataset)
        right = control_right(dataset) if needs_predictions(found) else {}
        graded = grade(found, right, "the linear control", form_must_not_predict=config.form_must_not_predict)
        return title, [*graded, *_audit_length(config, dataset, data_root)]

    def preflight(self, config: RunConfig, machine: Machine) -> list[str]:
        """Looks at data, tokenizer and model configuration; says what is cut of long texts."""
        check_method(config.model_overrides)
        key = content_hash([config.data.plain(), config.data_hash, str(machine.data_root)])
        if key not in self._looked:
            dataset = load_dataset(labelled(config.data), machine.data_root)
            self._looked[key] = _Looked(list(dataset.label_names), samples_of(dataset))
        looked = self._looked[key]
        if config.is_control:
            return []
        if ENCODER not in config.model_overrides:
            check_tokenizer(labelled(config.data), machine.data_root)
        # A preset as it stands is known to be good; looking at it would load transformers.
        if config.model_overrides:
            from recurra.tasks.labelling.configuration import model_configuration

            model_configuration(config, looked.label_names, None)
        data = labelled(config.data)
        reads_by = _reads_by(data, config.model_overrides)
        if reads_by not in looked.counts:
            looked.counts[reads_by] = _count(data, looked.texts, reads_by, machine.data_root)
        counted = looked.counts[reads_by]
        longest = self._longest_input(config.model, config.model_overrides)
        if data.fold:
            # The first fold speaks for all.
            return []
        said = say_cut(counted.lengths, data.max_length, longest, windows=data.windows, added=counted.added)
        return [f"{Path(data.name).name}: {said}"]

    def label_names(self, data: RunData, machine: Machine) -> list[str]:
        """Reads them from the data."""
        return list(load_dataset(labelled(data), machine.data_root).label_names)

    def data_cost(self, data: RunData, machine: Machine) -> DataCost:
        """Counts training rows, and auxiliary ones, by their length."""
        config = labelled(data)
        dataset = load_dataset(config, machine.data_root)
        tokenizer = load_tokenizer(config, dataset, machine.data_root)

        def counted(split: TextSplit | None) -> dict[str, int]:
            if split is None:
                return {}
            encoded = encode_split(split, tokenizer, config.max_length, machine.cache_dir, windows=config.windows)
            return count_lengths(encoded.lengths)

        return DataCost(
            list(dataset.label_names),
            counted(dataset.splits["train"]),
            auxiliary_lengths=counted(dataset.auxiliary),
            unlabelled_lengths=counted(dataset.unlabelled),
        )

    def training_share(self, data: RunData) -> float:
        """The fraction, of a length tail that of its tail."""
        config = labelled(data)
        return config.fraction * (config.tail_fraction if config.length_tail else 1.0)


def _describe_labels(record: DataRecord) -> ShownTable:
    """Rows of each label in every split, the commonest first; of very many the two ends, the others in one row."""
    train = record.splits["train"]
    ordered = sorted(record.label_names, key=lambda label: -train.label_counts[label])
    groups = [(label, [label]) for label in ordered]
    others = ordered[_LABELS_AT_EITHER_END:-_LABELS_AT_EITHER_END]
    if len(others) > 1:
        first, last = groups[:_LABELS_AT_EITHER_END], groups[-_LABELS_AT_EITHER_END:]
        groups = [*first, (f"… {len(others)} others (--json has all)", others), *last]
    rows = []
    for name, labels in groups:
        counts = [sum(split.label_counts[label] for label in labels) for split in record.splits.values()]
        share = sum(train.label_counts[label] for label in labels) / train.rows
        rows.append([name, *(f"{count:,}" for count in counts), f"{share:.1%}"])
    return ShownTable("", ["Label", *record.splits, "Of train"], rows)


def _is_file(name: str) -> bool:
    return name not in CORPORA and Path(name).is_file()


def _reads_by(data: DataConfig, overrides: Mapping[str, Any]) -> str:
    """The tokenizer that a model reads by: its encoder's, or that of the data."""
    source = encoder_of(overrides)
    return data.tokenizer if source is None else str(source.folder.absolute())


def _count(data: DataConfig, texts: Mapping[str, Sequence[str]], tokenizer: str, data_root: Path | None) -> _Counted:
    counting = counting_tokenizer(tokenizer, texts["train"], data.trained_vocab_size, data_root)
    return _Counted({name: token_lengths(each, counting) for name, each in texts.items()}, added_tokens(counting))


def _cut_by_limit(data: DataConfig, dataset: TextDataset, data_root: Path | None) -> dict[int, float]:
    """Share of the training rows that each limit cuts; nothing where the tokenizer cannot be had."""
    texts = samples_of(dataset).get("train", [])
    try:
        lengths = _count(data, {"train": texts}, data.tokenizer, data_root).lengths["train"]
    except UnavailableError:
        return {}
    return {limit: cut_texts(lengths, limit).rows for limit in LIMITS}


def _audit_length(data: DataConfig, dataset: TextDataset, data_root: Path | None) -> list[AuditResult]:
    """What `DataConfig.max_length` and its windows cut, for a model that reads by the data's tokenizer."""
    texts = samples_of(dataset)["train"]
    try:
        counting = counting_tokenizer(data.tokenizer, texts, data.trained_vocab_size, data_root)
    except UnavailableError as error:
        summary = f"skipped: {error}"
        return [AuditResult(name=f"long-texts.{name}", status="skipped", summary=summary) for name in dataset.splits]
    return run_audits(Subject.TOKENS, dataset, counting, data.max_length, MODEL_MAX_LENGTH, data.windows)


def _describe_encoded(name: str, encoded: EncodedSplit, data: DataConfig) -> dict[str, Any]:
    lengths, windows = encoded.lengths, encoded.windows_of_texts
    at_limit = windows >= data.windows if data.windows > 1 else lengths >= data.max_length
    return {
        "name": name,
        "rows": len(windows),
        "windows": len(encoded),
        "tokens": int(lengths.sum()),
        "mean_tokens": float(lengths.sum() / len(windows)),
        "longest_tokens": int(lengths.max()),
        "cut": int(at_limit.sum()),
    }
