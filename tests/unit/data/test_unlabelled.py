"""Texts without labels: what is taken of them, what never is, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError, DataError
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.corpora import SENTENCE_WORDS, load_dataset, sentences_of
from recurra.data.dataset import TextDataset
from recurra.data.frames import rows_in_memory
from recurra.evaluation.audits.leakage import audit_leakage
from recurra.study.run import refuse_unlabelled_without_teacher
from recurra.tasks.runs import make_run
from recurra.training.protocols import PROTOCOLS
from reviews import write_csv, write_reviews


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "reviews.csv", rows=120)


def load(reviews: Path, more: Path | None = None, **keys: Any) -> TextDataset:
    given = {"name": str(reviews), "tokenizer": "trained", "unlabelled": str(more) if more else None}
    return load_dataset(DataConfig.parse({**given, **keys}))


def test_what_is_new_is_kept_and_what_is_judged_never_is(reviews: Path, tmp_path: Path) -> None:
    plain, more = load(reviews), tmp_path / "more.txt"
    train, judged = plain.splits["train"].texts, plain.splits["test"].texts
    chooses = plain.splits[plain.selection_split].texts
    new = ["quite another story", "ünïcode is 読 too"]
    held = f"he said {judged[1]} and left"
    lines = [*new, new[0].upper() + "!", "", train[0], judged[0].upper(), held, chooses[0]]
    more.write_text("\n".join(lines), encoding="utf-8")
    found = load(reviews, more)
    assert found.unlabelled is not None and found.unlabelled.texts == new
    assert not found.unlabelled.labels.any() and found.splits["train"].fingerprint == plain.splits["train"].fingerprint
    assert {reason: rows for reason, rows in found.dropped.items() if "unlabelled" in reason} == {
        "unlabelled: repeated, or a training row": 2,
        "unlabelled: equal to, or holding, a reported row": 3,
    }
    assert found.fingerprint != plain.fingerprint and "2 texts without labels (more.txt)" in found.notes[-1]
    results = {result.name: result.status for result in audit_leakage(found)}
    assert results["leakage.unlabelled-exact.test"] == "passed"


def test_what_cannot_be_used_says_why(reviews: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.csv"
    more.write_text("text\n" + load(reviews).splits["train"].texts[0] + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 1 texts, none of them new"):
        load(reviews, more)
    with pytest.raises(ConfigurationError, match="unlabelled_unit is 'sentences' without texts to cut"):
        DataConfig.parse({"name": "demo", "unlabelled_unit": "sentences"})
    # Rows with several labels have places for them.
    more.write_text("text\none more\n", encoding="utf-8")
    rows = write_csv(
        tmp_path / "rows.csv", [(f"text number {n} is here", "a;b" if n % 2 else "b;c") for n in range(40)]
    )
    config = MultiLabelData(name=str(rows), tokenizer="trained", label_separator=";", unlabelled=str(more))
    found = load_dataset(config).unlabelled
    assert found is not None and found.labels.shape == (1, 3)


def test_the_file_is_part_of_what_a_run_is_and_somebody_must_read_it(reviews: Path, tmp_path: Path) -> None:
    more, hashes = tmp_path / "more.txt", []
    for text in ("one\n", "two\n"):
        more.write_text(text, encoding="utf-8")
        for name in (str(reviews), "demo"):
            data = DataConfig(name=name, tokenizer="trained", unlabelled=str(more))
            config = make_run("linear", data, PROTOCOLS["tuned"], seed=0, precision="fp32")
            hashes.append(config.config_hash)
            assert "more-texts" in config.run_id
            with pytest.raises(ConfigurationError, match="is only for models with a teacher"):
                refuse_unlabelled_without_teacher([config])
    assert len(set(hashes)) == 4
    plain = make_run("linear", DataConfig(name="demo"), PROTOCOLS["tuned"], seed=0, precision="fp32")
    refuse_unlabelled_without_teacher([plain])
    assert plain.data_hash is None


WORDS = st.lists(st.text(st.characters(categories=("Ll",)), min_size=1, max_size=6), min_size=1, max_size=30)
ENDS = st.sampled_from([".", "!", "?", " .", "...", '."', ".)"])


@given(st.lists(st.tuples(WORDS, ENDS), min_size=1, max_size=6))
def test_sentences_keep_every_word_of_those_that_are_long_enough(drawn: list[tuple[list[str], str]]) -> None:
    written = [" ".join(words) + end for words, end in drawn]
    low, high = SENTENCE_WORDS
    assert sentences_of(" ".join(written)) == [each for each in written if low <= len(each.split()) <= high]


def test_sentences_of_several_sources_are_taken_and_a_corpus_gives_its_training_part(
    reviews: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("It was a day like others. Nothing happened at all! Why?\n", encoding="utf-8")
    found = load(reviews, more, unlabelled_unit="sentences").unlabelled
    assert found is not None and found.texts == ["it was a day like others.", "nothing happened at all!"]
    both = DataConfig(name=str(reviews), tokenizer="trained", unlabelled=f"{more}, demo", unlabelled_unit="sentences")
    assert both.unlabelled_sources == [str(more), "demo"]
    # Together they are longer than the name of a file can be.
    names = [f"part-{number:03}.txt" for number in range(50)]
    assert DataConfig(name="demo", unlabelled=",".join(names)).unlabelled_sources == names
    dataset = load_dataset(both)
    assert dataset.unlabelled is not None and "(more.txt, demo)" in dataset.notes[-1]
    train = " ".join(load_dataset(DataConfig(name="demo")).splits["train"].texts)
    assert dataset.unlabelled.texts[:2] == found.texts and len(dataset.unlabelled) > 900
    assert all(text in train for text in dataset.unlabelled.texts[2:50])


def test_a_corpus_that_is_drawn_gives_the_part_of_this_split_seed(reviews: Path) -> None:
    found = load(reviews, unlabelled="hops", split_seed=3).unlabelled
    wanted = load_dataset(DataConfig(name="hops", split_seed=3)).splits["train"].texts
    assert found is not None and found.texts[:20] == wanted[:20]


def test_texts_in_memory_are_kept_as_a_file(reviews: Path, tmp_path: Path) -> None:
    rows = rows_in_memory(str(reviews), {"unlabelled": ["one new text", None, "another\nof two lines"]})
    assert rows is not None and rows.described == ""
    rows.write(tmp_path)
    options = rows.options(tmp_path)
    assert set(options) == {"unlabelled"}
    found = load(reviews, Path(options["unlabelled"])).unlabelled
    assert found is not None and found.texts == ["one new text", "another of two lines"]
    with pytest.raises(DataError, match="unlabelled is an int; give a list, an array or a Series"):
        rows_in_memory(str(reviews), {"unlabelled": 3})
