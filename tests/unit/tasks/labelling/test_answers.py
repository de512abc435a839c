"""Answers that came from elsewhere are judged on the rows that the models are judged on, and never shipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss

import recurra
from recurra.core.best_run import find_run
from recurra.core.errors import ConfigurationError, DataError, RecurraError
from recurra.deployment.classifier import Classifier
from recurra.evaluation.predictions import read_predictions
from recurra.report.render import long_table
from recurra.reported_study import StudyResult
from recurra.study.spec import StudySpec, expand
from recurra.tasks.base import RunConfig
from recurra.tasks.labelling import labelled
from recurra.tasks.labelling.answers import read_answers
from recurra.tasks.runs import locate_teacher
from recurra.tasks.study_data import StudyData
from reviews import review_rows, write_csv

ROWS = 240
LABELS = ("negative", "positive")
OTHER = {"negative": "positive", "positive": "negative"}
Frame = pd.DataFrame


@pytest.fixture(scope="module")
def frame() -> Frame:
    """Reviews of which every seventh has the other label, with an id each."""
    made = Frame(review_rows(ROWS), columns=["text", "label"])
    label = made.label.where(made.index % 7 > 0, made.label.map(OTHER))
    return made.assign(label=label, id=[f"r{number}" for number in range(ROWS)])


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
        folds=2,
        quiet=True,
    )


def test_every_row_of_all_folds_is_judged_as_it_was_answered(found: StudyResult, frame: Frame) -> None:
    scores = {model.label: model.scores["test"] for model in found.content.tables[0].models}
    said, truth = probabilities(frame), frame.label == "positive"
    gpt, vendor = scores["gpt"].figures, scores["vendor"].figures
    assert gpt["accuracy"].mean == 1.0 and "loss" not in gpt and "calibration_error" not in gpt
    assert vendor["accuracy"].mean == pytest.approx(accuracy_score(truth, said.argmax(axis=1)))
    assert vendor["loss"].mean == pytest.approx(log_loss(truth, said), abs=1e-6)
    assert {score.rows for score in scores.values()} == {ROWS}
    outcome = next(each for each in found.outcomes if each.config.model == "vendor")
    kept = read_predictions(outcome.folder, "test")
    expected = np.log(probabilities(frame))[[int(name[1:]) for name in kept.ids]]
    np.testing.assert_allclose(kept.logits, expected, rtol=1e-6)


def test_they_are_compared_with_their_prices_and_never_recommended_even_if_all_are_right(found: StudyResult) -> None:
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
    # Prices are shown, and what has no model has no size.
    costs = {(row["model"], row["measure"]): row["value"] for row in long_table(found.content) if not row["split"]}
    assert costs["gpt", "price"] == 0.002 and costs["linear", "price"] == 0.0001
    assert ("gpt", "file_size_mib") not in costs and ("vendor", "price") not in costs
    fronts = {model.label: model.fronts for model in table.models}
    assert fronts["gpt"] == ["price"] and "size" in fronts["linear"] and fronts["vendor"] == []
    page = found.report.read_text(encoding="utf-8") if found.report else ""
    assert "Accuracy against price" in page and "Price a text" in page and "gpt: 0 MiB" not in page


def plan(spec: StudySpec, output: Path, data: StudyData, **_: object) -> tuple[list[RunConfig], StudyData]:
    """In the place of a study that trains and reports."""
    return expand(spec), data


def planned(folder: Path, predictions: Any, data: Any = None, **options: Any) -> tuple[list[RunConfig], StudyData]:
    """Runs of a comparison of answers to a file, or rows in memory, with a linear model; none is made."""
    given = folder / "reviews.csv" if data is None else data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recurra.comparison.run_and_report", plan)
        options = {"output": folder / "out", "quiet": True, "folds": 1, **options}
        found: Any = recurra.compare(given, models="linear", predictions=predictions, **options)
    return found


def accuracies(*given: Any, **options: Any) -> dict[str, float]:
    """Accuracy of answers over the test rows of all folds, by name."""
    runs, data = planned(*given, **options)
    found = {}
    for run in runs:
        if run.answers and run.model not in found:
            scores, _ = read_answers(run, data)
            folds = [data.rows(fold).splits["test"] for fold in labelled(run.data).every_fold]
            rows = [row for split in folds for row in zip(split.ids, split.labels.tolist(), strict=True)]
            found[run.model] = float(np.mean([scores[row_id].argmax() == label for row_id, label in rows]))
    return found


def test_changed_answers_are_another_run(found: StudyResult, frame: Frame) -> None:
    folder = found.output.parent
    changed = frame[["text"]].assign(label=frame.label.where(frame.index != 3, "negative"))
    again, _ = planned(folder, {"gpt": changed, "vendor": probabilities(frame)}, folds=2)
    old = {each.config.run_id for each in found.outcomes}
    assert [run.model for run in again if run.run_id not in old] == ["gpt", "gpt"]
    assert len(old.intersection(run.run_id for run in again)) == 4


BAD: dict[str, tuple[Any, str]] = {
    "missing": (lambda rows: rows[:-1], "lacks .* 1 of 240 test rows.*with 5 folds every row is a test row"),
    "doubled": (lambda rows: [*rows, rows[0]], "line 242 answers the row of line 2 again"),
    "unknown": (lambda rows: [*rows, ("r999", "positive")], r"1 answers that match no row of .* \(line 242\)"),
    "label": (lambda rows: [("r0", "positiv"), *rows[1:]], r"line 2 has the label 'positiv' \(did you mean 'positive'"),
    "no label": (lambda rows: [("r0", ""), *rows[1:]], "line 2 has no label in column 'label'"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_answers_are_refused(bad: str, frame: Frame, tmp_path: Path) -> None:
    change, message = BAD[bad]
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    rows = change(list(frame[["id", "label"]].itertuples(index=False, name=None)))
    gpt = write_csv(tmp_path / "gpt.csv", rows, ("id", "label"))
    with pytest.raises(DataError, match=message):
        accuracies(tmp_path, {"gpt": gpt}, folds=5)


OPTIONS = {
    "price": ("--price gtp=0.1", "unknown model 'gtp'"),
    "no number": ("--price linear=cheap", "'prices.linear' is \"cheap\""),
    "no name": ("--predictions gpt.csv", "--predictions 'gpt.csv' is not NAME=VALUE"),
    "no file": ("--predictions gpt=none.csv", "'none.csv' does not exist"),
    "no key": ("--predictions gpt=keyless.csv", "neither the column 'id' nor 'text'"),
    "no answer": ("--predictions gpt=mute.csv", "no column 'label', and no column probability_NAME"),
    "sum": ("--predictions gpt=sum.csv", "line 2 has probabilities that sum to 1.1"),
    "too large": ("--predictions gpt=large.jsonl", "line 1 has probabilities that sum to nan"),
    "several labels": ("--predictions gpt=mute.csv --label-separator ;", "have one label a text"),
}


@pytest.mark.parametrize("options", OPTIONS)
def test_bad_options_are_one_line_before_anything_is_trained(
    options: str, frame: Frame, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame.to_csv("reviews.csv", index=False)
    frame[["label"]].to_csv("keyless.csv", index=False)
    frame[["id"]].to_csv("mute.csv", index=False)
    frame[["id"]].assign(probability_negative=0.5, probability_positive=0.6).to_csv("sum.csv", index=False)
    large = {"id": "r0", "probability_negative": 10**400, "probability_positive": 0}
    Path("large.jsonl").write_text(json.dumps(large), encoding="utf-8")
    given, message = OPTIONS[options]
    command = ["compare", "reviews.csv", "--models", "linear", "--output", "out", "--quiet", *given.split()]
    assert message in refused(*command)


def test_rows_are_found_by_their_texts_where_the_data_have_no_ids(frame: Frame, tmp_path: Path) -> None:
    """Also where a text stands there twice, and by objects of probabilities as `predict` writes them."""
    frame.iloc[[*range(ROWS), 0]][["text", "label"]].to_csv(tmp_path / "reviews.csv", index=False)
    said = [{name: float(name == label) for name in LABELS[::-1]} for label in frame.label]
    rows = Frame({"text": " " + frame.text.str.upper() + " ", "probabilities": said})
    rows.to_json(tmp_path / "gpt.jsonl", orient="records", lines=True)
    assert accuracies(tmp_path, {"gpt": tmp_path / "gpt.jsonl"}) == {"gpt": 1.0}


def test_answers_in_memory_are_found_by_texts_of_two_columns_and_labels_are_no_probabilities(
    frame: Frame, tmp_path: Path
) -> None:
    rows = frame.assign(title=[f"review {number}" for number in range(ROWS)], body=frame.text)
    rows = rows[["title", "body", "label"]]
    rows.to_csv(tmp_path / "reviews.csv", index=False)
    with pytest.raises(DataError, match="has rows that are not probabilities; give one for each of"):
        accuracies(tmp_path, {"gpt": [["late", "rude"]] * ROWS}, text_column="title, body")
    assert accuracies(tmp_path, {"gpt": rows}, text_column="title, body") == {"gpt": 1.0}


def test_names_of_columns_match_in_any_case_and_exact_ones_come_first(frame: Frame, tmp_path: Path) -> None:
    rows = frame.rename(columns={"text": "Text", "label": "Label", "id": "Ticket ID"})
    rows[["Text", "Label", "Ticket ID"]].to_csv(tmp_path / "reviews.csv", index=False)
    rows.assign(label=rows.Label, Label="?").to_csv(tmp_path / "predicted.csv", index=False)
    rows[["Text", "Label"]].to_csv(tmp_path / "labels.csv", index=False)
    rows[["Ticket ID", "Label"]].to_csv(tmp_path / "ids.csv", index=False)
    names = {name: tmp_path / f"{name}.csv" for name in ("predicted", "labels", "ids")}
    assert accuracies(tmp_path, names, id_column="ticket id") == {"predicted": 1.0, "labels": 1.0, "ids": 1.0}
    both = frame[["text"]].assign(mood=frame.label.map(OTHER), Label=frame.label)
    both[["text"]].assign(mood=frame.label).to_csv(tmp_path / "reviews.csv", index=False)
    assert accuracies(tmp_path, {"both": both}, label_column="mood") == {"both": 0.0}


def test_predictions_beside_those_of_another_model_are_the_last_ones(frame: Frame, tmp_path: Path) -> None:
    """As `recurra predict` writes them on the output of another model: its own columns end in _predicted."""
    frame[["text", "label"]].to_csv(tmp_path / "reviews.csv", index=False)
    said = probabilities(frame)
    beside = frame[["text"]].assign(label=frame.label, probability_negative=said[:, 1], probability_positive=said[:, 0])
    # The other model abstained; this one does not.
    last = {"abstained": True, "label_predicted": "negative", "probability_negative_predicted": said[:, 0]}
    beside.assign(**last, probability_positive_predicted=said[:, 1]).to_csv(tmp_path / "second.csv", index=False)
    own, others = ([dict(zip(names, row, strict=True)) for row in said.tolist()] for names in (LABELS, LABELS[::-1]))
    rows = frame[["text"]].assign(probabilities=others, probabilities_predicted=own)
    rows.to_json(tmp_path / "second.jsonl", orient="records", lines=True)
    found = accuracies(tmp_path, {"table": tmp_path / "second.csv", "lines": tmp_path / "second.jsonl"}, folds=5)
    right = accuracy_score(frame.label == "positive", said.argmax(axis=1))
    assert found["table"] == found["lines"] == pytest.approx(right)


def test_rows_that_abstain_are_no_answers(frame: Frame, tmp_path: Path) -> None:
    frame[["text", "label"]].to_csv(tmp_path / "reviews.csv", index=False)
    said = frame[["text"]].assign(probability_negative=0.5, probability_positive=0.5, abstained="false")
    said.to_csv(tmp_path / "said.csv", index=False)
    assert accuracies(tmp_path, {"said": tmp_path / "said.csv"}, folds=5)
    said.assign(abstained=frame.index == 3).to_csv(tmp_path / "said.csv", index=False)
    with pytest.raises(DataError, match=rf"gives no label to 1 of {ROWS} test rows \(line 5\)"):
        accuracies(tmp_path, {"said": tmp_path / "said.csv"}, folds=5)


def test_the_labels_of_the_data_are_no_answers_where_another_column_may_have_them(frame: Frame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    frame.assign(gpt="Positive", why="it says so").to_csv(tmp_path / "gpt.csv", index=False)
    with pytest.raises(DataError) as refusal:
        accuracies(tmp_path, {"gpt": tmp_path / "gpt.csv"}, folds=5)
    assert f"in column 'label' the label of the data for all {ROWS} test rows" in str(refusal.value)
    assert "call the column of the answers 'label_predicted' (gpt has labels too)" in str(refusal.value)


def test_an_id_that_a_left_out_row_repeats_and_another_encoding_are_no_matter(frame: Frame, tmp_path: Path) -> None:
    rows = pd.concat([frame, Frame([{"text": "", "label": "positive", "id": "r1"}])], ignore_index=True)
    rows.loc[0, "text"] = "a café of note"
    rows.to_csv(tmp_path / "reviews.csv", index=False, encoding="cp1252")
    rows[:-1].to_csv(tmp_path / "file.csv", index=False, encoding="cp1252")
    rows[["text", "label"]][:-1].to_csv(tmp_path / "texts.csv", index=False, encoding="utf-8")
    predictions = {"listed": list(rows.label), "file": tmp_path / "file.csv", "texts": tmp_path / "texts.csv"}
    assert accuracies(tmp_path, predictions, encoding="cp1252") == {"listed": 1.0, "file": 1.0, "texts": 1.0}


KINDS = np.arange(ROWS) % 3
SURE = np.eye(3)[KINDS]
WORDS = ("unhappy", "neutral", "happy")
TRUTH = {True: SURE[:, 1:].sum(axis=1), False: SURE[:, 0]}
IN_MEMORY: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "words": (
        WORDS,
        {
            "frame": Frame(SURE, columns=list(WORDS)),
            "array": SURE[:, [2, 1, 0]],
            "arrays": list(SURE[:, [2, 1, 0]]),
            "labels-alone": Frame({"label": np.array(WORDS)[KINDS]}),
        },
    ),
    "numbers": ((1, 2, 10), {"numbers": Frame(SURE, columns=np.array([1, 2, 10]))}),
    "texts": (("1", "2", "10"), {"mapping": {"1": SURE[:, 0], "10": SURE[:, 2], "2": SURE[:, 1]}}),
    "bools": ((False, True, True), {"truth-values": Frame(TRUTH), "zeros-and-ones": (KINDS > 0).astype(int)}),
    "zeros": ((0, 1, 1), {"truth-values": KINDS > 0}),
    "names": (("False", "True", "True"), {"truth-values": KINDS > 0}),
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_answers_in_memory_are_of_the_rows_in_their_order(kind: str, frame: Frame, tmp_path: Path) -> None:
    labels, answers = IN_MEMORY[kind]
    rows = frame[["text"]].assign(label=[labels[number] for number in KINDS])
    assert accuracies(tmp_path, answers, rows) == dict.fromkeys(answers, 1.0)


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
        accuracies(tmp_path, {"gpt": answers}, rows)


def test_answers_in_memory_are_refused_where_texts_have_several_labels(frame: Frame, tmp_path: Path) -> None:
    answers = {"gpt": [["positive"]] * len(frame)}
    with pytest.raises(ConfigurationError, match=r"predictions='gpt' have one label a text, and .* has several"):
        planned(tmp_path, answers, frame, label_separator=";")


def test_answers_need_a_name(frame: Frame) -> None:
    with pytest.raises(ConfigurationError, match=r"predictions is a list; give .* as {'gpt': answers}"):
        recurra.compare(frame, predictions=["answers.csv"])  # type: ignore[arg-type]
