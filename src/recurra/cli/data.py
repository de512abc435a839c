"""``recurra data``: corpora and files, what is in them, tokenising them ahead."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from recurra.cli import options
from recurra.cli.audit import audit_data
from recurra.cli.output import present

app = typer.Typer(no_args_is_help=True, help="Corpora and files: list, describe, prepare, audit.")
app.command("audit", help="The same as 'recurra audit data'. Example: recurra data audit reviews.csv.")(audit_data)


@app.command("list")
def list_corpora(as_json: options.Json = False) -> None:
    """List the corpora that have a name, with their protocols and sources.

    DIR is the data root (--data-root or RECURRA_DATA_ROOT). Corpora with a public name are downloaded if missing.

    Example: recurra data list
    """
    from recurra.data.configuration import MODES
    from recurra.data.corpora import CORPORA
    from recurra.data.language.corpora import SOURCES
    from recurra.data.tables import TABLE_FORMATS
    from recurra.tasks.tables import CommandResult, Table

    labelled = [
        {
            "name": corpus.name,
            "kind": "labelled",
            "description": corpus.description,
            "public_name": corpus.public_name,
            "layout": corpus.layout,
            "protocols": corpus.protocols,
        }
        for corpus in CORPORA.values()
    ]
    running_texts = [
        {
            "name": source.name,
            "kind": "text",
            "description": source.description,
            "public_name": source.public_name and f"{source.public_name}, {source.name}",
            "layout": source.layout,
            "modes": MODES,
        }
        for source in SOURCES.values()
    ]
    corpora: list[dict[str, Any]] = [*labelled, *running_texts]
    rows = [
        {
            "Corpus": corpus["name"],
            "Protocol": name,
            "What it does": text,
            "Public name": corpus["public_name"] or ("none: local only" if corpus["layout"] else "none: made here"),
        }
        for corpus in corpora
        for name, text in corpus.get("protocols", {"text": "for language modelling"}).items()
    ]
    lines = [
        *(f"{corpus['name']}: {corpus['description']}" for corpus in corpora),
        *(f"data root, {corpus['name']}: {corpus['layout']}" for corpus in corpora if corpus["layout"]),
        *(f"text, mode={name}: {description}" for name, description in MODES.items()),
        f"You can give your own file in place of a name: {', '.join(TABLE_FORMATS)} with labels; .txt for text.",
    ]
    present(CommandResult({"corpora": corpora}, [Table("corpora", "", rows), lines]), as_json=as_json)


@app.command("describe")
@options.with_data_options(without=("tokenizer", "max_length", "windows", "form_must_not_predict", "unlabelled"))
def describe(
    context: typer.Context,
    name: options.AnyData,
    assignments: options.DataOverrides = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Show splits, labels, lengths, fingerprints and left-out rows; for running text its words and bytes.

    Example: recurra data describe reviews.csv
    """
    task, config, study_data = options.configured_data(context, name, assignments, data_root)
    present(task.describe_data(config, study_data), as_json=as_json)


@app.command("prepare")
@options.with_data_options(without=("validation", "test", "form_must_not_predict", "skip_unlabelled", "unlabelled"))
def prepare(
    context: typer.Context,
    name: options.AnyData,
    assignments: options.DataOverrides = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model that will be trained; texts are tokenised for it.")
    ] = None,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    as_json: options.Json = False,
) -> None:
    """Tokenise all splits into the cache, before the first training.

    The tokens of running text, and of text for an encoder, depend on the model: name it with --model.

    Example: recurra data prepare sst2
    """
    from recurra.core.errors import ConfigurationError
    from recurra.tasks.base import METHOD, control_of, encoder_of
    from recurra.tasks.runs import resolve_model

    models = [model] if model else []
    task, config, study_data = options.configured_data(
        context, name, assignments, data_root, cache_dir=cache_dir, models=models
    )
    source = None
    if model:
        preset, overrides = resolve_model(model)
        if control_of(preset, overrides) is not None or METHOD in overrides:
            raise ConfigurationError(f"'{model}' reads texts by itself, not tokenised rows; leave --model out")
        source = encoder_of(overrides)
    if source is not None:
        config = config.model_copy(update={"tokenizer": str(source.folder.absolute())})
    present(task.prepare_data(config, study_data), as_json=as_json)
