from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra.core.errors import CheckpointError
from recurra.evaluation.predictions import predictions_path, read_predictions, write_predictions


@pytest.mark.parametrize(("rows", "classes"), [(7, 2), (1, 3), (0, 2)])
def test_round_trip_is_exact(tmp_path: Path, rows: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(rows, classes)).astype(np.float32)
    labels = rng.integers(0, classes, size=rows)
    ids = [f"zeile-{index}-ü" for index in range(rows)]
    write_predictions(tmp_path, "test", ids, labels, logits)
    back = read_predictions(tmp_path, "test")
    assert (back.ids, back.labels.tolist(), back.logits.tolist()) == (ids, labels.tolist(), logits.tolist())
    assert back.logits.dtype == np.float32 and len(back) == rows
    if rows:
        assert np.array_equal(back.correct, logits.argmax(axis=1) == labels)
    assert [item.name for item in (tmp_path / "predictions").iterdir()] == ["test.parquet"]


def test_runs_share_equal_rows_and_no_others(tmp_path: Path) -> None:
    logits = np.eye(2)[[0, 1, 1]]
    for run, labels in (("a", [0, 1, 1]), ("b", [0, 1, 1]), ("c", [0, 1, 0])):
        write_predictions(tmp_path / run, "test", ["x", "y", "z"], labels, logits[::-1] if run == "b" else logits)
    first, same, other = (read_predictions(tmp_path / run, "test") for run in "abc")
    assert same.ids is first.ids and same.key == first.key and not np.array_equal(same.logits, first.logits)
    assert other.labels.tolist() == [0, 1, 0] and other.key != first.key


def test_files_that_are_missing_cut_or_refused_by_the_system_say_so(tmp_path: Path) -> None:
    write_predictions(tmp_path, "validation", ["a"] * 50, [1] * 50, [[0.0, 1.0]] * 50)
    path = predictions_path(tmp_path, "validation")
    with pytest.raises(CheckpointError, match=r"'test'; there: validation;"):
        read_predictions(tmp_path, "test")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_predictions(tmp_path, "validation")
    # As of a folder that may not be searched, which nobody is refused who may do everything.
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\)"):
        read_predictions(tmp_path, "x" * 300)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = predictions_path(tmp_path, "test")
    path.parent.mkdir(parents=True)
    for labels, logits, words in (([0, 1], [[0.0, 1.0], [1.0]], "rows of"), ([None], [[0.0, 1.0]], "empty cells")):
        columns = {"id": list(map(str, range(len(labels)))), "label": pa.array(labels, pa.int64())}
        pq.write_table(pa.table({**columns, "logits": pa.array(logits, pa.list_(pa.float32()))}), path)
        with pytest.raises(CheckpointError, match=words):
            read_predictions(tmp_path, "test")
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(CheckpointError, match="columns"):
        read_predictions(tmp_path, "test")
