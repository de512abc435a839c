"""Tokens that an exit drafts and all recurrences check: the text of plain decoding, and a cache that takes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recurra.core.errors import ConfigurationError
from recurra.deployment.generation import GenerationSettings, Generator, LanguageModel
from recurra.models.cache import RecurraCache
from tiny import language_model

VOCABULARY = 11
SHAPES: dict[str, dict[str, Any]] = {
    "convolutions": {"num_recurrences": 3, "exits": [1, 2]},
    "rotary, two layers": {
        "position": "rotary", "norm_placement": "pre", "feed_forward": "swiglu", "num_cycles": 1, "num_core_layers": 2,
        "num_recurrences": 3, "exits": [1, 2], "embedding_cycles": 0,
    },
}  # fmt: skip
ROWS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


class Tokens:
    """What a generator asks of a tokenizer; no text ends unless ``end`` is a token that a model says."""

    def __init__(self, end: int) -> None:
        self.eos_token_id = end

    def __len__(self) -> int:
        return VOCABULARY


def varied(shape: str, seed: int = 0) -> Any:
    # Weights large enough that texts differ, and one head for all, so that some drafts hold.
    shape_of = {**SHAPES[shape], "heads": "tied", "initializer_range": 0.6, "max_position_embeddings": 64}
    model = language_model(seed, **shape_of).eval()
    model.generation_config.eos_token_id = None
    return model


def on(model: Any, end: int = 0, **how: Any) -> Generator:
    tokenizer: Any = Tokens(end)
    return Generator(LanguageModel("model", model, tokenizer), GenerationSettings(**how))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("draft", [1, 2])
def test_the_text_is_that_of_plain_decoding_whatever_ends_it(shape: str, draft: int) -> None:
    drafted = accepted = 0
    for seed, end, most in ((0, 0, 24), (1, 5, 24), (2, 7, 24), (3, 9, 24), (3, 9, 2), (3, 9, 1)):
        model = varied(shape, seed)
        plain = [on(model, end, max_new_tokens=most).extend([row])[0] for row in ROWS]
        generator = on(model, end, max_new_tokens=most, draft=draft)
        assert generator.extend(ROWS) == plain
        drafted, accepted = drafted + generator.figures.drafted, accepted + generator.figures.accepted
    # Some drafts hold and some do not, so both ways were gone.
    assert 0 < accepted < drafted


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("held", [1, 2, 4])
@torch.inference_mode()
def test_a_cache_that_took_tokens_back_goes_on_as_if_they_had_never_been(shape: str, held: int) -> None:
    model, prompt, tokens = varied(shape), [1, 2, 3, 4], [5, 6, 7, 8]
    cache = RecurraCache(model.config)
    model(torch.tensor([prompt]), past_key_values=cache)
    cache.allow_taking_back()
    mark = cache.mark()
    for token in (9, 10):
        model(torch.tensor([[token]]), past_key_values=cache, exit_after=1)
    cache.restore(mark)
    model(torch.tensor([tokens]), past_key_values=cache)
    cache.keep(held, mark)
    assert cache.get_seq_length() == len(prompt) + held
    found = model(torch.tensor([[9]]), past_key_values=cache).logits[0, -1]
    torch.testing.assert_close(found, model(torch.tensor([[*prompt, *tokens[:held], 9]])).logits[0, -1])


@pytest.mark.parametrize("how", [{"temperature": 0.5}, {"num_beams": 2}, {"top_k": 3}])
def test_drafts_are_for_the_most_probable_tokens_alone(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="drafts are for the most probable tokens"):
        GenerationSettings(draft=1, **how)


def test_there_must_be_an_exit_that_drafts() -> None:
    with pytest.raises(ConfigurationError, match="no head after recurrence 5"):
        on(varied("convolutions"), draft=5)
