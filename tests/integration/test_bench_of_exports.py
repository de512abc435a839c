"""The bench's row about exits: a trained run is exported and calibrated, held against a BERT of its own shape."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import deployment, exiting_export
from benchmarks.lockstep import Job

from recurra.core.errors import ConfigurationError
from recurra.deployment.export.manifest import read_manifest
from reviews import review_rows

TEXTS = [text for text, _ in review_rows(40, seed=5)]


def test_a_run_competes_with_its_own_rule(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Corpus:
        texts = TEXTS
        tokenizer = type("Tokenizer", (), {"model_max_length": 0})()

    monkeypatch.setattr(deployment.corpora, "read", lambda folder: Corpus())
    monkeypatch.setattr(deployment, "SENTENCES", 24)
    call = deployment.build(Job("deployment", exiting_export.EXITS, str(runs["exits"]), str(tmp_path), 1, 2))
    found = call(1)
    assert len(found["single_ms"]) == 3 and min(found["single_ms"]) > 0 and found["batch_s"] > 0
    (folder,) = tmp_path.glob("recurra-bench-onnx-*/export")
    record = read_manifest(folder).exits
    assert record is not None and found["agreement"] == record.agreement
    if record.rule is not None:
        assert found["rows"] == record.rows and 1 <= found["recurrences"] <= 2
        latency = {exiting_export.EXITS: 0.5, "one": 1.0, "two": 0.8}
        rate = {exiting_export.EXITS: 900.0, "one": 450.0, "two": 300.0}
        alone, together = exiting_export.lines(found, "recurrent", latency, rate, ("one", "two"))
        assert (alone.other_name, alone.result, alone.target, alone.met) == ("two", 1.6, 1.2, True)
        assert (together.other_name, together.result, together.target) == ("one", 2.0, None)
        assert f"keep {record.agreement:.1%} of labels on {record.rows:,} rows" in alone.title
    assert exiting_export.lines({"agreement": None}, "recurrent", {}, {}, ()) == []


def test_a_run_of_another_shape_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has vocab_size \d+, the preset 'recurrent' has 30522"):
        exiting_export.check_shape(str(runs["exits"]), "recurrent")
    with pytest.raises(ConfigurationError, match="is not a run folder"):
        exiting_export.check_shape(str(tmp_path), "recurrent")
