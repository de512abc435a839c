"""The record of a run: what was run, on what, with which result. Written last and atomically.

A run without a record did not happen. Everything that the report, the README tables and the studies show is read from
records; nothing is computed twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recurra.core.errors import CheckpointError
from recurra.core.files import read_json, write_json

SCHEMA_VERSION = 1
RECORD_NAME = "record.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class AuditResult(_Part):
    """What one audit found.

    Attributes:
        name: For example ``leakage.normalised``.
        status: ``passed``, ``failed``, ``measured`` (a figure to know, with no pass or fail), or ``skipped`` (then the
            summary says why).
        summary: One sentence for a reader, with the figure.
        value: The figure that was judged, if there is one.
        threshold: What it was judged against.
        details: Everything else: counts a split, examples.
    """

    name: str
    status: Literal["passed", "failed", "measured", "skipped"]
    summary: str
    value: float | None = None
    threshold: float | None = None
    details: dict[str, Any] = Field(default_factory=dict)


class CodeRecord(_Part):
    """Which code ran."""

    version: str
    commit: str | None = None
    dirty: bool | None = None


class EnvironmentRecord(_Part):
    """Where it ran. ``precision`` is that of the matrix products: ``fp32``, ``bf16`` or ``fp16``."""

    python: str
    packages: dict[str, str]
    platform: str
    cpu: str
    cores: int
    threads: int
    accelerator: str | None = None
    precision: str = "fp32"


class LengthSummary(_Part):
    """Lengths of the texts of a split in words. ``counts[i]`` texts have ``edges[i] <= words < edges[i + 1]``."""

    mean: float
    median: float
    p90: float
    max: int
    edges: list[int]
    counts: list[int]


class SplitRecord(_Part):
    """One split: fingerprint (content and order), rows, rows a label, lengths in words."""

    fingerprint: str
    rows: int
    label_counts: dict[str, int]
    words: LengthSummary


class DataRecord(_Part):
    """What it ran on. ``selection_split`` chose the checkpoint; ``reported_splits`` are evaluated."""

    name: str
    protocol: str
    fingerprint: str
    label_names: list[str]
    selection_split: str
    reported_splits: list[str]
    splits: dict[str, SplitRecord]
    dropped: dict[str, int] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    tokenizer: dict[str, Any] = Field(default_factory=dict)


class ModelRecord(_Part):
    """What was trained. ``kind`` is ``transformer`` or ``linear``; FLOPs are for one token of a forward pass."""

    preset: str
    kind: Literal["transformer", "linear"]
    parameters: int
    embedding_parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_bytes: int
    description: str = ""


class EpochRecord(_Part):
    """One epoch. Losses are means over examples; ``wall_s`` is the epoch's own."""

    epoch: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float
    wall_s: float


class TrainingRecord(_Part):
    """How the training went. ``best_epoch`` is the one whose weights were kept; peak memory is the process's."""

    protocol: str
    epochs: int
    steps: int
    best_epoch: int
    wall_s: float
    tokens_per_s: float
    peak_memory_mib: float
    resumed: int = 0
    history: list[EpochRecord] = Field(default_factory=list)


class MetricsRecord(_Part):
    """Quality on one split.

    Attributes:
        rows: Examples evaluated.
        accuracy: Share that is right.
        precision: Of the positive class (label 1) for two classes, macro mean for more; so are ``recall`` and ``f1``.
        recall: See ``precision``.
        f1: See ``precision``.
        loss: Mean cross-entropy in nats.
        accuracy_interval: 95 % interval over examples (Wilson).
        confusion_matrix: ``[true][predicted]`` counts.
    """

    rows: int
    accuracy: float
    precision: float
    recall: float
    f1: float
    loss: float
    accuracy_interval: tuple[float, float]
    confusion_matrix: list[list[int]]


class LatencyRecord(_Part):
    """Time a sample in milliseconds at one batch size, over ``samples`` real texts, after warm-up, synchronised.

    ``median_ms`` and ``p90_ms`` are over batches, each divided by its size; ``mean_ms`` is total time by samples.
    ``scope`` says what was timed: ``model`` (tokenised input to logits) or ``text`` (text to label).
    """

    batch_size: int
    samples: int
    median_ms: float
    p90_ms: float
    mean_ms: float
    precision: str
    threads: int
    device: str
    scope: Literal["model", "text"] = "model"


class RunRecord(_Part):
    """Everything about one run. See the parts."""

    schema_version: Literal[1] = 1
    run_id: str
    config: dict[str, Any]
    config_hash: str
    seed: int
    created: str
    code: CodeRecord
    environment: EnvironmentRecord
    data: DataRecord
    model: ModelRecord
    training: TrainingRecord
    metrics: dict[str, MetricsRecord]
    latency: dict[str, LatencyRecord] = Field(default_factory=dict)
    audits: list[AuditResult] = Field(default_factory=list)

    def failed_audits(self) -> list[AuditResult]:
        """The audits that failed."""
        return [audit for audit in self.audits if audit.status == "failed"]


def write_record(folder: Path | str, record: RunRecord) -> Path:
    """Writes ``record.json`` into a run folder, atomically, and returns its path."""
    path = Path(folder) / RECORD_NAME
    write_json(path, record.model_dump(mode="json"))
    return path


def read_record(folder: Path | str) -> RunRecord:
    """Reads the record of a run folder (or a record file).

    Raises:
        CheckpointError: If there is none, or it is not a record that this version can read.
    """
    path = Path(folder)
    if path.is_dir() or path.suffix != ".json":
        path = path / RECORD_NAME
    try:
        values = read_json(path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"'{path}' is missing: not a finished run; give a folder made by 'recurra train', "
            "or start the same command again to finish it"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' cannot be read as a record ({error}); run it again") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CheckpointError(
            f"'{path}' has record schema {version}, this version reads up to {SCHEMA_VERSION}; upgrade recurra"
        )
    try:
        return RunRecord.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"'{path}' is not a record of ours: '{where}': {first['msg']}; run it again") from error
