"""What commands print, and what a study deserves as an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from recurra.cli.output import present_study, print_json, print_table
from recurra.deployment.export_record import ExportRequest
from recurra.study.export_plan import PlannedExport


def outcome(run_id: str, *, record: Any = None, error: str | None = None, exit_code: int = 0) -> Any:
    return SimpleNamespace(config=SimpleNamespace(run_id=run_id), record=record, error=error, exit_code=exit_code)


def study(
    *outcomes: Any,
    audits: tuple[str, ...] = (),
    exports: tuple[PlannedExport, ...] = (),
    timing_error: str | None = None,
    unmet: tuple[str, ...] = (),
) -> Any:
    failed = [item for item in outcomes if item.record is None]
    return SimpleNamespace(
        output=Path("out"),
        report=Path("out/report.html"),
        outcomes=list(outcomes),
        failed_runs=failed,
        failed_audits=list(audits),
        summary={"tables": []},
        exports=exports,
        timing_error=timing_error,
        failed_exports=[item for item in exports if item.state == "failed"],
        unmet_limits=list(unmet),
    )


def exit_code(result: Any) -> int:
    try:
        present_study(result, as_json=True)
    except typer.Exit as error:
        return error.exit_code
    return 0


GOOD = outcome("good", record=object())


def test_a_study_that_worked_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(study(GOOD)) == 0
    out, err = capsys.readouterr()
    places = {"output": "out", "report": "out/report.html"}
    assert json.loads(out) == {**places, "tables": [], "exports": [], "timing_error": None}
    assert err == ""


def test_one_failed_run_among_others_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    result = study(GOOD, outcome("bad", error="in use", exit_code=2), audits=("leakage",))
    assert exit_code(result) == 1
    assert capsys.readouterr().err == "error: bad: in use\n"


def test_if_all_runs_fail_alike_their_code_is_the_study_s(capsys: pytest.CaptureFixture[str]) -> None:
    both = [outcome(name, error="wrong", exit_code=2) for name in "ab"]
    assert exit_code(study(*both)) == 2
    assert exit_code(study(both[0], outcome("c", error="died", exit_code=1))) == 1
    capsys.readouterr()


def test_an_export_that_failed_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    request = ExportRequest(precision="fp16")
    failed = PlannedExport("good", request, Path("out/exports/good/safetensors-fp16"), "failed", "too wide")
    assert exit_code(study(GOOD, exports=(failed,), audits=("leakage",))) == 1
    out, err = capsys.readouterr()
    assert err == "error: good/safetensors-fp16: too wide\n"
    assert json.loads(out)["exports"][0]["reason"] == "too wide"


def test_tables_are_not_cut_and_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 90
    print_table("", [{"Name": "[bold]a[/bold]", "Value": long}])
    out = capsys.readouterr().out
    assert "[bold]a[/bold]" in out and long in out


def test_json_has_no_numbers_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"loss": float("nan")})


def test_limits_that_nothing_meets_are_a_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(study(GOOD, unmet=("no model here stays within 1 MiB; the nearest is linear",))) == 2
    assert capsys.readouterr().err == "error: no model here stays within 1 MiB; the nearest is linear\n"
    assert exit_code(study(GOOD, audits=("leakage",), unmet=("x",))) == 3
