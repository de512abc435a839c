from __future__ import annotations

import numpy as np
import pytest

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit
from recurra.evaluation.audits.shortcuts import FEATURE_NAMES, audit_shortcuts, format_features, mean_recall

WORDS = ["fine", "plot", "the", "slow", "rather", "great", "dull", "it", "acting"]


def _texts(rng: np.random.Generator, labels: np.ndarray, trick: str) -> list[str]:
    texts = []
    for label in labels:
        length = int(rng.integers(5, 30))
        mark = rng.choice([".", "!", ""])
        if trick == "length" and label:
            length += 15
        if trick == "punctuation":
            mark = "!" if label else "."
        if trick == "few" and rng.random() < 0.1:
            mark = "!" if label else "."
        words = [str(word) for word in rng.choice(WORDS, size=length)]
        if trick == "words":
            words[0] = "great" if label else "dull"
        texts.append(" ".join([*words, str(mark)]).strip())
    return texts


def _split(name: str, rows: int, trick: str, seed: int, positive: float = 0.5) -> TextSplit:
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < positive).astype(np.int64)
    return TextSplit(name, _texts(rng, labels, trick), labels, [str(row) for row in range(rows)])


def _audit(train: TextSplit, test: TextSplit) -> dict[str, AuditResult]:
    dataset = TextDataset("toy", "split", ["no", "yes"], {"train": train, "test": test}, "test", ["test"])
    return {result.name: result for result in audit_shortcuts(dataset)}


@pytest.mark.parametrize(
    ("trick", "status"),
    [("none", "passed"), ("words", "passed"), ("few", "passed"), ("length", "note"), ("punctuation", "note")],
)
def test_form_that_tells_the_label_is_a_note_and_words_are_not(trick: str, status: str) -> None:
    got = _audit(_split("train", 1500, trick, 0), _split("test", 500, trick, 1))["shortcuts.format.test"]
    assert got.status == status
    assert got.threshold == pytest.approx(0.65)
    low, high = got.details["interval"]
    assert low <= got.value <= high
    assert got.details["length_alone"] > 0.65 if trick == "length" else got.details["length_alone"] < 0.65
    assert (got.details["rows"], got.details["train_rows"], got.details["chance"]) == (500, 1500, 0.5)
    if status == "passed":
        assert got.value < 0.65


@pytest.mark.parametrize(("train_rows", "test_rows"), [(50, 500), (500, 30), (0, 500), (500, 0)])
def test_too_little_data_is_skipped_with_the_reason(train_rows: int, test_rows: int) -> None:
    got = _audit(_split("train", train_rows, "length", 0), _split("test", test_rows, "length", 1))
    result = got["shortcuts.format.test"]
    assert result.status == "skipped"
    assert result.summary.startswith("skipped: ")


def test_balanced_accuracy_is_the_mean_of_recalls() -> None:
    labels, predicted = np.repeat([0, 1], [40, 10]), np.array([0] * 30 + [1] * 10 + [1] * 9 + [0])
    value, half = mean_recall(labels, predicted, np.array([0, 1]), np.array([40, 10]))
    assert value == pytest.approx((0.75 + 0.9) / 2)
    recalls, rows = np.array([32 / 44, 11 / 14]), np.array([44, 14])
    assert half == pytest.approx(1.959964 * np.sqrt((recalls * (1 - recalls) / rows).sum() / 4), rel=1e-6)


def test_one_class_in_a_split_is_skipped() -> None:
    got = _audit(_split("train", 500, "none", 0), _split("test", 100, "none", 1, positive=0.0))
    assert got["shortcuts.format.test"].status == "skipped"
    assert got["shortcuts.labels.test"].status == "failed"


def test_label_proportions() -> None:
    train = _split("train", 2000, "none", 0)
    close = _audit(train, _split("test", 500, "none", 1))["shortcuts.labels.test"]
    assert close.status == "passed"
    far = _audit(train, _split("test", 500, "none", 1, positive=0.9))["shortcuts.labels.test"]
    assert far.status == "failed"
    # Total variation of two classes is the difference of one share.
    assert far.value == pytest.approx(abs(far.details["train"]["yes"] - far.details["test"]["yes"]), abs=1e-3)


def test_a_far_share_in_a_tiny_split_may_be_chance() -> None:
    test = TextSplit("test", ["a"] * 20, np.repeat([0, 1], [5, 15]), [str(row) for row in range(20)])
    got = _audit(_split("train", 2000, "none", 0), test)["shortcuts.labels.test"]
    assert got.value > 0.2
    assert got.status == "passed"


def test_conflicting_labels() -> None:
    texts = [f"text {row}" for row in range(98)]
    train = TextSplit("train", [*texts, "same", "same"], np.arange(100) % 2, [str(row) for row in range(100)])
    test = TextSplit("test", ["same", "fresh"], np.array([1, 0]), ["0", "1"])
    got = _audit(train, test)["shortcuts.conflicts"]
    assert got.status == "failed"
    assert got.value == pytest.approx(3 / 102)
    assert got.details["rows_by_split"] == {"train": 2, "test": 1}
    assert got.details["examples"] == [{"text": "same", "labels": ["no", "yes"]}]
    long = TextSplit("train", ["w " * 300] * 2, np.array([0, 1]), ["0", "1"])
    assert [len(example["text"]) for example in _audit(long, test)["shortcuts.conflicts"].details["examples"]] == [200]
    nothing = TextSplit("train", [], np.array([], dtype=np.int64), [])
    assert _audit(nothing, nothing)["shortcuts.conflicts"].status == "skipped"
    agreeing = TextSplit("train", texts, np.arange(98) % 2, [str(row) for row in range(98)])
    assert _audit(agreeing, test)["shortcuts.conflicts"].status == "passed"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("characters", "ab cd\n", 6),
        ("words", " one\ttwo\nthree ", 3),
        ("characters_a_word", "ab cd", 2.5),
        ("characters_a_word", "  ", 2),
        ("longest_word", "a bcd ef", 3),
        ("digits", "a1 23", 3),
        ("upper_case_share", "AbCd", 0.5),
        ("non_ascii", "na\u00efve \x7f \u6f22\u5b57", 3),
        ("double_spaces", "a  b   c", 2),
        ("line_breaks", "a\nb\n\n", 3),
        ("leading_space", "\ta ", 1),
        ("leading_space", "a ", 0),
        ("trailing_space", "a\n", 1),
        ("trailing_space", " a", 0),
        ("ends_with_letter_or_digit", ". 9", 1),
        ("ends_with_letter_or_digit", "a.", 0),
        *((f"count_{mark}", f"{mark} a {mark}", 2) for mark in ".,!?;:'\"`()[]-/&$%*#@"),
    ],
)
def test_a_feature_is_what_its_name_says(name: str, text: str, value: float) -> None:
    assert format_features([text])[0, FEATURE_NAMES.index(name)] == value


def test_many_labels_of_few_rows_are_judged_together() -> None:
    def part(name: str, rows: int) -> TextSplit:
        return TextSplit(name, ["a"] * 100 * rows, np.repeat(np.arange(100), rows), list(map(str, range(100 * rows))))

    labels = [str(label) for label in range(100)]
    test = part("test", 1).select(np.arange(0, 100, 3))
    dataset = TextDataset("toy", "split", labels, {"train": part("train", 2), "test": test}, "test", ["test"])
    got = {result.name: result for result in audit_shortcuts(dataset)}["shortcuts.labels.test"]
    assert (got.status, got.value) == ("passed", 0)
