"""What computes logits: a Transformer on torch, or the linear control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from recurra.data.encoding import encode_texts
from recurra.data.tokenization import read_tokenizer
from recurra.deployment.batches import FlatRows
from recurra.deployment.computation import Computation, compute_precision
from recurra.models.exits import ExitRule
from recurra.models.inference import PRECISIONS, check_precision, default_device, predict_logits
from recurra.models.linear import LinearClassifier
from recurra.models.loading import load_classifier_model


class TransformerEngine:
    """Runs a classifier of ours on torch.

    Args:
        model: The classifier; converted in place to ``precision`` once, so that no weight is cast again a batch.
        tokenizer: Its tokenizer.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: Tokens after which a text is cut.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, precision: str, max_length: int
    ) -> None:
        self.precision = check_precision(precision)
        device = default_device()
        self.computation = Computation(
            engine="torch", storage_precision=_stored_in(model), compute_precision=precision, device=device.type
        )
        self.model = model.to(device=device, dtype=PRECISIONS[precision]).eval()
        self.tokenizer = tokenizer
        self.max_length = min(max_length, int(model.config.max_position_embeddings))
        self._exit_rule: ExitRule | None = None

    def stop_early(self, rule: ExitRule) -> None:
        """Lets texts leave at exits from now on.

        Raises:
            ConfigurationError: If the model has no such exit.
        """
        rule.check(self.model.config, int(self.model.config.num_labels))
        self._exit_rule = rule

    @classmethod
    def load(
        cls, folder: Path, *, max_length: int, precision: str | None = None, preferred: str | None = None
    ) -> TransformerEngine:
        """Reads model and tokenizer from a model folder.

        Args:
            folder: The model folder.
            max_length: Tokens after which a text is cut.
            precision: Precision to compute in, if the user asks for one.
            preferred: Precision to compute in otherwise, where the device is good at it; none takes that of the
                weights.
        """
        if precision is not None:
            check_precision(precision)
        model = load_classifier_model(folder)
        chosen = compute_precision(preferred or _stored_in(model), precision, default_device().type)
        return cls(model, read_tokenizer(folder), precision=chosen, max_length=max_length)

    @property
    def pad_token_id(self) -> int:
        """Token that fills."""
        return int(self.model.config.pad_token_id or 0)

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)`` for cleaned texts."""
        input_ids, offsets = encode_texts(texts, self.tokenizer, self.max_length)
        rows = FlatRows(input_ids, offsets, self.pad_token_id)
        if self.model.device.type == "cpu":
            batches = rows.packed(batch_size, few_sizes=self.precision != "fp32")
        else:
            batches = rows.padded(batch_size)
        return predict_logits(self.model, batches, len(texts), exit_rule=self._exit_rule)


def _stored_in(model: PreTrainedModel) -> str:
    """Precision of the weights of a model as it was read."""
    stored = next(model.parameters()).dtype
    return next((name for name, dtype in PRECISIONS.items() if dtype == stored), str(stored))


class LinearEngine:
    """Runs the linear control."""

    def __init__(self, model: LinearClassifier) -> None:
        self.model = model
        self.computation = Computation(engine="numpy", storage_precision="fp32", compute_precision="fp64", device="cpu")

    @classmethod
    def load(cls, folder: Path) -> LinearEngine:
        """Reads the linear model from a model folder."""
        return cls(LinearClassifier.load(folder))

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:  # noqa: ARG002 - an Engine's
        """Returns ``(texts, labels)`` for cleaned texts; all at once, which is fastest for a sparse product."""
        return self.model.logits(texts)
