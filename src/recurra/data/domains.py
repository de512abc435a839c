"""Which domain is a text from: local business, movie or online shopping? A third of each, from three corpora.

The papers draw 22,740 rows of each of SST-2, Yelp and Amazon and cut them at random. Three things then give the domain
or the answer away without reading: SST-2's phrases of one sentence lie on both sides of the cut; the corpora were
tokenised in different ways; and SST-2's phrases are short while reviews are long. Each protocol removes one more:

``pooled``       as in the papers: texts as the corpora write them, rows cut at random;
``natural``      the same, but all phrases of one source sentence lie in one split;
``normalised``   and every text in one convention (`one_convention`);
``bare-words``   and every text without its marks, cut to a number of words that is spread equally in all three
                 domains: rows stand in triples, one of each domain, and each is cut to the shortest of its triple.

Under all of them no text occurs twice, case and punctuation aside.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from recurra.core.configuration import derive_seed
from recurra.core.errors import DataError
from recurra.data.dataset import TextDataset, TextSplit, joined
from recurra.data.reviews import Reviews, one_pool, read_pool
from recurra.data.sst2 import read_sst2

# One way of writing for texts that were tokenised in different ways.
#
# Corpora differ in more than their words: the Penn Treebank's tokeniser sets marks apart and cuts ``do n't``, other
# texts are as people typed them, quotes are `` ``, '' or ", brackets ``-lrb-``. A classifier could tell such corpora
# apart by that alone. `one_convention` cannot make equal how the texts themselves differ: in length, in word lengths,
# in how often a mark occurs.
# Marks that every corpus of ours keeps. Some release lost each other mark, so its presence would give the corpus away.
MARKS = '.,!?;:()$%-"/'

# Applied one after another, because a pass over the text for each costs less than one regular expression for all.
_ESCAPES = {
    "-lrb-": "(", "-rrb-": ")", "-lsb-": "(", "-rsb-": ")", "-lcb-": "(", "-rcb-": ")",
    "``": '"', "''": '"', "`": "'", "\\/": "/", "[": "(", "]": ")", "{": "(", "}": ")", "&": " and ",
}  # fmt: skip
_PAIRS = {" can not ": " cannot ", " gon na ": " gonna ", " wan na ": " wanna ", " got ta ": " gotta "}
_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "‛": "'", "´": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "."})
_NOT = re.compile(r"(?<=[a-z]) n't\b")
_CLITIC = re.compile(r"(?<=[a-z0-9]) '(s|re|ve|ll|d|m)\b")
_HALF_AT_START = re.compile(r"^(?:[^a-z0-9]*(?:n't|'(?:s|re|ve|ll|d|m))(?![a-z0-9']))+")
_RUN = re.compile(rf"([{re.escape(MARKS)}])(?: \1)+")
_TOKEN = re.compile(rf"[a-z0-9]+(?:'[a-z0-9]+)*|[{re.escape(MARKS)}]")


def one_convention(text: str) -> str:
    """Writes a cleaned text in one convention.

    Accents and characters beyond ASCII go, treebank escapes and typographic quotes become plain marks, split clitics
    and pairs are joined (``do n't`` to ``don't``, ``can not`` to ``cannot``), every mark stands alone, a run of one
    mark is one, other marks go, and so do marks at either end (one of the releases cuts them off).
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHIC)).encode("ascii", "ignore").decode().lower()
    for escape, plain in _ESCAPES.items():
        text = text.replace(escape, plain)
    if " n't" in text:
        text = _NOT.sub("n't", text)
    if " '" in text:
        text = _CLITIC.sub(r"'\1", text)
    text = _HALF_AT_START.sub("", text)
    written = _RUN.sub(r"\1", " ".join(_TOKEN.findall(text))).strip(MARKS + " ")
    if " not" in written or " na" in written or " ta" in written:
        written = f" {written} "
        for pair, word in _PAIRS.items():
            written = written.replace(pair, word)
    return written.strip()


LABEL_NAMES = ["local business", "movie", "online shopping"]
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
# Three or four words of a review occur in other reviews by chance.
LEAST_BARE_WORDS = 5
# Rows drawn from a release of millions for 22,740: some are dropped as repeats or by the cut.
DRAWN_ROWS = 40_000
PAPER_ROWS = {"train": 18_192, "validation": 2_274, "test": 2_274}


def load_domains(
    name: str, reviews: tuple[Reviews, Reviews], protocol: str, split_seed: int, data_root: Path | None
) -> TextDataset:
    """Loads the three-class domain corpus."""
    sources = {reviews[0].name: reviews[0], "sst2": None, reviews[1].name: reviews[1]}
    pool, dropped = _read(sources, protocol, split_seed, data_root)
    by_split, mixed = _assign(pool, split_seed, by_group=protocol != "pooled")
    if mixed:
        dropped["movie: phrase of sentences in several splits"] = mixed
    columns = {split: _shuffled(pool, rows, split_seed, split) for split, rows in by_split.items()}
    texts = pool.texts
    if protocol == "bare-words":
        texts, columns, left_out = _bare_and_equally_long(pool.texts, columns)
        dropped |= left_out
    # The papers' rows of each domain, or in the same proportion as many as the scarcest domain allows.
    scale = min(1.0, *(min(map(len, domains)) / PAPER_ROWS[split] for split, domains in columns.items()))
    rows = {split: int(scale * count) for split, count in PAPER_ROWS.items()}
    if rows["validation"] == 0 or rows["test"] == 0:
        raise DataError(f"{name}: too few rows for three splits with a third of each domain; give whole corpora")
    notes = [f"A third of each domain ({'; '.join(map(': '.join, zip(LABEL_NAMES, sources, strict=True)))})."]
    if rows != PAPER_ROWS:
        sizes = " / ".join(f"{count:,}" for count in rows.values())
        notes.append(f"The sources allow {sizes} rows a domain, not the papers' 18,192 / 2,274 / 2,274.")
    cut = replace(pool, texts=texts)
    return TextDataset(
        name=name,
        protocol=protocol,
        label_names=LABEL_NAMES,
        splits={
            # Row by row one of each domain, so that any stretch of a split is balanced.
            split: cut.select(np.stack([column[: rows[split]] for column in domains], axis=1).ravel(), name=split)
            for split, domains in columns.items()
        },
        dropped=dropped,
        notes=[*notes, _PROTOCOL_NOTES[protocol]],
    )


def _read(
    sources: Mapping[str, Reviews | None], protocol: str, seed: int, data_root: Path | None
) -> tuple[TextSplit, dict[str, int]]:
    """All rows of all sources, without repeats, their domains as labels; and counts of what is left out."""
    pools = []
    before: dict[str, int] = {}
    for label, (corpus, reviews) in enumerate(sources.items()):
        if reviews is None:
            # GLUE train and validation, as in the papers.
            parts, _ = read_sst2(data_root)
            rows = joined("sst2", (parts["train"], parts["validation"]))
            if rows.groups is None and protocol != "pooled":
                raise DataError(
                    f"protocol '{protocol}' keeps the phrases of one sentence together and needs their source "
                    "sentences, which 'sst2' lacks here; give --data-root DIR with sst2/ and sst/, or take "
                    "protocol=pooled"
                )
        else:
            rows, dropped = read_pool(reviews, seed, data_root, most=DRAWN_ROWS)
            before |= {f"{corpus} {reason}": count for reason, count in dropped.items()}
        texts = rows.texts if protocol in ("pooled", "natural") else [one_convention(text) for text in rows.texts]
        ids = [f"{corpus}/{identity}" for identity in rows.ids]
        pools.append(TextSplit(corpus, texts, np.full(len(rows), label), ids, rows.groups))
    pool, repeats = one_pool(pools)
    return pool, {**before, **repeats}


def _assign(pool: TextSplit, seed: int, *, by_group: bool) -> tuple[dict[str, list[int]], int]:
    """Rows of each split, at random by `SHARES`, and the number of rows in none because several have their groups."""
    generator = np.random.default_rng(derive_seed(seed, "domains", "splits"))
    names, cumulated = list(SHARES), np.cumsum(list(SHARES.values()))[:-1]

    def at_random(count: int) -> list[str]:
        return [names[index] for index in np.searchsorted(cumulated, generator.random(count), side="right")]

    split_of_row = at_random(len(pool))
    groups = pool.groups if by_group and pool.groups is not None else [()] * len(pool)
    known = sorted({group for row in groups for group in row}, key=str)
    split_of_group = dict(zip(known, at_random(len(known)), strict=True))
    by_split: dict[str, list[int]] = {name: [] for name in SHARES}
    mixed = 0
    for row, (random_split, sources) in enumerate(zip(split_of_row, groups, strict=True)):
        splits = {split_of_group[group] for group in sources} or {random_split}
        if len(splits) == 1:
            by_split[splits.pop()].append(row)
        else:
            mixed += 1
    return by_split, mixed


def _shuffled(pool: TextSplit, rows: Sequence[int], seed: int, split: str) -> list[list[int]]:
    result = []
    for label in range(len(LABEL_NAMES)):
        generator = np.random.default_rng(derive_seed(seed, "domains", split, label))
        result.append(generator.permutation([row for row in rows if pool.labels[row] == label]).tolist())
    return result


def _bare_and_equally_long(
    texts: Sequence[str], columns: dict[str, list[list[int]]]
) -> tuple[list[str], dict[str, list[list[int]]], dict[str, int]]:
    """Takes marks out, puts rows into triples, cuts each to the shortest of its triple."""
    cut_texts = list(texts)
    seen: set[str] = set()
    remaining: dict[str, list[list[int]]] = {}
    left_out: Counter[str] = Counter()
    # Train comes last, so that it gives up a text that would be in two splits.
    for split in ("test", "validation", "train"):
        remaining[split] = [[] for _ in LABEL_NAMES]
        for triple in zip(*columns[split], strict=False):
            words = [[word for word in texts[row].split() if word not in MARKS] for row in triple]
            shortest = min(map(len, words))
            shortened = [" ".join(text_words[:shortest]) for text_words in words]
            if shortest < LEAST_BARE_WORDS:
                left_out[f"rows of triples under {LEAST_BARE_WORDS} words"] += len(triple)
            elif len(set(shortened)) < len(triple) or not seen.isdisjoint(shortened):
                left_out["rows of triples that repeat a text after the cut"] += len(triple)
            else:
                seen.update(shortened)
                for domain_rows, row, text in zip(remaining[split], triple, shortened, strict=True):
                    domain_rows.append(row)
                    cut_texts[row] = text
    return cut_texts, {split: remaining[split] for split in columns}, dict(left_out)


_PROTOCOL_NOTES = {
    "pooled": "Protocol 'pooled' is the published one: phrases of one film sentence lie in several splits, and the "
    "sources' tokenisation and length give the domain away.",
    "natural": "Texts are as the sources write them: tokenisation and length give the domain away.",
    "normalised": "Every text is written in one convention; length still gives much of the domain away.",
    "bare-words": "Texts are bare words in one convention, cut to the same distribution of lengths in all domains.",
}
