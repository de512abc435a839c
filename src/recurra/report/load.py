"""Reads finished runs from disk, with the predictions beside them, and groups those that may be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recurra.core.errors import DataError, RecurraError
from recurra.core.files import read_json
from recurra.core.packed import in_study, run_folders
from recurra.core.record import LatencyRecord, SharedParts, read_any_record
from recurra.core.record_parts import TRAINING_SPLIT
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import MOST_WAITED, WAITED, MeasuredExports
from recurra.tasks.profile import part_of
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import uncollected

LATENCY_NAME = "latency.json"
SPEC_NAME = "study.yaml"
STUDY_FILES = "configs/studies"


def read_study(folder: Path | str) -> list[Path]:
    """Finds the run folders of a study, packed or not.

    Raises:
        DataError: If the folder holds no runs.
    """
    runs = run_folders(Path(folder))
    if not runs:
        raise DataError(f"'{folder}' holds no runs; give the --output folder of a study, or a packed study")
    return runs


def read_latency_file(folder: Path) -> dict[str, Any] | None:
    """Content of a study's ``latency.json``, or none if there is none or it is damaged."""
    try:
        values = read_json(folder / LATENCY_NAME)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def study_file_of(folder: Path | str) -> Path | None:
    """The file of a study: ``configs/studies/NAME.yaml`` beside ``results/``, or else its own ``study.yaml``."""
    path = Path(folder).resolve()
    files = (path.parents[1] / STUDY_FILES / f"{path.name}.yaml", path / SPEC_NAME)
    return next((file for file in files if in_study(file)), None)


@uncollected()
def load_runs(
    folders: Iterable[Path], failures: Mapping[str, str] | None = None
) -> tuple[list[LoadedRun], list[dict[str, str]]]:
    """Reads every record that can be read and names every one that cannot.

    Args:
        failures: Reasons that the caller knows (run identifier to message); they win over what the folder tells.

    Returns:
        The finished runs in the order given, and ``run_id`` and ``reason``, in one line, of those without a record.
    """
    finished: list[LoadedRun] = []
    failed, shared = dict(failures or {}), SharedParts()
    for folder in folders:
        path = Path(folder)
        try:
            record = read_any_record(path, shared)
            beside = part_of(record.task, "reporting").beside(path, record)
        except RecurraError as error:
            failed.setdefault(path.name, str(error))
            continue
        finished.append(LoadedRun(path, record, beside))
    return finished, [
        {"run_id": _writable(name), "reason": _writable(" ".join(reason.split()))} for name, reason in failed.items()
    ]


def _writable(text: str) -> str:
    """Replaces lone surrogates, as from a broken file name: they cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_latency(
    latency: Mapping[str, Any] | None, runs: Sequence[LoadedRun]
) -> tuple[Mapping[str, Mapping[str, LatencyRecord]], MeasuredExports, list[str]]:
    """Reads a study's ``latency.json``: measurements of all models and exports side by side in one process.

    Returns:
        Those of the runs by their identifiers, those of exports, and one warning for each entry that cannot be read.
    """
    values, warnings = latency or {}, list[str]()
    of_runs, of_exports, memory = (
        entry if isinstance(entry := values.get(key), Mapping) else {} for key in ("runs", "exports", "memory_mib")
    )

    def read(entries: Mapping[str, Any], failed: str) -> dict[str, dict[str, LatencyRecord]]:
        found = {}
        for name, batches in entries.items():
            try:
                found[name] = {key: LatencyRecord.model_validate(value) for key, value in dict(batches).items()}
            except (ValidationError, TypeError, ValueError):
                warnings.append(f"The study's latency of {failed.format(name)}.")
        return found

    known = {run.record.run_id for run in runs}
    own = "run {} cannot be read; the run's own measurement is shown"
    measured = read({name: entry for name, entry in of_runs.items() if name in known}, own)
    share = values.get(WAITED)
    if measured and isinstance(share, int | float) and share > MOST_WAITED:
        warnings.append(
            f"Other programs had the processors {share:.0%} of the time while models were timed: milliseconds are too "
            "high. Delete latency.json and start the same command again on an idle machine; nothing is trained again."
        )
    exports = read(of_exports, "export {} cannot be read and is left out")
    sizes = {name: float(size) for name, size in memory.items() if isinstance(size, int | float)}
    return measured, MeasuredExports(latency=exports, memory_mib=sizes), warnings


def group_tables(runs: Sequence[LoadedRun], reporting: Reporting) -> list[TableRuns]:
    """Sorts runs into tables of models that may be compared; see `recurra.tasks.reporting.Reporting.key`."""
    members: dict[TableKey, list[LoadedRun]] = defaultdict(list)
    everywhere: list[LoadedRun] = []
    for run in runs:
        if reporting.stands_everywhere(run):
            everywhere.append(run)
        else:
            members[reporting.key(run)].append(run)
    by_data: dict[TableKey, list[TableKey]] = defaultdict(list)
    for key in members:
        by_data[_data(key)].append(key)
    for run in everywhere:
        data = _data(reporting.key(run))
        for key in by_data.get(data) or [data]:
            members[key].append(run)
    titles = {key: reporting.title(key, reporting.variant(of_table[0])) for key, of_table in sorted(members.items())}
    used = list(titles.values())
    return [
        _table_runs(
            key, title if used.count(title) == 1 else f"{title} · data {key.fingerprint}", members[key], reporting
        )
        for key, title in titles.items()
    ]


def _data(key: TableKey) -> TableKey:
    """The key without what a model that stands everywhere does not know."""
    return key._replace(training="", precision="")


def _table_runs(key: TableKey, title: str, members: Sequence[LoadedRun], reporting: Reporting) -> TableRuns:
    warnings: list[str] = []
    headline = _headline_split(members)
    groups = _group_models(members, headline, reporting, warnings)
    if "test" in next(iter(groups.values()))[0].record.data.splits and headline != "test":
        warnings.append(f"The test split was not evaluated for every model: the '{headline}' split is shown first.")
    return TableRuns(key, title, reporting.variant(members[0]), groups, headline, warnings)


def _group_models(
    members: Sequence[LoadedRun], headline: str, reporting: Reporting, warnings: list[str]
) -> dict[str, list[LoadedRun]]:
    """Groups runs by model, one run a seed, in the task's order."""
    by_settings: dict[tuple[str, str], dict[int, LoadedRun]] = defaultdict(dict)
    for run in sorted(members, key=lambda run: (run.record.created, run.record.run_id)):
        label = reporting.label(run)
        seeds = by_settings[label, run.settings_hash]
        if run.record.seed in seeds:
            warnings.append(
                f"{label}, seed {run.record.seed} was run more than once with the same settings: "
                f"the latest ({run.record.run_id}) is shown."
            )
        seeds[run.record.seed] = run
    groups = {key: [seeds[seed] for seed in sorted(seeds)] for key, seeds in by_settings.items()}
    ordered = sorted(groups, key=lambda key: reporting.order(groups[key], headline))
    names = [name for name, _ in ordered]
    labels = [name if names.count(name) == 1 else f"{name} ({digest[:6]})" for name, digest in ordered]
    if len(set(names)) < len(names):
        warnings.append(
            "Some models were run with more than one set of settings; the letters after the name tell them apart, "
            "and the configurations are listed under 'How to reproduce'."
        )
    return {label: groups[key] for label, key in zip(labels, ordered, strict=True)}


def _headline_split(members: Sequence[LoadedRun]) -> str:
    """The split that the comparison is judged on: test if every run has it, else one that selected no checkpoint."""
    measured = [split for split in members[0].record.metrics if split != TRAINING_SPLIT]
    common = [split for split in measured if all(split in run.record.metrics for run in members)]
    selection = members[0].record.data.selection_split
    unused = [split for split in common if split != selection]
    if "test" in common:
        return "test"
    candidates = unused or common or measured
    return candidates[-1] if candidates else ""
