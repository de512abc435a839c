"""Which runs share a table, and which of them are one model over several seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recurra.study.report.runs import LoadedRun

TableKey = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class TableRuns:
    """The runs of one table.

    Attributes:
        key: Corpus, split protocol, fingerprint of the data, training protocol, precision.
        title: Heading, unlike that of any other table.
        variant: What part of the corpus was trained on, in words; empty for all of it.
        groups: The runs of each model, one a seed, by label.
        headline: The split that the comparison is judged on.
        warnings: What a reader has to know about the grouping.
    """

    key: TableKey
    title: str
    variant: str
    groups: dict[str, list[LoadedRun]]
    headline: str
    warnings: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[LoadedRun]:
        """All runs, model by model."""
        return [run for group in self.groups.values() for run in group]


def group_tables(runs: Sequence[LoadedRun]) -> list[TableRuns]:
    """Sorts runs into tables of models that may be compared.

    Runs share a table if corpus, split protocol, content of the splits, training protocol and precision are the same.
    A linear model knows neither training protocol nor precision and stands in every table of its data.
    """
    members: dict[TableKey, list[LoadedRun]] = defaultdict(list)
    linear: list[LoadedRun] = []
    for run in runs:
        if run.record.model.kind == "linear":
            linear.append(run)
        else:
            members[_table_key(run)].append(run)
    by_data: dict[tuple[str, ...], list[TableKey]] = defaultdict(list)
    for key in members:
        by_data[key[:3]].append(key)
    for run in linear:
        data = _table_key(run)[:3]
        for key in by_data.get(data) or [(*data, "", "")]:
            members[key].append(run)
    titles = {key: _title(key, of_table[0]) for key, of_table in sorted(members.items())}
    taken = list(titles.values())
    return [
        _table_runs(key, title if taken.count(title) == 1 else f"{title} · data {key[2]}", members[key])
        for key, title in titles.items()
    ]


def _table_runs(key: TableKey, title: str, members: Sequence[LoadedRun]) -> TableRuns:
    warnings: list[str] = []
    groups = _group_models(members, warnings)
    headline = _headline_split(members)
    if "test" in next(iter(groups.values()))[0].record.data.splits and headline != "test":
        warnings.append(f"The test split was not evaluated for every model: the '{headline}' split is shown first.")
    return TableRuns(key, title, _variant(members[0]), groups, headline, warnings)


def _table_key(run: LoadedRun) -> TableKey:
    record = run.record
    return (record.data.name, record.data.protocol, record.data.fingerprint, run.protocol, record.environment.precision)


def _variant(run: LoadedRun) -> str:
    """What part of the corpus was trained on, in words; empty for all of it."""
    data = run.record.config.get("data")
    if not isinstance(data, dict):
        return ""
    parts = []
    fraction = data.get("fraction")
    if isinstance(fraction, (int, float)) and fraction != 1:
        parts.append(f"{fraction:.3g} of train")
    if data.get("length_tail"):
        parts.append(f"{data['length_tail']} {data.get('tail_fraction', '')} by words".replace("  ", " "))
    if data.get("split_seed"):
        parts.append(f"split seed {data['split_seed']}")
    return ", ".join(parts)


def _title(key: TableKey, run: LoadedRun) -> str:
    name, protocol, _, training, precision = key
    parts = [name, f"{protocol} protocol", _variant(run), f"{training} training" if training else "", precision]
    return " · ".join(part for part in parts if part)


def _group_models(members: Sequence[LoadedRun], warnings: list[str]) -> dict[str, list[LoadedRun]]:
    """Groups runs by model, one run a seed: linear first, then by falling number of parameters."""
    by_settings: dict[tuple[str, str], dict[int, LoadedRun]] = defaultdict(dict)
    for run in sorted(members, key=lambda run: (run.record.created, run.record.run_id)):
        seeds = by_settings[(run.record.model.preset, run.settings_hash)]
        if run.record.seed in seeds:
            warnings.append(
                f"{run.record.model.preset}, seed {run.record.seed} was run more than once with the same settings: "
                f"the latest ({run.record.run_id}) is shown."
            )
        seeds[run.record.seed] = run
    ordered = sorted(by_settings, key=lambda key: _model_order(key, by_settings[key]))
    presets = [preset for preset, _ in ordered]
    labels = [preset if presets.count(preset) == 1 else f"{preset} ({digest[:6]})" for preset, digest in ordered]
    if len(set(presets)) < len(presets):
        warnings.append(
            "Some models were run with more than one set of settings; the letters after the name tell them apart, "
            "and the configurations are listed under 'How to reproduce'."
        )
    return {
        label: [by_settings[key][seed] for seed in sorted(by_settings[key])]
        for label, key in zip(labels, ordered, strict=True)
    }


def _model_order(key: tuple[str, str], seeds: Mapping[int, LoadedRun]) -> tuple[bool, int, str, str]:
    model = next(iter(seeds.values())).record.model
    return (model.kind != "linear", -model.parameters, *key)


def _headline_split(members: Sequence[LoadedRun]) -> str:
    """The split that the comparison is judged on: test if every run has it, else one that selected no checkpoint."""
    common = [split for split in members[0].record.metrics if all(split in run.record.metrics for run in members)]
    selection = members[0].record.data.selection_split
    unused = [split for split in common if split != selection]
    if "test" in common:
        return "test"
    candidates = unused or common or list(members[0].record.metrics)
    return candidates[-1] if candidates else ""
