"""Reviews with stars or a label: pools, splits, and the corpora made of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recurra.core.configuration import derive_seed
from recurra.core.errors import DataError, UnavailableError
from recurra.core.hub import hub_dataset
from recurra.data.cleaning import clean_text, clean_texts
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.parquet import parquet_columns, read_parquet_columns, read_parquet_table
from recurra.data.splits import apportion

VALIDATION_SHARE = TEST_SHARE = 0.1
# Fewer rows cannot give every class a row in each of three splits.
MINIMUM_ROWS_A_CLASS = 3
# A row of fewer words is found inside other rows by chance and gives nothing away.
CONTAINED_WORDS = 3

_NOT_WORD = re.compile(r"[\W_]+")
# The same for ASCII, where it is ten times as quick.
_ASCII_NOT_WORD = {code: " " for code in range(128) if not chr(code).isalnum()}

Rows = npt.NDArray[np.int64]


def text_identity(text: str) -> str:
    """What makes two texts the same: the words without case, punctuation and spacing.

    A text of punctuation alone is kept as it is.
    """
    if text.isascii():
        return " ".join(text.lower().translate(_ASCII_NOT_WORD).split()) or text.strip()
    return _NOT_WORD.sub(" ", text.casefold()).strip() or text.strip()


def checked_rows(columns: Mapping[str, Sequence[Any]], source: str, layout: str) -> None:
    """Refuses rows that are no texts with the labels 0 (negative) and 1 (positive)."""
    if not columns["text"]:
        raise DataError(f"'{source}' has no rows; fetch it again")
    if not set(columns["label"]) <= {0, 1} or not all(isinstance(text, str) for text in columns["text"]):
        raise DataError(f"'{source}': text must be text and label 0 or 1; the layout is {layout}")


def without_repeats(pool: TextSplit, parts: Sequence[str]) -> tuple[TextSplit, dict[str, int]]:
    """Leaves one row of each text (`text_identity`), and none of a text that stands with several labels.

    Args:
        pool: Rows in a fixed order; the first of equal ones stays.
        parts: For each row the part of the release, or the source, that it comes from.

    Returns:
        The rows that stay, in order, and how many were left out, by reason.
    """
    first: dict[str, int] = {}
    repeats: list[tuple[int, int]] = []
    opposed: set[int] = set()
    for row, text in enumerate(pool.texts):
        original = first.setdefault(text_identity(text), row)
        if original != row:
            repeats.append((row, original))
            if pool.labels[row] != pool.labels[original]:
                opposed.add(original)
    counts: Counter[str] = Counter()
    gone = set(opposed)
    for row, original in repeats:
        gone.add(row)
        if original in opposed:
            counts["text stands with several labels"] += 1
        elif parts[row] == parts[original]:
            counts[f"{parts[row]}: repeats another of its rows"] += 1
        else:
            counts[f"{parts[row]}: repeats a row of {parts[original]}"] += 1
    if opposed:
        counts["text stands with several labels"] += len(opposed)
    return pool.select([row for row in range(len(pool)) if row not in gone]), dict(counts)


def without_empty(pool: TextSplit) -> tuple[TextSplit, dict[str, int]]:
    """Leaves out rows without text after cleaning, and counts them."""
    filled = [row for row, text in enumerate(pool.texts) if text]
    if len(filled) == len(pool):
        return pool, {}
    return pool.select(filled), {"empty after cleaning": len(pool) - len(filled)}


def balanced(pool: TextSplit, seed: int) -> tuple[TextSplit, dict[str, int]]:
    """Draws the same number of rows of each class, as many as the rarest has; the rows keep their order."""
    by_label = [np.flatnonzero(pool.labels == label) for label in np.unique(pool.labels)]
    size = min(map(len, by_label))
    drawn = [
        np.random.default_rng(derive_seed(seed, "balance", label)).permutation(rows)[:size]
        for label, rows in enumerate(by_label)
    ]
    kept = pool.select(np.sort(np.concatenate(drawn)))
    return kept, {"beyond the rarer class": len(pool) - len(kept)} if len(kept) < len(pool) else {}


def cut_by_label(pool: TextSplit, seed: int, *, source: str) -> dict[str, TextSplit]:
    """Cuts rows at random into train, validation and test (80/10/10), every class in its proportion."""
    labels, counts = np.unique(pool.labels, return_counts=True)
    if counts.min() < MINIMUM_ROWS_A_CLASS:
        raise DataError(
            f"{source}: a class has {counts.min()} different texts, at least {MINIMUM_ROWS_A_CLASS} are needed to cut "
            "train, validation and test; give the whole release"
        )
    held_out = {name: apportion(counts, share) for name, share in _SHARES.items()}
    chosen: dict[str, list[Rows]] = {"train": [], **{name: [] for name in held_out}}
    for position, label in enumerate(labels.tolist()):
        rows = np.random.default_rng(derive_seed(seed, "cut", label)).permutation(np.flatnonzero(pool.labels == label))
        start = 0
        for name, sizes in held_out.items():
            chosen[name].append(rows[start : start + sizes[position]])
            start += int(sizes[position])
        chosen["train"].append(rows[start:])
    return {name: pool.select(np.sort(np.concatenate(rows)), name=name) for name, rows in chosen.items()}


_SHARES = {"validation": VALIDATION_SHARE, "test": TEST_SHARE}


def add_counts(*parts: Mapping[str, int]) -> dict[str, int]:
    """Adds counts of left-out rows, in the order in which the reasons first occur."""
    total: dict[str, int] = {}
    for part in parts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return total


def joined(name: str, pools: Iterable[TextSplit]) -> TextSplit:
    """Puts rows of several sources one after the other; rows without groups get an empty one if others have any."""
    pools = list(pools)
    groups = None
    if any(pool.groups is not None for pool in pools):
        groups = [group for pool in pools for group in (pool.groups or [()] * len(pool))]
    return TextSplit(
        name=name,
        texts=[text for pool in pools for text in pool.texts],
        labels=np.concatenate([pool.labels for pool in pools]),
        ids=[identity for pool in pools for identity in pool.ids],
        groups=groups,
    )


def rows_that_give_away(queries: Iterable[str], rows: Sequence[str]) -> set[int]:
    """Finds the rows that equal a query or hold it as a run of words, case and punctuation aside.

    Returns:
        Positions in ``rows``. Queries of fewer than three words count only if the row equals them.
    """
    equal: set[tuple[str, ...]] = set()
    by_start: defaultdict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for query in queries:
        words = _words(query)
        equal.add(words)
        if len(words) >= CONTAINED_WORDS:
            by_start[words[:CONTAINED_WORDS]].add(words)
    found = set()
    for position, row in enumerate(rows):
        words = _words(row)
        starts = range(len(words) - CONTAINED_WORDS + 1)
        if words in equal or any(
            words[start : start + len(query)] == query
            for start in starts
            for query in by_start.get(words[start : start + CONTAINED_WORDS], ())
        ):
            found.add(position)
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))


LABEL_NAMES = ["negative", "positive"]
PARTS = ("train", "test")
# SST-2's sizes, which the papers gave to the Yelp reviews too.
PAPER_SIZES = {"train": 54_576, "validation": 6_822, "test": 6_823}
OFFICIAL_VALIDATION_SHARE = 0.05

_DRAWN_AT_ONCE = 4096


@dataclass(frozen=True)
class Release:
    """A polarity release."""

    name: str
    public_name: str

    @property
    def layout(self) -> str:
        """The files of a local copy, for messages and listings."""
        return f"DIR/{self.name}/{{train,test}}.parquet (columns text, label)"


YELP_POLARITY = Release("yelp_polarity", "fancyzhx/yelp_polarity")
AMAZON_POLARITY = Release("amazon_polarity", "mteb/amazon_polarity")


def load_polarity(release: Release, protocol: str, split_seed: int, data_root: Path | None) -> TextDataset:
    """Loads a polarity release."""
    tables = read_release(release, data_root)
    rows = {part: table.num_rows for part, table in tables.items()}
    sizes = _official_sizes(rows) if protocol == "official" else _paper_sizes(rows)
    seen: set[str] = set()
    dropped: Counter[str] = Counter()
    test = draw(tables["test"], {"test": sizes["test"]}, seed=split_seed, part="test", seen=seen, dropped=dropped)
    rest = {name: sizes[name] for name in ("validation", "train")}
    drawn = test | draw(tables["train"], rest, seed=split_seed, part="train", seen=seen, dropped=dropped)
    splits = {name: drawn[name] for name in ("train", "validation", "test")}
    notes = []
    if protocol != "official":
        notes.append("Train and validation are drawn from the release's train part, test from its test part.")
        if any(len(split) < PAPER_SIZES[name] for name, split in splits.items()):
            got = " / ".join(f"{len(split):,}" for split in splits.values())
            notes.append(f"The release here has too few rows for 54,576 / 6,822 / 6,823; taken: {got}.")
    return TextDataset(
        name=release.name,
        protocol=protocol,
        label_names=LABEL_NAMES,
        splits=splits,
        selection_split="validation",
        reported_splits=["validation", "test"],
        dropped=dict(dropped),
        notes=notes,
    )


def read_release(release: Release, data_root: Path | None) -> dict[str, pa.Table]:
    """Reads both parts as Arrow tables with the columns ``text`` and ``label``; the rows stay out of Python."""
    folder = None if data_root is None else data_root / release.name
    if folder is not None and folder.is_dir():
        paths = {part: folder / f"{part}.parquet" for part in PARTS}
        missing = [path.name for path in paths.values() if not path.is_file()]
        if missing:
            raise DataError(f"'{folder}' lacks {', '.join(missing)}; the layout is {release.layout}")
        tables = {
            part: read_parquet_table(path, [*_text_columns(parquet_columns(path)), "label"])
            for part, path in paths.items()
        }
        source = str(folder)
    else:
        public = hub_dataset(release.name, release.public_name, data_root, folder=release.name, layout=release.layout)
        absent = [part for part in PARTS if part not in public]
        if absent:
            raise DataError(
                f"'{release.public_name}' has no part {', '.join(absent)}; its parts are {', '.join(public)}"
            )
        tables = {part: public[part].with_format("arrow")[:] for part in PARTS}
        source = release.public_name
    return {part: _checked(table, source, release) for part, table in tables.items()}


def _text_columns(present: list[str]) -> list[str]:
    """``text``, or the title and the content that an earlier release of Amazon's keeps apart."""
    return ["text"] if "text" in present or "content" not in present else ["title", "content"]


def _checked(table: pa.Table, source: str, release: Release) -> pa.Table:
    if "text" not in table.column_names and {"title", "content"} <= set(table.column_names):
        texts = [f"{title or ''} {content or ''}" for title, content in _pairs(table)]
        table = table.append_column("text", pa.array(texts, pa.large_string()))
    lacking = [column for column in ("text", "label") if column not in table.column_names]
    if lacking:
        raise DataError(f"'{source}' has no column {', '.join(lacking)}; the layout is {release.layout}")
    labels = table.column("label")
    if not pa.types.is_integer(labels.type) or not set(labels.unique().to_pylist()) <= {0, 1} or not table.num_rows:
        raise DataError(f"'{source}' is not {release.name}: label must be 0 or 1; the layout is {release.layout}")
    return table.select(["text", "label"])


def _pairs(table: pa.Table) -> Iterator[tuple[str | None, str | None]]:
    for batch in table.select(["title", "content"]).to_batches():
        yield from zip(batch.column("title").to_pylist(), batch.column("content").to_pylist(), strict=True)


def _paper_sizes(rows: Mapping[str, int]) -> dict[str, int]:
    """The papers' sizes, or as large as the parts allow in the same proportion."""
    wanted = PAPER_SIZES["train"] + PAPER_SIZES["validation"]
    from_train = min(wanted, rows["train"])
    validation = PAPER_SIZES["validation"] * from_train // wanted
    return {
        "train": from_train - validation,
        "validation": validation,
        "test": min(PAPER_SIZES["test"], rows["test"]),
    }


def _official_sizes(rows: Mapping[str, int]) -> dict[str, int]:
    validation = round(OFFICIAL_VALIDATION_SHARE * rows["train"])
    return {"train": rows["train"] - validation, "validation": validation, "test": rows["test"]}


def draw(
    table: pa.Table, sizes: Mapping[str, int], *, seed: int, part: str, seen: set[str], dropped: Counter[str]
) -> dict[str, TextSplit]:
    """Draws splits from one part, each class in its proportion; the part is read only as far as needed.

    Args:
        sizes: Rows of each split; the first is filled first. Fewer if the part has no more.
        seen: Identities of texts that were drawn before; grows.
        dropped: Rows passed over, by reason; grows.
    """
    labels: npt.NDArray[np.int64] = table.column("label").to_numpy().astype(np.int64)
    counts = np.bincount(labels, minlength=len(LABEL_NAMES))
    room = {name: _quota(counts, size) for name, size in sizes.items()}
    chosen: dict[str, list[tuple[int, str]]] = {name: [] for name in sizes}
    order = np.random.default_rng(derive_seed(seed, "draw", part)).permutation(len(labels))
    for start in range(0, len(order), _DRAWN_AT_ONCE):
        if not any(left.any() for left in room.values()):
            break
        rows = order[start : start + _DRAWN_AT_ONCE]
        for row, raw in zip(rows.tolist(), table.column("text").take(pa.array(rows)).to_pylist(), strict=True):
            label = labels[row]
            split = next((name for name, left in room.items() if left[label]), None)
            if split is None:
                continue
            text = clean_text(unescaped(raw or ""))
            identity = text_identity(text)
            if not text or identity in seen:
                dropped[f"{part}: " + ("repeats a row drawn before" if text else "empty after cleaning")] += 1
                continue
            seen.add(identity)
            room[split][label] -= 1
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
    total = int(counts.sum())
    if size <= 0:
        return np.zeros_like(counts)
    return np.minimum(counts, apportion(counts, min(size, total) / total))


def unescaped(text: str) -> str:
    r"""Undoes the escapes that the Yelp release keeps in its texts: ``\n`` for a line break, ``\"`` for a quote."""
    return text.replace("\\n", " ").replace('\\"', '"') if "\\" in text else text


@dataclass(frozen=True)
class LocalReviews:
    """Reviews of a data root.

    Attributes:
        instead: Corpus with a public name that could be taken instead.
        note: What a reader of the results must know of it.
        parts: Files of the release, put together before the split.
        text: Column with the text, beside ``label``.
    """

    name: str
    folder: str
    instead: str
    note: str
    parts: tuple[str, ...] = ("train", "test")
    text: str = "text"

    @property
    def layout(self) -> str:
        """The files that are needed, for messages and listings."""
        parts = self.parts[0] if len(self.parts) == 1 else f"{{{','.join(self.parts)}}}"
        return f"DIR/{self.folder}/{parts}.parquet (columns {self.text}, label)"


YELP_REVIEWS = LocalReviews(
    name="yelp_reviews",
    folder="yelp_reviews",
    instead="yelp_polarity",
    note="A union of published samples of Yelp reviews, not the Yelp Polarity release of the papers.",
)
AMAZON_REVIEWS = LocalReviews(
    name="amazon_reviews",
    folder="amazon_fdu_mtl",
    instead="amazon_polarity",
    note="Amazon reviews of 14 product domains (FDU-MTL), tokenised and lower-cased by its authors, the last letters "
    "of most texts cut off; not the Amazon Polarity release of the papers.",
)
YELP_SENTENCES = LocalReviews(
    name="yelp_sentences",
    folder="yelp_sentences",
    instead="yelp_polarity",
    note="A sentence has the label of its whole review, so some say nothing of it or the contrary.",
    parts=("upstream_dev", "upstream_test"),
)
PRODUCT_REVIEWS = LocalReviews(
    name="product_reviews",
    folder="amazon_blitzer",
    instead="amazon_polarity",
    note="Amazon reviews of 4 product domains (Multi-Domain Sentiment Dataset), without titles; not Amazon Polarity.",
    parts=("all",),
    text="content",
)


def load_reviews(reviews: LocalReviews, protocol: str, split_seed: int, data_root: Path | None) -> TextDataset:
    """Loads local reviews as a sentiment corpus."""
    pool, dropped = read_reviews(reviews, data_root)
    if protocol == "balanced":
        pool, beyond = balanced(pool, split_seed)
        dropped = add_counts(dropped, beyond)
    repeats = sum(count for reason, count in dropped.items() if "repeats" in reason)
    return TextDataset(
        name=reviews.name,
        protocol=protocol,
        label_names=LABEL_NAMES,
        splits=cut_by_label(pool, split_seed, source=reviews.name),
        selection_split="validation",
        reported_splits=["validation", "test"],
        dropped=dropped,
        notes=[
            reviews.note,
            f"{repeats:,} repeated texts (case and punctuation aside) were taken out before the split.",
        ],
    )


def read_reviews(reviews: LocalReviews, data_root: Path | None) -> tuple[TextSplit, dict[str, int]]:
    """Reads all parts as one pool of cleaned rows without repeats.

    Returns:
        The pool, ids such as ``train-17`` (row of its part), and counts of what was left out.
    """
    paths = _paths(reviews, data_root)
    pools = []
    for part, path in zip(reviews.parts, paths, strict=True):
        columns = read_parquet_columns(path, (reviews.text, "label"))
        columns = {"text": columns[reviews.text], "label": columns["label"]}
        checked_rows(columns, str(path), reviews.layout)
        pools.append(
            TextSplit(
                name=part,
                texts=clean_texts(columns["text"]),
                labels=np.asarray(columns["label"], dtype=np.int64),
                ids=[f"{part}-{row}" for row in range(len(columns["text"]))],
            )
        )
    filled, empty = without_empty(joined("pool", pools))
    pool, repeats = without_repeats(filled, parts_of(filled.ids))
    return pool, add_counts(empty, repeats)


def parts_of(ids: Iterable[str]) -> list[str]:
    """The part of the release that each row comes from, from ids such as ``train-17``."""
    return [identity.rpartition("-")[0] for identity in ids]


def _paths(reviews: LocalReviews, data_root: Path | None) -> list[Path]:
    cure = (
        f"give --data-root DIR (or RECURRA_DATA_ROOT) with {reviews.layout}, or take {reviews.instead}, "
        "which has a public name"
    )
    if data_root is None or not (data_root / reviews.folder).is_dir():
        tried = "no data root is given" if data_root is None else f"'{data_root}' has no folder {reviews.folder}"
        raise UnavailableError(f"{reviews.name}: {tried} and the sample has no public name; {cure}")
    paths = [data_root / reviews.folder / f"{part}.parquet" for part in reviews.parts]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"'{data_root / reviews.folder}' lacks {', '.join(missing)}; the layout is {reviews.layout}")
    return paths
