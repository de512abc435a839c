"""``recurra data``: corpora and files, what is in them, tokenising them ahead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from recurra.cli import language_data, options
from recurra.cli.audit import audit_data
from recurra.cli.output import print_json, print_lines, print_table

if TYPE_CHECKING:
    from recurra.data.configuration import DataConfig

app = typer.Typer(no_args_is_help=True, help="Corpora and files: list, describe, prepare, audit.")
app.command("audit", help="The same as 'recurra audit data'. Example: recurra data audit reviews.csv.")(audit_data)


@app.command("list")
def list_corpora(as_json: options.Json = False) -> None:
    """List the corpora that have a name, their protocols, and where they come from.

    DIR is the data root (--data-root or RECURRA_DATA_ROOT). What has a public name is fetched if it is not there.

    Example: recurra data list
    """
    from recurra.data.corpora import CORPORA
    from recurra.data.language.configuration import MODES
    from recurra.data.language.sources import SOURCES

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
    running = [
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
    corpora: list[dict[str, Any]] = [*labelled, *running]
    if as_json:
        print_json({"corpora": corpora})
        return
    rows = [
        [
            corpus["name"],
            name,
            text,
            corpus["public_name"] or ("none: local only" if corpus["layout"] else "none: made here"),
        ]
        for corpus in corpora
        for name, text in corpus.get("protocols", {"text": "for language modelling"}).items()
    ]
    print_table("", ["Corpus", "Protocol", "What it does", "Public name"], rows, left=("Protocol", "What it does"))
    print_lines([f"{corpus['name']}: {corpus['description']}" for corpus in corpora])
    print_lines([f"data root, {corpus['name']}: {corpus['layout']}" for corpus in corpora if corpus["layout"]])
    print_lines(
        [
            *(f"text, mode={name}: {what}" for name, what in MODES.items()),
            "A file of yours can stand in place of a name: .csv, .tsv, .jsonl, .parquet with labels; .txt for text.",
        ]
    )


@app.command("describe")
def describe(
    name: options.AnyData,
    assignments: options.DataOverrides = None,
    data_protocol: options.DataProtocol = None,
    text_column: options.TextColumn = "text",
    label_column: options.LabelColumn = "label",
    group_column: options.GroupColumn = None,
    validation: options.ValidationFile = None,
    test: options.TestFile = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Show splits, labels, lengths, fingerprints and left-out rows; of running text its words and bytes.

    Example: recurra data describe reviews.csv
    """
    from recurra.data.corpora import load_dataset
    from recurra.data.language.corpora import is_language_corpus

    if is_language_corpus(name):
        language_data.refuse_labelled_options(name, data_protocol, text_column, label_column, group_column)
        values = {"validation": validation, "test": test}
        language_data.describe(language_data.configure(name, assignments, data_root, **values), data_root, as_json)
        return
    config = _configure(
        name,
        assignments,
        data_root,
        protocol=data_protocol,
        text_column=text_column,
        label_column=label_column,
        group_column=group_column,
        validation=validation,
        test=test,
    )
    record = load_dataset(config, data_root).record()
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    headings = ["Split", "Rows", *record.label_names, "Words, mean", "median", "90 %", "longest", "Fingerprint"]
    rows = [
        [
            split_name,
            f"{split.rows:,}",
            *(f"{split.label_counts[label]:,}" for label in record.label_names),
            f"{split.words.mean:.1f}",
            f"{split.words.median:.0f}",
            f"{split.words.p90:.0f}",
            f"{split.words.max}",
            split.fingerprint,
        ]
        for split_name, split in record.splits.items()
    ]
    print_table(f"{record.name}, protocol {record.protocol}, fingerprint {record.fingerprint}", headings, rows)
    dropped = [f"left out, {reason}: {count:,}" for reason, count in record.dropped.items() if count]
    print_lines([*record.notes, *dropped])


@app.command("prepare")
def prepare(
    name: options.AnyData,
    assignments: options.DataOverrides = None,
    tokenizer: options.Tokenizer = None,
    data_protocol: options.DataProtocol = None,
    text_column: options.TextColumn = "text",
    label_column: options.LabelColumn = "label",
    group_column: options.GroupColumn = None,
    data_root: options.DataRoot = None,
    cache_dir: options.CacheDir = None,
    as_json: options.Json = False,
) -> None:
    """Tokenise all splits into the cache, ahead of the first training.

    Example: recurra data prepare sst2
    """
    from recurra.data.language.corpora import is_language_corpus
    from recurra.study.preparation import prepare_data

    if is_language_corpus(name):
        language_data.refuse_labelled_options(name, data_protocol, text_column, label_column, group_column)
        text = language_data.configure(name, assignments, data_root, tokenizer=tokenizer)
        language_data.prepare(text, data_root, cache_dir, as_json)
        return
    config = _configure(
        name,
        assignments,
        data_root,
        tokenizer=tokenizer,
        protocol=data_protocol,
        text_column=text_column,
        label_column=label_column,
        group_column=group_column,
    )
    result = prepare_data(config, data_root=data_root, cache_dir=cache_dir)
    if as_json:
        print_json(result)
        return
    rows = [
        [
            split["name"],
            f"{split['rows']:,}",
            f"{split['tokens']:,}",
            f"{split['mean_tokens']:.1f}",
            f"{split['longest_tokens']}",
            f"{split['cut']:,}",
        ]
        for split in result["splits"]
    ]
    tokens = result["tokenizer"]
    title = (
        f"{result['name']}: {tokens['kind']} of {tokens['vocab_size']:,} pieces, at most {result['max_length']} tokens"
    )
    print_table(title, ["Split", "Rows", "Tokens", "Mean", "Longest", "Rows at the limit"], rows)


def _configure(name: str, assignments: list[str] | None, data_root: Path | None, **values: Any) -> DataConfig:
    from recurra.study.assignments import configure_data, sort_assignments

    assigned = sort_assignments([f"data.{pair.removeprefix('data.')}" for pair in assignments or []])
    return configure_data(name, values, assigned.data, data_root)[0]
