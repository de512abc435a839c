"""Options that commands share. Imports nothing heavy: `recurra --help` must answer at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from recurra.data.configuration import RunData
    from recurra.study.assignments import Assignments
    from recurra.tasks.base import Task
    from recurra.tasks.study_data import StudyData
from recurra.cli.output import complain
from recurra.models.exits.rules import summarise_rules

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print every column of the results, however wide.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of weights, batch order and dropout.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        envvar="RECURRA_DATA_ROOT",
        help="Folder with local copies of the public corpora and tokenizers (also RECURRA_DATA_ROOT).",
    ),
]
CacheDir = Annotated[
    Path | None, typer.Option("--cache-dir", help="Folder of tokenised rows; default ~/.cache/recurra.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for all output files.")]
Precision = Annotated[str, typer.Option("--precision", help="Precision of matrix products: fp32 or bf16.")]
PrecisionOf = Annotated[
    list[str] | None,
    typer.Option(
        "--precision-of",
        metavar="LABEL=P",
        help="Give LABEL only above a probability at which a share P of these answers is right on the run's "
        "validation rows, e.g. positive=0.95. An export keeps this rule. Repeatable.",
    ),
]
AnswersRight = Annotated[
    float | None,
    typer.Option(
        "--answers-right",
        metavar="P",
        help="Give a label only above a probability, the same for all labels, at which a share P of the answers is "
        "right on the run's validation rows, e.g. 0.95.",
    ),
]
RunPrecision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Precision to compute in: fp32, bf16, fp16 (accelerator). Default: that of the run or export.",
    ),
]
_STOP_EARLY = f"Stop early: {summarise_rules()}"
ExitRuleName = Annotated[str | None, typer.Option("--exit-rule", help=f"{_STOP_EARLY}.")]
ExportExitRuleName = Annotated[
    str | None, typer.Option("--exit-rule", help=f"{_STOP_EARLY}; calibrated uses the rule stored in an export.")
]
ExitThreshold = Annotated[
    float | None, typer.Option("--threshold", help="Threshold of the exit rule: a probability, or an entropy in nats.")
]
ExitAfter = Annotated[
    int | None, typer.Option("--recurrences", "--exit", help="Always stop after this recurrence, an exit of the model.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Size of a batch, in texts of 32 tokens.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Threads of a run; 0 shares the cores among runs.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Runs at once; 0: as many as the cores allow.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Training keys, or data.KEY and model.KEY."),
]

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Folder of a run, or of 'recurra compare' for its recommended run."),
]
RunOrExport = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|EXPORT",
        help="Folder of a run or an export, or of 'recurra compare' for its recommended run.",
    ),
]
Data = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A corpus (sst2, demo) or your own labelled file.")]
AnyData = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A corpus (sst2, wikitext-2-v1), a labelled file, or a .txt.")
]
# Options for how data are read, by the key that each sets; their values are words, except whole numbers and flags.
_READING = {
    "tokenizer": "bert-base-uncased, trained (on the training split), or a folder or vocab.txt; for running text gpt2, "
    "trained, or a folder. Default: bert-base-uncased if the data root has it or the corpus is sst2, else trained.",
    "data_protocol": "How rows become splits, e.g. official or pooled for sst2.",
    "text_column": "Column with the text, or several to join: title,body. Default: text.",
    "label_column": "Column with the label, numbers or words; default: label.",
    "label_columns": "For texts with any number of labels: columns of 0 and 1, separated by commas.",
    "label_separator": "For texts with any number of labels: the separator between them, or json for lists.",
    "id_column": "Column with unique ids. Default: the column id if its values are unique, else the line number.",
    "encoding": "Encoding of a text file without a byte order mark, e.g. cp1252. Default: utf-8.",
    "group_column": "Rows with the same value in this column, e.g. an author, stay in one split.",
    "validation": "File with validation rows. Default: split off from the data.",
    "test": "File with test rows. Default: split off from the data.",
    "max_length": "Tokens after which a text is cut, at most 512. Default: 128; for your own file the smallest of "
    "64, 128, 256, 512 that holds 95 % of the training rows.",
    "windows": "Read a longer text in up to this many windows of that length and average their scores; at most 64. "
    "Default: 1, which cuts the text.",
    "form_must_not_predict": "Fail the audit if the form of a text (length, punctuation, case) predicts its label.",
    "skip_unlabelled": "Leave out rows without a label and list them. Default: such rows are an error.",
    "unlabelled": "File of texts without labels (.txt: one a line) on which students learn a teacher's answers.",
}


def _known_encoding(name: str | None) -> str | None:
    from recurra.core.errors import ConfigurationError
    from recurra.data.formats import check_encoding

    try:
        return None if name is None else check_encoding(name)
    except ValueError as error:
        raise ConfigurationError(f"--encoding is '{name}': {error}") from error


Encoding = Annotated[str | None, typer.Option("--encoding", help=_READING["encoding"], callback=_known_encoding)]
InputTextColumn = Annotated[
    str, typer.Option("--text-column", help="Column with the text, or several to join: title,body.")
]
Protocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        "-p",
        help="Training protocol: paper, tuned, tuned-treebank; for encoders finetune-few, finetune-small, finetune or "
        "finetune-large; or a file (YAML). Default: tuned; with an encoder, one chosen by the number of rows.",
    ),
]
DataOverrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="More keys of the data, e.g. fraction=0.5."),
]
StudyOverrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Training keys, or data.KEY."),
]


class Executor(StrEnum):
    """Where runs are executed, or the files of a folder predicted."""

    LOCAL = "local"
    RAY = "ray"


_WHOLE_NUMBERS = {"max_length", "windows"}
_FLAGS = {"form_must_not_predict", "skip_unlabelled"}


def _reading_option(name: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=_READING[name], show_default=False)
    kind: Any = bool if name in _FLAGS else (int if name in _WHOLE_NUMBERS else str) | None
    default = False if name in _FLAGS else None
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_data_options(*, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of `_READING`; `data_keys` reads them."""
    added = [_reading_option(name) for name in _READING if name not in without]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        names = list(signature.parameters)
        position = names.index("data_root") if "data_root" in names else names.index("assignments") + 1
        parameters = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in signature.parameters.values()]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            command(**{name: values[name] for name in signature.parameters})

        parameters[position:position] = added
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return wrapper

    return add


Chosen = TypeVar("Chosen")


def chosen(kind: type[Chosen], values: Mapping[str, Any], **others: Any) -> Chosen:
    """Builds settings from the options of a command with the same names (its ``locals()``), and from ``others``."""
    # The signature of a pydantic model here takes any keyword, so its fields are used.
    names = getattr(kind, "model_fields", None) or inspect.signature(kind).parameters
    return kind(**{name: values[name] for name in names if name in values} | others)


Place = TypeVar("Place", str, Path)


def one_run(place: Place, *, quiet: bool = False) -> Place:
    """Returns the run that an argument stands for; prints on standard error which run of a comparison was taken.

    An argument that is no folder, for example a preset, is returned as it is.
    """
    from recurra.core.best_run import find_run

    run = find_run(place)
    if not run.note:
        return place
    if not quiet:
        complain(run.note)
    return type(place)(run.folder)


def data_keys(context: typer.Context) -> dict[str, Any]:
    """Keys of the data that the options of a command line set."""
    from recurra.tasks.base import tasks

    # The ``name`` and ``protocol`` of a command differ from those of the data.
    fields = {field for task in tasks() for field in task.data_config.model_fields} - {"name", "protocol"}
    keys = {key: value for key, value in context.params.items() if key in fields}
    keys["protocol"] = context.params.get("data_protocol")
    label = keys.get("label_column")
    if label is not None and keys.get("label_columns") is None and "," in label:
        keys |= {"label_column": None, "label_columns": label}
    return {key: value for key, value in keys.items() if value is not None and value is not False}


def read_keys(
    name: str, keys: Mapping[str, Any], assignments: Sequence[str] | None, *, model_keys: bool = False
) -> tuple[Task, dict[str, Any], Assignments]:
    """The task of data, their keys from options and ``data.KEY=VALUE`` (which win), and all assignments."""
    from recurra.core.errors import ConfigurationError
    from recurra.data.tables import STREAM_FORMATS, check_path, format_of
    from recurra.study.assignments import read_assignments
    from recurra.tasks.base import task_of_values

    # A missing file is reported first.
    if format_of(name) in STREAM_FORMATS:
        check_path(Path(name), STREAM_FORMATS)
    assigned = read_assignments(assignments or [])
    values = {**keys, "name": name, **assigned.data}
    task = task_of_values(values)
    assigned.check(task, model_keys=model_keys)
    for key in keys:
        if key not in task.data_config.model_fields:
            option = "--data-protocol" if key == "protocol" else f"--{key.replace('_', '-')}"
            raise ConfigurationError(f"'{option}' has no meaning here: '{name}' is {task.kind_of_data}; leave it out")
    return task, values, assigned


def configured_data(
    context: typer.Context,
    name: str,
    assignments: Sequence[str] | None,
    data_root: Path | None,
    *,
    cache_dir: Path | None = None,
    models: Sequence[str] | None = None,
) -> tuple[Task, RunData, StudyData]:
    """The task of data, their configuration from options and ``key=value``, and the `StudyData` to read them."""
    from recurra.tasks.runs import resolve_model
    from recurra.tasks.study_data import Machine, StudyData

    readers = None if models is None else [resolve_model(model) for model in models]
    pairs = [f"data.{pair.removeprefix('data.')}" for pair in assignments or []]
    task, values, _ = read_keys(name, data_keys(context), pairs)
    study_data = StudyData(Machine(data_root=data_root, cache_dir=cache_dir))
    return task, task.configure_data(values, study_data, models=readers)[0], study_data
