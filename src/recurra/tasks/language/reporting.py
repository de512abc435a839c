"""Reporting of language models: tables and charts (CRT-Deep). Every place that shows a leaking model says so."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recurra.core import terminal as form
from recurra.core.configuration import content_hash
from recurra.core.exits_record import ExitsRecord
from recurra.core.record import (
    FINAL_HEAD,
    LanguageEpochRecord,
    LanguageMetricsRecord,
    LanguageRunRecord,
    is_of_causality,
)
from recurra.core.record_parts import TRAINING_SPLIT
from recurra.core.terminal import decimal, words
from recurra.models.names import LANGUAGE_PRESETS
from recurra.tasks import drawing
from recurra.tasks.drawing import Chart, Line, Point
from recurra.tasks.loaded_runs import LoadedRun, TableKey
from recurra.tasks.measures import Measure, Score, estimates
from recurra.tasks.reporting import Reporting, beside_best
from recurra.tasks.summary import ModelSummary, TableSummary
from recurra.tasks.tables import NONE, Cells, Table, audits, contrasts, early_exits, results, tests

# CRT-Deep, table 2: loss and perplexity of the head after each loop; table 3: validation loss at three loops by what a
# cycle is made of, which leaks if that is a convolution. And perplexities by word of models that do not leak.
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_bytes())


@dataclass(frozen=True, kw_only=True)
class LanguageModelSummary(ModelSummary):
    """A language model over its seeds.

    Attributes:
        scores: By split; figures of a head that is not the final one end with its name: ``loss:exit-2``.
        leaks: Whether the causality audit failed for any seed; its label says so.
        reach_tokens: How far ahead a prediction reads, at most.
        feed_forward: What a cycle is made of; none of a model without cycles.
    """

    scores: dict[str, Score]
    leaks: bool
    reach_tokens: int | None
    verdict: str
    tokens_per_s: float
    steps: int
    feed_forward: str | None
    history: list[list[LanguageEpochRecord]]


def perplexity(value: float) -> str:
    """A perplexity: more decimals where it is small."""
    if value < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def _measure(key: str, heading: str, unit: str = "", **more: Any) -> Measure:
    return Measure(key, heading, unit, higher_is_better=False, read=_read(key, FINAL_HEAD), **more)


def _read(key: str, head: str) -> Callable[[LanguageMetricsRecord], float | None]:
    return lambda metrics: getattr(metrics.heads[head], key)


LOSS = _measure(
    "loss", "Loss", "nats a token", limits=(0.0, None), ahead="above (worse than)", behind="below (better than)"
)
# Over seeds they are means of their logarithms, as losses are.
TOKEN_PERPLEXITY, WORD_PERPLEXITY = (
    _measure(f"{unit}_perplexity", f"Perplexity a {unit}", write=perplexity, average=statistics.geometric_mean)
    for unit in ("token", "word")
)
BITS_PER_BYTE = _measure("bits_per_byte", "Bits a byte", digits=3, average=statistics.fmean)
FIGURES = (LOSS, TOKEN_PERPLEXITY, WORD_PERPLEXITY, BITS_PER_BYTE)


def of_head(measure: Measure, head: str) -> Measure:
    """A measure of the final head, or the same of another one."""
    if head == FINAL_HEAD:
        return measure
    return replace(measure, key=f"{measure.key}:{head}", read=_read(measure.key, head))


def heads_of(model: LanguageModelSummary, split: str) -> list[str]:
    """The heads of a model that were evaluated on a split, in their order."""
    keys = [key.partition(":") for key in model.scores[split].figures]
    return [head or FINAL_HEAD for key, _, head in keys if key == LOSS.key]


_RESULTS = (
    "Loss is that of the final head, in nats a token. Perplexity a word counts each end of line as a word and compares "
    "with published WikiText figures; perplexity a token compares only with the same tokenizer. Blocks do not overlap, "
    "and every token is predicted."
)
_EARLY_EXIT = (
    "Recorded by `recurra exits RUN --keep`. Loss is that of decoding, including filled-in states, on at most 16,384 "
    "tokens. Times are wall-clock of decoding in FP32; each batch is timed in turn with the full model."
)


def results_table(table: TableSummary, figures: Sequence[Measure]) -> Table:
    """Scores and costs of each language model."""

    def more(model: LanguageModelSummary) -> Cells:
        seen = LOSS.of(model, TRAINING_SPLIT)
        unseen = LOSS.mean(model, table.headline_split)
        return {
            "Loss minus loss on train": NONE if seen is None else f"{unseen - seen.mean:+.3f}",
            "Steps": form.count(model.steps),
            "Tokens/s": form.count(model.tokens_per_s),
        }

    split = table.splits[table.headline_split]
    counted = f"{split['tokens']:,} tokens, {split['words']:,} words, {split['bytes']:,} bytes"
    note = f"On {table.headline_split} ({counted}). {_RESULTS}"
    table_of_results = results(table, figures, note=note, more=more, audits=lambda model: model.verdict)
    return replace(table_of_results, brief=("Model", "Loss", "Perplexity a word", "Parameters", "Training", "Audits"))


def heads_table(table: TableSummary) -> Table:
    """Every head of each model that has several, on every split; published ones beside the first."""
    splits = list(table.models[0].scores)  # The first is the one that the published figures are of.
    rows: list[Cells] = []
    for model in table.models:
        heads = heads_of(model, splits[0])
        for head in heads if len(heads) > 1 else ():
            cells = {"Model": model.label, "Head": head}
            for split in splits:
                for figure in FIGURES:
                    value = of_head(figure, head).of(model, split)
                    cells[f"{figure.heading}, {split}"] = figure.text(value)
            rows.append(cells | {"Audits": "leaks" if model.leaks else model.verdict})
    for head, values in PUBLISHED["exits"].items() if rows else ():
        figures = {
            f"{figure.heading}, {splits[0]}": figure.value(value)
            for figure, value in zip((LOSS, TOKEN_PERPLEXITY), values, strict=True)
        }
        model = "published, crt-deep (leaks), WikiText-103 validation, epoch 10"
        rows.append({"Model": model, "Head": head, **figures, "Audits": "leaks"})
    return Table("exits", "By head", rows, page_only=False)


def published_table(table: TableSummary) -> Table:
    """Our figures, and published ones beside them with the conditions that differ."""
    split, cycles = table.headline_split, PUBLISHED["cycles"]
    several_cycles = len({model.feed_forward for model in table.models} & set(cycles)) > 1
    rows: list[Cells] = []
    for model in table.models:
        rows.append(
            {
                "Model": model.label,
                "Figures": "ours",
                "Text": f"{table.data} {split}",
                "Loss": LOSS.value(LOSS.mean(model, split)),
                "Perplexity a word": WORD_PERPLEXITY.text(WORD_PERPLEXITY.of(model, split)),
                "What differs": NONE,
                "Leaks": "leaks" if model.leaks else "no",
            }
        )
        feed_forward = model.feed_forward
        if several_cycles and feed_forward in cycles:
            rows.append(
                {
                    "Model": f"crt-deep at 3 loops, {feed_forward}{'' if feed_forward == 'linear' else ' (leaks)'}",
                    "Figures": "published, table 3",
                    "Text": "WikiText-103 validation",
                    "Loss": LOSS.value(cycles[feed_forward]),
                    "What differs": "size, text, training",
                    "Leaks": "published code leaks",
                }
            )
    rows += [{"Figures": "published", "Leaks": "no", **published} for published in PUBLISHED["honest"]]
    return Table("published", "Published beside ours", rows)


def shares_by_loops(exits: Sequence[ExitsRecord]) -> dict[int, float]:
    """Share of tokens by the recurrences that they take under the chosen rule, mean over seeds that have one."""
    counts = [record.chosen.taken for record in exits if record.chosen is not None]
    numbers = sorted({number for taken in counts for number in taken})
    return {
        number: statistics.fmean(taken.get(number, 0) / sum(taken.values()) for taken in counts) for number in numbers
    }


def loops_taken(models: Sequence[LanguageModelSummary], key: str) -> Chart:
    """The share of tokens by the loops that they take."""
    lines = []
    for model in models:
        rules = {exits.chosen.label for exits in model.exits if exits.chosen is not None}
        rule = rules.pop() if len(rules) == 1 else "a rule chosen for each seed"
        points = [Point(number, share) for number, share in shares_by_loops(model.exits).items()]
        lines.append(Line(drawing.labelled(model.label, f": {rule}"), model.color, points))
    last = max(exits.num_recurrences for model in models for exits in model.exits)
    return drawing.line_chart(
        "exits", f"Loops taken on {models[0].exits[0].split}", lines,
        drawing.whole_axis(1, last, "loops that a token takes"),
        drawing.linear_axis([0.0, 1.0], "share of tokens", lambda value: f"{100 * value:.0f} %", limits=(0.0, 1.0)),
        key=key, caption="Under the rule that was chosen on validation; mean over seeds.",
    )  # fmt: skip


def loss_by_loop(models: Sequence[LanguageModelSummary], split: str, key: str) -> Chart:
    """The loss of every head in the order of loops; the final head stands at the last loop."""
    names = max((heads_of(model, split) for model in models), key=len)
    last = len(names) - 1

    def loop(head: str) -> int:
        return names.index(head) if head in names and head != FINAL_HEAD else last

    lines = [
        Line(
            model.label,
            model.color,
            [Point(loop(head), of_head(LOSS, head).mean(model, split)) for head in heads_of(model, split)],
        )
        for model in models
    ]
    x = drawing.whole_axis(0, last, "head after loop", lambda value: names[round(value)].removeprefix("exit-"))
    losses = [point.y for line in lines for point in line.points]
    y = drawing.linear_axis(losses, "loss in nats a token", lambda value: decimal(value, 2), limits=(0.0, None))
    caption = "The last head is the final one."
    return drawing.line_chart("by-loop", f"Loss by loop on {split}", lines, x, y, key=key, caption=caption)


def verdict(failed: Sequence[str], reach: int | None, *, audited: bool) -> str:
    """The result of a model's audits, in a few words."""
    if reach is not None:
        # A perplexity that is too good is a sign of the leak, and no other failure.
        others = [name for name in failed if not name.startswith(("causality.", "perplexity."))]
        return f"LEAKS: reads {reach} tokens ahead{f'; also failed: {words(others)}' if others else ''}"
    if failed:
        return f"FAILED: {words(list(failed))}"
    return "passed" if audited else "none run"


def cycle(record: LanguageRunRecord) -> str | None:
    """What a cycle is made of, by the shape in the record; older records have only a preset and its changes."""
    changes = record.config.get("model_overrides", {})
    _, preset = LANGUAGE_PRESETS.get(changes.get("preset", record.config.get("model")), ("", {}))
    return (record.shape or {**preset, **changes}).get("feed_forward")


def _best(honest: Sequence[LanguageModelSummary], split: str) -> str:
    word, of_token = (measure.of(honest[0], split) for measure in (WORD_PERPLEXITY, TOKEN_PERPLEXITY))
    by_word = "" if word is None else f", {word.mean:,.1f} a word"
    token = "too large for a number" if of_token is None else f"{of_token.mean:,.1f}"
    lead = f"Best on {split}" if len(honest) > 1 else f"On {split}"
    return f"{lead}: {honest[0].label}, perplexity {token} a token{by_word}."


def _leak(model: LanguageModelSummary, split: str) -> str:
    by_unit = {"word": WORD_PERPLEXITY.of(model, split), "token": TOKEN_PERPLEXITY.of(model, split)}
    shown = next((f" shows {value.mean:,.2f} a {unit} because it" for unit, value in by_unit.items() if value), "")
    return f"{model.label}{shown} leaks: its predictions read up to {model.reach_tokens} tokens ahead."


class LanguageReporting(Reporting):
    """The next token of running text: nats a token, paired by seeds; leaking models are not compared."""

    measures = (LOSS,)
    protocol = "{}"

    def alarms(self, tables: Sequence[Any]) -> list[tuple[str, list[tuple[str, str]]]]:
        leaking = [(model.label, table.title) for table in tables for model in table.models if model.leaks]
        heading = "A model reads the future: do not quote its figures without the word leaks"
        return [(heading, leaking)] if leaking else []

    def figures(self, table: TableSummary) -> Sequence[Measure]:
        """The measures of the final head, and the same of every exit."""
        scores = [(model, split) for model in table.models for split in model.scores]
        exits = dict.fromkeys(head for score in scores for head in heads_of(*score) if head != FINAL_HEAD)
        return [*FIGURES, *(of_head(figure, head) for head in exits for figure in FIGURES)]

    def tables(self, table: TableSummary) -> Sequence[Table]:
        findings = audits(table)
        return (
            results_table(table, [measure for measure in self.figures(table) if ":" not in measure.key]),
            contrasts(table),
            tests(table),
            heads_table(table),
            early_exits(table, _EARLY_EXIT),
            published_table(table),
            *([findings] if findings.rows else []),
        )

    def splits(self, table: TableSummary) -> Table:
        rows = [
            {"Split": name, **{part.capitalize(): form.count(split[part]) for part in ("tokens", "words", "bytes")}}
            for name, split in table.splits.items()
        ]
        return Table("data", "Splits", rows)

    def part(self, run: LoadedRun) -> str:
        """Runs share a table if part of the text and way of reading it are the same, too."""
        known = ("name", "mode", "context")
        return content_hash({name: value for name, value in run.data_settings.items() if name not in known})

    def key_text(self, key: TableKey) -> str:
        return "-".join((key.fingerprint, key.protocol, key.part, key.training, key.precision))

    def variant(self, run: LoadedRun) -> str:
        share = run.data_settings.get("fraction", 1)
        return "" if share == 1 else f"{share:.4g} of train"

    def label(self, run: LoadedRun) -> str:
        """Name of the model, which says so if it leaks."""
        return run.record_of(LanguageRunRecord).label

    def order(self, runs: Sequence[LoadedRun], headline: str) -> tuple[Any, ...]:
        """Models that may be quoted first, then those that leak; each group by quality."""
        records = [run.record_of(LanguageRunRecord) for run in runs]
        losses = [record.metrics[headline].final.loss for record in records if headline in record.metrics]
        return (any(record.leaks for record in records), statistics.fmean(losses) if losses else float("inf"))

    def barred(self, runs: Sequence[LoadedRun], split: str, measure: Measure) -> str:
        return "its figures leak" if any(run.record_of(LanguageRunRecord).leaks for run in runs) else ""

    def score(self, split: str, metrics: Sequence[LanguageMetricsRecord], measure: Measure) -> Score:
        parts = [of_head(figure, head) for head in metrics[0].heads for figure in FIGURES]
        return Score(split, metrics[0].tokens, estimates(parts, metrics))

    def model(self, common: ModelSummary, runs: Sequence[LoadedRun], headline: str) -> LanguageModelSummary:
        records = [run.record_of(LanguageRunRecord) for run in runs]
        leaking = [record for record in records if record.leaks]
        reach = [
            int(audit.value)
            for record in leaking
            for audit in record.failed_audits()
            if is_of_causality(audit.name) and audit.value is not None
        ]
        reach_tokens, failed = max(reach, default=None), sorted(common.failed_audits)
        return LanguageModelSummary(
            **{**vars(common), "failed_audits": failed},
            leaks=bool(leaking),
            reach_tokens=reach_tokens,
            verdict=verdict(failed, reach_tokens, audited=bool(records[0].audits)),
            tokens_per_s=statistics.fmean(record.training.tokens_per_s for record in records),
            steps=records[0].training.steps,
            feed_forward=cycle(records[0]),
            history=[record.training.history for record in records],
        )

    def split_lines(self, run: LoadedRun) -> dict[str, dict[str, int]]:
        return {
            name: {"tokens": split.tokens, "words": split.words, "bytes": split.bytes}
            for name, split in run.record_of(LanguageRunRecord).data.splits.items()
        }

    def conclude(self, table: Any) -> str:
        """On the models that may be quoted, best first, and on those that leak."""
        split, honest = table.headline_split, [model for model in table.models if not model.leaks]
        sentences = []
        if honest:
            sentences += [_best(honest, split), *beside_best(honest[0], honest, table)]
            if len(honest) > 1 and any(len(model.seeds) == 1 for model in honest):
                sentences.append("With one seed, another training could turn out differently.")
        sentences += [_leak(model, split) for model in table.models if model.leaks]
        return " ".join(sentences)

    def charts(self, table: TableSummary, key: str) -> list[Chart]:
        charts = []
        trained = [
            (model.label, model.color, model.history)
            for model in table.models
            if max(map(len, model.history), default=0) > 1
        ]
        if trained:
            charts.append(
                drawing.chart_by_epoch(
                    "loss", "Objective by epoch", trained, ["validation_loss", "train_loss"], f"{key}-curve",
                    y_title="objective in nats a token", digits=2,
                    caption="Solid: validation, dashed: train; the weighted mean of all heads' losses, over seeds.",
                )
            )  # fmt: skip
        by_head = [model for model in table.models if len(heads_of(model, table.headline_split)) > 1]
        if by_head:
            charts.append(loss_by_loop(by_head, table.headline_split, f"{key}-loss"))
        with_rule = [model for model in table.models if any(exits.chosen for exits in model.exits)]
        if with_rule:
            charts.append(loops_taken(with_rule, f"{key}-taken"))
        return charts


REPORTING = LanguageReporting()
