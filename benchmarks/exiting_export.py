"""The int8 export of a trained classifier with exits, calibrated as ``recurra export`` does it.

What exits save depends on the weights: only a trained model has a rule that keeps its labels. So this competitor is a
run of the shape of the preset that the others have: ``--classifier DIR``, or else one that is trained for two epochs on
a tenth of SST-2 where the data root has it, a minute or two. Without either there is no such row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import run_recurra
from benchmarks.measures import Measure
from recurra.core.errors import ConfigurationError
from recurra.core.files import read_json
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.models.presets import preset

EXITS = "recurra int8 with calibrated exits"
TARGET = 1.2
_TRAINED_WITH = ("model.exits=[1]", "data.fraction=0.1", "max_epochs=2")
_SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_prelude_layers", "num_core_layers",
    "num_recurrences", "num_coda_layers",
)  # fmt: skip


def train(name: str, folder: Path, threads: int) -> str:
    """Trains the preset with an exit after its first recurrence; returns the run, or an empty string without the data.

    Raises:
        RunError: If the training fails.
    """
    root = os.environ.get("RECURRA_DATA_ROOT")
    if not root:
        return ""
    run = folder / "classifier-with-exits"
    given = ("--model", name, "--data", "sst2", "--data-root", root, "--output", run, "--threads", threads)
    run_recurra("train", *given, "--no-latency", *_TRAINED_WITH)
    return str(run)


def check_shape(run: str, name: str) -> None:
    """Refuses a run that is not of the preset's shape: it would be compared with a BERT of another shape.

    Raises:
        ConfigurationError: With the key that differs.
    """
    path = Path(run) / "model" / "config.json"
    if not path.is_file():
        raise ConfigurationError(f"--classifier '{run}' is not a run folder; give one that was trained with exits")
    config, wanted = read_json(path), preset(name)
    for key in _SHAPE:
        if config.get(key) != getattr(wanted, key):
            raise ConfigurationError(
                f"--classifier '{run}' has {key} {config.get(key)}, the preset '{name}' has {getattr(wanted, key)}; "
                "give a run of that shape"
            )


def calibrated(run: str, folder: Path, *, threads: int, batch_size: int) -> Classifier:
    """Exports a run in int8 into a folder and reads it; texts stop early if it carries an exit rule."""
    root = os.environ.get("RECURRA_DATA_ROOT")
    export_run(Path(run), folder, ExportOptions("onnx", "int8", data_root=Path(root) if root else None))
    classifier = Classifier.from_export(folder, threads=threads, batch_size=batch_size)
    if classifier.calibrated_rule is not None:
        classifier.stop_early()
    return classifier


def describe(classifier: Classifier, texts: Sequence[str]) -> dict[str, Any]:
    """Agreement of its exit rule on the rows that chose it, and the mean recurrences of the timed texts."""
    record = classifier.calibration
    if record is None or record.exit_rule is None:
        return {"agreement": None}
    taken = classifier.classify(texts, rule=record.exit_rule).exited_after
    assert taken is not None
    return {"agreement": record.agreement, "rows": record.rows, "recurrences": float(np.mean(taken))}


def lines(
    about: Mapping[str, Any], name: str, latency: Mapping[str, float], rate: Mapping[str, float], peers: Sequence[str]
) -> list[Measure]:
    """The rows of the table; empty if no threshold kept the labels.

    Args:
        about: Result of `describe`.
        name: The preset.
        latency: Milliseconds of a text alone, by competitor.
        rate: Texts a second in batches, by competitor.
        peers: Competitors; for each measure the best one counts.
    """
    if about["agreement"] is None:
        return []
    subject = (
        f"int8 export with exits that keep {about['agreement']:.1%} of labels on {about['rows']:,} rows, "
        f"{about['recurrences']:.2f} recurrences a text"
    )
    quickest, fastest = min(peers, key=latency.__getitem__), max(peers, key=rate.__getitem__)
    common: dict[str, Any] = {"part": "deployment", "preset": name, "ours_name": EXITS, "result_unit": "x"}
    return [
        Measure(
            title=f"{subject}: batch 1, against ONNX Runtime int8 of that BERT", ours=latency[EXITS],
            other_name=quickest, other=latency[quickest], unit="ms a text",
            result=latency[quickest] / latency[EXITS], target=TARGET, **common,
        ),
        Measure(
            title="the same, batch 32", ours=rate[EXITS], other_name=fastest, other=rate[fastest],
            unit="texts a second", result=rate[EXITS] / rate[fastest], **common,
        ),
    ]  # fmt: skip
