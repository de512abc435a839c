"""Records of exports that never were, with chosen quality."""

from __future__ import annotations

import numpy as np

from recurra.core.record import CodeRecord, EnvironmentRecord
from recurra.deployment.engines.computation import Computation
from recurra.deployment.export.manifest import CheckRecord
from recurra.deployment.export_record import ExportedSplit, ExportRecord
from recurra.evaluation.metrics import evaluate_logits

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}


def export_record(
    run_id: str,
    precision: str,
    *,
    record_hash: str = "0" * 64,
    rows: int = 400,
    right: int = 300,
    lost: int = 0,
    gained: int = 0,
    parameters: int = 1_000_000,
    export_format: str = "safetensors",
) -> ExportRecord:
    """A record whose export gets ``lost`` of the ``right`` rows wrong and ``gained`` of the others right."""
    labels = np.zeros(rows, dtype=np.int64)
    reference = np.where(np.arange(rows)[:, None] < right, [2.0, 0.0], [0.0, 2.0])
    logits = reference.copy()
    logits[:lost] = [0.0, 2.0]
    logits[right : right + gained] = [2.0, 0.0]
    computed = {"fp16": "fp32", "int8": "int8"}.get(precision, precision)
    engine = "onnxruntime" if export_format == "onnx" else "torch"
    how = Computation(engine=engine, storage_precision=precision, compute_precision=computed, device="cpu")
    return ExportRecord(
        run_id=run_id,
        record_hash=record_hash,
        format=export_format,
        precision=precision,
        created="2026-11-20T12:00:00+00:00",
        code=CodeRecord(version="0.1.0"),
        environment=EnvironmentRecord(
            python="3.11.9", packages={}, platform="Linux", cpu="A processor", cores=2, threads=1, precision=computed
        ),
        computation=how,
        weights_bytes=parameters * BYTES[precision],
        folder_bytes=parameters * BYTES[precision] + 2**20,
        splits={
            "test": ExportedSplit(
                metrics=evaluate_logits(logits, labels),
                reference=evaluate_logits(reference, labels),
                labels_changed=lost + gained,
                only_export=gained,
                only_reference=lost,
            )
        },
        check=CheckRecord(
            source="the validation split of sst2",
            rows=rows,
            label_agreement=1 - (lost + gained) / rows,
            largest_logit_difference=0.01 * (lost + gained),
            largest_logit=2.0,
            reference=how,
            computation=how,
        ),
    )
