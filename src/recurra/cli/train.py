"""``recurra train``: one model on one corpus or file, into a run folder."""

from __future__ import annotations

from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present


def train(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", "-m", help="A preset, 'linear', or a model file (YAML).")],
    data: Annotated[str, typer.Option("--data", "-d", help="A corpus, a labelled file of yours, or a .txt.")],
    output: options.Output,
    assignments: options.Overrides = None,
    protocol: options.Protocol = "tuned",
    seed: options.Seed = 0,
    precision: options.Precision = "fp32",
    tokenizer: options.Tokenizer = None,
    data_protocol: options.DataProtocol = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    label_columns: options.LabelColumns = None,
    label_separator: options.LabelSeparator = None,
    id_column: options.IdColumn = None,
    encoding: options.Encoding = None,
    group_column: options.GroupColumn = None,
    validation: options.ValidationFile = None,
    test: options.TestFile = None,
    max_length: options.MaxLength = None,
    windows: options.Windows = None,
    form_must_not_predict: options.FormMustNotPredict = False,
    skip_unlabelled: options.SkipUnlabelled = False,
    unlabelled: options.Unlabelled = None,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    threads: options.Threads = 0,
    latency: Annotated[
        bool | None, typer.Option(help="Time the trained model. Default: yes.", show_default=False)
    ] = None,
    keep_checkpoints: Annotated[bool, typer.Option("--keep-checkpoints", help="Keep what resuming needs.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one model; the same command again resumes it, or does nothing if it is done.

    Labelled data train a classifier, running text (wikitext-2, english_novels, a .txt file) a language model.

    Example: recurra train --model recurrent --data reviews.csv --output runs/reviews max_epochs=5 data.max_length=64
    """
    from recurra.core.progress import Reporter
    from recurra.study.assignments import configure_run, named_data, sort_assignments
    from recurra.study.preflight import is_finished, preflight, refuse_unheard_texts
    from recurra.tasks.base import task
    from recurra.tasks.machine import Machine
    from recurra.tasks.profile import profile_of_values
    from recurra.tasks.runs import resolve_model

    reporter = Reporter(quiet=quiet)
    chosen = task(
        profile_of_values(
            named_data(data, [*options.label_keys(options.data_options(context)), *(assignments or [])])
        ).name
    )
    assigned = sort_assignments(assignments or [], task=chosen)
    given = {**options.data_options(context), "--latency": latency}
    name, keys = resolve_model(model)
    data_config, note = chosen.configure_data(
        data, given, assigned.data, data_root, models=[(name, {**keys, **assigned.model})]
    )
    config = configure_run(model, data_config, protocol, assigned, seed=seed, precision=precision)
    refuse_unheard_texts([config])
    machine = Machine(data_root, cache_dir, threads, latency is not False, keep_checkpoints)
    said: list[str] = []
    if not is_finished(config, output):
        said = [*filter(None, [note]), *preflight([config], machine)]

    from recurra.study.run import execute_run

    record = execute_run(config, output, machine, reporter, said)
    # The other processes of a distributed training have nothing to say.
    if record is not None:
        present(chosen.engine.present(record, str(output)), as_json=as_json)
