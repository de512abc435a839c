"""How texts go on under lm-evaluation-harness' settings for generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.models.utils_hf import stop_sequences_criteria

from recurra.core.errors import ConfigurationError, unknown
from recurra.deployment.generation import GenerationSettings, Generator
from recurra.deployment.language_model import LanguageModel
from recurra.models.exits.rules import FixedExit

# The harness' own for a model that says nothing else.
_MOST_TOKENS = 256
_KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k", "num_beams")


def go_on(
    language: LanguageModel,
    rows: list[list[int]],
    asked: Mapping[str, Any],
    *,
    context: int,
    exit: int | None,
    together: int,
    progress: Callable[[int], object],
) -> list[str]:
    """Lets texts go on, each up to the first of its stop sequences.

    Args:
        language: Model and tokenizer.
        rows: Tokens of each text; cut on the left so that what is generated fits the context.
        asked: A task's ``generation_kwargs``; without ``do_sample`` or a temperature the most probable token is taken.
        context: Tokens that are read at once.
        exit: Recurrence whose head speaks; none takes the last.
        together: Texts that are computed together, those of like length.
        progress: Told how many texts are done.

    Returns:
        What came behind each, in order, without the stop sequence.

    Raises:
        ConfigurationError: For a key that has no meaning here, a value out of range, no room for a text, or a model
            that leaks.
    """
    values = dict(normalize_gen_kwargs(dict(asked), default_max_gen_toks=_MOST_TOKENS))
    for name in values:
        if name not in _KNOWN:
            raise ConfigurationError(unknown("key of generation_kwargs", name, _KNOWN))
    most = int(values["max_gen_toks"])
    if not 1 <= most < context:
        raise ConfigurationError(
            f"max_gen_toks is {most}, and {context} tokens are read at once; allowed: 1 to {context - 1}, so that "
            "part of the text is read; give --gen_kwargs max_gen_toks=N"
        )
    generator = Generator(language, _settings(values, most, exit))
    tokenizer = language.tokenizer
    until = handle_stop_sequences(list(values["until"]), eos=tokenizer.decode(tokenizer.eos_token_id))
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    found = [""] * len(rows)
    for first in range(0, len(order), together):
        chosen = order[first : first + together]
        batch = [rows[index][-(context - most) :] for index in chosen]
        width, computed = max(map(len, batch)), len(batch) * generator.settings.num_beams
        stop = stop_sequences_criteria(tokenizer, until, width, computed)
        for index, tokens in zip(chosen, generator.extend(batch, stopping_criteria=stop), strict=True):
            text = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
            found[index] = postprocess_generated_text(text, stop=until, think_end_token=None)
        progress(len(chosen))
    return found


def _settings(values: Mapping[str, Any], most: int, exit: int | None) -> GenerationSettings:
    draws = bool(values["do_sample"])
    return GenerationSettings(
        max_new_tokens=most,
        temperature=float(values.get("temperature", 1.0)) if draws else None,
        top_p=values.get("top_p") if draws else None,
        top_k=values.get("top_k") if draws else None,
        num_beams=int(values.get("num_beams", 1)),
        # The harness has set it, for all its tasks.
        seed=torch.initial_seed(),
        rule=None if exit is None else FixedExit(exit),
    )
