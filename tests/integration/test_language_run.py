"""One run of a language model from configuration to record, also through kills; a leaking one fails its audits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from interrupted import execute, in_a_process, one_fast
from language_runs import TEXT_KEYS, TINY_KEYS, language_run, tiny_variant
from recurra.cli.main import main
from recurra.core.record import read_language_record
from recurra.data.configuration import LanguageDataConfig
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.tokenization import encode_running_text, read_language_tokenizer
from recurra.study.plan import claim_folder
from recurra.tasks.study_data import Machine
from reviews import snapshot
from tiny_runs import TrainedRun


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run in FP32."""
    root = tmp_path_factory.mktemp("language")
    run = TrainedRun(language_run(root), root / "run")
    assert in_a_process(execute, run.config.plain(), run.folder, [], True) == 0
    return run


def history(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "wall_s"} for line in lines]


def test_a_finished_run_has_what_a_classifiers_run_has(trained: TrainedRun) -> None:
    assert {path.name for path in trained.folder.iterdir()} == {
        "config.yaml", "record.json", "history.jsonl", "model", "training.json", "checkpoints",
        "model-files.json",
    }  # fmt: skip
    record = read_language_record(trained.folder)
    assert (record.run_id, record.config, record.label) == (trained.config.run_id, trained.config.plain(), "tiny")
    assert record.training.epochs == len(history(trained.folder)) == 3
    assert record.training.history[-1].train_loss < record.training.history[0].train_loss
    weights = trained.folder / "model" / "model.safetensors"
    assert record.model.file_size_bytes == weights.stat().st_size
    assert {path.suffix for path in trained.folder.rglob("*") if path.is_file()} == {
        ".safetensors", ".json", ".jsonl", ".yaml",
    }  # fmt: skip
    assert set(record.metrics) == {"validation", "test", "train"}
    assert record.metrics["train"].tokens <= record.data.splits["train"].tokens
    for name in record.data.reported_splits:
        metrics = record.metrics[name]
        assert list(metrics.heads) == ["exit-1", "final"]
        assert (metrics.tokens, metrics.words) == (record.data.splits[name].tokens, record.data.splits[name].words)
        # Equal sums of nats stand behind all three figures.
        assert metrics.final.word_perplexity == pytest.approx(
            metrics.final.token_perplexity ** (metrics.tokens / metrics.words)
        )


def test_the_audits_run_by_themselves_and_pass(trained: TrainedRun) -> None:
    audits = {audit.name: audit for audit in read_language_record(trained.folder).audits}
    assert set(audits) == {
        "causality.exit-1", "causality.final", "padding.logits", "padding.loss", "cache.logits", "perplexity.too-good",
        "seen.lines.validation", "seen.lines.test",
    }  # fmt: skip
    assert {audit.status for name, audit in audits.items() if name.split(".")[0] in ("causality", "padding")} == {
        "passed"
    }


# Names of `interrupted.MOMENTS`.
@pytest.mark.parametrize(
    "moments",
    one_fast([["optimiser of checkpoint 2", "end of training"], ["step 20"], ["model folder"], ["record"]]),
    ids=", ".join,
)
def test_a_killed_run_started_again_gives_what_it_would_have_given(
    moments: list[str], trained: TrainedRun, tmp_path: Path
) -> None:
    folder, config = tmp_path / "run", trained.config.plain()
    for moment in moments:
        assert in_a_process(execute, config, folder, [moment]) == -signal.SIGKILL
        assert not (folder / "record.json").exists()
    assert in_a_process(execute, config, folder, []) == 0
    assert snapshot(folder / "model") == snapshot(trained.folder / "model")
    assert history(folder) == history(trained.folder)
    ours, theirs = read_language_record(folder), read_language_record(trained.folder)
    for name in ("run_id", "config", "config_hash", "data", "model", "metrics", "audits"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert not (folder / "checkpoints").exists() and not (folder / ".lock").exists()


def train(root: Path, *assignments: str) -> list[str]:
    """Arguments of a tiny training; `language_run` has written the text."""
    command = ["train", "--model", "crt-tiny", "--data", str(root / "river.txt"), "--output", str(root / "cli")]
    command += ["--cache-dir", str(root / "cache"), "--threads", "1", "--json"]
    return [*command, *TINY_KEYS, *TEXT_KEYS, "max_epochs=1", "batch_size=8", *assignments]


def test_a_leaking_model_exits_with_3_and_is_called_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    language_run(tmp_path)
    assert main(train(tmp_path, "model.causal_convolution=false")) == 3
    said = capfd.readouterr()
    assert "AUDIT FAILED: causality.exit-1, causality.final" in said.err
    record = json.loads(said.out)
    assert record["model"]["preset"] == "crt-tiny-leaks" and "crt-tiny-leaks" in record["run_id"]
    # Done already, and no more to be trusted than before.
    assert main([word for word in train(tmp_path, "model.causal_convolution=false") if word != "--json"]) == 3
    assert "crt-tiny-leaks" in capfd.readouterr().out
    assert main(["audit", "model", str(tmp_path / "cli")]) == 3
    # Nothing is quoted without the word.
    assert main(["evaluate", str(tmp_path / "cli")]) == 0
    assert "crt-tiny-leaks" in capfd.readouterr().out


def test_a_study_calls_a_variant_that_leaks_so_too(tmp_path: Path) -> None:
    assert "-tiny-leaks-" in language_run(tmp_path, model=tiny_variant(causal_convolution=False)).run_id
    assert "leaks-leaks" not in language_run(tmp_path, model=tiny_variant("t-leaks", causal_convolution=False)).run_id


def test_evaluating_a_run_gives_what_its_record_says(trained: TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_language_record(trained.folder)
    for split in ("validation", "test"):
        assert main(["evaluate", str(trained.folder), "--split", split, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["recorded"] == record.metrics[split].model_dump(mode="json")
        for head, values in found["metrics"]["heads"].items():
            assert values["loss"] == pytest.approx(record.metrics[split].heads[head].loss, rel=1e-5)
    # Of train the record has a part.
    measured = record.metrics["test"].model_copy(update={"tokens": 5})
    part = record.model_copy(update={"metrics": {**record.metrics, "test": measured}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recurra.tasks.language.evaluation.read_language_record", lambda run: part)
        assert main(["evaluate", str(trained.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is None
    text = trained.root / "other.txt"
    text.write_text("the river runs past the mill\n\nthe field\n", encoding="utf-8")
    assert main(["evaluate", str(trained.folder), "--data", str(text), "--stride", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Eight words and three line ends.
    assert (found["metrics"]["words"], found["metrics"]["stride"], found["recorded"]) == (11, 4, None)
    assert main(["evaluate", str(trained.folder)]) == 0
    assert "loss of the final head in the record" in capsys.readouterr().out


def test_the_loss_by_position_is_that_of_the_model_called_block_by_block(
    trained: TrainedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(trained.folder), "--by-position", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["positions"]) == ["exit-1", "final"]
    for head, positions in found["positions"].items():
        assert len(positions["loss"]) == len(positions["tokens"]) == found["metrics"]["context"] == 16
        assert sum(positions["tokens"]) == found["metrics"]["tokens"]
        mean = sum(loss * count for loss, count in zip(*positions.values(), strict=True)) / sum(positions["tokens"])
        assert mean == pytest.approx(found["metrics"]["heads"][head]["loss"], rel=1e-6)
    model = transformers.AutoModelForCausalLM.from_pretrained(trained.folder / "model").eval()
    config = LanguageDataConfig.parse(trained.config.plain()["data"], source="test")
    split = load_language_dataset(config, None, ["test"]).splits["test"]
    tokenizer = read_language_tokenizer(trained.folder / "model")
    stream = [tokenizer.eos_token_id, *encode_running_text(split, tokenizer, trained.root / "cache").joined.tolist()]
    nats: list[list[float]] = [[] for _ in range(16)]
    for start in range(0, len(stream) - 1, 16):
        block = torch.tensor([stream[start : start + 17]])
        with torch.no_grad():
            said = model(block[:, :-1]).logits.double().log_softmax(-1)
        for position, token in enumerate(block[0, 1:].tolist()):
            nats[position].append(-float(said[0, position, token]))
    expected = [sum(values) / len(values) for values in nats]
    assert found["positions"]["final"]["loss"] == pytest.approx(expected, rel=1e-4)
    assert main(["evaluate", str(trained.folder), "--by-position"]) == 0
    shown = capsys.readouterr().out
    assert "All but the last" in shown
    first, *_, last = losses = found["positions"]["final"]["loss"]
    for value in (first, losses[7], last):
        assert f"{value:.4f}" in shown


def test_the_harness_reads_a_run_as_our_evaluation_does(
    trained: TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from recurra.study.harness import RecurraLM

    # It fits one window, which both cut alike.
    line = "the river runs past the mill"
    (tmp_path / "line.txt").write_text(f"{line}\n", encoding="utf-8")
    assert main(["evaluate", str(trained.folder), "--data", str(tmp_path / "line.txt"), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["tokens"] <= metrics["context"]
    for head, exit_after in (("exit-1", 1), ("final", None)):
        lm = RecurraLM(trained.folder, exit=exit_after)
        assert lm.max_length == 16
        # Our evaluation also predicts the end of the line.
        asked = [SimpleNamespace(args=(f"{line}<|endoftext|>",))]
        (value,) = lm.loglikelihood_rolling(asked, disable_tqdm=True)
        assert -value == pytest.approx(metrics["heads"][head]["loss"] * metrics["tokens"], abs=1e-4)


@pytest.mark.slow
def test_two_processes_train_one_model(trained: TrainedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    claim_folder(trained.config, folder)
    machine = Machine(threads=1, latency=False, cache_dir=tmp_path / "cache")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "recurra.study.worker", str(folder), machine.to_json()],
        capture_output=True, text=True, check=False, timeout=220, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record, alone = read_language_record(folder), read_language_record(trained.folder)
    assert record.training.epochs == 3 and record.training.steps < alone.training.steps
    # Of both halves of the selection split together, every token once.
    first, of_one = record.training.history[0], alone.training.history[0]
    assert set(first.validation_heads) == set(of_one.validation_heads)
    assert record.metrics["test"].tokens == alone.metrics["test"].tokens
