"""``recurra train``: one model on one corpus or file, into a run folder."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present


@options.with_data_options()
def train(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A preset, a linear model (linear-tuned), an encoder (recurra-small, minilm, e5, a folder), or a "
            "model file (YAML).",
        ),
    ],
    data: Annotated[str, typer.Option("--data", "-d", help="A corpus, your own labelled file, or a .txt.")],
    output: options.Output,
    assignments: options.Overrides = None,
    protocol: options.Protocol = None,
    seed: options.Seed = 0,
    precision: options.Precision = "fp32",
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    threads: options.Threads = 0,
    latency: Annotated[bool | None, typer.Option(help="Time the trained model. Default: yes.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one model. The same command again resumes the training, or does nothing if it is finished.

    Labelled data train a classifier, running text (wikitext-2, english_novels, a .txt file) a language model.

    Example: recurra train --model recurrent --data reviews.csv --output runs/reviews max_epochs=5 data.max_length=64
    """
    from recurra.core.progress import Reporter
    from recurra.data.configuration import DataConfig
    from recurra.study.run import execute_run, is_finished, preflight, refuse_unlabelled_without_teacher
    from recurra.tasks.runs import default_protocol, make_run, refuse_unused_keys, resolve_model
    from recurra.tasks.study_data import Machine, StudyData
    from recurra.training.protocols import DEFAULT_PROTOCOL

    reporter = Reporter(quiet=quiet)
    task, values, assigned = options.read_keys(data, options.data_keys(context), assignments, model_keys=True)
    study_data = StudyData(Machine(data_root, cache_dir, threads, latency is not False))
    name, keys = resolve_model(model)
    model_keys = {**keys, **assigned.model}
    data_config, note = task.configure_data(values, study_data, models=[(name, model_keys)])
    protocol_name, reason = protocol or DEFAULT_PROTOCOL, ""
    if protocol is None and isinstance(data_config, DataConfig):
        rows = partial(study_data.rows, data_config)
        protocol_name, reason = default_protocol(name, model_keys, lambda: len(rows().splits["train"]))
    training = task.load_protocol(protocol_name, assigned.protocol)
    refuse_unused_keys(name, model_keys, assigned.protocol, protocol, training)
    config = make_run(model, data_config, training, seed=seed, precision=precision, overrides=assigned.model)
    refuse_unlabelled_without_teacher([config])
    notes: list[str] = []
    if not is_finished(config, output):
        notes = [*filter(None, [note, reason]), *preflight([config], study_data)]
    record = execute_run(study_data, output, config, reporter=reporter, notes=notes)
    # The other processes of a distributed run have no record.
    if record is not None:
        present(task.present(record, str(output)), as_json=as_json)
