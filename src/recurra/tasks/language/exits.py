"""A language model whose exit rule is chosen, judged and timed. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.record import read_language_record
from recurra.core.sealed import sealed_model
from recurra.data.configuration import LanguageDataConfig
from recurra.data.language.preparation import encode_for
from recurra.data.language.tokenization import read_language_tokenizer
from recurra.deployment.generation import decoding
from recurra.evaluation.perplexity import calibrate_language, score_token_exits
from recurra.models.exits.rules import ExitRule, check_has_exits
from recurra.models.exits.thresholds import CalibratedExits
from recurra.models.inference import default_device
from recurra.models.loading import load_language_model
from recurra.tasks.exits import EXITS, FULL, MeasuredExit
from recurra.tasks.language.evaluation import own_split

# Tokens of a split that are scored: each threshold is a pass over them.
MOST_TOKENS = 16_384
PROMPT_TOKENS, DECODED_TOKENS = 16, 48
_BATCHES = 3


class LanguageSubject:
    """A language model with exits, and the beginnings of its validation text and of its last reported split.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If its model has no exits, or leaks.
    """

    unit = "Tokens"
    quality = "loss a token"
    timed = "decoding a row's tokens"

    def __init__(self, run: Path, data_root: Path | None) -> None:
        record = read_language_record(run)
        config = LanguageDataConfig.parse(record.config["data"], source="record")
        self.run_id = record.run_id
        self.chosen_on = record.data.selection_split
        self.model = load_language_model(sealed_model(run)).to(default_device())
        self.model.check_generates()
        check_has_exits(self.model.config)
        tokenizer = read_language_tokenizer(run / "model")
        self._reported_name = record.data.reported_splits[-1]
        self._selection, self._reported = (
            encode_for(own_split(record, config, name, data_root), config, tokenizer, None).joined[:MOST_TOKENS]
            for name in (self.chosen_on, self._reported_name)
        )
        self._end, self._context = int(tokenizer.eos_token_id or 0), config.context
        self._reading: dict[str, Any] = {"first_read": self._end, "context": self._context}

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold with which the loss grows by a share ``keep`` at most."""
        return calibrate_language(self.model, [self._selection], keep, kind=kind, **self._reading)

    def judge(self, rule: ExitRule, label: str = "") -> MeasuredExit:
        """Judges on the reported split."""
        exits = score_token_exits(self.model, [self._reported], rule, **self._reading)
        taken, name = dict(sorted(exits.exit_counts.items())), label or rule.describe()
        return MeasuredExit(name, self._reported_name, self._full_loss, exits.loss, None, taken)

    @cached_property
    def _full_loss(self) -> float:
        return float(score_token_exits(self.model, [self._reported], None, **self._reading).loss)

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[torch.Tensor], Any]]:
        """Decoding of a fixed number of tokens, as ``recurra generate`` does.

        Tokens are sampled, so that texts are as unsure as the model is: greedy decoding repeats itself and would exit
        earlier.
        """

        def decode(ids: torch.Tensor, **options: Any) -> None:
            torch.manual_seed(0)
            tokens = min(DECODED_TOKENS, self.model.config.max_position_embeddings - ids.shape[1])
            with decoding(self.model):
                self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    top_k=0,
                    min_new_tokens=tokens,
                    max_new_tokens=tokens,
                    pad_token_id=self._end,
                    **options,
                )

        return {FULL: decode, EXITS: lambda ids: decode(ids, exit_rule=rule)}

    def batches(self, batch_size: int) -> list[torch.Tensor]:
        """Prompts from the reported text, far apart."""
        text: npt.NDArray[np.int64] = self._reported.astype(np.int64)
        width = max(1, min(PROMPT_TOKENS, self._context // 2, len(text)))
        starts = np.linspace(0, len(text) - width, _BATCHES * batch_size).astype(np.int64)
        rows = torch.from_numpy(np.stack([text[start : start + width] for start in starts]))
        return list(rows.to(self.model.device).split(batch_size))
