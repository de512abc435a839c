"""What a run can be exported as. Imports nothing heavy."""

from __future__ import annotations

import importlib.util

from recurra.core.errors import ConfigurationError, UnavailableError, unknown

FORMATS: dict[str, tuple[str, ...]] = {"safetensors": ("fp32", "bf16", "fp16"), "onnx": ("fp32", "int8")}


_PACKAGES = {"onnx": ("onnx", "onnxruntime")}


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


def check_packages(name: str) -> None:
    """Looks whether what a format needs is installed, without importing it.

    Raises:
        UnavailableError: Which package is missing, and what installs it.
    """
    for package in _PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            raise UnavailableError(f"the format {name} needs the package {package}; pip install 'recurra[{name}]'")
