from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recurra.core.record import AuditResult
from recurra.data.dataset import Group, TextDataset, TextSplit
from recurra.data.sst2 import load_sst2
from recurra.evaluation.audits.grading import kept_rows
from recurra.evaluation.audits.leakage import audit_leakage, audit_teacher


def _split(name: str, texts: list[str], groups: list[Group] | None = None) -> TextSplit:
    labels = np.arange(len(texts)) % 2
    return TextSplit(name, texts, labels, [f"{name}-{row}" for row in range(len(texts))], groups)


def _audit(
    train: list[str], test: list[str], groups: tuple[list[Group], list[Group]] | None = None
) -> dict[str, AuditResult]:
    splits = {
        "train": _split("train", train, groups[0] if groups else None),
        "test": _split("test", test, groups[1] if groups else None),
    }
    dataset = TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test"])
    results = audit_leakage(dataset)
    return {result.name.removeprefix("leakage.").removesuffix(".test"): result for result in results}


def _sentences(count: int, words: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in rng.integers(0, 10_000, size=words)) for _ in range(count)]


TRAIN = _sentences(200, 12, 0)
FRESH = _sentences(100, 12, 1)


def test_unrelated_splits_pass() -> None:
    got = _audit(TRAIN, FRESH)
    assert {kind: result.status for kind, result in got.items()} == {
        "exact": "passed",
        "normalised": "passed",
        "contained": "passed",
        "ngram": "passed",
        "source": "skipped",
    }
    assert got["contained"].value == 0


def test_copies_fail_and_are_shown() -> None:
    got = _audit(TRAIN, FRESH[:93] + TRAIN[:7])
    for kind in ("exact", "normalised", "contained", "ngram"):
        assert got[kind].status == "failed", kind
        assert got[kind].value == pytest.approx(0.07)
        assert got[kind].details["rows"] == 7
        assert len(got[kind].details["examples"]) == 5
    first = got["exact"].details["examples"][0]
    assert first == {"id": "test-93", "text": TRAIN[0], "train_text": TRAIN[0]}
    assert "7 of 100" in got["exact"].summary


def test_rows_of_another_task_are_searched_too() -> None:
    splits = {"train": _split("train", TRAIN), "test": _split("test", FRESH)}
    auxiliary = _split("auxiliary", [*_sentences(50, 12, 2), *(f"so {text}" for text in FRESH[:9])])
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


def test_ngrams_need_long_rows() -> None:
    got = _audit(TRAIN, ["a b c d"] * 50)["ngram"]
    assert got.status == "skipped"
    assert "0 rows of 8 words" in got.summary


def test_a_few_equal_short_texts_are_natural() -> None:
    test = FRESH + _sentences(99, 12, 2) + [TRAIN[0]]
    got = _audit(TRAIN, test)
    assert got["exact"].value == 1 / 200
    assert got["exact"].status == "passed"


def test_one_shared_source_fails() -> None:
    train_groups: list[Group] = [(row,) for row in range(len(TRAIN))]
    test_groups: list[Group] = [(1000 + row,) for row in range(len(FRESH))]
    assert _audit(TRAIN, FRESH, (train_groups, test_groups))["source"].status == "passed"
    test_groups[4] = (2000, 17)
    got = _audit(TRAIN, FRESH, (train_groups, test_groups))["source"]
    assert (got.status, got.value) == ("failed", 0.01)
    assert got.details["examples"] == [{"id": "test-4", "text": FRESH[4], "sources": [17]}]


def test_empty_split_is_skipped() -> None:
    kinds = ("exact", "normalised", "contained", "ngram", "source")
    for train, test in ((TRAIN, []), ([], TRAIN)):
        assert {kind: result.status for kind, result in _audit(train, test).items()} == dict.fromkeys(kinds, "skipped")


def test_rows_that_only_the_teacher_learned_are_counted() -> None:
    splits = {"train": _split("train", TRAIN), "test": _split("test", FRESH[:4]), "held_out": _split("held_out", ["a"])}
    dataset = TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test", "held_out"])
    seen, unseen = audit_teacher(dataset, "t", _split("train", [*TRAIN, FRESH[1], FRESH[3]]))
    assert (seen.name, seen.status, seen.value) == ("teacher.test", "failed", 0.5)
    assert kept_rows(seen, 4).tolist() == [False, True, False, True] and "2 of 4 test rows" in seen.summary
    assert (unseen.name, unseen.status, unseen.value, unseen.details) == ("teacher.held_out", "passed", 0.0, {})
    # What the student was trained on too is a matter of the leakage audit.
    assert [audit.status for audit in audit_teacher(dataset, "t", _split("train", TRAIN))] == ["passed"] * 2
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
