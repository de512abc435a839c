"""Tries mutants: each in a child of its own, until a test fails.

What stands in a function is swapped in a process that has collected the tests of the room: its code object is replaced,
and whoever holds the function, decorated or not, meets the mutant. What is computed at import (a constant, a default,
the body of a class) needs a process that has not yet imported the project.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from mutants.changes import Mutant
from mutants.covering import Covering
from mutants.forked import Forked, pytest_main
from mutants.rooms import REPOSITORY

if TYPE_CHECKING:
    from typing import Any

    import pytest

# Exit codes of pytest: all passed, or nothing was collected; and of a trial that never began.
_PASSED = frozenset({0, 5})
_BROKEN = 71


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        end: ``killed``, ``survived``, ``time`` (killed for taking too long) or ``unreached`` (no test comes there).
        killer: The test that failed first.
        tests: How many were to be run.
        seconds: How long it took.
    """

    end: str
    killer: str = ""
    tests: int = 0
    seconds: float = 0.0

    @property
    def is_killed(self) -> bool:
        """Whether a test noticed it."""
        return self.end in ("killed", "time")


class Trials:
    """Tries the mutants of a room.

    Args:
        covering: Which tests reach what.
        most_seconds: Measured seconds of tests that a mutant is held against at most; the nearest come first.
        tell: Is told every verdict.
    """

    def __init__(self, covering: Covering, most_seconds: float, tell: Callable[[int, Mutant, Verdict], None]) -> None:
        self._covering = covering
        self._most_seconds = most_seconds
        self._tell = tell

    def run(self, mutants: Sequence[Mutant]) -> list[Verdict]:
        """Tries each; verdicts in the same order."""
        verdicts: dict[int, Verdict] = {}
        chosen = {number: self._choose(mutant) for number, mutant in enumerate(mutants)}
        swapped = [number for number, mutant in enumerate(mutants) if self._can_be_swapped(mutant) and chosen[number]]
        for number, verdict in self._swap(mutants, {number: chosen[number] for number in swapped}):
            verdicts[number] = verdict
        for number, mutant in enumerate(mutants):
            if number not in verdicts:
                verdicts[number] = self._import(mutant, chosen[number])
                self._tell(number, mutant, verdicts[number])
        return [verdicts[number] for number in range(len(mutants))]

    def _can_be_swapped(self, mutant: Mutant) -> bool:
        at_import = self._covering.at_import.get(mutant.file, ())
        return bool(mutant.scope) and not any(line in at_import for line in _span(mutant))

    def _choose(self, mutant: Mutant) -> list[str]:
        """Tests that reach it: first those whose file mirrors its own or imports it, quick ones before slow ones."""
        local = self._can_be_swapped(mutant)
        seconds, mirrored, module = self._covering.seconds, f"test_{Path(mutant.file).stem}.py", _module(mutant)
        near = {
            file: (Path(file).name == mirrored, module in (REPOSITORY / file).read_text(encoding="utf-8"))
            for file in self._covering.files
        }
        reaching = self._covering.reaching(mutant.file, _span(mutant) if local else None)
        if not local:
            # What an import does is there for every test that comes to the file, or only looks at what it holds.
            passed = [test for test in seconds if test not in self._covering.failed]
            looking = [test for test in passed if any(near[test.split("::")[0]])]
            reaching = list(dict.fromkeys([*looking, *reaching])) or passed
        by_file: dict[str, list[str]] = {}
        for test in sorted(reaching, key=lambda test: seconds[test]):
            by_file.setdefault(test.split("::")[0], []).append(test)
        files = sorted(
            by_file, reverse=True, key=lambda file: (near[file], -sum(seconds[test] for test in by_file[file]))
        )
        chosen: list[str] = []
        left = self._most_seconds
        for test in (test for file in files for test in by_file[file]):
            if chosen and seconds[test] > left:
                continue
            left -= seconds[test]
            chosen.append(test)
        return chosen

    def _limit(self, tests: Sequence[str]) -> float:
        return 15 + 4 * sum(self._covering.seconds[test] for test in tests)

    def _swap(self, mutants: Sequence[Mutant], chosen: dict[int, list[str]]) -> Iterator[tuple[int, Verdict]]:
        if not chosen:
            return
        files = sorted({test.split("::")[0] for tests in chosen.values() for test in tests})

        def call(scratch: Path) -> int:
            return pytest_main([*files, "-m", "not slow"], _Swapper(self, mutants, chosen, scratch / "verdicts"))

        with Forked(call) as child:
            seen = 0
            told = child.scratch / "verdicts"
            while True:
                ended = child.wait(0.5)
                lines = told.read_text(encoding="utf-8").splitlines(keepends=True) if told.is_file() else []
                lines = [line for line in lines if line.endswith("\n")]
                for line in lines[seen:]:
                    number, verdict = json.loads(line)
                    self._tell(number, mutants[number], Verdict(**verdict))
                    yield number, Verdict(**verdict)
                seen = len(lines)
                if ended:
                    break
            if seen != len(chosen):
                raise RuntimeError(f"{seen} of {len(chosen)} mutants were tried; {child.said}")

    def try_one(self, tests: Sequence[str], call: Callable[[Path], int]) -> Verdict:
        """Calls in a child, and says how that ended."""
        start = time.perf_counter()
        with Forked(call) as child:
            child.wait(self._limit(tests))
            code = child.code
            killer = child.scratch / "killer"
            name = killer.read_text(encoding="utf-8") if killer.is_file() else ""
            if code == _BROKEN:
                raise RuntimeError(child.said)
        end = "time" if code is None else "survived" if code in _PASSED else "killed"
        return Verdict(end, name, len(tests), round(time.perf_counter() - start, 3))

    def _import(self, mutant: Mutant, tests: Sequence[str]) -> Verdict:
        if not tests:
            return Verdict("unreached")

        def call(scratch: Path) -> int:
            _load_changed(mutant)
            files = list(dict.fromkeys(test.split("::")[0] for test in tests))
            return pytest_main([*files, "--maxfail=1"], _Selection(tests, scratch))

        return self.try_one(tests, call)


def _span(mutant: Mutant) -> range:
    """Lines that are reached where it is: parts of a statement of several lines may count as its first."""
    return range(mutant.first, mutant.line + 1)


class _Selection:
    """Leaves the wanted tests of what is collected, in order, and names the first that fails."""

    def __init__(self, tests: Sequence[str], scratch: Path) -> None:
        self._tests = tests
        self._scratch = scratch

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[test] for test in self._tests]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            (self._scratch / "killer").write_text(report.nodeid, encoding="utf-8")


class _Swapper:
    """Tries mutants instead of running the collected tests."""

    def __init__(self, trials: Trials, mutants: Sequence[Mutant], chosen: dict[int, list[str]], verdicts: Path) -> None:
        self._trials = trials
        self._mutants = mutants
        self._chosen = chosen
        self._verdicts = verdicts

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        by_name = {item.nodeid: item for item in session.items}
        for number, tests in self._chosen.items():
            verdict = self._try(session, self._mutants[number], tests, [by_name[test] for test in tests])
            with self._verdicts.open("a", encoding="utf-8") as file:
                file.write(json.dumps([number, vars(verdict)]) + "\n")
        return True

    def _try(
        self, session: pytest.Session, mutant: Mutant, tests: Sequence[str], items: Sequence[pytest.Item]
    ) -> Verdict:
        def call(scratch: Path) -> int:
            from _pytest.main import pytest_runtestloop

            try:
                swap_code(mutant)
            except Exception:  # noqa: BLE001 - it is told from a failing test by its code
                traceback.print_exc()
                return _BROKEN
            session.config.pluginmanager.register(_Selection(tests, scratch))
            session.config.option.maxfail = 1
            session.items = list(items)
            with contextlib.suppress(session.Failed):
                pytest_runtestloop(session)
            return 1 if session.testsfailed else 0

        return self._trials.try_one(tests, call)


def _module(mutant: Mutant) -> str:
    return ".".join(Path(mutant.file).with_suffix("").parts[1:])


def swap_code(mutant: Mutant) -> None:
    """Gives every live function of a mutant's scope, and those within it that are alive already, the changed code.

    Raises:
        LookupError: If there is none.
    """
    path = str(REPOSITORY / mutant.file)
    # Some are imported by the functions that need them only.
    importlib.import_module(_module(mutant))
    codes = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _functions(compile(mutant.source, path, "exec", dont_inherit=True))
    }
    found = 0
    gc.unfreeze()  # what is frozen is not listed
    for function in [one for one in gc.get_objects() if type(one) is FunctionType]:
        old = function.__code__
        if old.co_filename != path or not f"{old.co_qualname}.".startswith(f"{mutant.scope}."):
            continue
        new = codes.get((old.co_qualname, old.co_firstlineno))
        if new is not None and new.co_freevars == old.co_freevars:
            function.__code__ = new
            found += old.co_qualname == mutant.scope
    if not found:
        raise LookupError(f"no function {mutant.scope} of {path} is alive")


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


def _load_changed(mutant: Mutant) -> None:
    """Has the changed source imported where the file would be."""
    if any(name.split(".")[0] == "recurra" for name in sys.modules):
        raise RuntimeError("the project was imported before its mutant")
    path = str(REPOSITORY / mutant.file)
    read = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> CodeType | None:
        if loader.path == path:
            return compile(mutant.source, path, "exec", dont_inherit=True)
        return read(loader, fullname)

    setattr(importlib.machinery.SourceFileLoader, "get_code", get_code)  # noqa: B010 - typeshed has another name for self
