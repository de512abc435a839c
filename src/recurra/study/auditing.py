"""Audits of everything that a study has recorded, on request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recurra.core.errors import CheckpointError, RecurraError
from recurra.core.record import RECORD_NAME, AnyRecord, AuditResult, read_any_record
from recurra.tasks.summary import Summary


@dataclass(frozen=True)
class StudyAudit:
    """One audit over all runs of a study on the same data.

    Attributes:
        data: Name, protocol and fingerprint of the data.
        name: Name of the audit.
        status: ``failed`` if it failed for any run, else ``note`` if it was one for any, ``skipped`` if it was skipped
            for all, ``measured`` for a figure without pass or fail.
        runs: Runs that have this audit.
        failed_runs: Identifiers of those that failed.
        summary: What the first run of that status says of it.
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
        data = _data(record.data.name, record.data.protocol, record.data.fingerprint)
        for audit in record.audits:
            found[data, audit.name].append((record.run_id, audit))
    return [_over_runs(data, name, entries) for (data, name), entries in found.items()], missing


def with_verdicts(audits: Sequence[StudyAudit], summary: Summary) -> list[StudyAudit]:
    """The same with what fails only when the models of a study are held against each other; see `recurra.report`."""
    failed = {
        (_data(table.data, table.protocol, table.fingerprint), line.name): line.summary
        for table in summary.tables
        for line in table.audits
        if line.status == "failed"
    }
    return [
        replace(audit, status="failed", summary=failed[audit.data, audit.name])
        if audit.status == "note" and (audit.data, audit.name) in failed
        else audit
        for audit in audits
    ]


def _data(name: str, protocol: str, fingerprint: str) -> str:
    return f"{name} ({protocol}, {fingerprint[:8]})"


def _records(folder: Path) -> tuple[list[AnyRecord], dict[str, str]]:
    if (folder / RECORD_NAME).exists():
        return [read_any_record(folder)], {}
    runs = sorted(path for path in (folder / "runs").glob("*") if path.is_dir() and not path.name.startswith("."))
    records: list[AnyRecord] = []
    missing: dict[str, str] = {}
    for run in runs:
        try:
            records.append(read_any_record(run))
        except RecurraError as error:
            missing[run.name] = str(error)
    if not records:
        raise CheckpointError(
            f"'{folder}' holds no finished run; give the --output folder of 'recurra compare', 'study run' or 'train'"
        )
    return records, missing


def _over_runs(data: str, name: str, entries: Sequence[tuple[str, AuditResult]]) -> StudyAudit:
    # Of a figure without pass or fail, and of audits that some runs could not make, the strongest statement stands.
    found = {audit.status for _, audit in entries}
    status = next((status for status in ("failed", "note", "passed", "measured") if status in found), "skipped")
    shown = next(audit for _, audit in entries if audit.status == status)
    return StudyAudit(
        data=data,
        name=name,
        status=status,
        runs=len(entries),
        failed_runs=[run_id for run_id, audit in entries if audit.status == "failed"],
        summary=shown.summary,
        value=shown.value,
        threshold=shown.threshold,
    )
