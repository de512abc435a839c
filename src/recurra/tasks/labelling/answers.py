"""Answers that came from elsewhere, such as a large language model's, recorded as a run that has no model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.environment import available_cores
from recurra.core.errors import ConfigurationError, DataError, did_you_mean
from recurra.core.record import AuditResult, LabelRunRecord, ModelRecord
from recurra.core.record_parts import ANSWERS
from recurra.data.cleaning import clean_text
from recurra.data.configuration import DataConfig
from recurra.data.formats import check_text, join_cells, matching_column, split_names
from recurra.data.labels import DEFAULT_ID_COLUMN, as_identity, as_word, listed_numbers, spelling_key
from recurra.data.splits import read_rows
from recurra.data.tables import TableFile
from recurra.deployment.decision import OneLabel
from recurra.deployment.prediction.files import ABSTAINED, PREDICTED, PROBABILITIES
from recurra.evaluation.audits.grading import grade
from recurra.evaluation.predictions import write_predictions
from recurra.tasks.base import ANSWERS_HASH, RunConfig
from recurra.tasks.labelling import labelled
from recurra.tasks.run_folder import run_facts, single_fit
from recurra.tasks.study_data import StudyData, hash_of_files

# At least so many answers that are all right may be the data's own labels, if another column has labels too.
LEAST_ALL_RIGHT = 20
# How far the sum of the probabilities of a row may be from 1, and what a probability of 0 counts as in a loss.
TOLERANCE, LEAST_PROBABILITY = 1e-3, 1e-6

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Row:
    position: int
    id: str
    text: str
    scores: Scores
    abstained: bool


def read_answers(config: RunConfig, data: StudyData) -> tuple[Mapping[str, Scores], bool]:
    """Reads the answers of a run and finds the test row of each, by its identity or by its text.

    Returns:
        Logits of the test rows by identity, and whether they stand for labels without probabilities.

    Raises:
        ConfigurationError: If the file has changed since the run was planned.
        DataError: If a test row has no answer, a row is answered twice or is none of the data's, or an answer is
            neither a label of the data nor probabilities of all of them.
    """
    # Every fold has all rows of the file.
    first = labelled(config.data).every_fold[0]
    path, planned = Path(str(config.answers)), config.model_overrides.get(ANSWERS_HASH)
    return data.once(f"answers {path} {planned}", first, lambda: _read(path, planned, first, data))


def _read(path: Path, planned: str | None, config: DataConfig, data: StudyData) -> tuple[dict[str, Scores], bool]:
    dataset = data.rows(config)
    try:
        table, rows, label_column = _rows_of(path, config, dataset.label_names, None)
    except DataError as error:
        # Programs answer in UTF-8, whatever the encoding of the data.
        if config.encoding is None or not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        table, rows, label_column = _rows_of(path, config, dataset.label_names, config.encoding)
    if planned is not None and hash_of_files([path]) != planned:
        raise ConfigurationError(f"{table.source} was changed after the comparison was planned; start it again")
    files = [Path(file) for file in (config.name, config.validation, config.test) if file and Path(file).is_file()]
    corpus = [row for file in files for row in file_rows(file, config)]
    corpus = corpus or [row for split in dataset.splits.values() for row in zip(split.ids, split.texts, strict=True)]
    by_id = bool({row.id for row in rows} & {row_id for row_id, _ in corpus})
    left = Counter(row_id if by_id else text for row_id, text in corpus)
    keyed = [(row.id if by_id else row.text, row) for row in rows if by_id or row.text]
    name = Path(config.name).name
    if unmatched := [row.position for key, row in keyed if key not in left]:
        needed = "an id" if by_id else f"a text (column '{config.text_column}')"
        raise DataError(
            f"{table.source} has {len(unmatched):,} answers that match no row of '{name}' ({table.unit} "
            f"{listed_numbers(unmatched, 5)}); each needs {needed} from '{name}'"
        )
    answers: dict[str, _Row] = {}
    for key, row in keyed:
        first = answers.setdefault(key, row)
        left[key] -= 1
        if left[key] < 0 or (first is not row and (by_id or not np.array_equal(first.scores, row.scores))):
            remedy = "" if by_id else f", by its id where texts repeat (column {id_column(config)})"
            raise DataError(
                f"{table.source} {table.unit} {row.position} answers the row of {table.unit} {first.position} again; "
                f"give one answer a row{remedy}"
            )
    judged = [fold.splits[fold.headline_split] for fold in map(data.rows, config.every_fold)]
    answer_keys = {
        row_id: row_id if by_id else text
        for split in judged
        for row_id, text in zip(split.ids, split.texts, strict=True)
    }
    if missing := [row_id for row_id, key in answer_keys.items() if key not in answers]:
        folds = len(config.every_fold)
        hint = f"with {folds} folds every row is a test row (--folds 1 tests a part of them): " if folds > 1 else ""
        raise DataError(
            f"{table.source} lacks the answers of {len(missing):,} of {len(answer_keys):,} test rows "
            f"({', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}); {hint}answer every row of '{name}'"
        )
    if abstained := sorted(answers[key].position for key in answer_keys.values() if answers[key].abstained):
        raise DataError(
            f"{table.source} gives no label to {len(abstained):,} of {len(answer_keys):,} test rows ({table.unit} "
            f"{listed_numbers(abstained, 5)}); give each a label, or leave out the key or column 'abstained'"
        )
    scores = {row_id: answers[key].scores for row_id, key in answer_keys.items()}
    if label_column and len(scores) >= LEAST_ALL_RIGHT:
        truth = (row for split in judged for row in zip(split.ids, split.labels.tolist(), strict=True))
        if all(scores[row_id].argmax() == label for row_id, label in truth):
            _refuse_truth(table, label_column, len(scores), config, dataset.label_names)
    return scores, bool(label_column)


def _refuse_truth(table: TableFile, column: str, num_rows: int, config: DataConfig, label_names: Sequence[str]) -> None:
    """Refuses a file whose label column has the labels of the data, while another column may have the answers."""
    read_columns = [id_column(config), *config.text_column.split(","), "label", config.label_column]
    expected = {name.strip().casefold() for name in read_columns}
    others = [name for name in table.columns() if name.strip().casefold() not in expected]
    labels = {name.casefold() for name in label_names}
    without_labels = {
        name
        for _, cells in table.rows(others)
        for name, cell in zip(others, cells, strict=True)
        if str(cell).strip().casefold() not in labels
    }
    label_columns = [name for name in others if name not in without_labels]
    if label_columns and column.strip().casefold() != f"label{PREDICTED}":
        raise DataError(
            f"{table.source} has in column '{column}' the label of the data for all {num_rows:,} test rows, so it "
            f"may not hold answers; call the column of the answers 'label{PREDICTED}' ({', '.join(label_columns[:10])} "
            "has labels too)"
        )


def id_column(config: DataConfig) -> str:
    """The column of a file that holds identities, if it is there."""
    return config.id_column or DEFAULT_ID_COLUMN


def file_rows(path: Path, config: DataConfig) -> list[tuple[str, str]]:
    """Identity and cleaned text of all rows of a user's file, also of those left out for lack of a label.

    A left-out row that repeats an identity is named by its position.
    """
    usable, _ = read_rows(path, config)
    ids = dict(zip(usable.row_numbers, usable.ids, strict=True))
    has_ids = usable.ids != [f"{usable.unit}-{position}" for position in usable.row_numbers]
    table = TableFile(path, config.text_column.split(","), encoding=config.encoding)
    columns, column = split_names(config.text_column, table.header), id_column(config)
    if config.id_column:
        column = matching_column(table.source, column, table.columns()) or column
    used, rows = set(usable.ids), []
    for position, cells in table.rows(columns, [column]):
        own_id = as_identity(cells[-1], table.source, table.unit, position, column)
        row_id = ids.get(position) or (own_id if has_ids and own_id not in used else "") or f"{table.unit}-{position}"
        used.add(row_id)
        rows.append((row_id, _text(cells[:-1], table, position, config)))
    return rows


def _text(cells: Sequence[Any], table: TableFile, position: int, config: DataConfig) -> str:
    parts = [check_text(cell, table.source, table.unit, position) for cell in cells]
    return clean_text(join_cells(parts, len(parts)), config.clean)


def _rows_of(
    path: Path, config: DataConfig, names: Sequence[str], encoding: str | None
) -> tuple[TableFile, list[_Row], str]:
    """The rows of a file of answers, and its column of labels; this is empty if it has probabilities."""
    wanted = [id_column(config), *config.text_column.split(","), "label", config.label_column]
    table = TableFile(path, wanted, encoding=encoding)
    present = table.columns()
    matched = [matching_column(table.source, name, present) for name in split_names(config.text_column, present)]
    text_columns = [name for name in matched if name is not None] if None not in matched else []
    # Without a configured id column only the exact default name counts, as in the data.
    id_name = matching_column(table.source, config.id_column, present) if config.id_column else DEFAULT_ID_COLUMN
    id_columns = [id_name] if id_name in present else []
    if not text_columns and not id_columns:
        raise DataError(
            f"{table.source} has neither the column '{id_column(config)}' nor '{config.text_column}', by which its "
            f"rows are found in '{Path(config.name).name}'; there: {', '.join(present)}"
        )
    # `predict` adds this suffix where columns of the same name, such as another model's, are there already.
    columns = next(
        (
            columns
            for suffix in (PREDICTED, "")
            for columns in ([f"probability_{name}{suffix}" for name in names], [f"{PROBABILITIES}{suffix}"])
            if set(columns) <= set(present)
        ),
        [],
    )
    label_column = ""
    if not columns:
        candidates = [f"label{PREDICTED}", "label", config.label_column]
        exact = [name for name in candidates if name in present]
        similar = [name for name in (matching_column(table.source, name, present) for name in candidates) if name]
        if not similar:
            raise DataError(
                f"{table.source} has no column 'label', and no column probability_NAME for each of the labels "
                f"{', '.join(names[:20])}; there: {', '.join(present)}"
            )
        label_column = [*exact, *similar][0]
        columns = [label_column]
    label_by_spelling = {spelling_key(name): name for name in names} if config.join_labels else {}
    index = {name: number for number, name in enumerate(names)}

    def row_probabilities(cells: Sequence[Any], position: int) -> npt.NDArray[Any]:
        where = f"{table.source} {table.unit} {position}"
        if not label_column:
            return _probabilities(cells, names, where)
        word = as_word(cells[0], table.source, table.unit, position, label_column)
        label = word if word in index else label_by_spelling.get(spelling_key(word), word)
        if label not in index:
            answer = f"the label '{word[:60]}'{did_you_mean(word, names)}" if word else "no label"
            raise DataError(
                f"{where} has {answer} in column '{label_column}'; the labels of '{Path(config.name).name}' are "
                f"{', '.join(names[:20])}"
            )
        return np.arange(len(names)) == index[label]

    rows = []
    abstained = _abstained_column(columns, present) if not label_column else ""
    for position, (*cells, flag) in table.rows([*columns, *text_columns, *id_columns, abstained or columns[0]]):
        scores = np.log(np.maximum(row_probabilities(cells[: len(columns)], position), LEAST_PROBABILITY))
        own_cells = cells[len(columns) :]
        row_id = as_identity(own_cells[-1], table.source, table.unit, position, id_columns[0]) if id_columns else ""
        text = _text(own_cells[: len(text_columns)], table, position, config) if text_columns else ""
        has_no_label = bool(abstained) and str(flag).strip().casefold() == "true"
        rows.append(_Row(position, row_id, text, scores.astype(np.float32), has_no_label))
    return table, rows, label_column


def _abstained_column(columns: Sequence[str], present: Sequence[str]) -> str:
    """The column that says whether a row abstained, if `predict` wrote these probabilities; else empty."""
    if not columns[0].endswith(PREDICTED):
        return ABSTAINED if ABSTAINED in present else ""
    if f"{ABSTAINED}{PREDICTED}" in present:
        return f"{ABSTAINED}{PREDICTED}"
    # `predict` writes its own columns last; an earlier one is another model's.
    label_column = f"label{PREDICTED}"
    following = present[present.index(label_column) :] if label_column in present else []
    return ABSTAINED if ABSTAINED in following else ""


def _probabilities(cells: Sequence[Any], names: Sequence[str], where: str) -> npt.NDArray[np.float64]:
    """Probabilities of the labels, from a cell for each or from one object that holds all."""
    if len(cells) == 1:
        (by_name,) = cells
        if not isinstance(by_name, Mapping) or set(by_name) != set(names):
            raise DataError(
                f"{where} has no object in '{PROBABILITIES}' with a number for each of {', '.join(names[:20])}"
            )
        cells = [by_name[name] for name in names]
    try:
        values = [float(cell) for cell in cells]
    except (TypeError, ValueError, OverflowError):
        values = [math.nan]
    total = sum(values)
    if not all(0 <= value <= 1 + TOLERANCE for value in values) or abs(total - 1) > TOLERANCE:
        raise DataError(
            f"{where} has probabilities that sum to {total:g}; numbers from 0 to 1 that sum to 1 (within "
            f"{TOLERANCE:g}) are needed"
        )
    return np.array(values)


def record_answers(task: Any, config: RunConfig, folder: Path, data: StudyData, *, started: float) -> LabelRunRecord:
    """Keeps the answers of the test rows as predictions, and measures them like the predictions of a model."""
    rows, (answers, labels_only) = labelled(config.data), read_answers(config, data)
    dataset = data.rows(rows)
    split = dataset.splits[dataset.headline_split]
    logits = np.stack([answers[row_id] for row_id in split.ids])
    write_predictions(folder, split.name, split.ids, split.labels, logits)
    # Probabilities are taken as given, without a temperature.
    decision = OneLabel(dataset.label_names)
    metrics = task.measure(logits, split.labels, decision)
    others = tuple(f".{name}" for name in dataset.splits if name != split.name)
    audits = [
        audit
        for audit in data.once("audits", rows, lambda: task.data_audits(dataset))
        if not audit.name.endswith(others)
    ]
    right = {split.name: decision.same(logits, split.labels)}
    record_class: type[LabelRunRecord] = task.record_class
    return record_class(
        **run_facts(config, started, data.machine.threads or available_cores()),
        data=dataset.record(),
        model=ModelRecord(
            preset=config.model,
            kind=ANSWERS,
            parameters=0,
            embedding_parameters=0,
            non_embedding_parameters=0,
            flops_per_token=0.0,
            file_size_bytes=0,
            description=f"answers of {Path(str(config.answers)).name}",
        ),
        training=single_fit(config),
        metrics={split.name: metrics.without_probabilities() if labels_only else metrics},
        audits=[
            *grade(audits, right, config.label, form_must_not_predict=rows.form_must_not_predict),
            AuditResult(
                name="training-data.unknown",
                status="note",
                summary="the source of the answers may have seen the test rows in training: leakage cannot be excluded",
            ),
        ],
        decision=decision.record(),
    )
