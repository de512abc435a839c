"""Chooses the models of a comparison if none are named: rung by rung, each more expensive than the one before.

A linear model of words and characters, the same beside the states of a frozen encoder, the small encoder of this
package fine-tuned, and MiniLM fine-tuned; where labels are few, MiniLM trained by SetFit too, and where there are texts
without labels, a linear model that learns its answers to them. Without the package of MiniLM the small encoder takes
its place. On request, models that are trained from scratch replace all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recurra.core.configuration import plain_name
from recurra.core.errors import ConfigurationError, UnavailableError
from recurra.data.configuration import DataConfig, RunData
from recurra.models.adaptation.source import SMALL_ENCODER, find_encoder
from recurra.tasks.base import ENCODER, METHOD, TEACHER, WORDS_AND_ENCODER, Task, check_method, control_of
from recurra.tasks.runs import PEERS, Entry, model_name, resolve_model
from recurra.tasks.study_data import StudyData
from recurra.training.protocols import DEFAULT_PROTOCOL, finetuning_for

FROM_SCRATCH: tuple[Entry, ...] = ("linear", "linear-tuned", "baseline", "recurrent")
DEFAULT_ENCODER = "minilm"
# With at most so many training rows, SetFit is ahead of fine-tuning, and takes minutes: docs/results/few-shot.md.
MOST_FEW_ROWS = 400
# The same limit if every model is trained once per fold.
MOST_FEW_ROWS_OF_FOLDS = 100
# A bag of words that learns the encoder's answers; its benefit: docs/results/taught-words.md.
TAUGHT_WORDS = "linear-taught"
# A fine-tuned encoder differs by a point between seeds, a model from scratch by several.
SEEDS_PRETRAINED, SEEDS_FROM_SCRATCH = 1, 3


@dataclass(frozen=True)
class Ladder:
    """The models of a comparison and how they are trained.

    Attributes:
        models: As study files name them.
        protocol: Training protocol; None leaves it to the number of training rows (`for_rows`).
        seeds: Trainings of each model, if the user does not say.
        note: What the user must know about the choice; may be empty.
        peer: A further model if training rows are few.
        taught: A further model if there are texts without labels.
    """

    models: Sequence[Entry]
    protocol: str | None
    seeds: int
    note: str = ""
    peer: Entry | None = None
    taught: Entry | None = None

    def for_rows(self, config: RunData, data: StudyData) -> tuple[Sequence[Entry], str, str]:
        """The models and the protocol for these data, and a line on the choices made here."""
        if not isinstance(config, DataConfig):
            return self.models, self.protocol or DEFAULT_PROTOCOL, ""
        models = [*self.models, self.taught] if self.taught is not None and config.unlabelled else [*self.models]
        if self.protocol is not None and self.peer is None:
            return models, self.protocol, ""
        rows = len(data.rows(config).splits["train"])
        name, notes = self.protocol, []
        if name is None:
            name, reason = finetuning_for(rows)
            notes.append(f"protocol: {name}, for {reason} (choose with --protocol)")
        if self.peer is not None and rows <= MOST_FEW_ROWS:
            model, overrides = resolve_model(self.peer)
            if config.cross_validated and rows > MOST_FEW_ROWS_OF_FOLDS:
                notes.append(f"without {model}, often best with so few rows but minutes a fold: add it by --folds 1")
                return models, name, "; ".join(notes)
            try:
                check_method(overrides)
                models.append(self.peer)
            except UnavailableError as error:
                notes.append(f"without {model}, often best with at most {MOST_FEW_ROWS} rows: {error}")
        return models, name, "; ".join(notes)


def choose_models(
    task: Task,
    models: Sequence[Entry] | None = None,
    *,
    protocol: str | None = None,
    encoder: str | None = None,
    plan: str | None = None,
    teacher: str | None = None,
    from_scratch: bool = False,
) -> Ladder:
    """Chooses the models of a comparison; what is not named takes defaults.

    Args:
        task: Task of the data.
        models: Presets, controls, encoders or model files; with an encoder they stand beside the ladder.
        protocol: Training protocol.
        encoder: As `recurra.models.adaptation.source.find_encoder` takes it; None takes `DEFAULT_ENCODER` if it is
            installed and no models are named.
        plan: Layers of a student of the encoder, as `recurra.models.adaptation.plan.SharingPlan` reads it; None makes
            no student.
        teacher: The teacher of that student, or of the small encoder: a run, an export or a folder of transformers,
            several separated by commas; None takes the encoder once it is tuned.
        from_scratch: Whether models are only trained from scratch.

    Raises:
        ConfigurationError: If these contradict each other.
        RecurraError: If the requested encoder cannot be used.
    """
    if from_scratch and (encoder or plan):
        raise ConfigurationError(f"--from-scratch excludes an encoder or a plan ('{encoder or plan}'); leave one out")
    if models is not None and not models:
        raise ConfigurationError("the list of models is empty; name one, or leave it out for those of the ladder")
    pretrained = next((name for name, keys in map(resolve_model, models or ()) if ENCODER in keys), None)
    if from_scratch and pretrained is not None:
        raise ConfigurationError(f"--from-scratch was given with '{pretrained}', which is pretrained; leave one out")
    named = models is not None and encoder is None
    if plan is not None and named:
        raise ConfigurationError(f"plan '{plan}' was given without an encoder whose layers it chooses; add --from")
    scratch = Ladder(models or FROM_SCRATCH, protocol or DEFAULT_PROTOCOL, SEEDS_FROM_SCRATCH)
    without_encoder = named or from_scratch or (encoder is None and not task.starts_from_encoders)
    if teacher is not None and without_encoder:
        raise ConfigurationError(
            f"teacher '{teacher}' was given, but no default model learns from a teacher; add --from, or let every "
            f"trained model learn from it with teacher={teacher}"
        )
    if without_encoder:
        return scratch if models is None or from_scratch else _as_named(models, scratch, protocol)
    encoder_name, note = encoder or DEFAULT_ENCODER, ""
    try:
        rungs = _rungs(encoder_name, plan, teacher)
    except UnavailableError as error:
        if encoder is not None or plan is not None:
            raise
        note = f"without MiniLM, which usually gives better models: {error}"
        encoder_name = SMALL_ENCODER
        rungs = _rungs(encoder_name, None, teacher)
    others = [name for name in models or () if name not in rungs]
    several = getattr(task.data_config, "problem_type", None) is not None
    source = find_encoder(encoder_name, any_family=True)
    # SetFit's package reads an encoder of transformers.
    peer = None if several or source.is_foreign or source.is_adapted else _peer(encoder_name)
    taught = {"name": TAUGHT_WORDS, "preset": "linear-tuned", TEACHER: teacher or model_name(encoder_name)}
    peer = None if peer in others else peer
    return Ladder([*rungs, *others], protocol, SEEDS_PRETRAINED, note, peer=peer, taught=taught)


def _peer(encoder: str) -> Entry:
    peer = next((name for name, keys in PEERS.items() if keys[ENCODER] == encoder), None)
    return peer or {"name": _derived(encoder, "setfit"), ENCODER: encoder, METHOD: "setfit"}


def _derived(encoder: str, suffix: str) -> str:
    """The name of a model that is made of an encoder, which may be a folder of any name."""
    return f"{plain_name(model_name(encoder), 59 - len(suffix)) or 'encoder'}-{suffix}"


def _as_named(models: Sequence[Entry], scratch: Ladder, protocol: str | None) -> Ladder:
    """Ladder of the user's models; if all trained ones start from an encoder, they are fine-tuned by its protocol."""
    resolved = [resolve_model(model) for model in models]
    trained = {name: ENCODER in overrides for name, overrides in resolved if control_of(name, overrides) is None}
    if protocol is not None or not any(trained.values()):
        return scratch
    if all(trained.values()):
        return Ladder(models, None, SEEDS_PRETRAINED)
    encoders = ", ".join(name for name, starts in trained.items() if starts)
    note = (
        f"{encoders} is trained under '{scratch.protocol}', which suits the models from scratch beside it; compare it "
        "alone, or choose another with --protocol"
    )
    return Ladder(models, scratch.protocol, scratch.seeds, note)


def _rungs(encoder: str, plan: str | None, teacher: str | None) -> list[Entry]:
    source, name = find_encoder(encoder, any_family=True), model_name(encoder)
    layers = source.plan(plan or "")
    rungs: list[Entry] = ["linear-tuned"]
    if encoder == DEFAULT_ENCODER:
        rungs.append(WORDS_AND_ENCODER)
    elif not source.is_foreign:
        rungs.append({"name": _derived(encoder, "and-words"), "preset": WORDS_AND_ENCODER, ENCODER: encoder})
    if plan is not None:
        student = {"name": _derived(encoder, "small"), ENCODER: encoder, "plan": str(layers), TEACHER: teacher or name}
        return [*rungs, encoder, student]
    if encoder not in (DEFAULT_ENCODER, SMALL_ENCODER):
        if teacher is not None:
            raise ConfigurationError(
                f"teacher '{teacher}' was given without a student; add --plan, its layers of '{encoder}'"
            )
        return [*rungs, encoder]
    small: Entry = SMALL_ENCODER
    if teacher is not None:
        small = {"name": SMALL_ENCODER, ENCODER: SMALL_ENCODER, TEACHER: teacher}
    return [*rungs, small] if encoder == SMALL_ENCODER else [*rungs, small, encoder]
