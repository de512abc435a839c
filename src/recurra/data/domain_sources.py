"""The corpora behind the domain corpus: local reviews, or the public polarity releases, with SST-2's film phrases."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from recurra.data.cleaning import clean_texts
from recurra.data.dataset import TextSplit
from recurra.data.domains import DomainSource
from recurra.data.polarity import AMAZON_POLARITY, YELP_POLARITY, Release, draw, read_release
from recurra.data.pools import joined
from recurra.data.reviews import AMAZON_REVIEWS, YELP_REVIEWS, LocalReviews, read_reviews
from recurra.data.sst2_source import read_glue_parts, read_sentence_sources

# A release of millions is not read whole for 22,740 rows; some fall out as repeats or by the cut.
DRAWN_ROWS = 40_000


def read_movies(_seed: int, data_root: Path | None) -> tuple[TextSplit, dict[str, int]]:
    """GLUE train and validation of SST-2, as in the papers; groups are the source sentences where they are known.

    Raises:
        DataError: If a local file is damaged.
        UnavailableError: If there is no local copy and the hub cannot be reached.
    """
    parts, _ = read_glue_parts(data_root)
    sources = read_sentence_sources(data_root)
    pool = joined(
        "sst2",
        [
            TextSplit(
                name=part,
                texts=clean_texts(parts[part].texts),
                labels=np.zeros(len(parts[part].texts), dtype=np.int64),
                ids=[f"{part}-{index}" for index in parts[part].indices],
                groups=None if sources is None else sources.groups(part, parts[part].indices),
            )
            for part in ("train", "validation")
        ],
    )
    return pool, {}


def _read_local(reviews: LocalReviews, _seed: int, data_root: Path | None) -> tuple[TextSplit, dict[str, int]]:
    return read_reviews(reviews, data_root)


def _read_public(release: Release, seed: int, data_root: Path | None) -> tuple[TextSplit, dict[str, int]]:
    table = read_release(release, data_root)["train"]
    sizes = {"pool": min(DRAWN_ROWS, table.num_rows)}
    dropped: Counter[str] = Counter()
    return draw(table, sizes, seed=seed, part="train", seen=set(), dropped=dropped)["pool"], dict(dropped)


_MOVIES = DomainSource("sst2", read_movies, grouped=True)
LOCAL_SOURCES = (
    DomainSource(YELP_REVIEWS.name, partial(_read_local, YELP_REVIEWS)),
    _MOVIES,
    DomainSource(AMAZON_REVIEWS.name, partial(_read_local, AMAZON_REVIEWS)),
)
PUBLIC_SOURCES = (
    DomainSource(YELP_POLARITY.name, partial(_read_public, YELP_POLARITY)),
    _MOVIES,
    DomainSource(AMAZON_POLARITY.name, partial(_read_public, AMAZON_POLARITY)),
)
