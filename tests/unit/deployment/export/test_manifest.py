"""What an export says of itself is held against what lies there."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from exported import export_record
from factories import RunFactory
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.record import CodeRecord
from recurra.core.sealed import FileEntry, describe_file
from recurra.data.cleaning import CLEANINGS, FIRST
from recurra.deployment.engines.computation import compute_precision
from recurra.deployment.export.build import render_card
from recurra.deployment.export.formats import find_format, find_precision
from recurra.deployment.export.manifest import (
    ExportManifest,
    is_export,
    read_export,
    read_source_record,
    write_manifest,
)

FILES = {"model.safetensors": bytes(range(256)), "tokenizer.json": b'{"a": 1}', "README.md": b"# card\n"}


def manifest(folder: Path, **values: Any) -> ExportManifest:
    files = {path.name: describe_file(path) for path in folder.iterdir() if path.name != "export.json"}
    check = export_record("r", "fp16", rows=4, right=3, lost=1).check
    check = check.model_copy(update={"reference_accuracy": 0.75, "accuracy": 0.5})
    given: dict[str, Any] = {
        "run_id": "r", "record_hash": "0" * 64, "format": "safetensors", "precision": "fp16", "created": "2026-11-20",
        "code": CodeRecord(version="0.1.0"), "label_names": ["no", "yes"], "max_length": 24, "pad_token_id": 0,
        "cleaning": FIRST, "cleaning_steps": list(CLEANINGS[FIRST]), "files": files, "check": check,
    }  # fmt: skip
    return ExportManifest(**{**given, **values})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    folder = root / "export"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    shutil.copyfile(RunFactory(root).run("recurrent", run_id="r") / "record.json", folder / "run-record.json")
    write_manifest(folder, manifest(folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "export"))


def test_what_was_written_is_read_and_only_with_the_record_that_was_copied(folder: Path) -> None:
    assert is_export(folder) and not is_export(folder.parent)
    found = read_export(folder)
    assert set(found.files) == {*FILES, "run-record.json"}
    assert found.size_bytes == sum((folder / name).stat().st_size for name in found.files)
    assert found.check.lost_points == 25.0
    assert read_source_record(folder).run_id == "r"
    other = RunFactory(folder.parent / "other").run("baseline", run_id="b")
    shutil.copyfile(other / "record.json", folder / "run-record.json")
    with pytest.raises(CheckpointError, match=r"run-record\.json'"):
        read_source_record(folder)


def test_a_page_of_more_than_25_mib_says_so(made: Path) -> None:
    def said(form: str, precision: str, over: int) -> str:
        sizes = {"model.onnx": 25 * 2**20 - 1000, "ort.mjs": 1000 + over}
        files = {name: FileEntry(size_bytes=size, sha256="0" * 64) for name, size in sizes.items()}
        return manifest(made, format=form, precision=precision, files=files).describe_size()

    assert said("web", "fp32", 0) == said("web", "int8", 0) == said("onnx", "fp32", 2**30) == ""
    assert said("web", "int8", 1) == "size: the page has 25.00 MiB, more than 25; recurra-small in int8 stays below"
    assert said("web", "fp32", 2**20) == (
        "size: the page has 26.00 MiB, more than 25; --precision int8 makes it smaller, and recurra-small in int8 "
        "stays below"
    )


def test_the_card_of_a_graph_says_how_much_of_a_text_is_read(made: Path) -> None:
    record = read_source_record(made)
    for form, said in (("web", "and cut {} in both"), ("onnx", "cut them {} and pad")):
        for windows, cut in ((1, "at 24 tokens"), (3, "into up to 3 windows of 24 tokens")):
            card = render_card(
                record, manifest(made, format=form, precision="int8", windows=windows), num_recurrences=1
            )
            assert said.format(cut) in card


@given(data=st.data())
def test_no_bit_of_any_file_can_be_changed(made: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*sorted(FILES), "run-record.json", "export.json"]))
    path = made / name
    original = path.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] ^= 1 << data.draw(st.integers(0, 6))
    if name == "export.json":
        with contextlib.suppress(ValueError):
            assume(json.loads(original) != json.loads(bytes(changed)))  # more than white space was changed
    try:
        path.write_bytes(bytes(changed))
        with pytest.raises(CheckpointError) as caught:
            read_export(made)
    finally:
        path.write_bytes(original)
    assert "\n" not in str(caught.value) and str(made) in str(caught.value)


def change(folder: Path, **values: Any) -> None:
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


OUTSIDE = {"../made/secret": {"size_bytes": 1, "sha256": "0" * 64}}
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (
        lambda f: (f / "model.safetensors").write_bytes(FILES["model.safetensors"][:100]),
        "has 100 bytes instead of 256: truncated or changed; copy it or export the run again",
    ),
    "missing file": (lambda f: (f / "README.md").unlink(), "is missing: the export is incomplete"),
    "no manifest": (lambda f: (f / "export.json").unlink(), "is not an export: no export.json; give a folder of"),
    "changed figure": (lambda f: change(f, max_length=25), "was changed after it was written"),
    "unknown key": (lambda f: change(f, extra=1), "is not an export of ours: 'extra'"),
    "a file outside": (lambda f: change(f, files=OUTSIDE), "is not an export of ours: 'files"),
    "another cleaning": (
        lambda f: write_manifest(f, manifest(f, cleaning="recurra-9")),
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


@pytest.mark.parametrize(
    ("storage", "requested", "device", "imitates", "computed"),
    [
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
