"""How a model is trained: the papers' protocol, a tuned one, or the user's own file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from recurra.core.configuration import Settings, override
from recurra.core.errors import ConfigurationError, unknown


class ProtocolConfig(Settings):
    """A training protocol. The same protocol is used for every model of a comparison.

    Attributes:
        name: Name shown in tables.
        learning_rate: Peak learning rate of AdamW.
        batch_size: Examples an optimiser step and process, over its accumulation steps; torchrun multiplies it.
        gradient_accumulation: Micro-batches an optimiser step; ``batch_size`` must be a multiple.
        max_epochs: Passes over the training split at most.
        weight_decay: Decoupled weight decay of all weights but biases and norms.
        schedule: ``plateau`` halves after epochs without improvement; the others run over all steps.
        warmup_ratio: Share of all steps with a rising learning rate (not for ``plateau``).
        plateau_factor: Factor of the plateau schedule.
        plateau_patience: Epochs without improvement of the selection loss that the plateau schedule waits for.
        early_stopping_patience: Epochs without improvement after which training stops; 0 never stops early.
        early_stopping_threshold: Least improvement of the selection loss that counts.
        max_grad_norm: Norm to which gradients are clipped; 0 does not clip.
        label_smoothing: Share of the target mass spread over all classes.
        evaluation_batch_size: Batch size of evaluation and of the second latency figure.
    """

    name: str
    learning_rate: float = Field(gt=0, le=1)
    batch_size: int = Field(ge=1, le=65536)
    gradient_accumulation: int = Field(default=1, ge=1)
    max_epochs: int = Field(ge=1, le=10_000)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Literal["plateau", "cosine", "linear", "constant"] = "cosine"
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    plateau_factor: float = Field(default=0.5, gt=0, lt=1)
    plateau_patience: int = Field(default=2, ge=0)
    early_stopping_patience: int = Field(default=3, ge=0)
    early_stopping_threshold: float = Field(default=1e-3, ge=0)
    max_grad_norm: float = Field(default=1.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    evaluation_batch_size: int = Field(default=32, ge=1, le=65536)

    def model_post_init(self, _: object) -> None:
        """Checks what depends on two keys."""
        if self.batch_size % self.gradient_accumulation:
            raise ConfigurationError(
                f"'gradient_accumulation' is {self.gradient_accumulation}: must divide batch_size {self.batch_size}"
            )


PROTOCOLS: dict[str, ProtocolConfig] = {
    # Guo et al., section 5.1; the weight decay is AdamW's own default, which the papers do not mention.
    "paper": ProtocolConfig(name="paper", learning_rate=3e-5, batch_size=16, max_epochs=5, schedule="plateau"),
    "tuned": ProtocolConfig(
        name="tuned", learning_rate=4e-4, batch_size=32, max_epochs=3, schedule="cosine", warmup_ratio=0.06
    ),
    "demo": ProtocolConfig(
        name="demo", learning_rate=1.5e-3, batch_size=32, max_epochs=4, schedule="cosine", warmup_ratio=0.1
    ),
}


def load_protocol(name: str, overrides: Iterable[str] = ()) -> ProtocolConfig:
    """Returns a protocol by name or from a YAML file, with ``key=value`` overrides applied.

    Raises:
        ConfigurationError: If there is no such protocol or file, or a value is impossible.
    """
    overrides = list(overrides)
    if name in PROTOCOLS:
        if not overrides:
            return PROTOCOLS[name]
        return ProtocolConfig.parse(override(PROTOCOLS[name].plain(), overrides), source=f"protocol '{name}'")
    if Path(name).suffix in {".yaml", ".yml"}:
        return ProtocolConfig.load(name, overrides)
    raise ConfigurationError(unknown("protocol", name, [*PROTOCOLS, "a .yaml file"]))
