from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recurra.data.dataset import TextDataset, TextSplit, summarise_lengths


def split(texts: list[str], labels: list[int], name: str = "train") -> TextSplit:
    return TextSplit(
        name, texts, np.array(labels), [str(i) for i in range(len(texts))], [(i,) for i in range(len(texts))]
    )


def test_fingerprint_depends_on_text_label_and_order_only() -> None:
    base = split(["ab", "c"], [0, 1])
    assert base.fingerprint == split(["ab", "c"], [0, 1], name="other").fingerprint
    different = [split(["a", "bc"], [0, 1]), split(["ab", "c"], [1, 0]), split(["c", "ab"], [1, 0])]
    assert len({base.fingerprint, *(other.fingerprint for other in different)}) == 4
    assert len(base.fingerprint) == 16


def test_every_part_of_a_dataset_is_in_its_fingerprint() -> None:
    def of(**more: object) -> str:
        splits = {"train": split(["a"], [0])}
        return TextDataset("x", "split", ["a", "b"], splits, "train", ["train"], **more).fingerprint

    text = split(["c"], [1])
    assert len({of(), of(auxiliary=text), of(unlabelled=text), of(auxiliary=text, unlabelled=text)}) == 4
    # Hashes are in records: they stay what they are.
    assert [of(auxiliary=text), of(unlabelled=text)] == ["55b900a5b32a83e9", "d0195c0cb5b07525"]


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=50))
def test_every_text_is_in_one_bin(words: list[int]) -> None:
    summary = summarise_lengths(np.array(words))
    assert sum(summary.counts) == len(words)
    assert len(summary.edges) == len(summary.counts) + 1
    assert summary.edges == sorted(set(summary.edges))
    for low, high, count in zip(summary.edges, summary.edges[1:], summary.counts, strict=False):
        assert count == sum(low <= word < high for word in words)


def test_record_counts_rows_and_labels() -> None:
    dataset = TextDataset(
        "x", "split", ["no", "yes"], {"train": split(["a b", "c"], [1, 1])}, "train", ["train"], {"empty": 2}, ["note"]
    )
    record = dataset.record({"kind": "WordPiece"})
    assert record.splits["train"].label_counts == {"no": 0, "yes": 2}
    assert record.splits["train"].words.mean == 1.5
    assert record.fingerprint == dataset.fingerprint
    assert (record.dropped, record.notes, record.tokenizer) == ({"empty": 2}, ["note"], {"kind": "WordPiece"})
