"""Audits of a model on request: a run's, a preset, or any causal language model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurra.core.configuration import derive_seed, override
from recurra.core.errors import CheckpointError, ConfigurationError, did_you_mean, unknown
from recurra.core.record import RECORD_NAME, AuditResult, read_any_record
from recurra.core.record_parts import ANSWERS
from recurra.core.sealed import sealed_model
from recurra.models.controls import holds_joined_model
from recurra.models.names import MODEL_KEYS
from recurra.tasks.base import Task, presets, task, tasks


def audit_model(name: str, assignments: Sequence[str] = (), *, seed: int = 0) -> list[AuditResult]:
    """Audits the model of a finished run or of a folder, or a preset with new weights.

    The texts are random tokens: whether padding, company or a later token changes a logit does not depend on what a
    text says, and no data are needed.

    Args:
        name: A run folder, a preset, or a Hugging Face folder with a causal language model, which need not be ours.
        assignments: ``key=value`` changes of a preset's configuration, for example ``causal_convolution=false``.

    Returns:
        For a classifier: invariance to padding and to neighbours. For a language model: causality of every head, and
        invariance of logits and loss to padding. For our models also the cache, and the parameters as declared.

    Raises:
        ConfigurationError: If ``name`` is none of these.
        CheckpointError: If the folder is damaged, or needs code or pickle to be read.
    """
    names = list(presets())
    if name in names:
        return _audit_preset(name, assignments, seed)
    if Path(name).is_dir():
        if assignments:
            raise ConfigurationError(f"'{name}' is a folder, which is audited unchanged; leave '{assignments[0]}' out")
        folder = Path(name)
        return _audit_run(folder, seed) if (folder / RECORD_NAME).exists() else _audit_folder(folder, seed)
    raise ConfigurationError(
        f"'{name}' is neither a folder of a run or model nor a preset{did_you_mean(name, names)}; "
        f"presets: {', '.join(names)}"
    )


def _audit_preset(name: str, assignments: Sequence[str], seed: int) -> list[AuditResult]:
    import torch

    from recurra.models.presets import preset

    owner = next(candidate for candidate in tasks() if name in candidate.presets)
    changes = override({}, [pair.removeprefix("model.") for pair in assignments])
    for key in changes:
        if key not in MODEL_KEYS:
            raise ConfigurationError(unknown("key of a model", key, MODEL_KEYS))
    torch.manual_seed(derive_seed(seed, "weights"))
    return _with_declared(owner, owner.model_class()(preset(name, **changes)).eval(), seed)


def _audit_run(folder: Path, seed: int) -> list[AuditResult]:
    record = read_any_record(folder)
    if record.model.kind == ANSWERS:
        raise CheckpointError(f"'{folder}' is a run of answers from elsewhere: there is no model to audit")
    recorded = record.model.parameters
    if record.model.kind == "linear":
        from recurra.models.controls.linear import LinearModel

        linear = LinearModel.load(sealed_model(folder))
        if not holds_joined_model(folder / "model"):
            reason = "a linear model has neither padding nor batches"
            return [
                *(AuditResult.skipped(f"invariance.{kind}", reason) for kind in ("padding", "neighbours")),
                _parameter_audit(linear.num_parameters, recorded, "the record declares"),
            ]
        recorded -= linear.num_parameters
    if not (folder / "model").is_dir():
        raise CheckpointError(f"'{folder / 'model'}' is missing; the run folder is incomplete; train or copy it again")
    owner = task(record.task)
    model = owner.load_model(sealed_model(folder))
    audits = owner.audit_model(model, seed)
    return [*audits, _parameter_audit(_built_parameters(model), recorded, "the record declares")]


def _audit_folder(folder: Path, seed: int) -> list[AuditResult]:
    """Audits a model folder, or the model in a run folder without a record; a foreign model is a language model."""
    from recurra.models.folder import read_model_configuration

    if not (folder / "config.json").exists():
        folder = folder / "model" if (folder / "model").is_dir() else folder
    architectures = read_model_configuration(folder).get("architectures") or []
    ours = [candidate for candidate in tasks() if candidate.architecture in architectures]
    owner = next(iter(ours), None) or next(candidate for candidate in tasks() if candidate.takes_foreign_models)
    return _with_declared(owner, owner.load_model(folder), seed)


def _with_declared(owner: Task, model: Any, seed: int) -> list[AuditResult]:
    """Audits of a model; for our models also the parameters against the accounting."""
    from recurra.models.presets import HeadKind, count_parameters

    audits = owner.audit_model(model, seed)
    if not isinstance(model, owner.model_class()):
        return audits
    causal = owner.architecture == "RecurraForCausalLM"
    head = HeadKind.LANGUAGE_MODELLING if causal else HeadKind.CLASSIFICATION
    declared = count_parameters(model.config, head).total
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
