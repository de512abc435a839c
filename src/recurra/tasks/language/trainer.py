"""The trainer of language models: its evaluation counts every predicted token once, head by head."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from recurra.core.language_record import FINAL_HEAD
from recurra.data.language.samples import IGNORED
from recurra.models.heads import weigh_losses
from recurra.training.trainer import FixedBatches, RecurraTrainer

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
