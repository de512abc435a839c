"""The record of a run: what was run, on what, with which result. Written last and atomically.

A run without a record did not happen. Everything that the report, the README tables and the studies show is read from
records; nothing is computed twice.

Schema 2 added ``content_hash`` and ``wall_s``. Records of schema 1 lack both and are read as they are. A change that an
older version would read wrongly raises the number; a new optional field raises it as well, because unknown keys are
refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from recurra.core.errors import CheckpointError
from recurra.core.files import write_text

SCHEMA_VERSION = 2
RECORD_NAME = "record.json"
_FIRST_HASHED_VERSION = 2
# The line of the hash in the file as we write it: what is hashed is the rest.
_HASH_LINE = re.compile(rb'^ "content_hash": (?:"[0-9a-f]*"|null),\n', re.MULTILINE)


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
    """Everything about one run. See the parts.

    Attributes:
        content_hash: SHA-256 of everything else in the file, set when it is written; none in records of schema 1.
        wall_s: Seconds of the process that finished the run: training, evaluation, audits; none in schema 1.
    """

    schema_version: Literal[1, 2] = 2
    content_hash: str | None = None
    run_id: str
    config: dict[str, Any]
    config_hash: str
    seed: int
    created: str
    wall_s: float | None = None
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
    """Writes ``record.json`` into a run folder, atomically and with the hash of its content, and returns its path."""
    path = Path(folder) / RECORD_NAME
    values = record.model_copy(update={"schema_version": SCHEMA_VERSION, "content_hash": None}).model_dump(mode="json")
    write_text(path, _text({**values, "content_hash": _hash(values)}))
    return path


def read_record(folder: Path | str) -> RunRecord:
    """Reads the record of a run folder (or a record file).

    Raises:
        CheckpointError: If there is none, it is not a record that this version can read, or it was changed after it
            was written.
    """
    path = _record_path(folder)
    text = _read(path)
    try:
        # Half the time of the json module, which counts when a study has thousands of records.
        values = from_json(text)
    except ValueError as error:
        raise CheckpointError(f"'{path}' cannot be read as a record ({error}); run it again") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CheckpointError(
            f"'{path}' has record schema {version}, this version reads up to {SCHEMA_VERSION}; upgrade recurra"
        )
    try:
        record = RunRecord.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"'{path}' is not a record of ours: '{where}': {first['msg']}; run it again") from error
    hashed = record.content_hash is not None or record.schema_version >= _FIRST_HASHED_VERSION
    # The second hash is for a file whose white space was changed, which changes no figure.
    if hashed and record.content_hash != _hash_of_file(text) and record.content_hash != _hash(values):
        raise CheckpointError(
            f"'{path}' was changed after it was written: its content does not fit its hash; restore it, "
            "or delete it to run again"
        )
    return record


def holds_record(folder: Path | str, config_hash: str) -> bool:
    """Whether a folder holds the record of a run of this configuration; as strict as `read_record`, and much faster.

    Raises:
        CheckpointError: If there is a record that `read_record` refuses.
    """
    path = _record_path(folder)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return read_record(path).config_hash == config_hash
    # A file whose hash fits is what `write_record` wrote: no need to look inside.
    if f'\n "content_hash": "{_hash_of_file(text)}",\n'.encode() in text[:200]:
        return f'\n "config_hash": "{config_hash}",\n'.encode() in text
    return read_record(path).config_hash == config_hash


def _record_path(folder: Path | str) -> Path:
    path = Path(folder)
    return path if path.suffix == ".json" and not path.is_dir() else path / RECORD_NAME


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"'{path}' is missing: not a finished run; give a folder made by 'recurra train', "
            "or start the same command again to finish it"
        ) from error
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read as a record ({error}); run it again") from error


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _hash(values: dict[str, Any]) -> str:
    """The hash of plain values as we would write them: white space in the file does not matter, all else does."""
    return _hash_of_file(_text({**values, "content_hash": None}).encode("utf-8", "surrogatepass"))


def _hash_of_file(text: bytes) -> str:
    return hashlib.sha256(_HASH_LINE.sub(b"", text, count=1)).hexdigest()
