"""``recurra generate``: what it prints and where, and every mistake in one line."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from language_folders import VOCABULARY, write_gpt2, write_language_model, write_tokenizer
from recurra import RecurraForCausalLM
from recurra.models.controls import LINEAR_NAME
from recurra.models.exits.rules import ConfidenceRule, confidence
from reviews import Command
from tiny import tiny_model

PROMPTS = ["the film", "of number 7 was", "a"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours, a model folder that leaks, and a GPT-2."""
    root = tmp_path_factory.mktemp("models")
    write_language_model(root / "run" / "model")
    write_language_model(root / "leaking", causal_convolution=False)
    write_gpt2(root / "gpt2")
    return root


@pytest.fixture
def said(command: Command) -> Command:
    return partial(command, "generate")


def by_hand(folder: Path, prompt: str, tokens: int) -> str:
    """Greedy decoding that computes everything anew for each token."""
    model, tokenizer = RecurraForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt)["input_ids"]
    start = len(ids)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                ids.pop()
                break
    return tokenizer.decode(ids[start:])


def test_a_prompt_goes_on_as_greedy_decoding_does_and_figures_go_to_standard_error(folders: Path, said: Any) -> None:
    out, err = said(folders / "run", "the film", "--max-new-tokens", 12)
    assert out == f"the film{by_hand(folders / 'run' / 'model', 'the film', 12)}\n"
    config = RecurraForCausalLM.from_pretrained(folders / "run" / "model").config
    assert "12 tokens, " in err and "tokens a second; cache: " in err
    assert f"{2 * config.num_hidden_layers * config.hidden_size * 4 / 1024:.2f} KiB a token and row" in err


def test_several_prompts_also_of_a_file_go_on_as_each_does_alone(folders: Path, said: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\n\n \n".join(PROMPTS) + "\n", encoding="utf-8")
    expected = [by_hand(folders / "run" / "model", prompt, 9) for prompt in PROMPTS]
    for given in (PROMPTS, [*PROMPTS, "--batch-size", 2], ["--input", tmp_path / "prompts.txt"]):
        result = said(folders / "run", *given, "--max-new-tokens", 9, "--json").json
        found = result["results"]
        assert [each["prompt"] for each in found] == PROMPTS and [each["text"] for each in found] == expected
        assert result["tokens"] == sum(each["tokens"] + each["ended"] for each in found)
    assert said(folders / "run", *PROMPTS, "--max-new-tokens", 5).out.count("\n\n") == 3


def test_draws_follow_their_seed_and_one_token_or_temperature_0_are_greedy(folders: Path, said: Any) -> None:
    asked = (folders / "run", "the film", "--max-new-tokens", 10)
    for drawn in (("--temperature", 1.5), ("--top-p", 0.9), ("--temperature", 0.7, "--top-k", 3, "--seed", 4)):
        assert said(*asked, *drawn).out == said(*asked, *drawn).out != said(*asked, *drawn, "--seed", 99).out
    assert said(*asked).out == said(*asked, "--top-k", 1).out == said(*asked, "--temperature", 0).out


def test_an_exit_rule_says_how_deep_tokens_went(folders: Path, said: Any) -> None:
    model = RecurraForCausalLM.from_pretrained(folders / "run" / "model").eval()
    with torch.no_grad():
        ids = torch.randint(0, VOCABULARY, (4, 40), generator=torch.Generator().manual_seed(0))
        sure = float(confidence(model(ids, output_exits=True).exit_logits[0]).median())
    asked = (folders / "run", *PROMPTS, "--max-new-tokens", 15, "--exit-rule", "confidence", "--threshold", sure)
    result = said(*asked, "--json").json
    assert result["exit_rule"] == ConfidenceRule.constant(sure).plain()
    assert sum(result["exits"].values()) == 14 * len(PROMPTS) and len(result["exits"]) > 1
    assert "tokens after the first, by the recurrences they took: 1: " in said(*asked)[1]


def test_any_causal_language_model_generates(folders: Path, said: Any) -> None:
    out, err = said(folders / "gpt2", "the film", "--max-new-tokens", 6)
    assert out.startswith("the film") and "KiB a token" in err
    results = said(folders / "gpt2", *PROMPTS, "--max-new-tokens", 6, "--json").json["results"]
    assert f"the film{results[0]['text']}\n" == out


def test_a_text_ends_where_the_context_does(folders: Path, said: Any) -> None:
    (result,) = said(folders / "run", "the film " * 4, "--max-new-tokens", 500, "--json").json["results"]
    prompt = len(AutoTokenizer.from_pretrained(folders / "run" / "model")("the film " * 4)["input_ids"])
    assert result["ended"] or result["tokens"] == 48 - prompt


MISTAKES: dict[str, tuple[tuple[Any, ...], str]] = {
    "long prompt": (("run", "a" * 60), "the prompt has 60 tokens; allowed for this model: 1 to 47"),
    "long prompt of several": (("run", "a", "a" * 60), "prompt 2 has "),
    "empty prompt": (("run", ""), "the prompt is empty"),
    "empty prompt of several": (("run", "a", ""), "prompt 2 is empty"),
    "no prompt": (("run",), "no texts are given"),
    "exit": (("run", "a", "--exit", 7), "there is no head after recurrence 7; allowed for this model: 1, 2, 3"),
    "threshold": (("run", "a", "--exit-rule", "confidence", "--threshold", 2), "threshold is 2; allowed for rule"),
    "leaking": (("leaking", "a"), "this model cannot generate: it leaks"),
    "foreign rule": (("gpt2", "a", "--exit", 1), "an exit rule needs a model with exits; "),
    "temperature": (("run", "a", "--temperature", -1), "temperature is -1; allowed: 0"),
    "top-p": (("run", "a", "--top-p", 1.5), "top_p is 1.5; allowed: above 0, at most 1"),
    "top-k": (("run", "a", "--top-k", 0), "--top-k"),
    "tokens": (("run", "a", "--max-new-tokens", 0), "--max-new-tokens"),
    "drawn beams": (("run", "a", "--num-beams", 2, "--top-k", 3), "beams take the most probable texts"),
    "folder": (("nowhere", "a"), "is not a folder; give a run"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(folders: Path, refused: Any, mistake: str) -> None:
    (folder, *rest), line = MISTAKES[mistake]
    assert line in refused("generate", folders / folder, *rest)


def test_a_folder_that_is_no_language_model_is_one_line(folders: Path, refused: Any, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "classifier" / "model")
    assert "is a classifier, which generates no text; use 'recurra predict' to label" in refused(
        "generate", tmp_path / "classifier", "a"
    )
    (tmp_path / "linear").mkdir()
    (tmp_path / "linear" / LINEAR_NAME).touch()
    assert "is a classifier, which generates no text" in refused("generate", tmp_path / "linear", "a")
    bare = shutil.copytree(folders / "run" / "model", tmp_path / "bare")
    for path in bare.glob("tokenizer*"):
        path.unlink()
    assert "holds no tokenizer; save it beside the model" in refused("generate", bare, "a")
    write_tokenizer(bare, VOCABULARY + 20)
    assert "has 320 tokens and the model 300: they do not belong together" in refused("generate", bare, "a")


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("generation_config.json", "bos_token_id", "a", "'bos_token_id' of the generation configuration is 'a'"),
        ("generation_config.json", "bos_token_id", 10**20, f"is {10**20}; it must be a token number below 300"),
        ("generation_config.json", "eos_token_id", 300, "is 300; it must be a token number below 300"),
        ("generation_config.json", "eos_token_id", -1, "is -1; it must be a token number below 300"),
        ("tokenizer_config.json", "model_max_length", "a", "holds no tokenizer that can be read"),
    ],
)
def test_a_setting_of_another_kind_is_one_line(
    name: str, key: str, value: object, message: str, folders: Path, refused: Any, tmp_path: Path
) -> None:
    copy = shutil.copytree(folders / "run" / "model", tmp_path / "copy")
    values = json.loads((copy / name).read_text(encoding="utf-8"))
    (copy / name).write_text(json.dumps({**values, key: value}), encoding="utf-8")
    assert message in refused("generate", copy, "a")
