"""A study of language models through its commands: planned with its cost, run, skipped where done, reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from interrupted import execute, in_a_process
from language_runs import TINY, write_text
from recurra.core.configuration import write_yaml
from recurra.core.record import read_language_record
from recurra.study.plan import plan_study
from recurra.study.spec import load_study
from reviews import Command

TEXT = {"name": "river.txt", "context": 16, "tokenizer": "trained", "trained_vocab_size": 300}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a causal and a leaking model, with its text."""
    root = tmp_path_factory.mktemp("study")
    write_text(root / "river.txt")
    study = {
        "name": "leak",
        "data": [TEXT],
        "models": [
            {"name": "tiny", "preset": "crt-tiny", **TINY},
            {"name": "tiny-leaks", "preset": "crt-tiny", **TINY, "causal_convolution": False},
        ],
        "protocols": ["tuned"],
        "protocol_overrides": ["max_epochs=2", "batch_size=8", "learning_rate=5e-3"],
        "seeds": [0],
    }
    (root / "leak.yaml").write_text(write_yaml(study), encoding="utf-8")
    return root


@pytest.mark.slow
def test_from_plan_to_report(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    where = ["leak.yaml", "--output", "out"]
    plan = command("study", "plan", *where, "--cache-dir", "cache", "--calibrate", "--json").json
    assert plan["counts"] == {"to do": 2} and plan["remaining_flops"] > 0 and plan["remaining_s"] > 0
    costs = [run["training_flops"] for run in plan["runs"]]
    assert costs[0] == costs[1] == plan["training_flops"] / 2

    # One of the two is there already; a study does not run it again.
    spec = load_study("leak.yaml")
    first = plan_study(spec, Path("out"))[0]
    first.folder.mkdir(parents=True)
    assert in_a_process(execute, first.config.plain(), first.folder.resolve(), []) == 0
    before = (first.folder / "record.json").read_bytes()
    found = command("study", "run", *where, "--workers", 1, "--threads", 1, "--quiet", "--json", code=3).json
    assert (first.folder / "record.json").read_bytes() == before
    table = found["tables"][0]
    assert [(model["label"], model["leaks"]) for model in table["models"]] == [("tiny", False), ("tiny-leaks", True)]
    assert "leaks: its predictions read up to" in table["conclusion"]
    records = [read_language_record(run["folder"]) for model in table["models"] for run in model["runs"]]
    for model, record in zip(table["models"], records, strict=True):
        for split, metrics in record.metrics.items():
            assert model["scores"][split]["loss"]["mean"] == pytest.approx(metrics.final.loss)

    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "A model reads the future" in page and "tiny-leaks" in page and page.count("<script") == 1
    names = {path.name for path in (folder / "out" / "figures").iterdir()}
    drawn = {"objective-by-epoch.svg", "loss-by-loop-on-test.svg"}
    against = {f"loss-against-{what}.svg" for what in ("latency-batch-1", "latency-batch-16")}
    assert len(names) == 4 and all(any(name.endswith(end) for name in names) for end in drawn | against)
    parts = {path.name for path in (folder / "out" / "tables").glob("*.csv")}
    assert parts >= {"results.csv", "audits.csv"}

    assert command("study", "status", "out", "--json").json["counts"] == {"done": 2}
    assert command("study", "report", *where, "--json", code=3).json["tables"] == found["tables"]
    done = command("study", "plan", *where, "--cache-dir", "cache", "--json").json
    assert done["counts"] == {"done": 2} and done["remaining_flops"] == 0
    assert "from 1 of its own records here" in command("study", "plan", *where, "seeds=[0,1]").out
    assert "causality.final" in command("audit", "study", "out", code=3).out
    assert "exit-1" in command("study", "report", *where, code=3).out
