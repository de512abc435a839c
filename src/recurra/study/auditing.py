"""Audits on request: of data, of a model, of everything that a study has recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recurra.core.errors import CheckpointError, ConfigurationError, RecurraError, did_you_mean
from recurra.core.record import RECORD_NAME, AuditResult, RunRecord, read_record
from recurra.core.seeds import derive_seed
from recurra.data.dataset import TextDataset
from recurra.evaluation.audits import audit_leakage, audit_shortcuts
from recurra.models.names import PRESET_NAMES

if TYPE_CHECKING:
    import torch

PROBE_ROWS = 64
PROBE_TOKENS = 40


@dataclass(frozen=True)
class StudyAudit:
    """One audit over all runs of a study on the same data.

    Attributes:
        data: Name, protocol and fingerprint of the data.
        name: Name of the audit.
        status: ``failed`` if it failed for any run, ``skipped`` if it was skipped for all, ``measured`` for a figure
            without pass or fail.
        runs: Runs that have this audit.
        failed_runs: Identifiers of those that failed.
        summary: What the first failed run says of it, or else the first run.
        value: The figure that was judged there.
        threshold: What it was judged against.
    """

    data: str
    name: str
    status: str
    runs: int
    failed_runs: list[str]
    summary: str
    value: float | None
    threshold: float | None

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)


def data_audits(dataset: TextDataset) -> list[AuditResult]:
    """Leakage and shortcut audits of a dataset."""
    return [*audit_leakage(dataset), *audit_shortcuts(dataset)]


def audit_model(name: str, *, seed: int = 0) -> list[AuditResult]:
    """Audits the model of a finished run, or a preset with new weights.

    The texts of the invariance audit are random tokens: whether padding or company changes a logit does not depend on
    what a text says, and no data are needed.

    Args:
        name: A run folder, or a preset.
        seed: Seed of the weights of a preset, and of the tokens.

    Returns:
        Invariance to padding and to neighbours in the batch, and the number of parameters against the declared one.

    Raises:
        ConfigurationError: If it is neither.
        CheckpointError: If the run folder is damaged.
    """
    if Path(name).is_dir():
        return _audit_run(Path(name), seed)
    if name in PRESET_NAMES:
        return _audit_preset(name, seed)
    raise ConfigurationError(
        f"'{name}' is neither a run folder nor a preset{did_you_mean(name, PRESET_NAMES)}; "
        f"presets: {', '.join(PRESET_NAMES)}"
    )


def _audit_preset(name: str, seed: int) -> list[AuditResult]:
    import torch

    from recurra.models.accounting import count_parameters
    from recurra.models.modeling import RecurraForSequenceClassification
    from recurra.models.presets import preset

    torch.manual_seed(derive_seed(seed, "weights"))
    model = RecurraForSequenceClassification(preset(name)).eval()
    declared = count_parameters(model.config).total
    return [*_invariance(model, seed), _parameter_audit(_built_parameters(model), declared, "the accounting declares")]


def _audit_run(folder: Path, seed: int) -> list[AuditResult]:
    from recurra.models.linear import LinearClassifier
    from recurra.models.loading import load_classifier_model

    record = read_record(folder)
    recorded = record.model.parameters
    if record.model.kind == "linear":
        linear = LinearClassifier.load(folder / "model")
        skipped = "skipped: a linear model has neither padding nor batches"
        return [
            AuditResult(name="invariance.padding", status="skipped", summary=skipped),
            AuditResult(name="invariance.neighbours", status="skipped", summary=skipped),
            _parameter_audit(linear.num_parameters, recorded, "the record declares"),
        ]
    model = load_classifier_model(folder / "model")
    return [*_invariance(model, seed), _parameter_audit(_built_parameters(model), recorded, "the record declares")]


def _invariance(model: torch.nn.Module, seed: int) -> list[AuditResult]:
    from recurra.evaluation.audits import audit_invariance

    config: Any = model.config
    rng = np.random.default_rng(derive_seed(seed, "audit", "tokens"))
    longest = min(PROBE_TOKENS, int(config.max_position_embeddings))
    lengths = rng.integers(min(3, longest), longest + 1, PROBE_ROWS)
    rows = [{"input_ids": rng.integers(1, config.vocab_size, length)} for length in lengths]
    return audit_invariance(model, rows, pad_token_id=config.pad_token_id or 0, seed=seed)


def _built_parameters(model: torch.nn.Module) -> int:
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


def audit_study(folder: Path) -> tuple[list[StudyAudit], dict[str, str]]:
    """Collects the audits of all records of a study.

    Args:
        folder: The output folder of a study or comparison, or one run folder.

    Returns:
        One entry for each audit on each data set, and the runs without a record, each with the reason.

    Raises:
        CheckpointError: If the folder holds no finished run.
    """
    records, missing = _records(folder)
    found: dict[tuple[str, str], list[tuple[str, AuditResult]]] = defaultdict(list)
    for record in records:
        data = f"{record.data.name} ({record.data.protocol}, {record.data.fingerprint[:8]})"
        for audit in record.audits:
            found[data, audit.name].append((record.run_id, audit))
    return [_over_runs(data, name, entries) for (data, name), entries in found.items()], missing


def _records(folder: Path) -> tuple[list[RunRecord], dict[str, str]]:
    if (folder / RECORD_NAME).exists():
        return [read_record(folder)], {}
    runs = sorted(path for path in (folder / "runs").glob("*") if path.is_dir() and not path.name.startswith("."))
    records: list[RunRecord] = []
    missing: dict[str, str] = {}
    for run in runs:
        try:
            records.append(read_record(run))
        except RecurraError as error:
            missing[run.name] = str(error)
    if not records:
        raise CheckpointError(
            f"'{folder}' holds no finished run; give the --output folder of 'recurra compare', 'study run' or 'train'"
        )
    return records, missing


def _over_runs(data: str, name: str, entries: Sequence[tuple[str, AuditResult]]) -> StudyAudit:
    failed = [run_id for run_id, audit in entries if audit.status == "failed"]
    shown = next((audit for _, audit in entries if audit.status == "failed"), entries[0][1])
    # Of a figure without pass or fail, and of audits that some runs could not make, the strongest statement stands.
    found = {audit.status for _, audit in entries}
    status = next((status for status in ("passed", "measured") if status in found), "skipped")
    return StudyAudit(
        data=data,
        name=name,
        status="failed" if failed else status,
        runs=len(entries),
        failed_runs=failed,
        summary=shown.summary,
        value=shown.value,
        threshold=shown.threshold,
    )
