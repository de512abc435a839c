"""Records of exports that never were, with chosen quality."""

from __future__ import annotations

import numpy as np

from factories import CREATED, MACHINE
from recurra.core.record import CodeRecord
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
) -> ExportRecord:
    """A record whose export gets ``lost`` of the ``right`` rows wrong and ``gained`` of the others right."""
    labels, numbers = np.zeros(rows, dtype=np.int64), np.arange(rows)[:, None]
    now_right = (numbers >= lost) & (numbers < right + gained)
    metrics, reference = (
        evaluate_logits(np.where(which, [2.0, 0.0], [0.0, 2.0]), labels) for which in (now_right, numbers < right)
    )
    changed = {"labels_changed": lost + gained, "only_export": gained, "only_reference": lost}
    computed = {"fp16": "fp32"}.get(precision, precision)
    how = Computation(engine="torch", storage_precision=precision, compute_precision=computed, device="cpu")
    return ExportRecord(
        run_id=run_id,
        record_hash=record_hash,
        format="safetensors",
        precision=precision,
        created=CREATED,
        code=CodeRecord(version="0.1.0"),
        environment=MACHINE.model_copy(update={"precision": computed}),
        computation=how,
        weights_bytes=parameters * BYTES[precision],
        folder_bytes=parameters * BYTES[precision] + 2**20,
        splits={"test": ExportedSplit(metrics=metrics, reference=reference, **changed)},
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
