"""Which export is advised: by each cost alone, never one that storing has spoiled."""

from __future__ import annotations

from typing import Any

from recurra.tasks.classification.exports import advise_exports
from recurra.tasks.measures import Estimate, ExportLine


def line(model: str, precision: str, **changes: Any) -> ExportLine:
    values: dict[str, Any] = {
        "model": model, "format": "onnx", "precision": precision, "computed": "", "exits": None,
        "seeds": [0], "weights_mib": 20.0,
        "folder_mib": 21.0, "accuracy": Estimate(0.8, None, None, None, [0.8], "none"), "f1": 0.8, "gap": 0.0,
        "gap_half": None, "largest_gap": 0.0, "labels_changed": 0, "only_export": 0, "only_reference": 0, "rows": 100,
        "largest_logit_difference": 0.0, "median_ms": {"1": 4.0, "32": 2.0}, "p90_ms": {}, "p99_ms": {},
        "texts_per_s": {"1": 250.0, "32": 500.0}, "memory_mib": 100.0, "published": [],
    }  # fmt: skip
    return ExportLine(**{**values, **changes})


def chosen(*lines: ExportLine, level: tuple[str, ...] = ("a", "b", "c")) -> dict[str, str]:
    return {item.priority.partition(",")[0]: item.choice for item in advise_exports(lines, level)}


def test_each_priority_has_its_own_winner() -> None:
    fast = line("a", "int8", median_ms={"1": 1.0, "32": 2.0}, memory_mib=400.0)
    busy = line("b", "fp32", texts_per_s={"1": 250.0, "32": 900.0}, memory_mib=400.0)
    small = line("c", "int8", memory_mib=40.0, median_ms={"1": 9.9, "32": 3.0})
    even = line("a", "fp32", median_ms={"1": 1.5, "32": 3.0}, memory_mib=150.0)
    assert chosen(fast, busy, small, even) == {
        "Latency": "a, onnx int8", "Throughput": "b, onnx fp32", "Memory": "c, onnx int8", "Balance": "a, onnx fp32",
    }  # fmt: skip


def test_what_loses_by_being_stored_is_never_advised() -> None:
    spoiled = line("a", "int8", median_ms={"1": 0.1}, texts_per_s={"32": 9999.0}, memory_mib=1.0, gap=-0.0051)
    assert set(chosen(spoiled, line("b", "fp32"), line("c", "fp32", memory_mib=90.0)).values()) <= {
        "b, onnx fp32", "c, onnx fp32",
    }  # fmt: skip
    kept = line("a", "int8", median_ms={"1": 0.1}, gap=-0.005)
    assert chosen(kept, line("b", "fp32"))["Latency"] == "a, onnx int8"


def test_balance_is_among_models_that_are_not_worse() -> None:
    worse, best = line("a", "int8", median_ms={"1": 0.1}, memory_mib=1.0), line("b", "fp32")
    assert chosen(worse, best, level=("b",))["Balance"] == "b, onnx fp32"
    assert chosen(worse, best, level=("a", "b"))["Balance"] == "a, onnx int8"
    assert "Balance" not in chosen(worse, best, level=())


def test_what_was_not_measured_is_not_advised() -> None:
    assert chosen(line("a", "int8", median_ms={}, texts_per_s={}), line("b", "fp32")) == {}
    unweighed = [line("a", "int8", memory_mib=None), line("b", "fp32", memory_mib=None)]
    assert set(chosen(*unweighed)) == {"Latency", "Throughput"}


def test_the_reason_holds_the_figures() -> None:
    advice = advise_exports([line("a", "int8", gap=-0.004), line("b", "fp32", median_ms={"1": 5.0})], ["a"])
    assert advice[0].why == (
        "4 ms a text at batch 1, 500 texts a second at batch 32, 100 MiB of memory, 20 MiB of weights, "
        "accuracy 0.8000, −0.4 points for being stored so."
    )
    assert advise_exports([line("a", "int8")], ["a"]) == []
