"""The recommended run of a comparison, and the only function that turns a user's path into a run.

``best.json`` is in the folder of the comparison. Wherever one run is wanted, that folder stands for the run that the
file names, and so does ``best`` in it: ``runs/reviews`` and ``runs/reviews/best``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import StringConstraints

from recurra.core.errors import CheckpointError, near_name
from recurra.core.packed import RECORDS_NAME, RUNS_NAME, SPEC_NAME
from recurra.core.record import RECORD_NAME
from recurra.core.sealed import Sealed

BEST_NAME = "best.json"
# The folder of the recommended model trained once more, with the rows that judged it.
FINAL_NAME = "final"
# The last part of a path that asks for the recommended run.
_BEST = Path(BEST_NAME).stem
_MOST_LISTED = 10
# The file that a run and a study write first.
_CONFIGURATION = "config.yaml"


class BestRunRecord(Sealed):
    """The recommended run of a comparison."""

    schema_version: Literal[1] = 1
    # The final run, or a name in the folder of runs: a file from elsewhere must not point outside the comparison.
    folder: Annotated[str, StringConstraints(pattern=rf"^({FINAL_NAME}|{RUNS_NAME}/[^/\\.][^/\\]*)$", max_length=300)]
    model: str
    seed: int
    why: str


class LocatedRun(NamedTuple):
    """The run that a path stands for, and a line on which run of a comparison it is; empty if it is none."""

    folder: Path
    note: str = ""


def find_run(path: Path | str) -> LocatedRun:
    """Returns the run that a path stands for: the recommended one of a comparison, else the path itself.

    Raises:
        CheckpointError: If a comparison recommends no run, or one that is missing; the error names its runs.
    """
    path = Path(path)
    comparison = path.parent if path.name == _BEST and not path.exists() else path
    file = comparison / BEST_NAME
    if not comparison.is_dir() or (comparison / RECORD_NAME).exists():
        return LocatedRun(path)
    finished = sorted(record.parent for record in (comparison / RUNS_NAME).glob(f"*/{RECORD_NAME}"))
    number, cure = "several runs" if len(finished) > 1 else "one run", _advice(finished)
    if not file.is_file():
        if not finished:
            return LocatedRun(path)
        raise CheckpointError(f"'{comparison}' holds {number}, but '{file}' recommends none; {cure}")
    best = BestRunRecord.read(file, what="a recommendation of ours", cure=cure)
    run = comparison / best.folder
    if not run.resolve().is_relative_to(comparison.resolve()):
        raise CheckpointError(f"'{file}' names '{best.folder}', which lies outside of it; {cure}")
    if not (run / RECORD_NAME).is_file():
        raise CheckpointError(f"'{file}' names '{best.folder}', which is no finished run; {cure}")
    which_run = "the recommended one" if len(finished) > 1 else "it"
    return LocatedRun(run, f"'{comparison}' holds {number}; taking {which_run}, {run} ({best.model})")


def no_run(folder: Path) -> CheckpointError:
    """The error for a folder without a finished run; it says what the folder is and what to do."""
    advice = "start its command again to continue it"
    if (folder / RUNS_NAME).is_dir() and (folder / SPEC_NAME).is_file():
        return CheckpointError(f"'{folder}' is a comparison without a finished run; {advice}")
    if (folder / _CONFIGURATION).is_file():
        return CheckpointError(f"'{folder}' is a run that is not finished; {advice}")
    if (folder / RECORDS_NAME).is_file():
        return CheckpointError(
            f"'{folder}' is a packed study, which keeps no models; give the folder that it came from"
        )
    problem = "is not a run folder" if folder.exists() else f"does not exist{near_name(folder)}"
    return CheckpointError(f"'{folder}' {problem}; give a folder made by 'recurra train'")


def _advice(finished: list[Path]) -> str:
    if not finished:
        return "none of its runs is finished: start its command again"
    rest = f" and {len(finished) - _MOST_LISTED:,} more" if len(finished) > _MOST_LISTED else ""
    return f"give {'one of them' if len(finished) > 1 else 'it'}: {', '.join(map(str, finished[:_MOST_LISTED]))}{rest}"
