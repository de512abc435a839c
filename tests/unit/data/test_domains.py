from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import DataError, UnavailableError
from recurra.data import domains
from recurra.data.cleaning import clean_text
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.data.dataset import TextDataset
from recurra.data.domains import LABEL_NAMES, MARKS, load_domains, one_convention
from recurra.data.reviews import AMAZON_REVIEWS, YELP_REVIEWS
from recurra.data.words import text_identity
from recurra.evaluation.audits.shortcuts import audit_shortcuts
from small_treebank import write_sst2, write_table

SENTENCES = 200
SHARED = "a phrase of every sentence"
NAMES = np.array(["north", "green", "quiet", "iron", "late", "seven", "salt", "paper"])


def words(seed: int, count: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(NAMES, count))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("domains")
    wholes = [f"film{number} , it 's {words(number, 8)} end{number}" for number in range(SENTENCES)]
    write_sst2(
        root, [[whole, whole.rpartition(" end")[0], whole.partition(" it 's ")[2]] for whole in wholes], shared=SHARED
    )
    forms = {"yelp_reviews": "Place{0}, it's {1}! Don't go.", "amazon_fdu_mtl": "item{0} , it 's {1} ! do n't bu"}
    for folder, form in forms.items():
        for part, first in (("train", 0), ("test", 500)):
            numbers = range(first, first + 220)
            rows = [(form.format(number, words(number + 7_000, 12 + number % 9)), number % 2) for number in numbers]
            write_table(root / folder / f"{part}.parquet", ("text", "label"), rows)
    return root


@cache
def load(root: Path, protocol: str | None = None, seed: int = 0) -> TextDataset:
    return load_dataset(DataConfig(name="domains", protocol=protocol, split_seed=seed), root)


def thirds(dataset: TextDataset) -> bool:
    return all(len(set(np.bincount(split.labels, minlength=3))) == 1 for split in dataset.splits.values())


def sentences(dataset: TextDataset, split: str) -> set[int | str]:
    return {sentence for group in dataset.splits[split].groups or [] for sentence in group}


@pytest.mark.parametrize("protocol", ["natural", "normalised", "bare-words", "pooled"])
def test_thirds_without_repeats(root: Path, protocol: str) -> None:
    dataset = load(root, protocol)
    assert dataset.label_names == LABEL_NAMES == ["local business", "movie", "online shopping"]
    assert thirds(dataset)
    texts = [text_identity(text) for split in dataset.splits.values() for text in split.texts]
    assert len(texts) == len(set(texts))
    corpora = ("yelp_reviews", "sst2", "amazon_reviews")
    for split in dataset.splits.values():
        assert [identity.partition("/")[0] for identity in split.ids] == [corpora[label] for label in split.labels]
    assert any("not the papers' 18,192 / 2,274 / 2,274" in note for note in dataset.notes)
    again, other = load.__wrapped__(root, protocol), load(root, protocol, seed=1)
    assert again.fingerprint == dataset.fingerprint != other.fingerprint


def test_a_sentence_lies_in_one_split_but_in_the_pooled_protocol(root: Path) -> None:
    natural = load(root)
    assert natural.protocol == "natural"
    assert not sentences(natural, "train") & (sentences(natural, "validation") | sentences(natural, "test"))
    assert natural.dropped == {"movie: phrase of sentences in several splits": 1}
    assert all(SHARED not in split.texts for split in natural.splits.values())
    pooled = load(root, "pooled")
    assert pooled.dropped == {} and any(SHARED in split.texts for split in pooled.splits.values())
    assert sentences(pooled, "train") & sentences(pooled, "test")


def test_one_convention_and_equal_lengths(root: Path) -> None:
    def marked(dataset: TextDataset) -> set[int]:
        pairs = [pair for split in dataset.splits.values() for pair in zip(split.texts, split.labels, strict=True)]
        return {int(label) for text, label in pairs if " 's " in text or " n't" in text}

    assert marked(load(root)) == {1, 2}
    assert marked(load(root, "normalised")) == set()
    bare = load(root, "bare-words")
    for split in bare.splits.values():
        assert all(text.replace("'", "").replace(" ", "").isalnum() for text in split.texts)
        lengths = [sorted(split.word_counts[split.labels == label]) for label in range(3)]
        assert lengths[0] == lengths[1] == lengths[2]
        assert min(lengths[0]) >= 5


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"yelp_reviews: .*--data-root DIR"):
        load(tmp_path)
    for folder in ("sst2", "yelp_reviews", "amazon_fdu_mtl"):
        (tmp_path / folder).symlink_to(root / folder)
    with pytest.raises(DataError, match=r"protocol 'natural' .* source sentences.* or take protocol=pooled"):
        load(tmp_path)
    assert thirds(load(tmp_path, "pooled"))


def test_the_public_releases_stand_in_for_the_local_reviews(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def public(name: str) -> datasets.DatasetDict:
        asked.append(name)
        rows = [{"text": f"{name} {row} {words(row, 9)}", "label": row % 2} for row in range(300)]
        return datasets.DatasetDict(dict.fromkeys(("train", "test"), datasets.Dataset.from_list(rows)))

    monkeypatch.setattr("datasets.load_dataset", public)
    dataset = load_dataset(DataConfig(name="domains_polarity", protocol="normalised"), root)
    assert asked == ["fancyzhx/yelp_polarity", "mteb/amazon_polarity"]
    assert thirds(dataset) and dataset.name == "domains_polarity"
    assert "local business: yelp_polarity; movie: sst2; online shopping: amazon_polarity" in dataset.notes[0]


@pytest.mark.slow
@pytest.mark.data
def test_the_real_corpora(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not all((data_root / folder).is_dir() for folder in ("sst", "yelp_reviews", "amazon_fdu_mtl")):
        pytest.skip("the sources of the domain corpus are not in the data root")
    for name in ("read_pool", "read_sst2"):
        monkeypatch.setattr(domains, name, cache(getattr(domains, name)))
    once = (YELP_REVIEWS, AMAZON_REVIEWS)
    natural = load_domains("domains", once, "natural", 0, data_root)
    bare = load_domains("domains", once, "bare-words", 0, data_root)
    assert [len(split) // 3 for split in natural.splits.values()] == [18_192, 2_274, 2_274]
    assert [len(split) // 3 for split in bare.splits.values()] == [12_798, 1_599, 1_599]
    assert natural.dropped["movie: phrase of sentences in several splits"] > 0
    assert (natural.fingerprint, bare.fingerprint) == ("e227eb5a8b907077", "f7852fdc5593a70b")
    for dataset in (natural, bare):
        texts = [text_identity(text) for split in dataset.splits.values() for text in split.texts]
        assert len(texts) == len(set(texts))
        assert not sentences(dataset, "train") & (sentences(dataset, "validation") | sentences(dataset, "test"))
        assert dataset.dropped["amazon_reviews test: repeats a row of train"] == 560
    some = {name: bare.splits[name].select(range(size)) for name, size in (("train", 4_500), ("test", 3_000))}
    probed = replace(bare, splits=some, selection_split="test", reported_splits=["test"])
    form = next(audit for audit in audit_shortcuts(probed) if audit.name == "shortcuts.format.test")
    assert form.status == "passed" and 0.38 < (form.value or 0.0) < 0.49


PLAIN_WORDS = st.sampled_from(
    ["film", "don't", "it's", "good", "can't", "we'll", "cannot", "5", "well-made", "gonna", "café"]
)
PLAIN_TEXTS = st.lists(st.tuples(PLAIN_WORDS, st.sampled_from(["", ".", ",", "!", " (", ")", ":", ' "'])), min_size=1)


def treebank(text: str) -> str:
    """What the Penn Treebank's tokeniser makes of a text, in a few lines of its own."""
    text = re.sub(r"([.,!:()\"])", r" \1 ", text)
    text = re.sub(r"n't\b", " n't", text)
    text = re.sub(r"(\w)('(?:s|re|ve|ll|d|m))\b", r"\1 \2", text)
    text = text.replace("cannot", "can not").replace("gonna", "gon na")
    text = text.replace("(", "-lrb-").replace(")", "-rrb-").replace('"', "``")
    return " ".join(text.split())


@given(PLAIN_TEXTS)
def test_a_tokenised_text_comes_out_as_the_plain_one(pieces: list[tuple[str, str]]) -> None:
    plain = " ".join(word + mark for word, mark in pieces)
    assert one_convention(clean_text(treebank(plain))) == one_convention(clean_text(plain))


@given(st.text() | st.text(alphabet="ab' .-n'ts`&(\"!5", max_size=40))
def test_writing_twice_changes_nothing_and_cleaning_neither(text: str) -> None:
    once = one_convention(clean_text(text))
    assert one_convention(once) == once
    assert once.isascii() and once == once.lower() == once.strip()
    assert not once or (once[0] not in MARKS and once[-1] not in MARKS)
    assert all(len(token) == 1 or not set(token) & set(MARKS) for token in once.split())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("do n't -lrb- ever -rrb- `` wow '' & go", 'don\'t ( ever ) " wow " and go'),
        ("’tis a café — “yes”", 'tis a cafe - " yes'),
        ("'s still a good yarn", "still a good yarn"),
        ("$ 5.00 !!! [sic] *", "5 . 00 ! ( sic"),
        ("!!!", ""),
    ],
)
def test_examples(text: str, written: str) -> None:
    assert one_convention(text) == written
