"""Accuracy by length of text: figures by hand, by the committed records, and what stands in their way."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from committed import RESULTS
from factories import RunFactory
from recurra.cli.main import main
from recurra.comparison import compare
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.evaluation.predictions import read_predictions, row_key, write_predictions
from recurra.reported_study import report_records
from recurra.tasks.questions import Contrast, Questions
from rendered import summarise_folders

# Of eight rows, out of order: the quarters are rows 1 6, 4 0, 7 2 and 3 5.
WORDS = np.array([40, 10, 60, 70, 30, 80, 20, 50])
RIGHT = {"recurrent": [(1, 6, 4, 0, 7), (1, 6, 4, 0, 5)], "stacked-narrow": [(1, 4, 3, 5), (6, 0, 7, 2, 3, 5)]}
IDS = [f"row-{row}" for row in range(8)]
LABELS = np.array([0, 1] * 4)


def summary(tmp_path: Path, words: np.ndarray) -> Any:
    factory, folders = RunFactory(tmp_path, rows={"train": 40, "test": 8}), []
    for model, seeds in RIGHT.items():
        for seed, rows in enumerate(seeds):
            folders.append(factory.run(model, seed=seed))
            predicted = np.where(np.isin(np.arange(8), rows), LABELS, 1 - LABELS)
            write_predictions(folders[-1], "test", IDS, LABELS, np.eye(2)[predicted])
    asked = Contrast(name="sharing", a="recurrent", b="stacked-narrow")
    return summarise_folders(folders, questions=Questions([asked], words={row_key(IDS, LABELS): words}))


def test_accuracies_and_gaps_of_quarters_are_those_by_hand(tmp_path: Path) -> None:
    found = summary(tmp_path, WORDS)
    lines = {line.name: line for line in found.tables[0].by_length}
    assert lines["recurrent"].values == {20: 1.0, 40: 1.0, 60: 0.25, 80: 0.25}
    assert lines["stacked-narrow"].values == {20: 0.5, 40: 0.5, 60: 0.5, 80: 1.0}
    gap = lines["recurrent − stacked-narrow"]
    assert gap.values == {20: 0.5, 40: 0.5, 60: -0.25, 80: -0.75}
    # Seed 0: −1 on the longest, +0.5 on the shortest; seed 1: −0.5 and +0.5.
    low, high = stats.t.interval(0.95, 1, loc=-1.25, scale=stats.sem([-1.5, -1.0]))
    assert (gap.change.gap, gap.change.half) == (pytest.approx(-1.25), pytest.approx((high - low) / 2))
    assert (gap.change.seeds, gap.change.rows, gap.change.verdict) == (2, 4, "not distinguishable")


def test_texts_of_one_length_stay_together(tmp_path: Path) -> None:
    lines = summary(tmp_path, np.full(8, 7)).tables[0].by_length
    assert [(line.name, list(line.values)) for line in lines] == [("stacked-narrow", [7]), ("recurrent", [7])]


def test_the_command_reads_the_data_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "report", str(RESULTS / "demo"), "--output", str(tmp_path), "--json"]
    assert main([*command, "--by-length"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    test = load_dataset(DataConfig(name="demo")).splits["test"]
    lengths = np.array([len(text.split()) for text in test.texts])
    line = next(line for line in table["by_length"] if line["name"] == "linear-tuned")
    (run,) = next(model["runs"] for model in table["models"] if model["label"] == "linear-tuned")
    right = read_predictions(RESULTS / "demo" / "runs" / run["run_id"], "test").correct
    edges = [-1, *sorted(map(int, line["values"]))]
    for low, high in itertools.pairwise(edges):
        assert line["values"][str(high)] == pytest.approx(right[(lengths > low) & (lengths <= high)].mean())
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["by_length"] == []


def test_the_rows_are_those_of_the_split_that_is_judged(tmp_path: Path) -> None:
    (table,) = report_records(RESULTS / "hops-whole", tmp_path, command="", by_length=True).content.tables
    assert table.headline_split == "test" != table.reported_splits[-1]
    assert {model.label for model in table.models} < {line.name for line in table.by_length}


def test_the_folds_of_a_file_are_one_table(tmp_path: Path) -> None:
    rows = [f"{'word ' * (number % 7 + 1)}{'good' if number % 2 else 'bad'},{number % 2}" for number in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    output = tmp_path / "out"
    compare(tmp_path / "rows.csv", models=["linear"], folds=3, output=output, final=False, quiet=True, estimate=False)
    (table,) = report_records(output, command="", by_length=True).content.tables
    (line,) = table.by_length
    right: dict[int, list[bool]] = {}
    for run in (output / "runs").iterdir():
        said = read_predictions(run, "test")
        for row, correct in zip(said.ids, said.correct, strict=True):
            # Identities are lines of the file, behind its header.
            right.setdefault((int(row.rpartition("-")[2]) - 2) % 7 + 2, []).append(bool(correct))
    assert sum(map(len, right.values())) == 90
    edges = [-1, *line.values]
    for low, high in itertools.pairwise(edges):
        own = [one for words, several in right.items() if low < words <= high for one in several]
        assert line.values[high] == pytest.approx(np.mean(own))


def test_a_study_of_language_models_has_no_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "report", str(RESULTS / "lm-exits"), "--output", str(tmp_path), "--by-length"]) == 2
    assert "'--by-length' is for classifiers" in capsys.readouterr().err
