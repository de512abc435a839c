"""Audits of a model on request: a run's, a preset with new weights, or any causal language model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import override
from recurra.core.errors import CheckpointError, ConfigurationError, did_you_mean
from recurra.core.model_files import sealed_model
from recurra.core.record import RECORD_NAME, AuditResult, read_any_record
from recurra.core.seeds import derive_seed
from recurra.models.controls import load_linear_model
from recurra.tasks.base import TaskEngine, task, tasks
from recurra.tasks.profile import presets


def audit_model(name: str, assignments: Sequence[str] = (), *, seed: int = 0) -> list[AuditResult]:
    """Audits the model of a finished run or of a folder, or a preset with new weights.

    The texts are random tokens: whether padding, company or a later token changes a logit does not depend on what a
    text says, and no data are needed.

    Args:
        name: A run folder, a preset, or a Hugging Face folder with a causal language model, which need not be ours.
        assignments: ``key=value`` changes of a preset's configuration, for example ``causal_convolution=false``.
        seed: Seed of the weights of a preset, and of the tokens.

    Returns:
        Of a classifier: invariance to padding and to neighbours. Of a language model: causality of every head, and
        invariance of logits and loss to padding. Of ours also the cache, and the parameters against the declared ones.

    Raises:
        ConfigurationError: If it is none of these.
        CheckpointError: If the folder is damaged, or needs code or pickle to be read.
    """
    names = list(presets())
    if name in names:
        return _audit_preset(name, assignments, seed)
    if Path(name).is_dir():
        if assignments:
            raise ConfigurationError(f"'{name}' is a folder: its model is audited as it is, without '{assignments[0]}'")
        folder = Path(name)
        return _audit_run(folder, seed) if (folder / RECORD_NAME).exists() else _audit_folder(folder, seed)
    raise ConfigurationError(
        f"'{name}' is neither a folder of a run or model nor a preset{did_you_mean(name, names)}; "
        f"presets: {', '.join(names)}"
    )


def _audit_preset(name: str, assignments: Sequence[str], seed: int) -> list[AuditResult]:
    import torch

    engine = next(each for each in tasks() if name in each.presets).engine
    changes = override({}, [pair.removeprefix("model.") for pair in assignments])
    torch.manual_seed(derive_seed(seed, "weights"))
    return _with_declared(engine, engine.new_model(name, changes), seed)


def _audit_run(folder: Path, seed: int) -> list[AuditResult]:
    record = read_any_record(folder)
    recorded = record.model.parameters
    if record.model.kind == "linear":
        linear = load_linear_model(folder / "model")
        skipped = "skipped: a linear model has neither padding nor batches"
        return [
            AuditResult(name="invariance.padding", status="skipped", summary=skipped),
            AuditResult(name="invariance.neighbours", status="skipped", summary=skipped),
            _parameter_audit(linear.num_parameters, recorded, "the record declares"),
        ]
    if not (folder / "model").is_dir():
        raise CheckpointError(f"'{folder / 'model'}' is missing; the run folder is incomplete; train or copy it again")
    engine = task(record.task).engine
    model = engine.load_model(sealed_model(folder))
    audits = engine.audit_model(model, seed)
    return [*audits, _parameter_audit(_built_parameters(model), recorded, "the record declares")]


def _audit_folder(folder: Path, seed: int) -> list[AuditResult]:
    """Audits a model folder, or the one within a run folder that has no record; one not ours is a language model."""
    from recurra.models.folder import read_model_configuration

    if not (folder / "config.json").exists():
        folder = folder / "model" if (folder / "model").is_dir() else folder
    architectures = read_model_configuration(folder).get("architectures") or []
    engines = [each.engine for each in tasks()]
    ours = [engine for engine in engines if engine.architecture in architectures]
    engine = next(iter(ours), None) or next(engine for engine in engines if engine.takes_foreign_models)
    return _with_declared(engine, engine.load_model(folder), seed)


def _with_declared(engine: TaskEngine, model: Any, seed: int) -> list[AuditResult]:
    audits = engine.audit_model(model, seed)
    declared = engine.declared_parameters(model)
    if declared is None:
        return audits
    return [*audits, _parameter_audit(_built_parameters(model), declared, "the accounting declares")]


def _built_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _parameter_audit(counted: int, declared: int, source: str) -> AuditResult:
    same = counted == declared
    return AuditResult(
        name="parameters.count",
        status="passed" if same else "failed",
        summary=f"the model has {counted:,} parameters, {source} {declared:,}",
        value=float(abs(counted - declared)),
        threshold=0.0,
        details={"counted": counted, "declared": declared},
    )
