from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from recurra.core.record import AuditResult
from recurra.data.dataset import TextDataset, TextSplit
from recurra.evaluation.audits import shortcuts
from recurra.evaluation.audits.shortcuts import FEATURE_NAMES, Probe, audit_shortcuts, format_features, mean_recall

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
        if trick == "marker" and label:
            words[0] = "kim"
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


def test_many_labels_cost_no_more_trees_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    split = _split("train", 200, "none", 0)
    few = replace(split, labels=np.arange(200) % 3)
    assert Probe.fit(few).form.n_iter_ == 100
    monkeypatch.setattr(shortcuts, "MOST_TREES", 30)
    probe = Probe.fit(few)
    assert (probe.form.n_iter_, probe.length.n_iter_) == (10, 10)


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


def test_too_little_data_is_skipped_with_the_reason() -> None:
    for train_rows, test_rows in ((50, 500), (2500, 30), (0, 500), (2500, 0)):
        got = _audit(_split("train", train_rows, "length", 0), _split("test", test_rows, "length", 1))
        for name in ("format", "words"):
            result = got[f"shortcuts.{name}.test"]
            assert result.status == "skipped"
            assert result.summary.startswith("skipped: ")


@pytest.mark.parametrize("test_rows", [30, 0])
def test_where_a_split_is_small_train_is_judged_in_folds(test_rows: int) -> None:
    statuses = {"punctuation": ("note", "passed"), "marker": ("passed", "note"), "none": ("passed", "passed")}
    for trick, found in statuses.items():
        got = _audit(_split("train", 240, trick, 0), _split("test", test_rows, trick, 1))
        results = [got[f"shortcuts.{name}.test"] for name in ("format", "words")]
        assert tuple(result.status for result in results) == found
        for result in results[: 1 + (trick == "marker")]:
            assert (result.details["rows"], result.details["folds"], result.details["train_rows"]) == (240, 5, 192)
            assert result.summary.startswith("in 5 folds of train")


def _marked(share: float, of_others: float = 0.0, positive: float = 0.5, seed: int = 0) -> TextSplit:
    """Rows of which a share with the label has a word, and a share of the others."""
    split = _split("any", 2000, "none", seed, positive)
    has = np.random.default_rng(seed + 9).random(2000) < np.where(split.labels, share, of_others)
    return replace(split, texts=[f"Kim: {text}" if told else text for text, told in zip(split.texts, has, strict=True)])


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        ({"share": 1.0}, "note"),
        ({"share": 0.5, "positive": 0.1}, "note"),
        ({"share": 0.5, "positive": 0.7}, "note"),
        # Seldom, in others too, and of a label that nearly all have.
        ({"share": 0.2}, "passed"),
        ({"share": 0.5, "of_others": 0.06}, "passed"),
        ({"share": 0.5, "of_others": 0.06, "positive": 0.7}, "passed"),
        ({"share": 0.5, "positive": 0.95}, "passed"),
        ({"share": 0.0}, "passed"),
    ],
)
def test_a_word_that_tells_a_label_is_a_note(keys: dict[str, float], status: str) -> None:
    train, test = _marked(**keys), _marked(**keys, seed=1)
    got = _audit(train, test)["shortcuts.words.test"]
    assert got.status == status
    if status == "note" or "share" in got.details:
        # Nine times as common with the label as without it.
        share = got.details["share"]
        assert got.threshold == pytest.approx(max(0.9, 9 * share / (9 * share + 1 - share)))
    if status == "note":
        low, _ = stats.binomtest(got.details["rows_with"], got.details["rows_with"]).proportion_ci(method="exact")
        assert got.value == pytest.approx(low) and got.threshold is not None and low > got.threshold >= 0.9
        assert (got.details["word"], got.details["told"], got.details["precision"]) == ("kim", "yes", 1.0)
        assert got.details["share"] == pytest.approx(test.labels.mean())
        assert got.details["recall"] == pytest.approx(keys["share"], abs=0.1)
        assert "'kim'" in got.summary and "'yes'" in got.summary


def test_a_word_that_told_in_train_alone_is_none() -> None:
    assert _audit(_marked(0.5), _marked(0.0, seed=1))["shortcuts.words.test"].status == "passed"
    empty = TextSplit("train", ["!"] * 200, np.arange(200) % 2, list(map(str, range(200))))
    assert _audit(empty, empty)["shortcuts.words.test"].status == "passed"


def test_balanced_accuracy_is_the_mean_of_recalls() -> None:
    labels, predicted = np.repeat([0, 1], [40, 10]), np.array([0] * 30 + [1] * 10 + [1] * 9 + [0])
    value, half = mean_recall(labels, predicted)
    assert value == pytest.approx((0.75 + 0.9) / 2)
    recalls, rows = np.array([32 / 44, 11 / 14]), np.array([44, 14])
    assert half == pytest.approx(1.959964 * np.sqrt((recalls * (1 - recalls) / rows).sum() / 4), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "positive", "status"), [(500, 0.5, "passed"), (500, 0.9, "failed"), (100, 0.0, "failed")]
)
def test_label_proportions(rows: int, positive: float, status: str) -> None:
    train = _split("train", 2500, "none", 0)
    got = _audit(train, _split("test", rows, "none", 1, positive=positive))
    found = got["shortcuts.labels.test"]
    assert found.status == status
    # Total variation of two classes is the difference of one share.
    assert found.value == pytest.approx(abs(found.details["train"]["yes"] - found.details["test"]["yes"]), abs=1e-3)
    if not positive:
        # Of one class alone form tells nothing; a far share in a tiny split may be chance.
        assert got["shortcuts.format.test"].status == "skipped"
        test = TextSplit("test", ["a"] * 20, np.repeat([0, 1], [5, 15]), list(map(str, range(20))))
        tiny = _audit(train, test)["shortcuts.labels.test"]
        assert tiny.value > 0.2 and tiny.status == "passed"


def test_many_labels_of_few_rows_are_judged_together() -> None:
    labels = np.arange(100)
    train, test = (
        TextSplit(name, ["a"] * len(rows), rows, list(map(str, range(len(rows)))))
        for name, rows in (("train", np.repeat(labels, 2)), ("test", labels[::3]))
    )
    splits = {"train": train, "test": test}
    dataset = TextDataset("toy", "split", list(map(str, labels)), splits, "test", ["test"])
    got = {result.name: result for result in audit_shortcuts(dataset)}["shortcuts.labels.test"]
    assert (got.status, got.value) == ("passed", 0)


def test_conflicting_labels() -> None:
    def rows(name: str, *texts: str) -> TextSplit:
        return TextSplit(name, list(texts), np.arange(len(texts)) % 2, list(map(str, range(len(texts)))))

    def found(train: TextSplit, test: TextSplit) -> AuditResult:
        return _audit(train, test)["shortcuts.conflicts"]

    texts = [f"text {row}" for row in range(98)]
    test = rows("test", "fresh", "same")
    got = found(rows("train", *texts, "same", "same"), test)
    assert got.status == "failed" and got.value == pytest.approx(3 / 102)
    assert got.details["rows_by_split"] == {"train": 2, "test": 1}
    assert got.details["examples"] == [{"text": "same", "labels": ["no", "yes"]}]
    long = rows("train", *["w " * 300] * 2)
    assert [len(example["text"]) for example in found(long, test).details["examples"]] == [200]
    assert found(rows("train"), rows("test")).status == "skipped"
    assert found(rows("train", *texts), test).status == "passed"


def test_a_feature_is_what_its_name_says() -> None:
    for name, text, value in [
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
    ]:
        assert format_features([text])[0, FEATURE_NAMES.index(name)] == value, name
