"""``recurra train``: one model on one corpus or file, into a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from recurra.cli import options
from recurra.cli.audit import present_failed
from recurra.cli.language_data import refuse_labelled_options
from recurra.cli.language_run import present_training
from recurra.cli.output import print_json, print_lines, print_table

if TYPE_CHECKING:
    from recurra.core.record import RunRecord
    from recurra.study.tasks import AnyDataConfig


def train(
    model: Annotated[str, typer.Option("--model", "-m", help="A preset, 'linear', or a model file (YAML).")],
    data: Annotated[str, typer.Option("--data", "-d", help="A corpus, a labelled file of yours, or a .txt.")],
    output: options.Output,
    assignments: options.Overrides = None,
    protocol: options.Protocol = "tuned",
    seed: options.Seed = 0,
    precision: options.Precision = "fp32",
    tokenizer: options.Tokenizer = None,
    data_protocol: options.DataProtocol = None,
    text_column: options.TextColumn = "text",
    label_column: options.LabelColumn = "label",
    group_column: options.GroupColumn = None,
    validation: options.ValidationFile = None,
    test: options.TestFile = None,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    threads: options.Threads = 0,
    latency: Annotated[bool, typer.Option(help="Time the trained model.")] = True,
    keep_checkpoints: Annotated[bool, typer.Option("--keep-checkpoints", help="Keep what resuming needs.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one model; the same command again resumes it, or does nothing if it is done.

    Labelled data train a classifier, running text (wikitext-2, english_novels, a .txt file) a language model.

    Example: recurra train --model recurrent --data reviews.csv --output runs/reviews max_epochs=5 data.max_length=64
    """
    from recurra.core.language_record import LanguageRunRecord
    from recurra.core.progress import Reporter
    from recurra.data.language.corpora import is_language_corpus
    from recurra.study.assignments import configure_data, configure_run, sort_assignments
    from recurra.study.language_assignments import configure_text
    from recurra.study.machine import Machine
    from recurra.study.preflight import is_finished, preflight

    reporter = Reporter(quiet=quiet)
    text = is_language_corpus(data)
    assigned = sort_assignments(assignments or [], text=text)
    values = {
        "tokenizer": tokenizer,
        "protocol": data_protocol,
        "text_column": text_column,
        "label_column": label_column,
        "group_column": group_column,
        "validation": validation,
        "test": test,
    }
    data_config: AnyDataConfig
    note: str | None
    if text:
        refuse_labelled_options(data, data_protocol, text_column, label_column, group_column)
        files = {key: values[key] for key in ("tokenizer", "validation", "test")}
        data_config, note = configure_text(
            data, files, assigned.data, data_root, model=model, model_keys=assigned.model
        )
    else:
        data_config, note = configure_data(data, values, assigned.data, data_root)
    config = configure_run(model, data_config, protocol, assigned, seed=seed, precision=precision)
    machine = Machine(data_root, cache_dir, threads, latency, keep_checkpoints)
    if not is_finished(config, output):
        preflight([config], machine)
        if note and config.model != "linear":
            reporter.say(note)

    from recurra.study.run import execute_run

    record = execute_run(config, output, machine, reporter)
    # The other processes of a distributed training have nothing to say.
    if isinstance(record, LanguageRunRecord):
        present_training(record, str(output), as_json=as_json)
    elif record is not None:
        _present(record, str(output), as_json=as_json)


def _present(record: RunRecord, output: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"output": output, **record.model_dump(mode="json")})
    else:
        rows = [
            [split, f"{metrics.rows:,}", f"{metrics.accuracy:.4f}", f"{metrics.f1:.4f}", f"{metrics.loss:.4f}"]
            for split, metrics in record.metrics.items()
        ]
        print_table(record.run_id, ["Split", "Rows", "Accuracy", "F1", "Loss"], rows)
        print_lines([f"run: {output}", f"use it: recurra predict {output} 'a text'"])
    present_failed([audit.name for audit in record.failed_audits()])
