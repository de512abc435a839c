"""Training an encoder by SetFit, as its package does it: an alternative to fine-tuning where labels are few.

Tunstall et al. 2022 (arXiv 2209.11055), section 3: texts are paired, each row with rows of its own label and of others;
the encoder is tuned until the cosine of a pair's mean token states says whether the labels agree; a logistic regression
then reads these means. The result is one of our classifiers: a mean over tokens and a linear head.

The encoder is transformers' own, and the package ``setfit`` trains it in FP32. With many rows we deviate: the number of
steps is bounded (as the package's documentation advises), and only some of the rows are paired. All rows fit the
regression, which gets enough iterations to converge. Each window of a text is a row.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from recurra.core.configuration import derive_seed
from recurra.core.environment import peak_memory_mib
from recurra.core.progress import ProgressTask, Reporter
from recurra.core.record import TrainingRecord
from recurra.data.dataset import TextSplit
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.models.adaptation.source import EncoderSource
from recurra.models.folder import WEIGHTS_NAME
from recurra.models.modeling import RecurraForSequenceClassification

# Section 4.2: R = 20 pairs of each kind a row, one epoch, batches of 16 pairs.
PAIRS_A_ROW = 20
BATCH_SIZE = 16
# Reached at 400 rows; with more, each row is in fewer pairs.
MOST_STEPS = 1_000
# The package lists every pair of rows before it draws any: 2 million for 2,000 rows, more than 24 GiB for 57,609 rows.
MOST_PAIRED_ROWS = 4_000
_MOST_ITERATIONS = 1_000
_LOGGER_NAMES = ("setfit", "sentence_transformers")
# Logit of a label that no row has: not minus infinity, so that the loss of such a label stays finite.
_UNSEEN_LOGIT = -25.0


def steps_for(rows: int) -> int:
    """Optimiser steps of the contrastive training on this number of rows."""
    return min(-(-2 * PAIRS_A_ROW * rows // BATCH_SIZE), MOST_STEPS)


def paired_rows(rows: int, seed: int) -> npt.NDArray[np.int64]:
    """Sorted indices of the rows that are paired: all, or a random `MOST_PAIRED_ROWS` of them."""
    if rows <= MOST_PAIRED_ROWS:
        return np.arange(rows)
    drawn_rows = np.random.default_rng(derive_seed(seed, "pairs")).choice(rows, MOST_PAIRED_ROWS, replace=False)
    return np.sort(drawn_rows)


def reads_of_a_row(rows: int) -> float:
    """How often, on average, the contrastive training reads each row, of this number of rows."""
    return 2 * BATCH_SIZE * steps_for(rows) / rows


def version() -> str:
    """The package's version, for the descriptions of models."""
    return importlib.metadata.version("setfit")


def train_by_setfit(
    model: RecurraForSequenceClassification,
    source: EncoderSource,
    rows: TextSplit,
    *,
    max_length: int,
    seed: int,
    protocol: str,
    reporter: Reporter,
) -> TrainingRecord:
    """Trains a copy of an encoder by SetFit and loads its weights and head into a model."""
    started, texts, labels = time.perf_counter(), rows.texts, rows.labels
    steps = steps_for(len(texts))
    with tempfile.TemporaryDirectory() as folder, reporter.task("contrastive training", steps) as task, _quiet():
        encoder_weights, head, tokens = _train(
            source, texts, labels, steps=steps, max_length=max_length, seed=seed, folder=Path(folder), task=task
        )
        weights_path = Path(folder) / WEIGHTS_NAME
        save_file({name: values.contiguous().cpu() for name, values in encoder_weights.items()}, weights_path)
        load_encoder_weights(model.model, EncoderSource(source.name, Path(folder), source.values))
    _set_head(model.classifier, head)
    wall_s = time.perf_counter() - started
    return TrainingRecord(
        protocol=protocol,
        epochs=1,
        steps=steps,
        best_epoch=1,
        wall_s=wall_s,
        tokens_per_s=tokens / wall_s,
        peak_memory_mib=peak_memory_mib(),
    )


def _train(
    source: EncoderSource,
    texts: Sequence[str],
    labels: npt.NDArray[np.int64],
    *,
    steps: int,
    max_length: int,
    seed: int,
    folder: Path,
    task: ProgressTask,
) -> tuple[dict[str, torch.Tensor], Any, int]:
    """Trains; returns the encoder's weights by their own names, the logistic regression, and tokens of the steps."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression

    files = {"local_files_only": True}
    encoder = Transformer(
        str(source.folder),
        max_seq_length=max_length,
        model_kwargs={"use_safetensors": True, **files},
        processor_kwargs=files,
        config_kwargs=files,
    )
    pooling = Pooling(int(source.values["hidden_size"]), "mean")
    sentence_encoder = SentenceTransformer(modules=[encoder, pooling])
    classifier = SetFitModel(sentence_encoder, LogisticRegression(max_iter=_MOST_ITERATIONS))
    arguments = TrainingArguments(
        output_dir=str(folder / "setfit"),
        batch_size=BATCH_SIZE,
        num_iterations=PAIRS_A_ROW,
        max_steps=steps,
        seed=derive_seed(seed, "order"),
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        show_progress_bar=False,
    )
    trainer = Trainer(model=classifier, args=arguments, callbacks=[_Steps(task)])
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    paired = paired_rows(len(texts), seed)
    paired_texts = [texts[row] for row in paired]
    trainer.train_embeddings(paired_texts, labels[paired].tolist())
    trainer.train_classifier(list(texts), labels.tolist())
    lengths = [len(ids) for ids in encoder.tokenizer(paired_texts, truncation=True, max_length=max_length)["input_ids"]]
    tokens = round(2 * BATCH_SIZE * steps * sum(lengths) / len(lengths))
    return dict(encoder.model.state_dict()), classifier.model_head, tokens


def _set_head(linear: torch.nn.Linear, regression: Any) -> None:
    """Gives a linear layer the weights of a logistic regression over the labels that occurred."""
    weight, bias = torch.from_numpy(regression.coef_), torch.from_numpy(regression.intercept_)
    if len(regression.classes_) == 2:
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    present = torch.from_numpy(np.asarray(regression.classes_, dtype=np.int64))
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.fill_(_UNSEEN_LOGIT)
        linear.weight[present] = weight.to(linear.weight)
        linear.bias[present] = bias.to(linear.bias)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the packages' progress bars, log lines and warnings from the terminal, which shows our own."""
    from datasets import disable_progress_bars, enable_progress_bars, is_progress_bar_enabled

    were_enabled = is_progress_bar_enabled()
    disable_progress_bars()
    levels = {name: logging.getLogger(name).level for name in _LOGGER_NAMES}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Importing the package sets the level of its logger.
            importlib.import_module("setfit")
            for name in _LOGGER_NAMES:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if were_enabled:
            enable_progress_bars()


class _Steps(TrainerCallback):
    """Shows steps as they are done."""

    def __init__(self, task: ProgressTask) -> None:
        self._task = task

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Moves the bar."""
        self._task.advance()
