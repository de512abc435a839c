"""One run of a language model: load, train, save, measure every head, audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader
from transformers import PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput

from recurra.core.configuration import derive_seed
from recurra.core.environment import available_cores, tune_allocator
from recurra.core.files import read_json
from recurra.core.packed import HISTORY_NAME
from recurra.core.progress import Reporter
from recurra.core.record import (
    FINAL_HEAD,
    AuditResult,
    LanguageDataRecord,
    LanguageEpochRecord,
    LanguageMetricsRecord,
    LanguageRunRecord,
    LanguageSplitRecord,
    LanguageTrainingRecord,
    LatencyRecord,
    ModelRecord,
    is_of_causality,
)
from recurra.core.record_parts import TRAINING_SPLIT
from recurra.core.sealed import MODEL_NAME
from recurra.data.batching import IGNORED, LanguageCollator
from recurra.data.language.corpora import LanguageDataset, RunningText
from recurra.data.language.tokenization import (
    EncodedText,
    Samples,
    encode_for,
    is_lossless,
    load_language_tokenizer,
    make_samples,
    read_language_tokenizer,
    texts_of,
)
from recurra.data.tokenization import describe_tokenizer
from recurra.evaluation.audits.registry import Subject, run_audits
from recurra.evaluation.perplexity import head_names, measure_text
from recurra.models.heads import weigh_losses
from recurra.models.inference import default_device
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.loading import load_language_model
from recurra.models.names import LANGUAGE_PRESETS
from recurra.models.presets import HeadKind
from recurra.tasks.base import RunConfig, Task
from recurra.tasks.language.data import SELECTION_SPLIT, language_configuration, load_run_text, running
from recurra.tasks.language.evaluation import forward_pass, windows
from recurra.tasks.run_folder import TRAINING_NAME, keep_trained, run_facts, shape_of, transformer_record
from recurra.tasks.study_data import StudyData
from recurra.training.fit import CHECKPOINTS_NAME, training_arguments, training_record
from recurra.training.protocols import ProtocolConfig
from recurra.training.trainer import Entry, FixedBatches, HistoryCallback, RecurraTrainer, read_history


def language_audits(model: Any, seed: int) -> list[AuditResult]:
    """Audits a causal language model: causality of every head and padding; of ours also the cache."""
    audits = run_audits(Subject.LANGUAGE_MODEL, model, seed=seed)
    if isinstance(model, RecurraForCausalLM):
        audits += run_audits(Subject.OUR_LANGUAGE_MODEL, model, seed=seed)
    return audits


HEAD_KEY = "head_"


class LanguageTrainer(RecurraTrainer):
    """Trains on samples of running text.

    The Trainer's own evaluation takes the mean over rows of batches' means, in which a token of a short line counts for
    more; and of a distributed run it counts some rows twice. Here sums over tokens are divided by tokens.
    """

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """This process's share of the batches; every row is in one of them."""
        samples = self.eval_dataset if eval_dataset is None else eval_dataset
        batches = list(FixedBatches(samples.lengths, self.args.eval_batch_size))
        process_batches = batches[self.args.process_index :: self.args.world_size]
        return DataLoader(samples, batch_sampler=process_batches, collate_fn=self.data_collator)

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
        names = head_names(model.config)
        # Nats of each head, then the number of tokens.
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
    """Trains ``model`` in place and leaves the weights of the best epoch in it, the one of the lowest objective.

    Every predicted token weighs the same in a step, whatever micro-batch it is in. If the folder holds a complete
    checkpoint, training goes on from there. In FP32 on one machine the result is then the same, bit for bit, as without
    the interruption.

    Args:
        pad_token_id: Fills lines up; never counted.

    Raises:
        RunError: If the loss is not finite.
    """
    tune_allocator()
    arguments = training_arguments(
        protocol, folder / CHECKPOINTS_NAME, seed=seed, precision=precision,
        per_device_eval_batch_size=protocol.evaluation_batch_size,
    )  # fmt: skip
    state, resumed = LanguageTrainer(
        model, train, protocol, arguments, reporter,
        progress=HistoryCallback(folder / HISTORY_NAME, _losses_by_head, _describe),
        eval_dataset=selection, collator=LanguageCollator(pad_token_id, train.context),
        data_seed=derive_seed(seed, "order"),
    ).fit()  # fmt: skip
    epochs = [LanguageEpochRecord(**entry) for entry in read_history(state, _losses_by_head)]
    best = min(epochs, key=lambda epoch: epoch.validation_loss)
    tokens = int(train.lengths.sum())
    return training_record(LanguageTrainingRecord, state, protocol, epochs, best=best, tokens=tokens, resumed=resumed)


def _losses_by_head(line: Entry) -> Entry:
    """Nats a token of each head."""
    start = f"eval_{HEAD_KEY}"
    return {"validation_heads": {key.removeprefix(start): line[key] for key in line if key.startswith(start)}}


def _describe(entry: Entry) -> str:
    loss = entry["validation_heads"][FINAL_HEAD]
    return f"perplexity by token {math.exp(loss):.1f}" if loss < 100 else f"loss {loss:.1f}"


REPORTED_SPLITS = ("validation", "test")


@dataclass(frozen=True)
class TrainedLanguageModel:
    """The result of a training."""

    dataset: LanguageDataset
    encoded: dict[str, EncodedText]
    tokenizer: dict[str, Any]
    training: LanguageTrainingRecord
    model: ModelRecord
    folder: Path


def _audit(
    model: Any, metrics: Mapping[str, LanguageMetricsRecord], dataset: LanguageDataset, config: RunConfig
) -> list[AuditResult]:
    """Audits a trained model: causality, padding, cache, too good to be true; and which lines stand in train too."""
    audits = language_audits(model, config.seed)
    heads = [head for split in metrics.values() for head in split.heads.values()]
    if perplexities := [head.word_perplexity for head in heads if head.word_perplexity is not None]:
        causality = [audit for audit in audits if is_of_causality(audit.name)]
        audits += run_audits(Subject.PERPLEXITY, min(perplexities), causality)
    least = running(config.data).min_characters
    for name, split in dataset.record(least)["splits"].items():
        if name in metrics and split["seen_lines"] is not None:
            seen, lines = split["seen_lines"], split["long_lines"]
            summary = f"{seen:,} of {lines:,} lines of more than {least} characters stand in train as well"
            details = {"seen_lines": seen, "long_lines": lines}
            share = seen / lines if lines else 0.0
            audits.append(
                AuditResult(name=f"seen.lines.{name}", status="measured", summary=summary, value=share, details=details)
            )
    return audits


def record_language(
    task: Task, config: RunConfig, trained: TrainedLanguageModel, data: StudyData, reporter: Reporter, *, started: float
) -> LanguageRunRecord:
    """Measures and audits a trained model; returns the record, to be written last."""
    machine, text = data.machine, running(config.data)
    reporter.stage(config.run_id, "evaluating")
    # Loaded as stored, so that the measured model is the one that others load.
    model = load_language_model(trained.folder).to(default_device())
    record = _data_record(config, trained)
    texts = {name: trained.encoded[name] for name in record.reported_splits}
    texts[TRAINING_SPLIT] = _part_of_training(config, trained, machine.cache_dir)
    lossless = bool(trained.tokenizer["lossless"])
    metrics: dict[str, LanguageMetricsRecord] = {
        name: measure_text(model, encoded, text, lossless=lossless, precision=config.precision)[0]
        for name, encoded in texts.items()
    }
    latency: dict[str, LatencyRecord] = {}
    if machine.latency:
        reporter.stage(config.run_id, "timing")
        tokens = trained.encoded[record.reported_splits[-1]].joined
        call = forward_pass(model, config.precision)
        latency = task.time_alone(call, windows(tokens, text.context), config, torch.get_num_threads())
    reporter.stage(config.run_id, "auditing")
    # A text that was trained on may be predicted as well as it likes.
    judged = {name: metrics[name] for name in record.reported_splits}
    return LanguageRunRecord(
        **run_facts(config, started, machine.threads or available_cores()),
        data=record,
        model=trained.model,
        training=trained.training,
        metrics=metrics,
        latency=latency,
        audits=_audit(model, judged, trained.dataset, config),
        shape=shape_of(model.config),
    )


def train_language(config: RunConfig, folder: Path, data: StudyData, reporter: Reporter) -> TrainedLanguageModel:
    """Trains a language model and saves it with its tokenizer, or resumes an interrupted run."""
    reporter.stage(config.run_id, "loading data")
    text, machine = running(config.data), data.machine
    dataset = load_run_text(text, data)
    tokenizer = load_language_tokenizer(text, dataset, machine.data_root)
    encoded = {name: encode_for(split, text, tokenizer, machine.cache_dir) for name, split in dataset.splits.items()}
    transformers.set_seed(derive_seed(config.seed, "weights"))
    model = RecurraForCausalLM(language_configuration(config, len(tokenizer), tokenizer.eos_token_id))
    training_file = folder / TRAINING_NAME
    if training_file.exists() and (folder / MODEL_NAME).is_dir():
        training = LanguageTrainingRecord.model_validate(read_json(training_file))
    else:
        training = train_language_model(
            model.to(default_device()),
            make_samples(encoded["train"], text),
            make_samples(encoded[SELECTION_SPLIT], text),
            config.protocol,
            folder=folder,
            seed=config.seed,
            precision=config.precision,
            reporter=reporter,
            pad_token_id=tokenizer.eos_token_id,
        )
        keep_trained(folder, model, tokenizer, text.context, training)
    tokenizer_record = {**describe_tokenizer(tokenizer), "lossless": is_lossless(tokenizer)}
    preset = LANGUAGE_PRESETS.get(config.model)
    record = transformer_record(
        config.label,
        preset[0] if preset else "a preset with changes",
        model.config,
        HeadKind.LANGUAGE_MODELLING,
        tokens=text.context,
        folder=folder,
    )
    return TrainedLanguageModel(dataset, encoded, tokenizer_record, training, record, folder / MODEL_NAME)


def _part_of_training(config: RunConfig, trained: TrainedLanguageModel, cache_dir: Path | None) -> EncodedText:
    """As many texts from the beginning of training as the selection split has."""
    data, splits = running(config.data), trained.dataset.splits
    seen = texts_of(splits["train"], data).texts[: len(texts_of(splits[SELECTION_SPLIT], data))]
    return encode_for(RunningText("train", seen), data, read_language_tokenizer(trained.folder), cache_dir)


def _data_record(config: RunConfig, trained: TrainedLanguageModel) -> LanguageDataRecord:
    dataset, data = trained.dataset, running(config.data)
    samples = len(make_samples(trained.encoded["train"], data))
    return LanguageDataRecord(
        name=dataset.name,
        unit=dataset.unit,
        mode=data.mode,
        context=data.context,
        fingerprint=dataset.fingerprint,
        selection_split=SELECTION_SPLIT,
        reported_splits=[name for name in REPORTED_SPLITS if name in dataset.splits],
        splits={
            name: LanguageSplitRecord(
                fingerprint=split.fingerprint,
                texts=len(trained.encoded[name]),
                words=trained.encoded[name].words,
                bytes=trained.encoded[name].num_bytes,
                tokens=len(trained.encoded[name].joined),
                samples=samples if name == "train" else None,
            )
            for name, split in dataset.splits.items()
        },
        notes=dataset.notes,
        tokenizer=trained.tokenizer,
    )
