"""What is trained before the classifier, on other targets: labels of another task, or masked tokens."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.modeling_outputs import MaskedLMOutput

from recurra.core.configuration import derive_seed
from recurra.core.errors import RunError
from recurra.core.files import read_json
from recurra.core.progress import ProgressTask, Reporter
from recurra.data.batching import Collator
from recurra.data.containment import Indices, RollingHash, mixed, windows_in
from recurra.data.encoding import EncodedSplit
from recurra.models.modeling import RecurraForSequenceClassification, RecurraModel, RecurraPreTrainedModel
from recurra.training.checkpoint import latest_checkpoint
from recurra.training.distillation import RowLoss, TaughtCollator
from recurra.training.trainer import RecurraTrainer, TimedCheckpoints
from recurra.training.vocabulary import NOT_GUESSED, MaskTokens, tokens_to_guess

# Longer rows are hardly ever parts of others, and every length costs a pass over all tokens.
LONGEST_PART_TOKENS = 64


def rows_not_inside_others(split: EncodedSplit) -> Indices:
    """Finds the rows that say something no other row says: the longest of each family of phrases.

    A row of up to `LONGEST_PART_TOKENS` tokens is left out if its tokens, but for the first and the last (``[CLS]``
    and ``[SEP]``), stand in one run inside a longer row, or if an earlier row equals it. Runs are compared by a 64-bit
    hash.
    """
    hashes = RollingHash.of(mixed(split.input_ids.astype(np.uint64)))
    starts, lengths = split.offsets[:-1] + 1, split.lengths - 2
    keep = np.ones(len(split), dtype=bool)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if not 0 < length <= LONGEST_PART_TOKENS:
            continue
        own, first = np.unique(hashes.windows(starts[rows], length), return_index=True)
        places, inside = windows_in(starts, lengths, length)
        others = hashes.windows(places[lengths[inside] > length], length)
        at = np.minimum(np.searchsorted(own, others), len(own) - 1)
        keep[rows] = False
        keep[rows[first]] = True
        keep[rows[first[np.unique(at[own[at] == others])]]] = False
    return np.flatnonzero(keep)


def train_stage(
    name: str,
    model: nn.Module,
    num_rows: int,
    arguments: TrainingArguments,
    make_trainer: Callable[[TrainerCallback], RecurraTrainer],
    *,
    reporter: Reporter,
) -> bool:
    """Trains a stage to its end, or goes on from its last epoch, or takes up what is done.

    Args:
        name: Shown, and the first part of the name of its learning rate's key.
        arguments: How; their folder is that of the stage's own checkpoints.
    """
    checkpoint = latest_checkpoint(Path(arguments.output_dir))
    if checkpoint is not None and _is_done(checkpoint):
        load_model(model, checkpoint / "model.safetensors")
        return True
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    steps = -(-num_rows // batch) * int(arguments.num_train_epochs)
    with reporter.task(name, steps) as task:
        trainer = make_trainer(StageProgress(name, task))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.callback_handler.callbacks.clear()
    del trainer
    gc.collect()
    return checkpoint is not None


def _is_done(checkpoint: Path) -> bool:
    state = read_json(checkpoint / "trainer_state.json")
    return bool(state["global_step"] >= state["max_steps"])


class StageProgress(TrainerCallback):
    """Moves the bar, says the loss of every epoch, stops when it is not finite."""

    def __init__(self, name: str, task: ProgressTask) -> None:
        self.name = name
        self.task = task

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Takes up a resumed state."""
        self.task.advance(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Moves the bar."""
        self.task.advance(1, note=f"epoch {int(state.epoch or 0) + 1}")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Says the loss."""
        last = state.log_history[-1]
        if "loss" not in last:
            return
        epoch = round(last["epoch"])
        if not np.isfinite(last["loss"]):
            raise RunError(
                f"the loss is not finite in epoch {epoch} of {self.name}; lower {self.name}_learning_rate "
                "or raise precision (precision=fp32)"
            )
        self.task.reporter.say(f"  {self.name} epoch {epoch}: loss {json.dumps(round(last['loss'], 4))}")


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
    """Trains the classifier's encoder in place on labels of another task; its own head is not touched."""
    torch.manual_seed(derive_seed(seed, "auxiliary weights"))
    beside = classifier_beside(classifier, int(rows.labels.max()) + 1)

    def trainer(progress: TrainerCallback) -> RecurraTrainer:
        return RecurraTrainer(
            model=beside,
            args=arguments,
            train_dataset=rows,
            collator=TaughtCollator(classifier.config.pad_token_id or 0),
            data_seed=derive_seed(seed, "auxiliary order"),
            row_loss=None if rows.weights is None else RowLoss(exit_loss_weight=beside.config.exit_loss_weight),
            change_inputs=change_inputs,
            callbacks=[progress, TimedCheckpoints()],
        )

    return train_stage("auxiliary", beside, len(rows), arguments, trainer, reporter=reporter)


# Masked-token prediction on the training split's own texts, before the classifier is trained.
#
# The texts that are to be classified make a surprisingly good corpus to pretrain on (Krishna et al. 2023, "Downstream
# Datasets Make Surprisingly Good Pretraining Corpora"). Nothing but the texts of the training split is read, no labels,
# and of texts that stand inside another text only the longest.
GUESSED_SHARE = 0.2
# Every number of rows has its own compiled kernels on a CPU, and the number of tokens to guess is random.
_GUESSES_STEP = 128


class RecurraForMaskedTokens(RecurraPreTrainedModel):
    """A model with a head that guesses hidden tokens: one layer, then the token table."""

    accepts_loss_kwargs = False

    def __init__(self, encoder: RecurraModel) -> None:
        super().__init__(encoder.config)
        self.model = encoder
        table = encoder.get_input_embeddings().weight
        self.transform = nn.Linear(encoder.config.hidden_size, table.shape[1], device=table.device)
        self.bias = nn.Parameter(torch.zeros(len(table), device=table.device))
        nn.init.normal_(self.transform.weight, std=encoder.config.initializer_range)
        nn.init.zeros_(self.transform.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: object
    ) -> MaskedLMOutput:
        """Guesses."""
        states = self.model(input_ids, attention_mask).last_hidden_state.flatten(0, 1)
        targets = labels.flatten() if labels is not None else input_ids.flatten()
        chosen = (targets != NOT_GUESSED).nonzero()[:, 0]
        missing = -len(chosen) % _GUESSES_STEP
        chosen_targets = functional.pad(targets[chosen], (0, missing), value=NOT_GUESSED)
        features = functional.gelu(self.transform(states[functional.pad(chosen, (0, missing))]))
        logits = functional.linear(features, self.model.get_input_embeddings().weight, self.bias).float()
        total = functional.cross_entropy(logits, chosen_targets, ignore_index=NOT_GUESSED, reduction="sum")
        return MaskedLMOutput(loss=total / max(len(chosen), 1))


class MaskedTokenTrainer(RecurraTrainer):
    """Hides words of every batch, anew at every step, and has them guessed."""

    def __init__(self, *, tokens: MaskTokens, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._tokens = tokens

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        """The loss of the hidden words; a row's class is not looked at."""
        table = self.accelerator.unwrap_model(model).bias
        seen, targets = tokens_to_guess(inputs["input_ids"], GUESSED_SHARE, self._tokens, len(table))
        hidden = {**inputs, "input_ids": seen, "labels": targets}
        return super().compute_loss(model, hidden, *arguments, **keywords)


def pretrain(
    classifier: RecurraForSequenceClassification,
    train: EncodedSplit,
    tokens: MaskTokens,
    arguments: TrainingArguments,
    *,
    seed: int,
    reporter: Reporter,
) -> bool:
    """Pretrains the classifier's encoder in place, or goes on from the last epoch, or takes up what is done."""
    model = RecurraForMaskedTokens(classifier.model)
    rows = _select(train, rows_not_inside_others(train))

    def trainer(progress: TrainerCallback) -> RecurraTrainer:
        return MaskedTokenTrainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            collator=Collator(classifier.config.pad_token_id or 0),
            data_seed=derive_seed(seed, "pretraining order"),
            tokens=tokens,
            callbacks=[progress, TimedCheckpoints()],
        )

    return train_stage("pretraining", model, len(rows), arguments, trainer, reporter=reporter)


def _select(split: EncodedSplit, rows: np.ndarray[Any, Any]) -> EncodedSplit:
    pieces = [split.input_ids[split.offsets[row] : split.offsets[row + 1]] for row in rows]
    offsets = np.concatenate([[0], np.cumsum(split.lengths[rows])]).astype(np.int64)
    return EncodedSplit(np.concatenate(pieces), offsets, split.labels[rows])
