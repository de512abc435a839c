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
    path = write_predictions(tmp_path, "test", ids, labels, logits)
    assert path == tmp_path / "predictions" / "test.parquet"
    back = read_predictions(tmp_path, "test")
    assert back.ids == ids
    assert np.array_equal(back.labels, labels)
    assert back.logits.dtype == np.float32
    if rows:
        assert np.array_equal(back.logits, logits)
        assert np.array_equal(back.correct, logits.argmax(axis=1) == labels)
    assert len(back) == rows
    assert [item.name for item in path.parent.iterdir()] == ["test.parquet"]


def test_missing_split_names_those_that_are_there(tmp_path: Path) -> None:
    write_predictions(tmp_path, "validation", ["a"], [1], [[0.0, 1.0]])
    with pytest.raises(CheckpointError, match=r"'test'; there: validation;"):
        read_predictions(tmp_path, "test")


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write_predictions(tmp_path, "test", ["a"] * 50, [1] * 50, [[0.0, 1.0]] * 50)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_predictions(tmp_path, "test")


def test_what_the_system_refuses_is_said_with_its_reason(tmp_path: Path) -> None:
    # As of a folder that may not be searched, which nobody is refused who may do everything.
    predictions_path(tmp_path, "test").parent.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\)"):
        read_predictions(tmp_path, "x" * 300)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": pa.array(["a"])}, "columns"),
        (
            {
                "id": pa.array(["a", "b"]),
                "label": pa.array([0, 1]),
                "logits": pa.array([[0.0, 1.0], [1.0]], pa.list_(pa.float32())),
            },
            "rows of",
        ),
        (
            {
                "id": pa.array(["a"]),
                "label": pa.array([None], pa.int64()),
                "logits": pa.array([[0.0, 1.0]], pa.list_(pa.float32())),
            },
            "empty cells",
        ),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, columns: dict[str, pa.Array], words: str) -> None:
    path = predictions_path(tmp_path, "test")
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)
    with pytest.raises(CheckpointError, match=words):
        read_predictions(tmp_path, "test")
