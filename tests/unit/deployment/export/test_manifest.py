"""What an export says of itself is held against what lies there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import RunFactory
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.record import CodeRecord
from recurra.core.sealed import describe_file
from recurra.data.cleaning import CLEANINGS, FIRST
from recurra.deployment.engines.computation import Computation, compute_precision
from recurra.deployment.export.formats import find_format, find_precision
from recurra.deployment.export.manifest import (
    CheckRecord,
    ExportManifest,
    is_export,
    read_export,
    read_source_record,
    write_manifest,
)

HOW = Computation(engine="torch", storage_precision="fp16", compute_precision="fp32", device="cpu")
FILES = {"model.safetensors": bytes(range(256)), "tokenizer.json": b'{"a": 1}', "README.md": b"# card\n"}


def manifest(folder: Path, **values: Any) -> ExportManifest:
    return ExportManifest(
        **{
            "run_id": "r",
            "record_hash": "0" * 64,
            "format": "safetensors",
            "precision": "fp16",
            "created": "2026-11-20T12:00:00+00:00",
            "code": CodeRecord(version="0.1.0"),
            "label_names": ["no", "yes"],
            "max_length": 24,
            "pad_token_id": 0,
            "cleaning": FIRST,
            "cleaning_steps": list(CLEANINGS[FIRST]),
            "files": {path.name: describe_file(path) for path in folder.iterdir() if path.name != "export.json"},
            "check": CheckRecord(
                source="here",
                rows=2,
                label_agreement=1.0,
                largest_logit_difference=0.5,
                largest_logit=3.0,
                reference=HOW,
                computation=HOW,
                reference_accuracy=0.75,
                accuracy=0.5,
            ),
            **values,
        }
    )


def make(folder: Path) -> Path:
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    source = RunFactory(folder.parent / "made").run("recurrent", run_id="r")
    shutil.copyfile(source / "record.json", folder / "run-record.json")
    write_manifest(folder, manifest(folder))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "export")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "export"))


def test_what_was_written_is_read(folder: Path) -> None:
    assert is_export(folder) and not is_export(folder.parent)
    found = read_export(folder)
    assert set(found.files) == {*FILES, "run-record.json"}
    assert found.size_bytes == sum((folder / name).stat().st_size for name in found.files)
    assert found.check.lost_points == 25.0
    assert read_source_record(folder).run_id == "r"


@given(data=st.data())
def test_no_bit_of_any_file_can_be_changed(made: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*sorted(FILES), "run-record.json", "export.json"]))
    path = made / name
    original = path.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] ^= 1 << data.draw(st.integers(0, 6))
    try:
        path.write_bytes(bytes(changed))
        if name == "export.json" and _same_values(original, bytes(changed)):
            return
        with pytest.raises(CheckpointError) as caught:
            read_export(made)
    finally:
        path.write_bytes(original)
    assert "\n" not in str(caught.value) and str(made) in str(caught.value)


def _same_values(first: bytes, second: bytes) -> bool:
    """Whether only white space was changed."""
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False


def change(folder: Path, **values: Any) -> None:
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def _outside(folder: Path) -> None:
    values = json.loads((folder / "export.json").read_text())
    change(folder, files={**values["files"], "../made/secret": {"size_bytes": 1, "sha256": "0" * 64}})


def _other_cleaning(folder: Path) -> None:
    write_manifest(folder, manifest(folder, cleaning="recurra-9"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (_cut, "has 100 bytes instead of 256: truncated or changed; copy it or export the run again"),
    "missing file": (lambda f: (f / "README.md").unlink(), "is missing: the export is incomplete"),
    "no manifest": (lambda f: (f / "export.json").unlink(), "is not an export: no export.json; give a folder of"),
    "changed figure": (lambda f: change(f, max_length=25), "was changed after it was written"),
    "unknown key": (lambda f: change(f, extra=1), "is not an export of ours: 'extra'"),
    "a file outside": (_outside, "is not an export of ours: 'files"),
    "another cleaning": (
        _other_cleaning,
        "needs texts cleaned by 'recurra-9', this version has recurra-1",
    ),
    "a pickle": (lambda f: (f / "model.pkl").touch(), "holds 'model.pkl', a pickle, which can run code when it is"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_export_is_one_clear_line(name: str, folder: Path) -> None:
    damage, said = DAMAGE[name]
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        read_export(folder)
    assert said in str(caught.value) and "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_the_copied_record_must_be_the_one_that_was_copied(folder: Path) -> None:
    other = RunFactory(folder.parent / "other").run("baseline", run_id="b")
    shutil.copyfile(other / "record.json", folder / "run-record.json")
    with pytest.raises(CheckpointError, match=r"run-record\.json'"):
        read_source_record(folder)


@pytest.mark.parametrize(
    ("storage", "requested", "device", "imitates", "computed"),
    [
        ("fp32", None, "cpu", False, "fp32"),
        ("bf16", None, "cpu", False, "bf16"),
        ("fp16", None, "cpu", False, "fp32"),
        ("fp16", "bf16", "cpu", False, "bf16"),
        ("fp16", None, "cuda", False, "fp16"),
        ("fp16", "fp32", "cuda", False, "fp32"),
        ("bf16", None, "cpu", True, "fp32"),
        ("bf16", "bf16", "cpu", True, "bf16"),
    ],
)
def test_half_precision_is_computed_where_it_is_fast(
    storage: str, requested: str | None, device: str, imitates: bool, computed: str
) -> None:
    assert compute_precision(storage, requested, device, imitates_bf16=imitates) == computed


def test_a_format_that_is_not_there_is_refused_and_said_where_it_is() -> None:
    assert find_precision("onnx", "int8").most_lost_points == 0.5
    assert find_format("safetensors").needs_torch and not find_format("onnx").needs_torch
    for name, precision, said in (
        ("onxx", "fp32", r"unknown export format 'onxx' \(did you mean 'onnx'\?\); allowed: safetensors, onnx, web"),
        ("safetensors", "int8", "allowed: fp32, bf16, fp16; int8 is written as onnx or web"),
        ("onnx", "int4", "unknown precision of onnx exports 'int4'.*allowed: fp32, int8$"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            find_precision(name, precision)
