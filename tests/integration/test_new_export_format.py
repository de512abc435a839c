"""A format that the package does not know is known everywhere once it is registered: `npz_format` touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from npz_format import WEIGHTS, LogitsOnly, NpzFormat
from recurra import Classifier
from recurra.cli.main import main
from recurra.core.errors import AuditError, CheckpointError, ConfigurationError
from recurra.core.record import read_record
from recurra.deployment.export import ExportOptions, export_run
from recurra.deployment.export.formats.interface import FP32, StoredPrecision
from recurra.deployment.export.formats.registry import FORMATS, register
from recurra.deployment.export.manifest import needs_torch, read_export
from recurra.deployment.export_record import ExportRequest, export_folder, load_export_records
from recurra.deployment.serving.application import describe
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import open_models
from recurra.study.exporting import Datasets, Reference, make_export
from reviews import train_tiny

TEXTS = ["the plot of number 7 was great", "a dull film", "", "nothing"]


@pytest.fixture
def _registered() -> Iterator[None]:
    register(NpzFormat())
    yield
    del FORMATS[NpzFormat.name]


pytestmark = pytest.mark.usefixtures("_registered")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("plain"), "max_epochs=3", "learning_rate=5e-3", "batch_size=8")


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("leaving"), "model.exits=[1]")


def test_it_is_exported_opened_and_described(run: Path, tmp_path: Path) -> None:
    manifest = export_run(run, tmp_path / "out", ExportOptions("npz-test"))
    assert (manifest.format, manifest.precision, manifest.exits) == ("npz-test", "fp32", None)
    assert manifest.weights_bytes == (tmp_path / "out" / WEIGHTS).stat().st_size
    assert read_export(tmp_path / "out") == manifest and needs_torch(tmp_path / "out")
    classifier = Classifier.open(tmp_path / "out")
    assert isinstance(classifier.engine, LogitsOnly) and classifier.depth is None
    wanted = Classifier.from_run(run).predict_proba(TEXTS)
    np.testing.assert_allclose(classifier.predict_proba(TEXTS), wanted, rtol=1e-4)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Read `weights.npz` with numpy" in card and "as npz-test, weights stored in\nfp32" in card
    (tmp_path / "out" / WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated or changed"):
        Classifier.open(tmp_path / "out")


def test_without_it_the_export_is_one_clear_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_run(run, tmp_path / "out", ExportOptions("npz-test"))
    known = FORMATS.pop(NpzFormat.name)
    try:
        assert main(["predict", str(tmp_path / "out"), "a text"]) == 2
    finally:
        FORMATS[NpzFormat.name] = known
    err = capsys.readouterr().err
    assert "'format': Value error, unknown export format 'npz-test'; allowed: safetensors, onnx, web" in err
    assert err.count("\n") == 1


def test_its_own_precision_is_judged_by_its_own_bounds(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export_run(run, tmp_path / "out", ExportOptions("npz-test", "coarse")).check.label_agreement >= 0.5
    with pytest.raises(ConfigurationError, match="fp32, coarse; int8 is written as onnx"):
        export_run(run, tmp_path / "other", ExportOptions("npz-test", "int8"))
    strict = StoredPrecision("coarse", 12, least_agreement=1.0, logit_tolerance=0.0)
    monkeypatch.setattr(NpzFormat, "precisions", (FP32, strict))
    with pytest.raises(AuditError, match="the coarse export d"):
        export_run(run, tmp_path / "other", ExportOptions("npz-test", "coarse"))
    assert not (tmp_path / "other").exists()


def test_exits_stay_behind_and_cannot_be_asked_for(
    leaving: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(leaving), "--format", "npz-test", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--agreement", "0.9"]) == 2
    assert "exports as npz-test carry no exits; leave --agreement out" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "exports as npz-test carry no exits: texts will take all recurrences" in capsys.readouterr().err
    assert read_export(tmp_path / "out").exits is None


def test_a_model_that_it_does_not_take_is_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny(tmp_path, "model.pooling=max")
    capsys.readouterr()
    assert main(["export", str(run), "--format", "npz-test", "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: 'pooling' of the model is 'max'; npz-test takes 'first' alone\n"


def test_a_study_makes_and_records_it(run: Path, tmp_path: Path) -> None:
    request = ExportRequest(format="npz-test", precision="coarse")
    record = make_export(Reference.of(run, Datasets(None)), request, tmp_path)
    folder = export_folder(tmp_path, read_record(run).run_id, request)
    assert folder.name == "npz-test-coarse" and record.weights_bytes == (folder / WEIGHTS).stat().st_size
    (kept,) = load_export_records(tmp_path)
    assert kept.model_copy(update={"content_hash": ""}) == record
    assert record.computation.storage_precision == "coarse" and set(record.splits) == {"validation", "test"}


def test_the_server_serves_and_documents_it(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", ExportOptions("npz-test"))
    (model,) = open_models({"ours": tmp_path / "out"})
    assert model.description.kind == "npz-test" and model.description.exits is None
    schemas = describe(ServerLimits(), ["ours"], with_key=False)["components"]["schemas"]
    schema = schemas["ModelDescription"]["properties"]["kind"]
    assert schema["enum"] == ["run", "safetensors", "onnx", "web", "npz-test"] and schema["type"] == "string"


PROGRAM = """
import json, sys
from npz_format import NpzFormat
from recurra.deployment.export.formats.registry import register
register(NpzFormat())
from recurra.cli.main import main
sys.exit(max(main(arguments) for arguments in json.loads(sys.argv[1])))
"""


@pytest.mark.slow
def test_the_command_line_lists_writes_and_evaluates_it(run: Path, tmp_path: Path) -> None:
    """In a process of its own, whose help texts have not been made yet."""
    output = str(tmp_path / "out")
    commands = [
        ["export", "--help"],
        ["export", str(run), "--format", "npz-test", "--output", output, "--quiet"],
        ["evaluate", output, "--json"],
    ]
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(commands)],
        capture_output=True, text=True, check=False, timeout=200,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "One of: safetensors, onnx, web, npz-test." in done.stdout and "npz-test: fp32, coarse" in done.stdout
    evaluated = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert evaluated["computation"]["storage_precision"] == "fp32"
    assert evaluated["metrics"]["accuracy"] == read_record(run).metrics["test"].accuracy
