"""A linear model of texts: n-grams as scikit-learn weights them, or word pieces; then a row of weights a label.

It is stored in one safetensors file, whose metadata describes the arrays in JSON.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.utils import murmurhash3_32
from tokenizers import Tokenizer

from recurra.core.errors import CheckpointError, DataError
from recurra.core.files import atomic_path, storage_errors
from recurra.models.controls import LINEAR_NAME, OLD_NAMES, piece_ids

WORDS, CHARACTERS, PIECES = "words", "characters", "pieces"
# Words of one letter count: "n't" is "n" and "t", and dropping them would drop the negation.
TOKEN_PATTERN = r"(?u)\b\w+\b"
NGRAMS: dict[str, dict[str, Any]] = {
    WORDS: {"ngram_range": (1, 2), "token_pattern": TOKEN_PATTERN, "lowercase": False},
    CHARACTERS: {"ngram_range": (2, 5), "analyzer": "char_wb", "lowercase": False},
}
# Features that a word adds: n-grams that begin at it, or lie within a word of five letters.
_PER_WORD = {WORDS: 2.0, CHARACTERS: 18.0, PIECES: 1.0}
# Above so many characters of training texts (a million sentences, 70,000 reviews), words and pairs alone are hashed.
MOST_CHARACTERS = 50_000_000
HASHED_WIDTH = 2**20
# Features are cut to the most frequent ones where labels would need more weights than these (400 MB).
MOST_WEIGHTS = 50_000_000
# N-grams that are in one text alone gain half a point and are half of the model; above so many rows they are left out.
_MANY_ROWS = 20_000
_TEXTS_AT_ONCE = 4_096
_WORDS_REMEMBERED = 200_000
# A text without spaces, as in Chinese, is one word, which hardly comes again.
_LONGEST_REMEMBERED = 64
_FORMAT, _VERSION = "recurra-linear", 3

Floats = npt.NDArray[np.float64]


class HashedColumns(NamedTuple):
    """The column of any n-gram, from its hash: no n-grams are stored, and several may share a column."""

    width: int

    def get(self, term: str) -> int:
        """The column of an n-gram."""
        return abs(int(murmurhash3_32(term, seed=0))) % self.width


class Vectorizer:
    """TF-IDF as in `TfidfVectorizer`, in 0.1 ms for a single text instead of 1 ms; for word pieces, their shares."""

    def __init__(
        self, unit: str, columns: Any, idf: Floats, *, sublinear: bool = False, tokenizer: Tokenizer | None = None
    ) -> None:
        self.unit, self.columns, self.sublinear, self.tokenizer = unit, columns, sublinear, tokenizer
        # Rounded like the weights, because an ONNX graph stores them in FP32.
        self.idf = idf.astype(np.float32).astype(np.float64)
        self._analyze: Any = None if unit == PIECES else CountVectorizer(**NGRAMS[unit]).build_analyzer()
        self._of_short_word = functools.lru_cache(_WORDS_REMEMBERED)(self._of_new_word)

    @classmethod
    def fit(cls, unit: str, texts: Sequence[str], *, sublinear: bool, most: int) -> Self:
        """Counts n-grams and keeps at most ``most``; there may be none."""
        least = 2 if sublinear and len(texts) > _MANY_ROWS else 1
        reference = TfidfVectorizer(**NGRAMS[unit], min_df=least, max_features=most)
        try:
            reference.fit(texts)
        except ValueError:  # no n-gram is in any text, or in two
            return cls(unit, {}, np.zeros(0), sublinear=sublinear)
        columns = {term: int(column) for term, column in reference.vocabulary_.items()}
        return cls(unit, columns, reference.idf_, sublinear=sublinear)

    @classmethod
    def fit_hashed(cls, unit: str, texts: Sequence[str], *, sublinear: bool, width: int) -> Self:
        """Counts for each hash the texts that have one of its n-grams."""
        hashed = cls(unit, HashedColumns(width), np.ones(width), sublinear=sublinear)
        counts = np.zeros(width)
        for columns, _ in hashed.rows(texts):
            counts[columns] += 1
        return cls(unit, hashed.columns, np.log((1 + len(texts)) / (1 + counts)) + 1, sublinear=sublinear)

    @classmethod
    def of_pieces(cls, tokenizer: Tokenizer, pieces: int) -> Self:
        """A vectorizer for the shares of word pieces in a text."""
        return cls(PIECES, dict(zip(range(pieces), range(pieces), strict=True)), np.ones(pieces), tokenizer=tokenizer)

    def __str__(self) -> str:
        shortest, longest = NGRAMS[self.unit]["ngram_range"]
        return f"{self.unit} {shortest} to {longest}{', hashed' if self.is_hashed else ''}"

    @property
    def is_hashed(self) -> bool:
        """Whether n-grams are hashed, so that they are not known themselves."""
        return isinstance(self.columns, HashedColumns)

    @property
    def terms(self) -> list[str]:
        """The n-grams in the order of the columns; empty if they are hashed."""
        return sorted(self.columns, key=self.columns.__getitem__) if isinstance(self.columns, dict) else []

    def rows(self, texts: Sequence[str]) -> Iterator[tuple[npt.NDArray[np.int32], Floats]]:
        """Columns and values of each cleaned text; they do not depend on the other texts."""
        for text_columns in self._columns_of(texts):
            counts = Counter(text_columns)
            del counts[None]
            columns = np.fromiter(counts.keys(), np.int32, len(counts))
            values = np.fromiter(counts.values(), np.float64, len(counts))
            values = (np.log(values) + 1 if self.sublinear else values) * self.idf[columns]
            length = float(values.sum() if self.unit == PIECES else np.sqrt(values @ values))
            yield columns, values / (length or 1.0)

    def named(self, texts: Sequence[str]) -> dict[int, str]:
        """The n-grams of texts by their column."""
        terms = chain.from_iterable(map(self._analyze, texts))
        return {column: term for term in terms if (column := self.columns.get(term)) is not None}

    def _of_new_word(self, word: str) -> list[int | None]:
        return list(map(self.columns.get, self._analyze(word)))

    def _of_word(self, word: str) -> list[int | None]:
        return (self._of_short_word if len(word) <= _LONGEST_REMEMBERED else self._of_new_word)(word)

    def _columns_of(self, texts: Sequence[str]) -> Iterator[Iterator[int | None]]:
        if self.tokenizer is not None:
            return (map(self.columns.get, ids) for ids in piece_ids(texts, self.tokenizer))
        if self.unit == CHARACTERS:
            return (chain.from_iterable(map(self._of_word, text.split())) for text in texts)
        return (map(self.columns.get, self._analyze(text)) for text in texts)


class LinearModel:
    """Scores of a text: its features times the weights, ``(1 or labels, features)``, plus a bias a label.

    Weights are rounded to FP32, so that the model in memory and the one on disk are the same, and summed in FP64.
    """

    def __init__(
        self, vectorizers: Sequence[Vectorizer], weight: npt.ArrayLike, bias: npt.ArrayLike, c: float,
        *, independent: bool = False, fitted_by: str = "", encoder: str = "",
    ) -> None:  # fmt: skip
        self.vectorizers, self.inverse_regularisation = list(vectorizers), float(c)
        self.weight = np.asarray(weight, dtype=np.float32)
        self.bias = np.asarray(bias, dtype=np.float32)
        self.independent, self.fitted_by, self.encoder = independent, fitted_by, encoder
        self.num_labels = 2 if len(self.bias) == 1 and not independent else len(self.bias)
        if self.weight.shape != (len(self.bias), sum(len(vectorizer.idf) for vectorizer in self.vectorizers)):
            raise ValueError(f"weights of shape {self.weight.shape} do not fit the features and labels")

    @property
    def description(self) -> str:
        """Features and fit in one line."""
        if self.encoder:
            return f"mean of static vectors of {self.encoder} + {self.fitted_by}{' a label' * self.independent}"
        units = " + ".join(map(str, self.vectorizers))
        return f"TF-IDF ({units}) + {self.fitted_by or 'logistic regression'}{' for each label' * self.independent}"

    @property
    def features_per_word(self) -> float:
        """Number of features that a word adds to a text."""
        return sum(_PER_WORD[vectorizer.unit] for vectorizer in self.vectorizers)

    @property
    def num_parameters(self) -> int:
        """Number of learned weights and biases, without what is counted from texts alone (IDF)."""
        return int(self.weight.size + self.bias.size)

    @functools.cached_property
    def _columns_first(self) -> Floats:
        return np.ascontiguousarray(self.weight.T, dtype=np.float64)

    def logits(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Scores of cleaned texts, ``(texts, labels)``; their softmax gives the probabilities.

        With a regression for each label, the logistic function of each score does. With two classes the score of label
        1 is split evenly: the logits are minus and plus half of it.
        """
        starts = range(0, max(1, len(texts)), _TEXTS_AT_ONCE)
        parts = [
            features_of(self.vectorizers, texts[start : start + _TEXTS_AT_ONCE]) @ self._columns_first
            for start in starts
        ]
        # Values beyond FP32 become infinite, which the caller reports, so numpy need not warn.
        with np.errstate(over="ignore"):
            return label_scores(np.concatenate(parts) + self.bias, independent=self.independent).astype(np.float32)

    def telling_words(self, texts: Sequence[str], labels: npt.ArrayLike, most: int) -> list[list[str]]:
        """The n-grams of words that add most to a label's score in the texts that have it, the strongest first.

        An n-gram adds its weight times its mean feature over these texts; n-grams that add nothing are left out.
        """
        words, truth = self.vectorizers[0], np.asarray(labels)
        features, named = features_of([words], texts), words.named(texts)
        weight = np.vstack([-self.weight, self.weight]) if len(self.weight) < self.num_labels else self.weight
        rows, text_labels = (np.arange(len(truth)), truth) if truth.ndim == 1 else np.nonzero(truth == 1)
        has_label = csr_matrix((np.ones(len(rows)), (text_labels, rows)), shape=(self.num_labels, len(truth)))
        # All labels in one sparse product: with thousands of them, a product a label takes minutes.
        sums = csr_matrix(has_label @ features)
        sums.sort_indices()
        telling = []
        for label_weights, count, (start, end) in zip(
            weight, np.bincount(text_labels, minlength=self.num_labels), pairwise(sums.indptr), strict=True
        ):
            columns = sums.indices[start:end]
            contributions = label_weights[columns] * sums.data[start:end] / max(count, 1)
            order = np.argsort(-contributions, kind="stable")[:most]
            telling.append([named[columns[index]] for index in order if contributions[index] > 0])
        return telling

    def save(self, folder: Path | str) -> None:
        """Writes the model into a folder."""
        described: list[dict[str, Any]] = []
        arrays: dict[str, npt.NDArray[Any]] = {"weight": self.weight, "bias": self.bias}
        for number, kind in enumerate(self.vectorizers):
            text = "\n".join(kind.terms) if kind.tokenizer is None else kind.tokenizer.to_str()
            arrays[f"idf.{number}"] = kind.idf
            arrays[f"text.{number}"] = np.frombuffer(text.encode(), dtype=np.uint8)
            described.append({"unit": kind.unit, "sublinear": kind.sublinear, "hashed": kind.is_hashed})
        state = {
            "format": _FORMAT, "version": _VERSION, "features": described, "c": self.inverse_regularisation,
            "independent": self.independent, "fitted_by": self.fitted_by, "encoder": self.encoder,
        }  # fmt: skip
        with storage_errors(Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        with atomic_path(Path(folder) / LINEAR_NAME) as temporary:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary,
                      metadata={_FORMAT: json.dumps(state)})  # fmt: skip

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Reads a model that `save` wrote; its logits are equal to the last bit."""
        path = Path(folder) / LINEAR_NAME
        if any((Path(folder) / name).is_file() for name in OLD_NAMES):
            raise CheckpointError(f"the linear model in '{folder}' was made by an older version; train it again")
        if not path.is_file():
            raise CheckpointError(f"'{path}' is missing: not a linear model of ours; give a folder made by us")
        try:
            with safe_open(path, "numpy") as file:
                state = json.loads((file.metadata() or {})[_FORMAT])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            if state["version"] != _VERSION:
                raise ValueError(f"format version {state['version']}, this one reads {_VERSION}")
            if not all(np.isfinite(array).all() for array in arrays.values()):
                raise ValueError("weights that are not finite")
            kinds = [
                _read_vectorizer(kind, arrays[f"idf.{number}"], arrays[f"text.{number}"].tobytes().decode())
                for number, kind in enumerate(state["features"])
            ]
            options = {key: state[key] for key in ("independent", "fitted_by", "encoder")}
            return cls(kinds, arrays["weight"], arrays["bias"], state["c"], **options)
        # safetensors and tokenizers raise many kinds of errors for changed bytes.
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"'{path}' is damaged or not ours ({reason}); train the model again") from error


def _read_vectorizer(kind: Mapping[str, Any], idf: Floats, text: str) -> Vectorizer:
    unit = kind["unit"]
    if unit == PIECES:
        tokenizer = Tokenizer.from_str(text)
        if max(tokenizer.get_vocab().values(), default=0) >= len(idf):
            raise ValueError("its tokenizer writes pieces that have no score")
        return Vectorizer.of_pieces(tokenizer, len(idf))
    if kind["hashed"]:
        return Vectorizer(unit, HashedColumns(len(idf)), idf, sublinear=kind["sublinear"])
    terms = text.split("\n") if text else []
    columns = {term: column for column, term in enumerate(terms)}
    if len(columns) != len(idf):
        raise ValueError(f"{len(columns)} n-grams and {len(idf)} weights of them")
    return Vectorizer(unit, columns, idf, sublinear=kind["sublinear"])


def features_of(vectorizers: Sequence[Vectorizer], texts: Sequence[str]) -> csr_matrix:
    """Features of cleaned texts side by side, ``(texts, features)``."""
    starts = np.cumsum([0, *(len(vectorizer.idf) for vectorizer in vectorizers)]).tolist()
    columns, values, offsets = [np.zeros(0, dtype=np.int32)], [np.zeros(0)], [0]
    for row in zip(*(vectorizer.rows(texts) for vectorizer in vectorizers), strict=True):
        for start, (own_columns, value) in zip(starts, row, strict=False):
            columns.append(own_columns + start)
            values.append(value)
        offsets.append(offsets[-1] + sum(len(value) for _, value in row))
    parts = (np.concatenate(values), np.concatenate(columns), np.array(offsets))
    return csr_matrix(parts, shape=(len(texts), starts[-1]))


def fit_vectorizers(texts: Sequence[str], *, characters: bool, num_labels: int) -> list[Vectorizer]:
    """Fits words and pairs on training texts; with ``characters`` also characters and logarithms of counts."""
    units = [WORDS, CHARACTERS] if characters else [WORDS]
    most = MOST_WEIGHTS // max(num_labels, 2) // len(units)
    if sum(map(len, texts)) > MOST_CHARACTERS:
        width = min(HASHED_WIDTH, 1 << (most.bit_length() - 1))
        return [Vectorizer.fit_hashed(WORDS, texts, sublinear=characters, width=width)]
    vectorizers = [Vectorizer.fit(unit, texts, sublinear=characters, most=most) for unit in units]
    if not any(len(vectorizer.idf) for vectorizer in vectorizers):
        advice = "" if characters else ", or take linear-tuned, which reads characters too"
        raise DataError(
            f"none of the {len(texts)} training texts has a word of letters or digits; give texts with words{advice}"
        )
    return vectorizers


def label_scores(scores: Floats, *, independent: bool) -> Floats:
    """Logits ``(texts, labels)`` from scores; two classes share one score, minus and plus half of it."""
    if scores.shape[1] == 1 and not independent:
        return np.concatenate([-scores / 2, scores / 2], axis=1)
    return scores
