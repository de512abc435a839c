"""Real reviews with sentiment that lie in a data root: samples of Yelp's and Amazon's, not the polarity releases.

``yelp_reviews``    whole Yelp reviews, a union of published samples; 1-2 stars negative, 4-5 positive. Text as written.
``amazon_reviews``  the 14 Amazon domains of FDU-MTL (Liu et al., "Adversarial Multi-task Learning for Text
                    Classification", ACL 2017), lower-cased and tokenised by their authors.
``yelp_sentences``  single sentences of Yelp reviews with the label of their review (Shen et al., "Style Transfer from
                    Non-Parallel Text by Cross-Alignment", NeurIPS 2017), lower-cased, at most 15 words.
``product_reviews`` Amazon reviews of 4 domains with their own case and line breaks (Blitzer et al., "Biographies,
                    Bollywood, Boom-boxes and Blenders", ACL 2007), without their titles.

The parts of a release are put together, rows without text and repeats are left out and counted, and the rest is cut
80/10/10 by a seed, every class in its proportion. So no text, case and punctuation aside, is in two splits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recurra.core.errors import DataError, UnavailableError
from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.parquet import read_parquet_columns
from recurra.data.pools import add_counts, balanced, checked_rows, cut_by_label, joined, without_empty, without_repeats

LABEL_NAMES = ["negative", "positive"]


@dataclass(frozen=True)
class LocalReviews:
    """Reviews of a data root.

    Attributes:
        name: Name of the corpus.
        folder: Folder of the data root, with a Parquet file for each part.
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
    """Loads local reviews as a sentiment corpus.

    Args:
        reviews: Which.
        protocol: ``balanced`` (equal numbers of both classes) or ``all-rows``.
        split_seed: Chooses the rows of a balanced set, and the splits.
        data_root: Folder with the reviews.

    Raises:
        DataError: If a file is damaged, or too small.
        UnavailableError: If there is no local copy.
    """
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

    Raises:
        DataError: If a file is damaged.
        UnavailableError: If there is no local copy.
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
