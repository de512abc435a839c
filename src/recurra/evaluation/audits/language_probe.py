"""One way to ask any causal language model: ours with its exits, or one of transformers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from recurra.core.errors import ConfigurationError
from recurra.models.heads import IGNORED
from recurra.models.language_modeling import RecurraForCausalLM

FINAL = "final"


class LanguageProbe:
    """Asks a model for the logits of all its heads, and for its loss.

    Args:
        model: Ours, or any module that is called like a causal language model of transformers: with ``input_ids``,
            ``attention_mask`` and ``labels``, giving ``.logits`` ``(batch, tokens, vocabulary)`` and ``.loss``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.ours = isinstance(model, RecurraForCausalLM)
        accepted = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in accepted
        # A cache would be made and thrown away, and some models lay out their states differently with one.
        self.fixed = {"use_cache": False} if "use_cache" in accepted and not self.ours else {}
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows."""
        return int(self.model.config.vocab_size)

    @property
    def context_tokens(self) -> int | None:
        """Longest input, if the model says so."""
        length = getattr(self.model.config, "max_position_embeddings", None)
        return int(length) if length else None

    def logits(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Returns ``(batch, tokens, vocabulary)`` of each head by its name, the final one last."""
        ids = input_ids.to(self.device)
        if self.ours:
            mask = None if attention_mask is None else attention_mask.to(self.device)
            output = self.model(ids, mask, output_exits=True)
            names = [f"exit-{number}" for number in self.model.config.exits]
            return dict(zip([*names, FINAL], [*(output.exit_logits or ()), output.logits], strict=True))
        logits = self.model(ids, **self._masked(ids, attention_mask), **self.fixed).logits
        if logits.shape[:2] != ids.shape:
            raise ConfigurationError(
                f"the model gives logits of shape {tuple(logits.shape)} for {tuple(ids.shape)} tokens; "
                "a causal language model gives one row of logits a token"
            )
        return {FINAL: logits}

    def loss(self, input_ids: Tensor, attention_mask: Tensor) -> float:
        """Returns the model's own loss for predicting each token; foreign models are told what padding is by -100."""
        ids = input_ids.to(self.device)
        labels = ids if self.ours else ids.masked_fill(~attention_mask.to(self.device).bool(), IGNORED)
        asked = self._masked(ids, attention_mask)
        return float(self.model(ids, labels=labels, **asked, **self.fixed).loss)

    def _masked(self, ids: Tensor, attention_mask: Tensor | None) -> dict[str, Tensor]:
        if attention_mask is None:
            return {}
        mask = attention_mask.to(ids.device)
        if not self.takes_positions:
            return {"attention_mask": mask}
        # As transformers' own generation counts them: real tokens only.
        return {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
