"""Prepares the training of models that label texts, and holds its result. A linear model loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recurra.core.errors import ConfigurationError, DataError
from recurra.core.progress import Reporter
from recurra.core.record import ModelRecord, TrainingRecord
from recurra.data.dataset import TextDataset
from recurra.data.tokenization import SEPARABLE, with_fewer_pieces
from recurra.models.controls.linear import LinearModel
from recurra.tasks.base import METHOD, RunConfig
from recurra.tasks.labelling import labelled
from recurra.tasks.study_data import StudyData

if TYPE_CHECKING:
    from recurra.tasks.labelling.teacher import Lesson


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        tokenizer: Description of the tokenizer; empty without one.
        smaller: The tuned linear control fitted on parts of the training rows, by the number of these rows.
        telling_words: The words that this control finds telling, by label.
    """

    dataset: TextDataset
    training: TrainingRecord
    model: ModelRecord
    tokenizer: dict[str, Any]
    lesson: Lesson | None = None
    smaller: Mapping[int, LinearModel] = field(default_factory=dict)
    telling_words: dict[str, list[str]] | None = None


def prepare_training(
    config: RunConfig, folder: Path, data: StudyData, reporter: Reporter, weights: npt.NDArray[np.float32] | None
) -> tuple[TextDataset, npt.NDArray[np.float32] | None, Lesson | None]:
    """The rows that a model learns from, their weights if not all are equal, and its teachers' answers.

    Class weights of the protocol multiply weights that were given.

    Raises:
        ConfigurationError: For weights beside a teacher, or several labels a row.
        DataError: If weights of 0 leave a control one class.
    """
    reporter.stage(config.run_id, "loading data")
    dataset = data.rows(labelled(config.data))
    labels, method = dataset.splits["train"].labels, config.model_overrides.get(METHOD)
    if config.protocol.class_weights == "balanced" and not (config.teachers or config.is_control or method):
        weights = balanced_weights(labels, weights)
    conflict = "a teacher" if config.teachers else "several labels a text" if labels.ndim == 2 else ""
    if weights is not None and (conflict or method):
        reason = conflict or f"method '{method}'"
        raise ConfigurationError(f"weights of rows have no meaning with {reason}; leave one of them out")
    if weights is not None and config.is_control and not weights.all():
        # Rows of weight 0 would still affect what a control reads, and which of its fits is best.
        rows = np.flatnonzero(weights)
        train = dataset.splits["train"].select(rows)
        if len(classes := np.unique(train.labels)) < 2:
            raise DataError(
                f"training rows with a weight above 0 are of one class only: '{dataset.label_names[classes[0]]}'; give "
                "rows of another class a weight too"
            )
        dataset = replace(dataset, splits={**dataset.splits, "train": train})
        weights = weights[rows]
    if not config.teachers:
        return dataset, weights, None
    from recurra.tasks.labelling.teacher import ask_teachers

    cache_dir = data.machine.cache_dir
    return dataset, weights, ask_teachers(config, folder, dataset, cache_dir=cache_dir, reporter=reporter)


# A token table with more pieces is most of the model: that of 100 languages has 250,000, and texts of one language
# reach a tenth of them. It is cut down to the second number, or to what the training rows use.
WIDE_TABLE, NARROWED_TO = 65_536, 32_768


def narrow_table(model: Any, tokenizer: Any, ids: npt.NDArray[np.int32]) -> Any:
    """Cuts down a classifier's token table where it is wide; returns the tokenizer that belongs to it then.

    Training rows are written in the same pieces as before. ``model`` has the encoder's weights and is changed; ``ids``
    are those of the training rows.
    """
    if len(tokenizer) <= WIDE_TABLE or tokenizer.backend_tokenizer.model.__class__.__name__ not in SEPARABLE:
        return tokenizer
    from recurra.models.modeling import keep_rows

    smaller, rows = with_fewer_pieces(tokenizer, ids, None)
    if len(rows) < NARROWED_TO:
        smaller, rows = with_fewer_pieces(tokenizer, ids, NARROWED_TO)
    keep_rows(model, rows, smaller.pad_token_id)
    return smaller


def balanced_weights(
    labels: npt.NDArray[np.int64], weights: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Weights under which every class with weight has the same sum, with a mean of 1.

    Args:
        labels: ``(rows,)``; tasks refuse balanced weights for several labels a row.
        weights: Weights that rows have already, ``(rows,)``.
    """
    row_weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    class_sums = np.bincount(labels, weights=row_weights)
    sums = class_sums[labels]
    balanced = np.divide(row_weights, sums, out=np.zeros_like(sums), where=sums > 0)
    return (balanced / balanced.mean()).astype(np.float32)
