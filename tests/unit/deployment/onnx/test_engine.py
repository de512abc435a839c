"""ONNX exports in use: the same results in the same order, without torch, and what stops them."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra import Classifier
from recurra.core.errors import AuditError, CheckpointError, ConfigurationError, UnavailableError
from recurra.core.sealed import describe_file
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportManifest, ExportOptions, read_export, read_manifest, write_manifest
from recurra.tasks.classification.task import TASK
from reviews import review_rows

TEXTS = [text for text, _ in review_rows(60, seed=9)]
MIXED = [*TEXTS[:20], "", "!!!", "Great " * 200, "   ", "<br/>", *TEXTS[20:], "unheardof 変 word", TEXTS[0]]


@pytest.fixture(scope="module")
def exports(onnx_exports: dict[str, Path]) -> dict[str, tuple[Path, ExportManifest]]:
    return {precision: (folder, read_export(folder)) for precision, folder in onnx_exports.items()}


def test_fp32_gives_torchs_results_in_the_order_of_the_texts(run: Path, exports: dict[str, Any]) -> None:
    wanted = Classifier.from_run(run, precision="fp32").logits(MIXED)
    for batch_size in (1, 3, 64):
        classifier = Classifier.from_export(exports["fp32"][0], batch_size=batch_size)
        np.testing.assert_allclose(classifier.logits(MIXED), wanted, rtol=1e-4, atol=1e-4)
        assert np.array_equal(classifier.predict(MIXED), np.array(["negative", "positive"])[wanted.argmax(1)])
    np.testing.assert_allclose(classifier.logits(MIXED[::-1])[::-1], wanted, rtol=1e-4, atol=1e-4)
    assert classifier.predict_proba([]).shape == (0, 2)
    check = exports["fp32"][1].check
    assert check.label_agreement == 1 and 0 <= check.largest_logit_difference < 1e-4


def test_int8_loses_at_most_half_a_point_or_is_not_written(
    run: Path, exports: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = exports["int8"]
    lost = manifest.check.lost_points
    assert lost is not None and lost <= 0.5
    assert manifest.check.largest_logit_difference > 1e-4
    ours, theirs = TASK.evaluate(folder, {}, None), TASK.evaluate(run, {}, None)
    assert ours.plain["metrics"]["accuracy"] >= theirs.plain["metrics"]["accuracy"] - 0.005
    assert "weights stored in int8, computed in int8 by onnxruntime on cpu" in ours.parts[-1]
    with pytest.raises(ConfigurationError, match="is an ONNX export and computes in int8, not in bf16"):
        Classifier.open(folder, precision="bf16")
    assert Classifier.open(folder, precision="int8", threads=1).predict(TEXTS[:1]).shape == (1,)

    def nothing_left(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(weight.shape, dtype=np.int8), np.ones((len(weight), 1), dtype=np.float32)

    monkeypatch.setattr("recurra.deployment.onnx.graph.quantise_rows", nothing_left)
    with pytest.raises(AuditError, match=r"the int8 export .*nothing was written; export in"):
        export_run(run, tmp_path / "out", ExportOptions("onnx", "int8"))
    assert list(tmp_path.iterdir()) == []


def test_threads_do_not_disturb_each_other(exports: dict[str, Any]) -> None:
    """Each cuts at its own length: the tokenizer is told for every call where to."""
    classifier = Classifier.from_export(exports["int8"][0], threads=2)
    whole = Classifier.from_export(exports["fp32"][0], threads=2)
    assert (classifier.engine.concurrency, whole.engine.concurrency) == (2, 1)
    texts = [" ".join(["great film", "dull plot", "fine score"][number % 3] for _ in range(90)) for number in range(24)]
    alone = [classifier.logits([text]) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: classifier.logits([text]), texts * 4))
    for one, other in zip(alone * 4, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_missing_package_names_what_installs_it(
    run: Path, exports: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnavailableError, match=r"ONNX Runtime is not installed; pip install 'recurra\[onnx\]'"):
        Classifier.from_export(exports["fp32"][0])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"needs the package onnx; pip install 'recurra\[onnx\]'"):
        export_run(run, tmp_path / "out", ExportOptions("onnx"))
    assert not (tmp_path / "out").exists()


def resealed(folder: Path, **values: Any) -> None:
    """Writes the manifest again on purpose, for the files that are there."""
    files = {path.name: describe_file(path) for path in folder.iterdir() if path.name != "export.json"}
    write_manifest(folder, read_manifest(folder).model_copy(update={"files": files, **values}))


FOREIGN = [
    *[("tokenizer.json", text) for text in ('{"version": ', '{"version": 3}', "[]", "")],
    *[("config.json", text) for text in ('{"exits": ', "[1]", '{"exits": 3}', '{"exits": ["a"]}', "{" * 5000)],
    ("config.json", '{"exits": [9], "num_recurrences": 2}'),
]


def test_a_foreign_file_in_a_sealed_export_is_one_line(exports: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exports["fp32"][0], tmp_path / "copy"))
    for name, text in FOREIGN:
        right = (folder / name).read_bytes()
        (folder / name).write_text(text)
        resealed(folder)
        with pytest.raises(CheckpointError, match="export the run again") as caught:
            Classifier.from_export(folder)
        assert "\n" not in str(caught.value)
        (folder / name).write_bytes(right)
    # A length that the model was not made for.
    resealed(folder, max_length=400)
    with pytest.raises(
        CheckpointError, match=r"ONNX Runtime cannot compute the export .*export the run again"
    ) as caught:
        Classifier.from_export(folder).logits(["good film " * 300, "bad"])
    assert "\n" not in str(caught.value)
    (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="truncated or changed"):
        Classifier.from_export(folder)
    resealed(folder)
    with pytest.raises(CheckpointError, match="cannot be read by ONNX Runtime"):
        Classifier.from_export(folder)
