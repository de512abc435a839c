"""The page of claims: each has a verdict, a place and a published figure, and rests on records."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest
from docs.site.claims import Claim, Claims, Figure
from docs.site.results import _Studies, render_results_markdown

from recurra.core.errors import ConfigurationError
from recurra.tasks.summary import Summary

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "results" / "claims.md"
STATED = Claims.load(PAGE.with_suffix(".yaml"))
VERDICTS = get_args(Claim.model_fields["verdict"].annotation)
STUDIES = _Studies(ROOT / "results")
NAMED = [pytest.param(claim, id=f"{claim.where}: {claim.claim}") for claim in STATED.claims]


@cache
def read(study: str) -> Summary:
    return STUDIES.read(study)


def contrasts(claim: Claim) -> list:
    asked = [figure for figure in claim.figures.values() if figure.contrast]
    tables = [[table for table in read(figure.study).tables if figure.table in table.title] for figure in asked]
    return [
        line
        for figure, (table,) in zip(asked, tables, strict=True)
        for line in table.contrasts
        if line.name == figure.contrast
    ]


@pytest.mark.parametrize("claim", NAMED)
def test_a_claim_has_a_place_a_published_figure_and_a_verdict_with_its_reason(claim: Claim) -> None:
    assert claim.where.startswith(("Guo, ", "CRT, "))
    assert claim.claim.endswith(".") and claim.verdict in VERDICTS and claim.why
    assert claim.published == "none" or re.search(r"\d", claim.published)
    assert claim.study is None or (ROOT / "configs" / "studies" / f"{claim.study}.yaml").is_file()


@pytest.mark.parametrize("claim", NAMED)
def test_a_verdict_rests_on_records_and_every_figure_is_used(claim: Claim) -> None:
    benches = re.findall(r"results/(bench-[a-z-]+\.json)", claim.ours)
    assert claim.figures or benches or claim.verdict == "not tested"
    named = {name for text in (claim.ours, claim.why) for _, name, _, _ in Formatter().parse(text) if name}
    assert named == set(claim.figures)
    for figure in claim.figures.values():
        assert re.search(r"\d", figure.read(read(figure.study))[0])
    # No figure of ours that may change stands in a text by hand, but those of a benchmark, which are its record's.
    by_hand = re.findall(r"\d+\.\d+", f"{claim.ours} {claim.why}".replace("0.13 ms", ""))
    measured = set()
    for record in (json.loads((ROOT / "results" / name).read_text()) for name in benches):
        values = [line[key] for line in record.get("measures", ()) for key in ("ours", "other", "result")]
        values += [line["ms"] for line in record.get("paths", ()) if "ms" in line]
        measured |= {f"{value:{form}}" for value in values for form in (".2f", ".3g")}
    assert set(by_hand) <= measured


@pytest.mark.parametrize("claim", [case for case in NAMED if case.values[0].verdict in ("holds", "does not hold")])
def test_a_difference_is_called_only_where_the_seeds_support_it(claim: Claim) -> None:
    for line in contrasts(claim):
        level = line.half is not None and line.gap - line.half > -0.01
        assert line.verdict == "distinguishable" or (
            claim.verdict == "holds" and "competitive" in claim.claim and level
        )


def test_the_page_is_what_the_records_say_and_short() -> None:
    assert render_results_markdown(ROOT / "results", [PAGE], check=True) == []
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.split()) < 2600
    for address in re.findall(r"\]\(([^)#\s]+)\)", text):
        assert (PAGE.parent / address).exists(), address


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "not in the title of one table of 'domains'"),
        ({"table": "natural protocol · 0.2", "contrast": "sharing"}, "unknown contrast of a claim 'sharing'"),
        ({"table": "natural protocol · 0.2", "model": "recurent", "measure": "accuracy"}, "did you mean 'recurrent'"),
        ({"table": "natural protocol · 0.2", "model": "recurrent", "measure": "acuracy"}, "did you mean 'accuracy'"),
        (
            {"table": "natural protocol · 0.2", "model": "recurrent", "export": "fp16"},
            "unknown export of a claim 'fp16'",
        ),
    ],
)
def test_a_figure_that_no_record_has_is_named(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Figure.parse({"study": "domains", **values}).read(read("domains"))
