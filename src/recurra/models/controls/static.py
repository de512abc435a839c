"""The static control: every word piece has a vector once and for all; their mean, then a linear model.

The vectors are what a pretrained encoder makes of the piece alone between its special tokens (the method of model2vec;
Tulkens and van Dongen 2024), weighted by the logarithm of the piece's rank (Zipf's law: frequent pieces come first in a
WordPiece vocabulary and say little). As the model behind the mean is linear, each piece's vector and the weights become
one score a label: the model that is kept is a table of scores, some hundred KiB, and reads a text as fast as it is
tokenised. model2vec also cuts the vectors to 256 directions and scales texts to length 1; the first costs accuracy here
or gains none, the second would keep the vectors from becoming scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from recurra.core.errors import CheckpointError
from recurra.core.files import atomic_path, storage_errors
from recurra.core.tokenizer_files import read_tokenizer_file
from recurra.models.controls.weights import LinearModel, SparseRows, checked_labels, foreign_settings, in_parts

if TYPE_CHECKING:
    from recurra.models.controls.fitting import CrossValidated

SETTINGS_NAME, WEIGHTS_NAME, TOKENIZER_NAME = "static.json", "static.safetensors", "tokenizer.json"
_C = (0.003, 0.01, 0.03, 0.1, 0.3)


class StaticClassifier(LinearModel):
    """A score a label of every word piece; a text has their mean. See the module for where the scores come from."""

    FORMAT, VERSIONS, SETTINGS_NAME, WEIGHTS_NAME = "recurra-static", (1,), SETTINGS_NAME, WEIGHTS_NAME

    def __init__(
        self, tokenizer: Tokenizer, encoder: str, weight: npt.ArrayLike, bias: npt.ArrayLike, c: float, **how: Any
    ) -> None:
        """Builds the model from its parts; most callers want `fit` or `load`.

        Args:
            tokenizer: Writes fewer distinct pieces than ``weight`` has columns.
            encoder: Name of the encoder whose vectors became scores.
            weight: As `LinearModel` takes it.
            bias: Likewise.
            c: Likewise.
            how: Likewise.
        """
        super().__init__(weight, bias, c, **how)
        self.tokenizer, self.encoder = tokenizer, encoder

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        labels: npt.ArrayLike,
        vectors: npt.NDArray[np.float32],
        tokenizer: Tokenizer,
        *,
        encoder: str,
        num_labels: int = 2,
        seed: int = 0,
    ) -> Self:
        """Fits a logistic regression on the mean vectors of texts; cross-validation on these rows chooses ``C``.

        Args:
            texts: Cleaned training texts.
            labels: Integers, ``(texts,)``; or 0 and 1 a label, ``(texts, labels)``.
            vectors: Of every piece, ``(pieces, width)``, as `piece_vectors` gives them.
            tokenizer: The encoder's.
            encoder: Its name.
            num_labels: Number of classes.
            seed: Of the folds.

        Raises:
            DataError: If there is one class only.
        """
        from recurra.models.controls.fitting import Fit, cross_validate, with_class_weights

        truth = checked_labels(texts, labels, num_labels)
        fits = with_class_weights([Fit("logistic", c) for c in _C], truth)
        return cls._of_means(
            texts,
            vectors,
            tokenizer,
            lambda means: cross_validate(means, truth, fits, num_labels=num_labels, seed=seed),
            encoder=encoder,
            independent=truth.ndim == 2,
        )

    @classmethod
    def fit_taught(
        cls,
        texts: Sequence[str],
        answers: npt.NDArray[np.float64],
        vectors: npt.NDArray[np.float32],
        tokenizer: Tokenizer,
        *,
        encoder: str,
        independent: bool = False,
        seed: int = 0,
    ) -> Self:
        """Fits the same model to what a teacher says of texts, labelled or not.

        Args:
            texts: Cleaned texts.
            answers: The teacher's probabilities, ``(texts, labels)``.
            vectors: As `fit` takes them.
            tokenizer: Likewise.
            encoder: Likewise.
            independent: Whether a text may have any number of labels.
            seed: Of the folds.

        Raises:
            DataError: If there are fewer than two texts.
        """
        from recurra.models.controls.fitting import Fit, fit_answers

        fits = [Fit("logistic", c) for c in _C]
        return cls._of_means(
            texts,
            vectors,
            tokenizer,
            lambda means: fit_answers(means, answers, fits, independent=independent, seed=seed),
            encoder=encoder,
            independent=independent,
            taught=", on a teacher's answers",
        )

    @classmethod
    def _of_means(
        cls,
        texts: Sequence[str],
        vectors: npt.NDArray[np.float32],
        tokenizer: Tokenizer,
        fit: Callable[[npt.NDArray[np.float64]], CrossValidated],
        *,
        encoder: str,
        independent: bool,
        taught: str = "",
    ) -> Self:
        """Fits on the mean vectors of texts; weights of directions become scores of pieces."""
        from recurra.models.controls.fitting import matrix_of

        wide = vectors.astype(np.float64)
        means = np.concatenate([matrix_of(_shares(part, tokenizer, len(wide))) @ wide for part in in_parts(texts)])
        # One scale a direction, so that the penalty weighs them alike; it goes into the scores.
        centre, spread = means.mean(axis=0), means.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        means -= centre
        means /= spread
        found = fit(means)
        slopes = found.weight / spread
        scores, bias = slopes @ wide.T, found.bias - slopes @ centre
        how = {"independent": independent, "fitted_by": f"{found}{taught}"}
        return cls(tokenizer, encoder, scores, bias, found.fit.c, **how)

    @property
    def description(self) -> str:
        """Features and fit in a line."""
        return f"mean of static vectors of {self.encoder} + {self.fitted_by}{' a label' if self.independent else ''}"

    @property
    def features_per_word(self) -> float:
        """Features that a word adds to its text: its own piece."""
        return 1.0

    def features(self, texts: Sequence[str]) -> SparseRows:
        """Share of each piece in each cleaned text, ``(texts, pieces)``; a text without pieces has none."""
        return _shares(texts, self.tokenizer, self.num_features)

    def save(self, folder: Path | str) -> None:
        """Writes the tokenizer and the scores, and the settings last: they stand for a whole folder."""
        with storage_errors(Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        write_tokenizer(self, Path(folder))
        self._save(folder, {}, {"version": 1, "encoder": self.encoder})

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Reads what `save` wrote; the logits are equal to the last bit.

        Raises:
            CheckpointError: If a file is missing, truncated, or not ours.
        """
        settings, tensors = cls._read(folder)
        path = Path(folder) / TOKENIZER_NAME
        if not isinstance(settings.get("encoder"), str) or tensors.get("weight", np.zeros(0)).ndim != 2:
            raise foreign_settings(Path(folder) / SETTINGS_NAME)
        tokenizer = read_tokenizer_file(path, "train the model again")
        pieces = tensors["weight"].shape[1]
        if max(tokenizer.get_vocab().values(), default=0) >= pieces:
            raise CheckpointError(f"'{path}' writes pieces beyond the {pieces:,} that the model scores; train it again")
        cls._check_shapes(folder, settings, tensors, pieces)
        return cls(tokenizer, settings["encoder"], tensors["weight"], tensors["bias"], **cls._given(settings))


def write_tokenizer(model: StaticClassifier, folder: Path) -> None:
    """Writes ``tokenizer.json``, which makes the pieces that a static model scores."""
    with atomic_path(folder / TOKENIZER_NAME) as temporary:
        temporary.write_text(model.tokenizer.to_str(), encoding="utf-8")


def piece_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Word pieces of cleaned texts, nothing cut and no special tokens."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # What looks like a special token is taken letter by letter: texts hold no such tokens.
    tokenizer.encode_special_tokens = True
    if len(texts) == 1:
        return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def _shares(texts: Sequence[str], tokenizer: Tokenizer, pieces: int) -> SparseRows:
    rows = piece_ids(texts, tokenizer)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
    # A text has each of its pieces once, with the share of all places where it stands.
    numbers = np.repeat(np.arange(len(texts)) * pieces, lengths) + ids
    distinct, entry = np.unique(numbers, return_inverse=True)
    places = np.repeat(1.0 / np.maximum(lengths, 1), lengths)
    shares = np.bincount(entry, weights=places, minlength=len(distinct)).astype(np.float64)
    offsets = np.searchsorted(distinct, np.arange(len(texts) + 1) * pieces)
    return SparseRows(shares, (distinct % pieces).astype(np.int32), offsets, pieces)
