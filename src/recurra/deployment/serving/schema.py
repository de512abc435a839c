"""What goes in and what comes out, as OpenAPI tells it.

A prediction is an object of its own, not an entry of parallel lists: what a model says beyond its label, such as what
it thought after each recurrence, has a key beside ``probabilities``. Clients ignore keys that they do not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from recurra.core.errors import did_you_mean
from recurra.deployment.engines.computation import Computation
from recurra.deployment.export.formats.registry import FORMATS
from recurra.deployment.serving.answers import Asked
from recurra.deployment.serving.refusals import Refusal, shortened

_TEXT = "The opening is slow, but the last act is worth the wait."
ModelName = Annotated[str, StringConstraints(min_length=1)]


class ClassifyRequest(BaseModel):
    """Texts to classify, and by which models."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        json_schema_extra={
            "examples": [
                {"text": _TEXT},
                {"text": ["not bad at all", "far from good"], "model": "reviews-int8"},
                {"text": _TEXT, "model": ["reviews-int8", "reviews-fp32"]},
                {"text": _TEXT, "exit_rule": "calibrated", "recurrences": True},
                {"text": "not bad at all", "explain": True},
            ]
        },
    )

    text: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(description="One text, or many.")
    model: ModelName | Annotated[list[ModelName], Field(min_length=1, fail_fast=True)] | None = Field(
        default=None, description="A model by name, or several; none takes the first that the server was started with."
    )

    exit_rule: Literal["calibrated"] | None = Field(
        default=None,
        description="'calibrated' lets texts stop early by the rule that a model carries (/v1/models); one without "
        "goes all the way.",
    )
    recurrences: bool = Field(
        default=False,
        description="Also say what was thought after each recurrence. All are computed then, also with an exit rule.",
    )

    abstain_below: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None,
        description="A text whose highest probability is lower gets no label: 'label' is null then. Multi-label models "
        "have thresholds of their own and refuse it.",
    )

    explain: bool = Field(
        default=False,
        description="Also say what each word does for the label: each text is computed once more for each of its "
        "words, 64 times at most, and for all texts together no more often than a request may have texts: beyond that, "
        "runs of words are told of. Multi-label models say it for each label of a text, of that one computation.",
    )

    @property
    def asked(self) -> Asked:
        """What is asked of the models beyond labels."""
        return Asked(exits=self.exit_rule is not None, recurrences=self.recurrences)

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.text] if isinstance(self.text, str) else self.text

    def chosen(self, names: list[str]) -> list[str]:
        """The names of the models to ask, in order.

        Args:
            names: The server's models.

        Raises:
            Refusal: If there is no such model (404), or one is named twice (422).
        """
        wanted = names[:1] if self.model is None else [self.model] if isinstance(self.model, str) else self.model
        for name in wanted:
            if name not in names:
                raise unknown_model(name, names)
        if len(set(wanted)) != len(wanted):
            raise Refusal(422, "invalid", "'model' names a model twice; name each once")
        return wanted


class Thought(BaseModel):
    """What a model thinks of one text after some of its recurrences."""

    after: int = Field(description="Recurrences computed so far.")
    label: str = Field(description="The most probable label.")
    probabilities: dict[str, float] = Field(description="By label; they add up to 1.")


class Word(BaseModel):
    """A word of a text, or a run of words of a long one, and what it does."""

    text: str
    start: int = Field(description="Its first character, from 0.")
    end: int = Field(description="Behind its last character.")
    effect: float = Field(description="By how much the probability of the label falls without it.")


class ExplainedLabel(BaseModel):
    """What the words of a text do for one of its labels."""

    label: str
    given: bool = Field(
        description="Whether the text gets it. A text without labels is explained for the one nearest to its threshold."
    )
    words: list[Word] = Field(description="In the order of the text.")


class Prediction(BaseModel):
    """What a model says of one text. What was not asked for, or what the model has no means for, is left out."""

    label: str | None = Field(
        description="The most probable label; of a multi-label model all labels, joined. Null if 'abstained'."
    )
    labels: list[str] | None = Field(default=None, description="Of a multi-label model: the labels, perhaps none.")
    probabilities: dict[str, float] = Field(description="By label; they add up to 1, but of a multi-label model.")
    abstained: bool | None = Field(
        default=None,
        description="If 'abstain_below' was asked for, or the export holds labels to a precision: whether the highest "
        "probability is lower.",
    )
    words: list[Word] | None = Field(default=None, description="If 'explain' was asked for: in the order of the text.")
    words_by_label: list[ExplainedLabel] | None = Field(
        default=None,
        description="The same of a multi-label model, instead of 'words': a list for each of the text's labels, "
        "at most 20, those farthest above their thresholds.",
    )
    exited_after: int | None = Field(
        default=None, description="If 'exit_rule' was asked for: recurrences that the text took; the label is of there."
    )
    recurrences: list[Thought] | None = Field(
        default=None, description="If asked for: what was thought after each recurrence with a head, the last included."
    )
    stops_after: int | None = Field(
        default=None, description="With 'recurrences': where the text stops, or would, under the model's own exit rule."
    )


class ModelResult(BaseModel):
    """What one model says of all texts, in their order."""

    model: str
    content_hash: str = Field(description="Of the model that answered; see /v1/models.")
    predictions: list[Prediction]
    waited_ms: float = Field(description="From acceptance to the start of the computation.")
    computed_ms: float = Field(description="Of the batch in which the texts were computed.")
    batch_texts: int = Field(description="Texts of that batch, those of other requests among them.")


class ClassifyResponse(BaseModel):
    """A result for each model, in the order of the request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "results": [
                        {
                            "model": "reviews-int8",
                            "content_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                            "predictions": [
                                {
                                    "label": "positive",
                                    "probabilities": {"negative": 0.125, "positive": 0.875},
                                    "exited_after": 1,
                                    "recurrences": [
                                        {
                                            "after": 1,
                                            "label": "positive",
                                            "probabilities": {"negative": 0.125, "positive": 0.875},
                                        },
                                        {
                                            "after": 2,
                                            "label": "positive",
                                            "probabilities": {"negative": 0.0625, "positive": 0.9375},
                                        },
                                    ],
                                    "stops_after": 1,
                                }
                            ],
                            "waited_ms": 1.2,
                            "computed_ms": 3.4,
                            "batch_texts": 8,
                        }
                    ]
                }
            ]
        }
    )

    results: list[ModelResult]


class ExitsDescription(BaseModel):
    """Where a model's texts may stop early, and by which rule. Without a rule they go all the way."""

    model_config = ConfigDict(frozen=True)

    after: list[int] = Field(description="Recurrences after which a head of their own stands.")
    rule: str | None = Field(description="The calibrated rule in words, if the model carries one.")
    threshold: float | None = Field(description="Of the rule, after the first exit: a probability, or nats.")
    agreement_asked: float | None = Field(description="Share of labels that was to stay when the rule was chosen.")
    agreement: float | None = Field(description="Share of labels that stayed on the rows that chose it.")
    rows: int | None = Field(description="How many rows chose it.")


class QualityDescription(BaseModel):
    """How good the run of a model was when it was trained."""

    model_config = ConfigDict(frozen=True)

    split: str = Field(description="Where it was measured: the last split that the run reports.")
    rows: int
    figures: dict[str, str] = Field(description="By name, as the model card has them.")


def _list_kinds(schema: dict[str, Any]) -> None:
    schema["enum"] = ["run", *FORMATS]


class LoadedModel(BaseModel):
    """Which model answers to a name."""

    model_config = ConfigDict(frozen=True)

    name: str
    content_hash: str = Field(description="Of the export, or of a run's record and model files: another has another.")
    loaded_at: datetime = Field(description="When the server had read it.")


class ModelDescription(LoadedModel):
    """A model of the server."""

    labels: list[str]
    kind: str = Field(description="A run, or the format of an export.", json_schema_extra=_list_kinds)
    size_bytes: int = Field(description="Of the files that it is read from.")
    max_length_tokens: int = Field(description="A text is cut there, or a window of it.")
    windows: int = Field(default=1, description="Most windows that a text is read in; their scores are averaged.")
    run_id: str
    computation: Computation | None
    num_recurrences: int | None = Field(
        default=None, description="How often the core is applied; null for a model without recurrences."
    )
    own_heads: bool = Field(
        default=False,
        description="Whether 'recurrences' come from heads trained there, not from the final head, applied early.",
    )
    exits: ExitsDescription | None = Field(default=None, description="Null for a model without exits.")
    quality: QualityDescription | None = Field(default=None, description="Of the run's record, not of this export.")


class ModelsResponse(BaseModel):
    """The models, the first of which answers where none is named, and what a request may hold."""

    models: list[ModelDescription]
    max_body_bytes: int
    max_texts: int
    max_characters: int


class Health(BaseModel):
    """How it is."""

    status: Literal["ok", "stopping"]


class Readiness(Health):
    """How it is, and which models answer."""

    models: list[LoadedModel]


class ErrorDetail(BaseModel):
    """What is wrong."""

    code: str = Field(description="One word for programs.")
    message: str = Field(description="A sentence for people.")


class ErrorResponse(BaseModel):
    """Every answer that is not a result."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"error": {"code": "invalid", "message": "'text' is missing; add it"}}]}
    )

    error: ErrorDetail


def unknown_model(name: str, names: list[str]) -> Refusal:
    """The answer to who asks for a model that is not there."""
    # The comparison takes time that grows with the name.
    hint = did_you_mean(name, names) if len(name) <= 100 else ""
    return Refusal(404, "unknown_model", f"unknown model '{shortened(name)}'{hint}; allowed: {', '.join(names)}")
