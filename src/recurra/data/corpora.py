"""The corpora that have a name, and the one door to all data: `load_dataset`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, DataError, did_you_mean, unknown
from recurra.core.record import LabelRunRecord, MultiLabelRunRecord
from recurra.data.cleaning import FIRST
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.demo_corpus import generate_demo
from recurra.data.domains import LOCAL_SOURCES, PUBLIC_SOURCES, load_domains
from recurra.data.language.corpora import SOURCES
from recurra.data.reviews import (
    AMAZON_POLARITY,
    AMAZON_REVIEWS,
    PRODUCT_REVIEWS,
    YELP_POLARITY,
    YELP_REVIEWS,
    YELP_SENTENCES,
    load_polarity,
    load_reviews,
)
from recurra.data.splits import length_tail, load_files, rows_of_each_label, stratified_fraction
from recurra.data.sst2 import LAYOUT, PUBLIC_NAME, load_sst2, with_treebank_labels
from recurra.data.tables import TABLE_FORMATS
from recurra.data.unlabelled import UnlabelledSource, with_unlabelled

FILE_PROTOCOL = "split"
# The name of data that lie in no file, in the record of a model that a program trained on its own rows.
IN_MEMORY = "in-memory"
# With 8,000 rows the seed alone moves a model by several points, with three times as many by one.
DEMO_LARGE, DEMO_LARGE_ROWS = "large", 24_000


@dataclass(frozen=True)
class Corpus:
    """A corpus that has a name.

    Attributes:
        name: What to write after ``--data``.
        description: One line.
        public_name: Name on the public hub, if it has one.
        layout: Files of a copy in the data root, or None if it needs none.
        protocols: What each protocol does; the first is the default.
        load: Makes the splits from protocol, seed and data root.
    """

    name: str
    description: str
    public_name: str | None
    layout: str | None
    protocols: dict[str, str]
    load: Callable[[str, int, Path | None], TextDataset]


def _load_demo(protocol: str, split_seed: int, _data_root: Path | None) -> TextDataset:
    if protocol == DEMO_LARGE:
        return replace(generate_demo(seed=split_seed, train_rows=DEMO_LARGE_ROWS), protocol=protocol)
    return generate_demo(seed=split_seed)


_REVIEW_PROTOCOLS = {
    "balanced": "equal numbers of both classes, repeats out, random 80/10/10 by class",
    "all-rows": "every row, repeats out, random 80/10/10 by class",
}
_POLARITY_PROTOCOLS = {
    "sst2-size": "54,576 / 6,822 / 6,823 rows drawn by class, as in the papers; test from the release's test part",
    "official": "every row; 5 % of the train part chooses the checkpoint, the test part is reported",
}
_DOMAIN_PROTOCOLS = {
    "natural": "texts as the sources write them; all phrases of one film sentence in one split",
    "normalised": "as natural, and every text in one convention of tokenisation and marks",
    "bare-words": "as normalised, without marks, and cut so that lengths are spread equally in all domains",
    "pooled": "as the papers: texts as they are, rows cut at random; leaks phrases of film sentences",
}

CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="sst2",
            description="Stanford Sentiment Treebank, two classes: phrases and sentences of film reviews",
            public_name=PUBLIC_NAME,
            layout=LAYOUT,
            protocols={
                "official": "train on GLUE train, choose on sentences held out of it by source, "
                "report GLUE validation (872) and the labelled test sentences (1,821)",
                "pooled": "GLUE train and validation pooled, random 54,576 / 6,822 / 6,823; leaks, as published",
            },
            load=load_sst2,
        ),
        *(
            Corpus(
                name=release.name,
                description=description,
                public_name=release.public_name,
                layout=release.layout,
                protocols=_POLARITY_PROTOCOLS,
                load=partial(load_polarity, release),
            )
            for release, description in (
                (YELP_POLARITY, "Yelp Review Polarity: whole reviews of local businesses, two classes"),
                (AMAZON_POLARITY, "Amazon Review Polarity: titles and reviews of products, two classes"),
            )
        ),
        *(
            Corpus(
                name=reviews.name,
                description=description,
                public_name=None,
                layout=reviews.layout,
                protocols=_REVIEW_PROTOCOLS,
                load=partial(load_reviews, reviews),
            )
            for reviews, description in (
                (YELP_REVIEWS, "Samples of Yelp reviews with stars, two classes; not the Yelp Polarity release"),
                (AMAZON_REVIEWS, "Amazon reviews of 14 product domains (FDU-MTL), two classes; not Amazon Polarity"),
                (YELP_SENTENCES, "Single sentences of Yelp reviews with the label of their review, two classes"),
                (PRODUCT_REVIEWS, "Amazon reviews of 4 product domains as written (Blitzer et al.), two classes"),
            )
        ),
        Corpus(
            name="domains",
            description="Local business, movie or online shopping: yelp_reviews, sst2 and amazon_reviews, a third each",
            public_name=None,
            layout=f"those of {YELP_REVIEWS.name}, sst2 and {AMAZON_REVIEWS.name}",
            protocols=_DOMAIN_PROTOCOLS,
            load=partial(load_domains, "domains", LOCAL_SOURCES),
        ),
        Corpus(
            name="domains_polarity",
            description="The same from yelp_polarity, sst2 and amazon_polarity, as in the papers",
            public_name=f"{YELP_POLARITY.public_name}, {PUBLIC_NAME}, {AMAZON_POLARITY.public_name}",
            layout=f"those of {YELP_POLARITY.name}, sst2 and {AMAZON_POLARITY.name}",
            protocols=_DOMAIN_PROTOCOLS,
            load=partial(load_domains, "domains_polarity", PUBLIC_SOURCES),
        ),
        Corpus(
            name="demo",
            description="Generated reviews in three domains whose sentiment depends on word order; needs no network",
            public_name=None,
            layout=None,
            protocols={
                "held-out": "the test split has sentence patterns and words that train lacks",
                DEMO_LARGE: f"the same with {DEMO_LARGE_ROWS:,} training rows, as `recurra demo` takes it",
            },
            load=_load_demo,
        ),
    )
}


def recorded_data(record: LabelRunRecord) -> DataConfig:
    """The configuration of a run's data."""
    kind = MultiLabelData if isinstance(record, MultiLabelRunRecord) else DataConfig
    return kind.parse(record.config["data"], source="record")


def recorded_split(record: LabelRunRecord, name: str, data_root: Path | None) -> TextSplit:
    """A split of a run's own data, one that its record describes, as it was recorded.

    Raises:
        DataError: If the data cannot be had, or have changed.
    """
    rows = load_dataset(recorded_data(record), data_root).splits.get(name)
    recorded = record.data.splits[name].fingerprint
    if rows is None or rows.fingerprint != recorded:
        found = "missing" if rows is None else rows.fingerprint
        raise DataError(
            f"split '{name}' of '{record.config['data']['name']}' is not what the run was recorded on (fingerprint "
            f"{found}, recorded {recorded}): the data have changed; restore them, or give a file of rows in their place"
        )
    return rows


# Keys that mean nothing for a corpus.
_OF_FILES = (
    "validation",
    "test",
    "group_column",
    "id_column",
    "encoding",
    "clean",
    "label_separator",
    "label_columns",
    "join_labels",
    "skip_unlabelled",
    "folds",
)


def load_dataset(config: DataConfig, data_root: Path | None = None) -> TextDataset:
    """Loads the data that a configuration names, cleaned, split and cut to the subset that it asks for.

    Args:
        config: Corpus or file, protocol, subset. ``length_tail`` applies to every split, then ``fraction`` to train.
        data_root: Folder with local copies of public data, in the layout of the documentation; or None.

    Raises:
        ConfigurationError: For an unknown corpus or protocol.
        DataError: If the data cannot be used.
        UnavailableError: If it is neither in the data root nor to be had.
    """
    if data_root is not None and not data_root.is_dir():
        raise DataError(f"the data root '{data_root}' is not a folder; give --data-root DIR (or RECURRA_DATA_ROOT)")
    corpus = CORPORA.get(config.name)
    if config.name == IN_MEMORY:
        raise DataError(
            "the run was trained on texts in memory, which were not kept; evaluate it on a labelled file (--data FILE)"
        )
    if corpus is None:
        _check_looks_like_file(config.name)
        _check_protocol(config, [FILE_PROTOCOL])
        dataset = load_files(config)
    else:
        given = [key for key in _OF_FILES if getattr(config, key, None) not in (None, False, FIRST)]
        if given:
            raise ConfigurationError(
                f"'{given[0]}' is for your own files; the corpus '{corpus.name}' has its own splits"
            )
        protocol = _check_protocol(config, list(corpus.protocols))
        dataset = corpus.load(protocol, config.split_seed, data_root)
        if config.auxiliary is not None:
            dataset = with_treebank_labels(dataset, data_root)
    dataset = _subset(dataset, config)
    if config.unlabelled is None:
        return dataset
    sources = [_unlabelled_source(name, config, data_root) for name in config.unlabelled_sources]
    return with_unlabelled(dataset, sources, sentences=config.unlabelled_unit == "sentences", clean=config.clean)


def _unlabelled_source(name: str, config: DataConfig, data_root: Path | None) -> UnlabelledSource:
    if name not in CORPORA:
        return UnlabelledSource.of_file(Path(name), config.text_column, config.label_column, config.encoding)
    corpus = CORPORA[name]
    dataset = corpus.load(next(iter(corpus.protocols)), config.split_seed, data_root)
    return UnlabelledSource(name, dataset.splits["train"].texts)


def _check_looks_like_file(name: str) -> None:
    if name in SOURCES:
        raise ConfigurationError(
            f"'{name}' is running text for language modelling and has no labels; allowed: {', '.join(CORPORA)}, "
            f"or the path of a labelled file ({', '.join(TABLE_FORMATS)})"
        )
    if not Path(name).suffix and not Path(name).exists():
        raise ConfigurationError(
            f"unknown corpus '{name}'{did_you_mean(name, [*CORPORA, *SOURCES])}; allowed: {', '.join(CORPORA)}, "
            f"or the path of a file ({', '.join(TABLE_FORMATS)})"
        )


def _check_protocol(config: DataConfig, allowed: list[str]) -> str:
    if config.protocol is None:
        return allowed[0]
    if config.protocol not in allowed:
        raise ConfigurationError(unknown(f"protocol of '{config.name}'", config.protocol, allowed))
    return config.protocol


def _subset(dataset: TextDataset, config: DataConfig) -> TextDataset:
    splits, notes = dict(dataset.splits), list(dataset.notes)
    if config.length_tail is not None:
        tail, share = config.length_tail, config.tail_fraction
        splits = {name: length_tail(split, tail, share) for name, split in splits.items()}
        notes.append(f"Only the {tail} {share:.0%} of every split, by words: trained and tested on this subset alone.")
    if config.fraction < 1:
        whole = splits["train"]
        present = _present(whole)
        if round(len(whole) * config.fraction) < len(present):
            raise DataError(
                f"fraction {config.fraction:g} of the {len(whole):,} train rows of '{dataset.name}' is fewer rows than "
                f"the {len(present)} classes; take a larger fraction"
            )
        splits["train"] = stratified_fraction(whole, config.fraction, config.split_seed)
        notes.append(f"{len(splits['train'])} of {len(whole)} train rows ({config.fraction:.0%}), stratified by label.")
    if config.rows_per_label is not None:
        if splits["train"].labels.ndim == 2:
            raise DataError(
                f"rows_per_label is {config.rows_per_label} and a row of '{dataset.name}' may have several labels; "
                "take fraction instead"
            )
        for name in ("train", dataset.selection_split):
            splits[name] = rows_of_each_label(splits[name], config.rows_per_label, config.split_seed)
        notes.append(
            f"{config.rows_per_label:,} rows of each label in train and in {dataset.selection_split}, at most."
        )
    present = _present(splits["train"])
    if len(present) < 2:
        only = f"one class only in train: '{dataset.label_names[present[0]]}'" if len(present) else "no class in train"
        raise DataError(f"the subset of '{dataset.name}' leaves {only}; take a larger tail_fraction")
    return replace(dataset, splits=splits, notes=notes)


def _present(split: TextSplit) -> npt.NDArray[np.int64]:
    """Indices of the labels that occur in a split."""
    return np.unique(split.labels) if split.labels.ndim == 1 else np.flatnonzero(split.labels.any(axis=0))
