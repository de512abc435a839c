"""The text and the model configuration of a language model's run."""

from __future__ import annotations

from recurra.core.errors import ConfigurationError
from recurra.models.configuration import RecurraConfig
from recurra.models.presets import preset
from recurra.tasks.language.data import check_context
from recurra.tasks.profile import base_preset, own_keys
from recurra.tasks.runs import RunConfig

_DECIDED_BY_TOKENIZER = ("bos_token_id", "eos_token_id", "pad_token_id")


def language_configuration(config: RunConfig, vocab_size: int | None, end_of_text: int | None) -> RecurraConfig:
    """The model configuration of a run: preset, overrides, and what the tokenizer decides.

    ``vocab_size`` are the rows of the token table; none while the tokenizer is not known, for a check of the rest.
    ``end_of_text`` ends a text and begins the first.

    Raises:
        ConfigurationError: For an unknown preset or key, or a context that the model cannot read.
    """
    overrides = own_keys(config.model_overrides)
    base = base_preset(config.model, config.model_overrides)
    decided = [key for key in _DECIDED_BY_TOKENIZER if key in overrides]
    if decided:
        raise ConfigurationError(f"model '{config.model}': '{decided[0]}' is decided by the tokenizer; leave it out")
    if vocab_size is not None and overrides.get("vocab_size", vocab_size) < vocab_size:
        raise ConfigurationError(
            f"model '{config.model}': 'vocab_size' is {overrides['vocab_size']}, the tokenizer has {vocab_size} "
            "pieces; leave vocab_size out, or lower data.trained_vocab_size"
        )
    found = {} if vocab_size is None else {"vocab_size": vocab_size}
    ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    result = preset(base, **{**found, **overrides, **ends})
    check_context(config, result.max_position_embeddings)
    return result
