"""What plans keep of an encoder on some texts, computed once and kept by content; and what their models cost."""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recurra.core.configuration import content_hash
from recurra.data.cleaning import clean_text
from recurra.data.encoding import cache_path, encode_texts, read_arrays, write_arrays
from recurra.data.tables import stream_texts
from recurra.data.tokenization import read_tokenizer
from recurra.models.accounting import count_parameters, forward_flops
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.function import KeptFunction, ScoredPlan
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import EncoderSource
from recurra.models.configuration import RecurraConfig
from recurra.models.rows.packed import PackedRows

# Keys that mean something where layers are shared, and nothing in a stack.
RELAXATIONS = ("recurrence_norms", "low_rank", "low_rank_where", "relaxation_start")
_ROUNDS = 15


class PlanCosts:
    """Costs of plans of one encoder.

    Args:
        source: The encoder.
        changes: Keys of the model's configuration in place of the encoder's; those of relaxations are left out of a
            stack, which shares nothing.
    """

    def __init__(self, source: EncoderSource, changes: Mapping[str, Any]) -> None:
        self._source, self._changes = source, changes

    def changes(self, plan: SharingPlan) -> dict[str, Any]:
        """Keys of the model of a plan."""
        stack = plan.recurrences == 1
        return {key: value for key, value in self._changes.items() if not (stack and key in RELAXATIONS)}

    def config(self, plan: SharingPlan) -> RecurraConfig:
        """Configuration of the model of a plan.

        Raises:
            ConfigurationError: If a key is wrong.
        """
        return RecurraConfig(**self._source.shape(str(plan), self.changes(plan)))

    def parameters(self, plan: SharingPlan) -> int:
        """Parameters that are stored, without a head."""
        counts = count_parameters(self.config(plan))
        return counts.total - counts.head

    def timer(self, tokens: int) -> Callable[[SharingPlan], float]:
        """Returns an estimate of the milliseconds that a text of some tokens takes by itself.

        The encoder and its embedding are timed here and now; a plan's layers take the encoder's time in proportion to
        their operations.
        """
        encoder = load_encoder(self._source.name)
        ids = torch.ones(1, tokens, dtype=torch.long)
        lengths = torch.tensor([tokens])
        layout = PackedRows.of(encoder.rotary, lengths, causal=False, device=ids.device)
        whole = _milliseconds(lambda: encoder(ids, row_lengths=lengths))
        embedding = min(whole, _milliseconds(lambda: encoder.embeddings(ids, None, layout)))
        per_flop = (whole - embedding) / forward_flops(encoder.config, tokens)
        return lambda plan: embedding + per_flop * forward_flops(self.config(plan), tokens)


@torch.inference_mode()
def _milliseconds(call: Callable[[], object]) -> float:
    """Median of some calls, after one that does not count."""
    call()
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


MOST_TEXTS = 250
# Longer texts are cut there while plans are compared: what a plan keeps hardly depends on it, and time does.
MOST_TOKENS = 128
# Of what is computed: another number where a score would be another one.
_SCORE_VERSION = 1


class PlanScores:
    """Scores plans of one encoder on the texts of a file.

    Args:
        source: The encoder.
        texts: The file.
        text_column: Column of the texts.
        relaxed: What recurrences have of their own, as the configuration of a plan with shared layers says, and how
            wide the token table is.
        cache_dir: Where scores are kept.

    Attributes:
        texts: Number of texts that plans are scored on.
        pieces: Numbers of the pieces that a narrow token table is fitted to, ``(tokens,)``, those of texts that no plan
            is scored on as far as there are any; none without such a table.

    Raises:
        DataError: If the texts cannot be read.
    """

    def __init__(
        self, source: EncoderSource, texts: Path, text_column: str, relaxed: RecurraConfig, cache_dir: Path | None
    ) -> None:
        self._source, self._relaxed = source, relaxed
        given = itertools.chain.from_iterable(stream_texts(texts, text_column))
        cleaned = list(dict.fromkeys(filter(None, map(clean_text, itertools.islice(given, 40 * MOST_TEXTS)))))
        # Evenly spread, for files are often sorted.
        places = np.linspace(0, len(cleaned) - 1, min(MOST_TEXTS, len(cleaned))).astype(int)
        tokenizer, scored = read_tokenizer(source.folder), [cleaned[place] for place in places]
        ids, offsets = encode_texts(scored, tokenizer, MOST_TOKENS)
        self.texts = len(offsets) - 1
        self._rows = torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(np.diff(offsets))
        self.pieces, fitted = None, {}
        if relaxed.token_embedding_size != relaxed.hidden_size:
            others = [cleaned[place] for place in np.setdiff1d(np.arange(len(cleaned)), places)]
            self.pieces = torch.from_numpy(encode_texts(others or scored, tokenizer, MOST_TOKENS)[0])
            digest = hashlib.sha256(self.pieces.numpy().tobytes()).hexdigest()
            fitted = {"table": [relaxed.embedding_size, digest]}
        self._key = content_hash(
            {
                "version": _SCORE_VERSION,
                "encoder": source.sha256,
                "rows": hashlib.sha256(ids.tobytes() + offsets.tobytes()).hexdigest(),
                "relaxations": {},
                **fitted,
            }
        )
        self._path = cache_path(f"plans-{self._key}", cache_dir)
        self._known = self._read()
        self._before = len(self._known)

    @property
    def num_layers(self) -> int:
        """Layers of the encoder."""
        return self._source.num_layers

    @property
    def mean_tokens(self) -> int:
        """Tokens of a text, rounded."""
        return max(1, round(self._rows[1].float().mean().item()))

    @cached_property
    def _function(self) -> KeptFunction:
        name, table = self._source.name, None
        if self.pieces is not None:
            width = self._relaxed.embedding_size
            table = load_encoder(name, pieces=self.pieces, embedding_size=width).embeddings
        return KeptFunction(load_encoder(name), *self._rows, table)

    def score(self, plan: SharingPlan) -> ScoredPlan:
        """What a plan keeps.

        Raises:
            ConfigurationError: If there are not two texts at least.
        """
        name = str(plan)
        if name not in self._known:
            self._known[name] = self._function.score(plan).kept
        return ScoredPlan(plan, self._known[name])

    def keep(self) -> None:
        """Writes what was computed, if anything was."""
        if len(self._known) > self._before:
            write_arrays(self._path, self._key, _packed(self._known))
            self._before = len(self._known)

    def _read(self) -> dict[str, float]:
        found = read_arrays(self._path, self._key, ("plans", "kept"))
        if found is None:
            return {}
        names = found["plans"].tobytes().decode().split("\n")
        return dict(zip(names, found["kept"].tolist(), strict=True))


def _packed(scores: Mapping[str, float]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.generic]]]:
    return {
        "plans": np.frombuffer("\n".join(scores).encode(), dtype=np.uint8),
        "kept": np.array(list(scores.values()), dtype=np.float64),
    }
