"""The named corpora, and `load_dataset`, which loads all data for training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, DataError, did_you_mean, unknown
from recurra.core.record import LabelRunRecord, MultiLabelRunRecord
from recurra.data.cleaning import FIRST, clean_text
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.dataset import TextDataset, TextSplit
from recurra.data.depth_corpora import DEPTH_CORPORA, PROTOCOL, DepthCorpus, generate_depth
from recurra.data.domains import load_domains
from recurra.data.language.corpora import SOURCES
from recurra.data.releases import Release
from recurra.data.reviews import (
    AMAZON_POLARITY,
    AMAZON_REVIEWS,
    REVIEWS,
    YELP_POLARITY,
    YELP_REVIEWS,
    Reviews,
    load_reviews,
)
from recurra.data.splits import length_tail, load_files, rows_of_each_label, stratified_fraction
from recurra.data.sst2 import SST2, load_sst2, with_treebank_labels
from recurra.data.tables import TABLE_FORMATS, stream_texts
from recurra.data.words import rows_that_give_away, text_identity

# The name of data that lie in no file, in the record of a model that a program trained on its own rows.
IN_MEMORY = "in-memory"
DEMO = Path(__file__).parent / "demo"


@dataclass(frozen=True)
class Corpus:
    """A corpus that has a name; of its protocols the first is the default."""

    name: str
    description: str
    protocols: dict[str, str]
    load: Callable[[str, int, Path | None], TextDataset]
    public_name: str | None = None
    layout: str | None = None


def _load_demo(protocol: str, _split_seed: int, _data_root: Path | None) -> TextDataset:
    train, validation, test = (str(DEMO / f"{name}.csv") for name in ("train", "validation", "test"))
    dataset = load_files(DataConfig(name=train, validation=validation, test=test, group_column="address"))
    return replace(dataset, name="demo", protocol=protocol)


def _load_depth(corpus: DepthCorpus, _protocol: str, split_seed: int, _data_root: Path | None) -> TextDataset:
    return generate_depth(corpus, split_seed)


def _released(
    release: Release, protocols: dict[str, str], load: Callable[[str, int, Path | None], TextDataset]
) -> Corpus:
    return Corpus(release.name, release.description, protocols, load, release.public_name, release.layout)


def _domains(name: str, description: str, reviews: tuple[Reviews, Reviews]) -> Corpus:
    sources: tuple[Release, ...] = (reviews[0], SST2, reviews[1])
    public = ", ".join(str(source.public_name) for source in sources)
    return Corpus(
        name=name,
        description=description,
        public_name=public if all(source.public_name for source in sources) else None,
        layout=f"those of {reviews[0].name}, sst2 and {reviews[1].name}",
        protocols={
            "natural": "texts as the sources write them; all phrases of one film sentence in one split",
            "normalised": "as natural, and every text in one convention of tokenisation and marks",
            "bare-words": "as normalised, without marks, and cut so that lengths are spread equally in all domains",
            "pooled": "as the papers: texts as they are, rows cut at random; leaks phrases of film sentences",
        },
        load=partial(load_domains, name, reviews),
    )


_REVIEW_PROTOCOLS = {
    "balanced": "equal numbers of both classes, repeats out, random 80/10/10 by class",
    "all-rows": "every row, repeats out, random 80/10/10 by class",
}
_POLARITY_PROTOCOLS = {
    "sst2-size": "54,576 / 6,822 / 6,823 rows drawn by class, as in the papers; test from the release's test part",
    "official": "every row; 5 % of the train part chooses the checkpoint, the test part is reported",
}
_SST2_PROTOCOLS = {
    "official": "train on GLUE train, choose on sentences held out of it by source, "
    "report GLUE validation (872) and the labelled test sentences (1,821)",
    "pooled": "GLUE train and validation pooled, random 54,576 / 6,822 / 6,823; leaks, as published",
}
_DEPTH_PROTOCOLS = {PROTOCOL: "a split of its own for every difficulty; those of beyond are harder than training"}

CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        _released(SST2, _SST2_PROTOCOLS, load_sst2),
        *(
            _released(
                reviews,
                _POLARITY_PROTOCOLS if reviews.public_name else _REVIEW_PROTOCOLS,
                partial(load_reviews, reviews),
            )
            for reviews in REVIEWS
        ),
        _domains(
            "domains",
            "Local business, movie or online shopping: yelp_reviews, sst2 and amazon_reviews, a third each",
            (YELP_REVIEWS, AMAZON_REVIEWS),
        ),
        _domains(
            "domains_polarity",
            "The same from yelp_polarity, sst2 and amazon_polarity, as in the papers",
            (YELP_POLARITY, AMAZON_POLARITY),
        ),
        Corpus(
            "demo",
            "Sentences of State of the Union addresses, by period; comes with the package",
            {"by-address": "900 / 300 / 600 rows; no address is in two splits"},
            _load_demo,
        ),
        *(
            Corpus(depth.name, depth.description, _DEPTH_PROTOCOLS, partial(_load_depth, depth))
            for depth in DEPTH_CORPORA
        ),
    )
}


def recorded_data(record: LabelRunRecord) -> DataConfig:
    """The configuration of a run's data."""
    kind = MultiLabelData if isinstance(record, MultiLabelRunRecord) else DataConfig
    return kind.parse(record.config["data"], source="record")


def recorded_split(record: LabelRunRecord, name: str, data_root: Path | None) -> TextSplit:
    """A split of a run's own data as it was recorded; raises a `DataError` if the data have changed or are gone."""
    dataset = recorded_rows(record, load_dataset(recorded_data(record), data_root))
    rows, recorded = dataset.splits.get(name), record.data.splits[name].fingerprint
    if rows is None or rows.fingerprint != recorded:
        now = "missing" if rows is None else rows.fingerprint
        raise DataError(
            f"split '{name}' of '{record.config['data']['name']}' is not what the run was recorded on (fingerprint "
            f"{now}, recorded {recorded}): the data have changed; restore them, or give a file of rows in their place"
        )
    return rows


def recorded_rows(record: LabelRunRecord, dataset: TextDataset) -> TextDataset:
    """A run's data as trained on: a final run, whose record lacks the test split, was trained on the test rows too."""
    return dataset.with_test_rows() if "test" in set(dataset.splits) - set(record.data.splits) else dataset


# Keys that have no meaning for a named corpus.
_OF_FILES = (
    "validation", "test", "group_column", "id_column", "encoding", "clean", "label_separator", "label_columns",
    "join_labels", "skip_unlabelled",
)  # fmt: skip


def load_dataset(config: DataConfig, data_root: Path | None = None) -> TextDataset:
    """Loads the data that a configuration names: cleaned, split, and reduced to its subset.

    Raises:
        ConfigurationError: For an unknown corpus or protocol.
        DataError: If the data cannot be used.
        UnavailableError: If a corpus is neither in the data root nor available from the hub.
    """
    if data_root is not None and not data_root.is_dir():
        raise DataError(f"the data root '{data_root}' is not a folder; give --data-root DIR (or RECURRA_DATA_ROOT)")
    corpus = CORPORA.get(config.name)
    if config.name == IN_MEMORY:
        raise DataError(
            "the run was trained on texts in memory, which were not kept; evaluate it on a labelled file (--data FILE)"
        )
    if corpus is None:
        _refuse_unknown_corpus(config.name)
        _check_protocol(config, ["split"])
        dataset = load_files(config)
    else:
        file_keys = [key for key in _OF_FILES if getattr(config, key, None) not in (None, False, FIRST)]
        file_keys += ["folds"] * config.cross_validated
        if file_keys:
            raise ConfigurationError(
                f"'{file_keys[0]}' is for your own files; the corpus '{corpus.name}' has its own splits"
            )
        protocol = _check_protocol(config, list(corpus.protocols))
        dataset = corpus.load(protocol, config.split_seed, data_root)
        if config.auxiliary is not None:
            dataset = with_treebank_labels(dataset, data_root)
    dataset = _subset(dataset, config)
    return dataset if config.unlabelled is None else _with_unlabelled(dataset, config, data_root)


def _refuse_unknown_corpus(name: str) -> None:
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
        untouched = {"test": splits["test"]} if config.whole_test and "test" in splits else {}
        splits = {name: length_tail(split, tail, share) for name, split in splits.items()} | untouched
        notes.append(
            f"Only the {tail} {share:.0%} of every split, by words: "
            + ("trained on this subset, tested on all." if untouched else "trained and tested on this subset alone.")
        )
    if config.fraction < 1:
        train = splits["train"]
        labels = _present(train)
        if round(len(train) * config.fraction) < len(labels):
            raise DataError(
                f"fraction {config.fraction:g} of the {len(train):,} train rows of '{dataset.name}' is fewer rows than "
                f"the {len(labels)} classes; take a larger fraction"
            )
        splits["train"] = stratified_fraction(train, config.fraction, config.split_seed)
        notes.append(f"{len(splits['train'])} of {len(train)} train rows ({config.fraction:.0%}), stratified by label.")
    if config.rows_per_label is not None:
        if splits["train"].labels.ndim == 2:
            raise DataError(
                f"rows_per_label is {config.rows_per_label} and a row of '{dataset.name}' may have several labels; "
                "use fraction instead"
            )
        for name in ("train", dataset.selection_split):
            splits[name] = rows_of_each_label(splits[name], config.rows_per_label, config.split_seed)
        notes.append(
            f"{config.rows_per_label:,} rows of each label in train and in {dataset.selection_split}, at most."
        )
    labels = _present(splits["train"])
    if len(labels) < 2:
        only = f"one class only in train: '{dataset.label_names[labels[0]]}'" if len(labels) else "no class in train"
        cure = "give more rows of the other classes, in more groups if rows are grouped"
        if config.length_tail is not None:
            cure = "take a larger tail_fraction"
        elif config.cross_validated:
            cure += ", or take one split (folds 1)"
        raise DataError(f"'{dataset.name}' has {only}{config.fold_description}; {cure}")
    return replace(dataset, splits=splits, notes=notes)


def _present(split: TextSplit) -> npt.NDArray[np.int64]:
    return np.unique(split.labels) if split.labels.ndim == 1 else np.flatnonzero(split.labels.any(axis=0))


# A teacher answers each of these texts in every epoch, so more of them would take too long.
MOST_ROWS = 2_000_000
_REPEATED, _REPORTED = "unlabelled: repeated, or a training row", "unlabelled: equal to, or holding, a reported row"


# Sentences with fewer words say nothing; longer ones are mostly lists or were not cut.
SENTENCE_WORDS = (3, 40)
# The blanks after a sentence: they follow its mark, perhaps with a closing quote or bracket in between.
SENTENCE_END = re.compile(r"""(?<=[.!?])\s+|(?<=[.!?]["')\]])\s+""")


def sentences_of(text: str) -> list[str]:
    """The sentences of a text that have 3 to 40 words, in their order."""
    low, high = SENTENCE_WORDS
    return [sentence for sentence in SENTENCE_END.split(text) if low <= len(sentence.split()) <= high]


def _unlabelled_texts(name: str, config: DataConfig, data_root: Path | None) -> Iterator[str]:
    """Yields cleaned texts, or their sentences, from a file or a corpus's training part."""
    texts: Iterable[str]
    if name in CORPORA:
        protocol = next(iter(CORPORA[name].protocols))
        texts = CORPORA[name].load(protocol, config.split_seed, data_root).splits["train"].texts
    else:
        chunks = stream_texts(Path(name), config.text_column, encoding=config.encoding)
        texts = (text for chunk in chunks for text in chunk)
    for text in texts:
        cleaned = clean_text(text, config.clean)
        yield from sentences_of(cleaned) if config.unlabelled_unit == "sentences" else filter(None, [cleaned])


def _with_unlabelled(dataset: TextDataset, config: DataConfig, data_root: Path | None) -> TextDataset:
    """Adds new texts without labels: no training rows, no repeats, and nothing that models are judged on."""
    reported_texts = [text for name, split in dataset.splits.items() if name != "train" for text in split.texts]
    reported_identities = set(map(text_identity, reported_texts))
    training_identities = set(map(text_identity, dataset.splits["train"].texts))
    new_by_identity: dict[str, str] = {}
    count = 0
    for name in config.unlabelled_sources:
        for text in _unlabelled_texts(name, config, data_root):
            count += 1
            if count > MOST_ROWS:
                raise DataError(f"'{Path(name).name}' takes the texts beyond {MOST_ROWS:,}; give a part of them")
            if (identity := text_identity(text)) not in training_identities:
                new_by_identity.setdefault(identity, text)
    texts = list(new_by_identity.values())
    leaking = rows_that_give_away(reported_texts, texts)
    leaking |= {row for row, identity in enumerate(new_by_identity) if identity in reported_identities}
    new_texts = [text for row, text in enumerate(texts) if row not in leaking]
    names = ", ".join(Path(name).name for name in config.unlabelled_sources)
    if not new_texts:
        raise DataError(f"'{names}' has {count:,} texts, none of them new; give texts that are not training rows")
    split = TextSplit(
        name="unlabelled",
        texts=new_texts,
        labels=np.zeros((len(new_texts), *dataset.splits["train"].labels.shape[1:]), dtype=np.int64),
        ids=[f"unlabelled-{row}" for row in range(len(new_texts))],
    )
    dropped = {_REPEATED: count - len(new_by_identity), _REPORTED: len(leaking)}
    note = f"{len(new_texts):,} {config.unlabelled_unit} without labels ({names}) are there for students of a teacher."
    return replace(
        dataset,
        unlabelled=split,
        dropped={**dataset.dropped, **{reason: rows for reason, rows in dropped.items() if rows}},
        notes=[*dataset.notes, note],
    )
