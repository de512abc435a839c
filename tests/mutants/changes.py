"""The mutants of a file: every change that mutmut's operators make, but those that no test ought to notice.

Left alone are text for people (what an error says, literals of three words, descriptions of fields, logs, docstrings),
annotations, type aliases and imports, assertions (``assert``, ``zip(..., strict=True)``, frozen classes), the
``encoding=`` of a file, the ``device=`` of a tensor, and names of random streams (``derive_seed``).
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from mutants.rooms import REPOSITORY

# Told to people, or declared for readers and type checkers.
_TOLD = frozenset({"description", "help", "title", "examples"})
# Assertions (`zip(..., strict=True)`), what Linux does anyway, and what a machine without an accelerator cannot tell.
_ASSERTED = frozenset({"strict", "encoding", "device", "frozen"})
_LEFT_ALONE = frozenset({"len", "isinstance", "cast", "warn", "derive_seed"})
_SPOKEN = m.Attribute(value=m.Name("logger") | m.Name("warnings") | m.Attribute(attr=m.Name("logger")))


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Relative to the repository.
        scope: Outermost function or method that holds it (``Class.method``), empty for what is computed at import.
        first: First line of the statement that holds it, from 1; its later lines may not be told apart.
        line: Where it stands.
        before: The lines as they are, without indentation.
        after: The lines as they become.
        source: The whole file, changed.
    """

    file: str
    scope: str
    first: int
    line: int
    before: str
    after: str
    source: str = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """What tells it from every other."""
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Place:
    """A change that was not made yet."""

    file: Path
    node: cst.CSTNode
    changed: cst.CSTNode
    scope: str
    first: int
    line: int


@dataclass
class Changes:
    """All places of a file."""

    file: Path
    module: cst.Module
    places: list[Place]

    @classmethod
    def of(cls, file: Path) -> Changes:
        """Reads a file of the repository."""
        wrapper = MetadataWrapper(cst.parse_module((REPOSITORY / file).read_text(encoding="utf-8")))
        visitor = _Visitor(file)
        wrapper.visit(visitor)
        return cls(file, wrapper.module, visitor.places)

    def make(self, place: Place) -> Mutant | None:
        """Makes one; nothing if it is no Python, or the same Python."""
        original = self.module.code
        changed = self.module.deep_replace(place.node, place.changed)
        assert isinstance(changed, cst.Module)
        try:
            if ast.dump(ast.parse(changed.code)) == ast.dump(ast.parse(original)):
                return None
            compile(changed.code, str(place.file), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None
        before, after = _difference(original.splitlines(), changed.code.splitlines())
        return Mutant(str(place.file), place.scope, place.first, place.line, before, after, changed.code)


def draw(files: Sequence[Path], sample: int, seed: str) -> tuple[int, list[Mutant]]:
    """Draws mutants evenly, without replacement, in the order of the draw.

    Args:
        files: Of the repository.
        sample: How many; 0: all.
        seed: Of the draw.

    Returns:
        How many places there are in all, and the mutants.
    """
    changes = {file: Changes.of(file) for file in files}
    places = [place for file in files for place in changes[file].places]
    random.Random(seed).shuffle(places)
    drawn: list[Mutant] = []
    for place in places:
        if sample and len(drawn) == sample:
            break
        mutant = changes[place.file].make(place)
        if mutant is not None:
            drawn.append(mutant)
    return len(places), drawn


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    left, right = (lines[start : len(lines) - end] for lines in (before, after))
    return " ".join(line.strip() for line in left), " ".join(line.strip() for line in right)


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.places: list[Place] = []
        self._file = file
        self._names: list[str] = []
        self._bodies: list[str] = []
        self._statements: list[int] = [1]
        self._telling = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_left_alone(node):
            return False
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            self._names.append(node.name.value)
        if _tells(node):
            self._telling += 1
        line = self.get_metadata(PositionProvider, node).start.line
        if _is_statement(node):
            self._statements.append(line)
        for changed in self._changes(node):
            scope = self._bodies[0] if self._bodies else ""
            self.places.append(Place(self._file, node, changed, scope, self._statements[-1], line))
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        super().on_leave(original_node)
        if _is_left_alone(original_node):
            return
        if isinstance(original_node, cst.ClassDef | cst.FunctionDef):
            self._names.pop()
        if _tells(original_node):
            self._telling -= 1
        if _is_statement(original_node):
            self._statements.pop()

    def visit_FunctionDef_body(self, node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        self._bodies.append(".".join(self._names))

    def leave_FunctionDef_body(self, node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        self._bodies.pop()

    def _changes(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        if self._telling and not isinstance(node, cst.BaseNumber | cst.SimpleString):
            return
        if isinstance(node, cst.SimpleString) and len(node.value.split()) > (1 if self._telling else 2):
            return
        kept = [arg for arg in node.args if _is_asserted(arg)] if isinstance(node, cst.Call) else []
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for changed in operator(node):
                    if all(any(arg is other for other in changed.args) for arg in kept):
                        yield changed


def _is_statement(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)


def _is_asserted(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value in _ASSERTED | _TOLD


def _tells(node: cst.CSTNode) -> bool:
    """Whether it is an error: of what it says only numbers and single words are changed."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return node.func.value.endswith("Error") or node.func.value == "Refusal"
    return isinstance(node, cst.Raise)


def _is_left_alone(node: cst.CSTNode) -> bool:
    """Whether nothing in it is changed."""
    if isinstance(node, cst.Annotation | cst.Import | cst.ImportFrom | cst.Assert):
        return True
    if isinstance(node, cst.Arg):
        return _is_asserted(node)
    if isinstance(node, cst.FunctionDef):
        return node.name.value == "__repr__"
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.BaseString)
    if isinstance(node, cst.If):
        return m.matches(node.test, m.Name("TYPE_CHECKING"))
    if isinstance(node, cst.Decorator):
        return m.matches(node.decorator, m.Call(func=m.Name("dataclass")))
    if isinstance(node, cst.Assign):
        # `Floats = npt.NDArray[np.float64]`, `R = TypeVar("R")`.
        generic = m.Attribute(value=m.Name("npt")) | m.Name("Callable") | m.Name("dict") | m.Name("tuple")
        alias = m.Subscript(value=generic) | m.Call(func=m.Name("TypeVar") | m.Name("ParamSpec"))
        return m.matches(node.targets[0].target, m.Name("__all__")) or m.matches(node.value, alias)
    if isinstance(node, cst.Call):
        return m.matches(node.func, _SPOKEN) or (isinstance(node.func, cst.Name) and node.func.value in _LEFT_ALONE)
    return False
