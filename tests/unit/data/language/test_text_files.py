from __future__ import annotations

from pathlib import Path

import pytest

from recurra.core.errors import DataError
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.corpora import load_language_dataset, read_text_file


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_lines_are_kept_in_order_and_cut_in_three(tmp_path: Path) -> None:
    lines = [f"line {number:03}" if number % 7 else "" for number in range(200)]
    dataset = load_language_dataset(LanguageDataConfig(name=write(tmp_path / "a.txt", "\r\n".join(lines) + "\n\n")))
    assert [line for split in dataset.splits.values() for line in split.texts] == lines
    sizes = {name: split.num_bytes for name, split in dataset.splits.items()}
    total = sum(sizes.values())
    assert total == sum(len(line) + 1 for line in lines)
    assert sizes["validation"] == pytest.approx(total / 10, abs=9) and sizes["test"] == pytest.approx(total / 10, abs=9)
    assert "20%" in dataset.notes[0]


def test_own_validation_and_test(tmp_path: Path) -> None:
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
        (b"", "is empty"),
        (b"\n  \n\n", "is empty"),
        (b"fine\nalso fine\nnot \xff here\n", r"line 3, byte 5 \(byte 20 of the file\) is 0xff, which is not UTF-8"),
        (b"fine\nbr\0ken\n", "line 2, byte 3 is a NUL byte"),
        (b"\x89PNG\r\n\x1a\n\0\0", r"line 1, byte 1 .* is 0x89, which is not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_text_file(write(tmp_path / "a.txt", content))


def test_too_short_to_cut(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too short to cut off validation and test: 1 lines"):
        load_language_dataset(LanguageDataConfig(name=write(tmp_path / "a.txt", "one line\n")))


def test_other_paths(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", "x\n")
    with pytest.raises(DataError, match=r"did you mean 'notes.txt'"):
        read_text_file(tmp_path / "note.txt")
    with pytest.raises(DataError, match="is a folder"):
        read_text_file(tmp_path)
    with pytest.raises(DataError, match=r"unknown extension '.pdf'"):
        read_text_file(write(tmp_path / "a.pdf", "x"))
