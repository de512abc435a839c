"""What may be passed to a model: what transformers passes works, and a misspelt word is one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, pipeline

from recurra.core.errors import ConfigurationError
from recurra.models.modeling import ABSENT, WITHOUT_EFFECT
from tiny import language_model, stir, tiny_model

IDS = torch.tensor([[1, 4, 2, 7], [3, 3, 9, 1]])
MODELS: dict[str, Any] = {
    "body": lambda: tiny_model(exits=[1]).model,
    "classifier": lambda: tiny_model(exits=[1]),
    "language model": language_model,
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    made = MODELS[request.param]().eval()
    stir(made)
    return made


def first_of(output: Any) -> torch.Tensor:
    return next(value for value in output.to_tuple() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("atention_mask", torch.ones_like(IDS), "attention_mask"),
        ("attention_masks", None, "attention_mask"),
        ("token_type_id", torch.zeros_like(IDS), "token_type_ids"),
        ("ouput_hidden_states", True, "output_hidden_states"),
    ],
)
def test_a_misspelt_keyword_is_named_with_the_one_that_is_meant(model: Any, name: str, value: Any, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        model(IDS, **{name: value})
    said = str(caught.value)
    start = f"{type(model).__name__}: unknown keyword '{name}' (did you mean '{meant}'?); allowed: input_ids, "
    assert said.startswith(start) and "\n" not in said


def test_what_transformers_passes_changes_nothing(model: Any) -> None:
    wanted = first_of(model(IDS))
    passed = {"return_dict": True, "use_cache": False, "cache_position": torch.arange(4), "num_items_in_batch": 3}
    assert {*passed} - {"return_dict"} == {*WITHOUT_EFFECT}
    absent = dict.fromkeys(ABSENT)
    assert torch.equal(first_of(model(IDS, **passed, **absent, output_attentions=False)), wanted)
    for name in ABSENT:
        with pytest.raises(TypeError, match=f"{type(model).__name__} has no '{name}': ") as caught:
            model(IDS, **{name: torch.zeros(1)})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["asked", "configured"])
def test_attention_weights_are_refused_in_one_line(model: Any, how: str) -> None:
    asked = {"output_attentions": True} if how == "asked" else {}
    if how == "configured":
        model.config._attn_implementation = "eager"
        model.config.output_attentions = True
    with pytest.raises(ConfigurationError, match="'output_attentions' is true; allowed: false") as caught:
        model(IDS, **asked)
    assert "\n" not in str(caught.value)


def test_a_tokenizers_output_goes_into_a_language_model_as_it_is(tmp_path: Path) -> None:
    """A fast tokenizer gives token types unless it is told not to."""
    model = language_model(type_vocab_size=2).eval()
    stir(model)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(11)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w0", pad_token="w0")
    inputs = tokenizer("w3 w1 w4 w1", return_tensors="pt", return_token_type_ids=True)
    assert set(inputs) == {"input_ids", "token_type_ids", "attention_mask"}
    wanted = model(inputs["input_ids"]).logits
    assert torch.equal(model(**inputs).logits, wanted)
    others = torch.tensor([[0, 1, 0, 1]])
    assert not torch.allclose(model(inputs["input_ids"], token_type_ids=others).logits, wanted)
    # Types of a prompt are continued, and reach the model through the cache too.
    asked: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "use_cache": True}
    said = model.generate(inputs["input_ids"], token_type_ids=others, **asked)
    plain = model.generate(inputs["input_ids"], token_type_ids=others, **{**asked, "use_cache": False})
    assert torch.equal(said, plain)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = pipeline("text-generation", model=str(tmp_path), device="cpu")("w3 w1", max_new_tokens=3, do_sample=False)
    assert texts[0]["generated_text"].startswith("w3 w1")
    features = pipeline("feature-extraction", model=str(tmp_path), device="cpu")("w3 w1 w4")
    assert torch.tensor(features).shape == (1, 3, 8)
