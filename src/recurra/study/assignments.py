"""From what a person writes on a command line to configurations: options, and ``key=value`` with sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurra.core.configuration import override
from recurra.core.errors import ConfigurationError, unknown
from recurra.data.configuration import DataConfig
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.tokenization import default_tokenizer
from recurra.study.spec import RunConfig, make_run
from recurra.study.tasks import AnyDataConfig
from recurra.training.protocols import ProtocolConfig, load_protocol

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


def sort_assignments(assignments: Iterable[str], *, model_keys: bool = True, text: bool = False) -> Assignments:
    """Sorts ``key=value`` pairs into protocol, data and model.

    Args:
        assignments: For example ``max_epochs=3``, ``data.max_length=64``, ``model.hidden_size=128``.
        model_keys: Whether keys of the model are accepted: one model is meant, not several.
        text: Whether the data are running text, which has other keys than labelled rows.

    Raises:
        ConfigurationError: For a pair without ``=`` or an unknown key of protocol or data. Keys of the model are
            checked where the model is configured.
    """
    protocol: list[str] = []
    sections: dict[str, list[str]] = {"data": [], "model": []}
    fields = (LanguageDataConfig if text else DataConfig).model_fields
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
    return Assignments(protocol, override({}, sections["data"]), override({}, sections["model"]))


def configure_data(
    name: str, options: Mapping[str, Any], assigned: Mapping[str, Any], data_root: Path | None
) -> tuple[DataConfig, str | None]:
    """Builds the configuration of the data and chooses the tokenizer if none is named.

    Args:
        name: A corpus or a file.
        options: Values of options; None means that the option was not given.
        assigned: Values of ``data.KEY=VALUE``; they win over the options.
        data_root: Local copies of public data.

    Returns:
        The configuration, and a sentence on the tokenizer that was chosen, if one was.

    Raises:
        ConfigurationError: For an impossible value.
    """
    values = {key: value for key, value in options.items() if value is not None}
    values |= {"name": name, **assigned}
    note = None
    if "tokenizer" not in values:
        values["tokenizer"] = default_tokenizer(str(values["name"]), data_root)
        note = f"tokenizer: {values['tokenizer']} (choose with --tokenizer)"
    return DataConfig.parse(values, source="data"), note


def configure_run(
    model: str, data: AnyDataConfig, protocol: str, assignments: Assignments, *, seed: int, precision: str
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
    training = load_protocol(protocol, assignments.protocol, language=isinstance(data, LanguageDataConfig))
    return make_run(model, data, training, seed=seed, precision=precision, overrides=assignments.model)
