"""Answers that came from elsewhere are judged on the rows that the models are judged on, and never shipped."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss

import recurra
from recurra.cli.main import main
from recurra.core.best_run import find_run
from recurra.core.errors import ConfigurationError, DataError, RecurraError
from recurra.deployment.classifier import Classifier
from recurra.evaluation.predictions import read_predictions
from recurra.report.render import long_table
from recurra.reported_study import StudyResult
from recurra.tasks.runs import locate_teacher
from reviews import review_rows, write_csv

ROWS = 240
Frame = pd.DataFrame


@pytest.fixture(scope="module")
def frame() -> Frame:
    """Reviews of which every seventh has the other label, with an id each."""
    other = {"negative": "positive", "positive": "negative"}
    rows = [(text, label if number % 7 else other[label]) for number, (text, label) in enumerate(review_rows(ROWS))]
    made = pd.DataFrame(rows, columns=["text", "label"])
    return made.assign(id=[f"r{number}" for number in range(ROWS)])


def probabilities(frame: Frame) -> np.ndarray[Any, Any]:
    """Of the true label 0.8, and of every fifth row 0.3."""
    sure = np.where(np.arange(len(frame)) % 5, 0.8, 0.3)
    positive = np.where(frame.label == "positive", sure, 1 - sure)
    return np.stack([1 - positive, positive], axis=1)


@pytest.fixture(scope="module")
def found(frame: Frame, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("answers")
    frame.to_csv(folder / "reviews.csv", index=False)
    frame[["id", "label"]].sample(frac=1, random_state=0).to_csv(folder / "gpt.csv", index=False)
    return recurra.compare(
        folder / "reviews.csv",
        models="linear",
        predictions={"gpt": folder / "gpt.csv", "vendor": probabilities(frame)},
        prices={"gpt": 0.002, "linear": 0.0001},
        output=folder / "out",
        quiet=True,
    )


def test_every_row_of_all_folds_is_judged_as_it_was_answered(found: StudyResult, frame: Frame) -> None:
    models = {model.label: model for model in found.content.tables[0].models}
    scores = {
        name: {key: value.mean for key, value in of.scores["test"].figures.items()} for name, of in models.items()
    }
    said = probabilities(frame)
    truth = (frame.label == "positive").astype(int)
    assert scores["gpt"]["accuracy"] == 1.0
    assert "loss" not in scores["gpt"] and "calibration_error" not in scores["gpt"]
    assert scores["vendor"]["accuracy"] == pytest.approx(accuracy_score(truth, said.argmax(axis=1)))
    assert scores["vendor"]["loss"] == pytest.approx(log_loss(truth, said), abs=1e-6)
    assert {models[name].scores["test"].rows for name in models} == {ROWS}


def test_probabilities_are_kept_as_they_came(found: StudyResult, frame: Frame) -> None:
    outcome = next(each for each in found.outcomes if each.config.model == "vendor")
    kept = read_predictions(outcome.folder, "test")
    expected = np.log(probabilities(frame))[[int(name[1:]) for name in kept.ids]]
    np.testing.assert_allclose(kept.logits, expected, rtol=1e-6)


def test_they_are_compared_and_never_recommended_even_if_all_are_right(found: StudyResult) -> None:
    table = found.content.tables[0]
    assert "gpt scores highest: right on 100.0 %" in table.conclusion
    assert "points compared with linear, the best trained here" in table.conclusion
    assert "leakage cannot be excluded" in table.conclusion
    assert any(line.name == "training-data.unknown" and line.concerns == "gpt; vendor" for line in table.audits)
    assert {frozenset((test.a, test.b)) for test in table.tests if test.p_holm is not None} == {
        frozenset(pair) for pair in (("gpt", "linear"), ("gpt", "vendor"), ("linear", "vendor"))
    }
    assert table.recommended is not None and table.recommended.choice == found.best.model == "linear"
    assert find_run(found.output).note.endswith(" (linear)")
    # As a teacher too the folder stands for that run.
    assert Path(locate_teacher(str(found.output)).folder) == find_run(found.output).folder
    with pytest.raises(RecurraError, match="there is no model to use"):
        Classifier.from_run(next(each.folder for each in found.outcomes if each.config.model == "gpt"))


def test_prices_are_shown_and_what_has_no_model_has_no_size(found: StudyResult) -> None:
    costs = {(row["model"], row["measure"]): row["value"] for row in long_table(found.content) if not row["split"]}
    assert costs["gpt", "price"] == 0.002 and costs["linear", "price"] == 0.0001
    assert ("gpt", "file_size_mib") not in costs and ("vendor", "price") not in costs
    fronts = {model.label: model.fronts for model in found.content.tables[0].models}
    assert fronts["gpt"] == ["price"] and "size" in fronts["linear"] and fronts["vendor"] == []
    page = found.report.read_text(encoding="utf-8") if found.report else ""
    assert "Accuracy against price" in page and "Price a text" in page and "gpt: 0 MiB" not in page


def test_changed_answers_are_another_run(found: StudyResult, frame: Frame) -> None:
    folder = found.output.parent
    frame[["text", "label"]].assign(label=frame.label.where(frame.index != 3, "negative")).to_csv(
        folder / "gpt2.csv", index=False
    )
    options: dict[str, Any] = {"models": "linear", "output": found.output, "quiet": True, "final": False}
    again = recurra.compare(folder / "reviews.csv", predictions={"gpt": folder / "gpt2.csv"}, **options)
    old, new = ({each.config.run_id for each in result.outcomes} for result in (found, again))
    assert len(new - old) == 5 and len(new & old) == 5


BAD = {
    "missing": (lambda rows: rows[:-1], "lacks the answers of 1 of 240 test rows"),
    "missing of folds": (lambda rows: rows[:-1], "with 5 folds every row is a test row"),
    "doubled": (lambda rows: [*rows, rows[0]], "line 242 answers the row of line 2 again"),
    "unknown": (
        lambda rows: [*rows, ("r999", "positive")],
        "has 1 answers that match no row of 'reviews.csv' (line 242)",
    ),
    "label": (lambda rows: [("r0", "positiv"), *rows[1:]], "line 2 has the label 'positiv' (did you mean 'positive'?)"),
    "no label": (lambda rows: [("r0", ""), *rows[1:]], "line 2 has no label in column 'label'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_answers_are_one_line_before_anything_is_trained(
    change: Any, message: str, frame: Frame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(frame[["id", "label"]].itertuples(index=False, name=None))
    pd.DataFrame(change(rows), columns=["id", "label"]).to_csv(tmp_path / "gpt.csv", index=False)
    refused(["--predictions", f"gpt={tmp_path / 'gpt.csv'}"], message, frame, tmp_path, capsys)


OPTIONS = {
    "price": (["--price", "gtp=0.1"], "unknown model 'gtp'"),
    "no number": (["--price", "linear=cheap"], "'prices.linear' is \"cheap\""),
    "no name": (["--predictions", "gpt.csv"], "--predictions 'gpt.csv' is not NAME=VALUE"),
    "no file": (["--predictions", "gpt=none.csv"], "'none.csv' does not exist"),
    "no key": (["--predictions", "gpt={folder}/keyless.csv"], "neither the column 'id' nor 'text'"),
    "no answer": (["--predictions", "gpt={folder}/mute.csv"], "no column 'label', and no column probability_NAME"),
    "sum": (["--predictions", "gpt={folder}/sum.csv"], "line 2 has probabilities that sum to 1.1"),
    "several labels": (["--predictions", "gpt={folder}/mute.csv", "--label-separator", ";"], "have one label a text"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_bad_options_are_one_line_before_anything_is_trained(
    options: list[str], message: str, frame: Frame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame[["label"]].to_csv(tmp_path / "keyless.csv", index=False)
    frame[["id"]].to_csv(tmp_path / "mute.csv", index=False)
    frame[["id"]].assign(probability_negative=0.5, probability_positive=0.6).to_csv(tmp_path / "sum.csv", index=False)
    refused([option.format(folder=tmp_path) for option in options], message, frame, tmp_path, capsys)


def refused(options: list[str], message: str, frame: Frame, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame.to_csv(folder / "reviews.csv", index=False)
    command = ["compare", str(folder / "reviews.csv"), "--models", "linear", "--output", str(folder / "out"), "--quiet"]
    code = main([*command, *options])
    error = capsys.readouterr().err.strip()
    assert code == 2 and message in error and "\n" not in error
    assert not (folder / "out" / "runs").exists()


def test_rows_are_found_by_their_texts_where_the_data_have_no_ids(frame: Frame, tmp_path: Path) -> None:
    """Also where a text stands there twice, and by objects of probabilities as `predict` writes them."""
    rows = [*frame[["text", "label"]].itertuples(index=False, name=None)]
    file = write_csv(tmp_path / "reviews.csv", [*rows, rows[0]])
    lines = [
        {
            "text": f" {text.upper()} ",
            "probabilities": {name: name == label for name in ("positive", "negative")},
        }
        for text, label in rows
    ]
    (tmp_path / "gpt.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    options: dict[str, Any] = {"folds": 1, "output": tmp_path / "o", "quiet": True, "final": False}
    found = recurra.compare(file, models="linear", predictions={"gpt": tmp_path / "gpt.jsonl"}, **options)
    score = next(model for model in found.content.tables[0].models if model.label == "gpt").scores["test"]
    assert score.figures["accuracy"].mean == 1.0 and math.isclose(score.figures["loss"].mean, 0.0, abs_tol=1e-5)


def test_answers_in_memory_are_found_by_texts_of_two_columns_and_labels_are_no_probabilities(
    frame: Frame, tmp_path: Path
) -> None:
    rows = frame.assign(title=[f"review {number}" for number in range(ROWS)], body=frame.text)
    rows[["title", "body", "label"]].to_csv(tmp_path / "reviews.csv", index=False)

    columns = ["title", "body", "label"]
    with pytest.raises(DataError, match="has rows that are not probabilities; give one for each of"):
        accuracies(tmp_path, {"gpt": [["late", "rude"]] * ROWS}, text_column="title, body")
    assert accuracies(tmp_path, {"gpt": rows[columns]}, text_column="title, body")["gpt"] == 1.0


def accuracies(folder: Path, predictions: dict[str, Any], data: Any = None, **options: Any) -> dict[str, float]:
    """Of answers to a file, or rows in memory, beside a linear model, by name."""
    found = recurra.compare(
        folder / "reviews.csv" if data is None else data,
        models="linear",
        predictions=predictions,
        output=folder / "o",
        quiet=True,
        final=False,
        **{"folds": 1, **options},
    )
    return {model.label: model.scores["test"].figures["accuracy"].mean for model in found.content.tables[0].models}


def test_names_of_columns_match_in_any_case_and_exact_ones_come_first(frame: Frame, tmp_path: Path) -> None:
    rows = frame.rename(columns={"text": "Text", "label": "Label", "id": "Ticket ID"})
    rows[["Text", "Label", "Ticket ID"]].to_csv(tmp_path / "reviews.csv", index=False)
    rows.assign(label=rows.Label, Label="?").to_csv(tmp_path / "predicted.csv", index=False)
    rows[["Text", "Label"]].to_csv(tmp_path / "labels.csv", index=False)
    rows[["Ticket ID", "Label"]].to_csv(tmp_path / "ids.csv", index=False)
    names = {name: tmp_path / f"{name}.csv" for name in ("predicted", "labels", "ids")}
    scores = accuracies(tmp_path, names, id_column="ticket id")
    assert scores["predicted"] == scores["labels"] == scores["ids"] == 1.0
    frame.rename(columns={"label": "mood"})[["text", "mood"]].to_csv(tmp_path / "reviews.csv", index=False)
    wrong = {"negative": "positive", "positive": "negative"}
    frame.assign(mood=frame.label.map(wrong), Label=frame.label)[["text", "mood", "Label"]].to_csv(
        tmp_path / "both.csv", index=False
    )
    assert accuracies(tmp_path, {"both": tmp_path / "both.csv"}, label_column="mood")["both"] == 0.0


def test_predictions_beside_those_of_another_model_are_the_last_ones(frame: Frame, tmp_path: Path) -> None:
    """As `recurra predict` writes them on the output of another model: its own columns end in _predicted."""
    frame[["text", "label"]].to_csv(tmp_path / "reviews.csv", index=False)
    said = probabilities(frame)
    beside = frame[["text"]].assign(label=frame.label, probability_negative=said[:, 1], probability_positive=said[:, 0])
    # The other model abstained; this one does not.
    own = {"abstained": True, "label_predicted": "negative", "probability_negative_predicted": said[:, 0]}
    beside.assign(**own, probability_positive_predicted=said[:, 1]).to_csv(tmp_path / "second.csv", index=False)
    rows = [
        {
            "text": text,
            "probabilities": {"negative": q, "positive": p},
            "probabilities_predicted": {"negative": p, "positive": q},
        }
        for text, (p, q) in zip(frame.text, said.tolist(), strict=True)
    ]
    (tmp_path / "second.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = accuracies(tmp_path, {"table": tmp_path / "second.csv", "lines": tmp_path / "second.jsonl"}, folds=5)
    right = accuracy_score((frame.label == "positive").astype(int), said.argmax(axis=1))
    assert found["table"] == found["lines"] == pytest.approx(right)


def test_rows_that_abstain_are_no_answers(frame: Frame, tmp_path: Path) -> None:
    frame[["text", "label"]].to_csv(tmp_path / "reviews.csv", index=False)
    said = frame[["text"]].assign(probability_negative=0.5, probability_positive=0.5, abstained="false")
    for cell, message in (("true", f"gives no label to 1 of {ROWS} test rows (line 5)"), ("false", "")):
        said.loc[3, "abstained"] = cell
        said.to_csv(tmp_path / "said.csv", index=False)
        with pytest.raises(DataError) if message else contextlib.nullcontext() as refusal:
            accuracies(tmp_path, {"said": tmp_path / "said.csv"}, folds=5)
        assert not message or message in str(refusal.value)


def test_the_labels_of_the_data_are_no_answers_where_another_column_may_have_them(frame: Frame, tmp_path: Path) -> None:
    path, answers = tmp_path / "reviews.csv", tmp_path / "gpt.csv"
    frame.to_csv(path, index=False)
    frame.assign(gpt="Positive", why="it says so").to_csv(answers, index=False)
    with pytest.raises(DataError) as refusal:
        accuracies(tmp_path, {"gpt": answers}, path, folds=5)
    assert f"in column 'label' the label of the data for all {ROWS} test rows" in str(refusal.value)
    assert "call the column of the answers 'label_predicted' (gpt has labels too)" in str(refusal.value)


def test_an_id_that_a_left_out_row_repeats_and_another_encoding_are_no_matter(frame: Frame, tmp_path: Path) -> None:
    rows = pd.concat([frame, pd.DataFrame([{"text": "", "label": "positive", "id": "r1"}])], ignore_index=True)
    rows.loc[0, "text"] = "a café of note"
    rows.to_csv(tmp_path / "reviews.csv", index=False, encoding="cp1252")
    rows[:-1].to_csv(tmp_path / "file.csv", index=False, encoding="cp1252")
    rows[["text", "label"]][:-1].to_csv(tmp_path / "texts.csv", index=False, encoding="utf-8")
    predictions = {"listed": list(rows.label), "file": tmp_path / "file.csv", "texts": tmp_path / "texts.csv"}
    scores = accuracies(tmp_path, predictions, encoding="cp1252")
    assert scores["listed"] == scores["file"] == scores["texts"] == 1.0


KINDS = np.arange(ROWS) % 3
SURE = np.eye(3)[KINDS]
WORDS = ("unhappy", "neutral", "happy")
TRUTH = {True: SURE[:, 1:].sum(axis=1), False: SURE[:, 0]}
IN_MEMORY: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (
        WORDS,
        {
            "frame": Frame(SURE, columns=list(WORDS)),
            "array": SURE[:, [2, 1, 0]],
            "arrays": list(SURE[:, [2, 1, 0]]),
            "labels-alone": Frame({"label": np.array(WORDS)[KINDS]}),
        },
    ),
    ((1, 2, 10), {"numbers": Frame(SURE, columns=np.array([1, 2, 10]))}),
    (("1", "2", "10"), {"mapping": {"1": SURE[:, 0], "10": SURE[:, 2], "2": SURE[:, 1]}}),
    ((False, True, True), {"truth-values": Frame(TRUTH), "zeros-and-ones": (KINDS > 0).astype(int)}),
    ((0, 1, 1), {"truth-values": KINDS > 0}),
    (("False", "True", "True"), {"truth-values": KINDS > 0}),
]


@pytest.mark.parametrize(("labels", "answers"), IN_MEMORY, ids=[str(labels) for labels, _ in IN_MEMORY])
def test_answers_in_memory_are_of_the_rows_in_their_order(
    labels: tuple[Any, ...], answers: dict[str, Any], frame: Frame, tmp_path: Path
) -> None:
    rows = frame[["text"]].assign(label=[labels[kind] for kind in KINDS])
    scores = accuracies(tmp_path, answers, data=rows)
    assert {name: scores[name] for name in answers} == dict.fromkeys(answers, 1.0)


UNCERTAIN = {
    "two orders of numbers": (("1", "2", "10"), SURE, "which may be 1, 2, 10 or 1, 10, 2; give pandas.DataFrame"),
    "decimals": ((1.5, 2.5, 10.5), SURE, "which may be 1.5, 10.5, 2.5 or 1.5, 2.5, 10.5; give pandas.DataFrame"),
    "the good one last": (("unhappy", "happy", "happy"), SURE[:, :2], "which may be unhappy, happy or happy, unhappy"),
    "no answers": (WORDS, Frame(SURE, columns=list("abc")), "the columns a, b, c; give a column 'label', or one of"),
    "another column": (WORDS, Frame({"label": WORDS[0], "sure": SURE[:, 0]}), "label, sure, which do not say to which"),
    "columns of two lengths": (WORDS, {"text": ["x", "y"], "label": ["bad"]}, "different lengths .'text' 2, 'label' 1"),
    "too few": (WORDS, Frame(SURE, columns=list(WORDS))[:5], "5 answers, and .* 240 rows; give one answer a row"),
}


@pytest.mark.parametrize(("labels", "answers", "said"), UNCERTAIN.values(), ids=UNCERTAIN)
def test_answers_in_memory_that_may_mean_something_else_are_refused(
    labels: tuple[Any, ...], answers: Any, said: str, frame: Frame, tmp_path: Path
) -> None:
    rows = frame[["text"]].assign(label=[labels[kind] for kind in KINDS])
    with pytest.raises(DataError, match=rf"predictions\['gpt'\] has .*{said}"):
        accuracies(tmp_path, {"gpt": answers}, data=rows)


def test_answers_need_a_name(frame: Frame) -> None:
    with pytest.raises(ConfigurationError, match=r"predictions is a list; give .* as {'gpt': answers}"):
        recurra.compare(frame, predictions=["answers.csv"])  # type: ignore[arg-type]
