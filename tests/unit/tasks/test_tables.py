"""What a table for readers shows, and in which order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from factories import RunFactory, leakage
from recurra.tasks import tables
from rendered import summarise_folders


def test_a_note_that_became_a_failure_stands_before_the_other_notes(tmp_path: Path) -> None:
    notes = [leakage(kind=kind).model_copy(update={"status": "note"}) for kind in ("contained", "near")]
    (table,) = summarise_folders([RunFactory(tmp_path).run("linear", audits=notes)]).tables
    first, second = table.audits
    shown = tables.audits(replace(table, audits=[first, replace(second, status="failed")]))
    found = [(row["State"], row["Audit"]) for row in shown.rows]
    assert found == [("failed", "leakage.near.test"), ("note", "leakage.contained.test")]
    assert shown.classes == ["failed", "note"]
