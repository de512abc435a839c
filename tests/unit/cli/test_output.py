"""What commands print, and what a study deserves as an exit code."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from recurra.cli.output import present, present_study, print_json
from recurra.deployment.export_record import ExportRequest
from recurra.study.export_plan import PlannedExport
from recurra.tasks.tables import CommandResult, Table


def outcome(run_id: str, *, record: Any = None, error: str | None = None, exit_code: int = 0) -> Any:
    return SimpleNamespace(config=SimpleNamespace(run_id=run_id), record=record, error=error, exit_code=exit_code)


def study(*outcomes: Any, exports: tuple[PlannedExport, ...] = (), **values: Any) -> Any:
    failed_exports = [item for item in exports if item.state == "failed"]
    plain = {
        "output": Path("out"), "report": Path("out/report.html"), "summary": {"tables": []}, "timing_error": None,
        "failed_audits": [], "unmet_limits": [], "ships": "nine tenths of the rows", "commands": ["predict"],
    }  # fmt: skip
    failed_runs = [item for item in outcomes if item.record is None]
    known = {"outcomes": outcomes, "failed_runs": failed_runs, "exports": exports, "failed_exports": failed_exports}
    return SimpleNamespace(**{**plain, **known, **values})


GOOD = outcome("good", record=object())
BAD = outcome("bad", error="in use", exit_code=2)
UNMET = "no model here stays within 1 MiB; the nearest is linear"
TOO_WIDE = PlannedExport("good", ExportRequest(precision="fp16"), Path("out/fp16"), "failed", "too wide")
VERDICTS = {
    "worked": (study(GOOD), 0, ""),
    "an audit failed": (study(GOOD, failed_audits=("leakage",), unmet_limits=(UNMET,)), 3, "AUDIT FAILED: leakage\n"),
    "timing failed": (study(GOOD, timing_error="died"), 1, "error: died\n"),
    "one run failed": (study(GOOD, BAD, failed_audits=("leakage",)), 1, "error: bad: in use\n"),
    "all failed alike": (study(BAD), 2, "error: bad: in use\n"),
    "all failed": (study(BAD, outcome("c", error="d", exit_code=1)), 1, "error: bad: in use\nerror: c: d\n"),
    "an export failed": (
        study(GOOD, exports=(TOO_WIDE,), failed_audits=("leakage",)), 1, "error: good/safetensors-fp16: too wide\n",
    ),
    "limits not met": (study(GOOD, unmet_limits=(UNMET,)), 2, f"error: {UNMET}\n"),
}  # fmt: skip


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_study_is_one_json_document_and_has_the_code_it_deserves(
    verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, code, said = VERDICTS[verdict]
    with pytest.raises(typer.Exit) if code else contextlib.nullcontext() as left:
        present_study(result, as_json=True)
    assert (left.value.exit_code if left else 0) == code
    out, err = capsys.readouterr()
    assert err == said
    answer = json.loads(out)
    assert (answer["output"], answer["report"], answer["tables"]) == ("out", "out/report.html", [])
    assert answer["timing_error"] == result.timing_error
    assert (answer["ships"], answer["commands"]) == (result.ships, result.commands)
    assert [export["reason"] for export in answer["exports"]] == [export.reason for export in result.exports]


def test_json_has_no_numbers_that_json_lacks_and_can_be_read_from_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"loss": float("nan")})
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1", errors="backslashreplace"))
    print_json({"text": "naïve \U0001f600"})
    assert json.loads(written.getvalue()) == {"text": "naïve \U0001f600"}


@pytest.mark.parametrize("text", ["a [b] c", r"a \[/b] c", r"\[x^2\]", "[red]", ":smile:", "\\"])
def test_a_table_shows_texts_as_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    present(CommandResult({}, [Table("key", f"title {text}", [{f"heading {text}": f"cell {text}"}])]), as_json=False)
    shown = capsys.readouterr().out
    assert all(f"{place} {text}" in shown for place in ("title", "heading", "cell"))
