"""One call from a labelled file, a corpus or rows in memory to a report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from recurra.core.configuration import names_in, plain_name
from recurra.core.errors import ConfigurationError, DataError, errors_for_python
from recurra.core.files import write_text
from recurra.core.progress import Reporter
from recurra.data.columns import check_lengths, is_missing, kind_of, one_dimension, plain_value, with_article
from recurra.data.configuration import DataConfig, RunData
from recurra.data.formats import split_names
from recurra.data.frames import opened_rows, rows_in_memory
from recurra.data.labels import as_word
from recurra.deployment.prediction.files import PREDICTED, PROBABILITIES
from recurra.ladder import choose_models
from recurra.reported_study import StudyResult, refuse_folder_of_another, run_and_report
from recurra.study.assignments import sort_keywords
from recurra.study.plan import ROWS_NAME
from recurra.study.run import preflight
from recurra.study.spec import StudySpec, expand
from recurra.study.status import within_minutes
from recurra.tasks.base import ANSWERS_FILE, ENCODER, WORDS_AND_ENCODER, control_of, task_of_data, task_of_values
from recurra.tasks.labelling import labelled
from recurra.tasks.labelling.answers import file_rows, id_column
from recurra.tasks.runs import Entry, resolve_model
from recurra.tasks.study_data import Machine, StudyData

# With fewer rows in all, a tenth of them is too few to judge models by, and every row becomes a test row of one fold;
# unless their texts are so long that all folds read more tokens than those of 2,000 sentences.
ROWS_OF_ONE_SPLIT, FOLDS = 2_000, 5
MOST_FOLDED_TOKENS = ROWS_OF_ONE_SPLIT * 64
# Folder of a comparison that names none; it is not the title of the report.
DEFAULT_OUTPUT = "runs/compare"
# Models that come with the package, and a length that no sentence of the demo exceeds.
DEMO_MODELS, DEMO_MAX_LENGTH = ("linear-tuned", "recurra-small-and-words", "recurra-small"), 64


@dataclass(frozen=True)
class CompareRequest:
    """A request for a comparison: keywords of `compare`, which documents them, or options of the command.

    Attributes:
        workers: Runs at once; 0 chooses.
    """

    values: Mapping[str, Any]
    protocol_keys: Mapping[str, Any]
    models: Sequence[Entry] | None = None
    protocol: str | None = None
    encoder: str | None = None
    plan: str | None = None
    teacher: str | None = None
    from_scratch: bool = False
    seeds: int | Sequence[int] | None = None
    precision: str | None = None
    title: str | None = None
    max_mib: float | None = None
    max_ms: float | None = None
    measure: str | None = None
    predictions: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | None = None
    workers: int = 0

    def plan_study(self, data: StudyData, output: Path, reporter: Reporter) -> tuple[StudySpec, str]:
        """The study for this request, and a line on what was chosen.

        Raises:
            RecurraError: If the data or the configuration cannot be used.
        """
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigurationError(f"--minutes is {self.minutes:g}; a budget is a finite number above 0")
        task = task_of_values(self.values)
        ladder = choose_models(
            task,
            self.models,
            protocol=self.protocol,
            encoder=self.encoder,
            plan=self.plan,
            teacher=self.teacher,
            from_scratch=self.from_scratch,
        )
        readers = [resolve_model(model) for model in ladder.models]
        config, note = task.configure_data(self.values, data, models=readers)
        trained = [overrides for reader, overrides in readers if control_of(reader, overrides) is None]
        config, folds_note = cross_validated(config, data, trained=bool(trained))
        entries, training, protocol_note = ladder.for_rows(config, data)
        answers = {name: _answers_file(name, value, config, data, output) for name, value in self.predictions.items()}
        precision, precision_note = self.precision, ""
        if precision is None:
            # A frozen encoder is not trained, but reads as many texts.
            reading = trained or [keys for reader, keys in readers if control_of(reader, keys) == WORDS_AND_ENCODER]
            precision, precision_note = precision_here(reading)
        seeds = ladder.seeds if self.seeds is None else self.seeds
        spec = StudySpec.parse(
            {
                "name": study_name(config.name),
                "data": [config],
                "models": [*entries, *({"name": name, ANSWERS_FILE: path} for name, path in answers.items())],
                "protocols": [training],
                "protocol_overrides": dict(self.protocol_keys),
                "seeds": list(seeds if isinstance(seeds, Iterable) else range(seeds)),
                "precision": precision,
                "title": self.title or ("" if output == Path(DEFAULT_OUTPUT) else output.name),
                "max_mib": self.max_mib,
                "max_ms": self.max_ms,
                "measure": self.measure,
                "prices": self.prices,
            },
            source="comparison",
        )
        budget = ""
        if self.minutes is not None:
            # A bad file of answers is reported before timing starts to train.
            preflight([run for run in expand(spec) if run.answers], data)
            spec, budget = within_minutes(spec, output, data, self.minutes, workers=self.workers, reporter=reporter)
        return spec, "; ".join(filter(None, (ladder.note, note, folds_note, protocol_note, precision_note, budget)))


def _answers_file(name: str, value: Any, config: RunData, data: StudyData, output: Path) -> str:
    """The file of the answers of one name; answers in memory are written to a file.

    Answers without ids or texts belong to the rows of the data in their order, or of a test file.
    """
    if isinstance(value, str | Path):
        return str(value)
    arg, first = f"predictions['{name}']", value[0] if isinstance(value, list) and value else None
    task_of_data(config).check_model(name, {ANSWERS_FILE: arg}, config.name)
    config = labelled(config)
    names = data.rows(config.every_fold[0]).label_names
    label_columns = {"label", f"label{PREDICTED}", config.label_column}
    if isinstance(value, Mapping) or isinstance(first, Mapping) or hasattr(value, "columns"):
        columns, column = opened_rows(value, arg, [])
        cells = {
            heading
            if isinstance(heading, str)
            else as_word(plain_value(heading), arg, "column", number, "name"): column(heading)
            for number, heading in enumerate(columns, start=1)
        }
        if set(names) <= set(cells) and not label_columns & set(cells):
            cells = {f"probability_{key}" if key in names else key: column for key, column in cells.items()}
    elif getattr(value, "ndim", 1) == 2 or isinstance(first, list | tuple) or getattr(first, "ndim", 0) == 1:
        cells = {PROBABILITIES: _by_label(value, names, arg)}
    else:
        cells = {"label": one_dimension(value, arg)}
    answers = {key for key in cells if key in {*label_columns, PROBABILITIES} or key.startswith("probability_")}
    if not answers:
        raise DataError(
            f"{arg} has the columns {', '.join(cells) or 'none'}; give a column 'label', or one of probabilities for "
            f"each of {', '.join(names[:20])}"
        )
    rows_named = {id_column(config), config.text_column, *split_names(config.text_column, ())}
    if not rows_named & set(cells):
        if answers != set(cells):
            raise DataError(
                f"{arg} has the columns {', '.join(cells)}, which do not say to which rows they belong; add "
                f"'{id_column(config)}' or '{config.text_column}', or give the answers alone, one a row in their order"
            )
        source = Path(config.test or config.name)
        if not source.is_file():
            raise DataError(f"{arg} are of the corpus '{config.name}'; give a table with its ids or texts")
        ids = [row for row, _ in file_rows(source, config)]
        if wrong := [len(column) for column in cells.values() if len(column) != len(ids)]:
            raise DataError(
                f"{arg} has {wrong[0]:,} answers, and '{source.name}' {len(ids):,} rows; give one answer a row, in "
                "the same order, or a table with ids or texts"
            )
        cells[id_column(config)] = ids
    check_lengths(cells, arg)
    wanted = answers | rows_named
    cells = {
        key: [None if is_missing(cell) else cell for cell in _as_named(column, names if key in label_columns else [])]
        for key, column in cells.items()
        if key in wanted
    }
    records = (dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True))
    lines = "".join(f"{json.dumps(row, ensure_ascii=False, default=str)}\n" for row in records)
    path = output / ROWS_NAME / f"answers-{hashlib.sha256(lines.encode()).hexdigest()[:16]}.jsonl"
    write_text(path, lines)
    return str(path)


def _by_label(rows: Any, names: list[str], arg: str) -> list[dict[str, float]]:
    """Probabilities of each row by the name of the label; refused where its column is not certain."""
    orders = [sorted(names)]
    with contextlib.suppress(ValueError):
        orders.append(sorted(names, key=float))
    if other := next((order for order in orders if order != names), None):
        # Words are sorted by scikit-learn, numbers by their values, and `order_labels` has the good one last.
        raise DataError(
            f"{arg} has columns without names, which may be {', '.join(names[:20])} or {', '.join(other[:20])}; give "
            "pandas.DataFrame(probabilities, columns=labels)"
        )
    try:
        listed = [list(map(float, row)) for row in rows]
    except (TypeError, ValueError) as error:
        raise DataError(f"{arg} has rows that are not probabilities; give one for each of {names}") from error
    if wrong := [len(row) for row in listed if len(row) != len(names)]:
        raise DataError(f"{arg} has rows of {wrong[0]} probabilities; give one for each of {names}")
    return [dict(zip(names, row, strict=True)) for row in listed]


def _as_named(cells: list[Any], names: list[str]) -> list[Any]:
    """Cells as the labels are spelt where they are truth values: False, 0 and 0.0 are one, as in Python."""
    two_values = [name.lower() for name in names] == ["false", "true"] or names == ["0", "1"]
    return [names[int(cell)] for cell in cells] if two_values and all(cell in (0, 1) for cell in cells) else cells


def named_values(assignments: Iterable[str], option: str, example: str) -> dict[str, str]:
    """Reads ``NAME=VALUE`` of an option that may be repeated.

    Raises:
        ConfigurationError: If a value has another form, or a name is given twice.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals and value):
            raise ConfigurationError(f"{option} '{assignment}' is not NAME=VALUE; write it as {option} {example}")
        if name in values:
            raise ConfigurationError(f"{option} names '{name}' twice; name it once")
        values[name] = value
    return values


def precision_here(models: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The precision to train in if none is given, and the reason if it is not FP32.

    It is bf16 where all models start from a pretrained encoder and this machine has instructions for it. Their recipes
    were chosen in bf16 (`docs/results/ladder.md`); a model from scratch keeps FP32, and loads no library to find out.

    Args:
        models: Configuration of each model that is trained in passes over the texts.
    """
    if not models or not all(ENCODER in model for model in models):
        return "fp32", ""
    from recurra.models.inference import default_device, has_bf16

    if not has_bf16(default_device()):
        return "fp32", ""
    return "bf16", "precision: bf16, for which this machine has instructions (choose with --precision)"


def cross_validated(config: RunData, data: StudyData, *, trained: bool = True) -> tuple[RunData, str]:
    """Chooses five folds for a user's file with fewer than 2,000 rows, if ``folds`` is not given; says why.

    Long texts take as long as many: more than 128,000 tokens, as rows times ``max_length`` and ``windows``, get one
    split. So does a file with validation or test rows beside it, or too small for five folds.

    Raises:
        RecurraError: If the data cannot be used.
    """
    if (
        not isinstance(config, DataConfig)
        or not Path(config.name).is_file()
        or config.folds is not None
        or config.validation
        or config.test
    ):
        return config, ""
    # A part of the training rows leaves the test rows as they are.
    whole = config.model_copy(update={"fraction": 1.0, "rows_per_label": None})
    rows, used_rows = (sum(map(len, data.rows(part).splits.values())) for part in (whole, config))
    if rows >= ROWS_OF_ONE_SPLIT:
        return config, ""
    most_tokens = config.max_length * config.windows
    if trained and used_rows * most_tokens > MOST_FOLDED_TOKENS:
        reason = f"{used_rows:,} rows of up to {most_tokens} tokens would take long in {FOLDS} folds"
        return config, f"one split, because {reason} (to test every row once: --folds {FOLDS})"
    try:
        folds = [data.rows(fold).splits for fold in whole.model_copy(update={"folds": FOLDS}).every_fold]
    except DataError:
        return config, f"one split, because these {rows:,} rows cannot be split into {FOLDS} folds"
    trained_on = min(len(splits["train"]) for splits in folds)
    if trained_on < rows / 2:
        few = f"a large group would leave a fold {trained_on:,} of {rows:,} rows to train on"
        return config, f"one split, because {few} (to test every row once: --folds {FOLDS})"
    folded = config.model_copy(update={"folds": FOLDS})
    tested = sum(len(splits["test"]) for splits in folds)
    which = "every row is" if tested >= rows else f"{tested:,} of them are"
    return folded, f"{FOLDS} folds, because {rows:,} rows are few: {which} tested once (one split: --folds 1)"


def study_name(data: str) -> str:
    """Name of the comparison on a file or corpus."""
    return plain_name(Path(data).stem) or "data"


def demonstration(*, seeds: int = 1) -> CompareRequest:
    """The comparison on the corpus that comes with the package; needs no network and a few minutes."""
    values = {"name": "demo", "max_length": DEMO_MAX_LENGTH}
    return CompareRequest(values, {}, models=DEMO_MODELS, seeds=seeds, title="Demo: from which period is a sentence?")


@errors_for_python(**{"from": "encoder"})
def compare(
    data: Any,
    *,
    models: str | Sequence[str | dict[str, Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    output: str | Path = DEFAULT_OUTPUT,
    protocol: str | Mapping[str, Any] | None = None,
    precision: str | None = None,
    data_root: str | Path | None = None,
    quiet: bool = False,
    encoder: str | None = None,
    plan: str | None = None,
    teacher: str | Path | None = None,
    from_scratch: bool = False,
    max_mib: float | None = None,
    max_ms: float | None = None,
    measure: str | None = None,
    predictions: Mapping[str, Any] | None = None,
    prices: Mapping[str, float] | None = None,
    minutes: float | None = None,
    estimate: bool = True,
    final: bool | None = None,
    title: str | None = None,
    **keys: Any,
) -> StudyResult:
    """Trains and compares models on labelled rows, and writes the report.

    Rows in memory are written once, to ``output``, as Parquet under a name with their hash: the same call on the same
    rows takes up what is done, and on other rows it needs another ``output``.

    Args:
        data: A file, a corpus by name, a frame of pandas, polars or pyarrow, ``(texts, labels)``, a list of mappings,
            or a ``Dataset`` or ``DatasetDict`` of the library datasets, whose splits are used as they are. Labels are
            words or numbers, or lists of them for any number of labels a text.
        models: Presets, controls, encoders, or model files, one or several; None takes those of
            `recurra.ladder.choose_models`: a tuned linear model, words beside a frozen MiniLM, the small encoder of
            this package, MiniLM, and up to 400 training rows (100 with folds) SetFit, if its package is there.
        seeds: Number of seeds, or the seeds; None takes one, or three for models from scratch.
        output: Folder of the study; what is done there is not done again.
        protocol: Training protocol by name or file, or keys of one (``{"base": "tuned", "max_epochs": 5}``); None takes
            ``tuned``, or with an encoder the one for the number of training rows.
        precision: ``fp32`` or ``bf16``; None takes FP32, or bf16 where all models that are trained start from a
            pretrained encoder and this machine has instructions for it.
        encoder: A pretrained encoder to start from, e.g. ``minilm``.
        plan: Layers of the encoder that a student of it has; None makes no student.
        teacher: The teacher of that student, or of the small encoder: a run, an export or a folder of transformers,
            several separated by commas; None takes the tuned encoder for a student.
        from_scratch: Whether no pretrained weights are used.
        max_mib: Files on disk, in MiB, that the recommended model may have; it changes no run.
        max_ms: Median milliseconds a text at batch 1 that it may take.
        measure: What the models are judged by: ``accuracy``, ``macro_f1``, ``balanced_accuracy``,
            ``average_precision``, ``f1:LABEL``, ``average_precision:LABEL`` or ``cost:FILE`` (a CSV or
            JSON file of what each mistake costs, true by predicted label); of several labels a text ``micro_f1``,
            ``macro_f1`` or ``subset_accuracy``. None lets the data decide. It changes no run.
        predictions: Answers that came from elsewhere, by a name for them: a file, a table with ids or texts, or labels
            or probabilities ``(rows, labels)`` of all rows of the data (or of ``test``) in their order; see
            `recurra.tasks.labelling.answers`. Columns of an array are in the sorted order of the labels, as in
            ``classes_`` of scikit-learn, and it is refused where they may be in another; a DataFrame names them.
        prices: What a text costs with a model, by its name; it is shown, and changes no run.
        minutes: Minutes of training; see `recurra.study.status.within_minutes`.
        estimate: Whether time and memory of each model are estimated and printed before the first run starts; not if
            ``quiet``, or if ``minutes`` were given.
        final: Whether the recommended model is trained once more on test rows too, so that `StudyResult.best` has all
            rows but those that choose the epoch; None does it if it was trained in less than a minute.
        title: Heading of the report; None names the type of rows in memory, or takes the name of ``output``.
        data_root: Local copies of public corpora.
        quiet: Whether to print nothing.
        keys: Keys of the protocol (`recurra.training.protocols.ProtocolConfig`) and of the data
            (`recurra.data.configuration.DataConfig`); ``validation`` and ``test`` take what ``data`` takes,
            ``unlabelled`` also a list of texts. Without
            ``tokenizer`` the one of `recurra.data.tokenization.default_tokenizer`, and without
            ``max_length`` for a file the smallest of 64, 128, 256 and 512 tokens that holds 95 % of its training rows.

    Raises:
        RecurraError: If the data or the configuration cannot be used.
    """
    answered: Any = predictions
    if not isinstance(answered, Mapping | None):
        kind = with_article(kind_of(answered))
        raise ConfigurationError(f"predictions is {kind}; give a dict from a name to answers, as {{'gpt': answers}}")
    output, root = Path(output), Path(data_root) if data_root else None
    rows = rows_in_memory(data, keys)
    # Rows in memory have the name of their file; millions of them are not to be written out here.
    path = str(data) if isinstance(data, str | Path | None) else ""
    values = {"name": path, **keys, **(rows.options(output / ROWS_NAME) if rows else {})}
    keywords = [key for key, option in signature(compare).parameters.items() if option.kind is Parameter.KEYWORD_ONLY]
    name = str(values.pop("name"))
    base, assigned = sort_keywords(values, protocol, task=task_of_values({"name": name, **values}), others=keywords)
    request = CompareRequest(
        {"name": name, **assigned.data},
        assigned.protocol,
        models=names_in(models) if isinstance(models, str) else models,
        protocol=base,
        encoder=encoder,
        plan=plan,
        teacher=None if teacher is None else str(teacher),
        from_scratch=from_scratch,
        seeds=seeds,
        precision=precision,
        title=title or (rows.described if rows else ""),
        max_mib=max_mib,
        max_ms=max_ms,
        measure=measure,
        predictions=predictions or {},
        prices=dict(prices or {}),
        minutes=minutes,
    )
    if rows or predictions:
        refuse_folder_of_another(study_name(name), output)
    if rows:
        rows.write(output / ROWS_NAME)
    omit = {"values", "protocol_keys", "title", "workers"}
    shown = {**{key: value for key, value in vars(request).items() if key not in omit}, "protocol": protocol, **values}
    study_data, reporter = StudyData(Machine(data_root=root)), Reporter(quiet=quiet)
    spec, note = request.plan_study(study_data, output, reporter)
    # Answers in memory are in files now.
    entries = [model for model in spec.models if isinstance(model, dict)]
    answers = {model["name"]: model[ANSWERS_FILE] for model in entries if ANSWERS_FILE in model}
    arguments = {**shown, "predictions": answers, "from_scratch": from_scratch or None}
    options = [f"{key}={value!r}" for key, value in arguments.items() if value is not None and value != {}]
    return run_and_report(
        spec, output, study_data, reporter=reporter, note=note, estimate=estimate and minutes is None, final=final,
        command=f"recurra.compare({', '.join([repr(name), *options, f'output={str(output)!r}'])})",
    )  # fmt: skip
