"""Summaries as plain values, and tables for the terminal, the README and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.study.export_record import ExportRecord
from recurra.study.report import formatting as form
from recurra.study.report.aggregate import NO_QUESTIONS, Questions, summarise
from recurra.study.report.exported_rows import EXPORTS_CAPTION, export_rows
from recurra.study.report.runs import load_runs, uncollected

Plain = Mapping[str, Any]
Link = Callable[[Plain], str]


@uncollected()
def summarise_runs(
    runs: Sequence[Path],
    latency: Plain | None = None,
    *,
    failures: Mapping[str, str] | None = None,
    questions: Questions = NO_QUESTIONS,
    exports: Sequence[ExportRecord] = (),
) -> dict[str, Any]:
    """Summarises run folders into plain JSON values: what ``--json`` prints and every table is made from.

    Args:
        runs: Run folders. One without a readable record is listed under ``failed_runs``.
        latency: Content of the study's ``latency.json``, if there is one.
        failures: Reasons of failed runs that the caller knows, by run identifier.
        questions: Contrasts and published tables that the study names.
        exports: Records of exports of these runs.

    Returns:
        The fields of `recurra.study.report.summary.Summary`: ``tables`` (one for each combination of data, split
        protocol, training protocol and precision), ``machines``, ``failed_runs``, ``warnings``.
    """
    finished, failed = load_runs(runs, failures)
    return summarise(finished, latency, failed, questions=questions, exports=exports).plain()


def result_rows(table: Plain) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the results table, as text, one row a model.

    Args:
        table: One of the ``tables`` of `summarise_runs`.
    """
    split = table["headline_split"]
    headings = ["Model", "Seeds", "Accuracy", "95 % interval", "F1", "Loss", "Parameters", "Non-embedding", "MiB"]
    headings += ["FLOPs/token", *(f"ms, batch {batch}" for batch in table["batch_sizes"]), "Training", "Audits"]
    return headings, [_result_row(model, split, table["batch_sizes"]) for model in table["models"]]


def _result_row(model: Plain, split: str, batches: Sequence[int]) -> list[str]:
    score = model["scores"].get(split)
    failed = model["failed_groups"]
    return [
        model["label"],
        str(len(model["seeds"])),
        _estimate(score["accuracy"]) if score else form.NONE,
        _interval(score["accuracy"]) if score else form.NONE,
        _estimate(score["f1"]) if score else form.NONE,
        form.decimal(score["loss"], 3) if score else form.NONE,
        form.count(model["parameters"]),
        form.count(model["non_embedding_parameters"]),
        form.significant(model["file_size_mib"]),
        form.amount(model["flops_per_token"]),
        *(_latency(model["latency"].get(str(batch))) for batch in batches),
        form.duration(model["training_wall_s"]),
        f"FAILED: {', '.join(failed)}" if failed else "passed" if model["audited"] else "none run",
    ]


def _estimate(estimate: Plain) -> str:
    sd = estimate["sd"]
    return form.decimal(estimate["mean"]) + (f" ± {sd:.4f}" if sd else "")


def _interval(estimate: Plain) -> str:
    text = form.interval(estimate["low"], estimate["high"])
    return f"{text} ({estimate['basis']})" if text else form.NONE


def _accuracy(estimate: Plain) -> str:
    text = form.interval(estimate["low"], estimate["high"])
    return form.decimal(estimate["mean"]) + (f" ({text})" if text else "")


def _latency(timing: Plain | None) -> str:
    if timing is None:
        return form.NONE
    return f"{form.significant(timing['median_ms'])} / {form.significant(timing['p90_ms'])}"


def markdown_table(summary: Plain, *, part: str = "all", link: Link | None = None) -> str:
    """Markdown of a summary, or of one part of it.

    Args:
        summary: From `summarise_runs`.
        part: ``conclusion``, ``results``, ``costs``, ``splits``, ``contrasts``, ``tests``, ``published``, ``exports``,
            ``audits``, or ``all`` of them.
        link: Gives the address of a run's record (an entry of ``runs``); the seeds then link to the records.

    Raises:
        ConfigurationError: If there is no such part.
    """
    if part not in PARTS:
        raise ConfigurationError(unknown("part of a results table", part, PARTS))
    blocks = []
    for table in summary["tables"]:
        made = [block for name in (_MAKERS if part == "all" else (part,)) if (block := _MAKERS[name](table, link))]
        if made:
            blocks.append("\n\n".join([f"**{text(table['title'])}**", *made]))
    failed = [f"- {text(run['run_id'])}: {text(run['reason'])}" for run in summary["failed_runs"]]
    if failed and part in ("all", "results"):
        blocks.append("Runs that failed:\n\n" + "\n".join(failed))
    if blocks:
        return "\n\n".join(blocks) + "\n"
    return f"Nothing to show under '{part}' in this study.\n" if summary["tables"] else "No finished run.\n"


def text(value: str) -> str:
    """Makes a text safe inside a Markdown table: no pipes, tags or line breaks take effect."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return plain


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first ``left`` columns are aligned left, the others right."""
    rule = ["---" if index < left else "---:" for index in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))


def _conclusion(table: Plain, _link: Link | None) -> str:
    answers = [f"* {text(line['statement'])}" for line in table["contrasts"]]
    return "\n\n".join([text(table["conclusion"]), *(["\n".join(answers)] if answers else [])])


def _costs(table: Plain, _link: Link | None) -> str:
    headings = ["Model", "Accuracy a million parameters", "Accuracy a GFLOP a token", "On the Pareto front of"]
    rows = [
        [
            text(model["label"]),
            form.significant(model["accuracy_per_million_parameters"]),
            form.significant(model["accuracy_per_gflop"]),
            form.words([form.front_name(front) for front in model["fronts"]]) or form.NONE,
        ]
        for model in table["models"]
    ]
    caption = (
        "Ratios favour the small: guessing already earns much of any accuracy. On a Pareto front no other model is "
        "both cheaper and more accurate; fronts are of mean accuracies, whether or not a gap is supported."
    )
    return f"{grid(headings, rows)}\n\n{caption}"


def _contrasts(table: Plain, _link: Link | None) -> str:
    if not table["contrasts"]:
        return ""
    rows = []
    for line in table["contrasts"]:
        half = f" ± {line['half'] * 100:.1f}" if line["half"] is not None else ""
        rows.append(
            [
                text(line["name"]),
                text(f"{line['a']} − {line['b']}"),
                line["verdict"],
                form.points(line["gap"]).replace(" points", half),
                str(line["seeds"]),
                form.point_range(line["low"], line["high"]) if line["low"] is not None else form.NONE,
                form.p_value(line["p_holm"]),
                form.significant(line["odds_ratio"]),
            ]
        )
    headings = ["Contrast", "Models", "Verdict", "Gap in points ± 95 % over seeds", "Pairs of seeds"]
    headings += ["95 % over rows", "p (Holm)", "Odds ratio"]
    return grid(headings, rows, left=3)


def _results(table: Plain, link: Link | None) -> str:
    headings, rows = result_rows(table)
    rows = [[text(cell) for cell in row] for row in rows]
    if link is not None:
        for row, model in zip(rows, table["models"], strict=True):
            row[1] = ", ".join(f"[{run['seed']}]({link(run)})" for run in model["runs"])
    split = table["headline_split"]
    rows_in_split = {model["scores"][split]["rows"] for model in table["models"] if split in model["scores"]}
    counted = " or ".join(form.count(number) for number in sorted(rows_in_split))
    caption = (
        f"On the {text(split)} split ({counted} rows). Accuracy and F1: mean ± standard deviation over seeds; "
        "95 % interval over seeds (Student's t) or, with one seed or a model that the seed does not change, over "
        "examples (Wilson). Milliseconds a text: median / 90th percentile."
    )
    return f"{grid(headings, rows)}\n\n{caption}"


def _splits(table: Plain, _link: Link | None) -> str:
    splits = table["reported_splits"]
    if len(splits) < 2:
        return ""
    rows = []
    for model in table["models"]:
        scores = [model["scores"].get(split) for split in splits]
        cells = [_accuracy(score["accuracy"]) if score else form.NONE for score in scores]
        rows.append([text(model["label"]), *cells])
    return grid(["Accuracy (95 % interval)", *(text(split) for split in splits)], rows)


def _tests(table: Plain, _link: Link | None) -> str:
    if not table["tests"]:
        return ""
    rows = []
    for test in table["tests"]:
        tested = test["p_holm"] is not None
        seeds = "; ".join(
            f"{item['only_first']} : {item['only_second']}, p {form.p_value(item['p_holm'])}"
            for item in test["mcnemar"]
        )
        rows.append(
            [
                text(f"{test['first']} − {test['second']}"),
                text(test["statement"]) if tested else text(f"Not tested: {test['reason']}. {test['statement']}"),
                form.points(test["gap"]),
                form.point_range(test["low"], test["high"]) if tested else form.NONE,
                form.p_value(test["p_holm"]),
                form.significant(test["odds_ratio"]),
                seeds or form.NONE,
            ]
        )
    headings = [
        "Pair",
        "Finding",
        "Gap",
        "95 %, paired bootstrap",
        "p (Holm)",
        "Odds ratio",
        "McNemar a seed: only first : only second",
    ]
    return grid(headings, rows, left=2)


def _published(table: Plain, _link: Link | None) -> str:
    if not table["published"]:
        return ""
    rows = []
    split = table["headline_split"]
    for model in table["models"]:
        lines = [line for line in table["published"] if line["model"] == model["label"]]
        score = model["scores"].get(split)
        if lines and score:
            others = map(form.decimal, (score["f1"]["mean"], score["precision"], score["recall"]))
            ours = [text(model["label"]), "ours", text(table["protocol"]), _accuracy(score["accuracy"])]
            rows.append([*ours, form.NONE, form.NONE, form.NONE, *others])
        rows += [
            [
                text(model["label"]),
                f"published, {text(line['source'])}",
                line["protocol"],
                form.decimal(line["accuracy"]),
                form.NONE if line["difference"] is None else form.points(line["difference"]),
                form.yes_no(line["inside"]),
                text(line["differs"]) or "nothing known",
                *(form.decimal(line[key]) for key in ("f1", "precision", "recall")),
            ]
            for line in lines
        ]
    headings = ["Model", "Figures", "Split protocol", "Accuracy", "Ours − published", "In our 95 % interval"]
    return grid([*headings, "What differs", "F1", "Precision", "Recall"], rows, left=3)


def _audits(table: Plain, _link: Link | None) -> str:
    rows = [
        [
            f"**{line['status'].upper()}**" if line["status"] == "failed" else line["status"],
            text(line["name"]),
            text(line["summary"]),
            text(line["concerns"]),
        ]
        for line in table["audits"]
    ]
    return grid(["Audit", "Name", "Finding", "Concerns"], rows, left=4) if rows else "No audit was run."


def _exports(table: Plain, _link: Link | None) -> str:
    if not table["exports"]:
        return ""
    headings, rows = export_rows(table["exports"])
    return f"{grid(headings, [[text(cell) for cell in row] for row in rows], left=3)}\n\n{EXPORTS_CAPTION}"


def _advice(table: Plain, _link: Link | None) -> str:
    rows = [[text(item[key]) for key in ("priority", "choice", "why")] for item in table["advice"]]
    return grid(["What matters", "Choice", "Why"], rows, left=3) if rows else ""


_MAKERS: dict[str, Callable[[Plain, Link | None], str]] = {
    "conclusion": _conclusion,
    "results": _results,
    "costs": _costs,
    "splits": _splits,
    "contrasts": _contrasts,
    "tests": _tests,
    "published": _published,
    "exports": _exports,
    "advice": _advice,
    "audits": _audits,
}
PARTS = ("all", *_MAKERS)
