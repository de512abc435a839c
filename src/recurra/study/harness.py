"""Language models under lm-evaluation-harness, and its command line: ``python -m recurra.study.harness run ...``.

The harness finds a model by name only once its module is imported, and it imports only its own modules.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch

from recurra.core.errors import ConfigurationError, RecurraError, UnavailableError, unknown
from recurra.core.record import RECORD_NAME, read_language_record
from recurra.data.configuration import LanguageDataConfig
from recurra.deployment.generation import LanguageModel
from recurra.models.exits.rules import check_exit
from recurra.models.inference import PRECISIONS, autocast, check_precision, default_device
from recurra.models.quiet import quieten_libraries


def _fail(error: RecurraError) -> int:
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
    return error.exit_code


try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "lm_eval":
        raise
    missing = UnavailableError("lm-evaluation-harness is not installed; pip install 'recurra[harness]'")
    if __name__ == "__main__":
        sys.exit(_fail(missing))
    raise missing from error

_ARGUMENTS = ("pretrained", "exit", "context", "precision", "batch_size", "max_batch_size", "device", "allow_leaks")
_logger = logging.getLogger(__name__)


@register_model("recurra")
class RecurraLM(HFLM):
    """The harness' own model for transformers, which cuts and batches texts, around a language model that we load.

    Weights are read from safetensors only, and code that a checkpoint brings along is never run.

    Args:
        pretrained: A run folder of ``recurra train``, or any Hugging Face folder with a causal language model and a
            fast tokenizer.
        exit: Recurrence whose head is read, in scoring and in generation; None takes the last.
        context: Tokens that are read at once; None takes the run's own, or the longest that the model
            reads.
        precision: Precision of the matrix products; None takes the run's, or FP32.
        batch_size: As in the harness, like ``max_batch_size``.
        device: A torch device; CUDA, the harness' own default, means the CPU where there is no CUDA.
        allow_leaks: Whether a model that reads the future is scored nevertheless.

    Raises:
        CheckpointError: If there is no language model, or it cannot be read without code or pickle.
        ConfigurationError: For a model that leaks, an exit that was not trained, or a value out of range.
    """

    def __init__(
        self,
        pretrained: str | Path,
        *,
        exit: int | None = None,
        context: int | None = None,
        precision: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = 64,
        device: str | None = None,
        allow_leaks: bool = False,
        **other: object,
    ) -> None:
        for name in other:
            raise ConfigurationError(unknown("model argument", name, _ARGUMENTS))
        folder = Path(pretrained)
        record = read_language_record(folder) if (folder / RECORD_NAME).exists() else None
        self.language = LanguageModel.load(folder)
        self.label = str(pretrained) if record is None else record.label
        self.leaks = bool(record and record.leaks) or (self.language.ours and self.language.model.config.leaks)
        if self.leaks:
            warning = f"'{pretrained}' leaks: it reads the tokens that it must predict, so its scores mean nothing"
            if not allow_leaks:
                raise ConfigurationError(f"{warning}; give allow_leaks=True to compute them anyway")
            _logger.warning(warning)
        if exit is not None and not self.language.ours:
            kind = type(self.language.model).__name__
            raise ConfigurationError(f"exit is {exit}, and '{pretrained}' is a {kind}, which has no exits")
        self.options = {} if exit is None else {"exit_after": check_exit(self.language.model.config, exit)}
        limit = self.language.context_tokens
        if context is None and record is not None:
            context = LanguageDataConfig.parse(record.config["data"], source="record").context
        if context is not None and not 1 <= context <= (limit or context):
            raise ConfigurationError(f"context is {context}; allowed for this model: 1 to {limit} tokens")
        self.precision = check_precision(precision or (record.environment.precision if record else "fp32"))
        self.language.model.to(_device(device))
        super().__init__(
            str(pretrained), backend="causal", device=str(self.language.model.device), max_length=context or limit,
            batch_size=batch_size, max_batch_size=max_batch_size, softmax_dtype=torch.float32,
            mixed_precision_dtype=None if self.precision == "fp32" else PRECISIONS[self.precision],
        )  # fmt: skip

    def _get_config(self, *_: object, **__: object) -> None:
        self._config = self.language.model.config

    def _create_tokenizer(self, *_: object, **__: object) -> None:
        self.tokenizer = self.language.tokenizer

    def _create_model(self, *_: object, **__: object) -> None:
        self._model = self.language.model

    def _model_call(self, inps: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        with torch.no_grad(), autocast(self.precision, torch.device(self.device)):
            return self.model(inps, **self.options).logits

    def _model_generate(self, *args: Any, **kwargs: Any) -> Any:
        return super()._model_generate(*args, **kwargs, **self.options)

    def _loglikelihood_tokens(self, requests: list[tuple[Any, list[int], list[int]]], *args: Any, **kwargs: Any) -> Any:
        longest = max((len(after) for _, _, after in requests), default=0)
        if longest > self.max_length:
            raise ConfigurationError(
                f"a continuation has {longest:,} tokens; allowed: 1 to the context, {self.max_length:,}; "
                "score it as a rolling likelihood"
            )
        return super()._loglikelihood_tokens(requests, *args, **kwargs)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continues texts; cuts their beginnings so that the continuation fits the context.

        Raises:
            ConfigurationError: If that leaves no token of a text.
        """
        for request in requests:
            tokens = normalize_gen_kwargs(request.args[1], self.max_gen_toks)["max_gen_toks"]
            if not 1 <= tokens < self.max_length:
                raise ConfigurationError(
                    f"max_gen_toks is {tokens}, and {self.max_length} tokens are read at once; allowed: 1 to "
                    f"{self.max_length - 1}, so that part of the text is read; give --gen_kwargs max_gen_toks=N"
                )
        return super().generate_until(requests, disable_tqdm)

    def get_model_info(self) -> dict[str, Any]:
        """Model facts that the harness adds to its results."""
        size = self.language.model.num_parameters()
        settings = {"exit": self.options.get("exit_after"), "context": self.max_length, "precision": self.precision}
        return {"model_name": self.label, "model_num_parameters": size, "leaks": self.leaks, **settings}


def _device(name: str | None) -> torch.device:
    try:
        device = default_device() if name is None else torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device is '{name}'; allowed: devices of torch, such as cpu or cuda:0") from error
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


def main() -> int:
    """Runs the harness' command line on this process's arguments; an unusable model is reported in one line."""
    from lm_eval.__main__ import cli_evaluate

    quieten_libraries()
    try:
        cli_evaluate()
    except RecurraError as error:
        return _fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
