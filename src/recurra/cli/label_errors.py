"""``recurra label-errors``: rows of a labelled file whose label is probably wrong."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recurra.cli import options
from recurra.cli.output import present
from recurra.core.errors import ConfigurationError, did_you_mean
from recurra.core.progress import Reporter

if TYPE_CHECKING:
    from recurra.data.configuration import DataConfig
    from recurra.evaluation.label_errors import DoubtedLabel, LabelErrors
    from recurra.tasks.tables import Table

_SHOWN_CHARACTERS = 100
# Keys that say how rows are read; other keys choose splits and tokens, but here every row is judged.
_READING_KEYS = ("text_column", "label_column", "id_column", "encoding", "clean", "join_labels", "skip_unlabelled")
# Keys of files with several labels a row; reading such a file reports that it is refused.
_OF_SEVERAL_LABELS = ("label_columns", "label_separator")


@options.with_data_options(
    without=(
        *("tokenizer", "data_protocol", "label_columns", "label_separator", "group_column", "validation", "test"),
        *("max_length", "windows", "form_must_not_predict", "unlabelled"),
    )
)
def label_errors(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Labelled file: .csv, .tsv, .jsonl, .json, .parquet or .xlsx.")
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="More keys for reading rows, e.g. join_labels=true."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A pretrained encoder that judges beside the linear model: minilm, a folder, or none. Default: minilm "
            "if it is installed, up to 10,000 rows.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv file for all rows, the most doubtful first.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many rows to show.")] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the folds.")] = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the most doubtful labels, judged by models that were not trained on them, and which are probably wrong.

    Example: recurra label-errors reviews.csv --output doubts.csv
    """
    if output is not None and output.suffix.lower() != ".csv":
        raise ConfigurationError(f"'{output}' has the extension '{output.suffix}'; allowed: .csv")
    config = _file_config(context, file, assignments)
    from recurra.evaluation.label_errors import find_label_errors
    from recurra.tasks.tables import CommandResult

    if output is not None:
        from recurra.deployment.prediction.files import check_output

        check_output(output, file)
    errors = find_label_errors(config, encoder=encoder, seed=seed, reporter=Reporter(quiet=quiet))
    if output is not None:
        errors.write(output)
    shown = list(itertools.islice(errors, top))
    plain = {
        "file": file,
        "rows": len(errors),
        "suspects": int(errors.suspects.sum()),
        "agreement": errors.agreement,
        "macro_f1": errors.macro_f1,
        "chance": errors.chance,
        "wrong_share": errors.share,
        "model": errors.model,
        "notes": errors.notes,
        "output": None if output is None else str(output),
        "top": [row.plain(errors.table.unit) for row in shown],
    }
    present(CommandResult(plain, _parts(errors, shown, output)), as_json=as_json)


def _file_config(context: typer.Context, file: str, assignments: list[str] | None) -> DataConfig:
    from recurra.data.configuration import DataConfig
    from recurra.data.corpora import CORPORA

    if file in CORPORA:
        raise ConfigurationError(f"'{file}' is a corpus; give a labelled file of yours, such as .csv or .jsonl")
    for key in (pair.partition("=")[0].removeprefix("data.") for pair in assignments or ()):
        if key not in (*_READING_KEYS, *_OF_SEVERAL_LABELS):
            hint = did_you_mean(key, _READING_KEYS)
            raise ConfigurationError(
                f"'{key}' has no meaning here, where every row is judged{hint}; allowed: {', '.join(_READING_KEYS)}"
            )
    config = options.configured_data(context, file, assignments, None)[1]
    if not isinstance(config, DataConfig):
        raise ConfigurationError(f"'{file}' is running text; give a labelled file of yours, such as .csv or .jsonl")
    return config


def _parts(errors: LabelErrors, shown: Sequence[DoubtedLabel], output: Path | None) -> list[Table | list[str]]:
    from recurra.tasks.tables import Table

    rows = [
        {
            errors.table.unit.capitalize(): f"{row.place:,}",
            "Label": row.label,
            "Its probability": f"{row.label_probability:.3f}",
            "Suggested": row.suggested,
            "Probability": f"{row.probability:.3f}",
            "Wrong": f"{row.wrong_probability:.0%}",
            "Suspect": "yes" if row.suspect else "no",
            "Text": row.text if len(row.text) <= _SHOWN_CHARACTERS else f"{row.text[:_SHOWN_CHARACTERS]}…",
        }
        for row in shown
    ]
    name = Path(errors.table.source.strip("'")).name
    title = f"{name}: the {len(rows)} most doubtful labels of {len(errors):,} rows"
    lines = [
        _conclusion(errors),
        f"the judge agrees with {errors.agreement:.1%} of the labels, macro F1 {errors.macro_f1:.3f}, on rows that it "
        f"did not see; if it always gave the commonest label, it would agree with {errors.chance:.1%}",
        f"judged by {errors.model}",
        *errors.notes,
        *([f"all rows, the most doubtful first: {output}"] if output is not None else []),
    ]
    return [Table("doubtful", title, rows), lines]


def _conclusion(errors: LabelErrors) -> str:
    suspects = int(errors.suspects.sum())
    wrong = f"{errors.wrong.sum():,.0f}"
    if not suspects:
        return (
            "No single label is probably wrong: where this judge disagrees with a label, the judge is more likely "
            f"wrong (about {wrong} of {len(errors):,} labels may be wrong). The list only shows where to look first."
        )
    return (
        f"{suspects:,} of {len(errors):,} labels are probably wrong (suspect); about {wrong} may be wrong in all. "
        "Look at each before you change it."
    )
