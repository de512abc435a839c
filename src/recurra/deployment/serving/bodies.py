"""Bodies of requests and answers: reading within limits, decoding, computing, and the JSON of the answer.

Each prediction is an object, not an entry of parallel lists: everything beyond its label has a key beside
``probabilities``. Clients ignore keys that they do not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct
from starlette.requests import Request

from recurra.core.errors import did_you_mean
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import LabelDecision
from recurra.deployment.engines.computation import Classified
from recurra.deployment.explanation import ExplainedLabel, WordEffect
from recurra.deployment.serving.limits import Refusal, ServerLimits, try_again
from recurra.models.exits.rules import FixedExit

# Most bytes of a too large body that are read and thrown away: a client that is cut off while it sends sees a broken
# connection instead of the answer.
_DISCARDED_BYTES = 32 * 2**20
# Most characters of a user's input that a message quotes.
_QUOTED_CHARACTERS = 100
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Extras:
    """What a request asks for beyond labels; requests with the same extras share batches.

    ``occluded`` texts lack words to explain an answer; nobody sent them, so their exits are not counted.
    """

    exits: bool = False
    recurrences: bool = False
    exit_after: int | None = None
    cut: bool = False
    occluded: bool = False


Name = Annotated[str, Meta(min_length=1)]


class ClassifyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Texts to classify, and by which models.

    Attributes:
        text: One text, or many.
        model: A model by name, or several; none takes the first that the server was started with.
        exit_rule: 'calibrated' lets texts stop early by the rule that a model carries (see /v1/models); one without
            goes all the way.
        exit_after: Every text stops after this recurrence, one of the model's exits or its last, whatever the
            rule; a model without it is answered 404.
        recurrences: Also give the prediction after each recurrence. All are computed then, also with an exit rule.
        abstain_below: A text whose highest probability is lower gets no label: 'label' is null then. Multi-label
            models have thresholds of their own and refuse it.
        explain: Also give the effect of each word: each text is computed once more for each of its words, 65 times at
            most, and all texts together no more often than a request may have texts; beyond that, runs of words are
            left out. Multi-label models give it for each label of a text.
        cut: Also mark texts that are longer than a model reads; long texts are split into tokens once more for it.
    """

    text: str | Annotated[list[str], Meta(min_length=1)]
    model: Name | Annotated[list[Name], Meta(min_length=1)] | None = None
    exit_rule: Literal["calibrated"] | None = None
    # A float, because 1.0 is a whole number in JSON too.
    exit_after: Annotated[float, Meta(ge=1, le=1_000_000, multiple_of=1)] | None = None
    recurrences: bool = False
    abstain_below: Annotated[float, Meta(ge=0, le=1)] | None = None
    explain: bool = False
    cut: bool = False

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.text] if isinstance(self.text, str) else self.text

    def model_names(self, available: Sequence[str]) -> Sequence[str]:
        """The names of the models to ask, in order.

        Raises:
            Refusal: If there is no such model (404), or one is named twice (422).
        """
        names = available[:1] if self.model is None else [self.model] if isinstance(self.model, str) else self.model
        for name in names:
            if name not in available:
                raise unknown_model(name, available)
        if len(set(names)) != len(names):
            raise Refusal(422, "invalid", "'model' names a model twice; name each once")
        return names


class RecurrencePrediction(Struct):
    """The prediction for one text after so many of a model's recurrences."""

    after: int
    label: str
    probabilities: dict[str, float]


class Prediction(Struct, omit_defaults=True):
    """What a model says of one text. What was not asked for, or what the model cannot say, is left out.

    Attributes:
        label: The most probable; of a multi-label model all labels, joined, and ``labels`` lists them. Null if
            'abstained'.
        probabilities: By label; they add up to 1, but of a multi-label model.
        abstained: With 'abstain_below', or if the export holds labels to a precision: whether the highest probability
            is lower.
        cut: If asked for: true if the text is longer than the model reads.
        words: With 'explain': in the order of the text; what is far behind the part that the model reads is left out.
        remainder: With 'words': what they do together beyond their single effects. With their effects it is by how
            much the probability of the label falls without all of them.
        words_by_label: The same of a multi-label model: for each of the text's labels, at most 20.
        exited_after: With 'exit_rule' or 'exit_after': recurrences that the text took; the label is of there.
        recurrences: If asked for: the prediction after each recurrence with a head, the last included.
        stops_after: With 'recurrences': where the text stops, or would, under the model's own exit rule.
    """

    label: str | None
    probabilities: dict[str, float]
    labels: list[str] | None = None
    abstained: bool | None = None
    cut: bool = False
    words: list[WordEffect] | None = None
    remainder: float | None = None
    words_by_label: list[ExplainedLabel] | None = None
    exited_after: int | None = None
    recurrences: list[RecurrencePrediction] | None = None
    stops_after: int | None = None


class ModelResult(Struct):
    """What one model says of all texts, in their order.

    Attributes:
        content_hash: Of the model that answered; see /v1/models.
        waited_ms: From acceptance to the start of the computation.
        computed_ms: Of the batch in which the texts were computed.
        batch_texts: Texts of that batch, those of other requests among them.
    """

    model: str
    content_hash: str
    predictions: list[Prediction]
    waited_ms: float
    computed_ms: float
    batch_texts: int


class ClassifyResponse(Struct):
    """A result for each model, in the order of the request."""

    results: list[ModelResult]


class Exits(Struct):
    """Where texts may stop early, and by which rule. Without a rule they go all the way.

    Attributes:
        after: Recurrences after which a head of their own stands.
        rule: The calibrated rule in words, if the model carries one.
        threshold: Of the rule, after the first exit: a probability, or nats.
        agreement_asked: Share of labels that was to stay when the rule was chosen.
        agreement: Share of labels that stayed on the rows that chose it.
        rows: How many rows chose it.
        confidence: With it, those rows promise the share asked for of texts like them; none promises nothing.
    """

    after: list[int]
    rule: str | None = None
    threshold: float | None = None
    agreement_asked: float | None = None
    agreement: float | None = None
    rows: int | None = None
    confidence: float | None = None


class Quality(Struct):
    """How good the run of a model was on ``test``, or else the last split it reports, as its card has the figures."""

    split: str
    rows: int
    figures: dict[str, str]


class LoadedModel(Struct, kw_only=True):
    """Which model answers to a name since when; the hash is of the export, or of a run's record and model files."""

    name: str
    content_hash: str
    loaded_at: datetime


class ModelDescription(LoadedModel, kw_only=True):
    """A model of the server.

    Attributes:
        kind: ``run``, or the format of an export.
        size_bytes: Of the files that it is read from.
        computation: Engine, precisions and device.
        max_length_tokens: A text is cut there, or a window of it; none reads it whole.
        windows: Most windows that a text is read in; their scores are averaged.
        num_recurrences: How often the core is applied; null for a model without recurrences.
        own_heads: Whether 'recurrences' come from heads trained there, not from the final head, applied early.
        exits: Null for a model without exits.
        quality: Of the run's record, not of this export; null for a model that was trained on test rows too.
        judged_before: How the model before such a one was judged, in words.
    """

    labels: list[str]
    kind: str
    size_bytes: int
    run_id: str
    computation: dict[str, str]
    max_length_tokens: int | None = 512
    windows: int = 1
    num_recurrences: int | None = None
    own_heads: bool = False
    exits: Exits | None = None
    quality: Quality | None = None
    judged_before: str = ""


class ModelsResponse(Struct):
    """The models, the first of which answers where none is named, and what a request may hold."""

    models: list[ModelDescription]
    max_body_bytes: int
    max_texts: int
    max_characters: int


class Health(Struct):
    """The process works."""

    status: Literal["ok"] = "ok"


class Readiness(Struct):
    """Whether every model takes requests, and which they are."""

    status: Literal["ok", "stopping"]
    models: list[LoadedModel]


class ErrorDetail(Struct):
    """What is wrong: a word for programs, a sentence for people."""

    code: str
    message: str


class ErrorResponse(Struct):
    """Every answer that is not a result."""

    error: ErrorDetail


class BodyReader:
    """Reads bodies of requests and counts the bytes that all of them hold in memory."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._held_bytes = 0

    async def read(self, request: Request) -> bytes:
        """Returns the body, whose bytes count as held until `release`.

        Raises:
            Refusal: 413 if it is too large, 408 if it comes too slowly, 429 if too much is held, 415 if it is not JSON.
            ClientDisconnect: If the client left.
        """
        limits, headers = self._limits, request.headers
        _check_type(headers.get("content-type", ""), headers.get("content-encoding", "identity"))
        announced_bytes = int(headers.get("content-length", 0))
        too_large = announced_bytes > limits.max_body_bytes
        if too_large and (announced_bytes > _DISCARDED_BYTES or "expect" in headers):
            raise self._too_large()
        parts: list[bytes] = []
        size = held = 0
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                async for part in request.stream():
                    size += len(part)
                    too_large = too_large or size > limits.max_body_bytes
                    if too_large:
                        self._held_bytes, held = self._held_bytes - held, 0
                        parts.clear()
                    if too_large and size > _DISCARDED_BYTES:
                        break
                    if not too_large:
                        self._hold(len(part))
                        held += len(part)
                        parts.append(part)
            if too_large:
                raise self._too_large()
        except BaseException as error:
            self.release(held)
            if isinstance(error, TimeoutError):
                message = f"the body did not arrive within {limits.body_timeout_s:g} s"
                raise Refusal(408, "too_slow", message, {"Connection": "close"}) from None
            raise
        return b"".join(parts)

    def release(self, size: int) -> None:
        """Counts ``size`` bytes as no longer held."""
        self._held_bytes -= size

    def _hold(self, size: int) -> None:
        # A single body of the allowed size is always accepted.
        if self._held_bytes + size > max(self._limits.max_held_bytes, self._limits.max_body_bytes):
            refusal = try_again("overloaded", "the requests in progress hold too many bytes", 1)
            refusal.headers["Connection"] = "close"
            raise refusal
        self._held_bytes += size

    def _too_large(self) -> Refusal:
        message = f"the body is larger than the {self._limits.max_body_bytes:,} bytes allowed; send several requests"
        return Refusal(413, "body_too_large", message, {"Connection": "close"})


def _check_type(content_type: str, encoding: str) -> None:
    kind, *parameters = [part.strip().lower() for part in content_type.split(";")]
    charset = next((part[8:].strip('"') for part in parameters if part.startswith("charset=")), "utf-8")
    if kind != "application/json":
        raise Refusal(415, "not_json", "the body must be JSON; send the header Content-Type: application/json")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        message = f"the body's charset is '{_shortened(charset)}'; send JSON in UTF-8"
        raise Refusal(415, "not_utf8", message)
    if encoding.strip().lower() != "identity":
        message = f"the body's Content-Encoding is '{_shortened(encoding)}'; send it without compression"
        raise Refusal(415, "compressed", message, {"Accept-Encoding": "identity"})


_DECODER = msgspec.json.Decoder(ClassifyRequest)
_FIELDS = ClassifyRequest.__struct_fields__
_ALLOWED = {
    "text": "a string or a list of strings, one at least",
    "model": "the name of a model or a list of names, one at least",
    "exit_rule": "'calibrated' or null",
    "exit_after": "a whole number from 1 to 1,000,000, or null",
    "recurrences": "true or false",
    "abstain_below": "a number from 0 to 1, or null",
    "explain": "true or false",
    "cut": "true or false",
}


def parse_request(body: bytes, limits: ServerLimits) -> ClassifyRequest:
    """Decodes a request's body up to its first mistake.

    Raises:
        Refusal: 400 if it is not JSON, 422 if it is not a valid request or is beyond a limit.
    """
    try:
        request = _DECODER.decode(body.removeprefix(_BYTE_ORDER_MARK))
    except msgspec.ValidationError as error:
        _refuse_value(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, "malformed", f"the body is not JSON in UTF-8 ({error})") from None
    texts = request.texts
    if len(texts) > limits.max_texts:
        message = f"'text' has {len(texts):,} texts; at most {limits.max_texts:,} are allowed: send several requests"
        raise Refusal(422, "too_many_texts", message)
    for number, text in enumerate(texts):
        if len(text) > limits.max_characters:
            path = "text" if isinstance(request.text, str) else f"text[{number}]"
            message = f"'{path}' has {len(text):,} characters; at most {limits.max_characters:,} are allowed"
            raise Refusal(422, "text_too_long", message)
    return request


def _refuse_value(problem: str) -> NoReturn:
    """Raises a refusal that rewords a message of msgspec such as ``Expected `str`, got `int` - at `$.text[1]```."""
    complaint, _, path = problem.removesuffix("`").rpartition(" - at `$.")
    if problem.startswith("Object contains unknown field"):
        name = _shortened(problem.partition("`")[2][:-1])
        message = f"unknown key '{name}'{did_you_mean(name, _FIELDS)}; allowed: {', '.join(_FIELDS)}"
    elif problem.startswith("Object missing"):
        message = "'text' is missing; add it"
    elif complaint:
        allowed = _ALLOWED[path.partition("[")[0]]
        message = f"'{path}' must be {allowed}: {_shortened(complaint[:1].lower() + complaint[1:])}"
    else:
        message = 'the body must be a JSON object, such as {"text": "not bad at all"}'
    raise Refusal(422, "invalid", message) from None


def unknown_model(name: str, available: Sequence[str]) -> Refusal:
    """Returns the answer to a request for an unknown model."""
    name = _shortened(name)
    return Refusal(
        404, "unknown_model", f"unknown model '{name}'{did_you_mean(name, available)}; allowed: {', '.join(available)}"
    )


def _shortened(word: str) -> str:
    return word if len(word) <= _QUOTED_CHARACTERS else word[:_QUOTED_CHARACTERS] + "…"


def answer(classifier: Classifier, texts: list[str], extras: Extras) -> Classified:
    """Computes predictions; extras that the model cannot give are left out.

    A model without an exit rule computes all recurrences and reports them; one without recurrences reports none.
    """
    depth, cut = classifier.engine.depth, classifier.are_cut(texts) if extras.cut else None
    if depth is None or not (extras.exits or extras.recurrences):
        return Classified(classifier.predict_proba(texts), cut=cut)
    rule = classifier.calibrated_rule if extras.exit_after is None else FixedExit(extras.exit_after)
    classified = classifier.classify(texts, rule=rule, trace=extras.recurrences)
    if not extras.exits:
        assert classified.trace is not None
        return Classified(classified.trace.probabilities[:, -1], None, classified.trace, cut)
    exited_after = classified.exited_after
    if rule is None and not depth.counted:
        exited_after = np.full(len(texts), depth.num_recurrences)
    return Classified(classified.probabilities, exited_after, classified.trace, cut)


def predictions_of(answers: Classified, decision: LabelDecision) -> list[Prediction]:
    """Returns the prediction for each text, without extras that were not asked for."""
    predictions = [
        Prediction(decision.text(labels), probabilities, None if decision.exclusive else labels)
        for labels, probabilities in _labelled(answers.probabilities, decision)
    ]
    abstained = decision.abstained(answers.probabilities)
    trace = answers.trace
    for number, prediction in enumerate(predictions):
        if abstained is not None:
            prediction.abstained = bool(abstained[number])
            prediction.label = None if prediction.abstained else prediction.label
        if answers.cut is not None:
            prediction.cut = bool(answers.cut[number])
        if answers.exited_after is not None:
            prediction.exited_after = int(answers.exited_after[number])
        if trace is not None:
            rows = zip(trace.after, _labelled(trace.probabilities[number], decision), strict=True)
            prediction.recurrences = [
                RecurrencePrediction(after, decision.text(labels), row) for after, (labels, row) in rows
            ]
            if trace.stops_after is not None:
                prediction.stops_after = int(trace.stops_after[number])
    return predictions


def _labelled(rows: npt.NDArray[np.float64], decision: LabelDecision) -> list[tuple[Any, dict[str, float]]]:
    names = decision.label_names
    probabilities = [dict(zip(names, row, strict=True)) for row in rows.tolist()]
    return list(zip(decision.labels(rows), probabilities, strict=True))
