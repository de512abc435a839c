"""Charts of language models: loss by epoch and by loop, and the loops that tokens take (CRT-Deep, figures 2 and 3)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from recurra.core.exits_record import ExitsRecord
from recurra.core.record import FINAL_HEAD
from recurra.core.terminal import decimal
from recurra.tasks import drawing
from recurra.tasks.drawing import BOTTOM, LEFT, RIGHT, TOP, Axis, Chart, LegendEntry, Line, Point, Scale
from recurra.tasks.language.tables import LOSS, LanguageModelSummary, LanguageTable, heads_of, of_head


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
