"""Which tests reach a line, and how long each takes: measured once, and again where a test or its source changed."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mutants.forked import Forked, pytest_main
from mutants.rooms import REPOSITORY, Room

if TYPE_CHECKING:
    from typing import Any

    import coverage
    import pytest
    from _pytest.fixtures import SubRequest

# Context of what a fixture of several tests does; it counts for each of them.
_SHARED = "shared:"


@dataclass
class Covering:
    """What the tests of a room reach.

    Attributes:
        sources: Digest of each source file when it was measured.
        files: Digest of each test file when it was measured.
        seconds: Of each test, by its node id.
        lines: Lines of each source file that each test reaches, by node id and path.
        at_import: Lines of each source file that are reached outside tests.
        modules: What else had been imported at the end.
        failed: Tests that fail as things are.
    """

    sources: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    at_import: dict[str, list[int]] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def forget(self, files: set[str]) -> None:
        """Forgets the tests of files."""
        gone = {test for test in self.seconds if test.split("::")[0] in files}
        self.seconds = {test: seconds for test, seconds in self.seconds.items() if test not in gone}
        self.lines = {test: lines for test, lines in self.lines.items() if test not in gone}
        self.failed = [test for test in self.failed if test not in gone]
        self.files = {file: digest for file, digest in self.files.items() if file not in files}

    def is_stale(self, file: str, digest: str, changed: set[str]) -> bool:
        """Whether a test file has changed, or reaches a source file that has."""
        own = [test for test in self.seconds if test.split("::")[0] == file]
        return self.files.get(file) != digest or any(not changed.isdisjoint(self.lines[test]) for test in own)

    def add(self, other: Covering) -> None:
        """Adds what another measured."""
        self.files |= other.files
        self.seconds |= other.seconds
        self.lines |= other.lines
        self.failed = sorted({*self.failed, *other.failed})
        self.modules = sorted({*self.modules, *other.modules})
        for file, lines in other.at_import.items():
            self.at_import[file] = sorted({*lines, *self.at_import.get(file, [])})

    def reaching(self, file: str, lines: range | None) -> list[str]:
        """Tests that reach one of the lines of a file, or any; those that fail anyway are left out."""
        failed = set(self.failed)
        return [
            test
            for test, reached in self.lines.items()
            if test not in failed
            and file in reached
            and (lines is None or any(line in lines for line in reached[file]))
        ]


def measure(room: Room, kept: Path) -> Covering:
    """Measures the tests of a room, or reads what was measured of files that have not changed since."""
    covering = Covering(**json.loads(kept.read_text(encoding="utf-8"))) if kept.is_file() else Covering()
    sources = {str(file): _digest(file) for file in room.sources()}
    tests = {str(file): _digest(file) for file in room.test_files()}
    changed = {file for file, digest in sources.items() if covering.sources.get(file) != digest}
    stale = [file for file, digest in tests.items() if covering.is_stale(file, digest, changed)]
    covering.forget({*stale, *(set(covering.files) - set(tests))})
    covering.at_import = {file: lines for file, lines in covering.at_import.items() if file not in changed}
    if stale:
        with Forked(lambda scratch: _measure(list(sources), stale, scratch)) as child:
            child.wait(3600)
            found = Covering(**json.loads((child.scratch / "covering.json").read_text(encoding="utf-8")))
        found.files = {test: tests[test] for test in stale}
        covering.add(found)
        covering.sources = sources
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(covering)), encoding="utf-8")
    return covering


def _digest(file: Path) -> str:
    return hashlib.sha256((REPOSITORY / file).read_bytes()).hexdigest()[:16]


def _measure(sources: Sequence[str], tests: Sequence[str], scratch: Path) -> int:
    import coverage

    before = set(sys.modules)
    lines = coverage.Coverage(
        data_file=None, config_file=False, include=[str(REPOSITORY / source) for source in sources], messages=False
    )
    lines.start()
    recorder = _Recorder(lines)
    pytest_main([*tests, "-m", "not slow"], recorder)
    lines.stop()
    found = _collect(lines, recorder)
    found.modules = [name for name in sys.modules if name not in before and _is_foreign(name)]
    (scratch / "covering.json").write_text(json.dumps(asdict(found)), encoding="utf-8")
    return 0


def _is_foreign(name: str) -> bool:
    """Whether a module is installed, and neither ours nor pytest's.

    Not the standard library's: its private halves (``_asyncio``) break what is imported after them.
    """
    file = getattr(sys.modules[name], "__file__", None) or ""
    ours = name.partition(".")[0] in {"recurra", "hypothesis", "pytest", "_pytest", "xdist", "schemathesis"}
    return not ours and "__" not in name and "site-packages" in Path(file).parts


def _collect(lines: coverage.Coverage, recorder: _Recorder) -> Covering:
    found = Covering(seconds=recorder.seconds, failed=sorted(recorder.failed))
    found.lines = {test: {} for test in recorder.seconds}
    data = lines.get_data()
    for path in data.measured_files():
        file = str(Path(path).relative_to(REPOSITORY))
        by_context: dict[str, set[int]] = {}
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                by_context.setdefault(context, set()).add(line)
        found.at_import[file] = sorted(by_context.get("", ()))
        for test, fixtures in recorder.fixtures.items():
            reached = set.union(*(by_context.get(context, set()) for context in (test, *fixtures)))
            if reached:
                found.lines[test][file] = sorted(reached)
    return found


class _Recorder:
    """Tells the coverage whose lines come next."""

    def __init__(self, lines: coverage.Coverage) -> None:
        self._lines = lines
        self._context = ""
        self.seconds: dict[str, float] = {}
        self.fixtures: dict[str, list[str]] = {}
        self.failed: set[str] = set()

    @contextmanager
    def _within(self, context: str) -> Iterator[None]:
        before, self._context = self._context, context
        self._lines.switch_context(context)
        try:
            yield
        finally:
            self._context = before
            self._lines.switch_context(before)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        from _pytest.runner import runtestprotocol

        closure: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        self.fixtures[item.nodeid] = [_context(fixture) for found in closure.values() for fixture in found]
        start = time.perf_counter()
        with self._within(item.nodeid):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            reports = runtestprotocol(item, nextitem=nextitem)
        self.seconds[item.nodeid] = time.perf_counter() - start
        if any(report.failed for report in reports):
            self.failed.add(item.nodeid)
        return True

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> object:
        from _pytest.fixtures import pytest_fixture_setup

        if fixturedef.scope == "function":
            return None
        with self._within(_context(fixturedef)):
            return pytest_fixture_setup(fixturedef, request)


def _context(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{_SHARED}{fixture.baseid}::{fixture.argname}"
