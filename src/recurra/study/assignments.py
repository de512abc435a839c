"""From what a person writes to configurations: options and ``key=value`` on a command line, keywords in Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recurra.core.configuration import override, text_keys
from recurra.core.errors import ConfigurationError, unknown
from recurra.data.configuration import RunData
from recurra.tasks.base import task_of_data
from recurra.tasks.profile import TaskProfile, profiles
from recurra.tasks.runs import RunConfig, make_run
from recurra.training.protocols import ProtocolConfig

SECTIONS = ("data", "model")


@dataclass(frozen=True)
class Assignments:
    """``key=value`` pairs, sorted by what they belong to.

    Attributes:
        protocol: ``key=value`` without a prefix: keys of the training protocol.
        data: Values of the keys with the prefix ``data.``.
        model: Values of the keys with the prefix ``model.``.
    """

    protocol: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


def named_data(name: str, assignments: Iterable[str]) -> dict[str, Any]:
    """What says which task data are of: their name, and the values of the ``data.KEY`` among ``key=value`` pairs."""
    pairs = [pair.strip().removeprefix("data.") for pair in assignments if pair.strip().startswith("data.")]
    texts = {key for profile in profiles() for key in text_keys(profile.data_config)}
    return {"name": name, **override({}, pairs, texts=texts)}


def sort_assignments(assignments: Iterable[str], *, model_keys: bool = True, task: TaskProfile) -> Assignments:
    """Sorts ``key=value`` pairs into protocol, data and model.

    Args:
        assignments: For example ``max_epochs=3``, ``data.max_length=64``, ``model.hidden_size=128``.
        model_keys: Whether keys of the model are accepted: one model is meant, not several.
        task: What the data are for: each task has data keys of its own.

    Raises:
        ConfigurationError: For a pair without ``=`` or an unknown key of protocol or data. Keys of the model are
            checked where the model is configured.
    """
    protocol: list[str] = []
    sections: dict[str, list[str]] = {"data": [], "model": []}
    fields = task.data_config.model_fields
    allowed = [*ProtocolConfig.model_fields, *(f"data.{key}" for key in fields)]
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        key = key.strip()
        section, dot, rest = key.partition(".")
        if not separator or not key:
            raise ConfigurationError(
                f"cannot read '{assignment}'; write key=value, e.g. max_epochs=3 or data.fraction=0.5"
            )
        if dot and rest and section == "model" and model_keys:
            sections[section].append(f"{rest}={value}")
        elif key not in allowed:
            names = [*allowed, "model.KEY"] if model_keys else allowed
            raise ConfigurationError(unknown("key", key, names))
        elif dot:
            sections[section].append(f"{rest}={value}")
        else:
            protocol.append(assignment)
    data = override({}, sections["data"], texts=text_keys(task.data_config))
    return Assignments(protocol, data, override({}, sections["model"]))


def sort_keywords(
    keywords: Mapping[str, Any],
    protocol: str | Mapping[str, Any] | None,
    *,
    task: TaskProfile,
    others: Sequence[str] = (),
) -> tuple[str | None, Assignments]:
    """Sorts the keywords of a call in Python into protocol and data, as `sort_assignments` does for a command line.

    Args:
        keywords: Keys of the training protocol and of the data.
        protocol: A protocol by name or file, or keys of one with ``base``, the name or file that they change.
        task: What the data are for.
        others: What else the call takes, for suggestions.

    Returns:
        The protocol by name or file, none if none was named; and the sorted keys.

    Raises:
        ConfigurationError: For an unknown key, one that is given twice, or a protocol of another kind.
    """
    if protocol is not None and not isinstance(protocol, str | Mapping):
        raise ConfigurationError(
            f"protocol is of type {type(protocol).__name__}; give a name, a file, or keys, as "
            "{'base': 'tuned', 'max_epochs': 5}"
        )
    base, training = (protocol, {}) if not isinstance(protocol, Mapping) else (protocol.get("base"), dict(protocol))
    training.pop("base", None)
    known = [key for key in ProtocolConfig.model_fields if key != "name"]
    for key in training:
        if key not in known:
            raise ConfigurationError(unknown("key of a protocol", key, ["base", *known]))
    # The data have a protocol too: that of their splits.
    fields = {
        f"data_{key}" if key == "protocol" else key: key for key in task.data_config.model_fields if key != "name"
    }
    data: dict[str, Any] = {}
    for key, value in keywords.items():
        if key in training:
            raise ConfigurationError(f"'{key}' is {value!r}, and {training[key]!r} in protocol; give it once")
        if key not in (*known, *fields):
            raise ConfigurationError(unknown("key", key, [*others, *known, *fields]))
        if key in known:
            training[key] = value
        else:
            data[fields[key]] = value
    return base, Assignments([f"{key}={_as_yaml(key, value)}" for key, value in training.items()], data)


def _as_yaml(key: str, value: Any) -> str:
    try:
        # Numbers of NumPy say what they are in Python.
        return json.dumps(value, default=lambda number: number.item())
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"'{key}' is of type {type(value).__name__}; give a plain value") from error


def configure_run(
    model: str, data: RunData, protocol: str, assignments: Assignments, *, seed: int, precision: str
) -> RunConfig:
    """Builds the configuration of one run.

    Args:
        model: Preset, ``linear`` or model file.
        data: What to train on.
        protocol: Training protocol by name or file.
        assignments: Changes to protocol and model.
        seed: Seed of the run.
        precision: ``fp32`` or ``bf16``.

    Raises:
        ConfigurationError: For an unknown name or an impossible value.
    """
    training = task_of_data(data).load_protocol(protocol, assignments.protocol)
    return make_run(model, data, training, seed=seed, precision=precision, overrides=assignments.model)
