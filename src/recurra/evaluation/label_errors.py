"""Rows of a labelled file whose label is probably wrong, found by a model that did not see the label.

Confident learning (Northcutt, Jiang and Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels",
JAIR 70) as cleanlab does it: rows are ranked by the probability that their label has, out of fold, and those are
suspects that a class other than their label claims with at least the probability that its own rows have on average.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, UnavailableError
from recurra.core.files import atomic_path
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.data.labels import FileTable
from recurra.data.splits import read_rows
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls.fitting import out_of_fold_probabilities

DEFAULT_ENCODER, NO_ENCODER = "minilm", "none"
# Of reviews an encoder reads so many in some minutes; beyond, it has to be asked for.
MOST_ROWS_UNASKED = 10_000
_DIGITS = 6


@dataclass(frozen=True)
class DoubtedLabel:
    """A row, and how its label looks to a model that did not see it.

    Attributes:
        place: Where it stands in the file, from 1: the line, of Parquet the row.
    """

    place: int
    text: str
    label: str
    suggested: str
    label_probability: float
    probability: float
    suspect: bool


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """All rows of a file, the most doubtful label first.

    Attributes:
        probabilities: Out of fold, calibrated, ``(rows, labels)``.
    """

    table: FileTable
    names: list[str]
    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    order: npt.NDArray[np.int64]
    suspects: npt.NDArray[np.bool_]
    model: str
    notes: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[DoubtedLabel]:
        for row in self.order.tolist():
            own, given = self.probabilities[row], int(self.labels[row])
            other = int(np.where(np.arange(len(own)) == given, -1.0, own).argmax())
            yield DoubtedLabel(
                self.table.places[row],
                self.table.texts[row],
                self.names[given],
                self.names[other],
                round(float(own[given]), _DIGITS),
                round(float(own[other]), _DIGITS),
                bool(self.suspects[row]),
            )

    @property
    def agreement(self) -> float:
        """Share of rows whose label is the most probable one."""
        return float((self.probabilities.argmax(axis=1) == self.labels).mean())

    def write(self, path: Path) -> None:
        """Writes all rows as CSV, the most doubtful first."""
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            # The text is last: it is what makes lines long.
            columns = [name for name in DoubtedLabel.__dataclass_fields__ if name not in ("place", "text")]
            writer.writerow([self.table.unit, *columns, "text"])
            for row in self:
                values: dict[str, Any] = asdict(row) | {"suspect": str(row.suspect).lower()}
                writer.writerow([row.place, *(values[name] for name in columns), row.text])


def find_label_errors(
    config: DataConfig, *, encoder: str | None = None, seed: int = 0, reporter: Reporter | None = None
) -> LabelErrors:
    """Ranks the rows of a user's file by how doubtful their label is.

    Each row is judged by the tuned linear control (`recurra.models.controls.fitting.fit_tuned`) and by
    a logistic regression on what a pretrained encoder makes of the text, both fitted on four fifths of the file that it
    is not in. They err on different rows, so that the mean of their log-probabilities finds more than either.

    Args:
        encoder: As `recurra.models.adaptation.source.find_encoder` takes it, or `NO_ENCODER` for the linear model
            alone; none takes `DEFAULT_ENCODER` if it is installed and the file has at most `MOST_ROWS_UNASKED` rows.
    """
    if config.problem_type is not None:
        raise ConfigurationError(
            f"'{config.name}' is read with several labels a row; doubtful labels are found in files "
            "with one label a row: give such a file, one label at a time"
        )
    # Both take a second or two to import.
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_self_confidence_for_each_label

    table, notes = read_rows(config.name, config)
    names = config.labels.names(table, config.label_column)
    labels = config.labels.values(table, names)
    states, note = _states(encoder, table.texts, config.name, reporter or Reporter(quiet=True))
    notes = [*notes, note] if note else notes
    probabilities, model = out_of_fold_probabilities(
        table.texts, labels, num_labels=len(names), states=states, seed=seed
    )
    doubt = get_self_confidence_for_each_label(labels, probabilities)
    suspects = find_label_issues(labels, probabilities, filter_by="confident_learning", n_jobs=1)
    return LabelErrors(table, names, labels, probabilities, np.argsort(doubt, kind="stable"), suspects, model, notes)


def _states(
    encoder: str | None, texts: Sequence[str], file: str, reporter: Reporter
) -> tuple[npt.NDArray[np.float32] | None, str]:
    """What the encoder makes of the texts, and what the user must know if it was not asked."""
    if encoder == NO_ENCODER:
        return None, ""
    if encoder is None and len(texts) > MOST_ROWS_UNASKED:
        return None, (
            f"{DEFAULT_ENCODER} was not asked: reading {len(texts):,} texts takes it a while; --from {DEFAULT_ENCODER} "
            "asks it, and finds more"
        )
    try:
        source = find_encoder(encoder or DEFAULT_ENCODER)
    except UnavailableError as error:
        if encoder is not None:
            raise
        return None, f"without a pretrained encoder, which finds more: {error}"
    from recurra.evaluation.encoder_states import cached_states

    return cached_states(source, texts, reporter, data=file), ""
