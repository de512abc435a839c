"""A ``tokenizer.json`` is read within a bound, and everything that is wrong with it is one error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.data import tokenization
from recurra.data.tokenization import read_tokenizer, read_tokenizer_file

VOCABULARY = {piece: index for index, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good"])}


def written(path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    tokenizer = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    values = json.loads(tokenizer.to_str())
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def without_unknown(values: dict[str, Any]) -> None:
    del values["model"]["vocab"]["[UNK]"]


def of_an_unknown_kind(values: dict[str, Any]) -> None:
    values["model"]["type"] = "Syllables"


def with_a_panic(values: dict[str, Any]) -> None:
    """The library looks the token up, finds none, and panics."""
    values["post_processor"]["special_tokens"].pop("[SEP]")


BROKEN = [without_unknown, of_an_unknown_kind, with_a_panic]


def test_a_good_one_is_read(tmp_path: Path) -> None:
    assert read_tokenizer_file(written(tmp_path / "t.json"), "").encode("a good").ids == [2, 4, 5, 3]


@pytest.mark.parametrize("change", BROKEN)
def test_what_its_library_does_with_a_broken_one_is_one_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = written(tmp_path / "tokenizer.json", change)
    with pytest.raises(CheckpointError, match=r"holds no tokenizer that can be read: .+; copy it again"):
        read_tokenizer_file(path, "copy it again")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="tokenizer"):
        read_tokenizer(tmp_path)


def test_settings_that_cannot_be_written_again_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "name": "\\ud800"}', encoding="utf-8"
    )
    with pytest.raises(ConfigurationError, match="surrogates not allowed"):
        read_tokenizer(tmp_path)


def test_what_is_no_file_of_a_sane_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_tokenizer_file(tmp_path / "gone.json", "x")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(CheckpointError, match="utf-8"):
        read_tokenizer_file(tmp_path / "bytes.json", "x")
    os.mkfifo(tmp_path / "pipe.json")
    path = written(tmp_path / "large.json")
    monkeypatch.setattr(tokenization, "MOST_BYTES", 10)
    for name in (path, tmp_path / "pipe.json"):
        with pytest.raises(CheckpointError, match="no regular file of at most 10 bytes"):
            read_tokenizer_file(name, "x")
