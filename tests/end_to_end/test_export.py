"""``recurra export`` through the real command line: killed, without space, tampered with, and in use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interrupted import EXPORT_MOMENTS, ONNX_MOMENTS, export, in_a_process, one_fast
from recurra import Classifier
from recurra.cli.main import main
from recurra.core.record import read_record
from recurra.deployment.export.manifest import read_export
from reviews import Command, review_rows, write_csv


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "fp16"
    assert main(["export", str(run), "--precision", "fp16", "--output", str(folder), "--quiet"]) == 0
    return folder


def test_the_answer_names_everything(run: Path, tmp_path: Path, command: Command) -> None:
    rows = write_csv(tmp_path / "t.csv", [(text,) for text, _ in review_rows(30, seed=4)], ("body",))
    output = tmp_path / "deep" / "out"
    words = ["export", run, "--output", output, "--precision", "bf16", "--rows", rows, "--text-column", "body"]
    answer = command(*words, "--json").json
    assert answer == {"output": str(output), **read_export(output).plain()}
    assert (answer["check"]["source"], answer["check"]["rows"]) == ("the file t.csv", 30)
    out, err = command(*words, "--overwrite")
    assert str(output.name) in out and "writing safetensors in bf16" in err


def test_a_linear_model_is_predicted_without_torch_and_a_graph_without_scikit_learn(
    linear_run: Path, onnx_exports: dict[str, Path], tmp_path: Path
) -> None:
    linear = {form: tmp_path / form for form in ("onnx", "safetensors")}
    for form, folder in linear.items():
        assert main(["export", str(linear_run), "--format", form, "--output", str(folder), "--quiet"]) == 0
    texts = [text for text, _ in review_rows(20, seed=4)]
    program = """
import contextlib, io, json, sys
from recurra.cli.main import main
for folder in sys.argv[1:5]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["predict", folder, *sys.argv[5:], "--json"])
    heavy = {"torch", "transformers", "datasets", "onnx"}
    heavy |= {"sklearn", "scipy", "pyarrow", "pandas"} if folder in sys.argv[1:3] else set()
    assert code == 0 and not heavy & set(sys.modules), (folder, code, heavy & set(sys.modules))
    print(json.dumps(json.loads(out.getvalue())["predictions"]))
"""
    folders = [onnx_exports["int8"], linear["onnx"], linear["safetensors"], linear_run]
    started = [sys.executable, "-W", "error", "-c", program, *map(str, folders), *texts]
    done = subprocess.run(started, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for folder, line in zip(folders, done.stdout.splitlines(), strict=True):
        rows = json.loads(line)
        wanted = Classifier.open(folder).predict_proba(texts)
        assert np.array([list(row["probabilities"].values()) for row in rows]) == pytest.approx(wanted, abs=1e-6)
        assert {row["label"] for row in rows} == {"negative", "positive"}


def test_an_export_predicts_and_evaluates_and_says_how(
    exported: Path, run: Path, tmp_path: Path, command: Command
) -> None:
    rows = review_rows(40, seed=5)
    found: dict[Path, list[dict[str, Any]]] = {}
    for folder in (run, exported):
        answer = command("predict", folder, *(text for text, _ in rows), "--json", "--quiet").json
        found[folder] = answer["predictions"]
    assert answer["computation"]["storage_precision"] == "fp16"
    assert answer["computation"]["compute_precision"] in {"fp32", "fp16"}
    assert [row["label"] for row in found[exported]] == [row["label"] for row in found[run]]
    source, output = write_csv(tmp_path / "in.csv", rows), tmp_path / "p.csv"
    answer = command("evaluate", exported, "--data", source, "--output", output, "--json").json
    assert answer["metrics"]["rows"] == 40 and answer["computation"]["storage_precision"] == "fp16"
    assert answer["run_id"] == read_record(run).run_id
    assert "weights stored in fp16, computed in fp" in command("evaluate", exported).out
    said = command("predict", exported, "--input", source, "--output", output).err
    assert "weights stored in fp16, computed in fp" in said


@pytest.mark.parametrize("moment", one_fast([*EXPORT_MOMENTS, *ONNX_MOMENTS]))
def test_killed_at_any_moment_there_is_the_old_export_or_none(
    moment: str, run: Path, exported: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    replacing = moment == "exchange"
    if replacing:
        shutil.copytree(exported, output)
    options = {"precision": "bf16", "overwrite": replacing}
    if moment in ONNX_MOMENTS:
        options |= {"format": "onnx", "precision": "int8"}
    assert in_a_process(export, run, output, options, moment) == -9
    if replacing:
        assert read_export(output).precision == "fp16"
    else:
        assert not output.exists()
    # The same command again: nothing of the first is left.
    assert in_a_process(export, run, output, options, "") == 0
    assert read_export(output).precision == options["precision"]
    assert list(tmp_path.iterdir()) == [output]
