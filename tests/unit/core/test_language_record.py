"""Records of language models: what was written comes back, and no reader takes one task for the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories import RunFactory, leakage
from language_records import language_record
from recurra.core.errors import CheckpointError
from recurra.core.record import (
    SCHEMA_VERSION,
    RunRecord,
    holds_record,
    read_any_record,
    read_language_record,
    read_record,
    write_record,
)


def test_a_record_comes_back_as_written(tmp_path: Path) -> None:
    record = language_record()
    path = write_record(tmp_path, record)
    found = read_language_record(tmp_path)
    assert found == record.model_copy(update={"content_hash": found.content_hash})
    assert read_any_record(path) == found
    assert (found.schema_version, found.task) == (SCHEMA_VERSION, "language modelling")
    assert holds_record(tmp_path, record.config_hash) and not holds_record(tmp_path, "another")
    assert found.metrics["test"].final.word_perplexity == record.metrics["test"].final.word_perplexity


def test_each_reader_refuses_the_other_task_in_one_line(tmp_path: Path) -> None:
    write_record(tmp_path, language_record())
    with pytest.raises(CheckpointError, match=r"a run of a language model, and a classifier is needed; .*evaluate"):
        read_record(tmp_path)
    rows = {"train": 40, "validation": 20, "test": 20}
    classifier = RunFactory(tmp_path / "runs", rows=rows).run("baseline", audits=[leakage()])
    assert isinstance(read_any_record(classifier), RunRecord)
    with pytest.raises(CheckpointError, match="a run of a classifier, and a language model is needed"):
        read_language_record(classifier)


def test_a_leaking_model_is_called_so_and_named_once() -> None:
    assert language_record().label == "crt-tiny"
    assert language_record(leaks=True).label == "crt-tiny (leaks)"
    assert language_record(leaks=True, preset="crt-tiny-leaks").label == "crt-tiny-leaks"
