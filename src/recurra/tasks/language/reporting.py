"""What a report is told of language models, and their charts (CRT-Deep, figures 2 and 3)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import CheckpointError
from recurra.core.exits_record import ExitsRecord, read_exits
from recurra.core.record import (
    FINAL_HEAD,
    HeadRecord,
    LanguageMetricsRecord,
    LanguageRunRecord,
    is_of_causality,
)
from recurra.core.terminal import decimal, words
from recurra.models.names import LANGUAGE_PRESETS
from recurra.tasks import drawing
from recurra.tasks.drawing import BOTTOM, LEFT, RIGHT, TOP, Axis, Chart, LegendEntry, Line, Point, Scale
from recurra.tasks.language.tables import (
    BITS_PER_BYTE,
    LOSS,
    TOKEN_PERPLEXITY,
    WORD_PERPLEXITY,
    LanguageModelSummary,
    LanguageTable,
    early_exit_table,
    early_exits,
    figures_of_heads,
    heads_of,
    heads_table,
    of_head,
    published_table,
    results_table,
    splits_table,
)
from recurra.tasks.loaded_runs import LoadedRun, TableKey, TableRuns
from recurra.tasks.measures import Basis, Estimate, Measure, Score, over_seeds
from recurra.tasks.questions import Questions
from recurra.tasks.reporting import Records, Reporting, beside_best
from recurra.tasks.summary import ModelSummary, TableSummary
from recurra.tasks.tables import Table, audits, contrasts, tests


def language_charts(table: LanguageTable, key: str) -> list[Chart]:
    """All charts of a table; those for which there is nothing to draw are left out."""
    charts = []
    trained = [
        (model.label, color, model.history)
        for color, model in enumerate(table.models)
        if max(map(len, model.history), default=0) > 1
    ]
    if trained:
        charts.append(
            drawing.chart_by_epoch(
                "loss", "Objective by epoch", trained, ["validation_loss", "train_loss"], f"{key}-curve",
                y_title="objective in nats a token", y_text=lambda value: decimal(value, 2),
                caption="Solid: validation, dashed: train. The weighted mean of all heads' losses; means over seeds.",
            )
        )  # fmt: skip
    by_head = [model for model in table.models if len(heads_of(model, table.headline_split)) > 1]
    if by_head:
        charts.append(loss_by_loop(by_head, table.headline_split, f"{key}-loss"))
    with_rule = [model for model in table.models if any(exits.chosen for exits in model.exits)]
    if with_rule:
        charts.append(loops_taken(with_rule, f"{key}-taken"))
    return charts


def loss_by_loop(models: Sequence[LanguageModelSummary], split: str, key: str) -> Chart:
    """The loss of every head in the order of loops; the final head stands at the last loop."""
    names = max((heads_of(model, split) for model in models), key=len)

    def loop(name: str) -> int:
        return names.index(name) if name in names and name != FINAL_HEAD else len(names) - 1

    lines = [
        Line(
            model.label,
            color,
            [Point(loop(head), of_head(LOSS, head).mean(model, split)) for head in heads_of(model, split)],
        )
        for color, model in enumerate(models)
    ]
    ticks = tuple(map(float, range(len(names))))
    x_scale = Scale(-0.4, len(names) - 0.6, LEFT, RIGHT, ticks)
    y_scale = drawing.linear_scale([point.y for line in lines for point in line.points], BOTTOM, TOP, floor=0.0)
    x = Axis(x_scale, "head after loop", lambda value: names[round(value)].removeprefix("exit-"))
    y = Axis(y_scale, "loss in nats a token", lambda value: decimal(value, 2))
    return drawing.line_chart(
        "by-loop", f"Loss by loop on {split}", lines, x, y, key=key, caption="The last head is the final one."
    )


def shares_by_loops(exits: Sequence[ExitsRecord]) -> dict[int, float]:
    """Share of tokens by the recurrences that they take under the chosen rule, mean over seeds that have one."""
    counts = [record.chosen.taken for record in exits if record.chosen is not None]
    numbers = sorted({number for taken in counts for number in taken})
    return {
        number: statistics.fmean(taken.get(number, 0) / sum(taken.values()) for taken in counts) for number in numbers
    }


def loops_taken(models: Sequence[LanguageModelSummary], key: str) -> Chart:
    """The share of tokens by the loops that they take."""
    last = max(exits.num_recurrences for model in models for exits in model.exits)
    x = Scale(0.4, last + 0.6, LEFT, RIGHT, tuple(map(float, range(1, last + 1))))
    y = drawing.linear_scale([0.0, 1.0], BOTTOM, TOP, floor=0.0, ceiling=1.0)
    axes = drawing.axes(
        Axis(x, "loops that a token takes", lambda value: f"{value:.0f}"),
        Axis(y, "share of tokens", lambda value: f"{100 * value:.0f} %"),
    )
    width = 0.8 / len(models)
    parts, facts, legend = [axes], [], []
    for index, model in enumerate(models):
        shares = shares_by_loops(model.exits)
        for number, share in shares.items():
            left, right = (x(number - 0.4 + width * (index + side)) for side in (0, 1))
            box = {"x": left, "y": y(share), "width": right - left, "height": y(0.0) - y(share)}
            parts.append(drawing.element("rect", class_=f"area {drawing.series(index)}", **box))
        facts.append(f"{model.label}: {', '.join(f'{number} {100 * share:.0f} %' for number, share in shares.items())}")
        rules = {exits.chosen.label for exits in model.exits if exits.chosen is not None}
        rule = rules.pop() if len(rules) == 1 else "a rule chosen for each seed"
        legend.append(LegendEntry(f"{model.label}: {rule}", index, "area"))
    heading = f"Loops taken on {models[0].exits[0].split}"
    caption = "Under the rule that was chosen on validation; mean over seeds."
    return drawing.chart("exits", heading, f"{'; '.join(facts)}.", key, *parts, legend=legend, caption=caption)


# Its exponential is still a number.
_LARGEST = 700.0


def estimate_head(heads: Sequence[HeadRecord]) -> dict[str, Estimate]:
    """The figures of one head over seeds, by the keys of their measures, without those that a seed lacks.

    The loss has Student's t interval over seeds. Perplexities are means of their logarithms over seeds, as losses are.
    """
    losses = tuple(head.loss for head in heads)
    interval = over_seeds(losses, LOSS.limits)
    basis: Basis = interval.basis if interval else "none"
    low, high = (interval.low, interval.high) if interval else (None, None)
    sd = statistics.stdev(losses) if len(losses) > 1 else None
    means = {
        TOKEN_PERPLEXITY.key: _geometric([head.token_perplexity for head in heads]),
        WORD_PERPLEXITY.key: _geometric([head.word_perplexity for head in heads]),
        BITS_PER_BYTE.key: _mean([head.bits_per_byte for head in heads]),
    }
    return {LOSS.key: Estimate(statistics.fmean(losses), sd, low, high, losses, basis)} | {
        key: Estimate(mean, None, None, None, (), "none") for key, mean in means.items() if mean is not None
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [math.log(value) for value in values if value is not None]
    return math.exp(statistics.fmean(known)) if known and len(known) == len(values) else None


def as_trained(record: LanguageRunRecord) -> HeadRecord:
    """The final head on the selection split in the kept epoch, cut in blocks as in training."""
    kept = next(epoch for epoch in record.training.history if epoch.epoch == record.training.best_epoch)
    loss = kept.validation_heads[FINAL_HEAD]
    split = record.data.splits[record.data.selection_split]
    by_word = loss * split.tokens / split.words
    lossless = record.data.tokenizer.get("lossless", False)
    return HeadRecord(
        loss=loss,
        token_perplexity=math.exp(loss) if loss < _LARGEST else None,
        word_perplexity=math.exp(by_word) if lossless and by_word < _LARGEST else None,
        bits_per_byte=None,
    )


def reach(records: Sequence[LanguageRunRecord]) -> int | None:
    """How many tokens ahead a prediction of a leaking model reads, at most."""
    found = [
        int(audit.value)
        for record in records
        if record.leaks
        for audit in record.failed_audits()
        if is_of_causality(audit.name) and audit.value is not None
    ]
    return max(found, default=None)


def verdict(failed: Sequence[str], reach: int | None, *, audited: bool) -> str:
    """What the audits of a model say, in a few words."""
    if reach is not None:
        # Too good is what a leak looks like.
        others = [name for name in failed if not name.startswith(("causality.", "perplexity."))]
        return f"LEAKS: reads {reach} tokens ahead{f'; also failed: {words(others)}' if others else ''}"
    if failed:
        return f"FAILED: {words(list(failed))}"
    return "passed" if audited else "none run"


def cycle(record: LanguageRunRecord) -> str | None:
    """What a cycle is made of, as the record says; one from before shapes were kept names changes and a preset."""
    changes = record.config.get("model_overrides", {})
    _, preset = LANGUAGE_PRESETS.get(changes.get("preset", record.config.get("model")), ("", {}))
    found: str | None = (record.shape or {**preset, **changes}).get("feed_forward")
    return found


def conclude_language(table: LanguageTable) -> str:
    """Some sentences on a table: on the models that may be quoted, best first, and on those that leak."""
    split, honest = table.headline_split, [model for model in table.models if not model.leaks]
    sentences = []
    if honest:
        sentences += [_best(honest, split), *beside_best(honest[0], honest, table, LOSS)]
        if len(honest) > 1 and any(len(model.seeds) == 1 for model in honest):
            sentences.append("With one seed, another training could turn out differently.")
    sentences += [_leak(model, split) for model in table.models if model.leaks]
    return " ".join(sentences)


def _best(honest: Sequence[LanguageModelSummary], split: str) -> str:
    word, of_token = (measure.of(honest[0], split) for measure in (WORD_PERPLEXITY, TOKEN_PERPLEXITY))
    by_word = "" if word is None else f", {word.mean:,.1f} a word"
    token = "beyond numbers" if of_token is None else f"{of_token.mean:,.1f}"
    lead = f"Best on {split}" if len(honest) > 1 else f"On {split}"
    return f"{lead}: {honest[0].label}, perplexity {token} a token{by_word}."


def _leak(model: LanguageModelSummary, split: str) -> str:
    value = WORD_PERPLEXITY.of(model, split) or TOKEN_PERPLEXITY.of(model, split)
    figure = "" if value is None else f" shows {value.mean:,.2f} a word because it"
    return f"{model.label}{figure} leaks: its predictions read up to {model.reach_tokens} tokens ahead."


class LanguageReporting(Reporting):
    """The next token of running text: nats a token, paired by seeds; what leaks is held against nobody."""

    task = "language modelling"
    measures = (LOSS,)

    def alarms(self, tables: Sequence[Any]) -> list[tuple[str, list[tuple[str, str]]]]:
        leaking = [(model.label, table.title) for table in tables for model in table.models if model.leaks]
        heading = "A model reads the future: do not quote its figures without the word leaks"
        return [(heading, leaking)] if leaking else []

    def figures(self, table: LanguageTable) -> Sequence[Measure]:
        return figures_of_heads(table)

    def tables(self, table: LanguageTable) -> Sequence[Table]:
        shown = audits(table)
        return (
            results_table(table, [measure for measure in self.figures(table) if ":" not in measure.key]),
            contrasts(table, LOSS),
            tests(table, LOSS),
            heads_table(table),
            early_exit_table(table),
            published_table(table),
            *([shown] if shown.rows else []),
        )

    def splits(self, table: LanguageTable) -> Table:
        return splits_table(table)

    def lines(self, table: LanguageTable) -> dict[str, Sequence[Any]]:
        return {**super().lines(table), "leaving": early_exits(table)}

    def beside(self, folder: Path, record: LanguageRunRecord) -> ExitsRecord | None:
        """What was kept of the run's exits."""
        exits = read_exits(folder)
        if exits is not None and exits.run_id != record.run_id:
            raise CheckpointError(
                f"the exits kept in '{folder}' are of run '{exits.run_id}', and its record is of '{record.run_id}'; "
                "measure them again: recurra exits RUN --keep"
            )
        return exits

    def key(self, run: LoadedRun) -> TableKey:
        """Runs share a table if text, part of it, way of reading it, training and precision are the same."""
        record = run.record
        part = {name: value for name, value in run.data_settings.items() if name not in ("name", "mode", "context")}
        return TableKey(
            record.data.name,
            record.data.protocol,
            record.data.fingerprint,
            content_hash(part),
            record.training.protocol,
            record.environment.precision,
        )

    def key_text(self, key: TableKey) -> str:
        return "-".join((key.fingerprint, key.protocol, key.part, key.training, key.precision))

    def variant(self, run: LoadedRun) -> str:
        share = run.data_settings.get("fraction", 1)
        return "" if share == 1 else f"{share:.4g} of train"

    def title(self, key: TableKey, variant: str) -> str:
        parts = [key.data, key.protocol, variant, f"{key.training} training", key.precision]
        return " · ".join(part for part in parts if part)

    def label(self, run: LoadedRun) -> str:
        """That of a leaking model says so."""
        return _record(run).label

    def order(self, runs: Sequence[LoadedRun], headline: str) -> tuple[Any, ...]:
        """What may be quoted first, then what leaks; each by quality."""
        records = [_record(run) for run in runs]
        losses = [record.metrics[headline].final.loss for record in records if headline in record.metrics]
        return (any(record.leaks for record in records), statistics.fmean(losses) if losses else float("inf"))

    def barred(self, runs: Sequence[LoadedRun], split: str, measure: Measure) -> str:
        return "its figures leak" if any(_record(run).leaks for run in runs) else ""

    def score(self, split: str, metrics: Sequence[LanguageMetricsRecord], measure: Measure) -> Score:
        figures = {
            key if head == FINAL_HEAD else f"{key}:{head}": value
            for head in metrics[0].heads
            for key, value in estimate_head([item.heads[head] for item in metrics]).items()
        }
        return Score(split, metrics[0].tokens, figures)

    def model(self, common: ModelSummary, runs: Sequence[LoadedRun], headline: str) -> LanguageModelSummary:
        records = [_record(run) for run in runs]
        ahead = reach(records)
        return LanguageModelSummary(
            **{**vars(common), "failed_audits": sorted(common.failed_audits)},
            leaks=any(record.leaks for record in records),
            reach_tokens=ahead,
            verdict=verdict(sorted(common.failed_audits), ahead, audited=bool(records[0].audits)),
            tokens_per_s=statistics.fmean(record.training.tokens_per_s for record in records),
            steps=records[0].training.steps,
            feed_forward=cycle(records[0]),
            as_trained=estimate_head([as_trained(record) for record in records]),
            history=[record.training.history for record in records],
            exits=[run.beside for run in runs if run.beside is not None],
        )

    def split_lines(self, run: LoadedRun) -> dict[str, dict[str, int]]:
        return {
            name: {"tokens": split.tokens, "words": split.words, "bytes": split.bytes}
            for name, split in _record(run).data.splits.items()
        }

    def conclude(self, table: Any) -> str:
        return conclude_language(table)

    def table(self, common: TableSummary, table: TableRuns, questions: Questions, exports: Any) -> LanguageTable:
        return LanguageTable(**vars(common))

    def charts(self, table: LanguageTable, runs: Records, key: str) -> list[Chart]:
        return language_charts(table, key)


def _record(run: LoadedRun) -> LanguageRunRecord:
    if not isinstance(run.record, LanguageRunRecord):
        raise TypeError(f"{run.folder} holds no run of a language model")
    return run.record


REPORTING = LanguageReporting()
