"""Which runs share a table, and which of them are one model over several seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.reporting import Reporting


def group_tables(runs: Sequence[LoadedRun], reporting: Reporting) -> list[TableRuns]:
    """Sorts runs into tables of models that may be compared; see `recurra.tasks.reporting.Reporting.key`.

    Args:
        runs: Of one task.
        reporting: What the task says of them.
    """
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
    common = [split for split in members[0].record.metrics if all(split in run.record.metrics for run in members)]
    selection = members[0].record.data.selection_split
    unused = [split for split in common if split != selection]
    if "test" in common:
        return "test"
    candidates = unused or common or list(members[0].record.metrics)
    return candidates[-1] if candidates else ""
