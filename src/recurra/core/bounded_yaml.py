"""YAML that a person wrote, read within bounds: depth, nodes and text are counted before anything is built.

A file of a few hundred bytes can ask for any amount of memory (an alias of lists of aliases), of stack (``[`` a hundred
thousand times) or for a value that holds itself. What is refused here is refused while the stream is parsed, and
nothing that a study, a model or a protocol needs comes near the bounds.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

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
