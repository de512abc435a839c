"""From what a person writes on a command line to the text that a language model is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.tokenization import TRAINED, default_language_tokenizer
from recurra.models.names import LANGUAGE_PRESETS
from recurra.study.spec import resolve_model
from recurra.study.tasks import base_preset

# A preset with this table is meant for GPT-2's tokenizer, the others for one trained on the corpus.
_GPT2_VOCABULARY = 50257


def configure_text(
    name: str,
    options: Mapping[str, Any],
    assigned: Mapping[str, Any],
    data_root: Path | None,
    *,
    model: str,
    model_keys: Mapping[str, Any],
) -> tuple[LanguageDataConfig, str]:
    """Builds the configuration of running text; what is not named follows from the model: context and tokenizer.

    Args:
        name: A corpus or a file.
        options: Values of options; None means that the option was not given.
        assigned: Values of ``data.KEY=VALUE``; they win over the options.
        data_root: Local copies of public data.
        model: Preset or model file that is to be trained.
        model_keys: Values of ``model.KEY=VALUE``.

    Returns:
        The configuration, and a sentence on what was chosen, empty if nothing was.

    Raises:
        ConfigurationError: For an unknown model or key, or an impossible value.
    """
    label, file_keys = resolve_model(model)
    keys = {**file_keys, **model_keys}
    shape = {**LANGUAGE_PRESETS.get(base_preset(label, keys), ("", {}))[1], **keys}
    values = {key: value for key, value in options.items() if value is not None}
    values |= {"name": name, **assigned}
    chosen = {}
    if "tokenizer" not in values:
        if shape.get("vocab_size", _GPT2_VOCABULARY) == _GPT2_VOCABULARY:
            chosen["tokenizer"] = default_language_tokenizer(name, data_root)
        else:
            chosen["tokenizer"] = TRAINED
            values.setdefault("trained_vocab_size", shape["vocab_size"])
    if "context" not in values and "max_position_embeddings" in shape:
        chosen["context"] = shape["max_position_embeddings"]
    said = ", ".join(f"{key}: {value}" for key, value in chosen.items())
    config = LanguageDataConfig.parse({**values, **chosen}, source="data")
    return config, f"{said} (choose with data.KEY=VALUE)" if said else ""
