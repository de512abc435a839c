"""The tables of language models, each column declared once. What leaks is called so in every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recurra.core import terminal as form
from recurra.core.exits_record import EarlyExitRecord, ExitsRecord
from recurra.core.record import FINAL_HEAD, LanguageEpochRecord, LanguageMetricsRecord
from recurra.core.record_parts import TRAINING_SPLIT
from recurra.tasks.columns import (
    COUNT,
    DURATION,
    EVERYWHERE,
    NUMBERS,
    PAGE,
    READERS,
    RUNS,
    SIGNIFICANT,
    TIMING,
    Cell,
    Column,
    Fields,
    Format,
    Place,
    Table,
    estimates,
    numbers,
)
from recurra.tasks.measures import Estimate, Measure
from recurra.tasks.summary import ModelSummary, TableSummary
from recurra.tasks.tables import AUDITS, contrasts, tests_by_seeds

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


@dataclass(frozen=True)
class HeadSummary:
    """One head on one split over seeds: the mean loss, and the perplexities and bits that belong to it.

    Perplexities are means of their logarithms over seeds, as losses are; ``sd``, ``low`` and ``high`` are the loss's
    (Student's t over seeds), none with one seed. ``losses`` are those of each seed, in the order of the model's seeds.
    """

    loss: float
    losses: tuple[float, ...]
    sd: float | None
    low: float | None
    high: float | None
    token_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None

    @property
    def estimate(self) -> Estimate:
        """The loss with its interval."""
        basis = "none" if self.low is None else "seeds"
        return Estimate(self.loss, self.sd, self.low, self.high, self.losses, basis)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class LanguageModelSummary(ModelSummary):
    """A language model over its seeds.

    Attributes:
        scores: By split and head.
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

    scores: dict[str, dict[str, HeadSummary]]
    leaks: bool
    reach_tokens: int | None
    verdict: str
    tokens_per_s: float
    steps: int
    feed_forward: str | None
    as_trained: HeadSummary
    history: list[list[LanguageEpochRecord]]
    exits: list[ExitsRecord]


@dataclass(frozen=True, kw_only=True)
class LanguageTable(TableSummary):
    """All models on one text, read in one way: ``protocol`` is how the text is cut, ``splits`` counts its parts."""

    models: Sequence[LanguageModelSummary]
    splits: dict[str, dict[str, int]]


def _loss(metrics: LanguageMetricsRecord) -> float:
    return metrics.final.loss


def _loss_of(model: LanguageModelSummary, split: str) -> Estimate | None:
    return model.scores[split][FINAL_HEAD].estimate if split in model.scores else None


LOSS = Measure(
    "loss",
    "Loss",
    "nats a token",
    higher_is_better=False,
    read=_loss,
    of=_loss_of,
    limits=(0.0, None),
    ahead="above (worse than)",
    behind="below (better than)",
)


_RESULTS = (
    "Loss in nats a token of the final head; perplexity by word counts one end of line a line and compares with "
    "published WikiText figures, by token only with the same tokenizer. Blocks do not overlap, and every token is "
    "predicted. As trained: perplexity on validation without the token behind each block, which no position in it can "
    "read; an honest model hardly differs, one that leaks can read all the others."
)
_DIFFERENCES = (
    "Loss of the second model less that of the first, nats a token of the final head, seed by seed; Student's t over "
    "seeds, p of the paired test corrected over the pairs by Holm. Another text could turn out differently."
)
_EARLY_EXIT = (
    "Kept by `recurra exits RUN --keep`. Loss of decoding with everything that is filled in, on at most 16,384 tokens; "
    "wall-clock of decoding in FP32, batch by batch in turns with the full model."
)
_ENDS_LEFT: frozenset[Place] = frozenset(("terminal", "html"))


def perplexity(value: float) -> str:
    """A perplexity: more decimals where it is small."""
    if value < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


_PERPLEXITY = Format(perplexity)
_LOSS = estimates()
_BITS = numbers(lambda value: form.decimal(value, 3))
_SIGNED = numbers(lambda value: f"{value:+.3f}")
Head = Callable[[Any], HeadSummary | None]


def _head_columns(head: Head, *, suffix: str = "", of: str = "") -> list[Column]:
    """Loss, perplexities and bits of a head.

    Args:
        head: Reads it from a row.
        suffix: Of the keys.
        of: Follows the heading of the loss.
    """

    def read(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(found, name) if (found := head(row)) is not None else None

    return [
        Column(f"loss{suffix}", f"Loss{of}", read("estimate"), _LOSS),
        Column(f"token_perplexity{suffix}", "Perplexity a token", read("token_perplexity"), _PERPLEXITY),
        Column(f"word_perplexity{suffix}", "a word", read("word_perplexity"), _PERPLEXITY),
        Column(f"bits_per_byte{suffix}", "Bits a byte", read("bits_per_byte"), _BITS),
    ]  # fmt: skip


@dataclass(frozen=True)
class Scored:
    """A row of the results: a model on a split."""

    model: LanguageModelSummary
    split: str

    @property
    def final(self) -> HeadSummary:
        """Its last head."""
        return self.model.scores[self.split][FINAL_HEAD]

    @property
    def unseen_less_seen(self) -> float | None:
        """Its loss less that on text that it was trained on; none where the latter was not measured."""
        seen = self.model.scores.get(TRAINING_SPLIT)
        return None if seen is None else self.final.loss - seen[FINAL_HEAD].loss


def _on(table: LanguageTable, splits: Sequence[str]) -> list[Scored]:
    return [Scored(model, split) for model in table.models for split in splits if split in model.scores]


def _as_trained(head: HeadSummary) -> str:
    values = (head.token_perplexity, head.word_perplexity)
    return " / ".join(form.NONE if value is None else perplexity(value) for value in values)


def _as_trained_fields(key: str, head: Any) -> Fields:
    return {f"{key}_{name}": getattr(head, name) for name in ("loss", "token_perplexity", "word_perplexity")}


def _result_columns(table: LanguageTable) -> list[Column]:
    size: frozenset[Place] = frozenset(("csv", "latex"))
    seen = [Column("unseen_less_seen", "Less that on train", lambda row: row.unseen_less_seen, _SIGNED)]
    if not any(TRAINING_SPLIT in model.scores for model in table.models):
        seen = []
    return [
        Column("model", "Model", lambda row: row.model.label),
        Column("split", "", lambda row: row.split, places=NUMBERS),
        Column("leaks", "", lambda row: row.model.leaks, places=NUMBERS),
        Column("seeds", "Seeds", lambda row: row.model.runs, RUNS),
        *_head_columns(lambda row: row.final),
        *seen,
        Column("parameters", "Parameters", lambda row: row.model.parameters, COUNT),
        Column("non_embedding_parameters", "", lambda row: row.model.non_embedding_parameters, places=NUMBERS),
        Column("file_size_mib", "MiB", lambda row: row.model.file_size_mib, SIGNIFICANT, size),
        Column("flops_per_token", "FLOPs/token", lambda row: row.model.flops_per_token, numbers(form.amount)),
        *(
            Column(
                f"batch_{batch}", f"ms, batch {batch}",
                lambda row, batch=batch: row.model.latency.get(str(batch)), TIMING,  # type: ignore[misc]
            )
            for batch in table.batch_sizes
        ),
        Column(
            "as_trained", "As trained, a token / a word", lambda row: row.model.as_trained,
            Format(_as_trained, spread=_as_trained_fields), EVERYWHERE - {"latex"},
        ),
        Column("steps", "Steps", lambda row: row.model.steps, COUNT),
        Column("tokens_per_s", "Tokens/s", lambda row: row.model.tokens_per_s, COUNT, EVERYWHERE - {"latex"}),
        Column("training_wall_s", "Training", lambda row: row.model.training_wall_s, DURATION),
        Column("audits", "Causality and other audits", lambda row: row.model.verdict, left=_ENDS_LEFT),
    ]  # fmt: skip


def _results_caption(table: LanguageTable) -> str:
    split = table.splits[table.headline_split]
    counted = f"{split['tokens']:,} tokens, {split['words']:,} words, {split['bytes']:,} bytes"
    return f"On {table.headline_split} ({counted}). {_RESULTS}"


RESULTS = Table(
    "results",
    lambda table: f"Results on the {table.headline_split} split",
    _result_columns,
    lambda table: _on(table, [table.headline_split]),
    caption=_results_caption,
    paper_note=lambda _: "Loss ± half the 95 % interval over seeds.",
    numbers=lambda table: _on(table, list(table.models[0].scores)),
    row_class=lambda row: "spoiled" if row.model.failed_audits else "",
    brief=("model", "loss", "word_perplexity", "parameters", "training_wall_s", "audits"),
)


@dataclass(frozen=True)
class HeadRow:
    """A head of a model on every split, or a published one on the first."""

    model: str
    head: str
    by_split: dict[str, HeadSummary]
    audits: str


def _head_rows(table: LanguageTable) -> list[HeadRow]:
    splits = list(table.models[0].scores)  # The first is the one that the published figures are of.
    rows = [
        HeadRow(
            model.label,
            head,
            {split: model.scores[split][head] for split in splits if split in model.scores},
            "leaks" if model.leaks else model.verdict,
        )
        for model in table.models
        if len(model.scores[splits[0]]) > 1
        for head in model.scores[splits[0]]
    ]
    published = f"published, {PUBLISHED_MODEL}, {PUBLISHED_TEXT}"
    for line in PUBLISHED_EXITS if rows else ():
        name = FINAL_HEAD if line is PUBLISHED_EXITS[-1] else f"exit-{line.loop}"
        head = HeadSummary(line.loss, (line.loss,), None, None, None, line.perplexity, None, None)
        rows.append(HeadRow(published, name, {splits[0]: head}, "leaks"))
    return rows


# On a page its name is not broken at the hyphen.
_HEAD = Format(cell=lambda name: Cell(name.replace("-", "\N{NON-BREAKING HYPHEN}")))


def _head_table_columns(table: LanguageTable) -> list[Column]:
    def on(split: str) -> Head:
        return lambda row: row.by_split.get(split)

    figures = [
        column
        for split in table.models[0].scores
        for column in _head_columns(on(split), suffix=f"_{split}", of=f", {split}")
    ]
    return [
        Column("model", "Model", lambda row: row.model),
        Column("head", "Head", lambda row: row.head, _HEAD, left=EVERYWHERE),
        *figures,
        Column("audits", "Audits", lambda row: row.audits),
    ]


HEADS = Table(
    "exits",
    lambda _: "By head",
    _head_table_columns,
    _head_rows,
    short="by head",
)


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


def _early_exits(table: LanguageTable) -> list[EarlyExit]:
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


def _early_exit_columns(table: LanguageTable) -> list[Column]:
    kept = [one for model in table.models for exits in model.exits for one in exits.fixed]
    sizes = sorted({timed.batch_size for one in kept for timed in one.timed})
    two = numbers(lambda value: f"{value:.2f}")
    return [
        Column("model_seed", "Model, seed", lambda row: f"{row.model}, {row.seed}", places=READERS),
        Column("model", "", lambda row: row.model, places=NUMBERS),
        Column("seed", "", lambda row: row.seed, places=NUMBERS),
        Column("leaves", "Leaves", lambda row: row.label, left=EVERYWHERE),
        Column("loss", "Loss", lambda row: row.loss, numbers(lambda value: f"{value:.4f}")),
        Column("loops", "Loops a token", lambda row: row.loops, two),
        *(
            Column(
                f"speed_up_batch_{size}", f"Times as fast, batch {size}",
                lambda row, size=size: row.speed(size), two,  # type: ignore[misc]
            )
            for size in sizes
        ),
    ]  # fmt: skip


EARLY_EXIT = Table(
    "leaving",
    lambda _: "Leaving early",
    _early_exit_columns,
    _early_exits,
    caption=lambda _: _EARLY_EXIT,
    paper_note=lambda _: _EARLY_EXIT,
    places=EVERYWHERE - {"terminal"},
)


@dataclass(frozen=True)
class Beside:
    """Ours, or a published figure beside it, with what is not the same."""

    model: str
    figures: str
    text: str
    loss: float | None
    word_perplexity: float | None
    differs: str | None
    leaks: str


def _published_rows(table: LanguageTable) -> list[Beside]:
    split = table.headline_split
    varied = len({model.feed_forward for model in table.models} & set(PUBLISHED_CYCLES)) > 1
    rows = []
    for model in table.models:
        score = model.scores[split][FINAL_HEAD]
        leaks = "leaks" if model.leaks else "no"
        rows.append(
            Beside(model.label, "ours", f"{table.data} {split}", score.loss, score.word_perplexity, None, leaks)
        )
        made_of = model.feed_forward
        if varied and made_of in PUBLISHED_CYCLES:
            name = f"crt-deep at 3 loops, {made_of}{'' if made_of == 'linear' else ' (leaks)'}"
            text, differs = "WikiText-103 validation", "size, text, training"
            loss = PUBLISHED_CYCLES[made_of]
            rows.append(Beside(name, "published, table 3", text, loss, None, differs, "published code leaks"))
    for found in PUBLISHED_REFERENCES:
        differs = f"size, tokenizer; {found.note}"
        rows.append(Beside(found.model, "published", f"{found.text} test", None, found.perplexity, differs, "no"))
    return rows


PUBLISHED = Table(
    "published",
    lambda _: "Published beside ours",
    lambda _: [
        Column("model", "Model", lambda row: row.model),
        Column("figures", "Figures", lambda row: row.figures, left=EVERYWHERE),
        Column("text", "Text", lambda row: row.text, left=EVERYWHERE),
        Column("loss", "Loss", lambda row: row.loss, numbers(lambda value: f"{value:.4f}")),
        Column("word_perplexity", "Perplexity a word", lambda row: row.word_perplexity, _PERPLEXITY),
        Column("differs", "What differs", lambda row: row.differs, left=PAGE),
        Column("leaks", "Leaks", lambda row: row.leaks, left=PAGE),
    ],
    _published_rows,
    places=EVERYWHERE - {"terminal"},
)

SPLITS = Table(
    "data",
    lambda _: "Splits",
    lambda _: [
        Column("split", "Split", lambda row: row[0]),
        *(
            Column(name, name.capitalize(), lambda row, name=name: row[1][name], COUNT)  # type: ignore[misc]
            for name in ("tokens", "words", "bytes")
        ),
    ],
    lambda table: list(table.splits.items()),
    places=PAGE,
)

TABLES = (
    RESULTS,
    contrasts(lambda _: LOSS),
    tests_by_seeds(LOSS, _DIFFERENCES),
    HEADS,
    EARLY_EXIT,
    PUBLISHED,
    replace(AUDITS, empty={}),
)
