"""A language model with its tokenizer, from a run or any folder of transformers, held against each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.sealed import sealed_model
from recurra.core.terminal import one_line
from recurra.data.language.tokenization import read_language_tokenizer
from recurra.models.controls import holds_linear_model
from recurra.models.folder import read_model_configuration
from recurra.models.inference import PRECISIONS, check_precision, default_device
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.loading import load_language_model


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """What generates.

    Attributes:
        name: The folder, as it was named.
        model: In evaluation mode, on the device.
        tokenizer: Its tokenizer.
    """

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerFast

    @classmethod
    def load(cls, path: Path | str, *, precision: str = "fp32") -> LanguageModel:
        """Reads a run folder or a model folder.

        Args:
            path: A folder of ``recurra train`` (with ``model/``), or any Hugging Face folder with a causal language
                model and a fast tokenizer.
            precision: ``fp32`` or ``bf16``, ``fp16`` on an accelerator.

        Raises:
            CheckpointError: If there is no language model, or it cannot be read without code or pickle.
            ConfigurationError: If there is no tokenizer, or it does not fit the model.
        """
        check_precision(precision)
        folder = model_folder(path)
        linear = holds_linear_model(folder)
        if linear or "SequenceClassification" in str(read_model_configuration(folder).get("architectures")):
            raise CheckpointError(
                f"'{path}' is a classifier, which generates no text; 'recurra predict' labels texts with it"
            )
        tokenizer = read_language_tokenizer(folder) if _has_tokenizer(folder) else None
        if tokenizer is None:
            raise ConfigurationError(f"'{folder}' holds no tokenizer; save it beside the model with save_pretrained")
        model = load_language_model(folder).to(device=default_device(), dtype=PRECISIONS[precision])
        _check_fit(tokenizer, model, folder)
        return cls(str(path), model, tokenizer)

    @property
    def ours(self) -> bool:
        """Whether it is a model of this package, with exits and caches of ours."""
        return isinstance(self.model, RecurraForCausalLM)

    @property
    def context_tokens(self) -> int | None:
        """Longest text, if the model says so."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return int(limit) if limit else None

    def encode(self, prompts: list[str]) -> list[list[int]]:
        """Returns the tokens of prompts.

        Raises:
            ConfigurationError: If one is empty, or leaves no room in the context.
        """
        found = []
        limit = self.context_tokens
        for number, prompt in enumerate(prompts, start=1):
            ids = self.tokenizer(prompt)["input_ids"] if prompt else []
            which = "the prompt" if len(prompts) == 1 else f"prompt {number}"
            if not ids:
                raise ConfigurationError(f"{which} is empty; give at least one word to go on from")
            if limit and len(ids) >= limit:
                raise ConfigurationError(
                    f"{which} has {len(ids):,} tokens; allowed for this model: 1 to {limit - 1:,}, so that one more "
                    "fits the context; shorten it"
                )
            found.append(ids)
        return found


def model_folder(path: Path | str) -> Path:
    """Returns the model folder of a run, or the folder itself.

    Raises:
        CheckpointError: If there is none, or that of a run was changed.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"'{path}' is not a folder; give a run of 'recurra train' or a Hugging Face folder")
    inner = folder / "model"
    return sealed_model(folder) if inner.is_dir() and not (folder / "config.json").exists() else folder


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()


def _check_fit(tokenizer: PreTrainedTokenizerFast, model: Any, folder: Path) -> None:
    known, rows = len(tokenizer), int(model.config.vocab_size)
    # A table may have some rows more, to fill it up to a round number.
    if known > rows or known < rows // 2:
        raise ConfigurationError(
            f"the tokenizer in '{folder}' has {known:,} tokens and the model {rows:,}: they do not belong together; "
            "copy the tokenizer that the model was trained with"
        )
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        named = getattr(model.generation_config, key)
        for each in named if isinstance(named, list) else [] if named is None else [named]:
            # Some say -1 where nothing fills up.
            if type(each) is not int or not (0 <= each < rows or (key, each) == ("pad_token_id", -1)):
                raise ConfigurationError(
                    f"'{folder}': '{key}' of the configuration of generation is {one_line(repr(each), 60)}; "
                    f"the number of a token is needed, below {rows:,}: correct it, or copy the folder again"
                )


def pad_left(rows: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and mask ``(rows, tokens)`` of rows that end together."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
