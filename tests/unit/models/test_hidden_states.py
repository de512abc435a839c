"""The states on the way are those that hooks see and the formulas give, and gradients flow back through them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recurra import RecurraForCausalLM, RecurraModel
from recurra.core.errors import ConfigurationError
from recurra.models.cache import RecurraCache
from recurra.models.exits.rules import ConfidenceRule, FixedExit
from tiny import IDS, MASK, PACKED, language_model, stir, stirred

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
def test_they_are_what_hooks_see(variant: str, packed: bool) -> None:
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


def test_a_language_model_returns_them_beside_a_loss_and_up_to_the_exit_that_speaks() -> None:
    model = causal(num_core_layers=2)
    output = model(IDS, MASK, labels=IDS, output_hidden_states=True)
    assert len(output.hidden_states) == 7 and output.loss.isfinite()
    assert torch.equal(output.loss, model(IDS, MASK, labels=IDS).loss)
    for rule in ({"exit_after": 2}, {"exit_rule": FixedExit(2)}):
        early = model(IDS, MASK, output_hidden_states=True, **rule).hidden_states
        assert len(early) == 5
        assert all(torch.equal(found, wanted) for found, wanted in zip(early, output.hidden_states[:5], strict=True))


def test_beside_an_exit_rule_they_are_refused_in_one_line() -> None:
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
