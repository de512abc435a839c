"""Training on labels of another task first: the encoder learns from them, its classifier has a head of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments

from recurra.core.progress import Reporter
from recurra.core.seeds import derive_seed
from recurra.data.batching import Collator
from recurra.data.encoding import EncodedSplit
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.training.stages import train_stage
from recurra.training.trainer import RecurraTrainer


def classifier_beside(
    classifier: RecurraForSequenceClassification, num_labels: int
) -> RecurraForSequenceClassification:
    """Returns a classifier of ``num_labels`` classes with fresh heads on the very encoder of another."""
    config = copy.deepcopy(classifier.config)
    config.num_labels = num_labels
    # Its own encoder is thrown away: a table of a row or two is made quickly.
    config.vocab_size = 1 + (config.pad_token_id or 0)
    beside = RecurraForSequenceClassification(config)
    beside.model = classifier.model
    return beside.to(next(classifier.parameters()).device)


def train_auxiliary(
    classifier: RecurraForSequenceClassification,
    rows: EncodedSplit,
    arguments: TrainingArguments,
    *,
    change_inputs: Callable[[Tensor], Tensor] | None,
    seed: int,
    reporter: Reporter,
) -> bool:
    """Trains the classifier's encoder in place on labels of another task; its own head is not touched.

    Args:
        classifier: Whose encoder is trained.
        rows: Tokenised rows with labels from 0.
        arguments: How; their folder is that of this stage's own checkpoints.
        change_inputs: As in `RecurraTrainer`.
        seed: Seed of the run.
        reporter: For progress.

    Returns:
        Whether some of it had been done before.

    Raises:
        RunError: If the loss is not finite.
    """
    torch.manual_seed(derive_seed(seed, "auxiliary weights"))
    beside = classifier_beside(classifier, int(rows.labels.max()) + 1)

    def trainer(progress: TrainerCallback) -> RecurraTrainer:
        return RecurraTrainer(
            model=beside,
            args=arguments,
            train_dataset=rows,
            collator=Collator(classifier.config.pad_token_id or 0),
            data_seed=derive_seed(seed, "auxiliary order"),
            change_inputs=change_inputs,
            callbacks=[progress],
        )

    return train_stage("auxiliary", beside, len(rows), arguments, trainer, reporter=reporter)
