"""The setting in which audits of models compare numbers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def exact_fp32(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in FP32 and evaluation mode, with exact matrix products; everything is put back afterwards."""
    floating = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    exact = model if floating <= {torch.float32} else copy.deepcopy(model).float()
    device_type = next((parameter.device.type for parameter in model.parameters()), "cpu")
    precision = torch.get_float32_matmul_precision()
    modes = [(module, module.training) for module in exact.modules()]
    torch.set_float32_matmul_precision("highest")
    exact.eval()
    try:
        with torch.no_grad(), torch.autocast(device_type, enabled=False):
            yield exact
    finally:
        torch.set_float32_matmul_precision(precision)
        for module, training in modes:
            module.training = training
