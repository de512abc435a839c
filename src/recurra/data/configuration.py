"""The data of a run: corpus or file, protocol or form, subset, tokenizer."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from recurra.core.configuration import HashedSettings, names_in
from recurra.core.errors import unknown
from recurra.data.cleaning import CLEANINGS, FIRST
from recurra.data.formats import check_encoding
from recurra.data.labels import LabelColumn, LabelColumns, SeveralLabels, spellings
from recurra.data.windows import MOST_WINDOWS

MOST_FOLDS = 20


class RunData(HashedSettings):
    """The keys that configurations of data share, whatever the task."""

    name: str
    fraction: float = Field(default=1.0, gt=0, le=1)
    validation: str | None = None
    test: str | None = None
    tokenizer: str

    @field_validator("name", "tokenizer", "text_column", "label_column", check_fields=False)
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be empty; give a name or a path")
        return value

    @property
    def files(self) -> list[str]:
        """Names that may be files of the user; the data themselves come first."""
        return [name for name in (self.name, self.validation, self.test) if name]

    @property
    def every_fold(self) -> list[Self]:
        """One configuration for each fold of a cross-validation; without one, these data alone."""
        return [self]

    def dealt_for(self, seed: int) -> Self:
        """The data for a run of another seed: each seed has folds of its own, everything else stays."""
        del seed
        return self

    @property
    @abstractmethod
    def reading(self) -> str:
        """How the data are read, in a word for names of runs."""

    @property
    @abstractmethod
    def part(self) -> str:
        """What distinguishes this part of the data, for names of runs; empty for all data."""


class DataConfig(RunData):
    """Names the data of a run. The folder of local copies (``data_root``) depends on the machine and is passed apart.

    Attributes:
        name: A corpus (``sst2``, ``demo``) or the path of a file, see `recurra.data.tables`.
        protocol: How the rows become splits; see `recurra.data.corpora.CORPORA`. None takes the corpus's default.
        text_column: Column of a user's file that holds the text; or several with commas between, which are joined.
        split_seed: Seed of every random decision about the data: splits, held-out sentences, fractions.
        fraction: Share of the training split that is used, stratified by label. Other splits stay whole.
        rows_per_label: Rows of each label in training and in the split that chooses the weights, at most.
        length_tail: Keeps the longest or shortest texts of **every** split, as the papers do; before ``fraction``.
        whole_test: ``length_tail`` leaves the test split whole: trained on texts of one length, tested on any.
        max_length: Longest input in tokens, ``[CLS]`` and ``[SEP]`` included.
        tokenizer: ``bert-base-uncased``, ``trained`` (WordPiece of the training split), or a path.
        auxiliary: ``treebank`` adds five-class labels of phrases, for protocols with ``auxiliary_epochs``.
        form_must_not_predict: Whether the audit fails that finds that the form of a text tells its label.
        unlabelled: Texts without labels, for students of a teacher: a file, corpora, or both with commas between. A
            corpus gives its training part. What equals or holds a text that models are judged on is left out.
        folds: Parts of a cross-validation, see `recurra.data.splits.fold_rows`; 1 is one split.
        id_column: Column of a user's file with unique identities; none takes ``id`` if it has them, else the place.
        encoding: Of a user's text file without a mark; none is UTF-8.
        clean: How texts of a user's file are cleaned, see `recurra.data.cleaning.CLEANINGS`. Corpora have the first.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({
        "protocol", "text_column", "label_column", "group_column", "validation", "test", "split_seed",
        "fraction", "length_tail", "tail_fraction", "max_length", "tokenizer", "trained_vocab_size"
    })  # fmt: skip

    protocol: str | None = None
    text_column: str = "text"
    label_column: str = "label"
    group_column: str | None = None
    split_seed: int = Field(default=0, ge=0)
    rows_per_label: int | None = Field(default=None, ge=1, le=1_000_000)
    length_tail: Literal["longest", "shortest"] | None = None
    tail_fraction: float = Field(default=0.3, gt=0, le=1)
    whole_test: bool = False
    max_length: int = Field(default=128, ge=3, le=512)
    tokenizer: str = "bert-base-uncased"
    trained_vocab_size: int = Field(default=4000, ge=64, le=100_000)
    auxiliary: Literal["treebank"] | None = None
    join_labels: bool = False
    form_must_not_predict: bool = False
    skip_unlabelled: bool = False
    unlabelled: str | None = None
    unlabelled_unit: Literal["texts", "sentences"] = "texts"
    windows: int = Field(default=1, ge=1, le=MOST_WINDOWS)
    folds: int | None = Field(default=None, ge=1, le=MOST_FOLDS)
    fold: int = Field(default=0, ge=0)
    id_column: str | None = None
    encoding: str | None = None
    clean: str = FIRST

    # The problem type of transformers, unless a text has exactly one label.
    problem_type: ClassVar[str | None] = None

    @property
    def files(self) -> list[str]:
        """The same, and the files with texts without labels."""
        return [*super().files, *self.unlabelled_sources]

    @property
    def unlabelled_sources(self) -> list[str]:
        """Files and corpora of texts without labels."""
        # Several names may be longer than the name of a file can be.
        with contextlib.suppress(OSError):
            if self.unlabelled and Path(self.unlabelled).is_file():
                return [self.unlabelled]
        return names_in(self.unlabelled or "")

    @property
    def labels(self) -> LabelColumn:
        """How the label column of a user's file is read."""
        return LabelColumn()

    @property
    def reading(self) -> str:
        """How the corpus is read, in a word for names of runs: the protocol of its splits."""
        return self.protocol or "default"

    @property
    def part(self) -> str:
        """For example ``train-10pct``. The tokenizer is left out, because it is named beside the figures."""
        parts = {
            f"{self.length_tail}-{percent(self.tail_fraction)}": self.length_tail is not None,
            "whole-test": self.whole_test,
            f"train-{percent(self.fraction)}": self.fraction != 1,
            f"{self.rows_per_label}-a-label": self.rows_per_label is not None,
            f"split-{self.split_seed}": self.split_seed,
            f"fold-{self.fold + 1}-of-{self.folds}": self.cross_validated,
            str(self.auxiliary): self.auxiliary is not None,
            "joined-labels": self.join_labels,
            "more-texts": self.unlabelled is not None,
            f"{self.windows}-windows": self.windows > 1,
        }
        return "-".join(part for part, is_set in parts.items() if is_set)

    @property
    def cross_validated(self) -> bool:
        """Whether these are one fold of several."""
        return self.folds is not None and self.folds > 1

    @property
    def fold_description(self) -> str:
        """Which fold, in words; empty if there is one split."""
        return f" for fold {self.fold + 1} of {self.folds}" if self.cross_validated else ""

    @property
    def every_fold(self) -> list[Self]:
        """One configuration for each fold."""
        if not self.cross_validated:
            return [self]
        return [self.model_copy(update={"fold": fold}) for fold in range(self.folds or 1)]

    def dealt_for(self, seed: int) -> Self:
        """Deals folds by the sum of ``split_seed`` and the run's seed: each seed repeats the whole cross-validation."""
        return self.model_copy(update={"split_seed": self.split_seed + seed}) if self.cross_validated else self

    @field_validator("clean")
    @classmethod
    def _known_cleaning(cls, value: str) -> str:
        if value not in CLEANINGS:
            raise ValueError(unknown("cleaning", value, CLEANINGS))
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str | None) -> str | None:
        return None if value is None else check_encoding(value)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        if self.rows_per_label is not None and self.fraction != 1:
            raise ValueError(
                f"rows_per_label is {self.rows_per_label} beside fraction {self.fraction:g}; leave one of the two out"
            )
        if self.whole_test and self.length_tail is None:
            raise ValueError("whole_test is given without length_tail; give length_tail or leave it out")
        if self.fold and self.fold >= (self.folds or 1):
            raise ValueError(f"fold is {self.fold} of {self.folds or 1}; allowed: 0 to {(self.folds or 1) - 1}")
        if self.cross_validated and (self.validation or self.test):
            raise ValueError(
                f"folds is {self.folds} beside a file of {'test' if self.test else 'validation'} rows; every fold has "
                "its own, so leave the file or folds out"
            )
        if self.unlabelled_unit != "texts" and not self.unlabelled:
            raise ValueError(f"unlabelled_unit is '{self.unlabelled_unit}' without texts to cut; give unlabelled")
        if self.auxiliary is None:
            return self
        if self.name != "sst2" or self.protocol not in (None, "official"):
            raise ValueError(
                f"auxiliary '{self.auxiliary}' belongs to sst2 under official, not to '{self.name}'"
                f"{f' under {self.protocol}' if self.protocol else ''}; leave it out"
            )
        if self.fraction < 1 or self.length_tail is not None or self.rows_per_label is not None:
            raise ValueError(
                f"auxiliary '{self.auxiliary}' has phrases of every training sentence, also of those that fraction, "
                "rows_per_label or length_tail leaves out; take one or the other"
            )
        return self


class MultiLabelData(DataConfig):
    """A user's file in which a text may have any number of labels; one of the two keys says how to read them.

    A separator stands between two labels of a cell, or is ``json`` for lists; each label column holds 0 and 1.
    """

    problem_type: ClassVar[str | None] = "multi_label_classification"

    label_separator: str | None = None
    label_columns: tuple[str, ...] | None = None

    @field_validator("label_columns", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return names_in(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.label_columns is not None:
            if self.label_separator is not None:
                raise ValueError("label_columns and label_separator are both given; leave one of the two out")
            if len(set(self.label_columns)) < max(2, len(self.label_columns)):
                raise ValueError("label_columns must be at least two different columns, one for each label")
            if self.join_labels and spellings(Counter(self.label_columns)):
                raise ValueError("join_labels would merge label_columns that differ in spelling; leave it out")
        elif not (self.label_separator or "").strip(" \n"):
            raise ValueError("label_separator must not be empty; give ';' or what your file has, or json")
        return self

    @property
    def labels(self) -> LabelColumn:
        """How labels are read."""
        return LabelColumns(self.label_columns) if self.label_columns else SeveralLabels(self.label_separator or "")


def percent(share: float) -> str:
    """A share for the name of a run, for example ``10pct``."""
    return f"{share * 100:.4g}pct"


# Short names of the corpora whose data sets have a version in their name.
ALIASES = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}
LINES = "lines"
MODES = {
    "packed": "texts joined by end-of-text and cut in blocks of the context; no padding, the remainder is dropped",
    LINES: "a sample a line of more than min_characters, cut at the context and padded; padding is not counted",
}


class LanguageDataConfig(RunData):
    """Names a text corpus. The folder of local copies (``data_root``) depends on the machine and is passed apart.

    Attributes:
        name: A corpus (``wikitext-2-v1``, or ``wikitext-2`` for short) or the path of a ``.txt`` file of the user.
        min_characters: ``lines`` takes lines of more characters than this, without the white space around them.
        max_lines: ``lines`` takes at most so many from train, the first ones; other splits stay whole.
        fraction: Share of the training texts, from the start, which keeps neighbours together.
        tokenizer: ``gpt2``, ``trained`` (byte-level BPE of the training split), or the path of a tokenizer folder.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({
        "mode", "context", "min_characters", "max_lines", "fraction", "validation", "test", "tokenizer",
        "trained_vocab_size"
    })  # fmt: skip

    mode: Literal["packed", "lines"] = "packed"
    # One token is read before one is predicted.
    context: int = Field(default=1024, ge=2, le=1_048_576)
    min_characters: int = Field(default=50, ge=0)
    max_lines: int | None = Field(default=None, ge=1)
    tokenizer: str = "gpt2"
    trained_vocab_size: int = Field(default=8192, ge=300, le=100_000)

    @field_validator("name")
    @classmethod
    def _whole_name(cls, value: str) -> str:
        return ALIASES.get(value, value)

    @property
    def reading(self) -> str:
        """How the text becomes samples, in a word for names of runs: mode and context."""
        return f"{self.mode}-{self.context}"

    @property
    def part(self) -> str:
        """What distinguishes this part of the corpus, for names of runs; empty for the whole corpus."""
        parts = []
        if self.max_lines is not None:
            parts.append(f"{self.max_lines}-lines")
        if self.fraction != 1:
            parts.append(f"train-{percent(self.fraction)}")
        return "-".join(parts)

    @model_validator(mode="after")
    def _lines_only(self) -> Self:
        if self.mode != LINES and self.max_lines is not None:
            raise ValueError(f"max_lines is for mode '{LINES}', and mode is '{self.mode}'; set mode={LINES}")
        return self
