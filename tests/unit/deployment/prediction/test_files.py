"""Files of predictions: the same rows in every format, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recurra.core.errors import ConfigurationError, StorageError
from recurra.deployment.decision import OneLabel
from recurra.deployment.prediction.files import SUFFIXES, PredictedRows, check_output, open_writer
from reviews import read_rows

NAMES = ["bad", "good", "so, so"]
TEXTS = ['a "quoted", text', "", "two\nlines\tand a tab", "naïve ☕", "plain"]


def rows(start: int, stop: int) -> PredictedRows:
    scores = np.random.default_rng(0).dirichlet(np.ones(3), len(TEXTS))
    return PredictedRows(TEXTS[start:stop], scores[start:stop])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_come_back_in_order_with_what_was_predicted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    with open_writer(path, OneLabel(NAMES)) as writer:
        writer.write(rows(0, 2))
        writer.write(rows(2, 5))
    found = read_rows(path)
    expected = rows(0, 5).probabilities
    assert [row["text"] for row in found] == TEXTS
    assert "naïve ☕".encode() in path.read_bytes()
    assert [row["label"] for row in found] == [NAMES[index] for index in expected.argmax(axis=1)]
    for row, probabilities in zip(found, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-6)
        each = row.get("probabilities") or {name: row[f"probability_{name}"] for name in NAMES}
        assert [float(each[name]) for name in NAMES] == pytest.approx(probabilities, abs=1e-6)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_rows_are_a_valid_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    with open_writer(path, OneLabel(NAMES)):
        pass
    assert read_rows(path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_there_stays_if_writing_breaks_off(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    path.write_text("old")
    with pytest.raises(KeyError), open_writer(path, OneLabel(NAMES)) as writer:
        writer.write(rows(0, 2))
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown extension '\.cvs' \(did you mean '\.csv'"):
        check_output(tmp_path / "p.cvs")
    source = tmp_path / "r.csv"
    source.write_text("text\nx\n")
    link = tmp_path / "link.csv"
    link.symlink_to(source)
    with pytest.raises(StorageError, match="the input itself"):
        check_output(link, source)
    check_output(tmp_path / "other.csv", source)
    check_output(tmp_path / "other.csv", "-")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        check_output(tmp_path / "folder.csv")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_what_a_spreadsheet_would_run_is_written_as_text_if_that_is_asked_for(tmp_path: Path, suffix: str) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\ttab", "\rreturn", "2 - 1 = 1", "'quoted", ""]
    path = tmp_path / f"p{suffix}"
    names = ["=cmd()", "good"]
    for escape in (False, True):
        with open_writer(path, OneLabel(names), escape_formulas=escape) as writer:
            writer.write(PredictedRows(texts, np.tile([0.75, 0.25], (len(texts), 1))))
        found = read_rows(path)
        mark = "'" if escape else ""
        assert [row["text"] for row in found] == [*(f"{mark}{text}" for text in texts[:6]), *texts[6:]]
        assert {row["label"] for row in found} == {f"{mark}=cmd()"}
        # Numbers are none: those below 0 do not occur, and others would come back as words.
        assert {float(row["probability"]) for row in found} == {0.75}
        # A carriage return ends a line for some readers, unless it stands in quotes; of others a cell has them at most.
        rows = path.read_bytes().decode().split("\n")[1:-1]
        assert [row.count('"') for row in rows if "\r" in row] == [2 * len(found[0])]
        assert {row.count('"') for row in rows if "\r" not in row} <= {0, 2}
