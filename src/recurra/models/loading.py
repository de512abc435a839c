"""Reads models from local folders, without pickles and without code of their own; defects raise a one-line error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.files import pickles_in
from recurra.core.hub import broken_folder_errors
from recurra.models.adaptation.source import EncoderSource, encoder_shape
from recurra.models.configuration import RecurraConfig
from recurra.models.folder import CONFIG_NAME, WEIGHTS_NAME, check_sizes, read_model_configuration
from recurra.models.foreign import ForeignForSequenceClassification
from recurra.models.modeling import RecurraForSequenceClassification
from recurra.models.names import FOREIGN_MODEL_TYPE
from recurra.models.quiet import quiet_loading

_INDEXED = "model.safetensors.index.json"


def load_classifier_model(folder: Path | str) -> Any:
    """Loads the classifier of a model folder (ours, or over an encoder of another family) in evaluation mode."""
    folder = Path(folder)
    model_class, weights = _check_configuration(folder), folder / WEIGHTS_NAME
    if not weights.exists():
        pickles = pickles_in(folder)
        if pickles:
            raise CheckpointError(
                f"'{folder}' holds '{pickles[0]}', a pickle, which can run code when it is read and is refused; "
                f"convert it to {WEIGHTS_NAME} where you trust it"
            )
        raise CheckpointError(f"'{weights}' is missing; the model folder is incomplete; train or copy it again")
    try:
        with safe_open(weights, framework="pt") as handle:
            present = set(handle.keys())
    except SafetensorError as error:
        raise CheckpointError(
            f"'{weights}' is an incomplete or damaged safetensors file ({error}): truncated, "
            "or a pickle under that name; copy it again"
        ) from error
    # Other shapes are still refused: `_check_weights` names the weight instead of pointing at a log.
    refusal = "cannot be loaded; copy or train it again"
    model, details = read_pretrained(model_class, folder, refusal, ignore_mismatched_sizes=True)
    _check_weights(weights, model, details, present)
    return model.eval()


def load_language_model(folder: Path | str) -> Any:
    """Loads a causal language model, ours or one of transformers, for evaluation; the latter with eager attention."""
    folder = Path(folder)
    values = read_model_configuration(folder)
    if not (folder / WEIGHTS_NAME).exists() and not (folder / _INDEXED).exists():
        raise CheckpointError(
            f"'{folder}' holds no {WEIGHTS_NAME}; pickled weights can run code when they are read and are refused: "
            "convert them where you trust them"
        )
    ours = values.get("model_type") == RecurraConfig.model_type
    if ours:
        check_sizes(folder, values)
    attention = {} if ours else {"attn_implementation": "eager"}
    model, details = read_pretrained(
        AutoModelForCausalLM, folder, "is no causal language model that can be loaded without its own code", **attention
    )
    if missing := sorted(details["missing_keys"]):
        raise CheckpointError(f"'{folder}' lacks weight '{missing[0]}': not a whole language model; copy it again")
    return model.eval()


def read_pretrained(model_class: Any, folder: Path, refusal: str, **options: object) -> tuple[Any, dict[str, Any]]:
    """Reads a model by ``from_pretrained``; it fetches nothing, unpickles nothing and runs no code of a checkpoint."""
    try:
        with quiet_loading():
            model, details = model_class.from_pretrained(
                folder,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
    except ConfigurationError as error:
        raise CheckpointError(f"'{folder / CONFIG_NAME}': {error}") from error
    except broken_folder_errors() as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"'{folder}' {refusal}: {first}") from error
    return model, details


def load_foreign_weights(model: ForeignForSequenceClassification, source: EncoderSource) -> None:
    """Loads the pretrained weights of an encoder of another family into a classifier over it."""
    refusal = "is no encoder that transformers can read without code of its own"
    pretrained, details = read_pretrained(AutoModel, source.folder, refusal, dtype=torch.float32)
    missing = sorted(name for name in details["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise CheckpointError(f"'{source.weights}' lacks weight '{missing[0]}': not a whole encoder; copy it again")
    names = model.model.state_dict().keys()
    model.model.load_state_dict({name: part for name, part in pretrained.state_dict().items() if name in names})


def _check_configuration(folder: Path) -> type[PreTrainedModel]:
    path = folder / CONFIG_NAME
    if not folder.is_dir() or not path.exists():
        raise CheckpointError(f"'{folder}' is not a model folder: no config.json; give RUN/model of a finished run")
    values = read_model_configuration(folder)
    kind = values.get("model_type")
    if kind == FOREIGN_MODEL_TYPE and isinstance(values.get("encoder"), dict):
        check_sizes(folder, {**values, **encoder_shape(values["encoder"])})
        return ForeignForSequenceClassification
    if kind != RecurraConfig.model_type:
        raise CheckpointError(f"'{path}' is of model type '{kind}'; a model of ours has type 'recurra'")
    check_sizes(folder, values)
    return RecurraForSequenceClassification


def _check_weights(weights: Path, model: PreTrainedModel, details: dict[str, Any], present: set[str]) -> None:
    expected = set(model.state_dict())
    shapes = {
        name: f" ({tuple(actual)} instead of {tuple(wanted)})" for name, actual, wanted in details["mismatched_keys"]
    }
    for problem, names in (
        ("has another shape of", sorted(shapes)),
        ("lacks", sorted(set(details["missing_keys"]) | (expected - present))),
        ("has the unknown", sorted(details["unexpected_keys"])),
    ):
        if names:
            raise CheckpointError(
                f"'{weights}' {problem} weight '{names[0]}'{shapes.get(names[0], '')}: "
                "not a checkpoint of this configuration; copy or train it again"
            )
