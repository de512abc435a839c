"""The treebank's labelled phrases: trees read as a recursion would, and nothing of held-out or reported sentences."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.sst2 import TREES_FILE, read_phrases, read_tree
from small_treebank import write_treebank

TREE = "(3 (2 (2 It) (2 's)) (4 (2 -LRB-) (4 (3 very) (4 lovely\\/fine))))"

Nested = tuple[int, "str | list[Nested]"]


def drawn(dice: np.random.Generator, depth: int) -> Nested:
    label = int(dice.integers(5))
    if depth == 0 or dice.random() < 0.3:
        return label, f"w{dice.integers(20)}"
    return label, [drawn(dice, depth - 1) for _ in range(int(dice.integers(1, 4)))]


def bracketed(node: Nested) -> str:
    label, inside = node
    return f"({label} {inside if isinstance(inside, str) else ' '.join(map(bracketed, inside))})"


def phrases_of(node: Nested) -> tuple[list[str], list[tuple[str, int]]]:
    """Words of a node, and text and label of every node in it, children first."""
    label, inside = node
    if isinstance(inside, str):
        return [inside], [(inside, label)]
    parts = [phrases_of(child) for child in inside]
    words = [word for part, _ in parts for word in part]
    return words, [*(phrase for _, found in parts for phrase in found), (" ".join(words), label)]


@pytest.mark.parametrize("seed", range(5))
def test_any_tree_is_read_as_a_recursion_reads_it(seed: int) -> None:
    tree = drawn(np.random.default_rng(seed), 5)
    words, phrases = read_tree(bracketed(tree))
    expected_words, expected = phrases_of(tree)
    assert words == expected_words
    assert [(" ".join(words[first:end]), label) for first, end, label in phrases] == expected


@pytest.mark.parametrize("line", ["", "(3 good", "3 good)", "(5 good)", "(3 )", "(3 (2 a)) )", "words"])
def test_what_is_no_tree_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"label|brackets"):
        read_tree(line)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_treebank(tmp_path)


def test_phrases_of_held_out_and_reported_sentences_are_not_among_them(root: Path) -> None:
    plain = load_dataset(DataConfig(name="sst2"), root)
    dataset = load_dataset(DataConfig(name="sst2", auxiliary="treebank"), root)
    phrases = dataset.auxiliary
    assert phrases is not None and dataset.auxiliary_label_names == [
        "very negative", "negative", "neutral", "positive", "very positive"
    ]  # fmt: skip
    held = {group[0] for group in dataset.splits["held_out"].groups or []}
    assert len(held) == 3
    for n in range(24):
        own = {f"film{n}", f"w{n}", f"is w{n}", f"the film{n}", f"the film{n} is w{n}"}
        assert own.isdisjoint(phrases.texts) if n + 1 in held else own <= set(phrases.texts)
    # Held-out sentences have these words too; the last tree is a validation sentence, word for word.
    assert {"the", "is"}.isdisjoint(phrases.texts) and "dev text number0" not in phrases.texts
    assert {"end", "the end"} <= set(phrases.texts)
    label = dict(zip(phrases.texts, phrases.labels.tolist(), strict=True))
    kept = next(n for n in range(1, 24, 2) if n + 1 not in held)
    assert (label[f"the film{kept} is w{kept}"], label[f"is w{kept}"], label[f"w{kept}"], label["end"]) == (3, 4, 3, 2)
    for name, split in plain.splits.items():
        assert dataset.splits[name].fingerprint == split.fingerprint
    assert dataset.fingerprint != plain.fingerprint
    assert any(f"five-class labels of {len(phrases)} phrases" in note for note in dataset.notes)


def test_data_without_them_keep_their_identity() -> None:
    assert "auxiliary" not in DataConfig(name="sst2").plain()
    with_them = DataConfig(name="sst2", auxiliary="treebank")
    assert DataConfig.parse(with_them.plain()) == with_them
    assert (DataConfig(name="sst2").part, with_them.part) == ("", "treebank")


def test_missing_and_damaged_trees(root: Path) -> None:
    path = root / TREES_FILE
    with gzip.open(path, "at", encoding="utf-8") as stream:
        stream.write("(3 (2 broken)\n")
    with pytest.raises(DataError, match="line 27 is not a labelled tree: the brackets do not match; fetch it again"):
        read_phrases(root, set())
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"cannot be read .*; fetch it again"):
        read_phrases(root, set())
    path.unlink()
    with pytest.raises(DataError, match=r"auxiliary=treebank needs sst/trees/train.txt.gz in the data root"):
        read_phrases(root, set())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "sst2", "auxiliary": "trees"}, "'auxiliary' is \"trees\": input should be 'treebank'"),
        ({"name": "demo", "auxiliary": "treebank"}, "belongs to sst2 under official, not to 'demo'; leave it out"),
        ({"name": "sst2", "protocol": "pooled", "auxiliary": "treebank"}, "not to 'sst2' under pooled"),
        ({"name": "sst2", "fraction": 0.5, "auxiliary": "treebank"}, "also of those that fraction or length_tail"),
        ({"name": "sst2", "length_tail": "longest", "auxiliary": "treebank"}, "take one or the other"),
    ],
)
def test_a_mistake_is_one_clear_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DataConfig.parse(values)
