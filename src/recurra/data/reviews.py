"""Reviews with stars or a label: makes pools, splits and corpora of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recurra.core.configuration import derive_seed
from recurra.core.errors import DataError
from recurra.data.cleaning import clean_text, clean_texts
from recurra.data.dataset import TextDataset, TextSplit, joined
from recurra.data.releases import Release
from recurra.data.splits import apportion
from recurra.data.words import text_identity

HELD_OUT_SHARES = {"validation": 0.1, "test": 0.1}


def one_pool(splits: Sequence[TextSplit]) -> tuple[TextSplit, dict[str, int]]:
    """Joins splits, keeps one row of each text (`text_identity`), and none that is empty or has several labels.

    Counts of what is left out say in which split a repeat is.
    """
    pool = joined("pool", splits)
    parts = [split.name for split in splits for _ in split.texts]
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(pool.texts):
        rows_of[text_identity(text)].append(row)
    chosen: list[int] = []
    counts: Counter[str] = Counter()
    if empty := rows_of.pop("", []):
        counts["empty after cleaning"] = len(empty)
    for original, *repeats in rows_of.values():
        if any(pool.labels[row] != pool.labels[original] for row in repeats):
            counts["text stands with several labels"] += 1 + len(repeats)
            continue
        chosen.append(original)
        for row in repeats:
            of_other = f"a row of {parts[original]}" if parts[row] != parts[original] else "another of its rows"
            counts[f"{parts[row]}: repeats {of_other}"] += 1
    return pool.select(chosen), dict(counts)


def balanced(pool: TextSplit, seed: int) -> tuple[TextSplit, dict[str, int]]:
    """Draws as many rows of each class as the rarest class has; the rows keep their order."""
    by_label = [np.flatnonzero(pool.labels == label) for label in np.unique(pool.labels)]
    size = min(map(len, by_label))
    samples = [
        np.random.default_rng(derive_seed(seed, "balance", label)).permutation(rows)[:size]
        for label, rows in enumerate(by_label)
    ]
    chosen = pool.select(np.sort(np.concatenate(samples)))
    return chosen, {"beyond the rarer class": len(pool) - len(chosen)} if len(chosen) < len(pool) else {}


def cut_by_label(pool: TextSplit, seed: int) -> dict[str, TextSplit]:
    """Cuts rows at random into train, validation and test (80/10/10), every class in its proportion."""
    labels, counts = np.unique(pool.labels, return_counts=True)
    held_out = [apportion(counts, share) for share in HELD_OUT_SHARES.values()]
    names = (*HELD_OUT_SHARES, "train")
    chosen: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in ("train", *HELD_OUT_SHARES)}
    for position, label in enumerate(labels.tolist()):
        rows = np.random.default_rng(derive_seed(seed, "cut", label)).permutation(np.flatnonzero(pool.labels == label))
        parts = np.split(rows, np.cumsum([sizes[position] for sizes in held_out]))
        for name, part in zip(names, parts, strict=True):
            chosen[name].append(part)
    return {name: pool.select(np.sort(np.concatenate(parts)), name=name) for name, parts in chosen.items()}


LABEL_NAMES = ["negative", "positive"]
# SST-2's sizes, which the papers gave to the Yelp reviews too.
PAPER_SIZES = {"train": 54_576, "validation": 6_822, "test": 6_823}
OFFICIAL_VALIDATION_SHARE = 0.05

_DRAWN_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Reviews(Release):
    """Reviews with the labels 0 (negative) and 1 (positive).

    Rows are drawn from a release with a public name, which has millions; other releases are read whole.
    """

    parts: tuple[str, ...] = ("train", "test")
    columns: tuple[str, ...] = ("text", "label")
    note: str = ""


YELP_POLARITY = Reviews(
    name="yelp_polarity",
    description="Yelp Review Polarity: whole reviews of local businesses, two classes",
    public_name="fancyzhx/yelp_polarity",
)
AMAZON_POLARITY = Reviews(
    name="amazon_polarity",
    description="Amazon Review Polarity: titles and reviews of products, two classes",
    public_name="mteb/amazon_polarity",
)
YELP_REVIEWS = Reviews(
    name="yelp_reviews",
    description="Samples of Yelp reviews with stars, two classes; not the Yelp Polarity release",
    instead="yelp_polarity",
    note="A union of published samples of Yelp reviews, not the Yelp Polarity release of the papers.",
)
AMAZON_REVIEWS = Reviews(
    name="amazon_reviews",
    description="Amazon reviews of 14 product domains (FDU-MTL), two classes; not Amazon Polarity",
    folder="amazon_fdu_mtl",
    instead="amazon_polarity",
    note="Amazon reviews of 14 product domains (FDU-MTL), tokenised and lower-cased by its authors, the last letters "
    "of most texts cut off; not the Amazon Polarity release of the papers.",
)
YELP_SENTENCES = Reviews(
    name="yelp_sentences",
    description="Single sentences of Yelp reviews with the label of their review, two classes",
    instead="yelp_polarity",
    note="A sentence has the label of its whole review, so some say nothing of it or the contrary.",
    parts=("upstream_dev", "upstream_test"),
)
PRODUCT_REVIEWS = Reviews(
    name="product_reviews",
    description="Amazon reviews of 4 product domains as written (Blitzer et al.), two classes",
    folder="amazon_blitzer",
    instead="amazon_polarity",
    note="Amazon reviews of 4 product domains (Multi-Domain Sentiment Dataset), without titles; not Amazon Polarity.",
    parts=("all",),
    columns=("content", "label"),
)
REVIEWS = (YELP_POLARITY, AMAZON_POLARITY, YELP_REVIEWS, AMAZON_REVIEWS, YELP_SENTENCES, PRODUCT_REVIEWS)


def _read_tables(reviews: Reviews, data_root: Path | None) -> dict[str, pa.Table]:
    """The parts of a release, each with a column of text and one of labels."""
    tables = {}
    for part, table in reviews.read(data_root).items():
        *texts, labels = table.columns
        if len(texts) > 1:
            kind = pa.large_string()
            cells = [column.cast(kind) for column in texts]
            joined_cells = pc.binary_join_element_wise(
                *cells, pa.scalar(" ", kind), null_handling="replace", null_replacement=""
            )
            texts = [joined_cells]
        is_text = pa.types.is_string(texts[0].type) or pa.types.is_large_string(texts[0].type)
        is_label = pa.types.is_integer(labels.type) and set(labels.unique().to_pylist()) <= {0, 1}
        if not (is_text and is_label and table.num_rows):
            raise DataError(
                f"{part} of {reviews.name} ({reviews.public_name or 'a local copy'}) has another layout: label must be "
                f"0 or 1 and {reviews.columns[0]} text, in one row at least; the layout is {reviews.layout}"
            )
        tables[part] = pa.table({"text": texts[0], "label": labels})
    return tables


def load_reviews(reviews: Reviews, protocol: str, split_seed: int, data_root: Path | None) -> TextDataset:
    """Loads reviews as a sentiment corpus."""
    load = _splits_of_all if reviews.public_name is None else _splits_drawn
    return load(reviews, protocol, split_seed, data_root)


def _splits_of_all(reviews: Reviews, protocol: str, seed: int, data_root: Path | None) -> TextDataset:
    """Splits of all rows, or under ``balanced`` of equally many rows of each class."""
    pool, dropped = read_pool(reviews, seed, data_root)
    if protocol == "balanced":
        pool, beyond = balanced(pool, seed)
        dropped |= beyond
    repeats = sum(count for reason, count in dropped.items() if "repeats" in reason)
    note = f"{repeats:,} repeated texts (case and punctuation aside) were taken out before the split."
    splits, notes = cut_by_label(pool, seed), [reviews.note, note]
    return TextDataset(reviews.name, protocol, LABEL_NAMES, splits, dropped=dropped, notes=notes)


def _splits_drawn(reviews: Reviews, protocol: str, seed: int, data_root: Path | None) -> TextDataset:
    """Splits of every row of a release (``official``), or of as many as in the papers."""
    tables = _read_tables(reviews, data_root)
    from_train, from_test = tables["train"].num_rows, tables["test"].num_rows
    validation = round(OFFICIAL_VALIDATION_SHARE * from_train)
    if protocol != "official":
        # If the parts have fewer rows, all of them in the same proportion.
        wanted = PAPER_SIZES["train"] + PAPER_SIZES["validation"]
        from_train, from_test = min(wanted, from_train), min(PAPER_SIZES["test"], from_test)
        validation = PAPER_SIZES["validation"] * from_train // wanted
    seen: set[str] = set()
    dropped: Counter[str] = Counter()
    parts = _draw(tables["test"], {"test": from_test}, seed=seed, part="test", seen=seen, dropped=dropped)
    rest = {"validation": validation, "train": from_train - validation}
    parts |= _draw(tables["train"], rest, seed=seed, part="train", seen=seen, dropped=dropped)
    splits = {name: parts[name] for name in ("train", "validation", "test")}
    notes = []
    if protocol != "official":
        notes.append("Train and validation are drawn from the release's train part, test from its test part.")
        if any(len(split) < PAPER_SIZES[name] for name, split in splits.items()):
            sizes_taken = " / ".join(f"{len(split):,}" for split in splits.values())
            notes.append(f"The release here has too few rows for 54,576 / 6,822 / 6,823; taken: {sizes_taken}.")
    return TextDataset(reviews.name, protocol, LABEL_NAMES, splits, dropped=dict(dropped), notes=notes)


def read_pool(
    reviews: Reviews, seed: int, data_root: Path | None, *, most: int = 0
) -> tuple[TextSplit, dict[str, int]]:
    """One pool of cleaned rows without repeats: all rows, or ``most`` drawn from the train part of a public release."""
    tables = _read_tables(reviews, data_root)
    if reviews.public_name is not None:
        sizes = {"pool": min(most, tables["train"].num_rows)}
        counts: Counter[str] = Counter()
        return _draw(tables["train"], sizes, seed=seed, part="train", seen=set(), dropped=counts)["pool"], dict(counts)
    pools = [
        TextSplit(
            name=part,
            texts=clean_texts(text or "" for text in table.column("text").to_pylist()),
            labels=table.column("label").to_numpy(),
            ids=[f"{part}-{row}" for row in range(table.num_rows)],
        )
        for part, table in tables.items()
    ]
    return one_pool(pools)


def _draw(
    table: pa.Table, sizes: Mapping[str, int], *, seed: int, part: str, seen: set[str], dropped: Counter[str]
) -> dict[str, TextSplit]:
    """Draws splits from one part, every class in its proportion; reads the part only as far as needed."""
    labels: npt.NDArray[np.int64] = table.column("label").to_numpy().astype(np.int64)
    counts = np.bincount(labels, minlength=len(LABEL_NAMES))
    quotas = {name: _quota(counts, size) for name, size in sizes.items()}
    chosen: dict[str, list[tuple[int, str]]] = {name: [] for name in sizes}
    order = np.random.default_rng(derive_seed(seed, "draw", part)).permutation(len(labels))
    for start in range(0, len(order), _DRAWN_AT_ONCE):
        if not any(quota.any() for quota in quotas.values()):
            break
        rows = order[start : start + _DRAWN_AT_ONCE]
        for row, raw in zip(rows.tolist(), table.column("text").take(pa.array(rows)).to_pylist(), strict=True):
            label = labels[row]
            split = next((name for name, quota in quotas.items() if quota[label]), None)
            if split is None:
                continue
            # The Yelp release writes \n for a line break, and \" for a quote.
            text = clean_text((raw or "").replace("\\n", " ").replace('\\"', '"'))
            identity = text_identity(text)
            if not text or identity in seen:
                dropped[f"{part}: " + ("repeats a row drawn before" if text else "empty after cleaning")] += 1
                continue
            seen.add(identity)
            quotas[split][label] -= 1
            chosen[split].append((row, text))
    return {
        name: TextSplit(
            name=name,
            texts=[text for _, text in rows],
            labels=labels[[row for row, _ in rows]],
            ids=[f"{part}-{row}" for row, _ in rows],
        )
        for name, rows in chosen.items()
    }


def _quota(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Rows to draw of each class, in proportion."""
    total = int(counts.sum())
    return np.minimum(counts, apportion(counts, min(size, total) / total)) if size else np.zeros_like(counts)
