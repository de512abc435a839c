"""One run of a language model from configuration to record, also through kills; a leaking one fails its audits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from interrupted import execute, in_a_process, one_fast
from language_runs import TEXT_KEYS, TINY_KEYS, language_run, tiny_variant, write_text
from recurra.core.configuration import write_yaml
from recurra.core.record import read_language_record
from recurra.data.configuration import LanguageDataConfig
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.tokenization import encode_for, read_language_tokenizer
from recurra.study.plan import plan_study
from recurra.study.spec import load_study
from reviews import Command
from tiny_runs import TrainedRun, assert_goes_on_after, history, train_in_two_processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run in FP32."""
    root = tmp_path_factory.mktemp("language")
    run = TrainedRun(language_run(root), root / "run")
    assert in_a_process(execute, run.config.plain(), run.folder, [], True) == 0
    return run


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
    audits = {audit.name: audit.status for audit in record.audits}
    assert set(audits) == {
        "causality.exit-1", "causality.final", "padding.logits", "padding.loss", "cache.logits", "perplexity.too-good",
        "seen.lines.validation", "seen.lines.test",
    }  # fmt: skip
    assert {status for name, status in audits.items() if name.split(".")[0] in ("causality", "padding")} == {"passed"}


# Names of `interrupted.MOMENTS`.
@pytest.mark.parametrize(
    "moments",
    one_fast([["optimiser of checkpoint 2", "end of training"], ["model folder"], ["record"]]),
    ids=", ".join,
)
def test_a_killed_run_started_again_gives_what_it_would_have_given(
    moments: list[str], trained: TrainedRun, tmp_path: Path
) -> None:
    assert_goes_on_after(moments, trained, tmp_path / "run")


def test_a_leaking_model_exits_with_3_and_is_called_so(tmp_path: Path, command: Command) -> None:
    language_run(tmp_path)
    run = tmp_path / "cli"
    train = ["train", "--model", "crt-tiny", "--data", tmp_path / "river.txt", "--output", run, "--threads", 1]
    train += ["--cache-dir", tmp_path / "cache", *TINY_KEYS, *TEXT_KEYS, "max_epochs=1", "batch_size=8"]
    train += ["model.causal_convolution=false"]
    said = command(*train, "--json", code=3)
    assert "AUDIT FAILED: causality.exit-1, causality.final" in said.err
    assert said.json["model"]["preset"] == "crt-tiny-leaks" and "crt-tiny-leaks" in said.json["run_id"]
    # Done already, and no more to be trusted than before.
    assert "crt-tiny-leaks" in command(*train, code=3).out
    command("audit", "model", run, code=3)
    # Nothing is quoted without the word.
    assert "crt-tiny-leaks" in command("evaluate", run).out


def test_evaluating_a_run_gives_what_its_record_says(trained: TrainedRun, command: Command) -> None:
    record = read_language_record(trained.folder)
    for split in ("validation", "test"):
        found = command("evaluate", trained.folder, "--split", split, "--json").json
        assert found["recorded"] == record.metrics[split].model_dump(mode="json")
        for head, values in found["metrics"]["heads"].items():
            assert values["loss"] == pytest.approx(record.metrics[split].heads[head].loss, rel=1e-5)
    # Of train the record has a part.
    measured = record.metrics["test"].model_copy(update={"tokens": 5})
    part = record.model_copy(update={"metrics": {**record.metrics, "test": measured}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recurra.tasks.language.evaluation.read_language_record", lambda run: part)
        assert command("evaluate", trained.folder, "--json").json["recorded"] is None
    text = trained.root / "other.txt"
    text.write_text("the river runs past the mill\n\nthe field\n", encoding="utf-8")
    found = command("evaluate", trained.folder, "--data", text, "--stride", 4, "--json").json
    # Eight words and three line ends.
    assert (found["metrics"]["words"], found["metrics"]["stride"], found["recorded"]) == (11, 4, None)
    assert "loss of the final head in the record" in command("evaluate", trained.folder).out


def test_the_loss_by_position_is_that_of_the_model_called_block_by_block(trained: TrainedRun, command: Command) -> None:
    found = command("evaluate", trained.folder, "--by-position", "--json").json
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
    stream = [tokenizer.eos_token_id, *encode_for(split, config, tokenizer, trained.root / "cache").joined.tolist()]
    nats: list[list[float]] = [[] for _ in range(16)]
    for start in range(0, len(stream) - 1, 16):
        block = torch.tensor([stream[start : start + 17]])
        with torch.no_grad():
            said = model(block[:, :-1]).logits.double().log_softmax(-1)
        for position, token in enumerate(block[0, 1:].tolist()):
            nats[position].append(-float(said[0, position, token]))
    expected = [sum(values) / len(values) for values in nats]
    assert found["positions"]["final"]["loss"] == pytest.approx(expected, rel=1e-4)
    shown = command("evaluate", trained.folder, "--by-position").out
    assert "All but the last" in shown
    first, *_, last = losses = found["positions"]["final"]["loss"]
    for value in (first, losses[7], last):
        assert f"{value:.4f}" in shown

    # Under a stride it is not that of the first window.
    arguments = ("evaluate", trained.folder, "--stride", 4, "--by-position")
    positions = command(*arguments, "--json").json["positions"]["final"]
    assert set(positions["tokens"][:12]) == {1} and min(positions["tokens"][12:]) > 2
    shown = command(*arguments).out.partition("loss by position, from token 13 of a window")[2]
    for place in (12, 13, 15):
        assert f"{positions['loss'][place]:.4f}" in shown
    assert f"{positions['loss'][0]:.4f}" not in shown


def test_the_harness_reads_a_run_as_our_evaluation_does(trained: TrainedRun, tmp_path: Path, command: Command) -> None:
    from recurra.study.harness import RecurraLM

    # It fits one window, which both cut alike.
    line = "the river runs past the mill"
    (tmp_path / "line.txt").write_text(f"{line}\n", encoding="utf-8")
    metrics = command("evaluate", trained.folder, "--data", tmp_path / "line.txt", "--json").json["metrics"]
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
    train_in_two_processes(trained.config, tmp_path / "run")
    record, alone = read_language_record(tmp_path / "run"), read_language_record(trained.folder)
    assert record.training.epochs == 3 and record.training.steps < alone.training.steps
    # Of both halves of the selection split together, every token once.
    first, of_one = record.training.history[0], alone.training.history[0]
    assert set(first.validation_heads) == set(of_one.validation_heads)
    assert record.metrics["test"].tokens == alone.metrics["test"].tokens


@pytest.mark.slow
def test_a_study_from_plan_to_report(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    write_text(Path("river.txt"))
    text = {"name": "river.txt", "context": 16, "tokenizer": "trained", "trained_vocab_size": 300}
    study = {
        "name": "leak", "data": [text], "protocols": ["tuned"], "seeds": [0],
        "models": [tiny_variant(), tiny_variant("tiny-leaks", causal_convolution=False)],
        "protocol_overrides": ["max_epochs=2", "batch_size=8", "learning_rate=5e-3"],
    }  # fmt: skip
    Path("leak.yaml").write_text(write_yaml(study), encoding="utf-8")
    where = ["leak.yaml", "--output", "out"]
    plan = command("study", "plan", *where, "--cache-dir", "cache", "--calibrate", "--json").json
    assert plan["counts"] == {"to do": 2} and plan["remaining_flops"] > 0 and plan["remaining_s"] > 0
    costs = [run["training_flops"] for run in plan["runs"]]
    assert costs[0] == costs[1] == plan["training_flops"] / 2

    # One of the two is there already; a study does not run it again.
    first = plan_study(load_study("leak.yaml"), Path("out"))[0]
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

    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "A model reads the future" in page and "tiny-leaks" in page and page.count("<script") == 1
    names = {path.name for path in Path("out/figures").iterdir()}
    drawn = {"objective-by-epoch.svg", "loss-by-loop-on-test.svg"}
    against = {f"loss-against-{what}.svg" for what in ("latency-batch-1", "latency-batch-16")}
    assert len(names) == 4 and all(any(name.endswith(end) for name in names) for end in drawn | against)
    assert {path.name for path in Path("out/tables").glob("*.csv")} >= {"results.csv", "audits.csv"}

    assert command("study", "status", "out", "--json").json["counts"] == {"done": 2}
    assert command("study", "report", *where, "--json", code=3).json["tables"] == found["tables"]
    done = command("study", "plan", *where, "--cache-dir", "cache", "--json").json
    assert done["counts"] == {"done": 2} and done["remaining_flops"] == 0
    assert "from 1 of its own records here" in command("study", "plan", *where, "seeds=[0,1]").out
    assert "causality.final" in command("audit", "study", "out", code=3).out
    assert "exit-1" in command("study", "report", *where, code=3).out
