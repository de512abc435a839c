"""Rows of a labelled file whose label is probably wrong, found by a model that did not see the label.

Rows are judged by the out-of-fold probability of their label. How many of the doubtful labels are wrong depends on the
judging model: a poor judge disagrees with every third right label. So labels are modelled as drawn from the judge's
probabilities, and a share of them as replaced by another label at random (Natarajan et al. 2013, "Learning with Noisy
Labels"). The share is estimated together with the judge's temperature: wrong labels are on rows where the judge is sure
of another label, while a poor judge errs on rows where it is unsure. Bayes' rule then gives each row a probability that
its label is wrong, by which rows are ranked; suspects are rows where it is above one half. Confident learning
(Northcutt, Jiang and Chuang 2021), used here before, suspected 713 of 1,500 labels where the judge was right on 42 %.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.metrics import f1_score

from recurra.core.errors import ConfigurationError, UnavailableError
from recurra.core.files import atomic_path
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.data.labels import FileTable
from recurra.data.splits import read_rows, texts_as_written
from recurra.evaluation.metrics import Floats
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls.fitting import first_rows, of_several_texts, out_of_fold_probabilities

DEFAULT_ENCODER, NO_ENCODER = "minilm", "none"
# An encoder reads this many reviews in some minutes; for more rows the user has to ask for it.
MOST_ROWS_UNASKED = 10_000
_DIGITS = 6
# The grid: factors of all log-probabilities, which wrong labels have made smaller, and shares of replaced labels.
_FACTORS, _SHARES = np.exp(np.linspace(0.0, 2.5, 51)), np.linspace(0.0, np.sqrt(0.5), 61) ** 2
# Prior mean of the share: in ten widely used data sets 3.3 % of the labels were wrong on average (Northcutt, Athalye
# and Mueller 2021, "Pervasive Label Errors").
_MEAN_SHARE = 0.033
# Most rows that the grid is evaluated on, and a posterior weight small enough to ignore.
_MOST_WEIGHED, _LEAST_WEIGHT = 20_000, 1e-6
_TINY = 1e-300


@dataclass(frozen=True)
class DoubtedLabel:
    """A row, its position in the file from 1, and how probable a model that did not see its label finds it."""

    place: int
    label: str
    suggested: str
    label_probability: float
    probability: float
    wrong_probability: float
    suspect: bool
    text: str

    def plain(self, unit: str) -> dict[str, Any]:
        """Plain JSON values; the position is called ``unit``, as the file counts its rows."""
        return {unit: self.place, **{name: value for name, value in asdict(self).items() if name != "place"}}


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """All rows of a file, the most doubtful label first."""

    table: FileTable
    texts: list[str]
    names: list[str]
    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    order: npt.NDArray[np.int64]
    wrong: Floats
    share: float
    model: str
    notes: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[DoubtedLabel]:
        suspects = self.suspects
        for row in self.order.tolist():
            probabilities, label = self.probabilities[row], int(self.labels[row])
            suggested = int(np.where(np.arange(len(probabilities)) == label, -1.0, probabilities).argmax())
            yield DoubtedLabel(
                self.table.row_numbers[row],
                self.names[label],
                self.names[suggested],
                round(float(probabilities[label]), _DIGITS),
                round(float(probabilities[suggested]), _DIGITS),
                round(float(self.wrong[row]), _DIGITS),
                bool(suspects[row]),
                self.texts[row],
            )

    @property
    def suspects(self) -> npt.NDArray[np.bool_]:
        """Rows whose label is more likely wrong than right, ``(rows,)``."""
        return self.wrong > 0.5

    @property
    def agreement(self) -> float:
        """Share of rows whose label is the most probable one: the judge's accuracy, if all labels are right."""
        return float((self.probabilities.argmax(axis=1) == self.labels).mean())

    @property
    def macro_f1(self) -> float:
        """Mean over labels of the judge's F1 on rows that it did not see, by the labels of the file."""
        return float(f1_score(self.labels, self.probabilities.argmax(axis=1), average="macro", zero_division=0))

    @property
    def chance(self) -> float:
        """Share of rows with the commonest label."""
        return float(np.bincount(self.labels).max() / len(self.labels))

    def write(self, path: Path) -> None:
        """Writes all rows as CSV, the most doubtful first."""
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            rows = [row.plain(self.table.unit) | {"suspect": str(row.suspect).lower()} for row in self]
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def find_label_errors(
    config: DataConfig, *, encoder: str | None = None, seed: int = 0, reporter: Reporter | None = None
) -> LabelErrors:
    """Ranks the rows of a user's file by how doubtful their label is.

    Each row is judged by the tuned linear control and by a logistic regression on the mean states of a pretrained
    encoder, both fitted on the four fifths of the file without the row. They err on different rows, so the mean of
    their log-probabilities finds more than either. `NO_ENCODER` uses the linear model alone; none uses
    `DEFAULT_ENCODER` if it is installed and the file has at most `MOST_ROWS_UNASKED` rows.
    """
    if config.problem_type is not None:
        raise ConfigurationError(
            f"'{config.name}' has several labels a row, but label errors are found only with one label "
            "a row: give one label at a time"
        )
    table, notes = read_rows(config.name, config)
    names = config.labels.names(table, config.label_column)
    labels = config.labels.values(table, names)
    states, note = _states(encoder, table.texts, config.name, reporter or Reporter(quiet=True))
    notes = [*notes, note] if note else notes
    probabilities, model = out_of_fold_probabilities(
        table.texts, labels, num_labels=len(names), states=states, seed=seed
    )
    label_probabilities = probabilities[np.arange(len(labels)), labels]
    seen = of_several_texts(labels, first_rows(table.texts))
    if alone := int((~seen).sum()):
        notes = [*notes, f"{alone:,} rows have a label that no other text has, so nothing shows whether it is wrong"]
    seen_wrong, share = wrong_labels(probabilities[seen], labels[seen])
    wrong = np.full(len(labels), share)
    wrong[seen] = seen_wrong
    original_texts = texts_as_written(config.name, config)
    texts = [original_texts.get(row, text) for row, text in zip(table.ids, table.texts, strict=True)]
    order = np.lexsort((label_probabilities, -wrong, ~seen))
    return LabelErrors(table, texts, names, labels, probabilities, order, wrong, share, model, notes)


def wrong_labels(probabilities: Floats, labels: npt.NDArray[np.int64]) -> tuple[Floats, float]:
    """The probability of each row that its label is wrong, ``(rows,)``, and the share of labels replaced at random.

    Both are means over the posterior of that share and of the judge's temperature, on a grid.
    """
    logs, others = np.log(probabilities.clip(_TINY)), probabilities.shape[1] - 1
    sample = np.random.default_rng(0).permutation(len(labels))[:_MOST_WEIGHED]

    def right_probability(factor: float, rows: npt.NDArray[np.int64]) -> Floats:
        return np.asarray(softmax(logs[rows] * factor, axis=1)[np.arange(len(rows)), labels[rows]], dtype=np.float64)

    prior = np.log(np.gradient(_SHARES)) + np.log1p(-_SHARES) * (1 / _MEAN_SHARE - 2)
    posterior = np.empty((len(_FACTORS), len(_SHARES)))
    for row, factor in enumerate(_FACTORS):
        right = right_probability(factor, sample)
        for column, share in enumerate(_SHARES):
            posterior[row, column] = np.log((right * (1 - share) + (1 - right) * share / others).clip(_TINY)).sum()
    posterior += prior
    posterior = np.exp(posterior - posterior.max())
    posterior /= posterior.sum()
    wrong = np.zeros(len(labels))
    for factor, weights in zip(_FACTORS, posterior, strict=True):
        if weights.sum() < _LEAST_WEIGHT:
            continue
        right = right_probability(factor, np.arange(len(labels)))
        for share, weight in zip(_SHARES, weights, strict=True):
            if weight > _LEAST_WEIGHT / len(_SHARES):
                wrong_mass = (1 - right) * share / others
                wrong += weight * wrong_mass / (right * (1 - share) + wrong_mass).clip(_TINY)
    return wrong, float(posterior.sum(axis=0) @ _SHARES)


def _states(
    encoder: str | None, texts: Sequence[str], file: str, reporter: Reporter
) -> tuple[npt.NDArray[np.float32] | None, str]:
    """The encoder's mean states of the texts, if it is used, and a note for the user if it is not."""
    if encoder == NO_ENCODER:
        return None, ""
    if encoder is None and len(texts) > MOST_ROWS_UNASKED:
        return None, (
            f"{DEFAULT_ENCODER} was not used: reading {len(texts):,} texts takes a while; --from {DEFAULT_ENCODER} "
            "uses it, and finds more"
        )
    try:
        source = find_encoder(encoder or DEFAULT_ENCODER)
    except UnavailableError as error:
        if encoder is not None:
            raise
        return None, f"without a pretrained encoder, which finds more: {error}"
    from recurra.evaluation.encoder_states import cached_states

    return cached_states(source, texts, reporter, data=file), ""
