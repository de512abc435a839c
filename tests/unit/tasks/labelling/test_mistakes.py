"""The surest mistakes: which rows are recorded, words against occlusion by hand, and what a report shows of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax

from factories import RunFactory
from recurra.cli.main import main
from recurra.core.record import RECORD_NAME, LabelRunRecord, MistakeRecord, read_record, write_record
from recurra.data.dataset import TextSplit
from recurra.deployment.decision import AnyLabels, LabelDecision, OneLabel
from recurra.tasks.labelling.reporting import (
    LONGEST_EXPLAINED,
    LONGEST_WORD,
    MOST_CHARACTERS,
    MOST_PARTS,
    MOST_RECORDED,
    MOST_WORDS,
    mistakes_table,
    surest_mistakes,
)
from recurra.tasks.questions import Questions
from recurra.tasks.tables import NONE
from rendered import summarise_folders
from reviews import review_rows, write_csv

NAMES = ["a", "b", "c"]
# What each word adds to the score of each label; together they add more.
ADDS = {"late": (2.0, -1.0, 0.25), "torn": (-1.0, 3.0, 0.0), "thanks": (-3.0, -3.0, 1.0), "box": (0.0, 0.5, -0.5)}
THRESHOLDS = [0.3, 0.5, 0.4]
DECISIONS: dict[str, LabelDecision] = {"one": OneLabel(NAMES), "several": AnyLabels(NAMES, THRESHOLDS, ";")}


def scores(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    rows = [np.sum([ADDS[word] for word in text.split()] or [(0.0, 0.0, 0.0)], axis=0) for text in texts]
    return np.array(rows).reshape(-1, 3) ** 3 / 8


def probabilities(kind: str, texts: Sequence[str]) -> Any:
    return softmax(scores(texts), axis=1) if kind == "one" else expit(scores(texts))


def wrong_label(kind: str, said: list[float], truth: list[int]) -> int | None:
    """The surest label that a row gets and does not have."""
    above = [label for label in range(3) if said[label] >= THRESHOLDS[label]]
    given = [said.index(max(said))] if kind == "one" else above
    return max((label for label in given if not truth[label]), key=lambda label: said[label], default=None)


@pytest.mark.parametrize("kind", ["one", "several"])
@given(data=st.data())
def test_words_are_those_of_naive_occlusion(kind: str, data: st.DataObject) -> None:
    text = st.lists(st.sampled_from(sorted(ADDS)), max_size=7).map(" ".join)
    texts = data.draw(st.lists(text, min_size=1, max_size=30))
    row = st.lists(st.integers(0, 1), min_size=3, max_size=3) if kind == "several" else st.permutations([0, 0, 1])
    truth = data.draw(st.lists(row, min_size=len(texts), max_size=len(texts)))
    labels = np.array(truth) if kind == "several" else np.array(truth).argmax(axis=1)
    split = TextSplit("test", texts, labels, [f"row {place}" for place in range(len(texts))])
    said = probabilities(kind, texts)
    found = surest_mistakes(lambda asked: probabilities(kind, asked), DECISIONS[kind], split, said)
    wrong = [wrong_label(kind, row, own) for row, own in zip(said.tolist(), truth, strict=True)]
    sure = sorted((-said[place, label], place) for place, label in enumerate(wrong) if label is not None)
    expected = [(f"row {place}", -probability) for probability, place in sure[:MOST_RECORDED]]
    assert [(each.id, each.probability) for each in found] == expected
    for (_, place), each in zip(sure, found, strict=False):
        label = wrong[place]
        assert label is not None and each.said == NAMES[label]
        assert each.labels == [name for name, true in zip(NAMES, truth[place], strict=True) if true]
        words = texts[place].split()
        rests = [" ".join([*words[:number], *words[number + 1 :]]) for number in range(len(words))]
        falls = [round(said[place, label] - rest, 6) for rest in probabilities(kind, rests)[:, label].tolist()]
        told = sorted((number for number, fall in enumerate(falls) if fall > 0), key=lambda number: -falls[number])
        assert each.words == [words[number] for number in told[:MOST_WORDS]]


@pytest.mark.parametrize("words", [5, 200, 300, 700])
def test_the_work_is_bounded(words: int) -> None:
    text = " ".join(f"word{number % 10}" for number in range(words))
    huge = "x" * (LONGEST_EXPLAINED + 1)
    split = TextSplit("test", [text] * 30 + [huge], np.zeros(31, dtype=int), [str(row) for row in range(31)])
    asked: list[str] = []

    def predict(texts: Sequence[str]) -> npt.NDArray[np.float64]:
        asked.extend(texts)
        return np.full((len(texts), 2), 0.5)

    said = np.tile([0.2, 0.8], (31, 1))
    said[30] = 0.1, 0.9
    found = surest_mistakes(predict, OneLabel(["no", "yes"]), split, said)
    assert [each.id for each in found] == ["30", *map(str, range(MOST_RECORDED - 1))]
    assert found[0].words is None
    explained = MOST_RECORDED - 1 if len(text) <= LONGEST_EXPLAINED else 0
    assert len(asked) <= explained * MOST_PARTS
    # Ten parts at least: a text in fewer says nothing of words.
    assert sum(map(len, asked)) <= max(MOST_CHARACTERS, explained * 10 * len(text))
    assert not explained or len(asked) >= explained * min(words, 10)
    assert all(len(word) < LONGEST_WORD + 30 for each in found for word in each.words or ())


def test_records_with_and_without_mistakes_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFactory(tmp_path).run("recurrent")
    path, record = folder / RECORD_NAME, read_record(folder)
    before = path.read_bytes()
    write_record(folder, record)
    assert record.mistakes is None and path.read_bytes() == before and b'"mistakes"' not in before
    told = [
        MistakeRecord(id="1", labels=["negative"], said="positive", probability=0.75, words=["<b>", "naïve"]),
        MistakeRecord(id="2", labels=[], said="negative", probability=0.5),
    ]
    for mistakes in ([], told):
        write_record(folder, record.model_copy(update={"mistakes": mistakes}))
        assert read_record(folder).mistakes == mistakes
    assert list(json.loads(path.read_text())["mistakes"][1]) == ["id", "labels", "said", "probability"]


def test_who_is_right_is_known_where_every_other_model_was_asked(tmp_path: Path) -> None:
    factory = RunFactory(tmp_path, rows={"train": 90, "validation": 60, "test": 200})
    best = [factory.run("recurrent", 0.95, seed=seed, spoke="dull") for seed in (3, 4)]
    others = [factory.run("linear", 0.6), factory.run("baseline", 0.6)]
    questions = Questions(texts={"test": {f"test-{row}": f"text {row}" for row in range(200)}})

    def shown(folders: list[Path]) -> tuple[list[str], str]:
        (table,) = summarise_folders(folders, questions=questions).tables
        mistakes = mistakes_table(table)
        return [row["Models that are right"] for row in mistakes.rows], mistakes.note

    cells, note = shown([*best, *others])
    assert {"linear, baseline", "no model here"} & {*cells} and NONE not in cells
    assert "If no model agrees with the label" in note and "These are the mistakes of seed 3." in note
    alone, note = shown(best[:1])
    assert set(alone) == {NONE} and "If no model agrees" not in note and "of seed" not in note
    (others[1] / "predictions" / "test.parquet").write_bytes(b"damaged")
    assert set(shown([*best, *others])[0]) == {NONE}
    record = read_record(best[0])
    pairs = zip(record.mistakes or (), ([], ["a", "b"]), strict=False)
    labelled = [mistake.model_copy(update={"labels": labels}) for mistake, labels in pairs]
    write_record(best[0], record.model_copy(update={"mistakes": labelled}))
    (table,) = summarise_folders(best[:1], questions=questions).tables
    assert {row["label"] for row in table.mistakes} == {"no label", "a, b"}


@pytest.mark.parametrize("several", [False, True])
def test_a_run_records_its_mistakes_also_if_it_was_killed_before_its_record(several: bool, tmp_path: Path) -> None:
    rows = [(f"{text} {number}", label) for number, (text, label) in enumerate(review_rows(120))]
    # A seventh of the rows has the label of the row before.
    labels = [rows[number - (number % 7 == 0)][1] for number in range(120)]
    labels = [f"{label};third" if several and number % 3 else label for number, label in enumerate(labels)]
    data = write_csv(tmp_path / "rows.csv", [(text, label) for (text, _), label in zip(rows, labels, strict=True)])
    arguments = ["train", "--model", "linear", "--data", str(data), "--output", str(tmp_path / "run"), "--no-latency"]
    arguments += ["--quiet", *(["--label-separator", ";"] if several else [])]
    found = []
    for _ in range(2):
        assert main(arguments) == 0
        record = read_record(tmp_path / "run")
        assert isinstance(record, LabelRunRecord) and record.mistakes
        assert all(each.said not in each.labels and each.words for each in record.mistakes)
        found.append(record.mistakes)
        (tmp_path / "run" / RECORD_NAME).unlink()
    assert found[0] == found[1]
