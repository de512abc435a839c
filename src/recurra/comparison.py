"""Studies carried out and reported; and one call from a labelled file to a report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig, RunData
from recurra.data.tokenization import TRAINED
from recurra.deployment.export_record import load_export_records
from recurra.models.adaptation.source import find_encoder
from recurra.report.files import write_study_report
from recurra.report.load import load_runs, uncollected
from recurra.report.summary import plain_summary, summarise
from recurra.study.cluster import Cluster
from recurra.study.export_plan import PlannedExport
from recurra.study.process import Outcome
from recurra.study.spec import StudySpec
from recurra.study.study import StudyOutcome, look_at_outcome, read_latency_file, run_study
from recurra.tasks.base import task
from recurra.tasks.machine import Machine
from recurra.tasks.profile import profile_of_values
from recurra.tasks.questions import Questions
from recurra.tasks.runs import model_name, resolve_model
from recurra.tasks.summary import Summary

DEFAULT_MODELS = ("linear", "baseline", "recurrent")
# First and last layer apart, two in the middle twice: what that is worth stands in docs/results/adapt.md.
SMALL_PLANS = {6: "0 (3 4)x2 5"}
DEFAULT_PROTOCOL, PRETRAINED_PROTOCOL = "tuned", "finetune"
# The longest review of the demo corpus has fewer tokens.
DEMO_MAX_LENGTH = 64
DEMO_VOCAB_SIZE = 2000
DEMO_MODELS = ("linear", "baseline-tiny", "recurrent-tiny")


@dataclass(frozen=True)
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

    Raises:
        RecurraError: As `run_study` does.
    """
    found = run_study(spec, output, machine, workers=workers, reporter=reporter, cluster=cluster, note=note)
    return _report(spec, output, found, command)


def report_study(spec: StudySpec, output: Path, *, command: str) -> StudyResult:
    """Writes the report of what is done and runs nothing.

    Raises:
        CheckpointError: If a record cannot be trusted.
    """
    return _report(spec, output, look_at_outcome(spec, output), command)


def _report(spec: StudySpec, output: Path, found: StudyOutcome, command: str) -> StudyResult:
    report, shown = study_report(spec, output, command=command, outcomes=found.outcomes)
    return StudyResult(output, found.outcomes, report, shown, found.exports, found.timing_error)


def study_report(
    spec: StudySpec, output: Path, *, command: str, outcomes: Sequence[Outcome]
) -> tuple[Path | None, Summary]:
    """Writes report, figures and tables from the records of a study; returns the page's path and what it shows."""
    failures = {outcome.config.run_id: outcome.error or "no record" for outcome in outcomes if outcome.record is None}
    questions = Questions(spec.contrasts, spec.published)
    with uncollected():
        runs, failed = load_runs([outcome.folder for outcome in outcomes], failures)
        exports = load_export_records(output) if spec.exports else []
        summary = summarise(runs, read_latency_file(output), failed, base=output, questions=questions, exports=exports)
    if len(failures) == len(outcomes):
        return None, summary
    return write_study_report(output, summary, runs, title=spec.title or spec.name, command=command), summary


@dataclass(frozen=True)
class Pretrained:
    """Where the models of a comparison start, if not from scratch.

    Attributes:
        encoder: As `recurra.models.adaptation.source.find_encoder` takes it.
        plan: Layers of the student, as `recurra.models.adaptation.plan.SharingPlan` reads it; none takes that of
            `SMALL_PLANS`.
    """

    encoder: str
    plan: str | None = None

    def models(self) -> list[str | dict[str, Any]]:
        """The linear control, the encoder as it is, and a student of it with fewer stored layers.

        Raises:
            ConfigurationError: If there is no plan for an encoder of this depth, or it is wrong.
            RecurraError: If the encoder cannot be used.
        """
        source = find_encoder(self.encoder)
        plan = self.plan or SMALL_PLANS.get(source.num_layers)
        if plan is None:
            known = ", ".join(map(str, SMALL_PLANS))
            raise ConfigurationError(
                f"encoder '{self.encoder}' has {source.num_layers} layers, and there are plans for {known}; "
                f"give --plan, for example one that recurra adapt {self.encoder} --texts FILE finds"
            )
        name = model_name(self.encoder)
        stack: str | dict[str, Any] = self.encoder
        student = {"name": f"{name}-small", "encoder": self.encoder, "plan": str(source.plan(plan)), "teacher": name}
        return ["linear", stack, student]


def comparison(
    data: RunData,
    *,
    models: Sequence[str | dict[str, Any]] = DEFAULT_MODELS,
    protocol: str = "tuned",
    protocol_overrides: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    precision: str = "fp32",
    title: str = "",
) -> StudySpec:
    """Returns the study that compares models on one data set."""
    stem = Path(data.name).stem
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in stem)
    return StudySpec.parse(
        {
            "name": (name.lstrip("._-") or "data")[:80],
            "title": title,
            "data": [data.plain()],
            "models": list(models),
            "protocols": [protocol],
            "protocol_overrides": list(protocol_overrides),
            "seeds": list(seeds),
            "precision": precision,
        },
        source="comparison",
    )


def compared(
    models: Sequence[str] | None, protocol: str | None, encoder: str | None, plan: str | None
) -> tuple[Sequence[str | dict[str, Any]], str]:
    """The models and the protocol of a comparison, from what was named and what was not.

    Raises:
        ConfigurationError: For a plan without an encoder.
    """
    if encoder is None:
        if plan is not None:
            raise ConfigurationError(f"plan '{plan}' came without an encoder whose layers it chooses; add --from")
        return models or DEFAULT_MODELS, protocol or DEFAULT_PROTOCOL
    ladder = Pretrained(encoder, plan).models()
    others = [name for name in models or () if name not in ladder]
    return [*ladder, *others], protocol or PRETRAINED_PROTOCOL


def demonstration(*, seeds: int = 3) -> StudySpec:
    """Returns the study that compares small models on the embedded corpus; needs no network and a few minutes."""
    data = DataConfig(name="demo", tokenizer=TRAINED, max_length=DEMO_MAX_LENGTH, trained_vocab_size=DEMO_VOCAB_SIZE)
    title = "Demo: a linear model, a stacked and a recurrent Transformer"
    return comparison(data, models=DEMO_MODELS, protocol="demo", seeds=range(seeds), title=title)


def compare(
    data: str | Path,
    *,
    models: Sequence[str] | None = None,
    seeds: int = 3,
    output: str | Path = "runs/compare",
    protocol: str | None = None,
    precision: str = "fp32",
    data_root: str | Path | None = None,
    quiet: bool = False,
    encoder: str | None = None,
    plan: str | None = None,
    **data_options: Any,
) -> StudyResult:
    """Trains and compares models on a labelled file or a corpus, and writes the report.

    Args:
        data: A file (CSV, TSV, JSONL, Parquet) or a corpus by name.
        models: Presets, ``linear``, encoders, or model files; none takes `DEFAULT_MODELS`, or with an encoder those of
            `Pretrained`.
        seeds: Number of seeds.
        output: Folder of the study; what is done there is not done again.
        protocol: Training protocol; none takes ``tuned``, or with an encoder ``finetune``.
        precision: ``fp32`` or ``bf16``.
        encoder: A pretrained encoder to start from, e.g. ``minilm``: it is fine-tuned and teaches a smaller student.
        plan: Layers of the student.
        data_root: Local copies of public corpora.
        quiet: Whether to say nothing.
        data_options: Fields of `recurra.data.configuration.DataConfig`; without ``tokenizer`` the one of
            `recurra.data.tokenization.default_tokenizer`, and without ``max_length`` for a file the smallest of 64,
            128, 256 and 512 tokens that holds 95 % of its training rows.

    Raises:
        RecurraError: If the data or the configuration cannot be used.
    """
    root = Path(data_root) if data_root else None
    chosen = task(profile_of_values({"name": str(data), **data_options}).name)
    chosen_models, chosen_protocol = compared(models, protocol, encoder, plan)
    readers = [resolve_model(each) for each in chosen_models]
    config, note = chosen.configure_data(str(data), {}, data_options, root, models=readers)
    spec = comparison(config, models=chosen_models, protocol=chosen_protocol, seeds=range(seeds), precision=precision)
    command = f"recurra compare {shlex.quote(str(data))} --seeds {seeds} --output {shlex.quote(str(output))}"
    machine, reporter = Machine(data_root=root), Reporter(quiet=quiet)
    return carry_out(spec, Path(output), machine, reporter=reporter, command=command, note=note)
