"""Training one language model under one protocol, from the start or from its last checkpoint."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import EvalLoopOutput

from recurra.core.language_record import FINAL_HEAD, LanguageEpochRecord, LanguageTrainingRecord
from recurra.core.memory import peak_memory_mib, tune_allocator
from recurra.core.packed import HISTORY_NAME
from recurra.core.progress import Reporter
from recurra.core.seeds import derive_seed
from recurra.data.language.samples import IGNORED, LanguageCollator, LineSamples, PackedBlocks
from recurra.models.heads import weigh_losses
from recurra.training.arguments import ONE_CYCLE, training_arguments
from recurra.training.fit import CHECKPOINTS_NAME, early_stopping, train_or_resume
from recurra.training.protocols import ProtocolConfig, check_language_protocol
from recurra.training.trainer import (
    Entry,
    FixedBatches,
    HistoryCallback,
    RecurraTrainer,
    TimedCheckpoints,
    read_history,
)

HEAD_KEY = "head_"


class LanguageTrainer(RecurraTrainer):
    """Trains on `recurra.data.language.samples`.

    The Trainer's own evaluation takes the mean over rows of batches' means, in which a token of a short line counts for
    more; and of a distributed run it counts some rows twice. Here sums over tokens are divided by tokens.
    """

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """This process's share of the batches; every row is in one of them."""
        samples = self.eval_dataset if eval_dataset is None else eval_dataset
        batches = list(FixedBatches(samples.lengths, self.args.eval_batch_size))
        mine = batches[self.args.process_index :: self.args.world_size]
        return DataLoader(samples, batch_sampler=mine, collate_fn=self.data_collator)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Returns ``loss``, the objective, and ``head_NAME``, each head's own, in nats a token."""
        model = self.accelerator.unwrap_model(self.model)
        model.eval()
        names = [*(f"exit-{number}" for number in model.config.exits), FINAL_HEAD]
        # Nats of each head, and behind them the tokens.
        sums = torch.zeros(len(names) + 1, dtype=torch.float64)
        rows = 0
        for batch in dataloader:
            inputs = self._prepare_inputs(batch)
            with torch.inference_mode(), self.compute_loss_context_manager():
                losses = model(**inputs).exit_losses
            tokens = int((batch["labels"][:, 1:] != IGNORED).sum())
            sums[:-1] += losses.double().cpu() * tokens
            sums[-1] += tokens
            rows += len(batch["labels"])
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device, torch.float32), reduction="sum").cpu().double()
        means = sums[:-1] / sums[-1]
        metrics = {f"{metric_key_prefix}_loss": float(weigh_losses(list(means), model.config.exit_loss_weight))}
        for name, mean in zip(names, means.tolist(), strict=True):
            metrics[f"{metric_key_prefix}_{HEAD_KEY}{name}"] = mean
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=rows)


Samples = PackedBlocks | LineSamples


def train_language_model(
    model: PreTrainedModel,
    train: Samples,
    selection: Samples,
    protocol: ProtocolConfig,
    *,
    folder: Path,
    seed: int,
    precision: str,
    reporter: Reporter,
    pad_token_id: int,
) -> LanguageTrainingRecord:
    """Trains ``model`` in place and leaves the weights of the best epoch in it.

    Every predicted token weighs the same in a step, whatever micro-batch it is in. If the folder holds a complete
    checkpoint, training goes on from there. In FP32 on one machine the result is then the same, bit for bit, as without
    the interruption.

    Args:
        model: Language model with freshly initialised weights.
        train: Training samples.
        selection: Samples that choose the epoch (lowest objective).
        protocol: How to train.
        folder: Run folder; checkpoints and history go there.
        seed: Seed of the batch order and of dropout.
        precision: ``fp32`` or ``bf16`` (autocast), or ``fp16`` (with loss scaling; accelerator only).
        reporter: For progress.
        pad_token_id: Fills lines up; never counted.

    Returns:
        What the record says of the training.

    Raises:
        ConfigurationError: If the protocol asks for what does not go together with a language model.
        RunError: If the loss is not finite.
    """
    check_language_protocol(protocol)
    tune_allocator()
    arguments = training_arguments(
        protocol, folder / CHECKPOINTS_NAME, seed=seed, precision=precision,
        per_device_eval_batch_size=protocol.evaluation_batch_size,
    )  # fmt: skip
    steps = -(-len(train) // (protocol.batch_size * arguments.world_size)) * protocol.max_epochs
    with reporter.task("training", steps) as task:
        history = HistoryCallback(folder / HISTORY_NAME, task, read=history_by_head, tell=_tell)
        trainer = LanguageTrainer(
            model=model,
            args=arguments,
            train_dataset=train,
            eval_dataset=selection,
            collator=LanguageCollator(pad_token_id, train.context),
            data_seed=derive_seed(seed, "order"),
            one_cycle=protocol.schedule == ONE_CYCLE,
            callbacks=[history, TimedCheckpoints(), *early_stopping(protocol)],
        )
        resumed = train_or_resume(trainer, folder / CHECKPOINTS_NAME, protocol, reporter)
    record = _record(trainer.state, train, protocol, resumed=int(resumed))
    trainer.callback_handler.callbacks.clear()
    del trainer
    # A trainer that still lives when the process group ends can abort the process.
    gc.collect()
    return record


def history_by_head(state: TrainerState) -> list[Entry]:
    """One entry an epoch: the objective, nats a token of each head, learning rate, wall seconds."""
    start = f"eval_{HEAD_KEY}"
    return read_history(
        state,
        lambda line: {
            "validation_heads": {key.removeprefix(start): line[key] for key in line if key.startswith(start)}
        },
    )


def _tell(entry: Entry) -> str:
    loss = entry["validation_heads"][FINAL_HEAD]
    return f"perplexity by token {math.exp(loss):.1f}" if loss < 100 else f"loss {loss:.1f}"


def _record(state: TrainerState, train: Samples, protocol: ProtocolConfig, *, resumed: int) -> LanguageTrainingRecord:
    history = [LanguageEpochRecord(**entry) for entry in history_by_head(state)]
    wall_s = sum(epoch.wall_s for epoch in history)
    best = min(history, key=lambda epoch: epoch.validation_loss)
    return LanguageTrainingRecord(
        protocol=protocol.name,
        epochs=len(history),
        steps=state.global_step,
        best_epoch=best.epoch,
        wall_s=wall_s,
        tokens_per_s=int(train.lengths.sum()) * len(history) / wall_s,
        peak_memory_mib=peak_memory_mib(),
        resumed=resumed,
        history=history,
    )
