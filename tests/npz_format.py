"""A format of exports in one module, as a new one would be added: the model's state as numpy writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError
from recurra.deployment.export.formats.interface import FP32, ExportFormat, ExportSource, StoredModel, StoredPrecision

WEIGHTS = "weights.npz"
# Every weight rounded to a multiple of 1/64.
COARSE = StoredPrecision("coarse", 12, least_agreement=0.5)


class LogitsOnly:
    """An engine that says no more than it must."""

    def __init__(self, engine: Any, precision: str) -> None:
        self._engine = engine
        self.computation = engine.computation.model_copy(update={"storage_precision": precision})

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)``."""
        found: npt.NDArray[np.float32] = self._engine.logits(texts, batch_size)
        return found


class NpzFormat(ExportFormat):
    """Weights as ``.npz``, without exits."""

    name = "npz-test"
    precisions = (FP32, COARSE)
    weight_files = (WEIGHTS,)
    carries_exits = False
    needs_torch = True
    usage = "Read `weights.npz` with numpy, clean texts ({cleaning}) and cut them at {max_length} tokens."

    def check_model(self, config: Any) -> None:
        """Refuses one way of pooling."""
        if config.pooling == "max":
            raise ConfigurationError("'pooling' of the model is 'max'; npz-test takes 'first' alone")

    def write(self, source: ExportSource, precision: str, folder: Path) -> None:
        """Writes ``config.json`` and ``weights.npz``."""
        state = {name: values.numpy() for name, values in source.engine.model.state_dict().items()}
        if precision == "coarse":
            state = {name: np.round(64 * values) / 64 for name, values in state.items()}
        np.savez(folder / WEIGHTS, **state)
        source.engine.model.config.save_pretrained(folder)

    def open(self, stored: StoredModel, *, precision: str | None = None, threads: int = 0) -> LogitsOnly:
        """Reads it into torch."""
        import torch

        from recurra.data.tokenization import read_tokenizer
        from recurra.deployment.engines.trained import TransformerEngine
        from recurra.models.configuration import RecurraConfig
        from recurra.models.modeling import RecurraForSequenceClassification

        model = RecurraForSequenceClassification(RecurraConfig.from_pretrained(stored.folder))
        with np.load(stored.folder / WEIGHTS) as state:
            model.load_state_dict({name: torch.from_numpy(state[name]) for name in state.files})
        tokenizer = read_tokenizer(stored.folder)
        engine = TransformerEngine(model, tokenizer, precision=precision or "fp32", max_length=stored.max_length)
        return LogitsOnly(engine, stored.precision)
