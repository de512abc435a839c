"""What computes logits with torch: a Transformer of a run, or of an export as safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from recurra.core.errors import CheckpointError
from recurra.data.encoding import encode_windows
from recurra.data.tokenization import read_tokenizer
from recurra.data.windows import pool_windows
from recurra.deployment.engines.computation import Computation, Integers, compute_precision
from recurra.deployment.engines.depth import Depth, Early
from recurra.deployment.engines.packing import Batch, FlatRows
from recurra.models.exits.rule import ExitRule
from recurra.models.inference import (
    PRECISIONS,
    check_precision,
    compute_rows,
    default_device,
    imitates_bf16,
    predict_logits,
)
from recurra.models.loading import load_classifier_model


class TransformerEngine:
    """Runs a classifier of ours on torch.

    Args:
        model: The classifier; converted in place to ``precision`` once, so that no weight is cast again a batch.
        tokenizer: Its tokenizer.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: Tokens after which a text is cut, or a window of it.
        windows: Most windows that a text is read in, whose logits are averaged (`recurra.data.windows`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        precision: str,
        max_length: int,
        windows: int = 1,
    ) -> None:
        self.precision = check_precision(precision)
        device = default_device()
        self.computation = Computation(
            engine="torch", storage_precision=_stored_in(model), compute_precision=precision, device=device.type
        )
        self.model = model.to(device=device, dtype=PRECISIONS[precision]).eval()
        self.tokenizer = tokenizer
        self.max_length = min(max_length, int(model.config.max_position_embeddings))
        self.windows = windows
        config = model.config
        self.depth = Depth(tuple(config.exits), int(config.num_recurrences), int(config.num_labels), windows)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        max_length: int,
        windows: int = 1,
        precision: str | None = None,
        preferred: str | None = None,
    ) -> TransformerEngine:
        """Reads model and tokenizer from a model folder.

        Args:
            folder: The model folder.
            max_length: Tokens after which a text is cut, or a window of it.
            windows: Most windows that a text is read in.
            precision: Precision to compute in, if the user asks for one.
            preferred: Precision to compute in otherwise, where the device is good at it; none takes that of the
                weights.
        """
        if precision is not None:
            check_precision(precision)
        model = load_classifier_model(folder)
        device = default_device()
        stored = preferred or _stored_in(model)
        chosen = compute_precision(stored, precision, device.type, imitates_bf16=imitates_bf16(device))
        tokenizer = read_tokenizer(folder)
        check_fits(folder, tokenizer, int(model.config.vocab_size))
        return cls(model, tokenizer, precision=chosen, max_length=max_length, windows=windows)

    @property
    def pad_token_id(self) -> int:
        """Token that fills."""
        return int(self.model.config.pad_token_id or 0)

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)`` for cleaned texts."""
        batches, rows, counts = self._read(texts, batch_size)
        return pool_windows(predict_logits(self.model, batches, rows), counts)

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> Early:
        """Computes cleaned texts, each no deeper than the rule lets it."""
        self.depth.check_one_window()

        def compute(**inputs: Any) -> list[torch.Tensor]:
            output = self.model(**inputs, exit_rule=rule)
            return [output.logits.float(), output.exited_after]

        return Early(*self._compute(texts, batch_size, compute))

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, npt.NDArray[np.float32]]:
        """Returns what the model says after each recurrence, ``(texts, labels)``, for cleaned texts."""

        def compute(**inputs: Any) -> list[torch.Tensor]:
            return list(self.model.logits_by_recurrence(**inputs).values())

        return dict(zip(self.depth.output_after, self._compute(texts, batch_size, compute), strict=True))

    def _compute(
        self, texts: Sequence[str], batch_size: int, compute: Callable[..., Sequence[torch.Tensor]]
    ) -> list[npt.NDArray[Any]]:
        """Values of cleaned texts, each the mean over its windows."""
        batches, rows, counts = self._read(texts, batch_size)
        return [pool_windows(each, counts) for each in compute_rows(self.model, batches, rows, compute)]

    def _read(self, texts: Sequence[str], batch_size: int) -> tuple[Iterator[Batch], int, Integers | None]:
        """Batches of windows, how many there are in all, and of each text."""
        input_ids, offsets, counts = encode_windows(texts, self.tokenizer, self.max_length, self.windows)
        rows = FlatRows(input_ids, offsets, self.pad_token_id)
        on_cpu = self.model.device.type == "cpu"
        batches = rows.packed(batch_size, few_sizes=self.precision != "fp32") if on_cpu else rows.padded(batch_size)
        return batches, len(offsets) - 1, counts


def check_fits(folder: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
    """Refuses a tokenizer that writes tokens which the model's table does not have.

    Raises:
        CheckpointError: If it does.
    """
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= vocab_size:
        raise CheckpointError(
            f"'{folder}': its tokenizer writes tokens up to {highest:,}, and its model knows {vocab_size:,}: "
            "they are of two models; copy or train it again"
        )


def _stored_in(model: PreTrainedModel) -> str:
    """Precision of the weights of a model as it was read."""
    stored = next(model.parameters()).dtype
    return next((name for name, dtype in PRECISIONS.items() if dtype == stored), str(stored))
