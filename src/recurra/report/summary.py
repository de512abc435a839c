"""Turns run records into a `Summary`: groups runs that may be compared, and summarises each group over its seeds."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurra.core.configuration import read_yaml
from recurra.core.environment import without_collector
from recurra.core.errors import CheckpointError, ConfigurationError, DataError, RecurraError
from recurra.core.exits_record import read_exits
from recurra.core.files import read_json
from recurra.core.packed import LATENCY_NAME, SPEC_NAME, in_study, run_folders
from recurra.core.record import AnyRecord, LatencyRecord, RunRecord, read_any_record
from recurra.core.record_parts import ANSWERS, TRAINING_SPLIT
from recurra.data.corpora import recorded_split
from recurra.deployment.export_record import ExportRecord
from recurra.evaluation.predictions import row_key
from recurra.report.statistics import (
    ScoredTables,
    answer_contrasts,
    by_length,
    compare_models,
    judge_leaks,
    pool_contrasts,
    scored_model,
)
from recurra.tasks import part_of
from recurra.tasks.audits import audit_lines, group_of
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns, in_order
from recurra.tasks.measures import Measure, StudyLatency
from recurra.tasks.questions import NO_QUESTIONS, Questions
from recurra.tasks.reporting import Reporting
from recurra.tasks.summary import AuditLine, ModelSummary, Summary, TableSummary

STUDY_FILES, RESULTS = "configs/studies", "results"
# Share of `StudyLatency.waited` above which milliseconds mean little.
MOST_WAITED = 0.05
# Words of a warning for how a model was timed.
TIMED = {
    "side by side": "side by side",
    "earlier": "before their records were packed",
    "own run": "in the models' own runs",
}


def read_study(folder: Path | str) -> list[Path]:
    """Finds the run folders of a study, packed or not.

    Raises:
        DataError: If the folder holds no runs.
    """
    runs = run_folders(Path(folder))
    if not runs:
        raise DataError(f"'{folder}' holds no runs; give the --output folder of a study, or a packed study")
    return runs


def read_latency_file(folder: Path) -> StudyLatency | None:
    """Content of a study's ``latency.json``, None if it is missing or damaged."""
    try:
        return StudyLatency.model_validate(read_json(folder / LATENCY_NAME))
    except (OSError, ValueError):
        return None


def study_file_of(folder: Path | str) -> Path | None:
    """The file of a study: its own ``study.yaml``, or ``configs/studies/NAME.yaml`` two folders up if it has none.

    A study packed in ``results/`` takes the project's file of the same study, which may be newer.
    """
    path = Path(folder).resolve()
    study_file, shared = path / SPEC_NAME, path.parent.parent / STUDY_FILES / f"{path.name}.yaml"
    if not in_study(study_file):
        return shared if shared.is_file() else None
    if study_file.is_file() or path.parent.name != RESULTS or not shared.is_file():
        return study_file
    return shared if read_yaml(shared).get("name") == read_yaml(study_file).get("name") else study_file


@without_collector()
def load_runs(
    folders: Iterable[Path], failures: Mapping[str, str] | None = None, records: Mapping[Path, AnyRecord] | None = None
) -> tuple[list[LoadedRun], list[dict[str, str]]]:
    """Reads every record that can be read and names the others.

    Args:
        failures: Reasons that the caller knows (run identifier to message); they win over the folder's reason.
        records: Records that the caller has read, by folder.

    Returns:
        The finished runs in the order given, and ``run_id`` and ``reason``, in one line, of those without a record.
    """
    finished: list[LoadedRun] = []
    failed = dict(failures or {})
    for folder in folders:
        try:
            record = (records or {}).get(folder) or read_any_record(folder)
            exits = read_exits(folder)
            if exits is not None and exits.run_id != record.run_id:
                raise CheckpointError(
                    f"the exits kept in '{folder}' are of run '{exits.run_id}', but its record is of "
                    f"'{record.run_id}'; measure them again: recurra exits RUN --keep"
                )
            finished.append(LoadedRun(folder, record, exits))
        except RecurraError as error:
            failed.setdefault(folder.name, str(error))
    return finished, [
        {"run_id": _writable(name), "reason": _writable(" ".join(reason.split()))} for name, reason in failed.items()
    ]


def _writable(text: str) -> str:
    """Replaces lone surrogates, as from a broken file name: they cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _busy(latency: StudyLatency, runs: Sequence[LoadedRun], study: Path | None) -> list[str]:
    """Warns if other programs ran while models were timed and the figures are shown."""
    if (latency.waited or 0.0) <= MOST_WAITED or not any(run.record.run_id in latency.runs for run in runs):
        return []
    again = ""
    if study is not None and (study / LATENCY_NAME).is_file():
        again = f" Delete {LATENCY_NAME} and start the same command again on an idle machine; nothing is trained again."
    return [
        f"Other programs used the processors {latency.waited:.0%} of the time while models were timed: milliseconds "
        f"are too high.{again}"
    ]


def word_counts(
    runs: Sequence[LoadedRun], reporting: Reporting, data_root: Path | None
) -> dict[bytes, NDArray[np.int64]]:
    """Word counts of the rows that classifiers are reported on (of all folds together); reads the data again.

    Raises:
        ConfigurationError: If there is no such run.
        RecurraError: If the data are not available, or have changed.
    """
    reported: dict[tuple[str, ...], list[RunRecord]] = {}
    for table in group_tables(reporting.pooled(runs), reporting):
        for run in table.runs:
            if records := [part.record for part in run.parts if isinstance(part.record, RunRecord)]:
                reported[table.headline, *(record.data.fingerprint for record in records)] = records
    if not reported:
        raise ConfigurationError("'--by-length' is for classifiers, and no run here is one; leave it out")
    words = {}
    for (headline, *_), records in reported.items():
        splits = [recorded_split(record, headline, data_root) for record in records]
        ids = [row_id for split in splits for row_id in split.ids]
        labels = np.concatenate([split.labels for split in splits])
        counts = np.concatenate([split.word_counts for split in splits])
        order = in_order(ids) if len(splits) > 1 else list(range(len(ids)))
        words[row_key([ids[row] for row in order], labels[order])] = counts[order]
    return words


def group_tables(runs: Sequence[LoadedRun], reporting: Reporting) -> list[TableRuns]:
    """Sorts runs into tables of models that may be compared; see `recurra.tasks.reporting.Reporting.key`."""
    members: dict[TableKey, list[LoadedRun]] = defaultdict(list)
    everywhere: list[tuple[TableKey, LoadedRun]] = []
    names = data_names(runs)
    for run in runs:
        key = reporting.key(run)
        key = key._replace(data=names[key.data, key.fingerprint])
        if reporting.stands_everywhere(run):
            everywhere.append((_data(key), run))
        else:
            members[key].append(run)
    by_data: dict[TableKey, list[TableKey]] = defaultdict(list)
    for key in members:
        by_data[_data(key)].append(key)
    for data, run in everywhere:
        for key in by_data.get(data) or [data]:
            members[key].append(run)
    titles = {key: reporting.title(key, reporting.variant(group[0])) for key, group in sorted(members.items())}
    used_titles, tables = list(titles.values()), []
    for key, title in titles.items():
        full_title = title if used_titles.count(title) == 1 else f"{title} · data {key.fingerprint}"
        headline, warnings = _headline_split(members[key]), list[str]()
        groups = _group_models(members[key], headline, reporting, warnings)
        if "test" in members[key][0].record.data.splits and headline != "test":
            warnings.append(f"The test split was not evaluated for every model: the '{headline}' split is shown first.")
        warnings += _trained_apart(groups)
        tables.append(TableRuns(key, full_title, reporting.variant(members[key][0]), groups, headline, warnings))
    return tables


def data_names(runs: Sequence[LoadedRun]) -> dict[tuple[str, str], str]:
    """Names of data, by their name in the records and their fingerprint: the recorded name, which has no folder.

    Several files of one name get as many of their folders as tell them apart: ``x/t.csv``, ``y/t.csv``.
    """
    files: dict[str, dict[str, Path]] = defaultdict(dict)
    for run in runs:
        data = run.record.data
        files[data.name].setdefault(data.fingerprint, Path(run.data_settings.get("name") or data.name))
    names = {}
    for name, paths in files.items():
        distinct, folders = len({path.parent for path in paths.values()}), 0
        while len({_last(path, folders) for path in paths.values()}) < distinct:
            folders += 1
        for fingerprint, path in paths.items():
            names[name, fingerprint] = (_last(path, folders) / name).as_posix()
    return names


def _last(path: Path, folders: int) -> Path:
    """The innermost ``folders`` folders of a file."""
    return Path(*path.parts[:-1][-folders:]) if folders else Path()


def _data(key: TableKey) -> TableKey:
    """The key without training and precision, which a model that stands in every table does not have."""
    return key._replace(training="", precision="")


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


def _trained_apart(groups: Mapping[str, Sequence[LoadedRun]]) -> list[str]:
    """Warns of models trained on entirely different processors; fits without epochs do not count."""
    labels: dict[frozenset[str], list[str]] = defaultdict(list)
    for label, runs in groups.items():
        environments = [part.record.environment for run in runs for part in run.parts if part.record.training.epochs]
        labels[frozenset(environment.accelerator or environment.cpu for environment in environments)].append(label)
    labels.pop(frozenset(), None)
    if not any(first.isdisjoint(second) for first, second in itertools.combinations(labels, 2)):
        return []
    where = "; ".join(f"{', '.join(names)} on {' and '.join(sorted(devices))}" for devices, names in labels.items())
    return [f"Trained on different processors, which can change a figure as much as another seed: {where}."]


def _headline_split(members: Sequence[LoadedRun]) -> str:
    """The split that the comparison is judged on: test if every run has it, else one that selected no checkpoint."""
    measured = [split for split in members[0].record.metrics if split != TRAINING_SPLIT]
    common = [split for split in measured if all(split in run.record.metrics for run in members)]
    selection = members[0].record.data.selection_split
    unused = [split for split in common if split != selection]
    if "test" in common:
        return "test"
    return (unused or common or measured or [""])[-1]


MIB = 2**20


@dataclass(frozen=True)
class _Study:
    """Inputs from which the tables of a study are made.

    Attributes:
        base: Its folder; folders of runs inside it are named relative to it.
        scored: Its models, by table and label, read once.
    """

    reporting: Reporting
    questions: Questions
    latency: StudyLatency
    exports: Sequence[ExportRecord]
    base: Path | None
    scored: ScoredTables


def _model(study: _Study, table: TableRuns, label: str, measure: Measure, turned: Sequence[AuditLine]) -> ModelSummary:
    """Summarises the runs of one model, one a seed.

    ``turned`` are lines that `judge_leaks` made fail: on the data they concern all models, else those that were looked
    at.
    """
    reporting, headline, runs = study.reporting, table.headline, table.groups[label]
    model = runs[-1].record.model
    parts = [part for run in runs for part in run.parts]
    timings = {part.record.run_id: timing for part in parts if (timing := study.latency.runs.get(part.record.run_id))}
    side_by_side = [timing for run_id, timing in timings.items() if run_id not in study.latency.earlier]
    splits = [split for split in runs[0].record.metrics if all(split in run.record.metrics for run in runs)]
    audit_names = {audit.name for run in runs for audit in run.record.audits}
    failed = [audit.name for run in runs for audit in run.record.failed_audits()]
    failed += [line.name for line in turned if line.scope == "data" or line.name in audit_names]
    common = ModelSummary(
        label=label,
        preset=model.preset,
        kind=model.kind,
        description=model.description,
        color=list(table.groups).index(label),
        runs=[replace(part, folder=_relative(part.folder, study.base)) for part in parts],
        seeds=[run.record.seed for run in runs],
        scores={
            split: reporting.score(split, [run.record.metrics[split] for run in runs], measure) for split in splits
        },
        parameters=model.parameters,
        embedding_parameters=model.embedding_parameters,
        non_embedding_parameters=model.non_embedding_parameters,
        flops_per_token=model.flops_per_token,
        file_size_mib=statistics.median(run.record.model.file_size_bytes for run in runs) / MIB,
        # If the study timed any of the runs side by side, only those measurements count.
        latency=_medians(side_by_side or list(timings.values()) or [part.record.latency for part in parts]),
        timed="side by side" if side_by_side else "earlier" if timings else "own run",
        training_wall_s=statistics.fmean(part.record.training.wall_s for part in parts),
        peak_memory_mib=max(part.record.training.peak_memory_mib for part in parts),
        fronts=[],
        audited=any(audit.status != "skipped" for run in runs for audit in run.record.audits),
        failed_audits=list(dict.fromkeys(failed)),
        failed_groups=list(dict.fromkeys(group_of(name, runs[0].record.data.splits)[0] for name in failed)),
        barred=study.scored[table.key][label].barred,
        price=study.questions.prices.get(model.preset),
        exits=[part.exits for part in parts if part.exits is not None],
    )
    return reporting.model(common, runs, headline)


def _relative(folder: Path, base: Path | None) -> Path:
    return folder.relative_to(base) if base is not None and folder.is_relative_to(base) else folder


def _medians(sources: Sequence[Mapping[str, LatencyRecord]]) -> dict[str, LatencyRecord]:
    """Latency by batch size: times are medians over sources, other fields those of the first source."""
    by_batch: dict[int, list[LatencyRecord]] = defaultdict(list)
    for source in sources:
        for timing in source.values():
            by_batch[timing.batch_size].append(timing)
    return {
        str(batch): items[0].model_copy(
            update={
                "median_ms": statistics.median(item.median_ms for item in items),
                "p90_ms": statistics.median(item.p90_ms for item in items),
                "mean_ms": statistics.median(item.mean_ms for item in items),
                "p99_ms": None,
            }
        )
        for batch, items in sorted(by_batch.items())
    }


def latency_warnings(models: Sequence[ModelSummary], runs: Sequence[LoadedRun]) -> list[str]:
    """Warnings about latencies of a table that cannot be compared."""
    timings = [timing for model in models for timing in model.latency.values()]
    ways = {model.timed for model in models if model.latency}
    warnings = []
    if len(ways) > 1:
        warnings.append(
            f"Some latencies were measured {' and some '.join(TIMED[way] for way in TIMED if way in ways)}: "
            "do not compare the two."
        )
    elif len(models) > 1 and "own run" in ways:
        machines = {(run.record.environment.cpu, run.record.environment.accelerator) for run in runs}
        where = "on different machines" if len(machines) > 1 else "one after another"
        warnings.append(f"Latencies were measured in each model's own run, {where}: ratios below 1.2 are noise.")
    if len({(timing.device, timing.threads) for timing in timings}) > 1:
        warnings.append("Latencies were measured on different devices or with different numbers of threads.")
    untimed = [model.label for model in models if not model.latency and model.kind != ANSWERS]
    if timings and untimed:
        warnings.append(f"Not timed: {', '.join(untimed)}.")
    return warnings


SIZE, PRICE = "size", "price"


def latency_cost(batch: int | str) -> str:
    """Name of the cost "milliseconds a text at this batch size"."""
    return f"latency {batch}"


def pareto_front(merit: Mapping[str, float], cost: Mapping[str, float]) -> list[str]:
    """Names on the Pareto front of merit (more is better) and cost (less is better).

    A model is off the front if another is at least as good and at least as cheap, and better in one of the two.
    """
    names = sorted((name for name in merit if name in cost), key=lambda name: (cost[name], -merit[name]))
    points = {name: (merit[name], -cost[name]) for name in names}
    beaten = {
        name
        for name, (quality, saved) in points.items()
        if any(other != (quality, saved) and other[0] >= quality and other[1] >= saved for other in points.values())
    }
    return [name for name in names if name not in beaten]


def costs_of(models: Sequence[ModelSummary], batch_sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Every measure of cost: milliseconds a text at each batch size, MiB on disk, and prices; by measure and label.

    A model that is known by its answers has no size, and the price of a single model is left out.
    """
    costs = {
        latency_cost(batch): {
            model.label: model.latency[str(batch)].median_ms for model in models if str(batch) in model.latency
        }
        for batch in batch_sizes
    }
    prices = {model.label: model.price for model in models if model.price is not None}
    sizes = {model.label: model.file_size_mib for model in models if model.kind != ANSWERS}
    return {**costs, SIZE: sizes, **({PRICE: prices} if len(prices) > 1 else {})}


def mark_fronts(
    models: Sequence[ModelSummary], split: str, batch_sizes: Sequence[int], measure: Measure
) -> list[ModelSummary]:
    """Notes on each model which fronts of its table it is on; by means, whether or not a gap is supported.

    A model that may not be compared is on no front and keeps no other model off one.
    """
    merit = {
        model.label: measure.merit(estimate.mean)
        for model in models
        if not model.barred and (estimate := measure.of(model, split)) is not None
    }
    fronts = {name: pareto_front(merit, cost) for name, cost in costs_of(models, batch_sizes).items()}
    return [
        replace(model, fronts=[name for name, labels in fronts.items() if model.label in labels]) for model in models
    ]


def reporting_of(task: str) -> Reporting:
    """Part of a task that serves the report."""
    return part_of(task, "reporting")


@without_collector()
def summarise(
    runs: Sequence[LoadedRun],
    latency: StudyLatency | None = None,
    failed: Sequence[dict[str, str]] = (),
    base: Path | None = None,
    *,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> Summary:
    """Summarises runs into tables of models that may be compared.

    Args:
        latency: Latency of the study, preferred to that of a single run.
        base: The study's folder. Folders of runs inside it are named relative to it.

    Raises:
        ConfigurationError: If the runs lack the measure that the study judges by.
        DataError: If the runs are of several tasks.
    """
    tasks = sorted({run.record.task for run in runs})
    if len(tasks) > 1:
        raise DataError(f"the runs are of several tasks ({', '.join(tasks)}); report the runs of each task separately")
    latency = latency or StudyLatency()
    tables: list[TableSummary] = []
    if tasks:
        reporting = reporting_of(tasks[0])
        groups = group_tables(reporting.pooled(runs), reporting)
        measures = {table.key: reporting.measure_of(table, questions) for table in groups}
        scored = {
            table.key: {
                label: scored_model(label, group, table.headline, reporting, measure=measures[table.key])
                for label, group in table.groups.items()
            }
            for table in groups
        }
        study = _Study(reporting, questions, latency, exports, base, scored)
        tables = [_table(study, table, measures[table.key]) for table in groups]
    return Summary(
        tables=tables,
        machines=_machines(runs),
        failed_runs=list(failed),
        warnings=_busy(latency, runs, base),
        task=tasks[0] if tasks else "",
        pooled=pool_contrasts(tables),
    )


def _table(study: _Study, table: TableRuns, measure: Measure) -> TableSummary:
    reporting, questions, scored = study.reporting, study.questions, study.scored
    key, headline, runs = table.key, table.headline, table.runs
    tests = compare_models(scored[key], measure)
    graded = audit_lines(table.groups)
    audits = judge_leaks(graded, runs, scored[key], tests, measure)
    turned = [line for line, before in zip(audits, graded, strict=True) if line.status != before.status]
    models = [_model(study, table, label, measure, turned) for label in table.groups]
    batches = sorted({timing.batch_size for model in models for timing in model.latency.values()})
    models = mark_fronts(models, headline, batches, measure)
    contrasts = answer_contrasts(questions.contrasts, key, scored, measure, tests)
    tokenizer = next((run.record.data.tokenizer for run in runs if run.record.data.tokenizer), {})
    common = TableSummary(
        key=reporting.key_text(key),
        title=table.title,
        data=key.data,
        protocol=key.protocol,
        variant=table.variant,
        subset=reporting.subset(runs[0]),
        training=key.training,
        precision=key.precision,
        fingerprint=key.fingerprint,
        tokenizer=dict(tokenizer),
        splits=reporting.split_lines(runs[0]),
        notes=list(dict.fromkeys(note for run in runs for note in run.record.data.notes)),
        headline_split=headline,
        judged_by=measure,
        reported_splits=list(dict.fromkeys(split for model in models for split in model.scores)),
        batch_sizes=batches,
        models=models,
        tests=tests,
        audits=audits,
        contrasts=contrasts,
        by_length=by_length(contrasts, key, scored, questions.words, measure),
        warnings=[*table.warnings, *latency_warnings(models, runs)],
        exports=reporting.exports(table, study.exports, study.latency, questions),
    )
    summary = reporting.table(common, table, questions)
    evaluated = any(headline in model.scores for model in models)
    no_conclusion = "No model was evaluated on a common split: nothing can be concluded."
    conclusion = reporting.conclude(summary) if evaluated else no_conclusion
    summary = replace(summary, conclusion=conclusion, advice=reporting.advise(summary, questions.limits))
    return reporting.examined(summary, table, questions)


def _machines(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    machines: dict[str, dict[str, Any]] = {}
    for run in runs:
        values = run.record.environment.model_dump(exclude={"precision"})
        machines.setdefault(str(values), {**values, "runs": 0})["runs"] += 1
    return list(machines.values())
