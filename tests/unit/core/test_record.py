"""Records come back as written, or the reason is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from factories import RunFactory, leakage
from recurra.core.errors import CheckpointError
from recurra.core.record import SCHEMA_VERSION, read_record, write_record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {"train": 40, "validation": 20, "test": 20}
    return RunFactory(tmp_path_factory.mktemp("runs"), rows=rows).run("baseline", audits=[leakage()])


def test_a_record_comes_back_as_written(run: Path, tmp_path: Path) -> None:
    record = read_record(run)
    assert read_record(write_record(tmp_path, record)) == record
    assert read_record(run / "record.json") == record
    assert [audit.name for audit in record.failed_audits()] == ["leakage.contained.test"]


def damaged(run: Path, folder: Path, text: str) -> Path:
    (folder / "record.json").write_text(text, encoding="utf-8")
    return folder


def test_a_missing_record_says_how_to_finish_the_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is missing: not a finished run; .*start the same command again"):
        read_record(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '"text"', '{"run_id": 3}'])
def test_a_damaged_record_is_one_clear_line(text: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_record(damaged(run, tmp_path, text))
    assert "run it again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_of_a_later_version_asks_for_an_upgrade(run: Path, tmp_path: Path) -> None:
    values = json.loads((run / "record.json").read_text(encoding="utf-8"))
    text = json.dumps({**values, "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(CheckpointError, match=f"record schema {SCHEMA_VERSION + 1}.*upgrade recurra"):
        read_record(damaged(run, tmp_path, text))


def test_an_unknown_key_is_refused(run: Path, tmp_path: Path) -> None:
    values = json.loads((run / "record.json").read_text(encoding="utf-8"))
    values["metrics"]["test"]["acuracy"] = 1.0
    with pytest.raises(CheckpointError, match=r"'metrics.test.acuracy'"):
        read_record(damaged(run, tmp_path, json.dumps(values)))
