"""A classifier whose exit rule is chosen, judged and timed. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.errors import ConfigurationError
from recurra.core.exits_record import EarlyExitRecord
from recurra.core.record import read_record
from recurra.core.sealed import sealed_model
from recurra.data.encoding import encode_texts
from recurra.data.windows import recorded_reading
from recurra.deployment.engines.trained import FlatRows, TransformerEngine
from recurra.models.exits.rules import ExitRule, check_has_exits
from recurra.models.exits.thresholds import CalibratedExits, calibrate_classifier, depths_under
from recurra.tasks.exits import EXITS, FULL
from recurra.tasks.labelling.evaluation import own_split

_BATCH = 32
# Enough for a stable mean; a whole split is timed where it is not larger.
_MOST_TIMED = 512

Inputs = dict[str, torch.Tensor]


class ClassifierSubject:
    """A classifier with exits, its validation rows and its last reported split.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If its model has no exits.
    """

    unit = "Rows"
    quality = "accuracy"
    timed = "a row, tokens to logits"

    def __init__(self, run: Path, data_root: Path | None) -> None:
        record = read_record(run)
        if record.model.kind != "transformer":
            raise ConfigurationError(f"run '{record.run_id}' is a {record.model.kind} model, which has no exits")
        self.run_id = record.run_id
        self.chosen_on = record.data.selection_split
        self._engine = TransformerEngine.load(sealed_model(run), precision="fp32", **recorded_reading(record.config))
        self._engine.depth.check_one_window()
        self.model = self._engine.model
        check_has_exits(self.model.config)
        self._selection = own_split(record, self.chosen_on, data_root)
        self.split = record.data.headline_split
        self._reported = own_split(record, self.split, data_root)

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses a threshold with which a share ``keep`` of labels stays."""
        return calibrate_classifier(self._engine.logits_by_recurrence(self._selection.texts, _BATCH), keep, kind=kind)

    @property
    def full(self) -> float:
        """Accuracy of the full model on the reported split."""
        by_exit = self._reported_logits
        return float((by_exit[max(by_exit)].argmax(-1) == self._reported.labels).mean())

    def judge(self, rule: ExitRule, label: str = "") -> EarlyExitRecord:
        """Judges on the reported split."""
        by_exit, truth = self._reported_logits, self._reported.labels
        numbers = sorted(by_exit)
        depths = depths_under(rule, by_exit)
        labels = np.stack([by_exit[number].argmax(-1) for number in numbers])
        exit_labels = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
        return EarlyExitRecord(
            label=label or rule.describe(),
            accuracy=float((exit_labels == truth).mean()),
            agreement=float((exit_labels == labels[-1]).mean()),
            taken={number: int((depths == number).sum()) for number in numbers},
            timed=[],
        )

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[Inputs], Any]]:
        """Forward passes, tokens to logits; the full one has no exit rule."""

        @torch.inference_mode()
        def forward(batch: Inputs, **options: Any) -> None:
            self.model(**batch, **options)

        return {FULL: forward, EXITS: lambda batch: forward(batch, exit_rule=rule)}

    def batches(self, batch_size: int) -> list[Inputs]:
        """Reported rows of like length together."""
        texts = self._reported.texts[:: -(-len(self._reported.texts) // _MOST_TIMED)]
        input_ids, offsets = encode_texts(texts, self._engine.tokenizer, self._engine.max_length)
        rows = FlatRows(input_ids, offsets, self._engine.pad_token_id)
        device = self.model.device
        return [{name: tensor.to(device) for name, tensor in inputs.items()} for _, inputs in rows.padded(batch_size)]

    @cached_property
    def _reported_logits(self) -> dict[int, npt.NDArray[np.float32]]:
        """Logits ``(rows, labels)`` by recurrence, by which several rules are judged."""
        return self._engine.logits_by_recurrence(self._reported.texts, _BATCH)
