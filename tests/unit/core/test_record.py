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


def put_in(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda values: values.update(changes)


CHANGED, NEWER = "was changed after it was written.*delete it to run again", f"reads up to {SCHEMA_VERSION}; upgrade re"
EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a figure": (lambda values: values["metrics"]["test"].update(accuracy=0.99), CHANGED),
    "an audit": (put_in(audits=[]), CHANGED),
    "the hash": (put_in(content_hash="0" * 64), CHANGED),
    "no hash": (put_in(content_hash=None), CHANGED),
    "the hash left out": (lambda values: values.pop("content_hash"), CHANGED),
    "an older schema": (put_in(schema_version=1), CHANGED),
    "an unknown key": (lambda values: values["metrics"]["test"].update(acuracy=1.0), "'metrics.test.acuracy'"),
    **{
        f"no {name}": (
            lambda values, name=name: values["data"]["splits"].pop(name), f"names the split '{name}' but does not descr"
        )
        for name in ("train", "validation", "test")
    },
    **{
        f"schema {version!r}": (put_in(schema_version=version, content_hash=None), "ours: 'schema_version'")
        for version in (0, "1", 1.5, None, True)
    },
    "the next schema": (put_in(schema_version=SCHEMA_VERSION + 1, content_hash=None), NEWER),
    "a far schema": (put_in(schema_version=10**30), NEWER),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_record_edited_by_hand_is_refused_in_one_line(edit: str, values: dict[str, Any], tmp_path: Path) -> None:
    change, said = EDITS[edit]
    change(values)
    folder = put(tmp_path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
    for read in (read_record, read_any_record):
        with pytest.raises(CheckpointError, match=said) as caught:
            read(folder)
        assert "\n" not in str(caught.value)


def test_other_white_space_is_no_edit_and_the_first_schema_is_read(
    run: Path, values: dict[str, Any], tmp_path: Path
) -> None:
    folder = put(tmp_path, json.dumps(values, indent=4))
    assert read_record(folder) == read_record(run)
    assert read_any_record(folder).config_hash == values["config_hash"]
    # One of the first schema has no hash.
    for key in ("content_hash", "wall_s"):
        del values[key]
    folder = put(tmp_path, json.dumps({**values, "schema_version": 1}, indent=1))
    record = read_record(folder)
    assert (record.schema_version, record.content_hash, record.wall_s) == (1, None, None)
    assert record.metrics == read_record(run).metrics
    assert read_any_record(folder) == record


def test_a_record_of_an_unknown_task_asks_for_an_upgrade(run: Path, tmp_path: Path) -> None:
    before, task = read_record(run), 'wei"rd é'
    # With a hash that fits, as the version that knows the task has written it.
    write_record(tmp_path, before.model_copy(update={"task": task}))
    for read in (read_any_record, read_record):
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
        first.setdefault((record.schema_version, record.task), record)
    # Of every schema there was, of classifiers and, since there are any, of language models.
    classifiers = {(version, "classification") for version in range(1, SCHEMA_VERSION + 1)}
    assert first.keys() >= classifiers | {(3, "language modelling")}
    for (version, _), old in first.items():
        new = read_any_record(write_record(tmp_path, old))
        assert (old.schema_version, new.schema_version) == (version, SCHEMA_VERSION) and new.content_hash
        same = {"schema_version": 0, "content_hash": None}
        assert new.model_copy(update=same) == old.model_copy(update=same)


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
    with pytest.raises(CheckpointError, match=r"a run of a language model, but a classifier is needed; .*evaluate"):
        read_record(tmp_path)
    with pytest.raises(CheckpointError, match="a run of a classifier, but a language model is needed"):
        read_language_record(run)
    # A leaking one is called so, once.
    assert language_record(leaks=True, preset="crt-tiny-leaks").label == "crt-tiny-leaks"
