"""A causal language model of ours, or any of transformers in a local folder, as a model of lm-evaluation-harness."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from recurra.core.errors import ConfigurationError, unknown
from recurra.core.record import RECORD_NAME, read_language_record
from recurra.data.language.configuration import LanguageDataConfig
from recurra.deployment.language_model import LanguageModel
from recurra.evaluation.positions import Window, cut_full_windows, scoring_windows
from recurra.evaluation.scoring import BATCH_POSITIONS, FINAL, TokenScores, score_windows
from recurra.models.exits.rule import check_exit
from recurra.models.inference import check_precision, default_device
from recurra.study.harness.generation import go_on

_ARGUMENTS = ("pretrained", "exit", "context", "stride", "precision", "batch_size", "device", "allow_leaks")
_GENERATED_TOGETHER = 8
_logger = logging.getLogger(__name__)


@register_model("recurra")
class RecurraLM(TemplateLM):
    """A language model that the harness can score and let generate.

    Weights are read from safetensors only, and code that a checkpoint brings along is never run.

    Args:
        pretrained: A run folder of ``recurra train``, or any Hugging Face folder with a causal language model and a
            fast tokenizer.
        exit: Recurrence whose head speaks, in scoring and in generation; none takes the last.
        context: Tokens that are read at once; none takes what the run was trained with, or the longest that the model
            reads.
        stride: For a rolling likelihood, tokens from one window to the next, as ``recurra evaluate --stride`` cuts
            them; ``stride`` equal to the context gives its blocks. None cuts as the harness does for other models:
            blocks, of which the last reaches back to a whole context.
        precision: Precision of the matrix products in scoring; none takes the run's, or FP32. Text is generated in
            FP32.
        batch_size: Sequences of a whole context that are scored at once, and texts that are generated together; none or
            ``auto`` scores 2,048 positions at once.
        device: A device of torch; CUDA where there is none, the harness' own default, means the CPU.
        allow_leaks: Whether a model that reads the future is scored nevertheless.
        other: Nothing; whatever is given is refused by name.

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
        stride: int | None = None,
        precision: str | None = None,
        batch_size: int | str | None = None,
        device: str | None = None,
        allow_leaks: bool = False,
        **other: object,
    ) -> None:
        super().__init__()
        _refuse(other)
        folder = Path(pretrained)
        record = read_language_record(folder) if (folder / RECORD_NAME).exists() else None
        self.language = LanguageModel.load(folder)
        self.label = str(pretrained) if record is None else record.label
        self.leaks = bool(record is not None and record.leaks) or self._leaks_by_shape
        if self.leaks and not allow_leaks:
            raise ConfigurationError(
                f"'{pretrained}' leaks: its predictions read what they are to predict, so its scores mean nothing; "
                "give allow_leaks=True to look at them all the same"
            )
        if self.leaks:
            _logger.warning("%s leaks: its predictions read what they are to predict; its scores mean nothing", folder)
        self.exit = self._checked_exit(exit)
        trained = None if record is None else LanguageDataConfig.parse(record.config["data"], source="record").context
        self._context = self._checked_context(context, trained)
        self.stride = _whole("stride", stride)
        if self.stride is not None and self.stride > self._context:
            raise ConfigurationError(f"stride {stride} is impossible; allowed: 1 to the context, {self._context}")
        recorded = "fp32" if record is None else record.environment.precision
        self.precision = check_precision(precision or recorded)
        self.batch_size = _whole("batch_size", None if batch_size == "auto" else batch_size)
        self._device = _device(device)
        self.language.model.to(self._device)

    @property
    def tokenizer(self) -> Any:
        """The model's own."""
        return self.language.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """What the harness tells cached requests apart by."""
        return self.language.name

    @property
    def eot_token_id(self) -> int:
        """End-of-text, which is also read before the first token of a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def max_length(self) -> int:
        """Tokens that are read at once."""
        return self._context

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Returns a text's tokens; special ones are added if the tokenizer does so, unless told."""
        asked = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer(string, **asked)["input_ids"]) if string else []

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of whole texts, each from end-of-text on, every token once."""
        strings = [request.args[0] for request in requests]
        texts = [np.array(self.tok_encode(string), dtype=np.int64) for string in strings]
        lengths = [len(text) for text in texts]
        windows = cut_full_windows(lengths, self._context)
        if self.stride is not None:
            windows = scoring_windows(lengths, self._context, self.stride)
        scores = self._score(texts, list(windows), disable_tqdm=disable_tqdm)
        ends = np.cumsum(lengths, dtype=np.int64)
        found = [-math.fsum(part.tolist()) for part in np.split(scores.nats, ends[:-1])] if texts else []
        for string, value in zip(strings, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (string,), value)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: object
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of continuations, and whether each token of one is the most probable; cut on the left."""
        texts, windows = [], []
        for number, (_text, before, after) in enumerate(requests):
            if len(after) > self._context:
                raise ConfigurationError(
                    f"a continuation has {len(after):,} tokens; allowed: 1 to the context, {self._context:,}; "
                    "score it as a rolling likelihood"
                )
            tokens = np.array([*before, *after], dtype=np.int64)
            texts.append(tokens)
            if after:
                # The first token of a context is only read, as end-of-text is before a whole text.
                start = max(1, len(tokens) - self._context)
                windows.append(Window(number, start, len(before), len(tokens)))
        scores = self._score(texts, windows, greedy=True, disable_tqdm=disable_tqdm)
        found, end = [], 0
        for (strings, before, _after), tokens in zip(requests, texts, strict=True):
            start, end = end, end + len(tokens)
            part = slice(start + len(before), end)
            said = scores.greedy is not None and bool(scores.greedy[part].all())
            found.append((-math.fsum(scores.nats[part].tolist()), said))
            self.cache_hook.add_partial("loglikelihood", strings, found[-1])
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns how texts go on, each up to its stop sequences; contexts are cut on the left to leave room."""
        found: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(index)
        with _bar(len(requests), "generating", disable_tqdm) as tell:
            for indices in groups.values():
                rows = [self.tok_encode(requests[index].args[0]) or [self.eot_token_id] for index in indices]
                texts = go_on(
                    self.language,
                    rows,
                    requests[indices[0]].args[1],
                    context=self._context,
                    exit=self.exit,
                    together=self.batch_size or _GENERATED_TOGETHER,
                    progress=tell,
                )
                found.update(zip(indices, texts, strict=True))
        for index, request in enumerate(requests):
            self.cache_hook.add_partial("generate_until", request.args, found[index])
        return [found[index] for index in range(len(requests))]

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes into its results beside them."""
        return {
            "model_name": self.label,
            "model_num_parameters": self.language.model.num_parameters(),
            "leaks": self.leaks,
            "exit": self.exit,
            "context": self._context,
            "stride": self.stride,
            "precision": self.precision,
        }

    def _score(
        self,
        texts: Sequence[Any],
        windows: Sequence[Window],
        *,
        greedy: bool = False,
        disable_tqdm: bool,
    ) -> TokenScores:
        with _bar(len(windows), "scoring", disable_tqdm) as tell:
            found = score_windows(
                self.language.model,
                texts,
                windows,
                first_read=self.prefix_token_id,
                batch_positions=BATCH_POSITIONS if self.batch_size is None else self.batch_size * self._context,
                precision=self.precision,
                greedy=greedy,
                options=None if self.exit is None else {"exit_after": self.exit},
                progress=tell,
            )
        return found[FINAL]

    @property
    def _leaks_by_shape(self) -> bool:
        return self.language.ours and bool(self.language.model.config.leaks)

    def _checked_exit(self, exit: int | None) -> int | None:
        number = _whole("exit", exit)
        if number is None:
            return None
        if not self.language.ours:
            kind = type(self.language.model).__name__
            raise ConfigurationError(f"exit is {exit}, and '{self.language.name}' is a {kind}, which has no exits")
        return check_exit(self.language.model.config, number)

    def _checked_context(self, asked: int | None, trained: int | None) -> int:
        limit = self.language.context_tokens
        context = _whole("context", asked) or trained or limit
        if context is None:
            raise ConfigurationError(f"'{self.language.name}' does not say how much it can read; give context=TOKENS")
        if limit and context > limit:
            raise ConfigurationError(f"context is {context}; allowed for this model: 1 to {limit} tokens")
        return context


def _refuse(other: Mapping[str, object]) -> None:
    """Refuses model arguments that would do nothing.

    Raises:
        ConfigurationError: If there is one.
    """
    if "trust_remote_code" in other:
        raise ConfigurationError(
            "trust_remote_code is not there: code that a checkpoint brings along is never run; leave it out"
        )
    for name in other:
        raise ConfigurationError(unknown("model argument", name, _ARGUMENTS))


def _whole(name: str, value: int | str | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        raise ConfigurationError(f"{name} is {value!r}; allowed: whole numbers from 1")
    return int(value)


def _device(name: str | None) -> torch.device:
    try:
        device = default_device() if name is None else torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device is '{name}'; allowed: what torch knows, for example cpu or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        _logger.info("there is no CUDA here: %s is computed on the CPU", name)
        return torch.device("cpu")
    return device


@contextmanager
def _bar(total: int, doing: str, disable: bool) -> Iterator[Callable[[int], object]]:
    with tqdm(total=total, desc=f"recurra: {doing}", disable=disable) as bar:
        yield bar.update
