"""Where every task is, and how models are named: what a run says before anything is loaded."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError, unknown
from recurra.core.record_parts import ANSWERS
from recurra.data.configuration import RunData
from recurra.models.adaptation.source import EncoderSource, find_encoder

# The package of each task by the name that its records carry, in the order in which they are asked whether data are
# theirs. Each is loaded when it is asked for.
PACKAGES = {
    "language modelling": "recurra.tasks.language",
    "multi-label classification": "recurra.tasks.multilabel",
    "classification": "recurra.tasks.classification",
}


@cache
def part_of(name: str, part: str) -> Any:
    """Loads one part of a task.

    Raises:
        CheckpointError: If there is no such task: a newer version wrote the record.
    """
    if name not in PACKAGES:
        raise CheckpointError(
            f"the task '{name}' is not known to this version (known: {', '.join(sorted(PACKAGES))}); upgrade recurra"
        )
    return getattr(importlib.import_module(f"{PACKAGES[name]}.{part}"), part.upper())


# Keys among a model's that say what it starts from, who trains it and whom it learns from; the others are those of its
# configuration.
ENCODER, ENCODER_SHA256, PLAN, TEACHER, METHOD = "encoder", "encoder_sha256", "plan", "teacher", "method"
# The file of a model that is known by its answers alone, and its hash.
ANSWERS_FILE, ANSWERS_HASH = "answers", "answers_hash"
START_KEYS = ("preset", ENCODER, ENCODER_SHA256, PLAN, TEACHER, METHOD, ANSWERS_FILE, ANSWERS_HASH)
# Methods of others that train an encoder in place of a training protocol of ours.
METHODS = ("setfit",)
# The control that reads words beside what a frozen encoder makes of the text.
WORDS_AND_ENCODER = "words-and-encoder"
# The same beside the encoder of this package: seconds, and nothing to download.
SMALL_AND_WORDS = "recurra-small-and-words"
# Controls that learn from a teacher's answers, if a model names one of them as its preset.
TEACHABLE = ("linear-tuned", "static")
# Models by name that others train.
PEERS: Mapping[str, Mapping[str, Any]] = {"setfit": {ENCODER: "minilm", METHOD: "setfit"}}


def control_of(model: str, overrides: Mapping[str, Any]) -> str | None:
    """The control that a model is, or that it names as ``preset`` to be taught; none if it is none.

    A model that is known by its answers is one too: nothing trains it.
    """
    if ANSWERS_FILE in overrides:
        return ANSWERS
    name = str(overrides.get("preset", model))
    return name if name in controls() else None


def base_preset(model: str, overrides: Mapping[str, Any]) -> str:
    """The preset that a model starts from: the one that it names, its own name, or ``recurrent``."""
    return str(overrides.get("preset", model if model in presets() else "recurrent"))


def encoder_of(overrides: Mapping[str, Any]) -> EncoderSource | None:
    """The pretrained encoder that a model starts from, if it does.

    Raises:
        RecurraError: If it cannot be used, or its weights are not those that a run was planned with.
    """
    name = overrides.get(ENCODER)
    if name is None:
        return None
    source = find_encoder(str(name), any_family=True)
    planned = overrides.get(ENCODER_SHA256)
    if planned is not None and source.sha256 != planned:
        raise ConfigurationError(
            f"encoder '{name}' has weights whose hash begins with {source.sha256[:12]}; the run was planned with "
            f"{str(planned)[:12]}: restore them, or leave {ENCODER_SHA256} out and train anew"
        )
    return source


def check_method(overrides: Mapping[str, Any]) -> None:
    """Looks for the package of whoever trains a model in place of a protocol, without importing it.

    Raises:
        UnavailableError: If it is not installed.
    """
    method = overrides.get(METHOD)
    if method is not None and importlib.util.find_spec(str(method)) is None:
        raise UnavailableError(f"method '{method}' needs the package {method}; pip install 'recurra[peers]'")


def own_keys(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a model's configuration among what a run changes of it."""
    return {key: value for key, value in overrides.items() if key not in START_KEYS}


def presets() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Presets of all tasks by name, in the order in which they are listed."""
    return {name: preset for task in reversed(PACKAGES) for name, preset in part_of(task, "task").presets.items()}


def controls() -> dict[str, Mapping[str, Any]]:
    """Models of all tasks that no training protocol trains, and keys that each is configured with."""
    return {name: keys for task in PACKAGES for name, keys in part_of(task, "task").controls.items()}


def task_claiming(values: Mapping[str, Any]) -> Any:
    """The task that claims data with these keys; the last one claims what nobody else does."""
    return next(task for name in PACKAGES if (task := part_of(name, "task")).claims(values))


def data_task(data: RunData) -> Any:
    """The task that a configuration of data is of."""
    return next(task for name in PACKAGES if isinstance(data, (task := part_of(name, "task")).data_config))


def check_model(data: RunData, model: str, overrides: Mapping[str, Any]) -> None:
    """Refuses a model that is not one of the task that data are for.

    Raises:
        ConfigurationError: If it trains for another task.
    """
    task = data_task(data)
    if ANSWERS_FILE in overrides:
        if not task.takes_answers:
            raise ConfigurationError(
                f"--predictions '{model}' are one label a text, and '{data.name}' has {task.kind_of_answer}; leave "
                "them out"
            )
        if beside := sorted({*overrides} - {ANSWERS_FILE, ANSWERS_HASH}):
            raise ConfigurationError(f"model '{model}': '{beside[0]}' stands beside answers; leave one of the two out")
        return
    control = control_of(model, overrides)
    name = control or base_preset(model, overrides)
    if control is not None and control in task.controls:
        _check_control(model, control, overrides)
        return
    if ENCODER in overrides:
        _check_encoder(task, model, overrides)
        return
    if METHOD in overrides:
        raise ConfigurationError(
            f"model '{model}': 'method' is '{overrides[METHOD]}' without an encoder that it trains; add encoder"
        )
    if PLAN in overrides:
        raise ConfigurationError(
            f"model '{model}': 'plan' is '{overrides[PLAN]}' without an encoder whose layers it chooses; add encoder"
        )
    if name in task.controls or name in task.presets or name not in (*controls(), *presets()):
        return
    others = (part_of(other, "task") for other in reversed(PACKAGES))
    owner = next(other for other in others if name in other.controls or name in other.presets)
    raise ConfigurationError(f"{owner.misfit(model, data.name)}, or take {task.advice}")


def _check_control(model: str, control: str, overrides: Mapping[str, Any]) -> None:
    own = {ENCODER, ENCODER_SHA256} & {*overrides} if ENCODER in controls()[control] else set()
    foreign = {*overrides} - own - {"preset", TEACHER}
    if foreign:
        key = min(foreign)
        raise ConfigurationError(
            f"model '{model}': '{key}' is '{overrides[key]}', and {control} has no such key; leave it out"
        )
    if overrides.get(TEACHER) is None and control in (model, WORDS_AND_ENCODER):
        return
    if model == control and control in TEACHABLE:
        return
    if control not in TEACHABLE:
        raise ConfigurationError(
            f"model '{model}': preset '{control}' cannot be taught; allowed: {', '.join(TEACHABLE)}"
        )
    if not overrides.get(TEACHER):
        raise ConfigurationError(
            f"model '{model}' is {control} by another name; name {control} itself, or add teacher: whom it learns from"
        )


def _check_encoder(task: Any, model: str, overrides: Mapping[str, Any]) -> None:
    if not task.starts_from_encoders:
        raise ConfigurationError(
            f"model '{model}' starts from the encoder '{overrides[ENCODER]}', which reads texts both ways; "
            f"data of this kind are {task.kind_of_data}: take {task.advice}"
        )
    method = overrides.get(METHOD)
    if method is not None and method not in METHODS:
        raise ConfigurationError(f"model '{model}': {unknown('method', str(method), METHODS)}")
    if method is not None and getattr(task.data_config, "problem_type", None) is not None:
        raise ConfigurationError(f"model '{model}': method '{method}' takes one label a text, and these data several")
    beside = next((key for key in (PLAN, TEACHER, *own_keys(overrides)) if method and overrides.get(key)), None)
    if beside is not None:
        raise ConfigurationError(
            f"model '{model}': '{beside}' is '{overrides[beside]}' beside method '{method}', which trains the encoder "
            "as it is on labels alone; leave one of the two out"
        )
    if "preset" in overrides:
        raise ConfigurationError(
            f"model '{model}' names both preset '{overrides['preset']}' and encoder '{overrides[ENCODER]}'; "
            "leave one of the two out"
        )
