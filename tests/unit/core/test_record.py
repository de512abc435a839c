"""Records come back as written, or the reason is one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from committed import committed
from factories import RunFactory, leakage
from language_records import language_record
from recurra.core.errors import CheckpointError
from recurra.core.record import (
    RECORDS,
    SCHEMA_VERSION,
    holds_record,
    read_any_record,
    read_language_record,
    read_record,
    write_record,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {"train": 40, "validation": 20, "test": 20}
    return RunFactory(tmp_path_factory.mktemp("runs"), rows=rows).run("baseline", audits=[leakage()])


@pytest.fixture
def values(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "record.json").read_text(encoding="utf-8"))
    return found


def put(folder: Path, text: str) -> Path:
    (folder / "record.json").write_text(text, encoding="utf-8")
    return folder


def test_a_record_comes_back_as_written(run: Path, tmp_path: Path) -> None:
    record = read_record(run)
    assert read_record(write_record(tmp_path, record)) == record
    assert record.schema_version == SCHEMA_VERSION
    changed = record.model_copy(update={"seed": 7})
    assert read_record(write_record(tmp_path, changed)).content_hash != record.content_hash
    assert read_record(run / "record.json") == record
    assert [audit.name for audit in record.failed_audits()] == ["leakage.contained.test"]
    # The hash is that of everything else in the file.
    lines = (run / "record.json").read_text(encoding="utf-8").splitlines(keepends=True)
    rest = "".join(line for line in lines if not line.startswith(' "content_hash"'))
    assert len(rest) < sum(map(len, lines)) and hashlib.sha256(rest.encode()).hexdigest() == record.content_hash


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '{"run_id": 3}', '{"wall_s": NaN}', '{"task": 3}'])
def test_a_damaged_record_is_one_clear_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_record(put(tmp_path, text))
    assert "restore it, or delete it to run again" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda values: values["metrics"]["test"].update(acuracy=1.0), "'metrics.test.acuracy'"),
        *((lambda values, name=name: values["data"]["splits"].pop(name), f"names the split '{name}' but does not descr")
          for name in ("train", "validation", "test")),
    ],
)  # fmt: skip
def test_unknown_keys_and_splits_that_are_not_described_are_refused(
    change: Any, said: str, values: dict[str, Any], tmp_path: Path
) -> None:
    change(values)
    with pytest.raises(CheckpointError, match=said):
        read_record(put(tmp_path, json.dumps(values)))


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a figure": lambda values: values["metrics"]["test"].update(accuracy=0.99),
    "an audit": lambda values: values.update(audits=[]),
    "the hash": lambda values: values.update(content_hash="0" * 64),
    "no hash": lambda values: values.update(content_hash=None),
    "the hash left out": lambda values: values.pop("content_hash"),
    "an older schema": lambda values: values.update(schema_version=1),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_record_edited_by_hand_is_refused_in_one_line(edit: str, values: dict[str, Any], tmp_path: Path) -> None:
    before = values["config_hash"]
    EDITS[edit](values)
    folder = put(tmp_path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
    for read in (read_record, lambda folder: holds_record(folder, before)):
        with pytest.raises(CheckpointError, match="was changed after it was written") as caught:
            read(folder)
        assert "\n" not in str(caught.value) and "delete it to run again" in str(caught.value)


def test_other_white_space_is_no_edit_and_the_first_schema_is_read(
    run: Path, values: dict[str, Any], tmp_path: Path
) -> None:
    folder = put(tmp_path, json.dumps(values, indent=4))
    assert read_record(folder) == read_record(run)
    assert holds_record(folder, values["config_hash"])
    # One of the first schema has no hash.
    for key in ("content_hash", "wall_s"):
        del values[key]
    folder = put(tmp_path, json.dumps({**values, "schema_version": 1}, indent=1))
    record = read_record(folder)
    assert (record.schema_version, record.content_hash, record.wall_s) == (1, None, None)
    assert record.metrics == read_record(run).metrics
    assert holds_record(folder, record.config_hash)


def test_a_record_of_an_unknown_task_asks_for_an_upgrade(run: Path, tmp_path: Path) -> None:
    before, task = read_record(run), 'wei"rd é'
    # With a hash that fits, as the version that knows the task has written it.
    write_record(tmp_path, before.model_copy(update={"task": task}))
    for read in (read_any_record, read_record, lambda folder: holds_record(folder, before.config_hash)):
        with pytest.raises(CheckpointError) as caught:
            read(tmp_path)
        assert str(caught.value) == (
            f"'{tmp_path / 'record.json'}' is a record of the task '{task}', which this version does not know "
            f"(known: {', '.join(sorted(RECORDS))}); upgrade recurra"
        )


def test_every_committed_record_is_read_and_of_any_schema_written_in_the_newest(tmp_path: Path) -> None:
    first = {}
    for path in committed():
        record = read_any_record(path)
        assert record.run_id == path.parent.name
        first.setdefault((record.schema_version, record.task), (path, record))
    # Of every schema there was, of classifiers and, since there are any, of language models.
    classifiers = {(version, "classification") for version in range(1, SCHEMA_VERSION + 1)}
    assert first.keys() >= classifiers | {(3, "language modelling")}
    for (version, _), (path, old) in first.items():
        new = read_any_record(write_record(tmp_path, old))
        assert (old.schema_version, new.schema_version) == (version, SCHEMA_VERSION) and new.content_hash
        same = {"schema_version": 0, "content_hash": None}
        assert new.model_copy(update=same) == old.model_copy(update=same)
        assert holds_record(tmp_path, old.config_hash) and holds_record(path, old.config_hash)


@pytest.mark.parametrize("version", [0, "1", 1.5, None, True, SCHEMA_VERSION + 1, 10**30])
def test_a_schema_that_never_was_is_refused_in_a_line(version: object, values: dict[str, Any], tmp_path: Path) -> None:
    del values["content_hash"]
    put(tmp_path, json.dumps({**values, "schema_version": version}))
    with pytest.raises(CheckpointError) as caught:
        read_any_record(tmp_path)
    assert "\n" not in str(caught.value)
    # Only what a later version wrote is helped by one.
    assert ("upgrade recurra" in str(caught.value)) == (type(version) is int and version > SCHEMA_VERSION)


def test_a_matrix_of_many_labels_is_written_as_its_cells(run: Path) -> None:
    record = read_record(run)
    labels = 300
    matrix = [[0] * labels for _ in range(labels)]
    matrix[7][7], matrix[7][299], matrix[0][1] = 5, 2, 1
    metrics = record.metrics["test"].model_copy(update={"confusion_matrix": matrix})
    written = metrics.model_dump(mode="json")
    assert written["confusion_matrix"] == {"labels": labels, "cells": [[0, 1, 1], [7, 7, 5], [7, 299, 2]]}
    assert type(metrics).model_validate(written) == metrics
    few = record.metrics["test"]
    assert few.model_dump(mode="json")["confusion_matrix"] == few.confusion_matrix
    outside, many, halves = {"labels": 2, "cells": [[0, 2, 1]]}, {"labels": 10**9, "cells": []}, {"cells": []}
    odd = [{"labels": 2, "cells": [cell]} for cell in (1, None, [0], ["a", 0, 1], [0.5, 0, 1])]
    for wrong in (outside, many, halves, {"labels": 2, "cells": None}, *odd):
        with pytest.raises(ValueError, match=r"lies outside|at most|needs the number|no cell of a matrix"):
            type(metrics).model_validate(written | {"confusion_matrix": wrong})


def test_a_record_of_a_language_model_comes_back_and_each_reader_refuses_the_other(run: Path, tmp_path: Path) -> None:
    record = language_record()
    path = write_record(tmp_path, record)
    found = read_any_record(path)
    assert read_language_record(tmp_path) == found == record.model_copy(update={"content_hash": found.content_hash})
    assert (found.schema_version, found.task) == (SCHEMA_VERSION, "language modelling")
    assert holds_record(tmp_path, record.config_hash) and not holds_record(tmp_path, "another")
    with pytest.raises(CheckpointError, match=r"a run of a language model, but a classifier is needed; .*evaluate"):
        read_record(tmp_path)
    with pytest.raises(CheckpointError, match="a run of a classifier, but a language model is needed"):
        read_language_record(run)


def test_a_leaking_model_is_called_so_and_named_once() -> None:
    assert language_record().label == "crt-tiny"
    assert language_record(leaks=True).label == "crt-tiny (leaks)"
    assert language_record(leaks=True, preset="crt-tiny-leaks").label == "crt-tiny-leaks"
