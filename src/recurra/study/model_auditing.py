"""Audits of a model on request: a run's, a preset with new weights, or any causal language model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recurra.core.configuration import override
from recurra.core.errors import CheckpointError, ConfigurationError, did_you_mean
from recurra.core.record import RECORD_NAME, AuditResult, read_any_record
from recurra.core.seeds import derive_seed
from recurra.models.names import LANGUAGE_PRESET_NAMES, PRESET_NAMES

if TYPE_CHECKING:
    import torch

    from recurra.models.accounting import Task

PROBE_ROWS = 64
PROBE_TOKENS = 40


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
    if name in PRESET_NAMES + LANGUAGE_PRESET_NAMES:
        return _audit_preset(name, assignments, seed)
    if Path(name).is_dir():
        if assignments:
            raise ConfigurationError(f"'{name}' is a folder: its model is audited as it is, without '{assignments[0]}'")
        folder = Path(name)
        return _audit_run(folder, seed) if (folder / RECORD_NAME).exists() else _audit_folder(folder, seed)
    names = PRESET_NAMES + LANGUAGE_PRESET_NAMES
    raise ConfigurationError(
        f"'{name}' is neither a folder of a run or model nor a preset{did_you_mean(name, names)}; "
        f"presets: {', '.join(names)}"
    )


def _audit_preset(name: str, assignments: Sequence[str], seed: int) -> list[AuditResult]:
    import torch

    from recurra.models.accounting import Task
    from recurra.models.language_modeling import RecurraForCausalLM
    from recurra.models.modeling import RecurraForSequenceClassification
    from recurra.models.presets import preset

    pairs = [pair.removeprefix("model.") for pair in assignments]
    config = preset(name, **override({}, pairs))
    torch.manual_seed(derive_seed(seed, "weights"))
    if name in LANGUAGE_PRESET_NAMES:
        language = RecurraForCausalLM(config).eval()
        return [*language_audits(language, seed), _declared(language, Task.LANGUAGE_MODELLING)]
    classifier = RecurraForSequenceClassification(config).eval()
    return [*_invariance(classifier, seed), _declared(classifier, Task.CLASSIFICATION)]


def _audit_run(folder: Path, seed: int) -> list[AuditResult]:
    from recurra.models.linear import LinearClassifier

    record = read_any_record(folder)
    recorded = record.model.parameters
    if record.model.kind == "linear":
        linear = LinearClassifier.load(folder / "model")
        skipped = "skipped: a linear model has neither padding nor batches"
        return [
            AuditResult(name="invariance.padding", status="skipped", summary=skipped),
            AuditResult(name="invariance.neighbours", status="skipped", summary=skipped),
            _parameter_audit(linear.num_parameters, recorded, "the record declares"),
        ]
    audits, model = _audits_of_weights(folder / "model", seed)
    return [*audits, _parameter_audit(_built_parameters(model), recorded, "the record declares")]


def _audit_folder(folder: Path, seed: int) -> list[AuditResult]:
    """Audits a model folder, or the one within a run folder that has no record."""
    from recurra.models.accounting import Task
    from recurra.models.language_modeling import RecurraForCausalLM
    from recurra.models.modeling import RecurraForSequenceClassification

    if not (folder / "config.json").exists():
        folder = folder / "model" if (folder / "model").is_dir() else folder
    audits, model = _audits_of_weights(folder, seed)
    if isinstance(model, RecurraForCausalLM):
        audits.append(_declared(model, Task.LANGUAGE_MODELLING))
    elif isinstance(model, RecurraForSequenceClassification):
        audits.append(_declared(model, Task.CLASSIFICATION))
    return audits


def _audits_of_weights(folder: Path, seed: int) -> tuple[list[AuditResult], torch.nn.Module]:
    from recurra.models.foreign import load_language_model, read_model_configuration
    from recurra.models.loading import load_classifier_model

    if not folder.is_dir():
        raise CheckpointError(f"'{folder}' is missing; the run folder is incomplete; train or copy it again")
    architectures = read_model_configuration(folder).get("architectures") or []
    if "RecurraForSequenceClassification" in architectures:
        classifier = load_classifier_model(folder)
        return _invariance(classifier, seed), classifier
    language = load_language_model(folder)
    return language_audits(language, seed), language


def _invariance(model: torch.nn.Module, seed: int) -> list[AuditResult]:
    from recurra.evaluation.audits import audit_invariance

    config: Any = model.config
    rng = np.random.default_rng(derive_seed(seed, "audit", "tokens"))
    longest = min(PROBE_TOKENS, int(config.max_position_embeddings))
    lengths = rng.integers(min(3, longest), longest + 1, PROBE_ROWS)
    rows = [{"input_ids": rng.integers(1, config.vocab_size, length)} for length in lengths]
    return audit_invariance(model, rows, pad_token_id=config.pad_token_id or 0, seed=seed)


def language_audits(model: torch.nn.Module, seed: int) -> list[AuditResult]:
    """Audits a causal language model: causality of every head and padding; of ours also the cache."""
    from recurra.evaluation.audits import audit_cache, audit_causality, audit_language_padding
    from recurra.models.language_modeling import RecurraForCausalLM

    audits = [*audit_causality(model, seed=seed), *audit_language_padding(model, seed=seed)]
    return [*audits, audit_cache(model, seed=seed)] if isinstance(model, RecurraForCausalLM) else audits


def _built_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _declared(model: Any, task: Task) -> AuditResult:
    from recurra.models.accounting import count_parameters

    return _parameter_audit(
        _built_parameters(model), count_parameters(model.config, task).total, "the accounting declares"
    )


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
