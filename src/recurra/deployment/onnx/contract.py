"""What the ONNX graph takes and gives, and which models it is written for. Imports neither onnx nor torch."""

from __future__ import annotations

from recurra.core.errors import ConfigurationError
from recurra.models.names import FOREIGN_MODEL_TYPE

MODEL_NAME = "model.onnx"
INPUT_IDS = "input_ids"
MASK = "attention_mask"
RECURRENCES = "num_recurrences"
CONFIDENCES = "exit_confidences"
ENTROPIES = "exit_entropies"
LOGITS = "logits"
EXITED_AFTER = "exited_after"
EXIT_LOGITS = "exit_logits"
# What a static model takes, and one of n-grams.
PIECES, WORDS, CHARACTERS = "pieces", "words", "characters"

# What the graph is written for; a classifier of another kind is exported as safetensors.
_WRITTEN: dict[str, tuple[object, ...]] = {
    "norm": ("rms", "layer"),
    "attention_bias": (True,),
    "embedding_norm": (True,),
    "embedding_cycles": (0,),
}


def is_foreign(config: object) -> bool:
    """Whether a classifier's layers are transformers' own."""
    return getattr(config, "model_type", "") == FOREIGN_MODEL_TYPE


def check_writable(config: object) -> None:
    """Refuses a model that the graph is not written for.

    Args:
        config: The model's configuration, a `recurra.models.configuration.RecurraConfig`.

    Raises:
        ConfigurationError: Naming the key, its value, and what is allowed.
    """
    for key, written in _WRITTEN.items():
        if (value := getattr(config, key)) not in written:
            allowed = " and ".join(map(repr, written))
            raise ConfigurationError(
                f"'{key}' of the model is {value!r}; the ONNX graph is written for {allowed} alone; "
                "take --format safetensors"
            )
