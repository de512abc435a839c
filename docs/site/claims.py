"""The page of claims: what the papers state, what our records say of it, a verdict (``docs/results/claims.yaml``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from recurra.core import terminal as form
from recurra.core.configuration import Settings
from recurra.core.errors import ConfigurationError, unknown
from recurra.tasks.classification.exports import stored_as
from recurra.tasks.language.reporting import LOSS, WORD_PERPLEXITY, of_head
from recurra.tasks.summary import Summary

Read = Callable[[str], Summary]


def _speed_up(model: Any, asked: Figure) -> str:
    exits = [line for record in model.exits for line in record.fixed if line.label == asked.head]
    times = [item.full_ms / item.exits_ms for line in exits for item in line.timed if item.batch_size == 1]
    return f"{min(times):.2f} to {max(times):.2f}"


def _behind_final(model: Any, asked: Figure) -> str:
    head, final = (model.scores["test"].figures[of_head(LOSS, name).key].values for name in (asked.head, "final"))
    gaps = [loss - last for loss, last in zip(head, final, strict=True)]
    return f"{min(gaps):.4f} to {max(gaps):.4f}"


# Each reads a model of a table, or one of its exports. Speed-ups are at batch 1, ranges are of the seeds.
MEASURES: dict[str, Callable[[Any, Figure], str]] = {
    "accuracy": lambda model, _: form.decimal(model.scores["test"].figures["accuracy"].mean),
    "precision": lambda model, _: form.decimal(model.scores["test"].figures["precision"].mean),
    "recall": lambda model, _: form.decimal(model.scores["test"].figures["recall"].mean),
    "parameters": lambda model, _: form.count(model.parameters),
    "non_embedding_parameters": lambda model, _: form.count(model.non_embedding_parameters),
    "file_mib": lambda model, _: form.decimal(model.file_size_mib, 2),
    "ms": lambda model, _: form.significant(model.single_ms),
    "loss": lambda model, asked: form.decimal(of_head(LOSS, asked.head).mean(model, "test"), 3),
    "word_perplexity": lambda model, asked: form.significant(of_head(WORD_PERPLEXITY, asked.head).mean(model, "test")),
    "loss_behind_final": _behind_final,
    "speed_up": _speed_up,
    "export_accuracy": lambda row, _: form.decimal(row["accuracy"].mean),
    "export_mib": lambda row, _: form.decimal(row["weights_mib"], 2),
    "export_ms": lambda row, _: form.significant(row["median_ms"]["1"]),
    "labels_changed": lambda row, _: f"{row['labels_changed']} of {row['rows']:,}",
}


class Figure(Settings):
    """A contrast, a measure of a model or of its export, or else the accuracy of the form of texts alone."""

    study: str
    table: str = ""
    contrast: str | None = None
    model: str | None = None
    export: str | None = None
    head: str = "final"
    measure: str = ""

    def read(self, summary: Summary) -> tuple[str, str, int]:
        """The figure as text, its data, and its seeds; raises `ConfigurationError` if no record has it."""
        table, *others = [item for item in summary.tables if self.table in item.title] or [None]
        if table is None or others:
            raise ConfigurationError(f"'{self.table}' is not in the title of one table of '{self.study}'; name one")
        if self.contrast is not None:
            line = _named("contrast", self.contrast, {item.name: item for item in table.contrasts})
            judge = table.judged_by
            value, seeds = judge.gap(line.gap, judge.width(line.half)), line.seeds
            value += f" ({judge.range(line.low, line.high)})" if line.half is None and line.low is not None else ""
        elif self.model is None:
            value, seeds = form.decimal(table.form_accuracy, 3), 1
        else:
            source = _named("model", self.model, {item.label: item for item in table.models})
            seeds = len(source.seeds)
            if self.export is not None:
                exports = [row for row in table.exports if row["model"] == self.model]
                source = _named("export", self.export, {stored_as(row): row for row in exports})
            value = _named("measure", self.measure, MEASURES)(source, self)
        return value, ", ".join(filter(None, (table.protocol, table.variant))), seeds


class Claim(Settings):
    """``{name}`` in a text stands for one of ``figures``; ``study`` is the one that will answer what is not tested."""

    where: str
    claim: str
    published: str
    ours: str = form.NONE
    verdict: Literal["holds", "does not hold", "cannot be told at this size", "leaks", "not tested"]
    why: str
    study: str | None = None
    figures: dict[str, Figure] = Field(default_factory=dict)

    def cells(self, read: Read, addresses: Mapping[str, str]) -> list[str]:
        """A row of the table."""
        seeds: dict[str, int] = {}
        for figure in self.figures.values():
            _, data, count = figure.read(read(figure.study))
            where = f"[{figure.study}]({addresses[figure.study]}) {data}"
            seeds[where] = max(count, seeds.get(where, 0))
        sources = [f"{where}, {count} seed{'s' * (count > 1)}" for where, count in seeds.items()]
        sources += [f"to come: [{self.study}](../../configs/studies/{self.study}.yaml)"] if self.study else []
        ours = _filled(self.ours, self.figures, read) + (f" ({'; '.join(sources)})" if sources else "")
        why = _filled(self.why, self.figures, read)
        return [self.where, self.claim, self.published, ours, f"**{self.verdict}**: {why}"]


class Contradiction(Settings):
    """Figures of the papers that do not go together, and what fits."""

    what: str
    drafts: str
    fits: str
    figures: dict[str, Figure] = Field(default_factory=dict)


class Claims(Settings):
    """``docs/results/claims.yaml``."""

    claims: list[Claim]
    contradictions: list[Contradiction]


def claims_markdown(page: Path, read: Read, addresses: Mapping[str, str]) -> str:
    """Both tables of ``docs/results/claims.md``: ``read`` gives a study's summary, ``addresses`` its page."""
    stated = Claims.load(page.with_suffix(".yaml"))
    rows = [claim.cells(read, addresses) for claim in stated.claims]
    apart = [[line.what, line.drafts, _filled(line.fits, line.figures, read)] for line in stated.contradictions]
    counts = Counter(claim.verdict for claim in stated.claims).most_common()
    return (
        f"{len(rows)} claims: {', '.join(f'{count} {verdict}' for verdict, count in counts)}.\n\n"
        f"{markdown_grid(['Where', 'Claim', 'Published', 'Ours', 'Verdict'], rows, (True,) * 5)}\n\n"
        "## Figures that contradict each other\n\n"
        f"{markdown_grid(['What', 'What the papers say', 'What fits, and why'], apart, (True,) * 3)}\n"
    )


def _filled(text: str, figures: Mapping[str, Figure], read: Read) -> str:
    return text.format(**{name: figure.read(read(figure.study))[0] for name, figure in figures.items()})


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise ConfigurationError(unknown(f"{kind} of a claim", name, list(known)))
    return known[name]


def markdown_grid(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool] = (True,)) -> str:
    """A Markdown table of cells that are Markdown already; ``left`` says which columns are aligned left."""
    rule = ["---" if index < len(left) and left[index] else "---:" for index in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))
