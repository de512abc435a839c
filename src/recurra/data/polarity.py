"""The polarity releases of Yelp and Amazon reviews (Zhang et al. 2015, arXiv 1509.01626), by public name.

Both are balanced, 1-2 stars negative, and have a train and a test part: 560,000 / 38,000 reviews of Yelp, 3.6 million /
400,000 of Amazon. Under every protocol the test split comes from the release's test part, train and validation from its
train part. Rows are drawn in an order that the seed decides, by class; a row whose text was drawn before (case and
punctuation aside) is passed over and counted. Test is drawn first, then validation, then train: what goes is train's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recurra.core.errors import DataError
from recurra.core.hub import hub_dataset
from recurra.core.seeds import derive_seed
from recurra.data.cleaning import clean_text
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.parquet import parquet_columns, read_parquet_table
from recurra.data.pools import text_identity
from recurra.data.subsets import apportion

LABEL_NAMES = ["negative", "positive"]
PARTS = ("train", "test")
# SST-2's sizes, which the papers gave to the Yelp reviews too.
PAPER_SIZES = {"train": 54_576, "validation": 6_822, "test": 6_823}
OFFICIAL_VALIDATION_SHARE = 0.05

_DRAWN_AT_ONCE = 4096


@dataclass(frozen=True)
class Release:
    """A polarity release.

    Attributes:
        name: Name of the corpus, and of the folder of a local copy.
        public_name: Name on the hub.
    """

    name: str
    public_name: str

    @property
    def layout(self) -> str:
        """The files of a local copy, for messages and listings."""
        return f"DIR/{self.name}/{{train,test}}.parquet (columns text, label)"


YELP_POLARITY = Release("yelp_polarity", "fancyzhx/yelp_polarity")
AMAZON_POLARITY = Release("amazon_polarity", "mteb/amazon_polarity")


def load_polarity(release: Release, protocol: str, split_seed: int, data_root: Path | None) -> TextDataset:
    """Loads a polarity release.

    Args:
        release: Which.
        protocol: ``sst2-size`` (54,576 / 6,822 / 6,823 rows, as in the papers) or ``official`` (every row).
        split_seed: Decides which rows are drawn, and which train rows validate.
        data_root: Folder with a local copy, or None for the public name.

    Raises:
        DataError: If a local file is damaged.
        UnavailableError: If there is no local copy and the hub cannot be reached.
    """
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
    """Reads both parts as Arrow tables with the columns ``text`` and ``label``; the rows stay out of Python.

    Raises:
        DataError: If a local file is damaged, or not the release.
        UnavailableError: If there is no local copy and the hub cannot be reached.
    """
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
        table: Columns ``text`` and ``label``.
        sizes: Rows of each split; the first is filled first. Fewer if the part has no more.
        seed: Decides the order in which rows are drawn.
        part: Name of the part, for ids and counts.
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
