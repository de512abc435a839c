"""The study of small encoders: what it keeps of each, and that it goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import encoders, general

from recurra.training import general_distillation
from reviews import write_reviews
from tiny_encoder import write_tiny_encoder

PLANS, LOSSES, TOKENS = ["0 (1)x2", "0"], ["states+cosine", "relations"], 600


@pytest.mark.slow
def test_a_stopped_study_goes_on_and_its_record_has_every_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = write_reviews(tmp_path / "taught.csv", rows=120).read_text(encoding="utf-8").splitlines()
    judged_on = write_reviews(tmp_path / "judged.csv", rows=120, seed=3)
    encoder = write_tiny_encoder(tmp_path / "encoder", lines, initializer_range=0.3, max_position_embeddings=160)
    monkeypatch.setattr(general, "FILES", ("taught.csv",))
    monkeypatch.setattr(general, "CORPORA", ())
    monkeypatch.setattr(general, "APART", (str(judged_on),))
    monkeypatch.setattr(general_distillation, "BATCH_TOKENS", 256)
    monkeypatch.setattr(encoders, "CORPORA", (str(judged_on),))
    monkeypatch.setattr(encoders, "WITH_ALL_ROWS", str(judged_on))
    monkeypatch.setattr(encoders, "PROTOCOLS", {8: "finetune-few"})
    monkeypatch.setattr(encoders, "_DRAWS", {8: 2})
    monkeypatch.setattr(encoders, "COST_ROWS", 32)
    monkeypatch.setenv("HOME", str(tmp_path))
    asked: list[str] = []
    first: list[dict[str, Any]] = []
    judge = encoders.judge

    def stopped(names: list[str], *given: Any, **options: Any) -> list[dict[str, Any]]:
        """Judges the first, and says the same of the others."""
        asked.extend(names)
        if len(asked) == 2:
            raise KeyboardInterrupt
        first.extend([] if first else judge(names, *given, **options))
        return [{**row, "encoder": names[0]} for row in first if row["encoder"] == asked[0]]

    monkeypatch.setattr(general, "judge", stopped)
    output = tmp_path / "study"
    words = ["--data-root", str(tmp_path), "--output", str(output), "--encoder", str(encoder), "--width", "8"]
    words += ["--sampled", "--plans", *PLANS, "--losses", *LOSSES, "--tokens", str(TOKENS)]
    words += ["--fine-tune", "0", "--all-rows", "0"]
    with pytest.raises(KeyboardInterrupt):
        general.main(words)
    assert not (output / "general.json").exists()
    weights = {path: path.stat().st_mtime_ns for path in output.glob("*/model*.safetensors")}
    assert general.main(words) == 0
    # Nothing is taught or judged again.
    assert {path: path.stat().st_mtime_ns for path in output.glob("*/model*.safetensors")} == weights
    assert len(asked) == 1 + len(set(asked)) == 5
    record = json.loads((output / "general.json").read_text(encoding="utf-8"))["encoders"]
    assert [(row["plan"], "+".join(row["loss"])) for row in record] == [(p, loss) for loss in LOSSES for p in PLANS]
    for row in record:
        assert row["tokens"] >= TOKENS and row["history"][-1]["tokens"] == row["tokens"]
        (values,) = row["judged"]
        # In whole numbers, with the tokenizer.
        assert row["parameters"] / 2**20 < values["mib"] < 1
        assert values["ms"] > 0 and -1 <= values["kept"] <= 1
        shares = [values["frozen_8"], values["fine_tuned_8"], *values["fine_tuned_all"]]
        assert len(shares) == 3 and all(0 <= share <= 1 for share in shares)
    assert [row["changes"].get("exits") for row in record] == [[1], None, [1], None]
    # The same student was taught otherwise.
    assert record[0]["weights_sha256"] != record[2]["weights_sha256"]


def test_what_is_kept_is_a_cosine_of_centred_states() -> None:
    states = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    assert encoders.kept(3 * states + 7, states) == pytest.approx(1) and encoders.kept(-states, states) < -0.999
    centred = [each - each.mean(0) for each in (states[:, ::-1], states)]
    cosines = [np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for a, b in zip(*centred, strict=True)]
    assert encoders.kept(states[:, ::-1], states) == pytest.approx(np.mean(cosines), abs=1e-6)


def test_an_unknown_term_is_refused_before_anything_is_taught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data-root", str(tmp_path), "--output", str(tmp_path / "out"), "--losses", "states", "relation"]
    with pytest.raises(SystemExit, match="2"):
        general.main(words)
    assert "did you mean 'relations'" in capsys.readouterr().err and not (tmp_path / "out").exists()
