"""Typed, frozen configurations from YAML of bounded size, with overrides from the command line."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic_core import to_jsonable_python

from recurra.core.errors import ConfigurationError, did_you_mean
from recurra.core.packed import read_study_bytes

# Through aliases of lists of aliases, a few hundred bytes of YAML can stand for any number of values.
MAX_TEXT_BYTES = 2**18
MAX_VALUES_BYTES = 2**21
MAX_DEPTH = 50


class _PlainLoader(yaml.SafeLoader):
    """Refuses deep nesting, repeated keys of a mapping, and merged mappings; reads a date as a word."""

    _depth = 0
    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and kind that PyYAML asks for
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Builds a node and what lies inside it."""
        if self._depth >= MAX_DEPTH:
            raise yaml.YAMLError(f"more than {MAX_DEPTH} levels are nested in each other; write fewer")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuses merged mappings, which multiply values as aliases do."""
        if any(key.tag.endswith(":merge") for key, _ in node.value):
            raise yaml.MarkedYAMLError(problem="'<<' is not allowed; write keys out", problem_mark=node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping."""
        values = super().construct_mapping(node, deep)
        if isinstance(node, yaml.MappingNode) and len(values) < len(node.value):
            names = Counter(str(key.value)[:60] for key, _ in node.value)
            problem = f"the key '{names.most_common(1)[0][0]}' is given twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return values


def parse_yaml(text: str) -> Any:
    """Reads plain values from YAML text; raises `yaml.YAMLError` for anything else, and beyond the bounds."""
    if len(text) > MAX_TEXT_BYTES:
        raise yaml.YAMLError(f"it has more than {MAX_TEXT_BYTES:,} characters; write less")
    try:
        values = yaml.load(text, Loader=_PlainLoader)
        # JSON allows plain values only, and writes out each alias.
        size = 0
        for piece in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(values):
            size += len(piece.encode())
            if size > MAX_VALUES_BYTES:
                raise yaml.YAMLError(
                    f"its values have more than {MAX_VALUES_BYTES:,} bytes, each alias counted as what it names"
                )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise yaml.YAMLError(f"it holds values that are not plain ({error}); write words, numbers or lists") from error
    return values


def explain(error: yaml.YAMLError) -> str:
    """The error in one line of bounded length."""
    return re.sub(r"\s+", " ", str(error)).strip()[:400]


class Settings(BaseModel):
    """Base of all configurations: frozen, strict about keys, with errors that name value and cure."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str = "configuration") -> Self:
        """Builds the configuration from plain values."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigurationError(f"{source}: {_first_problem(error, cls)}") from error

    @classmethod
    def load(cls, path: Path | str, overrides: Iterable[str] = ()) -> Self:
        """Reads a YAML file and applies ``key=value`` overrides (dotted keys reach into sections)."""
        values = read_yaml(path)
        return cls.parse(override(values, overrides, texts=text_keys(cls)), source=f"'{path}'")

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values, in declaration order."""
        return self.model_dump(mode="json")


class HashedSettings(Settings):
    """Base of everything whose plain values are hashed, alone or inside another value; such a class may get new keys.

    Hashes are in names of runs and in records, and a new key must change none of them. So a key at its default is left
    out of the plain values, and values that lack it are read with the default. A new key only needs a default that asks
    for the old behaviour and never changes. The exceptions are `_FIRST_KEYS`, which the first records hold even at
    their defaults. No name is ever added there, and new classes have none.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset()
    # The keys that are left out, with their defaults; computed once, because a plan hashes thousands of configurations.
    _left_out: ClassVar[tuple[tuple[str, Any], ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Finds the keys that are left out at their defaults."""
        fixed: set[str] = set().union(*(vars(base).get("_FIRST_KEYS", ()) for base in cls.__mro__))
        if lost_keys := sorted(fixed - cls.model_fields.keys()):
            raise TypeError(f"{cls.__name__} has no key {', '.join(lost_keys)}, which first records hold")
        later = {key: field for key, field in cls.model_fields.items() if key not in fixed and not field.is_required()}
        cls._left_out = tuple(
            (key, to_jsonable_python(field.get_default(call_default_factory=True))) for key, field in later.items()
        )

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        for key, default in self._left_out:
            if values.get(key) == default:
                values.pop(key, None)
        return values


def _first_problem(error: ValidationError, cls: type[BaseModel]) -> str:
    problem = error.errors(include_url=False)[0]
    location = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        allowed = _fields_at(cls, problem["loc"][:-1])
        name = str(problem["loc"][-1])
        return f"unknown key '{location}'{did_you_mean(name, allowed)}; allowed: {', '.join(allowed)}"
    if problem["type"] == "missing":
        return f"key '{location}' is missing; add it"
    message = problem["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if not location:
        return message
    value = json.dumps(problem["input"], default=str, ensure_ascii=False)
    return f"'{location}' is {value[:120]}: {message}"


def _fields_at(cls: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    current: type[BaseModel] = cls
    for part in location:
        field = current.model_fields.get(str(part))
        if field is None:
            continue
        current = next(_models_in(field.annotation), current)
    return list(current.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Configurations inside a type, however they are wrapped; those of a union come in its order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML mapping."""
    try:
        raw = read_study_bytes(Path(path), MAX_TEXT_BYTES + 1)
        if len(raw) > MAX_TEXT_BYTES:
            raise ConfigurationError(f"'{path}' has more than {MAX_TEXT_BYTES:,} bytes; give a YAML file of settings")
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(f"cannot read '{path}': {reason}; give the path of a YAML file") from error
    try:
        values = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"'{path}' is not valid YAML: {explain(error)}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"'{path}' holds a {type(values).__name__}; a mapping of keys to values is needed")
    return values


def write_yaml(values: Mapping[str, Any]) -> str:
    """Returns the YAML text of plain values, keys in their order."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(dict(values), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    # PyYAML writes some line separators (U+0085) as they are but reads them as spaces; escaped ones are kept.
    if any(character in text for character in "\x85\u2028\u2029"):
        text = yaml.dump(dict(values), Dumper=dumper, sort_keys=False, allow_unicode=False, width=120)
    return text


def text_keys(cls: type[BaseModel]) -> frozenset[str]:
    """Keys of a configuration whose values can only be texts (or None)."""
    return frozenset(key for key, field in cls.model_fields.items() if field.annotation in (str, str | None))


def plain_name(text: str, most: int = 80) -> str:
    """Turns a text into a name of ASCII letters, digits, dots, underscores and hyphens; perhaps an empty one."""
    parts = unicodedata.normalize("NFKD", text)
    letters = "".join(character for character in parts if not unicodedata.combining(character))
    return re.sub(r"[^A-Za-z0-9._-]", "-", letters).lstrip("._-")[:most]


def names_in(text: str) -> list[str]:
    """Splits a text at commas into names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def override(values: Mapping[str, Any], assignments: Iterable[str], *, texts: Collection[str] = ()) -> dict[str, Any]:
    """Applies ``key=value`` assignments; values are YAML, dotted keys reach into sections.

    The value of a key in ``texts`` is taken as typed; it is YAML only if it is in quotes, or ``null``.
    """
    result: dict[str, Any] = json.loads(json.dumps(values))
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        named = f"{assignment[:120]}..." if len(assignment) > 120 else assignment
        if not separator or not key.strip():
            raise ConfigurationError(f"cannot read the override '{named}'; write key=value, e.g. epochs=3")
        section = result
        *path, leaf = key.strip().split(".")
        if len(path) >= MAX_DEPTH:
            raise ConfigurationError(f"override '{named}': the key has more than {MAX_DEPTH} parts; write fewer")
        for part in path:
            child = section.setdefault(part, {})
            if not isinstance(child, dict):
                raise ConfigurationError(f"override '{named}': '{part}' is not a section")
            section = child
        if key.strip() in texts and text.strip() not in ("", "null", "~") and text.strip()[0] not in "\"'":
            section[leaf] = text
            continue
        try:
            section[leaf] = parse_yaml(text)
        except yaml.YAMLError as error:
            detail = explain(error)
            raise ConfigurationError(f"override '{named}': the value is not valid YAML: {detail}") from error
        if isinstance(section[leaf], str) and key.strip() not in texts:
            # YAML 1.1 takes 3e-5 for a word.
            with contextlib.suppress(ValueError):
                section[leaf] = float(section[leaf])
    return result


def content_hash(value: Any, length: int = 16) -> str:
    """Returns a hash of plain JSON values that does not depend on the order of keys (SHA-256, hexadecimal)."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Returns a seed for one purpose (31 bits), independent of the seeds for other purposes."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
