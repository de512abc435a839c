"""Studies carried out and reported; and one call from a labelled file to a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import Parameter, signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recurra.core.best_run import BEST_NAME, BestRunRecord
from recurra.core.errors import RecurraError, RunError
from recurra.core.formatting import duration
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, EpochRecord
from recurra.data.configuration import DataConfig, RunData
from recurra.data.corpora import load_dataset
from recurra.data.in_memory import rows_in_memory
from recurra.data.tokenization import TRAINED
from recurra.deployment.classifier import Classifier
from recurra.deployment.export_record import load_export_records
from recurra.ladder import Entry, Ladder, choose_models
from recurra.report.files import write_study_report
from recurra.report.load import group_tables, load_runs, uncollected
from recurra.report.render.notebook import results_frame, results_html, results_text
from recurra.report.summary import plain_summary, reporting_of, summarise
from recurra.study.assignments import Assignments, sort_keywords
from recurra.study.cluster import Cluster
from recurra.study.export_plan import PlannedExport
from recurra.study.plan import ROWS_NAME
from recurra.study.planning import within_minutes
from recurra.study.process import Outcome
from recurra.study.spec import StudySpec
from recurra.study.study import StudyOutcome, look_at_outcome, read_latency_file, refuse_folder_of_another, run_study
from recurra.tasks.base import Given, Task, task
from recurra.tasks.loaded_runs import LoadedRun
from recurra.tasks.machine import Machine
from recurra.tasks.profile import profile_of_values
from recurra.tasks.questions import Judging, Limits, Questions
from recurra.tasks.runs import resolve_model
from recurra.tasks.summary import Summary

# The longest review of the demo corpus has fewer tokens.
DEMO_MAX_LENGTH = 64
DEMO_VOCAB_SIZE = 2000
# A larger file of a user's is not read once more to show some of its rows.
LARGEST_LOOKED_AT = 2**26
DEMO_MODELS = ("linear", "baseline-tiny", "recurrent-tiny")


@dataclass(frozen=True)
class BestRun:
    """The run to take if nothing else is asked.

    Attributes:
        model: Its model, as tables name it.
        folder: Where it lies.
        seed: Of the seeds of its model the one that did best on the rows that choose the epoch, never on test rows.
        why: Why this model.
    """

    model: str
    folder: Path
    seed: int
    why: str

    def classifier(self, **options: Any) -> Classifier:
        """Loads it; ``options`` are those of `recurra.deployment.classifier.Classifier.from_run`."""
        return Classifier.from_run(self.folder, **options)


@dataclass(frozen=True, repr=False)
class StudyResult:
    """What a study gave.

    Attributes:
        output: The study's folder.
        outcomes: What became of each planned run, in the plan's order.
        report: The HTML file, if there is at least one record.
        shown: What every table of the report is made from.
        exports: What became of each export that the study asks for.
        timing_error: Why models could not be timed side by side; none if they were, or were not to be.
    """

    output: Path
    outcomes: list[Outcome]
    report: Path | None
    shown: Summary
    exports: Sequence[PlannedExport] = ()
    timing_error: str | None = None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Plain values behind every table, for ``--json``; folders of runs as a reader here may open them."""
        values = plain_summary(self.shown)
        for table in values["tables"]:
            for model in table["models"]:
                for run in model["runs"]:
                    run["folder"] = (self.output / run["folder"]).as_posix()
        return values

    @cached_property
    def best(self) -> BestRun:
        """The recommended run of the first table: of the smallest model within a point of the best one.

        Raises:
            RunError: If no run is finished, every model failed an audit of its own or is no classifier, or none stays
                within the limits.
        """
        table = next(iter(self.shown.tables), None)
        advice = None if table is None else table.recommended
        if table is None or advice is None:
            raise RunError(
                f"no run of '{self.output}' can be recommended: none is finished, passed its own audits and learned "
                "what it was to"
            )
        if not advice.chooses:
            raise RunError(f"no run of '{self.output}' can be recommended: {advice.why.rstrip('.')}")
        model = next(model for model in table.models if model.label == advice.choice)
        of_model = {run.run_id for run in model.runs}
        done = [(each.record, each) for each in self.outcomes if each.record is not None]
        record, outcome = max((pair for pair in done if pair[0].run_id in of_model), key=lambda pair: _merit(pair[0]))
        return BestRun(model.label, outcome.folder, record.seed, advice.why)

    @property
    def table(self) -> Any:
        """The results as a pandas ``DataFrame``, a row a model; see `recurra.report.render.notebook.results_frame`."""
        return results_frame(self.shown)

    def __repr__(self) -> str:
        return results_text(self.shown, self._lines())

    def _repr_html_(self) -> str:
        return results_html(self.shown, self._lines())

    def _lines(self) -> list[str]:
        """What is said under the results."""
        lines = [f"failed: {outcome.config.run_id}: {outcome.error}" for outcome in self.failed_runs]
        lines += [f"audit failed: {name}" for name in self.failed_audits]
        with contextlib.suppress(RunError):
            lines.append(f"best: {self.best.model} ({self.best.why.rstrip('.')}), in {self.best.folder}")
        return [*lines, f"report: {self.report}" if self.report else "no report: no run is finished"]

    @property
    def unmet_limits(self) -> list[str]:
        """Of each table in which no model stays within the limits: which comes nearest."""
        found = [table.recommended for table in self.shown.tables if table.recommended is not None]
        return [advice.why.rstrip(".") for advice in found if not advice.chooses]

    @property
    def failed_exports(self) -> list[PlannedExport]:
        """Exports of finished runs that could not be made."""
        return [export for export in self.exports if export.state == "failed"]

    @property
    def failed_runs(self) -> list[Outcome]:
        """Runs without a record."""
        return [outcome for outcome in self.outcomes if outcome.record is None]

    @property
    def failed_audits(self) -> list[str]:
        """Names of failed audits, each once, with the data they concern."""
        names: dict[str, None] = {}
        for outcome in self.outcomes:
            if outcome.record is not None:
                for audit in outcome.record.failed_audits():
                    names[f"{outcome.record.data.name} ({outcome.record.data.protocol}): {audit.name}"] = None
        # What fails only when models are held against each other.
        for table in self.shown.tables:
            for line in table.audits:
                if line.status == "failed":
                    names[f"{table.data} ({table.protocol}): {line.name}"] = None
        return list(names)


def _merit(record: AnyRecord) -> tuple[float, float]:
    """How well a run did on the rows that chose its epoch, by what chose it; of equals the lowest seed is first."""
    kept = next((epoch for epoch in record.training.history if epoch.epoch == record.training.best_epoch), None)
    if kept is None:
        return 0.0, -record.seed
    if isinstance(kept, EpochRecord) and record.config["protocol"].get("selection") == "accuracy":
        return kept.validation_accuracy, -record.seed
    return -kept.validation_loss, -record.seed


def carry_out(
    spec: StudySpec,
    output: Path,
    machine: Machine,
    *,
    workers: int = 0,
    reporter: Reporter,
    command: str,
    cluster: Cluster | None = None,
    note: str = "",
    estimate: bool = False,
) -> StudyResult:
    """Runs what a study lacks and writes its report; see `recurra.study.study.run_study`.

    Args:
        spec: What to run.
        output: The study's folder.
        machine: Where data lie, threads of a run.
        workers: Runs at once; 0 chooses.
        reporter: For progress.
        command: The command line, shown in the report.
        cluster: Where to run; none is this machine.
        note: What was chosen for the study, said before the first run starts.
        estimate: Whether time and memory of each model are estimated and said before the first run starts.

    Raises:
        RecurraError: As `run_study` does.
    """
    found = run_study(
        spec,
        output,
        machine,
        workers=workers,
        reporter=reporter,
        cluster=cluster,
        note=note,
        estimate=estimate,
        tell=partial(_headline, spec),
    )
    return _report(spec, output, found, command)


def _headline(spec: StudySpec, outcome: Outcome) -> str:
    """What a run is worth by what the study is judged by, and what it took."""
    record = outcome.record
    if record is None:
        return f"failed: {outcome.error}"
    reporting = reporting_of(record.task)
    (table,) = group_tables([LoadedRun(outcome.folder, record)], reporting)
    took = duration(record.training.wall_s if record.wall_s is None else record.wall_s)
    if not table.headline:
        return f"done in {took}"
    measure = reporting.measure_of(table, spec.judging)
    value = measure.value(measure.read(record.metrics[table.headline]))
    return f"{measure.in_text} {value} on {table.headline}, {took}"


def report_study(spec: StudySpec, output: Path, *, command: str) -> StudyResult:
    """Writes the report of what is done and runs nothing.

    Raises:
        CheckpointError: If a record cannot be trusted.
    """
    return _report(spec, output, look_at_outcome(spec, output), command)


def _report(spec: StudySpec, output: Path, found: StudyOutcome, command: str) -> StudyResult:
    report, shown = study_report(spec, output, command=command, outcomes=found.outcomes)
    result = StudyResult(output, found.outcomes, report, shown, found.exports, found.timing_error)
    _keep_best(result)
    return result


def _keep_best(result: StudyResult) -> None:
    """Writes down which run is recommended; of several tables, as of several data sets, none is."""
    try:
        best = result.best if len(result.shown.tables) == 1 else None
    except RunError:
        best = None
    path = result.output / BEST_NAME
    if best is None:
        path.unlink(missing_ok=True)
        return
    folder = best.folder.relative_to(result.output).as_posix()
    BestRunRecord(folder=folder, model=best.model, seed=best.seed, why=best.why).write(path)


def study_report(
    spec: StudySpec, output: Path, *, command: str, outcomes: Sequence[Outcome]
) -> tuple[Path | None, Summary]:
    """Writes report, figures and tables from the records of a study; returns the page's path and what it shows."""
    failures = {outcome.config.run_id: outcome.error or "no record" for outcome in outcomes if outcome.record is None}
    limits = Limits(max_mib=spec.max_mib, max_ms=spec.max_ms)
    questions = Questions(spec.contrasts, spec.published, limits, spec.judging, *_own_texts(spec))
    with uncollected():
        runs, failed = load_runs([outcome.folder for outcome in outcomes], failures)
        exports = load_export_records(output) if spec.exports else []
        summary = summarise(runs, read_latency_file(output), failed, base=output, questions=questions, exports=exports)
    if len(failures) == len(outcomes):
        return None, summary
    return write_study_report(output, summary, runs, title=spec.title or spec.name, command=command), summary


def _own_texts(spec: StudySpec) -> tuple[dict[str, dict[str, str]], str]:
    """Texts of a user's only file by split and identity, and the fingerprint of these data; else nothing."""
    config = spec.data[0]
    path = Path(config.name)
    if len(spec.data) > 1 or not isinstance(config, DataConfig) or not path.is_file():
        return {}, ""
    if path.stat().st_size > LARGEST_LOOKED_AT:
        return {}, ""
    try:
        found = load_dataset(config)
    except RecurraError:
        return {}, ""
    texts = {name: dict(zip(split.ids, split.texts, strict=True)) for name, split in found.splits.items()}
    return texts, found.fingerprint


def comparison(
    data: RunData,
    *,
    models: Sequence[Entry],
    protocol: str,
    protocol_overrides: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    precision: str = "fp32",
    title: str = "",
    limits: Limits | None = None,
    judging: Judging | None = None,
) -> StudySpec:
    """Returns the study that compares models on one data set."""
    return StudySpec.parse(
        {
            "name": study_name(data.name),
            "title": title,
            "data": [data.plain()],
            "models": list(models),
            "protocols": [protocol],
            "protocol_overrides": list(protocol_overrides),
            "seeds": list(seeds),
            "precision": precision,
            **(limits.model_dump(exclude_none=True) if limits else {}),
            **(judging.model_dump(exclude_none=True) if judging else {}),
        },
        source="comparison",
    )


def plan_comparison(
    name: str,
    chosen: Task,
    ladder: Ladder,
    assigned: Assignments,
    options: Given = MappingProxyType({}),
    *,
    seeds: int | Sequence[int] | None = None,
    precision: str = "fp32",
    title: str = "",
    limits: Limits | None = None,
    judging: Judging | None = None,
    minutes: float | None = None,
    output: Path,
    machine: Machine,
    workers: int = 0,
    reporter: Reporter,
) -> tuple[StudySpec, str]:
    """From what a user named to the study that answers it, and a line on what was chosen.

    Args:
        name: A file or corpus.
        chosen: What the data are for.
        ladder: The models.
        assigned: Keys of protocol and data.
        options: Options of a command line that concern the data.
        seeds: Their number, or the seeds; none takes as many as the ladder says.
        precision: ``fp32`` or ``bf16``.
        title: Of the report.
        limits: What the recommended model may cost.
        judging: What the models are judged by.
        minutes: Budget of training; see `recurra.study.planning.within_minutes`.
        output: Folder of the study.
        machine: Where data lie, threads of a run.
        workers: Runs at once; 0 chooses.
        reporter: For progress.

    Raises:
        RecurraError: If the data or the configuration cannot be used.
    """
    readers = [resolve_model(each) for each in ladder.models]
    config, note = chosen.configure_data(name, options, assigned.data, machine.data_root, models=readers)
    training, why = ladder.protocol_for(config, machine.data_root)
    spec = comparison(
        config,
        models=ladder.models,
        protocol=training,
        protocol_overrides=assigned.protocol,
        seeds=list(seeds) if isinstance(seeds, Iterable) else range(seeds or ladder.seeds),
        precision=precision,
        title=title,
        limits=limits,
        judging=judging,
    )
    timed = ""
    if minutes is not None:
        spec, timed = within_minutes(spec, output, machine, minutes, workers=workers, reporter=reporter)
    return spec, "; ".join(filter(None, (ladder.note, note, why, timed)))


def study_name(data: str) -> str:
    """What the comparison on a file or corpus is called."""
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in Path(data).stem)
    return (name.lstrip("._-") or "data")[:80]


def demonstration(*, seeds: int = 3) -> StudySpec:
    """Returns the study that compares small models on the embedded corpus; needs no network and a few minutes."""
    data = DataConfig(name="demo", tokenizer=TRAINED, max_length=DEMO_MAX_LENGTH, trained_vocab_size=DEMO_VOCAB_SIZE)
    title = "Demo: a linear model, a stacked and a recurrent Transformer"
    return comparison(data, models=DEMO_MODELS, protocol="demo", seeds=range(seeds), title=title)


def compare(
    data: Any,
    *,
    models: str | Sequence[str | dict[str, Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    output: str | Path = "runs/compare",
    protocol: str | Mapping[str, Any] | None = None,
    precision: str = "fp32",
    data_root: str | Path | None = None,
    quiet: bool = False,
    encoder: str | None = None,
    plan: str | None = None,
    from_scratch: bool = False,
    max_mib: float | None = None,
    max_ms: float | None = None,
    measure: str | None = None,
    minutes: float | None = None,
    estimate: bool = True,
    **keys: Any,
) -> StudyResult:
    """Trains and compares models on labelled rows, and writes the report.

    Rows in memory are written once, to ``output``, as Parquet under a name with their hash: the same call on the same
    rows takes up what is done, and on other rows it needs another ``output``.

    Args:
        data: A file (CSV, TSV, JSONL, Parquet), a corpus by name, a pandas ``DataFrame``, ``(texts, labels)``, or a
            ``Dataset`` or ``DatasetDict`` of the library datasets, whose splits are used as they are. Labels are words
            or numbers, or lists of them for any number of labels a text.
        models: Presets, controls, encoders, or model files, one or several; none takes those of
            `recurra.ladder.choose_models`: a tuned linear model, static vectors, MiniLM and a smaller student of it.
        seeds: Number of seeds, or the seeds; none takes one, or three for models from scratch.
        output: Folder of the study; what is done there is not done again.
        protocol: Training protocol by name or file, or keys of one (``{"base": "tuned", "max_epochs": 5}``); none takes
            ``tuned``, or with an encoder the one for the number of training rows.
        precision: ``fp32`` or ``bf16``.
        encoder: A pretrained encoder to start from, e.g. ``minilm``: it is fine-tuned and teaches a smaller student.
        plan: Layers of the student.
        from_scratch: Whether no pretrained weights are used.
        max_mib: Files on disk, in MiB, that the recommended model may have; it changes no run.
        max_ms: Median milliseconds a text at batch 1 that it may take.
        measure: What the models are judged by: ``accuracy``, ``macro_f1``, ``balanced_accuracy``, ``f1:LABEL`` or
            ``cost:FILE`` (a CSV or JSON file of what each mistake costs, true by predicted label); of several labels a
            text ``micro_f1``, ``macro_f1`` or ``subset_accuracy``. None lets the data decide. It changes no run.
        minutes: Minutes of training; see `recurra.study.planning.within_minutes`.
        estimate: Whether time and memory of each model are estimated and said before the first run starts; not if
            nothing is said, or ``minutes`` were given.
        data_root: Local copies of public corpora.
        quiet: Whether to say nothing.
        keys: Keys of the protocol (`recurra.training.protocols.ProtocolConfig`) and of the data
            (`recurra.data.configuration.DataConfig`); ``validation`` and ``test`` take what ``data`` takes. Without
            ``tokenizer`` the one of `recurra.data.tokenization.default_tokenizer`, and without
            ``max_length`` for a file the smallest of 64, 128, 256 and 512 tokens that holds 95 % of its training rows.

    Raises:
        RecurraError: If the data or the configuration cannot be used.
    """
    output, root = Path(output), Path(data_root) if data_root else None
    rows = rows_in_memory(data, keys)
    placed = {"name": str(data), **keys, **(rows.options(output / ROWS_NAME) if rows else {})}
    chosen = task(profile_of_values(placed).name)
    name = str(placed.pop("name"))
    own = [each.name for each in signature(compare).parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
    asked, assigned = sort_keywords(placed, protocol, task=chosen, others=own)
    named = [part.strip() for part in models.split(",")] if isinstance(models, str) else models
    ladder = choose_models(chosen, named, protocol=asked, encoder=encoder, plan=plan, from_scratch=from_scratch)
    if rows:
        refuse_folder_of_another(study_name(name), output)
        rows.write(output / ROWS_NAME)
    machine, reporter = Machine(data_root=root), Reporter(quiet=quiet)
    spec, note = plan_comparison(
        name,
        chosen,
        ladder,
        assigned,
        seeds=seeds,
        precision=precision,
        title=rows.described if rows else "",
        limits=Limits.parse({"max_mib": max_mib, "max_ms": max_ms}, source="compare"),
        judging=Judging.parse({"measure": measure}, source="compare"),
        minutes=minutes,
        output=output,
        machine=machine,
        reporter=reporter,
    )
    shown = {"models": named, "encoder": encoder, "plan": plan, "protocol": protocol, "seeds": seeds, **placed}
    shown |= {"from_scratch": from_scratch or None, "max_mib": max_mib, "max_ms": max_ms}
    shown |= {"measure": measure, "minutes": minutes}
    options = [f"{key}={value!r}" for key, value in shown.items() if value is not None]
    command = f"recurra.compare({', '.join([repr(name), *options, f'output={str(output)!r}'])})"
    said = estimate and not quiet and minutes is None
    return carry_out(spec, output, machine, reporter=reporter, command=command, note=note, estimate=said)
