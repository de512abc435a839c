"""The committed records."""

from __future__ import annotations

from pathlib import Path

from recurra.core.packed import study_files

RESULTS = Path(__file__).parents[1] / "results"
RECORDS = "runs/*/record.json"


def committed(pattern: str = RECORDS, studies: str = "*") -> list[Path]:
    """Files of the committed studies, as if they were not packed."""
    return [path for study in sorted(RESULTS.glob(studies)) if study.is_dir() for path in study_files(study, pattern)]
