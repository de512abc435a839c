"""What a limit of tokens cuts, and which limit is chosen for a file of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.encoding import encode_texts
from recurra.data.tokenization import as_transformers, counting_tokenizer, train_wordpiece, wordpiece
from recurra.evaluation.audits.long_texts import (
    SAMPLE_ROWS,
    broken_share,
    choose_max_length,
    cut_note,
    cut_texts,
    read_more,
    sample_of,
    token_lengths,
    windows_needed,
)
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.tasks.classification.task import TASK
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import StudyData
from recurra.training.protocols import PROTOCOLS
from reviews import review_rows, write_csv

WORDS = ("the", "plot", "of", "this", "film", "was", "fine")


def texts_of(lengths: list[int], seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def split_of(texts: list[str], name: str = "train") -> TextSplit:
    return TextSplit(name, texts, np.arange(len(texts)) % 2, [str(row) for row in range(len(texts))])


def write_long(path: Path, words: int) -> str:
    """Labelled rows of which each has so many words, and a few more."""
    more = " ".join(f"w{word}" for word in np.random.default_rng(0).integers(0, 50, words))
    return str(write_csv(path, [(f"{text} {more}", label) for text, label in review_rows(80)]))


def test_lengths_are_those_of_the_rows_that_a_model_reads() -> None:
    texts = texts_of([3, 10, 60, 200])
    tokenizer = as_transformers(wordpiece(train_wordpiece(texts, 100)))
    _, offsets = encode_texts(texts, tokenizer, 512)
    assert token_lengths(texts, tokenizer).tolist() == np.diff(offsets).tolist()
    assert token_lengths(texts, tokenizer).dtype == np.int64
    # Of very long texts the beginning is counted.
    long = texts_of([30_000])
    _, offsets = encode_texts(long, tokenizer, None)
    assert int(token_lengths(long, tokenizer)[0]) == pytest.approx(int(offsets[-1]), rel=0.02)
    # Cut rows and tokens are counted.
    cut = cut_texts(np.array([10, 20, 64, 65, 164]), 64)
    assert (cut.counted, cut.rows, cut.tokens) == (5, 2 / 5, pytest.approx(101 / 323))
    assert cut_texts(np.array([64]), 64).rows == 0 == cut_texts(np.zeros(0, dtype=np.int64), 64).tokens
    # At most 2,000 rows are counted, evenly.
    count = 3 * SAMPLE_ROWS
    rows = list(map(int, sample_of(split_of([str(row) for row in range(count)]))))
    assert len(rows) == SAMPLE_ROWS and rows[0] == 0 and rows[-1] == count - 1
    assert max(np.diff(rows)) <= 4


@pytest.mark.parametrize(
    ("lengths", "longest", "chosen"),
    [
        ([10] * 95 + [400] * 5, 512, 64),
        ([10] * 94 + [400] * 6, 512, 512),
        ([200] * 100, 512, 256),
        ([200] * 100, 96, 96),
        ([900] * 100, 512, 512),
        ([], 512, 512),
    ],
)
def test_the_smallest_limit_that_holds_95_percent_is_chosen(lengths: list[int], longest: int, chosen: int) -> None:
    assert choose_max_length(np.array(lengths, dtype=np.int64), longest) == chosen


def test_the_statement_says_the_cure_that_there_is() -> None:
    long, short = np.array([300] * 10), np.array([10] * 10)
    assert cut_note({"train": short}, 64, 512) == "max_length 64: no text is cut"
    said = cut_note({"train": long, "test": short}, 128, 512)
    assert "train: 100.0% of the rows and 57.3% of the tokens; test: 0.0%" in said and "--max-length 512" in said
    # What cures the split that is cut, be it the one with short training texts or not.
    assert "--windows 3" in cut_note({"train": short, "test": long}, 128, 128)
    assert "reads no more than 128 tokens" in read_more(long, 128, 128)
    assert "--max-length 256" in read_more(np.array([10] * 97 + [200] * 3), 64, 256)
    # Below 1 % of the rows it is said, and no advice is given.
    assert "--max-length" not in cut_note({"train": np.array([10] * 199 + [100])}, 64, 512)


@given(st.lists(st.integers(2, 900), min_size=1, max_size=250), st.integers(8, 64), st.integers(0, 2))
def test_windows_that_are_suggested_hold_the_texts(lengths: list[int], max_length: int, added: int) -> None:
    counted = np.array(lengths)
    needed = windows_needed(counted, max_length, added)

    def cut(windows: int) -> float:
        return cut_texts(counted, windows * (max_length - added) + added).rows

    assert cut(needed) < 0.01 or needed == 64
    assert needed == 1 or cut(needed - 1) >= 0.01
    said = cut_note({"train": counted}, max_length, max_length, windows=needed, added=added)
    assert "--windows" not in said and "--max-length" not in said
    assert ("no text is cut" in said) == (cut(needed) == 0)


def test_what_is_cut_is_a_note_and_never_a_failure() -> None:
    texts = texts_of([100] * 3 + [10] * 97)
    splits = {name: split_of(each, name) for name, each in {"train": texts, "test": texts[3:], "empty": []}.items()}
    dataset = TextDataset("toy", "split", ["no", "yes"], splits, "test", ["test"])
    tokenizer = counting_tokenizer("trained", texts, 100, None)
    found = {each.name: each for each in run_audits(Subject.TOKENS, dataset, tokenizer, 64, 512)}
    statuses = {name: each.status for name, each in found.items()}
    assert statuses == {"long-texts.train": "note", "long-texts.test": "passed"}
    train = found["long-texts.train"]
    assert train.value == 0.03 and train.details["tokens_cut"] == pytest.approx(3 * 38 / (3 * 102 + 97 * 12))
    assert "--max-length 128" in train.summary and "--windows 2" in train.summary
    in_windows = run_audits(Subject.TOKENS, dataset, tokenizer, 64, 512, 2)
    assert {(each.status, each.value, each.details["windows"]) for each in in_windows} == {("passed", 0.0, 2)}
    everything = run_audits(Subject.TOKENS, dataset, tokenizer, 4, 512)
    assert {each.status for each in everything} == {"note"}


@pytest.mark.parametrize(("words", "chosen"), [(0, 64), (150, 256), (600, 512)])
def test_a_file_has_the_length_that_its_rows_need(words: int, chosen: int, tmp_path: Path) -> None:
    name = write_long(tmp_path / "r.csv", words)
    for models in ([("linear", {}), ("recurrent", {})], []):
        config, note = TASK.configure_data({"name": name}, StudyData(), models=models)
        assert config.max_length == chosen and f"max_length: {chosen}," in note and "--max-length" in note
    capped, note = TASK.configure_data({"name": name}, StudyData(), models=[("tiny", {"max_position_embeddings": 40})])
    assert capped.max_length == 40 and "all that the model reads" in note


def test_nothing_is_chosen_that_was_given_or_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_long(tmp_path / "r.csv", 150)
    some: list[Any] = [("recurrent", {})]
    config, note = TASK.configure_data({"name": name, "max_length": 32}, StudyData(), models=some)
    assert config.max_length == 32 and "max_length" not in note
    plain, _ = TASK.configure_data({"name": name}, StudyData())
    assert plain.max_length == 128
    assert TASK.configure_data({"name": name}, StudyData(), models=[("linear", {})]) == (plain, "")
    assert TASK.configure_data({"name": "demo"}, StudyData(), models=some)[0].max_length == 128
    # What a sample shows is said to be of a sample.
    assert "a sample of" not in TASK.configure_data({"name": name}, StudyData(), models=some)[1]
    monkeypatch.setattr("recurra.evaluation.audits.long_texts.SAMPLE_ROWS", 20)
    said = TASK.configure_data({"name": name}, StudyData(), models=some)[1]
    assert "100.0% of a sample of 20 training rows whole" in said
    with pytest.raises(ConfigurationError, match="max_length"):
        TASK.configure_data({"name": name, "max_length": 1000}, StudyData(), models=some)
    # A run is told what is cut before it starts.
    data = TASK.configure_data({"name": name, "max_length": 64}, StudyData(), models=[])[0]
    runs = [make_run(model, data, PROTOCOLS["tuned"], seed=0, precision="fp32") for model in ("linear", "recurrent")]
    assert TASK.preflight(runs[0], StudyData()) == []
    (said,) = TASK.preflight(runs[1], StudyData())
    assert said.startswith("r.csv: max_length 64 cuts train: 100.0% of the rows") and "--max-length 256" in said


def test_texts_of_another_language_are_broken_into_letters_and_parts() -> None:
    words = ["the plot is dull", "the plot is bright", "a dull day, 1999!"]
    tokenizer = wordpiece(train_wordpiece(words * 3, 100))
    # "a" is a letter.
    assert broken_share(words, tokenizer) == 1 / 11
    # "pl", "##a", "##y", each a part; what has no letter is not counted.
    assert broken_share(["play 99 !"], tokenizer) > 0.5 and broken_share(["很好"], tokenizer) == 1
    assert broken_share(["99 !", ""], tokenizer) == 0
