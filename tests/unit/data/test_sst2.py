from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from recurra.core.errors import DataError, UnavailableError
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.sst2 import TREES_FILE, read_phrases, read_tree
from small_treebank import write_part, write_sst2, write_treebank

SENTENCES = 40


@pytest.fixture
def small_root(tmp_path: Path) -> Path:
    """Forty train sentences, each with three phrases; one phrase is part of every sentence."""
    parts = [(f"sentence{n} left{n}", f"and right{n}") for n in range(SENTENCES)]
    return write_sst2(tmp_path, [[f"shared words begin {' '.join(two)}", *two] for two in parts], shared="shared words")


def sentences_of(dataset: TextDataset, split: str) -> set[int | str]:
    return {sentence for group in dataset.splits[split].groups or [] for sentence in group}


def test_official_holds_out_whole_sentences_with_their_phrases_and_pooled_uses_every_row(small_root: Path) -> None:
    dataset = load_dataset(DataConfig(name="sst2"), small_root)
    assert dataset.protocol == "official"
    sizes = {name: len(split) for name, split in dataset.splits.items()}
    assert sizes == {"train": 3 * (SENTENCES - 5), "held_out": 5, "validation": 6, "test": 6}
    assert (dataset.selection_split, dataset.reported_splits) == ("held_out", ["held_out", "validation", "test"])
    assert not sentences_of(dataset, "train") & sentences_of(dataset, "held_out")
    assert "shared words" not in dataset.splits["train"].texts
    assert dataset.dropped["train: phrase of a held-out sentence"] == 2 * 5 + 1
    other = load_dataset(DataConfig(name="sst2", split_seed=1), small_root)
    assert other.splits["held_out"].ids != dataset.splits["held_out"].ids
    assert other.splits["test"].fingerprint == dataset.splits["test"].fingerprint
    # Pooled uses every row once; groups are sentences of the row's own split.
    pooled = load_dataset(DataConfig(name="sst2", protocol="pooled"), small_root)
    assert [len(split) for split in pooled.splits.values()] == [101, 12, 14] and "leaks" in pooled.notes[0]
    assert len({identity for split in pooled.splits.values() for identity in split.ids}) == 3 * SENTENCES + 1 + 6
    for split in pooled.splits.values():
        for identity, group in zip(split.ids, split.groups or [], strict=True):
            assert group and all((sentence >= 900) == identity.startswith("validation") for sentence in group)


def test_a_training_row_that_holds_a_reported_sentence_is_dropped(tmp_path: Path) -> None:
    giving = [f"so {part} text number{n} it is" for n in range(3) for part in ("dev", "test")]
    wholes = [*(f"sentence{n} left{n}" for n in range(SENTENCES)), *giving]
    dataset = load_dataset(DataConfig(name="sst2"), write_sst2(tmp_path, [[whole] for whole in wholes]))
    assert not {*giving} & {*dataset.splits["train"].texts}
    remaining = {*giving} - {*dataset.splits["held_out"].texts}
    assert dataset.dropped["train: holds a reported row word for word"] == len(remaining) > 0


def test_without_labelled_test_sentences_and_sources_of_phrases(small_root: Path) -> None:
    (small_root / "sst2" / "test_labeled.parquet").unlink()
    dataset = load_dataset(DataConfig(name="sst2"), small_root)
    assert dataset.reported_splits == ["held_out", "validation"] and "hidden labels" in dataset.notes[-1]
    (small_root / "sst" / "sst2_phrase_sources.parquet").unlink()
    with pytest.raises(DataError, match=r"sst2_phrase_sources.parquet is not there.*protocol=pooled"):
        load_dataset(DataConfig(name="sst2"), small_root)
    pooled = load_dataset(DataConfig(name="sst2", protocol="pooled"), small_root)
    assert pooled.splits["train"].groups is None
    assert len(pooled.notes) == 1 and "Protocol 'pooled'" in pooled.notes[0]


def test_damaged_local_files_and_sources_of_another_release(small_root: Path) -> None:
    write_part(small_root, "validation", [("a row without source", 1, 77)])
    with pytest.raises(DataError, match=r"validation-77.*same release"):
        load_dataset(DataConfig(name="sst2"), small_root)
    path = small_root / "sst2" / "train.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="incomplete or damaged Parquet file"):
        load_dataset(DataConfig(name="sst2"), small_root)
    write_part(small_root, "train", [("five classes", 4, 0)])
    with pytest.raises(DataError, match="is not SST-2"):
        load_dataset(DataConfig(name="sst2"), small_root)


@pytest.mark.parametrize("offline", [True, False])
def test_without_network_the_message_names_the_data_root(offline: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("recurra.core.hub.hub_offline", lambda: offline)
    monkeypatch.setattr("recurra.core.hub.hub_reachable", lambda: False)
    for root in (None, tmp_path):
        with pytest.raises(UnavailableError, match=r"name DIR, the folder with DIR/sst2/{train.* in RECURRA_DATA_ROOT"):
            load_dataset(DataConfig(name="sst2"), root)


def test_the_public_name_is_loaded_through_datasets(monkeypatch) -> None:
    def public(name: str) -> dict:
        assert name == "stanfordnlp/sst2"
        rows = [{"sentence": f"text {i} ", "label": i % 2, "idx": i} for i in range(20)]
        return {"train": Dataset.from_list(rows), "validation": Dataset.from_list(rows)}

    monkeypatch.setattr("datasets.load_dataset", public)
    dataset = load_dataset(DataConfig(name="sst2", protocol="pooled"))
    assert [len(split) for split in dataset.splits.values()] == [32, 4, 4]


@pytest.mark.data
def test_real_pooled_sizes(data_root: Path) -> None:
    dataset = load_dataset(DataConfig(name="sst2", protocol="pooled"), data_root)
    assert [len(split) for split in dataset.splits.values()] == [54_576, 6_822, 6_823]
    assert len({identity for split in dataset.splits.values() for identity in split.ids}) == 68_221
    assert dataset.dropped == {}


@pytest.mark.data
@pytest.mark.slow
def test_real_official_does_not_leak(data_root: Path) -> None:
    dataset = load_dataset(DataConfig(name="sst2", split_seed=1), data_root)
    sizes = {name: len(split) for name, split in dataset.splits.items()}
    assert (sizes["validation"], sizes["test"]) == (872, 1_821)
    assert abs(sizes["held_out"] - 6_912 / 8) < 2
    assert 55_000 < sizes["train"] < 60_000
    assert sizes["train"] + sizes["held_out"] + sum(dataset.dropped.values()) == 67_349
    assert dataset.splits["test"].record(dataset.label_names).label_counts == {"negative": 912, "positive": 909}
    # No sentence of train that a held-out row is part of has a row in train. (Three texts are sentences of two splits;
    # phrases of their other occurrence may stay.)
    sentences = pq.read_table(data_root / "sst" / "sentences.parquet").to_pylist()
    of_train = {row["sentence_index"] for row in sentences if row["split"] == "train"}
    sources = {
        f"{row['split']}-{row['idx']}": of_train.intersection(row["sentence_indices"])
        for row in pq.read_table(data_root / "sst" / "sst2_phrase_sources.parquet").to_pylist()
    }
    assert all(sources[identity] for identity in dataset.splits["held_out"].ids)
    trained = {sentence for identity in dataset.splits["train"].ids for sentence in sources[identity]}
    assert all(trained.isdisjoint(sources[identity]) for identity in dataset.splits["held_out"].ids)


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


def test_phrases_of_held_out_and_reported_sentences_are_not_among_them(tmp_path: Path) -> None:
    root = write_treebank(tmp_path)
    plain = load_dataset(DataConfig(name="sst2"), root)
    dataset = load_dataset(DataConfig(name="sst2", auxiliary="treebank"), root)
    assert "auxiliary" not in DataConfig(name="sst2").plain()
    phrases = dataset.auxiliary
    assert phrases is not None
    held = sentences_of(dataset, "held_out")
    assert len(held) == 3
    for n in range(24):
        own = {f"film{n}", f"w{n}", f"is w{n}", f"the film{n}", f"the film{n} is w{n}"}
        assert own.isdisjoint(phrases.texts) if n + 1 in held else own <= set(phrases.texts)
    # Held-out sentences have these words too; the last tree is a validation sentence, word for word.
    assert {"the", "is"}.isdisjoint(phrases.texts) and "dev text number0" not in phrases.texts
    assert {"end", "the end"} <= set(phrases.texts)
    label = dict(zip(phrases.texts, phrases.labels.tolist(), strict=True))
    n = next(n for n in range(1, 24, 2) if n + 1 not in held)
    assert [label[text] for text in (f"the film{n} is w{n}", f"is w{n}", f"w{n}", "end")] == [3, 4, 3, 2]
    for name, split in plain.splits.items():
        assert dataset.splits[name].fingerprint == split.fingerprint
    assert dataset.fingerprint != plain.fingerprint
    assert any(f"five-class labels of {len(phrases)} phrases" in note for note in dataset.notes)
    # Missing and damaged trees.
    path = root / TREES_FILE
    whole = path.read_bytes()
    for damaged in (gzip.compress(b"(3 good))\n"), gzip.compress(b"words\n(good 1)\n"), whole[:60]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot be read .*; fetch it again"):
            read_phrases(root, set())
    path.unlink()
    with pytest.raises(DataError, match=r"auxiliary=treebank needs sst/trees/train.txt.gz in the data root"):
        read_phrases(root, set())
