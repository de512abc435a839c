"""Tests the tests: changes the source in one place at a time and sees whether a test fails.

``python -m mutants [--room data] [--sample 120] [--seed 1] [--json FILE]``. It needs Linux, and ``tests`` on
``PYTHONPATH``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mutants.changes import Mutant, draw
from mutants.covering import measure
from mutants.forked import end_with_parent, warm_up
from mutants.rooms import REPOSITORY, ROOMS
from mutants.score import HEADING, Score, Survivors
from mutants.trial import Trials, Verdict

# Mutants of a room that are tried without their change first.
_CONTROLS = 3


def main() -> int:
    """Tries the mutants of each room and prints the table; 1 if a room is under the bound, 2 if tests fail anyway."""
    options = _options()
    end_with_parent()
    found: dict[str, Any] = {"seed": options.seed, "scores": [], "mutants": []}
    for room in options.room:
        try:
            tried = _tried(room, options) if len(options.room) == 1 else _tried_apart(room)
        except RuntimeError as error:
            _say(str(error))
            return 2
        found["scores"] += tried["scores"]
        found["mutants"] += tried["mutants"]
        if options.json:
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    scores = [Score(**score) for score in found["scores"]]
    sys.stdout.write("\n".join([f"seed {options.seed}", "", HEADING, *(score.row() for score in scores)]) + "\n")
    return 0 if all(score.killed >= options.least * (score.drawn - score.listed) for score in scores) else 1


def _tried_apart(room: str) -> dict[str, Any]:
    """Tries a room in a process of its own: what another room imported may change what is tested."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        command = [sys.executable, "-m", "mutants", *sys.argv[1:], "--room", room, "--json", str(told)]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        if code not in (0, 1) or not told.is_file():
            raise RuntimeError(f"{room}: the process ended with {code}")
        return json.loads(told.read_text(encoding="utf-8"))


def _tried(room: str, options: argparse.Namespace) -> dict[str, Any]:
    survivors = Survivors()
    known = _known(options.again, survivors)
    _say(f"{room}: which tests reach what ...")
    covering = measure(ROOMS[room], REPOSITORY / "build" / "mutants" / f"{room}.json")
    if covering.failed:
        _say(f"{room}: fail as things are, and are left out: {', '.join(covering.failed)}")
    warm_up(covering.modules)
    sources = [path for path in ROOMS[room].sources() if options.file in (None, path.name, str(path))]
    places, drawn = draw(sources, options.sample, f"{options.seed} {room}")
    fresh = [mutant for mutant in drawn if mutant.name not in known]
    if options.control:
        fresh = list(map(_unchanged, fresh))
    most_seconds = options.most_seconds or ROOMS[room].most_seconds
    if not options.control:
        check_control(
            room, Trials(covering, most_seconds, lambda *_: None).run(list(map(_unchanged, fresh[:_CONTROLS])))
        )
    _say(f"{room}: {len(fresh)} of {places:,} mutants ...")
    trials = Trials(covering, most_seconds, lambda number, mutant, verdict: _tell(mutant, verdict))
    verdicts = {mutant.name: verdict for mutant, verdict in zip(fresh, trials.run(fresh), strict=True)}
    tried = [(mutant, verdicts.get(mutant.name) or known[mutant.name]) for mutant in drawn]
    score = Score.of(room, places, [(verdict, survivors.reason(vars(mutant))) for mutant, verdict in tried])
    records = [_record(room, mutant, verdict, survivors.reason(vars(mutant))) for mutant, verdict in tried]
    return {"scores": [vars(score)], "mutants": records}


def _unchanged(mutant: Mutant) -> Mutant:
    return replace(mutant, source=(REPOSITORY / mutant.file).read_text(encoding="utf-8"))


def check_control(room: str, verdicts: Sequence[Verdict]) -> None:
    """Refuses a room whose tests fail each time where nothing is changed: every mutant would count as killed.

    One that fails now and then is named.

    Raises:
        RuntimeError: With the tests that failed.
    """
    failed = [verdict.killer or "too slow" for verdict in verdicts if verdict.is_killed]
    if failed and len(failed) == len(verdicts):
        raise RuntimeError(f"{room}: tests fail with nothing changed ({', '.join(failed)}); no mutant was tried")
    if failed:
        _say(f"{room}: failed with nothing changed, and may have killed others: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--room", type=lambda text: text.split(","), default=list(ROOMS), help=f"of {','.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=120, help="mutants a room, 0: all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    parser.add_argument("--file", help="the one file of the room, by its name or path")
    parser.add_argument("--json", type=Path, help="file for the verdicts")
    parser.add_argument(
        "--again", type=Path, help="such a file: what was killed there, or is listed, is not tried again"
    )
    parser.add_argument("--least", type=float, default=0.85, help="share to kill (default: %(default)s)")
    parser.add_argument("--most-seconds", type=float, help="of tests for one mutant (default: the room's)")
    parser.add_argument(
        "--control", action="store_true", help="change nothing: whatever is killed is no mutant's doing"
    )
    options = parser.parse_args()
    if unknown := set(options.room) - set(ROOMS):
        parser.error(f"unknown room {', '.join(sorted(unknown))}; allowed: {', '.join(ROOMS)}")
    return options


def _known(path: Path | None, survivors: Survivors) -> dict[str, Verdict]:
    """What was killed before or is listed, by the name of the mutant."""
    if path is None:
        return {}
    records = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    verdicts = {record["name"]: Verdict(**record["verdict"]) for record in records}
    listed = {record["name"] for record in records if survivors.reason(record)}
    return {name: verdict for name, verdict in verdicts.items() if verdict.is_killed or name in listed}


def _record(room: str, mutant: Mutant, verdict: Verdict, reason: str | None) -> dict[str, object]:
    changed = {"file": mutant.file, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    return {"room": room, "name": mutant.name, **changed, "verdict": vars(verdict), "listed": reason}


def _tell(mutant: Mutant, verdict: Verdict) -> None:
    _say(f"{verdict.end:9} {verdict.seconds:6.1f} s  {mutant.name}" + (f"  [{verdict.killer}]" * bool(verdict.killer)))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
