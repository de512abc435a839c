"""What to make of a run. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExportOptions:
    """What to make of a run.

    Attributes:
        format: A name of `recurra.deployment.export.formats.registry`.
        precision: Precision of the stored weights; one of those that the format has.
        overwrite: Whether an export that lies at the output already is replaced.
        rows_file: File of texts to check on; none takes the run's validation split, or the demo corpus.
        text_column: Column of that file.
        encoding: Of that file, if it is neither UTF-8 nor has a mark.
        data_root: Local copies of public data.
        vocabulary: Pieces that the tokenizer keeps at most; 0 keeps all that the training rows use, and none all there
            are. Single characters always stay.
        abstain_below: Of each label, the probability below which a text that would get it gets none.
        agreement: Of a model with exits: share of rows that keep their label when texts stop early; none means 0.99.
    """

    format: str = "safetensors"
    precision: str = "fp32"
    overwrite: bool = False
    rows_file: Path | None = None
    text_column: str = "text"
    encoding: str | None = None
    data_root: Path | None = None
    vocabulary: int | None = None
    agreement: float | None = None
    abstain_below: Sequence[float] | None = None
