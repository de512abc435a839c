"""Run folders for tests: real records and predictions of models that never were, with chosen quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recurra.core.configuration import content_hash
from recurra.core.record import (
    AuditResult,
    CodeRecord,
    DataRecord,
    EnvironmentRecord,
    EpochRecord,
    LatencyRecord,
    LengthSummary,
    MistakeRecord,
    RunRecord,
    SplitRecord,
    TrainingRecord,
    read_record,
    write_record,
)
from recurra.deployment.engines.computation import softmax
from recurra.evaluation.metrics import evaluate_logits
from recurra.evaluation.predictions import write_predictions
from recurra.tasks.measures import StudyLatency

# preset: parameters, embedding parameters, FLOPs a token, bytes on disk, ms a text at batch 1 and 32
MODELS: dict[str, tuple[int, int, float, int, float, float]] = {
    "linear": (118_402, 0, 2.6e2, 1_900_000, 0.21, 0.03),
    "baseline": (25_912_706, 11_721_216, 28.4e6, 103_660_000, 12.8, 4.7),
    "recurrent-wide": (18_817_538, 11_721_216, 28.4e6, 75_280_000, 12.9, 4.7),
    "recurrent": (10_972_162, 7_814_144, 12.6e6, 43_900_000, 7.0, 2.3),
    "stacked-narrow": (14_128_642, 7_814_144, 12.6e6, 56_530_000, 7.1, 2.35),
    "stacked-shallow": (10_972_162, 7_814_144, 6.3e6, 43_900_000, 3.6, 1.2),
}
_SIZES = ("parameters", "embedding_parameters", "flops_per_token", "file_size_bytes")
PACKAGES = {"torch": "2.13.0", "transformers": "5.17.1", "numpy": "2.4.6", "scikit-learn": "1.9.0"}
FEWER_ROWS = {"split": "test", "rows": [40, 80], "right": [0.7, 0.75], "last_gain": (-0.01, 0.11)}
MACHINE = EnvironmentRecord(
    python="3.11.9", packages=PACKAGES, platform="Linux-6.1-x86_64", cpu="A processor @ 2.10GHz", cores=2, threads=1
)
CREATED = "2026-11-20T12:00:00+00:00"


@dataclass(frozen=True)
class RunFactory:
    """Writes run folders that share one corpus; without a temperature, records from before there was one."""

    root: Path
    data: str = "sst2"
    protocol: str = "official"
    rows: dict[str, int] = field(
        default_factory=lambda: {"train": 53_112, "held_out": 700, "validation": 872, "test": 1_821}
    )
    label_names: tuple[str, ...] = ("negative", "positive")
    precision: str = "fp32"
    training: str = "paper"
    data_config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    shares: tuple[float, ...] | None = None
    temperature: float | None = None

    def run(
        self,
        model: str,
        accuracy: float = 0.8,
        *,
        seed: int = 0,
        predictions: Sequence[str] | None = None,
        latency: bool = True,
        audits: Sequence[AuditResult] = (),
        notes: Sequence[str] = (),
        epochs: int = 4,
        created: str = CREATED,
        run_id: str | None = None,
        settings: dict[str, Any] | None = None,
        dirty: bool = False,
        only_says: Sequence[int] | None = None,
        telling: str | None = None,
        spoke: str | None = None,
        exit_accuracy: dict[int, float] | None = None,
    ) -> Path:
        """Writes one run folder: every row has a difficulty, and a model fails the rows beyond its ability.

        ``telling`` is a word that tells every label, ``spoke`` one that spoke for every wrong one; records without them
        are from before such were looked for. Of labels outside ``only_says`` it says the first of these.
        """
        config = {
            "model": model,
            "data": {"name": self.data, "protocol": self.protocol, "fraction": 1.0, **self.data_config},
            "protocol": {"name": self.training},
            "seed": seed,
            "precision": self.precision,
            **(settings or {}),
        }
        name = run_id or f"{model}-{self.protocol}-{self.training}-{self.precision}-s{seed}"
        folder, data, metrics = self.root / name, self._data(notes), {}
        for split in data.reported_splits:
            ids, labels, logits = self._predict(split, model, accuracy, seed)
            if only_says is not None:
                silent = ~np.isin(logits.argmax(axis=1), only_says)
                logits[silent] = np.eye(len(self.label_names), dtype=np.float32)[only_says[0]]
            measured = evaluate_logits(logits, labels, self.temperature)
            metrics[split] = measured.model_copy(update={"exit_accuracy": exit_accuracy})
            if predictions is None or split in predictions:
                write_predictions(folder, split, ids, labels, logits)
        kind, sizes = "linear" if model == "linear" else "transformer", dict(zip(_SIZES, MODELS[model], strict=False))
        others = sizes["parameters"] - sizes["embedding_parameters"]
        record = {
            "run_id": name,
            "config": config,
            "config_hash": content_hash(config),
            "seed": seed,
            "created": created,
            "code": CodeRecord(version="0.1.0", commit="a0de978c1d5e0f8a7b6c5d4e3f2a1b0c9d8e7f60", dirty=dirty),
            "environment": MACHINE.model_copy(update={"precision": self.precision}),
            "data": data,
            "model": {"preset": model, "kind": kind, "non_embedding_parameters": others, **sizes},
            "training": self._training(accuracy, seed, 0 if kind == "linear" else epochs),
            "metrics": metrics,
            "latency": latency_of(model, self.precision) if latency else {},
            "audits": audits,
        }
        if self.temperature is not None:
            record["decision"] = {"kind": "exclusive", "temperature": self.temperature}
        if telling is not None:
            record["telling_words"] = {label: [telling] for label in self.label_names}
            record["learning_curve"] = FEWER_ROWS
        if spoke is not None:
            record["mistakes"] = self._mistakes(ids, labels, softmax(logits), spoke)
        write_record(folder, RunRecord.model_validate(record))
        return folder

    def _mistakes(self, ids: Sequence[str], labels: np.ndarray, shares: np.ndarray, word: str) -> list[MistakeRecord]:
        """The ten surest."""
        found, names = [], self.label_names
        for id, label, own in zip(ids, labels.tolist(), shares, strict=True):
            if (said := own.argmax()) != label:
                sure = float(own.max())
                found.append(
                    MistakeRecord(id=id, labels=[names[label]], said=names[said], probability=sure, words=[word])
                )
        return sorted(found, key=lambda mistake: -mistake.probability)[:10]

    def _predict(self, split: str, model: str, accuracy: float, seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
        rows, labels_count = self.rows[split], len(self.label_names)
        base = np.random.default_rng([self.seed, len(split), rows])
        labels = base.integers(0, labels_count, rows)
        if self.shares is not None:
            labels = base.choice(labels_count, rows, p=self.shares)
        difficulty = base.random(rows)
        # A linear model is deterministic: the seed moves nothing.
        own = np.random.default_rng([sum(model.encode()), 0 if model == "linear" else seed + 1, rows])
        ability = difficulty + own.normal(0, 0.12, rows)
        right = ability <= np.quantile(ability, min(max(accuracy + own.normal(0, 0.003), 0.01), 0.999))
        wrong = (labels + own.integers(1, labels_count, rows)) % labels_count
        predicted = np.where(right, labels, wrong)
        logits = own.normal(0, 0.3, (rows, labels_count)).astype(np.float32)
        logits[np.arange(rows), predicted] += 3.0
        return [f"{split}-{index}" for index in range(rows)], labels, logits

    def _data(self, notes: Sequence[str]) -> DataRecord:
        reported = [name for name in self.rows if name != "train"]
        return DataRecord(
            name=self.data,
            protocol=self.protocol,
            fingerprint=content_hash([self.data, self.protocol, self.rows, self.data_config, self.seed]),
            label_names=list(self.label_names),
            selection_split=reported[0],
            reported_splits=reported,
            splits={name: self._split(name, rows) for name, rows in self.rows.items()},
            dropped={"duplicate": 0},
            notes=list(notes),
            tokenizer={"kind": "bert-base-uncased", "vocab_size": 30522},
        )

    def _split(self, name: str, rows: int) -> SplitRecord:
        shares = self.shares or [1 / len(self.label_names)] * len(self.label_names)
        labels = {label: round(rows * share) for label, share in zip(self.label_names, shares, strict=True)}
        counts = [rows // 2, rows // 3, rows - rows // 2 - rows // 3]
        words = LengthSummary(mean=11, median=10, p90=24, max=30, edges=[0, 10, 20, 30], counts=counts)
        fingerprint = content_hash([name, rows, self.seed])
        return SplitRecord(fingerprint=fingerprint, rows=rows, label_counts=labels, words=words)

    def _training(self, accuracy: float, seed: int, epochs: int) -> TrainingRecord:
        noise = np.random.default_rng([seed, epochs]).normal(0, 0.004, epochs).tolist()
        history = [
            EpochRecord(
                epoch=epoch,
                train_loss=0.62**epoch + 0.02,
                validation_loss=0.52 - 0.05 * epoch + 0.02 * max(epoch - 2, 0) ** 2 + noise[epoch - 1],
                validation_accuracy=min(0.999, accuracy - 0.05 / epoch + noise[epoch - 1]),
                learning_rate=3e-5,
                wall_s=412.0,
            )
            for epoch in range(1, epochs + 1)
        ]
        return TrainingRecord(
            protocol=self.training,
            epochs=epochs,
            steps=epochs * 3320,
            best_epoch=min(history, key=lambda epoch: epoch.validation_loss).epoch if history else 0,
            wall_s=1648.0 if epochs else 6.4,
            tokens_per_s=2100.0,
            peak_memory_mib=1840.0,
            history=history,
        )


def finish(output: Path, config: Any, accuracy: float = 0.8, **options: Any) -> Path:
    """Writes the finished run of a configuration where its study looks for it; ``values`` stand in its record."""
    values, rows = options.pop("values", {}), options.pop("rows", {"train": 30, "validation": 20, "test": 20})
    model = config.model if config.model in MODELS else "recurrent"
    factory = RunFactory(output / "runs", data="demo", rows=rows)
    folder = factory.run(model, accuracy, seed=config.seed, run_id=config.run_id, **options)
    values = {"config_hash": config.config_hash, "config": config.plain(), **values}
    write_record(folder, read_record(folder).model_copy(update=values))
    return folder


def latency_of(model: str, precision: str = "fp32", factor: float = 1.0) -> dict[str, LatencyRecord]:
    """Latencies of a model at batch 1 and 32."""
    how = {"samples": 1821, "precision": precision, "threads": 1, "device": "cpu"}
    times = {"median_ms": factor, "mean_ms": 1.05 * factor, "p90_ms": 1.35 * factor, "p99_ms": 2.5 * factor}
    found = {}
    for size, time in zip((1, 32), MODELS[model][-2:], strict=True):
        scaled = {name: time * share for name, share in times.items()}
        found[f"batch_{size}"] = LatencyRecord.model_validate({"batch_size": size, **how, **scaled})
    return found


def study_latency(folders: Sequence[Path], factor: float = 1.0) -> StudyLatency:
    """The content of a ``latency.json`` for run folders made by the factory."""
    runs = {}
    for folder in folders:
        model = next(name for name in sorted(MODELS, key=len, reverse=True) if folder.name.startswith(name))
        runs[folder.name] = latency_of(model, factor=factor)
    return StudyLatency(runs=runs)


def leakage(
    split: str = "test", kind: str = "contained", *, failed: bool = True, text: str = "the film"
) -> AuditResult:
    """What the leakage audit says of a split."""
    value = 0.69 if failed else 0.0
    summary = f"{value:.2%} of rows: the text's 3 words or more stand verbatim inside a training text; allowed: 10%"
    examples = [{"id": "1", "text": text, "train_text": f"we liked {text} a lot"}]
    return graded(f"leakage.{kind}.{split}", summary, value, 0.1, failed=failed, examples=examples)


def invariance(kind: str = "padding", *, failed: bool = False) -> AuditResult:
    """What the invariance audit says of a model."""
    value = 3.1e-2 if failed else 2.4e-7
    summary = f"{kind} changes a logit by at most {value:.1e} of the largest (32 rows)"
    return graded(f"invariance.{kind}", summary, value, 1e-5, failed=failed)


def graded(name: str, summary: str, value: float, threshold: float, *, failed: bool, **details: Any) -> AuditResult:
    """An audit that passed or failed."""
    status: Literal["failed", "passed"] = "failed" if failed else "passed"
    return AuditResult(name=name, status=status, summary=summary, value=value, threshold=threshold, details=details)


def seen(difference: float, split: str = "test") -> AuditResult:
    """A measured figure: accuracy on seen and on unseen rows."""
    details = {
        "seen": {"rows": 40, "accuracy": 0.6 + difference},
        "unseen": {"rows": 60, "accuracy": 0.6},
        "at_equal_length": {"difference": difference / 2, "interval": [0.0, difference]},
    }
    summary = f"a difference of {difference:+.3f}"
    return AuditResult(name=f"seen.{split}", status="measured", summary=summary, value=difference, details=details)


def skipped(name: str = "leakage.source.test") -> AuditResult:
    """An audit that could not be made."""
    return AuditResult.skipped(name, "the sources of the rows are not known")
