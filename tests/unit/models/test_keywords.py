"""What may be passed to a model: what transformers passes works, and a misspelt word is one clear line.

States on the way, if they are asked for, are those that hooks see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, pipeline

from recurra import RecurraForCausalLM, RecurraModel
from recurra.core.errors import ConfigurationError
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, FixedExit
from recurra.models.modeling import ABSENT, WITHOUT_EFFECT
from tiny import IDS, MASK, PACKED, language_model, stir, stirred, tiny_model

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
    passed = {"return_dict": True, "use_cache": False, "cache_position": torch.arange(5), "num_items_in_batch": 3}
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


VARIANTS: dict[str, dict[str, Any]] = {
    "recurrent": {"num_recurrences": 3},
    "stacked": {"num_core_layers": 4, "num_recurrences": 1, "residual_scale": 0.0},
    "prelude, coda, final norm": {"num_prelude_layers": 1, "num_coda_layers": 2, "final_norm": True},
    "coda, last": {"num_coda_layers": 1, "pooling": "last"},
    "exits": {"num_recurrences": 3, "exits": [1, 2], "final_norm": True},
    "injection, recurrence embedding": {"input_injection": "concat", "recurrence_embedding": True},
    "post-norm cycles": {
        "feed_forward": "conv+linear", "num_cycles": 2, "causal_convolution": False, "norm_placement": "post",
        "position": "learned", "embedding_cycles": 1,
    },
}  # fmt: skip


class Hooks:
    """The states that pass by, in the order of a forward pass."""

    def __init__(self, body: RecurraModel) -> None:
        self.states: list[Tensor] = []
        body.embeddings.register_forward_hook(lambda *call: self.states.append(call[2]))
        for stack in (body.prelude, body.core.block, body.coda):
            for layer in stack.layers:
                layer.register_forward_hook(lambda *call: self.states.append(call[2]))
        # What a recurrence returns takes the place of what its last layer did.
        body.core.register_forward_hook(lambda *call: self.states.__setitem__(-1, call[2]))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_are_what_hooks_see(variant: str, packed: bool) -> None:
    model = stirred(**VARIANTS[variant])
    inputs = PACKED if packed else {"input_ids": IDS, "attention_mask": MASK}
    hooks = Hooks(model.model)
    output = model.model(**inputs, output_hidden_states=True)
    *seen, _ = hooks.states
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1 == len(seen) + 1
    for found, wanted in zip(output.hidden_states, [*seen, output.last_hidden_state], strict=True):
        assert found.shape == (*inputs["input_ids"].shape, 16) and torch.equal(found, wanted)
    assert torch.equal(output.last_hidden_state, model.model(**inputs).last_hidden_state)
    assert model.model(**inputs).hidden_states is None


def causal(**shape: Any) -> RecurraForCausalLM:
    model = language_model(num_recurrences=3, exits=[1, 2], **shape).eval()
    stir(model)
    return model


def test_a_language_model_returns_hidden_states_beside_a_loss_and_up_to_the_exit_that_speaks() -> None:
    model = causal(num_core_layers=2)
    output = model(IDS, MASK, labels=IDS, output_hidden_states=True)
    assert len(output.hidden_states) == 7 and output.loss.isfinite()
    assert torch.equal(output.loss, model(IDS, MASK, labels=IDS).loss)
    for rule in ({"exit_after": 2}, {"exit_rule": FixedExit(2)}):
        early = model(IDS, MASK, output_hidden_states=True, **rule).hidden_states
        assert len(early) == 5
        assert all(torch.equal(found, wanted) for found, wanted in zip(early, output.hidden_states[:5], strict=True))


def test_beside_an_exit_rule_hidden_states_are_refused_in_one_line() -> None:
    classifier, model = stirred(exits=[1]), causal()
    calls = [
        lambda: classifier(IDS, MASK, exit_rule=ConfidenceRule(), output_hidden_states=True),
        lambda: model(IDS, MASK, exit_rule=ConfidenceRule(), output_hidden_states=True),
        lambda: model(
            IDS, past_key_values=RecurraCache(model.config), exit_rule=ConfidenceRule(), output_hidden_states=True
        ),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="an exit rule came with output_hidden_states; ") as caught:
            call()
        assert "\n" not in str(caught.value)
