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

from recurra import RecurraModel
from recurra.core.errors import ConfigurationError
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, FixedExit
from recurra.models.modeling import ABSENT
from tiny import IDS, MASK, PACKED, stirred, stirred_language_model

MODELS: dict[str, Any] = {
    "body": lambda: stirred(exits=[1]).model,
    "classifier": lambda: stirred(exits=[1]),
    "language model": stirred_language_model,
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("atention_mask", torch.ones_like(IDS), "attention_mask"),
        ("token_type_id", None, "token_type_ids"),
        ("ouput_hidden_states", True, "output_hidden_states"),
    ],
)
def test_a_misspelt_keyword_is_named_with_the_one_that_is_meant(model: Any, name: str, value: Any, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        model(IDS, **{name: value})
    said = str(caught.value)
    start = f"{type(model).__name__}: unknown keyword '{name}' (did you mean '{meant}'?); allowed: input_ids, "
    assert said.startswith(start) and "\n" not in said


def test_what_transformers_passes_changes_nothing_and_what_we_have_not_is_refused(model: Any) -> None:
    def first_of(output: Any) -> Tensor:
        return next(value for value in output.to_tuple() if isinstance(value, Tensor))

    passed = {"return_dict": True, "use_cache": False, "cache_position": torch.arange(5), "num_items_in_batch": 3}
    found = model(IDS, **passed, **dict.fromkeys(ABSENT), output_attentions=False)
    assert torch.equal(first_of(found), first_of(model(IDS)))
    model.config.return_dict = False
    plain = model(IDS)
    assert type(plain) is tuple and torch.equal(next(value for value in plain if value is not None), first_of(found))
    model.config.return_dict = True
    for name in ABSENT:
        with pytest.raises(TypeError, match=f"{type(model).__name__} has no '{name}': "):
            model(IDS, **{name: torch.zeros(1)})
    with pytest.raises(ConfigurationError, match="'output_attentions' is true; allowed: false"):
        model(IDS, output_attentions=True)
    model.config._attn_implementation = "eager"
    model.config.output_attentions = True
    with pytest.raises(ConfigurationError, match="'output_attentions' is true; allowed: false") as caught:
        model(IDS)
    assert "\n" not in str(caught.value)


def test_a_tokenizers_output_goes_into_a_language_model_as_it_is(tmp_path: Path) -> None:
    """A fast tokenizer gives token types unless it is told not to."""
    model = stirred_language_model(type_vocab_size=2)
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
    asked: dict[str, Any] = {"token_type_ids": others, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    said = [model.generate(inputs["input_ids"], **asked, use_cache=use_cache) for use_cache in (True, False)]
    assert torch.equal(*said)
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


def watched(body: RecurraModel) -> list[Tensor]:
    """The states that will pass by, in the order of a forward pass."""
    states: list[Tensor] = []
    for module in (body.embeddings, *body.prelude.layers, *body.core.block.layers, *body.coda.layers):
        module.register_forward_hook(lambda *call: states.append(call[2]))
    # What a recurrence returns takes the place of what its last layer did.
    body.core.register_forward_hook(lambda *call: states.__setitem__(-1, call[2]))
    return states


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_are_what_hooks_see(variant: str, packed: bool) -> None:
    model = stirred(**VARIANTS[variant])
    inputs = PACKED if packed else {"input_ids": IDS, "attention_mask": MASK}
    states = watched(model.model)
    output = model.model(**inputs, output_hidden_states=True)
    *seen, _ = states
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1 == len(seen) + 1
    for found, wanted in zip(output.hidden_states, [*seen, output.last_hidden_state], strict=True):
        assert found.shape == (*inputs["input_ids"].shape, 16) and torch.equal(found, wanted)
    assert torch.equal(output.last_hidden_state, model.model(**inputs).last_hidden_state)
    assert model.model(**inputs).hidden_states is None


def test_a_language_model_returns_hidden_states_beside_a_loss_and_up_to_the_exit_that_speaks() -> None:
    model = stirred_language_model(num_recurrences=3, exits=[1, 2], num_core_layers=2)
    output = model(IDS, MASK, labels=IDS, output_hidden_states=True)
    assert len(output.hidden_states) == 7
    assert torch.equal(output.loss, model(IDS, MASK, labels=IDS).loss)
    for rule in ({"exit_after": 2}, {"exit_rule": FixedExit(2)}):
        early = model(IDS, MASK, output_hidden_states=True, **rule).hidden_states
        assert len(early) == 5
        assert all(torch.equal(found, wanted) for found, wanted in zip(early, output.hidden_states[:5], strict=True))
    asked: dict[str, Any] = {"exit_rule": ConfidenceRule(), "output_hidden_states": True}
    for other, keywords in ((stirred(exits=[1]), {}), (model, {}), (model, {"cache": RecurraCache(model.config)})):
        with pytest.raises(ConfigurationError, match="an exit rule came with output_hidden_states; "):
            other(IDS, **keywords, **asked)
