"""How classifiers are measured and their exits chosen. The half of the task that imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.errors import ConfigurationError
from recurra.core.model_files import sealed_model
from recurra.core.record import MetricsRecord, RunRecord, read_record
from recurra.data.configuration import DataConfig
from recurra.data.dataset import TextSplit
from recurra.data.encoding import encode_texts
from recurra.data.windows import recorded_reading
from recurra.deployment.decision import LabelDecision, OneLabel
from recurra.deployment.engines.computation import Computation
from recurra.deployment.engines.packing import FlatRows
from recurra.deployment.engines.trained import TransformerEngine
from recurra.evaluation.calibration import fit_temperature
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import write_predictions
from recurra.models.exits.rule import ExitRule, check_has_exits
from recurra.models.exits.thresholds import CalibratedExits, calibrate_classifier, depths_under
from recurra.tasks.base import EXITS, FULL, ExitQuality
from recurra.tasks.classification.task import TASK
from recurra.tasks.labelling.engine import LabellingEngine, Logits
from recurra.tasks.labelling.evaluation import ComputedRows, compute_evaluation, own_split
from recurra.tasks.presentation import Shown, ShownTable

_BATCH = 32
# Enough for a stable mean; a whole split is timed where it is not larger.
_MOST_TIMED = 512

Inputs = dict[str, torch.Tensor]


class ClassifierSubject:
    """A classifier with exits, its validation rows and its last reported split.

    Args:
        run: The run folder.
        data_root: Local copies of public data.

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
        self._reported = own_split(record, record.data.reported_splits[-1], data_root)

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses for a share ``keep`` of labels that stay."""
        return calibrate_classifier(self._logits(self._selection), keep, kind=kind)

    def judge(self, rule: ExitRule) -> ExitQuality:
        """Judges on the reported split."""
        by_exit = self._logits(self._reported)
        numbers = sorted(by_exit)
        depths = depths_under(rule, by_exit)
        labels = np.stack([by_exit[number].argmax(-1) for number in numbers])
        own = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
        truth = np.asarray(self._reported.labels)
        return ExitQuality(
            split=self._reported.name,
            full=float((labels[-1] == truth).mean()),
            exits=float((own == truth).mean()),
            agreement=float((own == labels[-1]).mean()),
            exited_after={number: int((depths == number).sum()) for number in numbers},
        )

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[Inputs], Any]]:
        """Forward passes, tokens to logits; the full one as it is without exits asked for."""

        @torch.inference_mode()
        def full(batch: Inputs) -> None:
            self.model(**batch)

        @torch.inference_mode()
        def exits(batch: Inputs) -> None:
            self.model(**batch, exit_rule=rule)

        return {FULL: full, EXITS: exits}

    def batches(self, batch_size: int) -> list[Inputs]:
        """Reported rows of like length together."""
        texts = self._reported.texts[:: max(1, len(self._reported.texts) // _MOST_TIMED)]
        return [inputs for _, inputs in self._padded(texts, batch_size)]

    def _padded(self, texts: list[str], batch_size: int) -> list[tuple[npt.NDArray[np.int64], Inputs]]:
        input_ids, offsets = encode_texts(texts, self._engine.tokenizer, self._engine.max_length)
        rows = FlatRows(input_ids, offsets, self._engine.pad_token_id)
        device = self.model.device
        return [
            (numbers, {name: part.to(device) for name, part in inputs.items()})
            for numbers, inputs in rows.padded(batch_size)
        ]

    @torch.inference_mode()
    def _logits(self, split: TextSplit) -> dict[int, npt.NDArray[np.float32]]:
        """Logits ``(rows, labels)`` by recurrence."""
        numbers = [*self.model.config.exits, self.model.config.num_recurrences]
        shape = len(split.texts), self.model.config.num_labels
        found = {number: np.empty(shape, dtype=np.float32) for number in numbers}
        for rows, inputs in self._padded(list(split.texts), _BATCH):
            output = self.model(**inputs)
            for number, logits in zip(numbers, [*output.exit_logits, output.logits], strict=True):
                found[number][rows] = logits.cpu().numpy()
        return found


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Quality of a run, or of an export of it, on some rows.

    Attributes:
        computed: The rows, and what the model says of them.
        metrics: What was measured now.
    """

    computed: ComputedRows
    metrics: MetricsRecord

    @classmethod
    def of(cls, computed: ComputedRows) -> Evaluation:
        """Measures what was computed."""
        logits = computed.logits
        return cls(computed, evaluate_logits(logits, computed.rows.labels, computed.decision.probabilities(logits)))

    @property
    def recorded(self) -> MetricsRecord | None:
        """What the run's record says of the same split, if it has it."""
        found: MetricsRecord | None = self.computed.recorded
        return found

    @property
    def run_id(self) -> str:
        """The run."""
        return self.computed.record.run_id

    @property
    def source(self) -> str:
        """The split, or the file."""
        return self.computed.rows.name

    @property
    def fingerprint(self) -> str:
        """Of texts and labels, in order."""
        return self.computed.rows.fingerprint

    @property
    def computation(self) -> Computation:
        """Precision of the stored weights and of the computation, engine and device."""
        return self.computed.computation

    def shown(self) -> Shown:
        """Figures and the confusion matrix."""
        metrics = self.metrics
        low, high = metrics.accuracy_interval
        figures = [
            ("Accuracy", f"{metrics.accuracy:.4f}"),
            ("95 % interval", f"{low:.4f} to {high:.4f}"),
            ("Precision", f"{metrics.precision:.4f}"),
            ("Recall", f"{metrics.recall:.4f}"),
            ("F1", f"{metrics.f1:.4f}"),
            ("Loss", f"{metrics.loss:.4f}"),
            ("Calibration error (before)", f"{metrics.calibration_error:.4f} ({metrics.uncalibrated_error:.4f})"),
        ]
        names = self.computed.record.data.label_names
        matrix = [
            [f"true {name}", *map(str, counts)] for name, counts in zip(names, metrics.confusion_matrix, strict=True)
        ]
        lines = self.computed.lines()
        if self.recorded is not None:
            lines.append(f"accuracy in the record: {self.recorded.accuracy:.4f}")
        tables = [
            self.computed.table(figures),
            ShownTable("", ["", *(f"predicted {name}" for name in names)], matrix),
        ]
        return Shown(self.plain(), [*tables, lines])

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return self.computed.plain(self.metrics)


def evaluate_run(run: Path, **options: Any) -> Evaluation:
    """Evaluates a run or an export, with the options of `recurra.tasks.labelling.evaluation.compute_evaluation`.

    Raises:
        RecurraError: As `compute_evaluation` does.
    """
    return Evaluation.of(compute_evaluation(run, **options))


class ClassificationEngine(LabellingEngine):
    """Trains and measures classifiers."""

    record_class = RunRecord
    task = TASK

    def decide(
        self, config: DataConfig, label_names: Sequence[str], logits: Logits, labels: npt.NDArray[np.int64]
    ) -> LabelDecision:
        """Chooses a temperature."""
        del config
        return OneLabel(label_names, fit_temperature(logits, labels))

    def measure(self, logits: Logits, labels: npt.NDArray[np.int64], decision: LabelDecision) -> MetricsRecord:
        """Accuracy, F1, loss, calibration and the confusion matrix."""
        return evaluate_logits(logits, labels, decision.probabilities(logits))

    def keep_predictions(self, folder: Path, split: TextSplit, logits: Logits) -> None:
        """Logits by row, for the paired tests of a report."""
        write_predictions(folder, split.name, split.ids, split.labels, logits)

    def figures(self, metrics: MetricsRecord) -> dict[str, str]:
        """Accuracy, F1, loss and how far the probabilities are off."""
        error = {} if metrics.calibration_error is None else {"Calibration error": f"{metrics.calibration_error:.4f}"}
        return {
            "Accuracy": f"{metrics.accuracy:.4f}",
            "F1": f"{metrics.f1:.4f}",
            "Loss": f"{metrics.loss:.4f}",
            **error,
        }

    def evaluation(self, computed: ComputedRows) -> Shown:
        """Figures and the confusion matrix."""
        return Evaluation.of(computed).shown()

    def exit_subject(self, run: Path, data_root: Path | None) -> ClassifierSubject:
        """A classifier with exits, its validation rows and its last reported split."""
        return ClassifierSubject(run, data_root)


ENGINE = ClassificationEngine()
