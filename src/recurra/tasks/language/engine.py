"""Language modelling: training, evaluation, exits, audits and timing. The half of the task that imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult, LanguageRunRecord, read_language_record
from recurra.core.sealed import MODEL_NAME, sealed_model
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.preparation import encode_for
from recurra.data.language.tokenization import read_language_tokenizer
from recurra.evaluation.token_exits import calibrate_language, score_token_exits
from recurra.models.exits.rules import ExitRule, check_has_exits
from recurra.models.exits.thresholds import CalibratedExits
from recurra.models.inference import default_device
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.loading import load_language_model
from recurra.models.presets import HeadKind, count_parameters, language_flops
from recurra.models.presets import preset as preset_configuration
from recurra.tasks.base import (
    EXITS,
    FULL,
    Competitor,
    DataCost,
    ExitQuality,
    Given,
    TaskEngine,
    named_options,
    refuse_options,
)
from recurra.tasks.language.configuration import language_configuration
from recurra.tasks.language.evaluation import (
    evaluate_language_run,
    forward_pass,
    head_table,
    own_split,
    stacked,
    windows,
)
from recurra.tasks.language.training import execute_language, language_audits, train_language
from recurra.tasks.machine import Machine
from recurra.tasks.presentation import Shown, ShownTable
from recurra.tasks.runs import RunConfig

# Tokens of a split that are scored: each threshold is a pass over them.
MOST_TOKENS = 16_384
PROMPT_TOKENS, DECODED_TOKENS = 16, 48
_BATCHES = 3


class LanguageSubject:
    """A language model with exits, the head of its validation text and that of its last reported split.

    Args:
        run: The run folder.
        data_root: Local copies of public data.

    Raises:
        CheckpointError: If the run is not finished or damaged.
        ConfigurationError: If its model has no exits, or leaks.

    Attributes:
        model: In evaluation mode, on the device.
    """

    unit = "Tokens"
    quality = "loss a token"
    timed = "decoding a row's tokens"

    def __init__(self, run: Path, data_root: Path | None) -> None:
        record = read_language_record(run)
        config = LanguageDataConfig.parse(record.config["data"], source="record")
        self.run_id = record.run_id
        self.chosen_on = record.data.selection_split
        self.model = load_language_model(sealed_model(run)).to(default_device())
        self.model.check_generates()
        check_has_exits(self.model.config)
        tokenizer = read_language_tokenizer(run / "model")
        self._reported_name = record.data.reported_splits[-1]
        self._texts = {
            name: encode_for(own_split(record, config, name, data_root), config, tokenizer, None).joined[:MOST_TOKENS]
            for name in (self.chosen_on, self._reported_name)
        }
        self._end = int(tokenizer.eos_token_id or 0)
        self._context = config.context

    def choose(self, keep: float, kind: str) -> CalibratedExits:
        """Chooses for a loss that grows by a share ``keep`` at most."""
        return calibrate_language(self.model, [self._texts[self.chosen_on]], keep, kind=kind, **self._read)

    def judge(self, rule: ExitRule) -> ExitQuality:
        """Judges on the reported split."""
        exits = score_token_exits(self.model, [self._texts[self._reported_name]], rule, **self._read)
        return ExitQuality(self._reported_name, self._full_loss, exits.loss, None, dict(exits.exit_counts))

    @cached_property
    def _full_loss(self) -> float:
        return float(score_token_exits(self.model, [self._texts[self._reported_name]], None, **self._read).loss)

    @property
    def _read(self) -> dict[str, Any]:
        return {"first_read": self._end, "context": self._context}

    def calls(self, rule: ExitRule) -> Mapping[str, Callable[[torch.Tensor], Any]]:
        """Decoding of a fixed number of tokens.

        They are drawn, so that texts are as unsure as the model is: greedy decoding repeats itself, and would leave
        earlier than a text does.
        """

        def decode(ids: torch.Tensor, **asked: Any) -> None:
            torch.manual_seed(0)
            tokens = min(DECODED_TOKENS, self.model.config.max_position_embeddings - ids.shape[1])
            self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=self._end,
                **asked,
            )

        return {FULL: decode, EXITS: lambda ids: decode(ids, exit_rule=rule)}

    def batches(self, batch_size: int) -> list[torch.Tensor]:
        """Prompts from the reported text, far apart."""
        text: npt.NDArray[np.int64] = self._texts[self._reported_name].astype(np.int64)
        width = max(1, min(PROMPT_TOKENS, self._context // 2, len(text)))
        starts = np.linspace(0, len(text) - width, _BATCHES * batch_size).astype(np.int64)
        rows = torch.from_numpy(np.stack([text[start : start + width] for start in starts]))
        return list(rows.to(self.model.device).split(batch_size))


_EVALUATION_OPTIONS = {
    "--split": "split",
    "--data": "data",
    "--stride": "stride",
    "--by-position": "by_position",
    "--caches": "caches",
    "--precision": "precision",
}


class LanguageEngine(TaskEngine):
    """Trains and measures language models."""

    exit_option = "--bound"
    exit_default = 0.01
    architecture = "RecurraForCausalLM"
    takes_foreign_models = True
    records_exits = True
    timing_scope = "model"

    def train(self, config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> Any:
        """Trains and saves a language model."""
        return train_language(config, folder, machine, reporter)

    def execute(self, config: RunConfig, folder: Path, machine: Machine, reporter: Reporter) -> LanguageRunRecord:
        """Trains, measures and audits a language model."""
        return execute_language(config, folder, machine, reporter)

    def present(self, record: AnyRecord, output: str) -> Shown:
        """Every head on every split, and the audits."""
        assert isinstance(record, LanguageRunRecord)
        audits = [[audit.name, audit.status, audit.summary] for audit in record.audits]
        lines = [f"run: {output}", f"measure it: recurra evaluate {output} --stride {record.data.context // 2}"]
        return Shown(
            {"output": output, **record.model_dump(mode="json")},
            [
                head_table(f"{record.label}: {record.run_id}", record.metrics),
                ShownTable("audits", ["Audit", "State", "Finding"], audits, left=("State", "Finding")),
                lines,
            ],
            [audit.name for audit in record.failed_audits()],
        )

    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> Shown:
        """Evaluates a run on a split or a text file."""
        reason = f"'{run}' is a run of a language model, which predicts no labels"
        refuse_options(options, frozenset(_EVALUATION_OPTIONS), reason)
        given = named_options(options, _EVALUATION_OPTIONS)
        return evaluate_language_run(run, data_root=data_root, **given).shown()

    def exit_subject(self, run: Path, data_root: Path | None) -> LanguageSubject:
        """A language model with exits, the head of its validation text and that of its last reported split."""
        return LanguageSubject(run, data_root)

    def describe_kept(self, keep: float) -> str:
        """The share by which the loss may grow."""
        return f"loss at most {100 * keep:g} % above the full model's"

    def new_model(self, preset: str, overrides: Mapping[str, Any]) -> RecurraForCausalLM:
        """A language model of a preset with new weights."""
        return RecurraForCausalLM(preset_configuration(preset, **overrides)).eval()

    def load_model(self, folder: Path) -> Any:
        """The causal language model in a folder, which need not be ours."""
        return load_language_model(folder)

    def audit_model(self, model: Any, seed: int) -> list[AuditResult]:
        """Causality of every head and padding; of ours also the cache."""
        return language_audits(model, seed)

    def declared_parameters(self, model: Any) -> int | None:
        """Of ours, what the accounting says."""
        if not isinstance(model, RecurraForCausalLM):
            return None
        return count_parameters(model.config, HeadKind.LANGUAGE_MODELLING).total

    def sample_step(self, config: RunConfig, length: int) -> tuple[Any, float, Any]:
        """A language model, which predicts the tokens themselves."""
        shape = language_configuration(config, None, None)
        return RecurraForCausalLM(shape), language_flops(shape, length, with_exits=True), None

    def epoch_flops(self, config: RunConfig, lengths: Mapping[str, int], data: DataCost) -> float:
        """Operations of the forward passes over samples of these lengths."""
        shape = language_configuration(config, data.vocab_size, None)
        return float(sum(rows * language_flops(shape, int(size), with_exits=True) for size, rows in lengths.items()))

    def timing_key(self, record: AnyRecord) -> str:
        """Runs with the same tokens and windows are timed on the same windows."""
        assert isinstance(record, LanguageRunRecord)
        return f"{record.data.fingerprint} {record.data.tokenizer.get('hash')} {record.data.context}"

    def timing_inputs(self, record: AnyRecord, folder: Path, machine: Machine) -> list[Any]:
        """Windows of the last reported split."""
        assert isinstance(record, LanguageRunRecord)
        config = LanguageDataConfig.parse(record.config["data"], source="record")
        text = own_split(record, config, record.data.reported_splits[-1], machine.data_root)
        tokenizer = read_language_tokenizer(folder / MODEL_NAME)
        return windows(encode_for(text, config, tokenizer, machine.cache_dir).joined, config.context)

    def timing_batches(self, inputs: Sequence[Any], batch_size: int) -> list[Any]:
        """Windows one below the other."""
        return stacked(inputs, batch_size)

    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        """The run's model: a forward pass from tokens to logits."""
        del threads
        model = load_language_model(sealed_model(folder)).to(default_device())
        yield Competitor(name, forward_pass(model, record.environment.precision), record.environment.precision)


ENGINE = LanguageEngine()
