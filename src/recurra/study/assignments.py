"""Sorts the keys that a user sets, as ``key=value`` on a command line or as keywords in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recurra.core.configuration import override, text_keys
from recurra.core.errors import ConfigurationError, unknown
from recurra.tasks.base import Task, tasks
from recurra.training.protocols import ProtocolConfig


@dataclass(frozen=True)
class Assignments:
    """Values by key, for the training protocol, the data and the model."""

    protocol: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    def check(self, task: Task, *, model_keys: bool) -> None:
        """Refuses unknown keys of protocol and data; model keys are checked when the model is configured.

        Raises:
            ConfigurationError: With a suggestion.
        """
        allowed = [*ProtocolConfig.model_fields, *(f"data.{key}" for key in task.data_config.model_fields)]
        assigned = [*self.protocol, *(f"data.{key}" for key in self.data)]
        names = [*allowed, "model.KEY"] if model_keys else allowed
        for key in assigned if model_keys else [*assigned, *(f"model.{key}" for key in self.model)]:
            if key not in allowed:
                raise ConfigurationError(unknown("key", key, names))


def read_assignments(pairs: Iterable[str]) -> Assignments:
    """Reads ``max_epochs=3``, ``data.max_length=64``, ``model.hidden_size=128``.

    Raises:
        ConfigurationError: For a pair without ``=``, or of another section.
    """
    fields = [f"data.{key}" for task in tasks() for key in task.data_config.model_fields]
    texts = {*text_keys(ProtocolConfig), *(f"data.{key}" for task in tasks() for key in text_keys(task.data_config))}
    values = override({}, pairs, texts=texts)
    data, model = values.pop("data", {}), values.pop("model", {})
    sections = [f"{name}.{next(iter(value), '')}" for name, value in values.items() if isinstance(value, dict)]
    sections += [name for name, value in (("data", data), ("model", model)) if not isinstance(value, dict)]
    if sections:
        raise ConfigurationError(unknown("key", sections[0], [*dict.fromkeys(fields), "model.KEY"]))
    return Assignments(values, data, model)


def sort_keywords(
    keywords: Mapping[str, Any],
    protocol: str | Mapping[str, Any] | None,
    *,
    task: Task,
    others: Sequence[str] = (),
) -> tuple[str | None, Assignments]:
    """Sorts the keywords of a call in Python into protocol and data.

    Args:
        protocol: A protocol by name or file, or keys of one with ``base``, the name or file that they change.

    Returns:
        The name or file of the protocol (None if none was named), and the sorted keys.

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
    # Data have a key ``protocol`` too, for their splits; its keyword is ``data_protocol``.
    fields = {
        f"data_{key}" if key == "protocol" else key: key for key in task.data_config.model_fields if key != "name"
    }
    data: dict[str, Any] = {}
    for key, value in keywords.items():
        if key in training:
            raise ConfigurationError(f"'{key}' is {value!r}, and {training[key]!r} in protocol; give it once")
        if key in known:
            training[key] = value
        elif key in fields:
            data[fields[key]] = value
        else:
            raise ConfigurationError(unknown("key", key, [*others, *known, *fields]))
    return base, Assignments({key: _plain(key, value) for key, value in training.items()}, data)


def _plain(key: str, value: Any) -> Any:
    # NumPy numbers and arrays become plain Python values.
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, str | int | float | list | tuple | dict | None):
        raise ConfigurationError(f"'{key}' is of type {type(value).__name__}; give a plain value")
    return value
