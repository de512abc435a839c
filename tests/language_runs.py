"""A small text, a tiny language model, and runs of both; shared by tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from recurra.data.configuration import LanguageDataConfig
from recurra.study.assignments import read_assignments
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import Entry, make_run
from recurra.training.protocols import LANGUAGE_PROTOCOLS, load_protocol

TINY = {
    "hidden_size": 16, "embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_cycles": 2,
    "embedding_cycles": 1, "num_recurrences": 2, "exits": [1], "max_position_embeddings": 32,
}  # fmt: skip
TINY_KEYS = [f"model.{key}={value}" for key, value in TINY.items()]
TEXT_KEYS = ["data.context=16", "data.trained_vocab_size=300"]
PROTOCOL = ["max_epochs=3", "learning_rate=5e-3", "batch_size=8", "evaluation_batch_size=4"]

_NOUNS = ("river", "mill", "field", "number", "window", "garden")
_VERBS = ("runs past", "floats on", "lies behind", "stands before")


def write_text(path: Path, lines: int = 160, seed: int = 0) -> Path:
    """Writes lines of different lengths, an empty one now and then."""
    dice = random.Random(seed)
    written = []
    for number in range(lines):
        clauses = [
            f"the {dice.choice(_NOUNS)} {dice.choice(_VERBS)} the {dice.choice(_NOUNS)}" for _ in range(number % 3 + 1)
        ]
        written.append("" if number % 8 == 7 else f"{' and '.join(clauses)} , {number} times .")
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    return path


def tiny_variant(name: str = "tiny", **keys: Any) -> Entry:
    """A CRT-Deep of a few thousand parameters, as a study file would name it."""
    return {"name": name, "preset": "crt-tiny", **TINY, **keys}


def language_run(
    root: Path, *changes: str, mode: str = "packed", model: Entry | None = None, **values: Any
) -> RunConfig:
    """Configuration of a tiny language model on a small text, a second or two to train."""
    path = root / "river.txt"
    if not path.exists():
        write_text(path)
    data = LanguageDataConfig.parse(
        {"name": str(path), "mode": mode, "context": 16, "tokenizer": "trained", "trained_vocab_size": 300}
        | ({"min_characters": 20} if mode == "lines" else {})
    )
    protocol = load_protocol("tuned", read_assignments([*PROTOCOL, *changes]).protocol, known=LANGUAGE_PROTOCOLS)
    return make_run(model or tiny_variant(), data, protocol, **{"seed": 0, "precision": "fp32", **values})
