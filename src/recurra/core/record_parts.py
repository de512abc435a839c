"""The parts that the records of all runs share."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from recurra.core.configuration import HashedSettings
from recurra.core.files import json_text
from recurra.core.sealed import Sealed

# The kind of a model of which only the answers are known: there is nothing to train, time or ship.
ANSWERS = "answers"
# The training split. It is measured only to show the gap to other splits; models are never judged by it.
TRAINING_SPLIT = "train"


class Part(BaseModel):
    """Base of every part of a record: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


class AuditResult(Part):
    """The result of one audit.

    A ``note`` is worth knowing but does not spoil the figures; after ``failed`` they must not be relied on.
    ``measured`` has no grade; the summary of ``skipped`` gives the reason.
    """

    name: str
    status: Literal["passed", "note", "failed", "measured", "skipped"]
    summary: str
    value: float | None = None
    threshold: float | None = None
    details: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def skipped(cls, name: str, why: str) -> AuditResult:
        """The result of an audit that could not be made."""
        return cls(name=name, status="skipped", summary=f"skipped: {why}")


class CodeRecord(Part):
    """Which code ran."""

    version: str
    commit: str | None = None
    dirty: bool | None = None


class EnvironmentRecord(Part):
    """The machine of a run. ``precision`` is that of matrix products: ``fp32``, ``bf16`` or ``fp16``."""

    python: str
    packages: dict[str, str]
    platform: str
    cpu: str
    cores: int
    threads: int
    accelerator: str | None = None
    precision: str = "fp32"


class EncoderRecord(HashedSettings):
    """The pretrained encoder that a model started from."""

    name: str
    sha256: str
    plan: str
    layers: int
    licence: str
    trained_on: str


class ModelRecord(HashedSettings):
    """The model that was trained, and the pretrained encoder that it started from, if any. FLOPs are for one token."""

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"description"})

    preset: str
    kind: Literal["transformer", "linear", "answers"]
    parameters: int
    embedding_parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_bytes: int
    description: str = ""
    encoder: EncoderRecord | None = None


class DecisionRecord(Part):
    """How logits become labels if each is decided by itself: by the logistic function of its logit over temperature.

    A text has the labels whose probability is not below their threshold; the separator ``json`` writes a JSON list.
    """

    kind: Literal["independent"] = "independent"
    thresholds: list[float]
    separator: str
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class OneLabelRecord(Part):
    """How logits become probabilities if a text has one label: by the softmax of the logits over temperature.

    A text gets no label if the probability of its label is below that label's ``abstain_below``.
    """

    kind: Literal["exclusive"] = "exclusive"
    temperature: float = Field(gt=0, allow_inf_nan=False)
    abstain_below: list[float] | None = None


AnyDecisionRecord = Annotated[DecisionRecord | OneLabelRecord, Field(discriminator="kind")]


class AnyTrainingRecord(Part):
    """How the training went. ``best_epoch`` is the epoch whose weights were kept; peak memory is of the process."""

    protocol: str
    epochs: int
    steps: int
    best_epoch: int
    wall_s: float
    tokens_per_s: float
    peak_memory_mib: float
    resumed: int = 0


class LatencyRecord(Part):
    """Time for a sample in milliseconds at one batch size, over ``samples`` real texts, after warm-up, synchronised.

    Quantiles are over batches, each divided by its size; ``mean_ms`` is total time over samples. ``scope`` says what
    was timed: ``model`` (tokenised input to logits) or ``text`` (text to label).
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
    p99_ms: float | None = None


class RunRecordBase(Sealed):
    """Fields of the records of all tasks; each subclass gives the types of ``data``, ``training`` and ``metrics``."""

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"task", "wall_s", "latency", "audits"})

    content_hash: str | None = None  # type: ignore[assignment]
    task: str
    run_id: str
    config: dict[str, Any]
    config_hash: str
    seed: int
    created: str
    wall_s: float | None = None
    code: CodeRecord
    environment: EnvironmentRecord
    data: Part
    model: ModelRecord
    training: AnyTrainingRecord
    metrics: dict[str, Any]
    latency: dict[str, LatencyRecord] = Field(default_factory=dict)
    audits: list[AuditResult] = Field(default_factory=list)
    shape: dict[str, Any] = Field(default_factory=dict)

    def failed_audits(self) -> list[AuditResult]:
        """The audits that failed."""
        return [audit for audit in self.audits if audit.status == "failed"]

    def noted_audits(self) -> list[AuditResult]:
        """The audits with a note."""
        return [audit for audit in self.audits if audit.status == "note"]

    @classmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of the file that `write` makes from the values."""
        return hash_of_text(json_text({**values, "content_hash": None}).encode("utf-8", "surrogatepass"))

    @classmethod
    def fits(cls, text: bytes, values: dict[str, Any]) -> bool:
        """Whether a file is as it was written; if only white space was changed, its values still fit."""
        return values.get("content_hash") == hash_of_text(text) or super().fits(text, values)


# The line of the hash in a written record; the hash is of all other lines.
_HASH_LINE = re.compile(rb'^ "content_hash": (?:"[0-9a-f]*"|null),\n', re.MULTILINE)


def hash_of_text(text: bytes) -> str:
    """The hash of a record, from the bytes of its file."""
    return hashlib.sha256(_HASH_LINE.sub(b"", text, count=1)).hexdigest()
