"""``export.json``: what an export folder holds, where it comes from, and the hashes of all its files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from recurra.core.best_run import no_run
from recurra.core.configuration import HashedSettings
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.files import pickles_in
from recurra.core.record import (
    RECORD_NAME,
    AnyDecisionRecord,
    CodeRecord,
    LabelRunRecord,
    holds_any_record,
    read_record,
)
from recurra.core.sealed import MODEL_NAME, FileEntry, FileName, Sealed, verify_file
from recurra.data.cleaning import CLEANINGS
from recurra.data.windows import MOST_WINDOWS
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import Computation, Engine
from recurra.deployment.export.formats import find_format, find_precision
from recurra.models.controls import holds_linear_model
from recurra.models.exits.rules import ExitRule, read_rule


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; see ``recurra export``.

    Attributes:
        rows_file: File of texts to check on; none takes the run's validation split, or the demo corpus.
        vocabulary: Most pieces that the tokenizer keeps; 0 keeps all that the training rows use, and none keeps all
            pieces. Single characters always stay.
        abstain_below: For each label, the probability below which a text gets no label instead of it.
        agreement: Share of rows that keep their label with early exits; none means 0.99.
        confidence: Probability that this holds for texts like these rows; none promises nothing beyond them.
    """

    format: str = "safetensors"
    precision: str = "fp32"
    overwrite: bool = False
    rows_file: Path | None = None
    text_column: str = "text"
    encoding: str | None = None
    data_root: Path | None = None
    vocabulary: int | None = None
    agreement: float | None = None
    confidence: float | None = None
    abstain_below: Sequence[float] | None = None


class VocabularyRecord(HashedSettings):
    """Cost of a smaller vocabulary, compared with the run's model on the rows of the check, both in FP32."""

    pieces: int
    of: int
    rows_changed: float
    label_agreement: float
    reference_accuracy: float | None = None
    accuracy: float | None = None

    def describe(self) -> str:
        """One line."""
        lost = ""
        if self.accuracy is not None and self.reference_accuracy is not None:
            lost = f", accuracy {self.accuracy:.4f} instead of {self.reference_accuracy:.4f}"
        return (
            f"vocabulary: {self.pieces:,} of {self.of:,} pieces; {self.rows_changed:.1%} of the rows are tokenised "
            f"differently, {self.label_agreement:.2%} keep their label{lost}"
        )


class CheckRecord(HashedSettings):
    """Comparison of an export with the run's model on real rows, when the export was made.

    ``only_reference`` counts rows that only the run's model gets right; none in older exports without this count.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"reference_accuracy", "accuracy"})

    source: str
    rows: int
    label_agreement: float
    largest_logit_difference: float
    largest_logit: float
    reference: Computation
    computation: Computation
    reference_accuracy: float | None = None
    accuracy: float | None = None
    only_reference: int | None = None
    only_export: int | None = None

    @property
    def lost_points(self) -> float | None:
        """Points of accuracy that the export loses, if true labels are known; negative if it gains."""
        if self.accuracy is None or self.reference_accuracy is None:
            return None
        return round(100 * (self.reference_accuracy - self.accuracy), 6)

    @property
    def lost_points_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `lost_points`, for paired rows with half a row added to each of four cells.

        Agresti and Min (2005), "Simple improved confidence intervals for comparing matched proportions".
        """
        if self.only_reference is None or self.only_export is None:
            return None
        lost, rows = self.only_reference - self.only_export, self.rows + 2
        half = 1.96 * math.sqrt(self.only_reference + self.only_export + 1 - lost**2 / rows)
        return 100 * (lost - half) / rows, 100 * (lost + half) / rows

    def describe_loss(self) -> str:
        """The loss of the export as the end of a sentence; empty if it is not known."""
        if (lost := self.lost_points) is None or (interval := self.lost_points_interval) is None:
            return ""
        verb, sign = ("gains", -1) if lost < 0 else ("loses", 1)
        low, high = sorted(sign * end for end in interval)
        return (
            f"{verb} {abs(lost):.2f} points of accuracy (95 % interval {low:.2f} to {high:.2f}: "
            f"{self.only_reference:,} rows lost and {self.only_export:,} won of {self.rows:,})"
        )


class CalibrationRecord(HashedSettings):
    """How the threshold of an export's exits was chosen: on real rows, by the exported model itself.

    Attributes:
        asked: Requested share of rows that keep the label of the export without exits.
        rows: Number of rows; 0 if there were none to choose on.
        rule: The rule as `recurra.models.exits` writes it; none if no threshold reaches the requested share.
        agreement: Share of rows that kept their label, measured with early exits as in use.
        taken: Number of rows by the recurrences that they took.
        confidence: Probability, over the draw of such rows, that at least ``asked`` of texts like them keep their
            label; none if nothing was promised.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"rule", "agreement", "taken", "accuracy"})

    exits: list[int] = Field(min_length=1)
    asked: float = Field(gt=0, le=1)
    source: str
    rows: int = Field(ge=0)
    rule: dict[str, Any] | None = None
    agreement: float | None = None
    taken: dict[int, int] = Field(default_factory=dict)
    accuracy: float | None = None
    confidence: float | None = None

    @model_validator(mode="after")
    def _check_rule(self) -> CalibrationRecord:
        if self.rule is not None:
            try:
                read_rule(self.rule)
            except ConfigurationError as error:
                raise ValueError(str(error)) from error
        return self

    @property
    def exit_rule(self) -> ExitRule | None:
        """The rule."""
        return None if self.rule is None else read_rule(self.rule)

    def describe(self) -> str:
        """Describes it in one line."""
        rule, promise = self.exit_rule, "" if self.confidence is None else f" with a confidence of {self.confidence:g}"
        if not self.rows:
            return "exits: not calibrated, because the run's own rows are not available; texts take all recurrences"
        if rule is None or self.agreement is None:
            return (
                f"exits: no threshold keeps {self.asked:.4g} of the labels of {self.source}{promise}: "
                "texts take all recurrences"
            )
        total = max(1, sum(self.taken.values()))
        shares = ", ".join(f"{count / total:.1%} after {number}" for number, count in sorted(self.taken.items()))
        if promise:
            promise = f";{promise} at least {self.asked:.4g} of texts like these keep theirs"
        return (
            f"exits: {rule.describe()} keeps {self.agreement:.2%} of the labels (asked: {self.asked:.4g}) of "
            f"{self.rows:,} rows of {self.source}; of these leave {shares}{promise}"
        )


MANIFEST_NAME = "export.json"
RUN_RECORD_NAME = "run-record.json"


class StoredModel(HashedSettings):
    """A model stored in an export's folder, and how much of a text it reads.

    Attributes:
        max_length: Most tokens of a text, or of each window, including special tokens; a linear model reads all.
        windows: Most windows that a text is read in; their logits are averaged (`recurra.data.windows`).
    """

    format: str
    precision: str
    max_length: int = Field(ge=3)
    pad_token_id: int = Field(ge=0)
    kind: Literal["transformer", "linear"] = "transformer"
    windows: int = Field(default=1, ge=1, le=MOST_WINDOWS)

    @field_validator("format", "precision")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        try:
            if info.field_name == "format":
                find_format(name)
            elif "format" in info.data:
                find_precision(info.data["format"], name)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return name

    def open(self, folder: Path, *, precision: str | None = None, threads: int = 0) -> Engine:
        """Reads the model; without ``precision`` it suits the stored weights; ``threads`` are for ONNX Runtime."""
        if find_format(self.format).needs_torch:
            return load_engine(folder, precision=precision, max_length=self.max_length, windows=self.windows)
        from recurra.deployment.onnx.engine import OnnxEngine, OnnxLinearEngine

        if self.kind == "linear":
            return OnnxLinearEngine(folder, threads)
        return OnnxEngine(
            folder,
            precision=self.precision,
            max_length=self.max_length,
            pad_token_id=self.pad_token_id,
            windows=self.windows,
            threads=threads,
        )


class ExportManifest(StoredModel, Sealed):
    """Description of an export folder.

    Attributes:
        decision: How logits become labels; none takes the most probable label by their softmax.
        vocabulary: Cost of a smaller vocabulary in FP32; none for the run's. Since 0.3.0 the check includes it.
    """

    schema_version: Literal[1] = 1
    run_id: str
    record_hash: str
    created: str
    code: CodeRecord
    label_names: list[str] = Field(min_length=2)
    cleaning: str
    cleaning_steps: list[str]
    files: dict[FileName, FileEntry]
    check: CheckRecord
    exits: CalibrationRecord | None = None
    decision: AnyDecisionRecord | None = None
    vocabulary: VocabularyRecord | None = None

    @property
    def size_bytes(self) -> int:
        """Total bytes of all listed files."""
        return sum(entry.size_bytes for entry in self.files.values())

    def describe_size(self) -> str:
        """One line on a folder that is larger than its format should be, and what helps; empty for others."""
        most, size = find_format(self.format).most_mib, self.size_bytes / 2**20
        if size <= most:
            return ""
        smaller = "" if self.precision == "int8" else "--precision int8 makes it smaller, and "
        return f"size: the page has {size:.2f} MiB, more than {most}; {smaller}recurra-small in int8 stays below"

    @property
    def weights_bytes(self) -> int:
        """Total bytes of the files with weights."""
        return sum(self.files[name].size_bytes for name in find_format(self.format).weight_files if name in self.files)


def is_export(folder: Path | str) -> bool:
    """Whether a folder has the manifest of an export."""
    return (Path(folder) / MANIFEST_NAME).is_file()


def needs_torch(folder: Path | str) -> bool:
    """Whether reading a run or an export needs torch and transformers; linear models never do."""
    if not is_export(folder):
        return not holds_linear_model(Path(folder) / MODEL_NAME)
    manifest = read_manifest(folder)
    return manifest.kind != "linear" and find_format(manifest.format).needs_torch


def refuse_precision(model: Path, precision: str | None) -> None:
    """Refuses a precision that a run or an export cannot be computed in, as far as its files tell."""
    if precision is None:
        return
    manifest = read_manifest(model) if is_export(model) else None
    if holds_linear_model(model / MODEL_NAME) if manifest is None else manifest.kind == "linear":
        raise ConfigurationError(f"a linear model is computed in fp64, not in {precision}; leave precision out")
    if manifest and not find_format(manifest.format).needs_torch and manifest.precision != precision:
        raise ConfigurationError(
            f"'{model}' is an ONNX export and computes in {manifest.precision}, not in {precision}; "
            "leave precision out, or export safetensors"
        )


def write_manifest(folder: Path, manifest: ExportManifest) -> ExportManifest:
    """Writes ``export.json`` with the hash of its content; returns what was written."""
    return manifest.write(folder / MANIFEST_NAME)


def read_manifest(folder: Path | str) -> ExportManifest:
    """Reads ``export.json`` without checking other files."""
    path = Path(folder) / MANIFEST_NAME
    if not path.is_file():
        raise CheckpointError(f"'{folder}' is not an export: no {MANIFEST_NAME}; give a folder of 'recurra export'")
    manifest = ExportManifest.read(path, what="an export of ours", cure="export the run again")
    if manifest.cleaning not in CLEANINGS:
        raise CheckpointError(
            f"'{folder}' needs texts cleaned by '{manifest.cleaning}', this version has {', '.join(CLEANINGS)}; "
            "export again"
        )
    return manifest


def read_export(folder: Path | str) -> ExportManifest:
    """Reads an export's manifest and checks every file against its hash.

    Raises:
        CheckpointError: If a file is missing, truncated or changed, or the folder holds a pickle.
    """
    manifest = read_manifest(folder)
    if pickles := pickles_in(folder):
        raise CheckpointError(
            f"'{folder}' holds '{pickles[0]}', a pickle, which can run code when it is read and is no part of an "
            "export; remove it"
        )
    for name in manifest.files:
        _verify(Path(folder), manifest, name)
    return manifest


def _verify(folder: Path, manifest: ExportManifest, name: str) -> None:
    verify_file(folder / name, manifest.files.get(name), of="export", cure="copy it or export the run again")


def read_run(folder: Path) -> LabelRunRecord:
    """Reads the record of a finished run; raises `CheckpointError` if it is not one of ours."""
    if is_export(folder):
        raise CheckpointError(
            f"'{folder}' is an export, not a run; give the run that it was made from, or read it with "
            "Classifier.from_export"
        )
    if not (folder / RECORD_NAME).exists() and not (folder / MODEL_NAME).is_dir():
        raise no_run(folder)
    return read_record(folder)


def read_source_record(folder: Path | str) -> LabelRunRecord:
    """Reads the record of a run folder, or of the run that an export was made from."""
    if not is_export(folder):
        return read_record(folder) if holds_any_record(folder) else read_run(Path(folder))
    _verify(Path(folder), read_manifest(folder), RUN_RECORD_NAME)
    return read_record(Path(folder) / RUN_RECORD_NAME)
