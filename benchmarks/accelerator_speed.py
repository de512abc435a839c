"""Speed of every path on this device: ``python -m benchmarks.accelerator_speed [--json FILE] [--quick]``.

Training steps (forward, backward, fused AdamW) and forward passes of classifiers and language models with fresh
weights, in FP32, bf16 and FP16: milliseconds, tokens a second, peak memory, and the share of the device's rate of
matrix products in bf16, which is measured first. Operations are those of `recurra.models.presets`, as executed; a step
counts three forward passes. Then fused attention against explicit scores by length, and the norms.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.measures import provenance
from recurra.core.files import write_json
from recurra.evaluation.latency import synchroniser
from recurra.models.configuration import RecurraConfig
from recurra.models.inference import PRECISIONS, autocast, default_device
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.presets import forward_flops, language_flops, preset
from recurra.tasks.run_folder import accelerator_name

MIB = 2**20
# Preset, rows and tokens of a training batch. Presets ``crt-*`` are language models.
TRAINING = (("baseline", 16, 128), ("baseline", 256, 128), ("recurrent", 16, 128), ("recurrent", 256, 128),
            ("crt-tiny", 8, 128), ("crt-tiny", 128, 128), ("crt-deep", 2, 1024), ("crt-deep", 16, 1024))  # fmt: skip
FORWARD = (("baseline", 1, 128), ("baseline", 256, 128), ("recurrent", 1, 128), ("recurrent", 256, 128))
QUICK_TRAINING, QUICK_FORWARD = (("crt-tiny", 1, 16), ("baseline-tiny", 1, 16)), (("baseline-tiny", 1, 16),)
LENGTHS, HEADS, HEAD_WIDTH = (128, 256, 512, 1024, 2048, 4096), 8, 64


def build(name: str) -> tuple[RecurraConfig, Any]:
    """A preset with fresh weights."""
    config = preset(name)
    return config, (RecurraForCausalLM if name.startswith("crt") else RecurraForSequenceClassification)(config)


def flops(config: RecurraConfig, name: str, rows: int, tokens: int) -> float:
    """Operations of a forward pass over a batch."""
    count = language_flops(config, tokens, with_exits=True) if name.startswith("crt") else forward_flops(config, tokens)
    return rows * count


def seconds(call: Callable[[], object], device: torch.device, *, budget_s: float) -> float:
    """The median time of a call, after three to warm up; at least five calls, at most fifty, within the budget."""
    wait = synchroniser(str(device)) or (lambda: None)
    for _ in range(3):
        call()
    wait()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 5 or (len(times) < 50 and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return median(times)


def product_rate(device: torch.device, size: int, precision: str, budget_s: float) -> float:
    """Operations a second of one product of two random square matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=PRECISIONS[precision]) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, budget_s=budget_s)


def _batch(config: RecurraConfig, name: str, rows: int, tokens: int, device: torch.device) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, config.vocab_size, (rows, tokens), device=device)
    labels = ids if name.startswith("crt") else torch.randint(0, config.num_labels, (rows,), device=device)
    return {"input_ids": ids, "labels": labels}


def training_step(name: str, rows: int, tokens: int, precision: str, *, device: torch.device, budget_s: float) -> float:
    """Seconds of a step."""
    config, model = build(name)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    batch = _batch(config, name, rows, tokens, device)

    def step() -> None:
        with autocast(precision, device):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return seconds(step, device, budget_s=budget_s)


def forward_pass(name: str, rows: int, tokens: int, precision: str, *, device: torch.device, budget_s: float) -> float:
    """Seconds of a forward pass with the weights stored in the precision, as an export holds them."""
    config, model = build(name)
    model = model.to(device, PRECISIONS[precision]).eval()
    batch = _batch(config, name, rows, tokens, device)
    with torch.inference_mode():
        return seconds(lambda: model(input_ids=batch["input_ids"]), device, budget_s=budget_s)


def paths(device: torch.device, precisions: list[str], rate: float, *, quick: bool, budget_s: float) -> list[Any]:
    """One line per path and precision; a path that fails, for example for lack of memory, has its error."""
    lines = []
    for path, measure, passes, settings in (
        ("training step", training_step, 3, QUICK_TRAINING if quick else TRAINING),
        ("forward", forward_pass, 1, QUICK_FORWARD if quick else FORWARD),
    ):
        for name, rows, tokens in settings:
            for precision in precisions:
                line: dict[str, Any] = {
                    "path": path,
                    "model": name,
                    "rows": rows,
                    "tokens": tokens,
                    "precision": precision,
                }
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                try:
                    elapsed_s = measure(name, rows, tokens, precision, device=device, budget_s=budget_s)
                except (RuntimeError, ValueError) as error:
                    line["error"] = str(error).splitlines()[0]
                else:
                    operations = passes * flops(preset(name), name, rows, tokens)
                    line |= {
                        "ms": 1e3 * elapsed_s,
                        "tokens_a_second": rows * tokens / elapsed_s,
                        "share_of_products": operations / elapsed_s / rate,
                    }
                    if device.type == "cuda":
                        line["peak_mib"] = torch.cuda.max_memory_allocated() / MIB
                lines.append(line)
                _say(line)
    return lines


def attention(device: torch.device, lengths: tuple[int, ...], precision: str, budget_s: float) -> list[dict[str, Any]]:
    """Forward and backward of attention by length: the fused kernel against scores that are written out."""
    lines = []
    for length in lengths:
        q, k, v = (
            torch.randn(4, HEADS, length, HEAD_WIDTH, device=device, dtype=PRECISIONS[precision], requires_grad=True)
            for _ in range(3)
        )

        def fused(q: Any = q, k: Any = k, v: Any = v) -> None:
            torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()

        def explicit(q: Any = q, k: Any = k, v: Any = v) -> None:
            ((q @ k.transpose(2, 3) * HEAD_WIDTH**-0.5).softmax(-1) @ v).sum().backward()

        line: dict[str, Any] = {"length": length}
        for name, call in (("fused", fused), ("explicit", explicit)):
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            line[f"{name}_ms"] = 1e3 * seconds(call, device, budget_s=budget_s)
            if device.type == "cuda":
                line[f"{name}_mib"] = (torch.cuda.max_memory_allocated() - before) / MIB
        lines.append(line)
        _say(line)
    return lines


def norms(device: torch.device, rows: int, width: int, budget_s: float) -> list[dict[str, Any]]:
    """Forward and backward of RMSNorm and LayerNorm, each in its own kernel and computed step by step."""
    x = torch.randn(rows, width, device=device, requires_grad=True)
    weight, bias = torch.ones(width, device=device), torch.zeros(width, device=device)
    functional = torch.nn.functional
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "RMSNorm, one kernel": lambda: functional.rms_norm(x, (width,), weight, 1e-6),
        "LayerNorm, one kernel": lambda: functional.layer_norm(x, (width,), weight, bias, 1e-6),
        "RMSNorm, step by step": lambda: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight,
        "LayerNorm, step by step": lambda: (
            (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True, correction=0) + 1e-6).rsqrt() * weight + bias
        ),
    }
    lines: list[dict[str, Any]] = []
    for name, call in calls.items():

        def both(call: Callable[[], torch.Tensor] = call) -> None:
            call().sum().backward()

        lines.append({"norm": name, "ms": 1e3 * seconds(both, device, budget_s=budget_s)})
        _say(lines[-1])
    return lines


def measure(device: torch.device, *, quick: bool, budget_s: float) -> dict[str, Any]:
    """Everything above on one device."""
    size = 64 if quick else 8192
    precisions = [name for name in PRECISIONS if name != "fp16" or device.type == "cuda"]
    rates = {name: product_rate(device, size, name, budget_s) for name in precisions}
    _say({"products, TFLOP/s": {name: rate / 1e12 for name, rate in rates.items()}})
    return {
        **provenance(threads=torch.get_num_threads(), accelerator=accelerator_name()),
        "products_tflops": {name: rate / 1e12 for name, rate in rates.items()},
        "paths": paths(device, precisions, rates["bf16"], quick=quick, budget_s=budget_s),
        "attention": attention(device, LENGTHS[:1] if quick else LENGTHS, "bf16", budget_s),
        "norms": norms(device, 64 if quick else 32_768, 384, budget_s),
    }


def _say(line: object) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> int:
    """Measures and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator_speed", description=__doc__)
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--quick", action="store_true", help="only try that everything runs; figures mean nothing")
    options = parser.parse_args()
    report = measure(default_device(), quick=options.quick, budget_s=0.02 if options.quick else 0.3)
    if options.json is not None:
        write_json(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
