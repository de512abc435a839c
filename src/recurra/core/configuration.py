"""Typed, frozen configurations from YAML that is bounded before it is read, with overrides from the command line."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic_core import to_jsonable_python

from recurra.core.errors import ConfigurationError, did_you_mean

# YAML that a person wrote, read within bounds: depth, nodes and text are counted before anything is built.
#
# A file of a few hundred bytes can ask for any amount of memory (an alias of lists of aliases), of stack (``[`` a
# hundred
# thousand times) or for a value that holds itself. What is refused here is refused while the stream is parsed, and
# nothing that a study, a model or a protocol needs comes near the bounds.
MAX_TEXT_BYTES = 2**20
# With every alias counted as often as what it stands for: what is read is as large as if it had been written out.
MAX_NODES = 50_000
MAX_DEPTH = 50
# Also of a number; Python refuses to write longer ones, and 60 digits are beyond any setting.
MAX_NUMBER_CHARACTERS = 400

_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))
_SURROGATE = re.compile("[\ud800-\udfff]")
_MERGE, _TIMESTAMP = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:timestamp"


class BoundedLoader(yaml.SafeLoader):
    """Reads plain values only: mappings, lists, words, numbers, true, false and null, within the bounds above.

    A key that stands twice in one mapping is refused; YAML itself would take the last one and say nothing. A date is a
    word, as every file of ours means it.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and kind that PyYAML asks for
        first: [(tag, pattern) for tag, pattern in found if tag != _TIMESTAMP]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[str | None, int] = {}
        self._open: list[str | None] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Counts a node, or what an alias stands for, before it is made."""
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._open:
                raise _refused(f"'*{event.anchor}' stands inside what it names; write the value out", event)
            self._count(self._sizes.get(event.anchor, 1), event)
            return super().compose_node(parent, index)
        before = self._nodes
        self._count(1, event)
        if len(self._open) >= MAX_DEPTH:
            raise _refused(f"more than {MAX_DEPTH} levels lie inside each other; write fewer", event)
        self._open.append(event.anchor)
        node = super().compose_node(parent, index)
        self._open.pop()
        if event.anchor is not None:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def _count(self, nodes: int, event: yaml.NodeEvent) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _refused(f"more than {MAX_NODES:,} values, each alias counted as what it names; write fewer", event)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Builds a value; what its tag cannot mean is said with the place."""
        if node.tag not in _PLAIN_TAGS and node.tag != _MERGE:
            raise _refused(f"the tag '{node.tag}' is not read; write a word, a number, a list or a mapping", node)
        number = node.tag.endswith((":int", ":float")) and isinstance(node, yaml.ScalarNode)
        if number and len(node.value) > MAX_NUMBER_CHARACTERS:
            raise _refused(
                f"a number of {len(node.value):,} characters; at most {MAX_NUMBER_CHARACTERS} are read", node
            )
        if node.tag.endswith(":str") and isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
            raise _refused("half of a surrogate pair, which is no character; write the character itself", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, IndexError, KeyError) as error:
            shown = node.value[:60] if isinstance(node, yaml.ScalarNode) else "a collection"
            raise _refused(f"'{shown}' is no {node.tag.rpartition(':')[2]}", node) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise _refused(f"'{value}' is no finite number", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping."""
        if isinstance(node, yaml.MappingNode):
            seen: set[Any] = set()
            for key_node, _ in node.value:
                if key_node.tag == _MERGE or not isinstance(key_node, yaml.ScalarNode):
                    continue
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise _refused(f"the key '{key}' stands there twice", key_node)
                seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Reads plain values from YAML text.

    Raises:
        yaml.YAMLError: If it is not YAML, goes beyond the bounds, or holds what is no plain value.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise yaml.YAMLError(f"it has more than {MAX_TEXT_BYTES:,} characters; write less")
    return yaml.load(text, Loader=BoundedLoader)


def explain(error: yaml.YAMLError) -> str:
    """What is wrong, in one line of bounded length."""
    return re.sub(r"\s+", " ", str(error)).strip()[:400]


def _refused(problem: str, at: yaml.NodeEvent | yaml.Node) -> yaml.MarkedYAMLError:
    mark: Any = at.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


# Of an assignment in a message.
_SHOWN_CHARACTERS = 120


class Settings(BaseModel):
    """Base of every configuration of ours: frozen, strict about keys, errors that name value and cure."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True)

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
        return cls.parse(override(values, overrides, texts=text_keys(cls)), source=f"'{path}'")

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values, in declaration order."""
        return self.model_dump(mode="json")


class HashedSettings(Settings):
    """Base of everything whose plain values are hashed, by itself or inside another: such a class may get new keys.

    Hashes stand in names of runs and in records, and a new key must change none of them. So a key at its default is
    left out of the plain values, and values that lack it are read with the default. A new key needs a default that asks
    for what was done before, and that never changes; nothing else. The exceptions are `_FIRST_KEYS`: the first records
    hold them at their defaults as well. No name is ever added there, and a class that is made today has none.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset()
    # What is left out, with its plain value: worked out once, for a plan hashes thousands of configurations.
    _left_out: ClassVar[tuple[tuple[str, Any], ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Finds the keys that are left out at their defaults."""
        first: set[str] = set().union(*(vars(base).get("_FIRST_KEYS", ()) for base in cls.__mro__))
        if lost := sorted(first - cls.model_fields.keys()):
            raise TypeError(f"{cls.__name__} has no key {', '.join(lost)}, which first records hold")
        later = {key: field for key, field in cls.model_fields.items() if key not in first and not field.is_required()}
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


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML mapping.

    Raises:
        ConfigurationError: If the file is missing, not YAML, beyond its bounds, or not a mapping.
    """
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_TEXT_BYTES + 1)
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
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=120)
    # PyYAML writes some line separators (U+0085) as they are and reads them as spaces; escaped they come back.
    if any(character in text for character in "\x85\u2028\u2029"):
        text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=False, width=120)
    return text


def text_keys(cls: type[BaseModel]) -> frozenset[str]:
    """Keys of a configuration whose values are texts and nothing else."""
    return frozenset(key for key, field in cls.model_fields.items() if field.annotation in (str, str | None))


def override(values: Mapping[str, Any], assignments: Iterable[str], *, texts: Collection[str] = ()) -> dict[str, Any]:
    """Applies ``key=value`` assignments; values are YAML, dotted keys reach into sections.

    Args:
        values: What they change.
        assignments: In their order.
        texts: Keys whose value is the text that was typed: YAML only if it is in quotes, or ``null``.

    Raises:
        ConfigurationError: If an assignment has no ``=``, reaches into something that is not a section, or has a value
            that is not YAML or beyond the bounds of `read_bounded_yaml`.
    """
    result: dict[str, Any] = json.loads(json.dumps(values))
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        shown = assignment if len(assignment) <= _SHOWN_CHARACTERS else f"{assignment[:_SHOWN_CHARACTERS]}..."
        if not separator or not key.strip():
            raise ConfigurationError(f"cannot read the override '{shown}'; write key=value, e.g. epochs=3")
        section = result
        *path, leaf = key.strip().split(".")
        if len(path) >= MAX_DEPTH:
            raise ConfigurationError(f"override '{shown}': the key has more than {MAX_DEPTH} parts; write fewer")
        for part in path:
            child = section.setdefault(part, {})
            if not isinstance(child, dict):
                raise ConfigurationError(f"override '{shown}': '{part}' is not a section")
            section = child
        if key.strip() in texts and text.strip() not in ("", "null", "~") and text.strip()[0] not in "\"'":
            section[leaf] = text
            continue
        try:
            section[leaf] = parse_yaml(text)
        except yaml.YAMLError as error:
            detail = explain(error)
            raise ConfigurationError(f"override '{shown}': the value is not valid YAML: {detail}") from error
        if isinstance(section[leaf], str) and key.strip() not in texts:
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
