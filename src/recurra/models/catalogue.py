"""What there is to know of each preset without building it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from recurra.models.accounting import HeadKind, count_parameters, flops_per_token, itemise_parameters
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from recurra.models.presets import preset

BYTES_FULL = 4
BYTES_HALF = 2


def describe_presets(*, num_labels: int = 2, tokens: int = 128) -> list[dict[str, Any]]:
    """Describes all presets as plain JSON values.

    Args:
        num_labels: Classes of the classifier.
        tokens: Length of the sequence over which the operations a token are counted.

    Returns:
        For each preset: ``name``, ``task``, ``description``, ``parameters`` (``total``, ``embeddings``,
        ``non_embedding``, ``parts``, and ``items``, finer), ``flops_per_token`` (of a language model: to the final
        head), ``size_mib`` (of the bare weights, ``fp32`` and ``half``), ``configuration``.
    """
    result = []
    entries = [(HeadKind.CLASSIFICATION, item) for item in PRESETS.items()]
    entries += [(HeadKind.LANGUAGE_MODELLING, item) for item in LANGUAGE_PRESETS.items()]
    for task, (name, (description, shape)) in entries:
        config = preset(name, num_labels=num_labels)
        counts = count_parameters(config, task)
        result.append(
            {
                "name": name,
                "task": str(task),
                "description": description,
                "parameters": {
                    "total": counts.total,
                    "embeddings": counts.embeddings,
                    "non_embedding": counts.non_embedding,
                    "parts": asdict(counts),
                    "items": itemise_parameters(config, task),
                },
                "flops_per_token": flops_per_token(config, tokens, task),
                "size_mib": {"fp32": counts.size_mib(BYTES_FULL), "half": counts.size_mib(BYTES_HALF)},
                "vocab_size": config.vocab_size,
                "num_labels": num_labels,
                "tokens": tokens,
                "configuration": shape,
            }
        )
    return result
