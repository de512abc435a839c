"""``recurra export`` through the real command line: killed, without space, tampered with, and in use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interrupted import EXPORT_MOMENTS, ONNX_MOMENTS, export, in_a_process, one_fast
from recurra import Classifier
from recurra.cli.main import main
from recurra.core.record import read_record
from recurra.deployment.export.manifest import read_export
from reviews import review_rows, train_linear, train_tiny, write_csv


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("exported"), "max_epochs=3", "learning_rate=5e-3", "batch_size=8")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "fp16"
    assert main(["export", str(run), "--precision", "fp16", "--output", str(folder), "--quiet"]) == 0
    return folder


def test_the_answer_names_everything(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_csv(tmp_path / "t.csv", [(text,) for text, _ in review_rows(30, seed=4)], ("body",))
    output = tmp_path / "deep" / "out"
    command = ["export", str(run), "--output", str(output), "--precision", "bf16", "--rows", str(rows)]
    command += ["--text-column", "body"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"output": str(output), **read_export(output).plain()}
    assert (answer["check"]["source"], answer["check"]["rows"]) == ("the file t.csv", 30)
    assert main([*command, "--overwrite"]) == 0
    out, err = capsys.readouterr()
    assert str(output.name) in out and "writing safetensors in bf16" in err


def test_a_linear_export_is_predicted_without_torch_and_its_graph_without_scikit_learn(tmp_path: Path) -> None:
    run = train_linear(tmp_path)
    for form in ("safetensors", "onnx"):
        assert main(["export", str(run), "--format", form, "--output", str(tmp_path / form), "--quiet"]) == 0
    texts = [text for text, _ in review_rows(20, seed=4)]
    program = """
import contextlib, io, json, sys
from recurra.cli.main import main
for folder in sys.argv[1:4]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["predict", folder, *sys.argv[4:], "--json"])
    heavy = {"torch", "transformers", "datasets", "onnx"}
    heavy |= {"sklearn", "scipy", "pyarrow", "pandas"} if folder.endswith("onnx") else set()
    assert code == 0 and not heavy & set(sys.modules), (folder, code, heavy & set(sys.modules))
    print(json.dumps(json.loads(out.getvalue())["predictions"]))
"""
    wanted = Classifier.from_run(run).predict_proba(texts)
    folders = [tmp_path / "onnx", tmp_path / "safetensors", run]
    command = [sys.executable, "-W", "error", "-c", program, *map(str, folders), *texts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        rows = json.loads(line)
        assert [list(row["probabilities"].values()) for row in rows] == pytest.approx(wanted, abs=1e-6)
        assert {row["label"] for row in rows} == {"negative", "positive"}


def test_an_export_predicts_and_evaluates_and_says_how(
    exported: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = review_rows(40, seed=5)
    found: dict[Path, list[dict[str, Any]]] = {}
    for folder in (run, exported):
        assert main(["predict", str(folder), *(text for text, _ in rows), "--json", "--quiet"]) == 0
        answer = json.loads(capsys.readouterr().out)
        found[folder] = answer["predictions"]
    assert answer["computation"]["storage_precision"] == "fp16"
    assert answer["computation"]["compute_precision"] in {"fp32", "fp16"}
    assert [row["label"] for row in found[exported]] == [row["label"] for row in found[run]]
    source, output = write_csv(tmp_path / "in.csv", rows), tmp_path / "p.csv"
    assert main(["evaluate", str(exported), "--data", str(source), "--output", str(output), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["metrics"]["rows"] == 40 and answer["computation"]["storage_precision"] == "fp16"
    assert answer["run_id"] == read_record(run).run_id
    assert main(["evaluate", str(exported)]) == 0
    assert "weights stored in fp16, computed in fp" in capsys.readouterr().out
    assert main(["predict", str(exported), "--input", str(source), "--output", str(output)]) == 0
    assert "weights stored in fp16, computed in fp" in capsys.readouterr().err


def test_rows_of_the_demo_corpus_are_taken_where_the_runs_are_gone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = run.parent / "reviews.csv"
    hidden = data.rename(data.with_suffix(".hidden"))
    try:
        assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    finally:
        hidden.rename(data)
    out, err = capsys.readouterr()
    assert "checked on the embedded demo corpus" in out
    assert "not checked on the run's own rows: " in err and "reviews.csv" in err
    assert "labels are not known" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


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
