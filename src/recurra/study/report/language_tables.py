"""Tables of a language study: for terminal, report and documents. What leaks is called so in every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recurra.core.errors import ConfigurationError, unknown
from recurra.core.language_record import FINAL_HEAD
from recurra.study.language_published import (
    PUBLISHED_CYCLES,
    PUBLISHED_EXITS,
    PUBLISHED_MODEL,
    PUBLISHED_REFERENCES,
    PUBLISHED_TEXT,
)
from recurra.study.report import formatting as form
from recurra.study.report.language_differences import is_supported
from recurra.study.report.tables import Link, Plain, grid, text

Rows = tuple[list[str], list[list[str]]]

RESULTS_CAPTION = (
    "Loss in nats a token of the final head; perplexity by word counts one end of line a line and compares with "
    "published WikiText figures, by token only with the same tokenizer. Blocks do not overlap, and every token is "
    "predicted. As trained: perplexity on validation without the token behind each block, which no position in it can "
    "read; an honest model hardly differs, one that leaks can read all the others."
)
DIFFERENCES_CAPTION = (
    "Loss of the second model less that of the first, nats a token of the final head, seed by seed; Student's t over "
    "seeds, p of the paired test corrected over the pairs by Holm. Another text could turn out differently."
)
LEAVING_CAPTION = (
    "Kept by `recurra exits RUN --keep`. Loss of decoding with everything that is filled in, on at most 16,384 tokens; "
    "wall-clock of decoding in FP32, batch by batch in turns with the full model."
)


def language_rows(table: Plain) -> Rows:
    """Headings and rows of the results: a row a model, what leaks last."""
    split = table["headline_split"]
    headings = ["Model", "Seeds", "Loss", "Perplexity a token", "a word", "Bits a byte", "Parameters", "FLOPs/token"]
    headings += ["As trained, a token / a word", "Steps", "Tokens/s", "Training", "Causality and other audits"]
    rows = []
    for model in table["models"]:
        score = model["scores"][split][FINAL_HEAD]
        rows.append(
            [
                model["label"],
                str(len(model["seeds"])),
                *_figures(score),
                form.count(model["parameters"]),
                form.amount(model["flops_per_token"]),
                " / ".join(_perplexity(model["as_trained"][key]) for key in ("token_perplexity", "word_perplexity")),
                form.count(model["steps"]),
                form.count(model["tokens_per_s"]),
                form.duration(model["training_wall_s"]),
                model["verdict"],
            ]
        )
    return headings, rows


def _figures(score: Mapping[str, Any]) -> list[str]:
    sd = f" ± {score['sd']:.4f}" if score["sd"] else ""
    return [
        f"{score['loss']:.4f}{sd}",
        _perplexity(score["token_perplexity"]),
        _perplexity(score["word_perplexity"]),
        form.decimal(score["bits_per_byte"], 3),
    ]


def _perplexity(value: float | None) -> str:
    if value is None:
        return form.NONE
    if value < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def difference_rows(table: Plain) -> Rows:
    """A row for each two models that do not leak."""
    headings = ["Models", "Seeds", "Difference", "95 % interval", "p, corrected", "What the seeds support"]
    rows = []
    for pair in table["differences"]:
        known = pair["low"] is not None
        verdict = "nothing: one seed"
        if known:
            verdict = f"{pair['first']} is better" if is_supported(pair["p_holm"]) else "no difference"
        rows.append(
            [
                f"{pair['first']}, {pair['second']}",
                str(len(pair["seeds"])),
                f"{pair['mean']:+.4f}",
                f"{pair['low']:+.4f} to {pair['high']:+.4f}" if known else form.NONE,
                form.p_value(pair["p_holm"]),
                verdict,
            ]
        )
    return headings, rows


def exit_rows(table: Plain) -> Rows:
    """A row for each head of each model, on every split; the published ones stand behind."""
    splits = list(table["models"][0]["scores"])
    headings = ["Model", "Head"]
    for split in splits:
        headings += [f"Loss, {split}", "Perplexity a token", "a word", "Bits a byte"]
    headings.append("Audits")
    rows = []
    for model in table["models"]:
        heads = list(model["scores"][splits[0]])
        if len(heads) > 1:
            for head in heads:
                cells = [cell for split in splits for cell in _figures(model["scores"][split][head])]
                rows.append([model["label"], head, *cells, "leaks" if model["leaks"] else model["verdict"]])
    blank = [form.NONE] * (4 * (len(splits) - 1))
    for line in PUBLISHED_EXITS if rows else ():
        name = FINAL_HEAD if line is PUBLISHED_EXITS[-1] else f"exit-{line.loop}"
        cells = [f"{line.loss:.4f}", _perplexity(line.perplexity), form.NONE, form.NONE]
        rows.append([f"published, {PUBLISHED_MODEL}, {PUBLISHED_TEXT}", name, *cells, *blank, "leaks"])
    return headings, rows


def leaving_rows(table: Plain) -> Rows:
    """A row for each way of leaving early that was kept of a run, and one for going all the way."""
    kept = [(model, exits) for model in table["models"] for exits in model["exits"]]
    sizes = sorted({timed["batch_size"] for _, exits in kept for one in exits["fixed"] for timed in one["timed"]})
    columns = [f"Times as fast, batch {size}" for size in sizes]
    headings = ["Model, seed", "Leaves", "Loss", "Loops a token", *columns]
    seeds = {run["run_id"]: run["seed"] for model in table["models"] for run in model["runs"]}
    rows = []
    for model, exits in kept:
        name = f"{model['label']}, {seeds[exits['run_id']]}"
        rows.append(
            [name, "nowhere", f"{exits['full_loss']:.4f}", f"{exits['num_recurrences']:.2f}", *("1.00" for _ in sizes)]
        )
        for one in [*exits["fixed"], *([exits["chosen"]] if exits["chosen"] else [])]:
            total = sum(one["taken"].values())
            loops = sum(int(number) * count for number, count in one["taken"].items()) / total
            speeds = {timed["batch_size"]: timed["full_ms"] / timed["exits_ms"] for timed in one["timed"]}
            cells = [f"{speeds[size]:.2f}" if size in speeds else form.NONE for size in sizes]
            rows.append([name, one["label"], f"{one['loss']:.4f}", f"{loops:.2f}", *cells])
    return headings, rows


def published_rows(table: Plain) -> Rows:
    """Ours beside what was published, with what is not the same; table 3 where the study varies cycles."""
    headings = ["Model", "Figures", "Text", "Loss", "Perplexity a word", "What differs", "Leaks"]
    split = table["headline_split"]
    varied = len({model["feed_forward"] for model in table["models"]} & set(PUBLISHED_CYCLES)) > 1
    rows = []
    for model in table["models"]:
        score = model["scores"][split][FINAL_HEAD]
        ours = [f"{score['loss']:.4f}", _perplexity(score["word_perplexity"]), form.NONE]
        rows.append([model["label"], "ours", f"{table['data']} {split}", *ours, "leaks" if model["leaks"] else "no"])
        if varied and model["feed_forward"] in PUBLISHED_CYCLES:
            published = [f"{PUBLISHED_CYCLES[model['feed_forward']]:.4f}", form.NONE, "size, text, training"]
            of_cycle = f"crt-deep at 3 loops, {model['feed_forward']}"
            of_cycle += "" if model["feed_forward"] == "linear" else " (leaks)"
            rows.append([of_cycle, "published, table 3", "WikiText-103 validation", *published, "published code leaks"])
    for reference in PUBLISHED_REFERENCES:
        cells = [form.NONE, _perplexity(reference.perplexity), f"size, tokenizer; {reference.note}"]
        rows.append([reference.model, "published", f"{reference.text} test", *cells, "no"])
    return headings, rows


def audit_rows(table: Plain) -> Rows:
    """A row an audit and model, the failed first."""
    rows = [
        [
            line["status"].upper() if line["status"] == "failed" else line["status"],
            *(line[key] for key in ("name", "summary", "concerns")),
        ]
        for line in table["audits"]
    ]
    return ["State", "Audit", "Finding", "Concerns"], rows


def language_markdown(summary: Plain, *, part: str = "all", link: Link | None = None) -> str:
    """Markdown of a language study, or of one part of it.

    Args:
        summary: `recurra.study.report.language_summary.LanguageSummary` as plain values.
        part: One of `LANGUAGE_PARTS`.
        link: Gives the address of a run's record; the seeds then link to the records.

    Raises:
        ConfigurationError: If there is no such part.
    """
    if part not in LANGUAGE_PARTS:
        raise ConfigurationError(unknown("part of a language study", part, LANGUAGE_PARTS))
    blocks = []
    for table in summary["tables"]:
        names = list(_MAKERS) if part == "all" else [part]
        made = [block for name in names if (block := _MAKERS[name](table, link))]
        if made:
            blocks.append("\n\n".join([f"**{text(table['title'])}**", *made]))
    failed = [f"- {text(run['run_id'])}: {text(run['reason'])}" for run in summary["failed_runs"]]
    if failed and part in ("all", "results"):
        blocks.append("Runs that failed:\n\n" + "\n".join(failed))
    return "\n\n".join(blocks) + "\n" if blocks else "No finished run.\n"


def _conclusion(table: Plain, _link: Link | None) -> str:
    notes = " ".join(table["notes"])
    return "\n\n".join(filter(None, [text(table["conclusion"]), text(notes)]))


def _results(table: Plain, link: Link | None) -> str:
    headings, rows = language_rows(table)
    rows = [[text(cell) for cell in row] for row in rows]
    if link is not None:
        for row, model in zip(rows, table["models"], strict=True):
            row[1] = ", ".join(f"[{run['seed']}]({link(run)})" for run in model["runs"])
    split = table["splits"][table["headline_split"]]
    counted = f"{split['tokens']:,} tokens, {split['words']:,} words, {split['bytes']:,} bytes"
    return f"{grid(headings, rows)}\n\nOn {text(table['headline_split'])} ({counted}). {RESULTS_CAPTION}"


def _of(make: Callable[[Plain], Rows], left: int, caption: str = "") -> Callable[[Plain, Link | None], str]:
    def block(table: Plain, _link: Link | None) -> str:
        headings, rows = make(table)
        drawn = grid(headings, [[text(cell) for cell in row] for row in rows], left=left) if rows else ""
        return f"{drawn}\n\n{caption}" if drawn and caption else drawn

    return block


_MAKERS: dict[str, Callable[[Plain, Link | None], str]] = {
    "conclusion": _conclusion,
    "results": _results,
    "differences": _of(difference_rows, 1, DIFFERENCES_CAPTION),
    "exits": _of(exit_rows, 2),
    "leaving": _of(leaving_rows, 2, LEAVING_CAPTION),
    "published": _of(published_rows, 3),
    "audits": _of(audit_rows, 4),
}
LANGUAGE_PARTS: Sequence[str] = ("all", *_MAKERS)
