"""Classifiers of Transformers: read without any code that lies beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from recurra.core.errors import CheckpointError
from recurra.deployment.engines.trained import ForeignClassifier
from tiny_encoder import TEXTS, write_tiny_encoder


def test_code_beside_a_model_that_needs_none_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_encoder(tmp_path / "foreign", TEXTS, labels=["neg", "pos"])
    wanted = ForeignClassifier.load(folder, precision="fp32").logits(TEXTS)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n", encoding="utf-8")
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    names = {"AutoModelForSequenceClassification": "evil.Model", "AutoConfig": "evil.Config"}
    path.write_text(json.dumps({**values, "auto_map": names}), encoding="utf-8")
    np.testing.assert_array_equal(ForeignClassifier.load(folder, precision="fp32").logits(TEXTS), wanted)
    assert not marker.exists()
    # Of a kind that only its own code knows there is nothing else to take, and nobody is asked whether to run it.
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    path.write_text(json.dumps({**values, "auto_map": names, "model_type": "evil"}), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        ForeignClassifier.load(folder, precision="fp32")
    assert "\n" not in str(caught.value) and not marker.exists() and asked == []


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "foreign", TEXTS, labels=["neg", "pos"])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights can run code when they are read and are refused"):
        ForeignClassifier.load(folder, precision="fp32")
