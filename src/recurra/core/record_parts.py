"""The parts that records of all runs are made of, and what is common to them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from recurra.core.configuration import HashedSettings
from recurra.core.sealed import SealedByText

# What was trained on; measured too where the gap to what was not is asked for, and never what a model is judged by.
TRAINING_SPLIT = "train"


class Part(BaseModel):
    """Base of every part of a record: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)


class AuditResult(Part):
    """What one audit found.

    Attributes:
        status: The grade: ``passed``, ``note`` (something to know that does not spoil the figures) or ``failed`` (they
            are not to be relied on). Else ``measured`` (a figure without a grade) or ``skipped`` (the summary says
            why).
    """

    name: str
    status: Literal["passed", "note", "failed", "measured", "skipped"]
    summary: str
    value: float | None = None
    threshold: float | None = None
    details: dict[str, Any] = Field(default_factory=dict)


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
    """The pretrained encoder that a model started from.

    Attributes:
        plan: Which of its layers the model has, and how often they are applied.
    """

    name: str
    sha256: str
    plan: str
    layers: int
    licence: str
    trained_on: str


class ModelRecord(HashedSettings):
    """What was trained. ``kind`` is ``transformer`` or ``linear``; FLOPs are for one token of a forward pass.

    ``encoder`` is the pretrained encoder that it started from, if it did.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"description"})

    preset: str
    kind: Literal["transformer", "linear"]
    parameters: int
    embedding_parameters: int
    non_embedding_parameters: int
    flops_per_token: float
    file_size_bytes: int
    description: str = ""
    encoder: EncoderRecord | None = None


class DecisionRecord(Part):
    """How logits become labels where each label is decided for itself.

    Attributes:
        kind: ``independent``: a probability a label, the logistic function of its logit, divided by the temperature.
        thresholds: A text has the labels whose probability is not below theirs, in the order of the labels.
        separator: What stands between labels where they are written as one text; ``json`` writes a JSON list.
        temperature: Of all labels, chosen on the rows that chose the weights; records from before it have 1.
    """

    kind: Literal["independent"] = "independent"
    thresholds: list[float]
    separator: str
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class OneLabelRecord(Part):
    """How logits become probabilities where a text has one label, the most probable.

    Attributes:
        kind: ``exclusive``: the softmax of the logits, divided by the temperature.
        temperature: Chosen on the rows that chose the weights; it changes no label.
        abstain_below: Of each label, the probability below which a text that would get it gets none; absent where every
            text gets a label.
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

    ``median_ms``, ``p90_ms`` and ``p99_ms`` (none in older records) are over batches, each divided by its size;
    ``mean_ms`` is total time by samples, so that a second takes ``1000 / mean_ms`` of them.
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
    p99_ms: float | None = None


class RunRecordBase(SealedByText):
    """What the records of all tasks hold; each says of which types ``data``, ``training`` and ``metrics`` are.

    Attributes:
        content_hash: SHA-256 of everything else in the file, set when it is written; none in records of schema 1.
        wall_s: Seconds of the process that finished the run: training, evaluation, audits; none in schema 1.
        shape: The model's configuration as it was built, key by key, so that nobody needs the presets of that day;
            empty of a control, and in records from before it was kept.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"task", "wall_s", "latency", "audits"})

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
