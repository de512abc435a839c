"""What a run can be exported as. Imports nothing heavy."""

from __future__ import annotations

from recurra.core.errors import ConfigurationError, unknown

FORMATS: dict[str, tuple[str, ...]] = {"safetensors": ("fp32", "bf16", "fp16")}


def check_format(name: str, precision: str) -> None:
    """Refuses an unknown format, or a precision that it does not have.

    Raises:
        ConfigurationError: What is wrong, and what is allowed.
    """
    if name not in FORMATS:
        raise ConfigurationError(unknown("export format", name, FORMATS))
    if precision not in FORMATS[name]:
        others = [other for other, precisions in FORMATS.items() if precision in precisions]
        hint = f"; {precision} is written as {' or '.join(others)}" if others else ""
        raise ConfigurationError(f"{unknown(f'precision of {name} exports', precision, FORMATS[name])}{hint}")
