from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recurra.core.errors import ConfigurationError, DataError, UnavailableError
from recurra.data.configuration import DataConfig, LanguageDataConfig
from recurra.data.corpora import load_dataset
from recurra.data.language.corpora import SOURCES, RunningText, load_language_dataset, read_text_file

ROWS = [
    "",
    " = Title = \n",
    "",
    " A first line of <unk> words , and long enough to be taken as one . \n",
    " Short . \n",
]


def put(root: Path, name: str, split: str, rows: list[Any]) -> None:
    (root / name).mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": rows}), root / name / f"{split}.parquet")


def test_rows_of_wikitext_become_lines_counted_as_published(tmp_path: Path) -> None:
    put(tmp_path, "wikitext-2-v1", "test", ROWS)
    split = load_language_dataset(LanguageDataConfig(name="wikitext-2-v1"), tmp_path).splits["test"]
    assert split.texts == [row.strip() for row in ROWS]
    eos = [word for row in ROWS for word in [*row.split(), "<eos>"]]
    assert split.words == len(eos)
    assert split.num_bytes == len("".join(f"{row.strip()}\n" for row in ROWS).encode())
    assert split.long_lines(50).texts == [ROWS[3].strip()]
    # Lines that were seen in training are counted.
    put(tmp_path, "wikitext-2-v1", "train", ROWS)
    record = load_language_dataset(LanguageDataConfig(name="wikitext-2-v1"), tmp_path).record()
    assert (record["splits"]["train"]["seen_lines"], record["splits"]["test"]["seen_lines"]) == (None, 1)
    assert "validation" in record["notes"][0]


def test_a_novel_is_one_text_of_many_lines(tmp_path: Path) -> None:
    put(tmp_path, "english_novels", "test", ["TITLE\n\r\nIt was the age\r\n  of wisdom,\n", "Ça"])
    put(tmp_path, "english_novels", "train", ["word " * 120_000])
    splits = load_language_dataset(LanguageDataConfig(name="english_novels"), tmp_path).splits
    assert splits["train"].words == 120_001
    split = splits["test"]
    assert (len(split), split.num_lines, split.words) == (2, 5, 1 + 4 + 2 + 1 + 5)
    assert split.long_lines(-1).texts == ["TITLE", "", "It was the age", "of wisdom,", "Ça"]
    assert split.num_bytes == len("TITLE\n\nIt was the age\n  of wisdom,\nÇa\n".encode())


def test_the_fingerprint_depends_on_texts_and_where_they_end_and_long_lines_are_the_first_ones() -> None:
    prints = [RunningText("a", texts).fingerprint for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"])]
    assert len(set(prints)) == 4
    assert RunningText("b", ["ab", "c"]).fingerprint == prints[0]
    split = RunningText("train", ["x" * 51, "y" * 50, f"{'z' * 49}  ", "a\n" + "b" * 60, "c" * 70])
    assert split.long_lines(50).texts == ["x" * 51, "b" * 60, "c" * 70]
    assert split.long_lines(50, 2).texts == ["x" * 51, "b" * 60]


def test_a_split_that_is_not_there_names_what_is_and_a_damaged_one_its_row(tmp_path: Path) -> None:
    put(tmp_path, "wikitext-103-v1", "test", ROWS)
    put(tmp_path, "english_novels", "test", ["One"])
    with pytest.raises(UnavailableError, match=r"no train.parquet in .* \(there: test\) and .*'Salesforce/wikitext'"):
        load_language_dataset(LanguageDataConfig(name="wikitext-103-v1"), tmp_path, ["train", "test"])
    with pytest.raises(UnavailableError, match=r"english_novels: there is no validation.parquet .* \(there: test\)"):
        load_language_dataset(LanguageDataConfig(name="english_novels"), tmp_path, ["validation"])
    with pytest.raises(UnavailableError, match="no public name; give --data-root"):
        load_language_dataset(LanguageDataConfig(name="english_novels"))
    with pytest.raises(UnavailableError, match="no folder wikitext-2-v1"):
        load_language_dataset(LanguageDataConfig(name="wikitext-2-v1"), tmp_path)
    damaged: dict[str, list[Any]] = {"holds no text": [""], "row 1: the text is 1": [1], "row 2: .* NUL": ["a", "a\0b"]}
    for message, rows in damaged.items():
        put(tmp_path, "wikitext-2-v1", "test", rows)
        with pytest.raises(DataError, match=message):
            load_language_dataset(LanguageDataConfig(name="wikitext-2-v1"), tmp_path)


def test_what_is_not_local_comes_by_its_public_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(*names: str) -> dict[str, datasets.Dataset]:
        asked.append(names)
        return {split: datasets.Dataset.from_dict({"text": [f" {split} \n"]}) for split in ("train", "validation")}

    monkeypatch.setattr(datasets, "load_dataset", load)
    put(tmp_path, "wikitext-2-v1", "test", [" local \n"])
    dataset = load_language_dataset(LanguageDataConfig(name="wikitext-2-v1"), tmp_path, ["train", "test"])
    assert {name: split.texts for name, split in dataset.splits.items()} == {"train": ["train"], "test": ["local"]}
    assert asked == [("Salesforce/wikitext", "wikitext-2-v1")]


@pytest.mark.parametrize(
    ("values", "splits", "message"),
    [
        ({"name": "wikitext-2v1"}, None, r"did you mean 'wikitext-2-v1'"),
        ({"name": "wikitext-2-v1", "test": "a.txt"}, None, "'test' is for your own files"),
        ({"name": "wikitext-2-v1"}, ["valid"], r"unknown split 'valid' \(did you mean 'validation'"),
        ({"name": "wikitext-2-v1", "context": 0}, None, r"'context' is 0: input should be greater than or equal to 2"),
        ({"name": "wikitext-2-v1", "max_lines": 9}, None, "set mode=lines"),
        ({"name": " "}, None, "must not be empty"),
    ],
)
def test_impossible_configurations(values: dict[str, Any], splits: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_language_dataset(LanguageDataConfig.parse(values), None, splits)


def test_a_reading_and_a_part_have_names_and_a_classifier_has_no_use_for_running_text() -> None:
    config = LanguageDataConfig(name="wikitext-2-v1", context=64)
    assert (config.reading, config.part) == ("packed-64", "")
    config = LanguageDataConfig(name="wikitext-2-v1", context=32, mode="lines", max_lines=9, fraction=0.5)
    assert (config.reading, config.part) == ("lines-32", "9-lines-train-50pct")
    with pytest.raises(ConfigurationError, match="has no labels"):
        load_dataset(DataConfig(name="wikitext-2-v1"))
    with pytest.raises(ConfigurationError, match="did you mean 'wikitext-2-v1'"):
        load_dataset(DataConfig(name="wikitext-2"))


@pytest.mark.data
def test_the_released_counts(data_root: Path) -> None:
    expected = {"train": 2_088_628, "validation": 217_646, "test": 245_569}
    dataset = load_language_dataset(LanguageDataConfig(name="wikitext-2-v1"), data_root)
    assert {name: split.words for name, split in dataset.splits.items()} == expected
    # The released files have a space at both ends of a line, and one for an empty line.
    texts = dataset.splits["test"].texts
    assert dataset.splits["test"].num_bytes + sum(2 if text else 1 for text in texts) == 1_256_449
    record = dataset.record()
    assert record["splits"]["test"]["seen_lines"] == 1
    for name in ("wikitext-103-v1", "wikitext-2-raw-v1"):
        other = load_language_dataset(LanguageDataConfig(name=name), data_root)
        assert other.splits["test"].words == expected["test"]
        assert SOURCES[name].present(data_root) == list(other.splits)


def test_a_fraction_takes_the_first_texts_of_train_and_leaves_the_other_splits_whole(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        put(tmp_path, "wikitext-2-v1", split, [f" line {number} \n" for number in range(10)])
    whole = load_language_dataset(LanguageDataConfig(name="wikitext-2"), tmp_path)
    part = load_language_dataset(LanguageDataConfig(name="wikitext-2", fraction=0.25), tmp_path)
    assert part.splits["train"].texts == ["line 0", "line 1"]
    assert part.splits["train"].fingerprint != whole.splits["train"].fingerprint != part.fingerprint
    assert part.splits["validation"].texts == part.splits["test"].texts == whole.splits["test"].texts
    assert part.notes == ["Of train the first 2 of 10 lines are used."] and whole.notes == []
    tiny = load_language_dataset(LanguageDataConfig(name="wikitext-2", fraction=1e-6), tmp_path)
    assert len(tiny.splits["train"]) == 1


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_lines_are_kept_in_order_and_cut_in_three_unless_files_are_given(tmp_path: Path) -> None:
    lines = [f"line {number:03}" if number % 7 else "" for number in range(200)]
    dataset = load_language_dataset(LanguageDataConfig(name=write(tmp_path / "a.txt", "\r\n".join(lines) + "\n\n")))
    assert [line for split in dataset.splits.values() for line in split.texts] == lines
    sizes = [split.num_bytes for split in dataset.splits.values()]
    total = sum(len(line) + 1 for line in lines)
    assert sum(sizes) == total and sizes[1:] == pytest.approx([total / 10] * 2, abs=9)
    assert "20%" in dataset.notes[0]
    with pytest.raises(DataError, match="too short to split off validation and test: 1 lines"):
        load_language_dataset(LanguageDataConfig(name=write(tmp_path / "notes.txt", "one line\n")))
    # Validation and test may be files of their own.
    paths = [write(tmp_path / f"{name}.txt", f"{name} one\n{name} two\n") for name in ("train", "val", "test")]
    config = LanguageDataConfig(name=paths[0], validation=paths[1], test=paths[2])
    dataset = load_language_dataset(config, splits=["test"])
    assert dataset.splits["test"].texts == ["test one", "test two"]
    assert list(dataset.splits) == ["test"] and not dataset.notes
    with_test = load_language_dataset(LanguageDataConfig(name=paths[0], test=paths[2]))
    assert with_test.splits["validation"].texts == ["train two"] and with_test.splits["test"].texts[0] == "test one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n  \n\n", "is empty"),
        (
            b"fine\nnot \xff\n",
            r"line 2, byte 5 \(byte 10 of the file\) is 0xff, which is not UTF-8; save the file as UTF-8$",
        ),
        ("a line of text\n".encode("utf-16-le"), r"looks like UTF-16 without a byte order mark; save it as UTF-8$"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_text_file(write(tmp_path / "a.txt", content))
    # Nor are other paths read.
    with pytest.raises(DataError, match=r"did you mean 'a.txt'"):
        read_text_file(tmp_path / "b.txt")
    with pytest.raises(DataError, match="is a folder"):
        read_text_file(tmp_path)
    with pytest.raises(DataError, match=r"unknown extension '.pdf'"):
        read_text_file(write(tmp_path / "a.pdf", "x"))
