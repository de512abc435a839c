"""A language model with its tokenizer, from a run or any folder of transformers, and how it continues prompts."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast, TextStreamer

from recurra.core.errors import CheckpointError, ConfigurationError, no_numbers
from recurra.core.sealed import MODEL_NAME, sealed_model
from recurra.core.terminal import one_line
from recurra.data.language.tokenization import read_language_tokenizer
from recurra.models.cache import CACHE, RecurraCache
from recurra.models.controls import holds_linear_model
from recurra.models.exits.rules import ExitRule, FixedExit
from recurra.models.folder import read_model_configuration
from recurra.models.inference import PRECISIONS, check_precision, default_device
from recurra.models.language_modeling import RecurraForCausalLM
from recurra.models.layers import Cycle, without_modules
from recurra.models.loading import load_language_model

# Tokens that an exit drafts before all recurrences check them.
DRAFTED = 3


class _WithoutOneDNN:
    """Switches oneDNN off while any thread decodes; the switch affects the whole process."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.backends.mkldnn.enabled
                torch.backends.mkldnn.enabled = False
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.mkldnn.enabled = self._before


_WITHOUT_ONEDNN = _WithoutOneDNN()


@contextlib.contextmanager
def decoding(model: nn.Module) -> Iterator[None]:
    """Makes FP32 passes over a few tokens faster on a processor: CRT models generate 1.4 to 1.5 times as fast.

    Weights are stored column by column, which products of few rows read faster, and stay so. A head that shares the
    token table stays as it is: lookups would take longer, and transformers could not save the model. oneDNN is
    switched off for the whole process, because for GELU its start takes five times as long as the work.
    """
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in model.parameters()):
        yield
        return
    cycles = [module for module in model.modules() if isinstance(module, Cycle)]
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.inference_mode(False), torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and id(module.weight) not in tables:
                module.weight.data = module.weight.data.t().contiguous().t()
    for cycle in cycles:
        cycle.quick = without_modules(cycle)
    try:
        with _WITHOUT_ONEDNN:
            yield
    finally:
        for cycle in cycles:
            cycle.quick = None


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model that generates text, and its tokenizer."""

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerFast

    @classmethod
    def load(cls, path: Path | str, *, precision: str = "fp32") -> LanguageModel:
        """Reads a run folder or a model folder.

        Raises:
            CheckpointError: If there is no language model, or it cannot be read without code or pickle.
            ConfigurationError: If there is no tokenizer, or it does not fit the model.
        """
        check_precision(precision)
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"'{path}' is not a folder; give a run of 'recurra train' or a Hugging Face folder")
        if (folder / MODEL_NAME).is_dir() and not (folder / "config.json").exists():
            folder = sealed_model(folder)
        linear = holds_linear_model(folder)
        if linear or "SequenceClassification" in str(read_model_configuration(folder).get("architectures")):
            raise CheckpointError(
                f"'{path}' is a classifier, which generates no text; use 'recurra predict' to label texts with it"
            )
        if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
            raise ConfigurationError(f"'{folder}' holds no tokenizer; save it beside the model with save_pretrained")
        tokenizer = read_language_tokenizer(folder)
        model = load_language_model(folder).to(device=default_device(), dtype=PRECISIONS[precision])
        _check_fit(tokenizer, model, folder)
        return cls(str(path), model, tokenizer)

    @property
    def ours(self) -> bool:
        """Whether it is a model of this package, with our exits and cache."""
        return isinstance(self.model, RecurraForCausalLM)

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of a text, if the model's configuration limits them."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return int(limit) if limit else None

    def encode(self, prompts: list[str]) -> list[list[int]]:
        """Returns the tokens of prompts; raises if one is empty, or leaves no room in the context."""
        rows = []
        limit = self.context_tokens
        for position, prompt in enumerate(prompts, start=1):
            ids = self.tokenizer(prompt)["input_ids"] if prompt else []
            name = "the prompt" if len(prompts) == 1 else f"prompt {position}"
            if not ids:
                raise ConfigurationError(f"{name} is empty; give at least one word to continue")
            if limit and len(ids) >= limit:
                raise ConfigurationError(
                    f"{name} has {len(ids):,} tokens; allowed for this model: 1 to {limit - 1:,}, so that one more "
                    "fits the context; shorten it"
                )
            rows.append(ids)
        return rows


def _check_fit(tokenizer: PreTrainedTokenizerFast, model: Any, folder: Path) -> None:
    tokens, rows = len(tokenizer), int(model.config.vocab_size)
    # A table may have more rows than the tokenizer has tokens, to reach a round number.
    if tokens > rows or tokens < rows // 2:
        raise ConfigurationError(
            f"the tokenizer in '{folder}' has {tokens:,} tokens and the model {rows:,}: they do not belong together; "
            "copy the tokenizer that the model was trained with"
        )
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token_ids = getattr(model.generation_config, key)
        for token in token_ids if isinstance(token_ids, list) else [] if token_ids is None else [token_ids]:
            # Some models have -1 for "no padding token".
            if type(token) is not int or not (0 <= token < rows or (key, token) == ("pad_token_id", -1)):
                raise ConfigurationError(
                    f"'{folder}': '{key}' of the generation configuration is {one_line(repr(token), 60)}; it must be "
                    f"a token number below {rows:,}: correct it, or copy the folder again"
                )


@dataclass(frozen=True)
class GenerationSettings:
    """How text is generated.

    Attributes:
        temperature: Divides the logits before tokens are drawn; 0 takes the most probable token, and so does none if
            neither ``top_p`` nor ``top_k`` is given.
        top_p: Draw from the most probable tokens whose probabilities sum to this share.
        draft: Recurrence after which an exit drafts tokens, which all recurrences then check; none drafts nothing.

    Raises:
        ConfigurationError: For a value out of range, or values that exclude each other.
    """

    max_new_tokens: int = 64
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    num_beams: int = 1
    seed: int = 0
    rule: ExitRule | None = None
    draft: int | None = None

    def __post_init__(self) -> None:
        if self.draft is not None and (self.draws or self.num_beams > 1 or self.rule):
            raise ConfigurationError(
                "drafts always take the most probable token; leave temperature, top_p, top_k, beams and exit rules out"
            )
        if self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigurationError(f"temperature is {self.temperature:g}; allowed: 0 (most probable token) or above")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p is {self.top_p:g}; allowed: above 0, at most 1")
        if self.num_beams > 1 and self.draws:
            raise ConfigurationError("beams take the most probable texts; leave temperature, top_p and top_k out")
        if self.temperature == 0 and (self.top_p is not None or self.top_k is not None):
            raise ConfigurationError("temperature 0 takes the most probable token; leave top_p and top_k out")

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn."""
        if self.temperature is None:
            return self.top_p is not None or self.top_k is not None
        return self.temperature > 0

    def arguments(self) -> dict[str, Any]:
        """Arguments for transformers' ``generate``."""
        # All are given, because a model folder may have settings of its own.
        arguments: dict[str, Any] = {"do_sample": self.draws, "num_beams": self.num_beams}
        if not self.draws:
            return {**arguments, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
        return {
            **arguments, "temperature": self.temperature or 1.0, "top_p": self.top_p or 1.0, "top_k": self.top_k or 0,
        }  # fmt: skip


@dataclass(frozen=True)
class Generated:
    """A prompt and its continuation."""

    prompt: str
    text: str
    tokens: int
    ended: bool


@dataclass
class GenerationFigures:
    """Cost of generation: seconds including reading the prompts, and bytes of cache per token of one row.

    ``exits`` counts decoded tokens by the recurrences that they took, those of rows that ended early included. The
    first token of a text comes from its prompt and is not counted, unless the prompt is one token.
    ``drafted`` counts tokens that an exit drafted, ``accepted`` those that all recurrences agreed with.
    """

    tokens: int = 0
    wall_s: float = 0.0
    cache_bytes_per_token: float | None = None
    exits: Counter[int] = field(default_factory=Counter)
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second."""
        return self.tokens / self.wall_s if self.wall_s else 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "tokens": self.tokens,
            "wall_s": self.wall_s,
            "tokens_per_second": self.tokens_per_second,
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "exits": {str(number): count for number, count in sorted(self.exits.items())},
            "drafted": self.drafted,
            "accepted": self.accepted,
        }


class Generator:
    """Continues prompts.

    Raises:
        ConfigurationError: If the model cannot generate: it leaks, lacks the exit, or is not ours and so has no exits.
    """

    def __init__(self, language: LanguageModel, settings: GenerationSettings) -> None:
        self.language = language
        self.settings = settings
        self.figures = GenerationFigures()
        model, description = language.model, f"'{language.name}' is a {type(language.model).__name__}"
        if language.ours:
            model.check_generates()
            if settings.rule is not None:
                settings.rule.check(model.config, model.config.vocab_size)
            if settings.draft is not None:
                FixedExit(settings.draft).check(model.config, model.config.vocab_size)
        elif settings.rule is not None or settings.draft is not None:
            requirement = "an exit rule needs" if settings.draft is None else "drafts need"
            raise ConfigurationError(f"{requirement} a model with exits; {description}")
        torch.manual_seed(settings.seed)

    def run(
        self, prompts: list[str], *, batch_size: int = 8, write: Callable[[str], None] | None = None
    ) -> Iterator[Generated]:
        """Continues prompts, in their order; ``write``, for a single prompt without beams, gets its growing text."""
        rows, tokenizer = self.language.encode(prompts), self.language.tokenizer
        streamer = None if write is None else _Streamer(tokenizer, write)
        for first in range(0, len(rows), batch_size):
            part = slice(first, first + batch_size)
            for prompt, tokens in zip(prompts[part], self.extend(rows[part], streamer), strict=True):
                ended = tokenizer.eos_token_id in tokens
                remaining = tokens[: tokens.index(tokenizer.eos_token_id)] if ended else tokens
                self.figures.tokens += len(remaining) + ended
                text = tokenizer.decode(remaining, clean_up_tokenization_spaces=False)
                yield Generated(prompt, text, len(remaining), ended)

    @torch.inference_mode()
    def extend(self, rows: list[list[int]], streamer: _Streamer | None = None) -> list[list[int]]:
        """Continues rows of tokens as one batch; raises `RunError` if the model's scores are not numbers."""
        model, tokenizer, settings = self.language.model, self.language.tokenizer, self.settings
        if settings.draft is not None:
            with decoding(model):
                return [self._drafted(row, settings.draft, streamer) for row in rows]
        tokens = [torch.tensor(row, device=model.device) for row in rows]
        ids = pad_sequence(tokens, batch_first=True, padding_value=tokenizer.eos_token_id, padding_side="left")
        present = [torch.ones_like(row) for row in tokens]
        width = ids.shape[1]
        arguments: dict[str, Any] = {
            **settings.arguments(),
            "input_ids": ids,
            "attention_mask": pad_sequence(present, batch_first=True, padding_side="left"),
            "use_cache": True,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.eos_token_id,
            "return_dict_in_generate": True,
            "streamer": streamer,
            "max_new_tokens": self._room(width),
            "logits_processor": LogitsProcessorList([_OnlyNumbers(draws=settings.draws)]),
        }
        if len(tokenizer) < model.config.vocab_size:
            arguments["suppress_tokens"] = list(range(len(tokenizer), model.config.vocab_size))
        if settings.rule is not None:
            arguments["exit_rule"] = settings.rule
        with decoding(model):
            start = time.perf_counter()
            output = model.generate(**arguments)
            continuations: list[list[int]] = output.sequences[:, width:].tolist()
            self.figures.wall_s += time.perf_counter() - start
        self._note(getattr(output, CACHE), len(rows) * settings.num_beams)
        return continuations

    def _room(self, width: int) -> int:
        """How many new tokens may follow ``width`` tokens."""
        most_new, limit = self.settings.max_new_tokens, self.language.context_tokens
        return most_new if limit is None else min(most_new, limit - width)

    def _drafted(self, row: list[int], exit_after: int, streamer: _Streamer | None) -> list[int]:
        """The most probable tokens: an exit drafts some, and one pass of all recurrences checks how many are right.

        Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with the model's own exit as
        the draft (Elhoushi et al. 2024, "LayerSkip", section 4.3). Checking passes read several tokens at once, so sums
        are rounded differently than token by token.
        """
        model, end = self.language.model, self.language.tokenizer.eos_token_id
        most_tokens, cache = self._room(len(row)), RecurraCache(model.config)

        def most_probable(tokens: list[int], *, last: int, exit_after: int | None = None) -> list[int]:
            ids = torch.tensor([tokens], device=model.device)
            output = model(ids, past_key_values=cache, exit_after=exit_after, logits_to_keep=last)
            scores = output.logits[0, :, : len(self.language.tokenizer)]
            _check_numbers(scores.amax(-1))
            return list(scores.argmax(-1).tolist())

        start = time.perf_counter()
        _put(streamer, row)
        tokens_so_far = most_probable(row, last=1)
        cache.allow_taking_back()
        _put(streamer, tokens_so_far)
        while len(tokens_so_far) < most_tokens and tokens_so_far[-1] != end:
            mark, drafts = cache.mark(), list[int]()
            while len(drafts) < min(DRAFTED, most_tokens - len(tokens_so_far) - 1) and end not in drafts:
                drafts += most_probable((drafts or tokens_so_far)[-1:], last=1, exit_after=exit_after)
            cache.restore(mark)
            verified = most_probable([tokens_so_far[-1], *drafts], last=0)
            num_right = next((index for index, draft in enumerate(drafts) if verified[index] != draft), len(drafts))
            cache.keep(num_right + 1, mark)
            accepted = verified[: num_right + 1]
            accepted = accepted[: accepted.index(end) + 1] if end in accepted else accepted
            _put(streamer, accepted)
            tokens_so_far += accepted
            self.figures.drafted += len(drafts)
            self.figures.accepted += num_right
        self.figures.wall_s += time.perf_counter() - start
        self._note(cache, 1)
        if streamer is not None:
            streamer.end()
        return tokens_so_far

    def _note(self, cache: Any, rows: int) -> None:
        if cache is None:
            return
        if isinstance(cache, RecurraCache):
            self.figures.exits.update(cache.exit_counts)
        layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
        cache_bytes = sum(part.numel() * part.element_size() for layer in layers for part in (layer.keys, layer.values))
        tokens = cache.get_seq_length()
        if tokens:
            self.figures.cache_bytes_per_token = cache_bytes / tokens / rows


class _OnlyNumbers(LogitsProcessor):
    """Refuses scores that are not numbers: the first token would then be taken as the most probable one.

    Where tokens are drawn, scores are shifted so that the largest is 0. This changes no probability, and keeps scores
    divided by a low temperature from overflowing.
    """

    def __init__(self, *, draws: bool) -> None:
        self._draws = draws

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:  # noqa: ARG002
        # The largest score is NaN if any is; -inf is allowed: a forbidden token, or an unused beam.
        largest = scores.amax(-1, keepdim=True)
        _check_numbers(largest)
        return cast("torch.FloatTensor", scores - largest) if self._draws else scores


def _check_numbers(largest: torch.Tensor) -> None:
    if not largest.isfinite().all():
        raise no_numbers()


def _put(streamer: TextStreamer | None, tokens: list[int]) -> None:
    """Passes tokens to the streamer one by one, as ``generate`` does."""
    if streamer is not None:
        for token in tokens:
            streamer.put(torch.tensor([token]))


class _Streamer(TextStreamer):
    """Passes on text as soon as its words are complete."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        self._write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Passes the text on."""
        self._write(f"{text}\n" if stream_end else text)
