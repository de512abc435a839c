"""The Transformers Trainer with our batches, our checkpoints and our history."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from recurra.core.errors import RunError
from recurra.core.files import read_json, storage_errors, write_text
from recurra.core.progress import ProgressTask, Reporter
from recurra.data.batching import Collator, LengthGroupedBatchSampler, sorted_batches
from recurra.data.encoding import EncodedSplit
from recurra.models.heads import mean_of_packed
from recurra.training.checkpoint import (
    EPOCH_NAME,
    OPTIMIZER_NAME,
    SCALER_NAME,
    SCHEDULE_NAME,
    latest_checkpoint,
    load_optimizer,
    load_random_state,
    load_schedule,
    mark_complete,
    remove_checkpoints_but,
    save_optimizer,
    save_random_state,
    save_schedule,
)
from recurra.training.distillation import RowLoss
from recurra.training.protocols import ProtocolConfig

ONE_CYCLE = "onecycle"
# File of a checkpoint with the weights that training resumes from; its model file has the averaged weights.
UNAVERAGED_NAME = "unaveraged.safetensors"


class WeightAverage(TrainerCallback):
    """Averages the weights after every optimiser step: ``d * average + (1 - d) * weights``.

    ``d`` rises to the decay, so that the start is forgotten, as in TensorFlow's ``ExponentialMovingAverage``.
    """

    def __init__(self, model: PreTrainedModel, decay: float) -> None:
        self.model = model
        self.decay = decay
        self._weights = list(model.parameters())
        self._averages: list[Tensor] = [weight.detach().clone() for weight in self._weights]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Updates the averages with the step's weights."""
        step = state.global_step
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for average, weight in zip(self._averages, self._weights, strict=True):
                average.lerp_(weight, share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside the context."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for index, weight in enumerate(self._weights):
            self._averages[index], weight.data = weight.data, self._averages[index]

    def save_weights(self, checkpoint: Path) -> None:
        """Writes the weights that training resumes from; the model of a checkpoint has the averages."""
        with storage_errors(checkpoint):
            save_model(self.model, str(checkpoint / UNAVERAGED_NAME))

    def restore(self, checkpoint: Path) -> None:
        """Reads the averages from the model, which the checkpoint was loaded into, then loads the training weights."""
        self._averages = [weight.detach().clone() for weight in self._weights]
        load_model(self.model, checkpoint / UNAVERAGED_NAME)


# Key of a batch of whole texts: number of windows of each text, ``(texts,)``.
TEXT_WINDOWS = "text_windows"


@dataclass(frozen=True, eq=False)
class WholeTexts:
    """Texts with all of their windows; a map-style dataset for a torch ``DataLoader``."""

    rows: EncodedSplit

    def __len__(self) -> int:
        return len(self.rows.windows_of_texts)

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        first_row, count = int(self.rows.text_rows[index]), int(self.rows.windows_of_texts[index])
        return self.rows.__getitems__(range(first_row, first_row + count))


class WholeTextsCollator:
    """Makes a batch of all windows of some texts."""

    def __init__(self, pad_token_id: int) -> None:
        self._collate = Collator(pad_token_id)

    def __call__(self, texts: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Tensor]:
        """Returns ``labels`` of the texts (first: the Trainer counts rows by them), ``text_windows``, and inputs."""
        batch = self._collate([row for windows in texts for row in windows])
        counts = torch.tensor([len(windows) for windows in texts])
        return {"labels": batch.pop("labels")[counts.cumsum(0) - 1], TEXT_WINDOWS: counts, **batch}


# Minutes since the last checkpoint before another one is written within an epoch.
CHECKPOINT_MINUTES = 5.0

Entry = dict[str, Any]


class FixedBatches:
    """A batch sampler of fixed batches, the longest texts first."""

    def __init__(self, lengths: np.ndarray[Any, Any], batch_size: int) -> None:
        self.batch_size = batch_size
        self.drop_last = False
        self._batches = [batch.tolist() for batch in sorted_batches(lengths, batch_size)]
        # Distributed evaluation expects the smaller batch last.
        self._batches.sort(key=len, reverse=True)

    def __iter__(self) -> Any:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class RecurraTrainer(Trainer):
    """Trains on rows with ``lengths`` in length-grouped batches; checkpoints hold no pickle.

    Args:
        progress: Gets the task that ``stage`` is shown as.
        change_inputs: Changes the token ids ``(batch, tokens)`` of a batch in training, but not in evaluation.
        loss: Training loss of a model and a batch; none takes the model's own, which evaluation always uses.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Any,
        protocol: ProtocolConfig,
        arguments: TrainingArguments,
        reporter: Reporter,
        *,
        progress: TaskProgress,
        collator: Callable[..., Any],
        data_seed: int,
        stage: str = "training",
        change_inputs: Callable[[Tensor], Tensor] | None = None,
        average: WeightAverage | None = None,
        loss: Callable[[Any, dict[str, Any]], Tensor] | None = None,
        **options: Any,
    ) -> None:
        with storage_errors(str(arguments.output_dir)):
            # Made here, because in the library a full disk would end in a traceback.
            Path(str(arguments.output_dir)).mkdir(parents=True, exist_ok=True)
        callbacks: list[TrainerCallback] = [progress, TimedCheckpoints()]
        if protocol.early_stopping_patience:
            patience, threshold = protocol.early_stopping_patience, protocol.early_stopping_threshold
            callbacks.append(EarlyStoppingCallback(patience, threshold))
        super().__init__(
            model=model, args=arguments, train_dataset=rows, data_collator=collator, callbacks=callbacks, **options
        )
        # It prints to standard output, which is reserved for the command's result.
        self.remove_callback(PrinterCallback)
        self._protocol, self._reporter, self._progress, self._stage = protocol, reporter, progress, stage
        self._data_seed = data_seed
        self._epoch_started = time.perf_counter()
        self._change_inputs = change_inputs
        self._average = average
        self._loss = loss
        # Recurrences after which a step may stop, including the last; empty if every step computes all of them.
        sampled = protocol.sampled_recurrences and model.config.exits
        self._depths = (*model.config.exits, model.config.num_recurrences) if sampled else ()
        if average is not None:
            self.add_callback(average)

    def fit(self) -> tuple[TrainerState, bool]:
        """Trains from the start, or from the last complete checkpoint; says whether there was one."""
        steps = -(-len(self.train_dataset) // (self._protocol.batch_size * self.args.world_size))
        checkpoint = latest_checkpoint(Path(str(self.args.output_dir)))
        with self._reporter.task(self._stage, steps * self._protocol.max_epochs) as self._progress.task:
            if checkpoint is None:
                self.train()
            elif self._has_stopped(checkpoint):
                self._restore_finished(checkpoint)
            else:
                self._reporter.say(f"resuming from {checkpoint.name}")
                self.train(resume_from_checkpoint=str(checkpoint))
        # Callbacks keep the trainer, and with it the optimiser, in memory.
        self.callback_handler.callbacks.clear()
        return self.state, checkpoint is not None

    def _has_stopped(self, checkpoint: Path) -> bool:
        """Whether training had ended at this checkpoint: resumed, the Trainer would train another epoch."""
        state = read_json(checkpoint / "trainer_state.json")
        stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback", {})
        waited = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0)
        patience = self._protocol.early_stopping_patience
        return state["global_step"] >= state["max_steps"] or (patience > 0 and waited >= patience)

    def _restore_finished(self, checkpoint: Path) -> None:
        """Loads the state and the best weights of a training that had ended at ``checkpoint``."""
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        best = checkpoint.parent / f"checkpoint-{self.state.best_global_step or self.state.global_step}"
        load_model(self.model, best / "model.safetensors")

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Length-grouped batches, in another order every epoch."""
        split: EncodedSplit = self.train_dataset
        sampler = LengthGroupedBatchSampler(
            split.lengths,
            self._train_batch_size,
            seed=self._data_seed,
            curriculum_epochs=self._protocol.curriculum_epochs,
        )
        return self.accelerator.prepare(self._loader(split, sampler))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches sorted by length: the order does not matter to a mean."""
        split: EncodedSplit = self.eval_dataset if eval_dataset is None else eval_dataset
        batch_size = self.args.eval_batch_size
        if split.window_counts is None:
            return self.accelerator.prepare(self._loader(split, FixedBatches(split.lengths, batch_size)))
        # As many texts as fit if each had as many windows as the longest.
        texts_per_batch = max(1, batch_size // int(split.windows_of_texts.max()))
        batches = FixedBatches(np.add.reduceat(split.lengths, split.text_rows), texts_per_batch)
        collator = WholeTextsCollator(self.model.config.pad_token_id or 0)
        return self.accelerator.prepare(self._loader(WholeTexts(split), batches, collator))

    def _loader(self, rows: Any, sampler: Any, collator: Callable[..., Any] | None = None) -> DataLoader[Any]:
        collate, pin = collator or self.data_collator, self.args.dataloader_pin_memory
        return DataLoader(rows, batch_sampler=sampler, collate_fn=collate, pin_memory=pin)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule of the learning rate over all steps."""
        if self._protocol.schedule == ONE_CYCLE and vars(self)["lr_scheduler"] is None:
            self.lr_scheduler = OneCycleLR(
                optimizer or self.optimizer,
                max_lr=self.args.learning_rate,
                total_steps=num_training_steps,
                cycle_momentum=False,
            )
        return super().create_scheduler(num_training_steps, optimizer)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not estimated here: `recurra.models.presets` counts them exactly."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the epoch's wall time to the log entry of its evaluation."""
        if "eval_loss" in logs:
            logs["epoch_wall_s"] = time.perf_counter() - self._epoch_started
            self._epoch_started = time.perf_counter()
        super().log(logs, start_time)

    def evaluate(self, *arguments: Any, **keywords: Any) -> dict[str, float]:
        """Evaluates the averaged weights, if they are averaged."""
        with self._averages():
            return super().evaluate(*arguments, **keywords)

    def _averages(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._average is None else self._average.in_place()

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        """Changes inputs and loss in training only: the epoch is chosen by the plain cross-entropy."""
        if model.training and self._change_inputs is not None:
            inputs = {**inputs, "input_ids": self._change_inputs(inputs["input_ids"])}
        if model.training and self._depths:
            # By seed and step alone: a resumed training draws the depths of an uninterrupted one.
            generator = np.random.default_rng((self._data_seed, self.state.global_step))
            inputs = {**inputs, "exit_after": int(generator.choice(self._depths))}
        if model.training and self._loss is not None:
            return self._loss(model, inputs)
        if TEXT_WINDOWS in inputs:
            return self._pooled_loss(model, inputs)
        return super().compute_loss(model, inputs, *arguments, **keywords)

    def _pooled_loss(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The plain cross-entropy of texts whose windows' logits are pooled, and the pooled logits."""
        model_inputs = {name: values for name, values in inputs.items() if name not in ("labels", TEXT_WINDOWS)}
        output = model(**model_inputs, return_dict=True)
        # Mean logits over the windows of each text, ``(texts, labels)``; see `recurra.data.windows`.
        heads = [
            mean_of_packed(logits.float()[None], inputs[TEXT_WINDOWS])
            for logits in (*(output.exit_logits or ()), output.logits)
        ]
        loss = RowLoss(exit_loss_weight=self.model.config.exit_loss_weight).of_heads(heads, inputs["labels"])
        return loss, {"logits": heads[-1]}

    # The methods below replace the Trainer's torch.save, which pickles, by safetensors and JSON.

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        with self._averages():
            self.accelerator.unwrap_model(self.model).save_pretrained(output_dir, state_dict=state_dict)
        if self._average is not None and output_dir is not None:
            self._average.save_weights(Path(output_dir))

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(checkpoint, model)
        if self._average is not None:
            self._average.restore(Path(checkpoint))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            save_optimizer(Path(output_dir) / OPTIMIZER_NAME, self.optimizer.state_dict())
            save_schedule(Path(output_dir) / SCHEDULE_NAME, self.lr_scheduler.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.optimizer.load_state_dict(load_optimizer(Path(checkpoint) / OPTIMIZER_NAME))
            self.lr_scheduler.load_state_dict(load_schedule(Path(checkpoint) / SCHEDULE_NAME))

    def _save_scaler(self, output_dir: str) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and self.args.should_save:
            save_schedule(Path(output_dir) / SCALER_NAME, scaler.state_dict())

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if checkpoint is not None and scaler is not None:
            scaler.load_state_dict(load_schedule(Path(checkpoint) / SCALER_NAME))

    def _save_rng_state(self, output_dir: str) -> None:
        save_random_state(Path(output_dir), self.args.process_index)
        if self.args.should_save:
            progress = {
                "loss_sum": float(self._tr_loss),
                "loss_since_step": self._globalstep_last_logged,
                "wall_s": time.perf_counter() - self._epoch_started,
            }
            save_schedule(Path(output_dir) / EPOCH_NAME, progress)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restores random states, and the sums of an unfinished epoch, which the Trainer would start again from 0."""
        if checkpoint is None:
            return
        load_random_state(Path(checkpoint), self.args.process_index)
        # Earlier versions only wrote checkpoints between epochs, without this file.
        if (Path(checkpoint) / EPOCH_NAME).is_file():
            progress = load_schedule(Path(checkpoint) / EPOCH_NAME)
            self._tr_loss += progress["loss_sum"]
            self._globalstep_last_logged = progress["loss_since_step"]
            self._epoch_started = time.perf_counter() - progress["wall_s"]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step, folder = self.state.global_step, Path(self.args.output_dir)
        with storage_errors(folder):
            super()._save_checkpoint(model, trial)
        if self.args.world_size > 1:
            torch.distributed.barrier()
        if self.args.should_save:
            mark_complete(folder / f"checkpoint-{step}", step)
            # Only after the marker, so not by the Trainer: until then training can only resume from older checkpoints.
            remove_checkpoints_but(folder, {step, self.state.best_global_step or step})


class TimedCheckpoints(TrainerCallback):
    """Writes a checkpoint within an epoch when the last one is `CHECKPOINT_MINUTES` old; not for several processes."""

    def __init__(self) -> None:
        self._saved = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Asks for a checkpoint when it is time."""
        steps_of_epoch = state.max_steps // round(args.num_train_epochs)
        ends_epoch = state.global_step % steps_of_epoch == 0
        if args.world_size == 1 and not ends_epoch and time.monotonic() - self._saved >= 60 * CHECKPOINT_MINUTES:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restarts the clock."""
        self._saved = time.monotonic()


class TaskProgress(TrainerCallback):
    """Advances a progress bar with the steps, including those before a resumption."""

    task: ProgressTask

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Adopts a resumed state, whose folder may have moved since the last checkpoint."""
        self.task.advance(state.global_step)
        if state.best_global_step:
            state.best_model_checkpoint = os.path.join(args.output_dir, f"checkpoint-{state.best_global_step}")  # noqa: PTH118

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Moves the bar."""
        self.task.advance(1, note=f"epoch {math.ceil(state.epoch or 1)}")


class HistoryCallback(TaskProgress):
    """Writes ``history.jsonl`` after each epoch, shows progress, and stops when the loss is not finite."""

    def __init__(self, path: Path, measured: Callable[[Entry], Entry], describe: Callable[[Entry], str]) -> None:
        self.path, self.measured, self.describe = path, measured, describe

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Writes the history so far, read from the Trainer's state, so that a resumed run has all of it."""
        history = read_history(state, self.measured)
        last = history[-1]
        if not np.isfinite(last["train_loss"] + last["validation_loss"]):
            raise RunError(
                f"the loss is not finite in epoch {last['epoch']}; lower learning_rate "
                "or raise precision (precision=fp32)"
            )
        if state.is_world_process_zero:
            write_text(self.path, "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in history))
            self.task.reporter.say(
                f"  epoch {last['epoch']}: train loss {last['train_loss']:.4f}, "
                f"selection loss {last['validation_loss']:.4f}, {self.describe(last)}, "
                f"{last['wall_s']:.0f} s"
            )


def read_history(state: TrainerState, measured: Callable[[Entry], Entry]) -> list[Entry]:
    """One entry for each epoch in the Trainer's log: losses, values of ``measured``, learning rate, wall seconds."""
    history: list[Entry] = []
    train: Entry = {}
    for line in state.log_history:
        if "loss" in line:
            train = line
        elif "eval_loss" in line:
            history.append(
                {
                    "epoch": round(line["epoch"]),
                    "train_loss": train.get("loss", float("nan")),
                    "validation_loss": line["eval_loss"],
                    **measured(line),
                    "learning_rate": train.get("learning_rate", float("nan")),
                    "wall_s": line["epoch_wall_s"],
                }
            )
    return history
