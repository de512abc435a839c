"""Our language models under lm-evaluation-harness: against plain forward passes and its own model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from language_folders import write_gpt2, write_language_model
from recurra.core.errors import RecurraError
from recurra.study import harness
from recurra.study.harness import RecurraLM

PAIRS = [
    ("The room was quiet", " and the breakfast was good"),
    ("", "We would come back"),
    ("a", "b"),
    ("The staff were friendly and the room was clean and the bed was soft and the view was wide " * 2, " indeed"),
    ("The room was quiet", " and loud"),
    ("It ended with spaces  ", "here"),
]
TEXTS = ["The room was quiet and the breakfast was good. " * 9, "Short.", "", "Twice the bed was made. " * 4]
CONTEXT = 48


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    write_language_model(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    write_gpt2(folder)
    return folder


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each, task_name="t") for each in arguments]


@torch.no_grad()
def plain(lm: RecurraLM, context: str, continuation: str) -> tuple[float, bool]:
    """One forward pass without batch, padding or windows."""
    before, after = (
        lm._encode_pair(context, continuation) if context else ([lm.eot_token_id], lm.tok_encode(continuation))
    )
    tokens = torch.tensor([[*before, *after][-(CONTEXT + 1) :]])
    logits = lm.language.model(tokens[:, :-1], **lm.options).logits[0, -len(after) :].double().log_softmax(-1)
    wanted = tokens[0, -len(after) :]
    return float(logits.gather(1, wanted[:, None]).sum()), bool((logits.argmax(-1) == wanted).all())


@pytest.mark.parametrize(("exit", "batch_size"), [(None, 1), (1, 1), (None, 8), (1, 8)])
def test_a_likelihood_is_that_of_one_forward_pass(ours: Path, exit: int | None, batch_size: int) -> None:
    lm = RecurraLM(ours, exit=exit, batch_size=batch_size)
    scores = lm.loglikelihood(requests(*PAIRS), disable_tqdm=True)
    expected = [plain(lm, *pair) for pair in PAIRS]
    assert [value for value, _ in scores] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in expected]


def test_a_model_of_transformers_gets_what_the_harness_own_model_gets(gpt2: Path) -> None:
    theirs, lm = HFLM(str(gpt2), device="cpu", batch_size=2), RecurraLM(gpt2, batch_size=2)
    assert theirs.max_length == lm.max_length == CONTEXT
    asked = requests(*PAIRS)
    scores, expected = lm.loglikelihood(asked, disable_tqdm=True), theirs.loglikelihood(asked, disable_tqdm=True)
    assert np.array(scores) == pytest.approx(np.array(expected), rel=1e-5)
    asked = requests(*((text,) for text in TEXTS))
    expected = theirs.loglikelihood_rolling(asked, disable_tqdm=True)
    assert lm.loglikelihood_rolling(asked, disable_tqdm=True) == pytest.approx(expected, rel=1e-5)
    settings = {"until": ["e"], "max_gen_toks": 12, "do_sample": False}
    asked = requests(*((text[:40], settings) for text in TEXTS if text))
    assert lm.generate_until(asked, disable_tqdm=True) == theirs.generate_until(asked, disable_tqdm=True)


def test_generation_reads_the_exit_and_the_end_of_its_prompt_and_stops_before_the_stop(ours: Path) -> None:
    lm = RecurraLM(ours, batch_size=2, exit=2)
    prompts = [PAIRS[3][0], "The room", "A bed"]
    texts = lm.generate_until(requests(*((prompt, {"max_gen_toks": 10}) for prompt in prompts)), disable_tqdm=True)
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = lm.tok_encode(prompt)[-(CONTEXT - 10) :]
        for _ in range(10):
            tokens.append(int(lm.language.model(torch.tensor([tokens]), exit_after=2).logits[0, -1].argmax()))
        assert text == lm.tokenizer.decode(tokens[-10:]).split("<|endoftext|>")[0]
    stop = texts[1][3:5]
    settings = {"until": [stop], "max_gen_toks": 10}
    assert lm.generate_until(requests(("The room", settings)), disable_tqdm=True) == [texts[1].split(stop)[0]]


def test_a_leaking_model_is_refused_or_called_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_language_model(tmp_path, causal_convolution=False)
    with pytest.raises(RecurraError, match=r"leaks: .*allow_leaks=True"):
        RecurraLM(tmp_path)
    lm = RecurraLM(tmp_path, allow_leaks=True)
    assert lm.get_model_info()["leaks"] is True and "leaks: " in caplog.text
    assert lm.loglikelihood(requests(PAIRS[0]), disable_tqdm=True)[0][0] < 0
    with pytest.raises(RecurraError, match="cannot generate: it leaks"):
        lm.generate_until(requests(("The room", {"max_gen_toks": 4})), disable_tqdm=True)


def test_what_cannot_be_is_one_line(ours: Path, gpt2: Path, tmp_path: Path) -> None:
    values: dict[str, Any]
    for folder, values, message in (
        (ours, {"exit": 5}, "5"),
        (ours, {"exit": 0}, "0; allowed for this model: 1, 2, 3"),
        (ours, {"context": 49}, "context is 49; allowed for this model: 1 to 48"),
        (ours, {"device": "abacus"}, "device is 'abacus'"),
        (ours, {"precision": "fp8"}, "unknown precision 'fp8'"),
        (ours, {"pretraind": "x"}, r"unknown model argument 'pretraind' \(did you mean 'pretrained'\?\)"),
        (gpt2, {"exit": 1}, r"exit is 1, and .* is a GPT2LMHeadModel, which has no exits"),
        (tmp_path / "nothing", {}, "is not a folder"),
    ):
        with pytest.raises(RecurraError, match=message) as caught:
            RecurraLM(folder, **values)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    lm = RecurraLM(ours)
    with pytest.raises(RecurraError, match=r"a continuation has .* tokens; allowed: 1 to the context, 48"):
        lm.loglikelihood(requests(("", TEXTS[0])), disable_tqdm=True)
    with pytest.raises(RecurraError, match="max_gen_toks is 256, and 48 tokens are read at once; allowed: 1 to 47"):
        lm.generate_until(requests(("The room", {})), disable_tqdm=True)


LINES = [text for text in TEXTS if text]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task over a local file of lines."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in LINES), encoding="utf-8")
    task = {
        "task": "lines", "dataset_path": "json", "test_split": "train", "doc_to_text": "", "doc_to_target": "{{text}}",
        "dataset_kwargs": {"data_files": str(folder / "rows.jsonl"), "cache_dir": str(folder / "cache")},
        "output_type": "loglikelihood_rolling",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    }  # fmt: skip
    (folder / "lines.yaml").write_text(json.dumps(task), encoding="utf-8")
    return folder


def test_the_harness_runs_a_task_of_its_own_kind_on_it(ours: Path, tasks: Path) -> None:
    lm = RecurraLM(ours, exit=1)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = simple_evaluate(model=lm, tasks=["lines"], task_manager=manager, bootstrap_iters=0)
    assert (found["config"]["exit"], found["config"]["leaks"]) == (1, False)
    nats = -sum(lm.loglikelihood_rolling(requests(*((text,) for text in LINES)), disable_tqdm=True))
    # As the harness counts them.
    words = sum(len(re.split(r"\s+", text)) for text in LINES)
    assert found["results"]["lines"]["word_perplexity,none"] == pytest.approx(np.exp(nats / words))
    size = sum(len(text.encode()) for text in LINES)
    assert found["results"]["lines"]["bits_per_byte,none"] == pytest.approx(nats / np.log(2) / size)


@pytest.mark.slow
def test_its_own_command_line_knows_the_model(ours: Path, tasks: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    words = ["--model", "recurra", "--model_args", f"pretrained={ours}", "exit=1", "--tasks", "lines"]
    done = subprocess.run(
        [sys.executable, "-m", "recurra.study.harness", "run", *words, "--include_path", str(tasks)],
        capture_output=True, text=True, check=False, timeout=200, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "recurra (" in done.stdout and "word_perplexity" in done.stdout


def test_its_command_line_says_in_one_line_what_is_wrong_with_a_model(
    ours: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluate() -> None:
        simple_evaluate(model="recurra", model_args={"pretrained": str(ours), "exit": 7}, tasks=["lines"])

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", evaluate)
    assert harness.main() == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("error: ") and "Traceback" not in said
