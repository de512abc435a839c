"""How transformers calls a model: the keywords that it passes to every one, listed once, and all others refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from recurra.core.errors import ConfigurationError, unknown

P = ParamSpec("P")
R = TypeVar("R")

# Passed by transformers' Trainer, generate and pipelines, and by programs written for many of its models; what a model
# of ours computes does not depend on it. A model that does look at one names it in its signature.
WITHOUT_EFFECT = {
    "cache_position": "a cache knows how many tokens it holds",
    "num_items_in_batch": "a classifier's loss is a mean over the batch, which the Trainer scales itself",
    "use_cache": "only a language model begins a cache by itself",
}
# Of many models of transformers and none of ours: their wrappers pass them as None.
ABSENT = {
    "head_mask": "heads cannot be switched off",
    "inputs_embeds": "give input_ids",
    "position_ids": "positions are counted from the attention_mask, or given as row_lengths",
}


def called_by_transformers(forward: Callable[P, R]) -> Callable[P, R]:
    """Lets a model's ``forward`` be called as transformers calls its own, and refuses what neither knows.

    ``return_dict`` (by default the configuration's) is honoured: false gives a tuple. ``output_attentions`` is refused.

    Raises:
        TypeError: From the method: for an unknown keyword, or one that no model of ours has.
        ConfigurationError: From the method: if attention weights are asked for.
    """
    known = [name for name in inspect.signature(forward).parameters if name != "self"]

    @functools.wraps(forward)
    def checked(self: Any, *args: Any, return_dict: bool | None = None, **keywords: Any) -> Any:
        _refuse_attentions(keywords.pop("output_attentions", None) or self.config.output_attentions)
        for name in [name for name in keywords if name not in known]:
            _check_keyword(type(self).__name__, name, keywords.pop(name), known)
        output = forward(self, *args, **keywords)
        wanted = self.config.return_dict if return_dict is None else return_dict
        return output if wanted else cast("Any", output).to_tuple()

    return cast("Callable[P, R]", checked)


def _check_keyword(model: str, name: str, value: object, known: list[str]) -> None:
    if name in WITHOUT_EFFECT or (name in ABSENT and value is None):
        return
    if name in ABSENT:
        raise TypeError(f"{model} has no '{name}': {ABSENT[name]}")
    raise TypeError(f"{model}: {unknown('keyword', name, known)}")


def _refuse_attentions(asked: object) -> None:
    if asked:
        raise ConfigurationError(
            "'output_attentions' is true; allowed: false: attention is computed in one kernel, which keeps no weights; "
            "leave it out"
        )
