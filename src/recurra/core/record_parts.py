"""The parts that records of all runs are made of, and what is common to them."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from recurra.core.configuration import HashedSettings
from recurra.core.sealed import Sealed, text_of

# The kind of a model that is known by its answers alone: there is nothing to train, to time or to ship.
ANSWERS = "answers"
# What was trained on; measured too where the gap to what was not is asked for, and never what a model is judged by.
TRAINING_SPLIT = "train"


class Part(BaseModel):
    """Base of every part of a record: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


class AuditResult(Part):
    """What one audit found.

    A ``note`` is something to know that does not spoil the figures; after ``failed`` they are not to be relied on.
    ``measured`` has no grade, and of ``skipped`` the summary says why.
    """

    name: str
    status: Literal["passed", "note", "failed", "measured", "skipped"]
    summary: str
    value: float | None = None
    threshold: float | None = None
    details: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def skipped(cls, name: str, why: str) -> AuditResult:
        """What stands for an audit that could not be made."""
        return cls(name=name, status="skipped", summary=f"skipped: {why}")


class CodeRecord(Part):
    """Which code ran."""

    version: str
    commit: str | None = None
    dirty: bool | None = None


class EnvironmentRecord(Part):
    """Where it ran. ``precision`` is that of the matrix products: ``fp32``, ``bf16`` or ``fp16``."""

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
    """What was trained, and the pretrained encoder that it started from, if it did. FLOPs are those of a token."""

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
    """How logits become labels where each is decided for itself: by the logistic function of its logit by temperature.

    A text has the labels whose probability is not below their threshold; ``json`` as separator writes a JSON list.
    """

    kind: Literal["independent"] = "independent"
    thresholds: list[float]
    separator: str
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class OneLabelRecord(Part):
    """How logits become probabilities where a text has one label: by the softmax of the logits by temperature.

    A text that would get a label with a probability below its ``abstain_below`` gets none.
    """

    kind: Literal["exclusive"] = "exclusive"
    temperature: float = Field(gt=0, allow_inf_nan=False)
    abstain_below: list[float] | None = None


AnyDecisionRecord = Annotated[DecisionRecord | OneLabelRecord, Field(discriminator="kind")]


class AnyTrainingRecord(Part):
    """How the training went. ``best_epoch`` is the one whose weights were kept; peak memory is the process's."""

    protocol: str
    epochs: int
    steps: int
    best_epoch: int
    wall_s: float
    tokens_per_s: float
    peak_memory_mib: float
    resumed: int = 0


class LatencyRecord(Part):
    """Time a sample in milliseconds at one batch size, over ``samples`` real texts, after warm-up, synchronised.

    Quantiles are over batches, each divided by its size; ``mean_ms`` is total time by samples. ``scope`` says what was
    timed: ``model`` (tokenised input to logits) or ``text`` (text to label).
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
    """What the records of all tasks hold; each says of which types ``data``, ``training`` and ``metrics`` are."""

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
        """The audits that found something to know."""
        return [audit for audit in self.audits if audit.status == "note"]

    @classmethod
    def hash_of(cls, values: dict[str, Any]) -> str:
        """The hash of the file that `write` makes of the values."""
        return hash_of_text(text_of({**values, "content_hash": None}).encode("utf-8", "surrogatepass"))

    @classmethod
    def fits(cls, text: bytes, values: dict[str, Any]) -> bool:
        """Whether a file is what was written; one whose white space was changed is known by its values."""
        return values.get("content_hash") == hash_of_text(text) or super().fits(text, values)


# The line of the hash in a record as it is written; what is hashed is the rest.
_HASH_LINE = re.compile(rb'^ "content_hash": (?:"[0-9a-f]*"|null),\n', re.MULTILINE)


def hash_of_text(text: bytes) -> str:
    """The hash of a record, from the bytes of its file."""
    return hashlib.sha256(_HASH_LINE.sub(b"", text, count=1)).hexdigest()
