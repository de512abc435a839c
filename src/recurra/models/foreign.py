"""Reading a causal language model from a local folder: ours or any of transformers, never with its code or pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.hub import broken_folder_errors
from recurra.models.folder import CONFIG_NAME, check_sizes, read_model_configuration
from recurra.models.quiet import quiet_loading

_INDEXED = "model.safetensors.index.json"


def load_language_model(folder: Path | str) -> Any:
    """Loads a causal language model in evaluation mode, with eager attention where there is a choice.

    Nothing is fetched, nothing is unpickled, and code that a checkpoint brings along is never run.

    Raises:
        CheckpointError: If it cannot be loaded so.
    """
    folder = Path(folder)
    values = read_model_configuration(folder)
    if not (folder / "model.safetensors").exists() and not (folder / _INDEXED).exists():
        raise CheckpointError(
            f"'{folder}' holds no model.safetensors; pickled weights can run code when they are read and are refused: "
            "convert them where you trust them"
        )
    ours = values.get("model_type") == "recurra"
    if ours:
        check_sizes(folder, values)
    try:
        with quiet_loading():
            model, details = AutoModelForCausalLM.from_pretrained(
                folder,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **({} if ours else {"attn_implementation": "eager"}),
            )
    except ConfigurationError as error:
        raise CheckpointError(f"'{folder / CONFIG_NAME}': {error}") from error
    except broken_folder_errors() as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"'{folder}' is no causal language model that can be loaded without its own code: {first}"
        ) from error
    missing = sorted(details["missing_keys"])
    if missing:
        raise CheckpointError(f"'{folder}' lacks weight '{missing[0]}': not a whole language model; copy it again")
    return model.eval()
