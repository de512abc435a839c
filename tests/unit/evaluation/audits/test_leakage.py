"""Leakage by text, source and teacher, seen rows, and perplexities too good: each found where it is planted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurra.core.record import AuditResult
from recurra.data.dataset import Group, TextDataset, TextSplit
from recurra.data.sst2 import load_sst2
from recurra.evaluation.audits.grading import kept_rows
from recurra.evaluation.audits.leakage import (
    audit_leakage,
    audit_seen,
    audit_teacher,
    audit_too_good,
    difference_at_equal_length,
    difference_interval,
    find_overlap,
)


def split(name: str, texts: list[str], groups: list[Group] | None = None) -> TextSplit:
    labels = np.arange(len(texts)) % 2
    return TextSplit(name, texts, labels, [f"{name}-{row}" for row in range(len(texts))], groups)


def _audit(train: list[str], test: list[str], groups: Sequence[list[Group]] = ()) -> dict[str, AuditResult]:
    parts = itertools.zip_longest(("train", "test"), (train, test), groups)
    splits = {name: split(name, texts, group) for name, texts, group in parts}
    results = audit_leakage(TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test"]))
    return {result.name.removeprefix("leakage.").removesuffix(".test"): result for result in results}


def _sentences(count: int, words: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in rng.integers(0, 10_000, size=words)) for _ in range(count)]


TRAIN = _sentences(200, 12, 0)
FRESH = _sentences(100, 12, 1)


def test_copies_fail_and_are_shown_and_unrelated_splits_pass() -> None:
    kinds = ("exact", "normalised", "contained", "ngram")
    got = _audit(TRAIN, FRESH)
    assert {kind: result.status for kind, result in got.items()} == dict.fromkeys(kinds, "passed") | {
        "source": "skipped"
    }
    assert got["contained"].value == 0
    got = _audit(TRAIN, FRESH[:93] + TRAIN[:7])
    for kind in kinds:
        assert got[kind].status == "failed", kind
        assert got[kind].value == pytest.approx(0.07)
        assert got[kind].details["rows"] == 7
        assert len(got[kind].details["examples"]) == 5
    first = got["exact"].details["examples"][0]
    assert first == {"id": "test-93", "text": TRAIN[0], "train_text": TRAIN[0]}
    assert "7 of 100" in got["exact"].summary
    # A few equal texts are natural.
    got = _audit(TRAIN, [*FRESH, *_sentences(99, 12, 2), TRAIN[0]])
    assert (got["exact"].value, got["exact"].status) == (1 / 200, "passed")
    few = _audit(TRAIN, ["a b c d"] * 50)["ngram"]
    assert few.status == "skipped" and "0 rows of 8 words" in few.summary
    # Scripts without spaces: a part of a text, and another that only shares some characters.
    unspaced = _audit(["这部电影很好看我很喜欢"], ["这部电影很好看", "这部电影我很喜欢"])
    assert (unspaced["exact"].status, unspaced["contained"].value) == ("passed", 0.5)
    for train, test in ((TRAIN, []), ([], TRAIN)):
        assert [result.status for result in _audit(train, test).values()] == ["skipped"] * 5


def test_rows_of_another_task_are_searched_too() -> None:
    splits = {"train": split("train", TRAIN), "test": split("test", FRESH)}
    auxiliary = split("auxiliary", [*_sentences(50, 12, 2), *(f"so {text}" for text in FRESH[:9])])
    dataset = TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test"], auxiliary=auxiliary)
    got = {result.name: result for result in audit_leakage(dataset)}
    assert {name: result.status for name, result in got.items() if "auxiliary" in name} == {
        "leakage.auxiliary-exact.test": "passed",
        "leakage.auxiliary-normalised.test": "passed",
        "leakage.auxiliary-contained.test": "failed",
        "leakage.auxiliary-ngram.test": "failed",
    }
    assert got["leakage.auxiliary-contained.test"].value == pytest.approx(0.09)
    # What stands in the rows of the task itself is told apart.
    assert got["leakage.contained.test"].value == 0 == got["leakage.ngram.test"].value


CHANGED = {
    # With other spelling; a phrase; with another first word, which leaves 4 of the 5 8-grams of 12 words.
    "normalised": [text.upper().replace(" W", " , W") + " !" for text in TRAIN[:20]],
    "contained": [" ".join(text.split()[2:7]) for text in TRAIN[:20]],
    "ngram": ["another " + " ".join(text.split()[1:]) for text in TRAIN[:20]],
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_changed_copy_is_found_by_one_measure_alone(kind: str) -> None:
    got = _audit(TRAIN, FRESH[:80] + CHANGED[kind])
    failed = {name for name, result in got.items() if result.status == "failed"}
    assert failed == {kind} and got[kind].value == pytest.approx(0.2)
    example = {"id": "test-80", "text": CHANGED[kind][0]}
    found = {"share_found": 0.8} if kind == "ngram" else {"train_text": TRAIN[0]}
    assert got[kind].details["examples"][0] == {**example, **found}


def test_one_shared_source_fails() -> None:
    train_groups: list[Group] = [(row,) for row in range(len(TRAIN))]
    test_groups: list[Group] = [(1000 + row,) for row in range(len(FRESH))]
    assert _audit(TRAIN, FRESH, (train_groups, test_groups))["source"].status == "passed"
    test_groups[4] = (2000, 17)
    got = _audit(TRAIN, FRESH, (train_groups, test_groups))["source"]
    assert (got.status, got.value) == ("failed", 0.01)
    assert got.details["examples"] == [{"id": "test-4", "text": FRESH[4], "sources": [17]}]


def test_rows_that_only_the_teacher_learned_are_counted() -> None:
    splits = {"train": split("train", TRAIN), "test": split("test", FRESH[:4]), "held_out": split("held_out", ["a"])}
    dataset = TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test", "held_out"])
    seen, unseen = audit_teacher(dataset, "t", split("train", [*TRAIN, FRESH[1], FRESH[3]]))
    assert (seen.name, seen.status, seen.value) == ("teacher.test", "failed", 0.5)
    assert kept_rows(seen, 4).tolist() == [False, True, False, True] and "2 of 4 test rows" in seen.summary
    assert (unseen.name, unseen.status, unseen.value, unseen.details) == ("teacher.held_out", "passed", 0.0, {})
    # What the student was trained on too is a matter of the leakage audit.
    assert [audit.status for audit in audit_teacher(dataset, "t", split("train", TRAIN))] == ["passed"] * 2
    assert [audit.status for audit in audit_teacher(dataset, "t", None)] == ["skipped"] * 2


@pytest.mark.slow
@pytest.mark.data
def test_pooled_sst2_leaks_and_official_does_not(data_root: Path) -> None:
    pooled = {result.name: result for result in audit_leakage(load_sst2("pooled", 0, data_root))}
    contained = pooled["leakage.contained.test"]
    assert contained.status == "failed"
    assert contained.value == pytest.approx(0.69, abs=0.02)
    assert pooled["leakage.source.test"].status == "failed"
    official = audit_leakage(load_sst2("official", 0, data_root))
    assert {result.status for result in official} == {"passed"}


HAN = [chr(code) for code in range(0x4E00, 0x4F00)]
# Three words make repeats, overlapping matches and long common runs frequent.
TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=14).map(" ".join), max_size=8)


@given(TEXTS, TEXTS, st.integers(2, 5), st.integers(1, 4))
@settings(max_examples=200)
def test_agrees_with_a_plain_search(train: list[str], texts: list[str], ngram: int, min_words: int) -> None:
    def stands(words: list[str]) -> int:
        for row, other in enumerate(text.split() for text in train):
            if any(other[start : start + len(words)] == words for start in range(len(other) - len(words) + 1)):
                return row
        return -1

    got = find_overlap(train, texts, ngram=ngram, min_words=min_words)
    split_texts = [text.split() for text in texts]
    grams = [[words[at : at + ngram] for at in range(len(words) - ngram + 1)] for words in split_texts]
    container = [stands(words) if len(words) >= min_words else -1 for words in split_texts]
    assert (got.container.tolist(), got.ngrams.tolist()) == (container, [len(each) for each in grams])
    assert got.ngrams_found.tolist() == [sum(stands(gram) >= 0 for gram in each) for each in grams]


@given(st.lists(st.text("这部电影好看", max_size=30), max_size=6), st.text("这部电影好看", min_size=6, max_size=12))
def test_what_stands_in_a_text_without_spaces_is_found(train: list[str], text: str) -> None:
    (row,) = find_overlap(train, [text], ngram=8, min_words=3).container
    assert row == next((number for number, other in enumerate(train) if text in other), -1)


def test_copies_with_small_edits_are_found_without_spaces() -> None:
    rng = random.Random(0)
    train = ["".join(rng.choices(HAN, k=60)) for _ in range(40)]
    copies = [text[:50] + "".join(rng.choices(HAN, k=10)) for text in train[:20]]
    got = _audit(train, [*copies, *("".join(rng.choices(HAN, k=60)) for _ in range(20))])
    assert got["ngram"].value == 0.5 and got["contained"].value == 0


@pytest.mark.parametrize("equal", [False, True])
def test_rows_inside_training_rows_are_told_from_the_others(*, equal: bool) -> None:
    train = split("train", [f"so the film{row} was very good and long" for row in range(60)])
    rows = [f"film{row} was very good" for row in range(40)]
    rows += [f"other{row} was very good{'' if equal else ' and long'}" for row in range(50)]
    correct = np.array([True] * 36 + [False] * 4 + [True] * 30 + [False] * 20)
    got = audit_seen(train, split("test", [*rows, *["very good"] * 10]), np.append(correct, [False] * 10))
    assert (got.name, got.status, got.threshold) == ("seen.test", "measured", None)
    assert got.details["seen"]["rows"] == 40 and got.details["seen"]["accuracy"] == pytest.approx(0.9)
    assert got.details["unseen"]["rows"] == 50 and got.details["unseen"]["accuracy"] == pytest.approx(0.6)
    assert got.details["rows_too_short"] == 10 and got.value == pytest.approx(0.3)
    low, high = got.details["interval"]
    assert 0.1 < low < 0.3 < high < 0.5
    assert "0.900 on the 40 rows" in got.summary and "0.600 on the 50" in got.summary
    if not equal:
        assert got.details["at_equal_length"] is None
        return
    seen = np.arange(90) < 40
    expected = difference_at_equal_length(correct, seen, ~seen, np.full(90, 4))
    assert got.details["at_equal_length"] == {"difference": expected[0], "interval": [*expected[1:]]}
    low, high = (f"{'+' if end >= 0 else '-'}{abs(end):.3f}" for end in expected[1:])
    assert f"; at equal length +0.300 ({low} to {high})" in got.summary.replace("\u2212", "-")
    few = audit_seen(split("train", ["nothing in common"]), split("test", rows[:50]), correct[:50])
    assert few.status == "skipped"
    assert "0 rows of 3 words or more are contained" in few.summary and "20 of both" in few.summary


def test_the_interval_is_newcombe_s_and_the_stratified_one_that_of_its_formula() -> None:
    # Newcombe 1998, table II, method 10, examples (a) and (g).
    assert difference_interval(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert difference_interval(10, 10, 0, 20) == pytest.approx((0.6791, 1.0), abs=5e-5)
    # A row of each group in a stratum counts; a stratum of one group alone does not.
    group = np.array([True, False, True])
    one = difference_at_equal_length(np.array([True, False, True]), group, ~group, np.array([3, 3, 4]))
    assert one is not None and one[0] == 1.0
    # By the formulas of Sato (1989), a table at a time: right of seen, seen, right of unseen, unseen.
    for tables in ([(30, 40, 30, 60)], [(9, 12, 4, 8), (3, 5, 20, 25)]):
        weight = sum(n * m / (n + m) for _, n, _, m in tables)
        expected = sum((a * m - c * n) / (n + m) for a, n, c, m in tables) / weight
        p = sum((n * n * c - m * m * a + n * m * (m - n) / 2) / (n + m) ** 2 for a, n, c, m in tables)
        q = sum((a * (m - c) + c * (n - a)) / (2 * (n + m)) for a, n, c, m in tables)
        wide = 1.959964 * np.sqrt(expected * p + q) / weight
        cells = [(words, group, row < good) for words, (a, n, c, m) in enumerate(tables, 3)
                 for group, good, count in ((True, a, n), (False, c, m)) for row in range(count)]  # fmt: skip
        words, group, outcome = (np.array(column) for column in zip(*cells, strict=True))
        found = difference_at_equal_length(outcome, group, ~group, words)
        assert found == pytest.approx((expected, expected - wide, expected + wide), rel=1e-6)


LEAKS = "ALARM: word perplexity 1.08 is below 15; the model leaks (causality.final)"


@pytest.mark.parametrize(
    ("perplexity", "found", "status", "said"),
    [
        (1.08, "failed", "failed", LEAKS),
        (14.9, "passed", "measured", "look for test text in training"),
        (15.0, "failed", "passed", "word perplexity 15.0; below 15 there would be an alarm"),
    ],
)
def test_a_perplexity_below_15_is_an_alarm_which_fails_for_a_model_that_leaks(
    perplexity: float, found: str, status: str, said: str
) -> None:
    causality = AuditResult(name="causality.final", status=found, summary="said by the audit")
    alarm = audit_too_good(perplexity, [causality])
    assert (alarm.status, alarm.value) == (status, perplexity)
    assert all(part in alarm.summary for part in said.split("; "))
