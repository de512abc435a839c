"""What formats of exports declare, and what the registry makes of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recurra.core.errors import ConfigurationError
from recurra.deployment.export.formats import (
    find_format,
    find_precision,
)


def test_what_formats_declare_loads_nothing_heavy() -> None:
    """Import-linter leaves the modules of formats out, for they import inside their methods."""
    program = "import sys, recurra.deployment.export.formats; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "transformers", "onnx", "onnxruntime", "numpy", "pydantic"} & set(done.stdout.split())


def test_what_is_not_there_is_refused_and_said_where_it_is() -> None:
    assert find_precision("onnx", "int8").most_lost_points == 0.5
    assert find_format("safetensors").needs_torch and not find_format("onnx").needs_torch
    for name, precision, said in (
        ("onxx", "fp32", r"unknown export format 'onxx' \(did you mean 'onnx'\?\); allowed: safetensors, onnx, web"),
        ("safetensors", "int8", "allowed: fp32, bf16, fp16; int8 is written as onnx or web"),
        ("onnx", "int4", "unknown precision of onnx exports 'int4'.*allowed: fp32, int8$"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            find_precision(name, precision)
