"""``recurra audit``: can the numbers be trusted? Exit code 3 if not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recurra.cli import options
from recurra.cli.output import complain, present

if TYPE_CHECKING:
    from recurra.core.record import AuditResult

app = typer.Typer(
    no_args_is_help=True, help="Audit data, models and studies: passed, note or failed; exit code 3 if one failed."
)


@app.command("data")
@options.with_data_options(without=("tokenizer", "unlabelled"))
def audit_data(
    context: typer.Context,
    name: options.Data,
    assignments: options.DataOverrides = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Look for leakage between splits and for shortcuts to the label. Example: recurra audit data reviews.csv."""
    task, config, study_data = options.configured_data(context, name, assignments, data_root, models=[])
    title, audits = task.audit_data(config, study_data)
    present_audits(title, audits, as_json=as_json)


@app.command("model")
def audit_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|PRESET|PATH",
            help="A run folder, a preset with new weights, or a folder with any causal language model of transformers.",
        ),
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes of a preset, e.g. causal_convolution=false."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the texts, and of a preset's weights.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Check that padding and batch neighbours change no logit, and that a language model does not see later tokens.

    Code inside a checkpoint is never run, and pickled weights are refused.

    Example: recurra audit model crt-tiny causal_convolution=false
    """
    from recurra.models.quiet import quieten_libraries
    from recurra.study.model_auditing import audit_model as run_audits

    name = options.one_run(name)
    quieten_libraries()
    present_audits(name, run_audits(name, assignments or [], seed=seed), as_json=as_json)


@app.command("study")
def audit_study(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of a study, comparison or training.")],
    as_json: options.Json = False,
) -> None:
    """Collect the audits of all records of a study. Example: recurra audit study runs/reviews."""
    from recurra.core.errors import CheckpointError
    from recurra.core.packed import run_folders
    from recurra.core.record import holds_any_record, read_any_record
    from recurra.report.summary import load_runs, study_file_of, summarise
    from recurra.study.spec import load_study
    from recurra.tasks.questions import NO_QUESTIONS
    from recurra.tasks.tables import CommandResult, Table

    runs, missing = load_runs([folder] if holds_any_record(folder) else run_folders(folder))
    if not runs and holds_any_record(folder):
        read_any_record(folder)  # raises the error of its record
    complain(*(f"no record: {run['run_id']}: {run['reason']}" for run in missing))
    if not runs:
        raise CheckpointError(f"'{folder}' holds no finished run; give the folder of a comparison, study or training")
    # Whether a leak decides a comparison depends on the measure of the study.
    file = study_file_of(folder)
    questions = NO_QUESTIONS if file is None else load_study(file).questions
    # Trainings on the same data have the same audit lines of these data; each is listed once.
    lines = {
        (f"{table.data} ({table.protocol}, {table.fingerprint[:8]})", line): None
        for table in summarise(runs, questions=questions).tables
        for line in table.audits
    }
    rows = [
        {
            "Data": data,
            "Audit": line.name,
            "State": _state(line.status),
            "Concerns": line.concerns,
            "Finding": line.summary,
        }
        for data, line in lines
    ]
    plain = {
        "study": str(folder),
        "audits": [{"data": data, **vars(line)} for data, line in lines],
        "without_record": {run["run_id"]: run["reason"] for run in missing},
    }
    failed = [line.name for _, line in lines if line.status == "failed"]
    present(CommandResult(plain, [Table("audits", str(folder), rows)], failed), as_json=as_json)


def present_audits(title: str, audits: Sequence[AuditResult], *, as_json: bool) -> None:
    """Prints audits; exits with 3 if one failed."""
    from recurra.evaluation.audits.registry import meaning
    from recurra.tasks.tables import CommandResult, Table

    rows = [{"Audit": audit.name, "State": _state(audit.status), "Finding": audit.summary} for audit in audits]
    meanings: dict[str, list[str]] = {}
    for audit in audits:
        meanings.setdefault(meaning(audit.name, audit.status), []).append(audit.name)
    lines = [f"{', '.join(names)}: {sentence}" for sentence, names in meanings.items() if sentence]
    plain = {"subject": title, "audits": [audit.model_dump(mode="json") for audit in audits]}
    failed = [audit.name for audit in audits if audit.status == "failed"]
    present(CommandResult(plain, [Table("audits", title, rows), lines], failed), as_json=as_json)


def _state(status: str) -> str:
    return status.upper() if status == "failed" else status
