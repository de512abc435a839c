"""Offline and quiet before anything heavy is imported; the real corpora where they are."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real corpora; skips the test where there is none."""
    value = os.environ.get("RECURRA_DATA_ROOT")
    if not value:
        pytest.skip("RECURRA_DATA_ROOT is not set: the real corpora are not here")
    root = Path(value)
    if not (root / "sst2" / "train.parquet").is_file():
        pytest.skip(f"RECURRA_DATA_ROOT is '{value}', which has no sst2/train.parquet")
    return root
