"""``recurra predict`` on a file: the user's columns stay, ours come after them, and doubtful rows get no label."""

from __future__ import annotations

import datetime
import itertools
import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra import Classifier
from recurra.core.record import read_record
from recurra.core.record_parts import OneLabelRecord
from recurra.deployment.decision import read_decision
from recurra.deployment.engines.computation import Classified
from recurra.deployment.explanation import explain
from recurra.deployment.prediction.files import SUFFIXES
from recurra.deployment.serving.bodies import predictions_of
from recurra.evaluation.metrics import precision_thresholds
from recurra.evaluation.predictions import read_predictions, write_predictions
from reviews import Command, read_rows

TEXTS = ['the film was "great", and clever', "the plot was awful\nand boring", "the pace was number 7"]
MIXED = [each for n in (1, 2, 3) for each in itertools.permutations(["great", "awful", "clever", "boring", "film"], n)]
MANY = [*TEXTS, "", *(" and ".join(words) for words in MIXED)]
RAY_OPTIONS = ("--address h:1", "--workers 2", "--worker-cpus 2", "--retries 0")
OURS = ["label", "probability", "probability_negative", "probability_positive"]


@pytest.fixture
def model(linear_run: Path) -> str:
    return str(linear_run)


@pytest.fixture
def doubtful(model: str, tmp_path: Path) -> str:
    """The same, on validation rows of which the least sure positive ones turn out to be negative."""
    folder = shutil.copytree(model, tmp_path / "doubtful")
    kept = read_predictions(folder, "validation")
    gap = kept.logits[:, 1] - kept.logits[:, 0]
    turned = np.argsort(np.where(gap > 0, gap, np.inf))[:4]
    kept.labels[turned] = 0
    write_predictions(folder, "validation", kept.ids, kept.labels, kept.logits)
    return str(folder)


def shown(folder: str, *label: int) -> tuple[float, float]:
    """The highest precision that the validation rows of a run show, of a label or any, and its threshold."""
    kept = read_predictions(folder, "validation")
    decision = read_decision(["negative", "positive"], read_record(folder).decision)
    looked_at = precision_thresholds(decision.probabilities(kept.logits), kept.labels, *label)
    wanted = max(one.bound for one in looked_at)
    return wanted, [one for one in looked_at if one.bound >= wanted][-1].threshold


def write(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        pd.DataFrame(columns).to_json(path, orient="records", lines=True)
    else:
        pd.DataFrame(columns).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    rows = read_rows(path)
    return list(rows[0]), rows


@pytest.mark.parametrize(("source", "output"), list(zip(SUFFIXES, SUFFIXES[1:] + SUFFIXES[:1], strict=True)))
def test_columns_stay_in_their_order_and_ours_come_after_them(
    model: str, tmp_path: Path, command: Command, source: str, output: str
) -> None:
    given = {"ticket": ["7", "8", "9"], "review": TEXTS, "note": ["=1+1", "", 'a "b"\tc']}
    path, written = write(tmp_path / f"in{source}", given), tmp_path / f"out{output}"
    words = ["predict", model, "--input", path, "--text-column", "review", "--output", written, "-q"]
    command(*words)
    names, rows = read(written)
    assert names == [*given, *(["label", "probability", "probabilities"] if output == ".jsonl" else OURS)]
    for name, values in given.items():
        assert [row[name] for row in rows] == values
    assert [row["label"] for row in rows][:2] == ["positive", "negative"]
    command(*words, "--no-keep-columns")
    plain_names, plain = read(written)
    assert plain_names[0] == "text" and [row["text"] for row in plain] == TEXTS
    assert [row["label"] for row in plain] == [row["label"] for row in rows]


def test_a_column_of_our_name_stays_and_ours_is_called_predicted(
    model: str, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    given = {"probability": ["a", "b", "c"], "text": TEXTS, "label": ["x", "y", "z"], "probabilities": ["1", "2", "3"]}
    words = ["predict", model, "-i", write(tmp_path / "in.csv", given), "-o"]
    assert "predicted labels are in 'label_predicted'" in command(*words, tmp_path / "out.csv").err
    names, rows = read(tmp_path / "out.csv")
    ours = ["label_predicted", "probability_predicted"]
    assert names == [*given, *ours, "probability_negative", "probability_positive"]
    assert [(row["label"], row["label_predicted"]) for row in rows][:2] == [("x", "positive"), ("y", "negative")]
    command(*words, tmp_path / "out.jsonl", "-q")
    names, rows = read(tmp_path / "out.jsonl")
    assert names == [*given, *ours, "probabilities_predicted"]
    assert set(rows[0]["probabilities_predicted"]) == {"negative", "positive"} and rows[0]["probabilities"] == "1"
    both = write(tmp_path / "both.csv", {**given, "label_predicted": ["", "", ""]})
    words = ["predict", model, "-i", both, "-o", tmp_path / "both_out.csv", "-q"]
    error = refused(*words)
    assert "'label_predicted': beside 'label'" in error and "--no-keep-columns" in error
    command(*words, "--no-keep-columns")


def test_no_number_in_json_lines_is_infinite(model: str, tmp_path: Path, command: Command) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "fine", "tags": [1e999, {"a": -1e999}, 2]}\n', encoding="utf-8")
    command("predict", model, "--input", source, "--output", target)
    row = json.loads(target.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert row["tags"] == [None, {"a": None}, 2]


def test_values_keep_their_types_where_the_format_has_them(model: str, tmp_path: Path, command: Command) -> None:
    day, moment = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
    columns = {
        "text": TEXTS,
        "stars": pa.array([1, None, 3], pa.int8()),
        "score": [0.5, float("nan"), None],
        "day": [day, day, None],
        "moment": [moment, None, moment],
        "price": [Decimal("1.50"), None, Decimal("2.25")],
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "good": [True, False, None],
    }
    path, given = write(tmp_path / "in.parquet", columns), pa.table(columns)
    for suffix in (".parquet", ".jsonl", ".csv"):
        command("predict", model, "-i", path, "-o", tmp_path / f"out{suffix}", "-q")
    back = pq.read_table(tmp_path / "out.parquet")
    for name in given.column_names:
        assert back.schema.field(name).type == given.schema.field(name).type
        assert str(back.column(name).to_pylist()) == str(given.column(name).to_pylist())
    _, rows = read(tmp_path / "out.jsonl")
    assert (rows[0]["stars"], rows[1]["score"], rows[0]["good"], rows[2]["good"]) == (1, None, True, None)
    assert (rows[0]["day"], rows[0]["price"]) == ("2026-01-02", "1.50")
    _, cells = read(tmp_path / "out.csv")
    assert (cells[1]["stars"], cells[0]["good"], cells[0]["moment"]) == ("", "true", str(moment))
    # What JSON nests stays so in JSON and is JSON elsewhere; a key that a line lacks is null.
    lines = [{"text": TEXTS[0], "tags": ["a", {"b": 1}], "n": 1}, {"n": True, "text": TEXTS[1], "later": "x"}]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for suffix in (".parquet", ".jsonl"):
        command("predict", model, "-i", source, "-o", tmp_path / f"nested{suffix}", "-q")
    _, rows = read(tmp_path / "nested.jsonl")
    assert [(row["tags"], row["n"], row["later"]) for row in rows] == [(["a", {"b": 1}], 1, None), (None, True, "x")]
    names, rows = read(tmp_path / "nested.parquet")
    assert names[:4] == ["text", "tags", "n", "later"]
    assert [(row["tags"], row["n"]) for row in rows] == [('["a", {"b": 1}]', "1"), (None, "true")]


def test_a_file_whose_columns_cannot_all_be_kept_says_what_to_do(
    model: str, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    (twice := tmp_path / "twice.csv").write_text("text,a,a\ngood,1,2\n")
    nested = write(tmp_path / "nested.parquet", {"text": TEXTS, "tags": [["a"], [], ["b"]]})
    out = ["-o", tmp_path / "out.csv", "-q"]
    for path, message in ((twice, "2 columns 'a'"), (nested, "holds list")):
        error = refused("predict", model, "-i", path, *out)
        assert message in error and "--no-keep-columns" in error
        command("predict", model, "-i", path, *out, "--no-keep-columns")
    missing = write(tmp_path / "missing.csv", {"txt": TEXTS})
    assert "did you mean 'txt'" in refused("predict", model, "-i", missing, *out)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_doubtful_rows_get_no_label_and_words_that_a_label_hangs_on_stand_in_a_column(
    model: str, tmp_path: Path, command: Command, suffix: str
) -> None:
    path, written = write(tmp_path / "in.csv", {"text": [*TEXTS, ""]}), tmp_path / f"out{suffix}"
    words = ["predict", model, "-i", path, "-o", written]
    command(*words, "-q")
    _, certain = read(written)
    highest = sorted(float(row["probability"]) for row in certain)
    least = (highest[0] + highest[1]) / 2
    said = command(*words, "--abstain-below", least, "--explain", 2, "--json")
    assert said.json["abstained"] == 1 and sum(said.json["labels"].values()) == 3
    assert "1 of 4 rows (25.0%) have no label" in said.err
    names, rows = read(written)
    start = names.index("probability") + 1
    assert names[start : start + 3] == ["abstained", "words", "remainder"]
    nothing, yes = ("", "true") if suffix in (".csv", ".tsv") else (None, True)
    for before, row in zip(certain, rows, strict=True):
        doubtful = float(before["probability"]) < least
        assert row["label"] == (nothing if doubtful else before["label"])
        assert (row["abstained"] == yes) == doubtful
        assert row["probability"] == before["probability"]
    classifier = Classifier.open(model)
    shares = classifier.predict_proba(TEXTS)
    explained = explain(classifier.predict_proba, TEXTS, shares, classifier.decision, len)
    for text, one, row in zip(TEXTS, explained, rows, strict=False):
        if suffix == ".jsonl":
            told = [(word["text"], word["effect"]) for word in row["words"]]
            assert all(text[word["start"] : word["end"]] == word["text"] for word in row["words"])
        else:
            parts = [part.rsplit(" ", 1) for part in filter(None, row["words"].split(", "))]
            told = [(word, float(effect.strip("()"))) for word, effect in parts]
        strongest, remainder = one.strongest(2).labels[0].words, one.strongest(2).labels[0].remainder
        assert float(row["remainder"]) == pytest.approx(remainder, abs=1e-5)
        assert told == [(word.text, pytest.approx(word.effect, abs=6e-4)) for word in strongest]
    assert not rows[-1]["words"]


def test_words_that_a_label_hangs_on_are_printed(model: str, command: Command) -> None:
    words = ["predict", model, TEXTS[0], "--explain", "1"]
    assert command(*words, "--json").json["predictions"][0]["words"][0]["effect"] > 0
    assert command(*words, "-q").out.rstrip("\n").split("\t")[3].endswith(")")


def test_an_export_holds_a_label_to_a_precision_wherever_it_predicts(
    doubtful: str, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    wanted = f"positive={shown(doubtful, 1)[0]}"
    export, inputs, written = tmp_path / "export", tmp_path / "in", tmp_path / "of_export.jsonl"
    inputs.mkdir()
    path = write(inputs / "in.csv", {"text": MANY})
    assert "Clopper-Pearson" in command("export", doubtful, "-o", export, "--precision-of", wanted).err
    command("predict", doubtful, "-i", path, "-o", tmp_path / "of_run.jsonl", "-q", "--precision-of", wanted)
    said = command("predict", export, "-i", path, "-o", written).err
    assert "have no label: below the threshold of their label that the export carries" in said
    (_, expected), (_, found) = read(tmp_path / "of_run.jsonl"), read(written)
    without = sum(row["abstained"] for row in found)
    assert found == expected and 0 < without < len(found)
    # So do the files of a folder, and the server.
    folder = command("predict", export, "-i", inputs, "-o", tmp_path / "out", "--json")
    assert folder.json["abstained"] == without and f"1 of {len(found)} texts are empty" in folder.err
    (part,) = (tmp_path / "out").rglob("*.parquet")
    assert [row["label"] for row in read(part)[1]] == [row["label"] for row in expected]
    classifier = Classifier.open(export)
    shares = classifier.predict_proba([row["text"] for row in expected])
    answers = predictions_of(Classified(shares), classifier.decision)
    assert [(one.label, one.abstained) for one in answers] == [(row["label"], row["abstained"]) for row in expected]
    card = (export / "README.md").read_text(encoding="utf-8")
    bounds = classifier.decision.record()
    assert isinstance(bounds, OneLabelRecord) and bounds.abstain_below is not None
    assert f"| positive | {bounds.abstain_below[1]:.4f} |" in card and "| negative |" not in card.split("## This")[0]
    command("export", doubtful, "-o", tmp_path / "no")
    plain = (tmp_path / "no" / "README.md").read_text(encoding="utf-8")
    assert "gets one label or none" in card and "gets one label or none" not in plain
    wrong = refused("export", doubtful, "-o", tmp_path / "other", "--precision-of", "positve=0.5")
    assert "did you mean 'positive'" in wrong


def test_a_label_is_given_from_the_probability_that_shows_its_precision(
    doubtful: str, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    path, written = write(tmp_path / "in.csv", {"text": MANY}), tmp_path / "out.jsonl"
    words = ["predict", doubtful, "-i", path, "-o", written, "--precision-of"]
    wanted, smallest = shown(doubtful, 1)
    said = command(*words, f"positive={wanted}").err
    assert f"'positive' from a probability of {smallest:.4f}" in said and "Clopper-Pearson" in said
    _, rows = read(written)
    assert 0 < sum(row["abstained"] for row in rows) < len(MANY)
    for row in rows:
        sure = row["probabilities"]["positive"]
        assert row["abstained"] == (0.5 < sure < smallest)
        assert row["label"] == (None if row["abstained"] else "positive" if sure > 0.5 else "negative")
    written.unlink()
    for wrong, message in (
        ("positive=0.999", "no threshold shows a precision of 0.999 for 'positive': on 24 validation rows"),
        ("positive=95", "above 0 and below 1"),
        ("positive", "write LABEL=PRECISION"),
        ("positive=0.5 --precision-of positive=0.6", "two precisions"),
        ("positive=0.5 --exit-rule entropy", "leave the exit rule out"),
    ):
        assert message in refused(*words, *wrong.split())


def test_answers_are_right_as_often_as_was_asked(
    doubtful: str, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    wanted, threshold = shown(doubtful)
    path, written = write(tmp_path / "in.csv", {"text": TEXTS}), tmp_path / "out.jsonl"
    words = ["predict", doubtful, "-i", path, "-o", written, "--answers-right"]
    assert f"any label from a probability of {threshold:.4f}" in command(*words, wanted).err
    for row in read(written)[1]:
        assert row["abstained"] == (max(row["probabilities"].values()) < threshold)
    written.unlink()
    for wrong, message in (
        ("0.999", "no threshold shows a precision of 0.999 for any label"),
        ("1", "--answers-right is 1; allowed: above 0 and below 1"),
        ("0.5 --precision-of positive=0.5", "give one of them"),
        ("0.5 --exit-rule entropy", "--answers-right needs all recurrences"),
    ):
        assert message in refused(*words, *wrong.split())
    (Path(doubtful) / "predictions" / "validation.parquet").unlink()
    assert "keeps no predictions of its validation rows" in refused(*words, "0.5")


def test_a_folder_neither_keeps_nor_abstains_and_semicolons_are_told(
    model: str, tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.csv"
    path.write_text("Stars; Text\n5;great film\n1;awful plot\n")
    folder = ["predict", model, "-i", tmp_path / "in", "-o", tmp_path / "out"]
    single = ["predict", model, "-i", path, "-o", tmp_path / "out.csv"]
    texts = "texts and single files"
    for arguments, option, use in (
        *((folder, option, texts) for option in ("--abstain-below 0.9", "--explain 3", "--precision-of positive=0.9")),
        (single, "--part-format csv", "a folder (--input FOLDER)"),
        (single, "--workers 2", "a folder on a Ray cluster (--engine ray)"),
        *((folder, option, "a folder on a Ray cluster (--engine ray)") for option in RAY_OPTIONS),
        (single[:-2], "--no-keep-columns", "an output file (--output)"),
        (["predict", model, "a text"], "--text-column text", "files and standard input (--input)"),
        (["predict", model, "a text"], "--encoding cp1252", "files and standard input (--input)"),
    ):
        assert f"{option.split()[0]} is for {use}" in refused(*arguments, *option.split())
    assert "read with semicolons" in command(*single).err
    names, rows = read(tmp_path / "out.csv")
    assert names == ["Stars", "Text", *OURS]
    assert [(row["Stars"], row["label"]) for row in rows] == [("5", "positive"), ("1", "negative")]
