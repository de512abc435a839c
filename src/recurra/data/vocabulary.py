"""WordPiece tokenizers from a vocabulary file or from training texts, and what identifies a tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from recurra.core.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MODEL_MAX_LENGTH = 512


def wordpiece(vocabulary: Mapping[str, int]) -> Tokenizer:
    """Returns BERT's uncased WordPiece for a vocabulary: lower-cased, accents stripped, ``[CLS] text [SEP]``."""
    tokenizer = Tokenizer(WordPiece(dict(vocabulary), unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    return tokenizer


def read_vocabulary(path: Path | str) -> dict[str, int]:
    """Reads a ``vocab.txt``: one word piece a line, its id is the line number counted from 0."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(f"cannot read the vocabulary '{path}': {reason}; give a BERT vocab.txt") from error
    # Only line feeds separate: the released vocabulary holds pieces that str.splitlines would cut.
    pieces = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    missing = [token for token in SPECIAL_TOKENS[:4] if token not in vocabulary]
    if missing:
        raise ConfigurationError(
            f"the vocabulary '{path}' ({len(pieces)} lines) lacks {', '.join(missing)}; "
            "give a BERT vocab.txt, one word piece a line"
        )
    if len(vocabulary) != len(pieces):
        raise ConfigurationError(
            f"the vocabulary '{path}' has {len(pieces)} lines but {len(vocabulary)} different pieces; remove repeats"
        )
    return vocabulary


def train_wordpiece(texts: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Trains a WordPiece vocabulary; the same texts give the same vocabulary."""
    tokenizer = wordpiece({token: index for index, token in enumerate(SPECIAL_TOKENS)})
    known = [*SPECIAL_TOKENS, *_alphabet(tokenizer, texts, vocab_size // 4)]
    # The library numbers single characters in the order of a hash table, and breaks ties between merges by number, so
    # every run would give another vocabulary. Characters that are given as known tokens keep the numbers of the list.
    trainer = WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=known, min_frequency=2, limit_alphabet=0, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return dict(tokenizer.get_vocab())


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[str]:
    """The most frequent pieces of one character (``a`` and ``##a``), sorted; a single occurrence does not count."""
    counts: Counter[str] = Counter()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts[word[0]] += 1
            counts.update(f"##{character}" for character in word[1:])
    frequent = sorted((piece for piece in counts if counts[piece] > 1), key=lambda piece: (-counts[piece], piece))
    alphabet = set(frequent[:limit])
    # A continuing piece is only learned if its character is known as a first one too.
    alphabet |= {piece.removeprefix("##") for piece in alphabet}
    return sorted(alphabet)


def as_transformers(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Wraps a tokenizer for Transformers: ``save_pretrained`` and ``AutoTokenizer`` round trip, no pickle."""
    from transformers import PreTrainedTokenizerFast

    pad, unknown, cls, separator, mask = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unknown,
        cls_token=cls,
        sep_token=separator,
        mask_token=mask,
        model_max_length=MODEL_MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )


def _state(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    # Both are left behind by the last call and say nothing about the tokenizer.
    state["truncation"] = state["padding"] = None
    return state


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """Hash of all that decides the ids: vocabulary, normaliser, special tokens (16 hexadecimal digits)."""
    text = json.dumps(_state(tokenizer), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def describe_tokenizer(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Describes a tokenizer for the run record: ``kind`` of model, ``vocab_size``, ``hash``."""
    return {
        "kind": str(_state(tokenizer)["model"]["type"]),
        "vocab_size": len(tokenizer),
        "hash": tokenizer_hash(tokenizer),
    }
