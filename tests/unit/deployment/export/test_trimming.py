"""A smaller vocabulary cuts what it knows as before, everything else into pieces of it, and answers alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from recurra.core.errors import ConfigurationError
from recurra.data.vocabulary import as_transformers, read_vocabulary, train_wordpiece, wordpiece
from recurra.deployment.engines.trained import TransformerEngine
from recurra.deployment.export.build import trim
from reviews import review_rows
from tiny import stir, tiny_model

TRAIN = [text for text, _ in review_rows(40)]
OTHERS = [text for text, _ in review_rows(60, seed=3)]


def engine(special: list[str] | None = None) -> TransformerEngine:
    """With a vocabulary that was learned on more than the training rows."""
    pieces = train_wordpiece([*TRAIN, *OTHERS, "unbelievable", "unbelievable", "believers", "believers"], 400)
    if special:
        # Special tokens in the middle, as in BERT's released vocabulary.
        plain = [piece for piece in pieces if piece not in special]
        pieces = {piece: number for number, piece in enumerate([*plain[:7], *special, *plain[7:]])}
    tokenizer = as_transformers(wordpiece(pieces))
    model = tiny_model(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, pooling="mean")
    stir(model)
    return TransformerEngine(model, tokenizer, precision="fp32", max_length=24)


@pytest.mark.parametrize("special", [None, ["[SEP]", "[CLS]", "[UNK]", "[PAD]", "[MASK]"]])
def test_texts_of_known_pieces_are_cut_and_answered_as_before(special: list[str] | None) -> None:
    before = engine(special)
    after = trim(before, TRAIN, None)
    assert len(after.tokenizer) < len(before.tokenizer) and after.model.config.vocab_size == len(after.tokenizer)
    for text in TRAIN:
        assert after.tokenizer.tokenize(text) == before.tokenizer.tokenize(text)
    np.testing.assert_allclose(after.logits(TRAIN, 8), before.logits(TRAIN, 8), rtol=1e-5, atol=1e-6)
    # A fresh table of other ids: what was given is untouched.
    assert before.model.get_input_embeddings().num_embeddings == len(before.tokenizer)
    ids = after.tokenizer("unbelievable")["input_ids"]
    assert ids[0] == after.tokenizer.cls_token_id and ids[-1] == after.tokenizer.sep_token_id


@given(text=st.text(st.sampled_from("abelivnsruy 0123"), max_size=30))
def test_nothing_becomes_unknown_that_was_not(text: str) -> None:
    before, after = ENGINES
    known = before.tokenizer.unk_token not in before.tokenizer.tokenize(text)
    pieces = after.tokenizer.tokenize(text)
    assert not known or after.tokenizer.unk_token not in pieces
    if known:
        joined = "".join(piece.removeprefix("##") for piece in pieces)
        assert joined == text.replace(" ", "")


ENGINES = (engine(), trim(engine(), TRAIN, 100))


def test_a_trimmed_tokenizer_is_saved_and_read(tmp_path: Path) -> None:
    after = ENGINES[1].tokenizer
    after.save_pretrained(tmp_path)
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in (*TRAIN, *OTHERS):
        assert again(text)["input_ids"] == after(text)["input_ids"]


def test_the_most_frequent_pieces_stay() -> None:
    smaller = trim(engine(), TRAIN, 100)
    assert len(smaller.tokenizer) == 100
    everything = len(engine().tokenizer)
    assert [len(trim(engine(), TRAIN, most).tokenizer) for most in (150, everything, 10**6)] == [
        150,
        everything,
        everything,
    ]
    assert {"the", "number", "was", "and", "too"} <= set(smaller.tokenizer.get_vocab())
    with pytest.raises(ConfigurationError, match="5 pieces are to be kept, and single characters"):
        trim(engine(), TRAIN, 5)


def test_another_kind_of_tokenizer_is_refused() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE({"a": 0, "[PAD]": 1}, [])), pad_token="[PAD]"
    )
    bpe = TransformerEngine(tiny_model(), tokenizer, precision="fp32", max_length=24)
    with pytest.raises(ConfigurationError, match="the tokenizer is a BPE"):
        trim(bpe, TRAIN, None)


def test_of_the_released_vocabulary_every_character_stays(data_root: Path) -> None:
    vocabulary = read_vocabulary(data_root / "tokenizers" / "bert-base-uncased" / "vocab.txt")
    tokenizer = as_transformers(wordpiece(vocabulary))
    whole = TransformerEngine(
        tiny_model(vocab_size=len(tokenizer), pad_token_id=0), tokenizer, precision="fp32", max_length=24
    )
    smaller = trim(whole, TRAIN, None)
    assert 1994 < len(smaller.tokenizer) < 2100
    assert "[UNK]" not in smaller.tokenizer.tokenize("Zyzzyva's naïve façade 東京 42 %")
