"""Typed, frozen configurations from YAML, with overrides from the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from recurra.core.errors import ConfigurationError, did_you_mean


class Settings(BaseModel):
    """Base of every configuration of ours: frozen, strict about keys, errors that name value and cure."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str = "configuration") -> Self:
        """Builds the configuration from plain values.

        Args:
            values: Keys and values, as read from YAML or JSON.
            source: Where they come from, for the message.

        Raises:
            ConfigurationError: For an unknown key, a wrong type or an impossible value.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigurationError(f"{source}: {_first_problem(error, cls)}") from error

    @classmethod
    def load(cls, path: Path | str, overrides: Iterable[str] = ()) -> Self:
        """Reads a YAML file and applies ``key=value`` overrides (dotted keys reach into sections)."""
        values = read_yaml(path)
        return cls.parse(override(values, overrides), source=f"'{path}'")

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values, in declaration order."""
        return self.model_dump(mode="json")


class GrowingSettings(Settings):
    """Base of configurations that have got keys since the first records, and that such records hold."""

    # At their defaults they are left out of the plain values, so that a configuration that lacks them keeps its hash,
    # and a record its identity.
    _LATER: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        unused = {key for key in self._LATER if getattr(self, key) == fields[key].default}
        return {key: value for key, value in handler(self).items() if key not in unused}


def _first_problem(error: ValidationError, cls: type[BaseModel]) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "value"
    if first["type"] == "extra_forbidden":
        allowed = _fields_at(cls, first["loc"][:-1])
        name = str(first["loc"][-1])
        return f"unknown key '{where}'{did_you_mean(name, allowed)}; allowed: {', '.join(allowed)}"
    if first["type"] == "missing":
        return f"key '{where}' is missing; add it"
    message = first["msg"].removeprefix("Value error, ")
    shown = json.dumps(first["input"], default=str, ensure_ascii=False)
    return f"'{where}' is {shown[:120]}: {message[0].lower()}{message[1:]}"


def _fields_at(cls: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    current: type[BaseModel] = cls
    for part in location:
        field = current.model_fields.get(str(part))
        if field is None:
            continue
        current = next(_models_in(field.annotation), current)
    return list(current.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Configurations that a type is made of, however they are wrapped; of a union the first comes first."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; YAML itself would take the last one and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                mark = node.value[index][0].start_mark
                raise yaml.MarkedYAMLError(problem=f"the key '{key}' stands there twice", problem_mark=mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML mapping.

    Raises:
        ConfigurationError: If the file is missing, not YAML, or not a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(f"cannot read '{path}': {reason}; give the path of a YAML file") from error
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise ConfigurationError(f"'{path}' is not valid YAML: {detail}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"'{path}' holds a {type(values).__name__}; a mapping of keys to values is needed")
    return values


def write_yaml(values: Mapping[str, Any]) -> str:
    """Returns the YAML text of plain values, keys in their order."""
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=120)
    # PyYAML writes some line separators (U+0085) as they are and reads them as spaces; escaped they come back.
    if any(character in text for character in "\x85\u2028\u2029"):
        text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=False, width=120)
    return text


def override(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Applies ``key=value`` assignments; values are YAML, dotted keys reach into sections.

    Raises:
        ConfigurationError: If an assignment has no ``=`` or reaches into something that is not a section.
    """
    result: dict[str, Any] = json.loads(json.dumps(values))
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key.strip():
            raise ConfigurationError(f"cannot read the override '{assignment}'; write key=value, e.g. epochs=3")
        section = result
        *path, leaf = key.strip().split(".")
        for part in path:
            child = section.setdefault(part, {})
            if not isinstance(child, dict):
                raise ConfigurationError(f"override '{assignment}': '{part}' is not a section")
            section = child
        try:
            section[leaf] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigurationError(f"override '{assignment}': the value is not valid YAML") from error
        if isinstance(section[leaf], str):
            section[leaf] = _number_if_scientific(section[leaf])
    return result


def _number_if_scientific(text: str) -> str | float:
    """YAML 1.1 reads ``3e-5`` as a word; a user means the number."""
    try:
        return float(text)
    except ValueError:
        return text


def content_hash(value: Any, length: int = 16) -> str:
    """Returns a hash of plain JSON values that does not depend on the order of keys (SHA-256, hexadecimal)."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]
