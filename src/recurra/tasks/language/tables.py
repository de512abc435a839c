"""What is measured of language models, and their tables. What leaks is called so in every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from recurra.core import terminal as form
from recurra.core.exits_record import EarlyExitRecord, ExitsRecord
from recurra.core.record import FINAL_HEAD, LanguageEpochRecord
from recurra.core.record_parts import TRAINING_SPLIT
from recurra.tasks.measures import Estimate, Measure, Score
from recurra.tasks.summary import ModelSummary, TableSummary
from recurra.tasks.tables import NONE, Cells, Table, results

PUBLISHED_MODEL = "crt-deep (leaks)"
PUBLISHED_TEXT = "WikiText-103 validation, epoch 10"


@dataclass(frozen=True)
class PublishedExit:
    """One row of table 2: what the head after a recurrence reaches; speed-up as loops that are not computed."""

    loop: int
    loss: float
    perplexity: float
    speed_up: float


@dataclass(frozen=True)
class ReferenceModel:
    """The perplexity by word of an honest model."""

    model: str
    text: str
    perplexity: float
    note: str


# The last one is the final head.
PUBLISHED_EXITS = (
    PublishedExit(2, 0.0892, 1.093, 4.0),
    PublishedExit(4, 0.0812, 1.084, 2.0),
    PublishedExit(6, 0.0778, 1.081, 1.33),
    PublishedExit(8, 0.0996, 1.105, 1.0),
)

# Table 3: validation loss at three loops by what a cycle is made of; a cycle without a convolution does not leak by it.
PUBLISHED_CYCLES = {"linear": 3.4080, "conv": 1.8815, "conv+linear": 1.6986, "depthwise": 2.1312}

PUBLISHED_REFERENCES = (
    ReferenceModel("GPT-2 117M", "WikiText-2", 29.4, "not trained on it"),
    ReferenceModel("GPT-2 117M", "WikiText-103", 37.5, "not trained on it"),
    ReferenceModel("Transformer-XL, about 150M", "WikiText-103", 23.6, "trained on it"),
    ReferenceModel("DEQ-Transformer 110M, weight-tied", "WikiText-103", 23.2, "trained on it"),
)


@dataclass(frozen=True, kw_only=True)
class LanguageModelSummary(ModelSummary):
    """A language model over its seeds.

    Attributes:
        scores: By split; figures of a head that is not the final one end with its name: ``loss:exit-2``.
        leaks: Whether the causality audit failed for any seed; its label says so.
        reach_tokens: How far ahead a prediction reads, at most.
        verdict: What the audits say, in a few words.
        feed_forward: What a cycle is made of; none of a model without cycles.
        as_trained: The final head on the selection split in the kept epoch, cut in blocks as in training: there the
            last position of a block predicts nothing, because its token lies outside. An honest model scores the same
            with it; one that reads ahead can read all that is counted, and not the token that is left out.
        history: Epochs of each seed.
        exits: What early exit gave, of the seeds of which it was kept.
    """

    scores: dict[str, Score]
    leaks: bool
    reach_tokens: int | None
    verdict: str
    tokens_per_s: float
    steps: int
    feed_forward: str | None
    as_trained: dict[str, Estimate]
    history: list[list[LanguageEpochRecord]]
    exits: list[ExitsRecord]


@dataclass(frozen=True, kw_only=True)
class LanguageTable(TableSummary):
    """All models on one text, read in one way: ``protocol`` is how the text is cut, ``splits`` counts its parts."""

    models: Sequence[LanguageModelSummary]
    splits: dict[str, dict[str, int]]


def perplexity(value: float) -> str:
    """A perplexity: more decimals where it is small."""
    if value < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def _measure(key: str, heading: str, unit: str = "", **more: Any) -> Measure:
    return Measure(key, heading, unit, higher_is_better=False, read=lambda metrics: getattr(metrics.final, key), **more)


LOSS = _measure(
    "loss", "Loss", "nats a token", limits=(0.0, None), ahead="above (worse than)", behind="below (better than)"
)
TOKEN_PERPLEXITY = _measure("token_perplexity", "Perplexity a token", write=perplexity)
WORD_PERPLEXITY = _measure("word_perplexity", "Perplexity a word", write=perplexity)
BITS_PER_BYTE = _measure("bits_per_byte", "Bits a byte", digits=3)
FIGURES = (LOSS, TOKEN_PERPLEXITY, WORD_PERPLEXITY, BITS_PER_BYTE)


def of_head(measure: Measure, head: str) -> Measure:
    """A measure of the final head, or the same of another one."""
    return measure if head == FINAL_HEAD else replace(measure, key=f"{measure.key}:{head}")


def heads_of(model: LanguageModelSummary, split: str) -> list[str]:
    """The heads of a model that were evaluated on a split, in their order."""
    keys = [key.partition(":") for key in model.scores[split].figures]
    return [head or FINAL_HEAD for key, _, head in keys if key == LOSS.key]


def figures_of_heads(table: LanguageTable) -> list[Measure]:
    """What is measured of the final head, and the same of every exit."""
    heads = dict.fromkeys(head for model in table.models for split in model.scores for head in heads_of(model, split))
    exits = [head for head in heads if head != FINAL_HEAD]
    return [*FIGURES, *(of_head(part, head) for head in exits for part in FIGURES)]


_RESULTS = (
    "Loss in nats a token of the final head; perplexity by word counts one end of line a line and compares with "
    "published WikiText figures, by token only with the same tokenizer. Blocks do not overlap, and every token is "
    "predicted. As trained: perplexity on validation without the token behind each block, which no position in it can "
    "read; an honest model hardly differs, one that leaks can read all the others."
)
_EARLY_EXIT = (
    "Kept by `recurra exits RUN --keep`. Loss of decoding with everything that is filled in, on at most 16,384 tokens; "
    "wall-clock of decoding in FP32, batch by batch in turns with the full model."
)


def results_table(table: LanguageTable, figures: Sequence[Measure]) -> Table:
    """What each language model scores and costs."""

    def more(model: LanguageModelSummary) -> Cells:
        trained = [part.text(model.as_trained.get(part.key)) for part in (TOKEN_PERPLEXITY, WORD_PERPLEXITY)]
        seen = LOSS.of(model, TRAINING_SPLIT)
        unseen = LOSS.mean(model, table.headline_split)
        return {
            "Less that on train": NONE if seen is None else f"{unseen - seen.mean:+.3f}",
            "As trained, a token / a word": " / ".join(trained),
            "Steps": form.count(model.steps),
            "Tokens/s": form.count(model.tokens_per_s),
        }

    split = table.splits[table.headline_split]
    counted = f"{split['tokens']:,} tokens, {split['words']:,} words, {split['bytes']:,} bytes"
    note = f"On {table.headline_split} ({counted}). {_RESULTS}"
    shown = results(table, figures, LOSS, note=note, more=more, audits=lambda model: model.verdict)
    return replace(shown, brief=("Model", "Loss", "Perplexity a word", "Parameters", "Training", "Audits"))


def heads_table(table: LanguageTable) -> Table:
    """Every head of each model that has several, on every split; published ones beside the first."""
    splits = list(table.models[0].scores)  # The first is the one that the published figures are of.
    rows: list[Cells] = []
    for model in table.models:
        heads = heads_of(model, splits[0])
        for head in heads if len(heads) > 1 else ():
            cells = {"Model": model.label, "Head": head}
            for split in splits:
                for part in FIGURES:
                    value = of_head(part, head).of(model, split)
                    cells[f"{part.heading}, {split}"] = part.text(value)
            rows.append(cells | {"Audits": "leaks" if model.leaks else model.verdict})
    published = f"published, {PUBLISHED_MODEL}, {PUBLISHED_TEXT}"
    for line in PUBLISHED_EXITS if rows else ():
        figures = {f"Loss, {splits[0]}": LOSS.value(line.loss)}
        figures[f"{TOKEN_PERPLEXITY.heading}, {splits[0]}"] = perplexity(line.perplexity)
        head = FINAL_HEAD if line is PUBLISHED_EXITS[-1] else f"exit-{line.loop}"
        rows.append({"Model": published, "Head": head, **figures, "Audits": "leaks"})
    return Table("exits", "By head", rows, page_only=False)


@dataclass(frozen=True)
class EarlyExit:
    """A way of early exit of one run; ``record`` is none where all loops are computed."""

    model: str
    seed: int
    label: str
    loss: float
    loops: float
    record: EarlyExitRecord | None

    def speed(self, size: int) -> float | None:
        """How many times as fast as the full model."""
        if self.record is None:
            return 1.0
        return next((timed.speed_up for timed in self.record.timed if timed.batch_size == size), None)


def early_exits(table: LanguageTable) -> list[EarlyExit]:
    """Every way of early exit that was kept of the runs of a table."""
    rows = []
    for model in table.models:
        seeds = {run.run_id: run.seed for run in model.runs}
        for kept in model.exits:
            of = (model.label, seeds[kept.run_id])
            rows.append(EarlyExit(*of, "nowhere", kept.full_loss, kept.num_recurrences, None))
            for one in [*kept.fixed, *([kept.chosen] if kept.chosen else [])]:
                loops = sum(number * count for number, count in one.taken.items()) / sum(one.taken.values())
                rows.append(EarlyExit(*of, one.label, one.loss, loops, one))
    return rows


def early_exit_table(table: LanguageTable) -> Table:
    """What leaving early costs and saves."""
    lines = early_exits(table)
    sizes = sorted({timed.batch_size for line in lines if line.record for timed in line.record.timed})
    rows = [
        {
            "Model, seed": f"{line.model}, {line.seed}",
            "Leaves": line.label,
            "Loss": f"{line.loss:.4f}",
            "Loops a token": f"{line.loops:.2f}",
            **{f"Times as fast, batch {size}": form.decimal(line.speed(size), 2) for size in sizes},
        }
        for line in lines
    ]
    return Table("leaving", "Leaving early", rows, _EARLY_EXIT if rows else "")


def published_table(table: LanguageTable) -> Table:
    """Ours, with published figures beside them and what is not the same."""
    split = table.headline_split
    varied = len({model.feed_forward for model in table.models} & set(PUBLISHED_CYCLES)) > 1
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
        made_of = model.feed_forward
        if varied and made_of in PUBLISHED_CYCLES:
            rows.append(
                {
                    "Model": f"crt-deep at 3 loops, {made_of}{'' if made_of == 'linear' else ' (leaks)'}",
                    "Figures": "published, table 3",
                    "Text": "WikiText-103 validation",
                    "Loss": LOSS.value(PUBLISHED_CYCLES[made_of]),
                    "What differs": "size, text, training",
                    "Leaks": "published code leaks",
                }
            )
    rows += [
        {
            "Model": line.model,
            "Figures": "published",
            "Text": f"{line.text} test",
            "Perplexity a word": perplexity(line.perplexity),
            "What differs": f"size, tokenizer; {line.note}",
            "Leaks": "no",
        }
        for line in PUBLISHED_REFERENCES
    ]
    return Table("published", "Published beside ours", rows)


def splits_table(table: LanguageTable) -> Table:
    """The splits by size."""
    rows = [
        {"Split": name, **{part.capitalize(): form.count(split[part]) for part in ("tokens", "words", "bytes")}}
        for name, split in table.splits.items()
    ]
    return Table("data", "Splits", rows)
