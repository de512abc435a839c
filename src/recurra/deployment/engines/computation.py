"""How logits are computed: by which engine, from weights stored in which precision, in which precision, and where."""

from __future__ import annotations

from pydantic import ConfigDict

from recurra.core.configuration import HashedSettings

# Loses nothing of FP16's digits, which bf16 has three fewer of.
_FP16_ON_A_CPU = "fp32"


class Computation(HashedSettings):
    """How an engine computes.

    Attributes:
        engine: ``torch``, ``onnxruntime``, or ``numpy`` for the linear control.
        storage_precision: Precision of the weights on disk: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        compute_precision: Precision of the matrix products.
        device: ``cpu``, or the accelerator as torch names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    storage_precision: str
    compute_precision: str
    device: str

    def describe(self) -> str:
        """Says it in one line."""
        return (
            f"weights stored in {self.storage_precision}, "
            f"computed in {self.compute_precision} by {self.engine} on {self.device}"
        )


def compute_precision(storage: str, requested: str | None, device: str) -> str:
    """Returns the precision to compute in: what is asked for, else that of the weights where the device is good at it.

    FP16 is computed in FP16 on an accelerator. A CPU computes it in FP32: its own FP16 products are tens of times
    slower, and every FP16 weight is an FP32 number, but not a bf16 one.

    Args:
        storage: Precision of the weights: ``fp32``, ``bf16`` or ``fp16``.
        requested: What the user asks for, or none.
        device: Where it is computed.
    """
    if requested is not None:
        return requested
    return _FP16_ON_A_CPU if storage == "fp16" and device == "cpu" else storage
