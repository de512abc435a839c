"""Engines that compute logits with torch: for Transformers of runs, and of safetensors exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from recurra.core.errors import CheckpointError
from recurra.data.batching import sorted_batches
from recurra.data.cleaning import clean_texts
from recurra.data.encoding import are_cut, encode_texts, encode_windows
from recurra.data.tokenization import read_tokenizer, tokenizer_from_folder
from recurra.data.windows import pool_windows
from recurra.deployment.engines.computation import (
    TOKENS_A_ROW,
    Computation,
    Depth,
    Engine,
    Integers,
    Logits,
    budget_batches,
    compute_precision,
    padded_ids,
)
from recurra.models.controls import STATES_TOKENS
from recurra.models.exits.rules import ExitRule
from recurra.models.folder import WEIGHTS_NAME, read_model_configuration
from recurra.models.heads import pool
from recurra.models.inference import (
    PRECISIONS,
    check_precision,
    compute_rows,
    default_device,
    imitates_bf16,
    predict_logits,
)
from recurra.models.loading import load_classifier_model, read_pretrained

if TYPE_CHECKING:
    from recurra.models.controls.linear import LinearModel

Batch = tuple[Integers, Mapping[str, torch.Tensor]]

# Packed rows are filled up to few sizes: multiples of an eighth of a batch, and powers of two from this number.
_LEAST_TOKENS = 16
_ROWS_STEP = 32


@dataclass(frozen=True, eq=False)
class FlatRows:
    """Tokenised rows laid end to end: row ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``."""

    input_ids: npt.NDArray[np.int32]
    offsets: Integers
    pad: int

    @property
    def lengths(self) -> Integers:
        """Tokens of each row."""
        return np.diff(self.offsets)

    def padded(self, batch_size: int) -> Iterator[Batch]:
        """Yields batches of rows of similar length, the longest first; a batch without padding has no mask."""
        lengths = self.lengths
        for rows in sorted_batches(lengths, batch_size):
            ids, real = padded_ids(self.input_ids, self.offsets[rows], lengths[rows], self.pad)
            inputs = {"input_ids": torch.from_numpy(ids)}
            if not real.all():
                inputs["attention_mask"] = torch.from_numpy(real)
            yield rows, inputs

    def packed(self, batch_size: int, *, few_sizes: bool) -> Iterator[Batch]:
        """Yields batches of ``batch_size * TOKENS_A_ROW`` tokens of packed rows, the longest first.

        With ``few_sizes`` they are filled up to one of a dozen sizes. Half precision needs this on a CPU: oneDNN takes
        some milliseconds to compile a kernel for every new size of a matrix product, and keeps it, 1 to 3 MB with AMX.
        """
        budget = batch_size * TOKENS_A_ROW
        for rows in budget_batches(self.lengths, budget):
            yield rows, self.pack(rows, budget=budget if few_sizes else None)

    def pack(self, rows: Integers, *, budget: int | None) -> dict[str, torch.Tensor]:
        """Lays some rows end to end.

        With a budget, rows of padding tokens are added up to `filled_size`, and empty rows up to a multiple of 32 rows,
        so that batches have few sizes.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        tokens = int(lengths.sum())
        new_starts = np.cumsum(lengths) - lengths
        flat = self.input_ids[np.arange(tokens) + np.repeat(starts - new_starts, lengths)].astype(np.int64)
        if budget is not None:
            missing_tokens = filled_size(tokens, budget) - tokens
            full_fillers, rest = divmod(missing_tokens, int(lengths.max()))
            fillers = [int(lengths.max())] * full_fillers + [rest] * (rest > 0)
            fillers += [0] * (-(len(lengths) + len(fillers)) % _ROWS_STEP)
            flat = np.concatenate((flat, np.full(missing_tokens, self.pad)))
            lengths = np.concatenate((lengths, np.array(fillers, dtype=np.int64)))
        return {"input_ids": torch.from_numpy(flat)[None], "row_lengths": torch.from_numpy(lengths)}


def filled_size(tokens: int, budget: int) -> int:
    """Returns the smallest allowed size for ``tokens``: a power of two, or a multiple of an eighth of ``budget``."""
    step = max(budget // 8, _LEAST_TOKENS)
    power = max(1 << (tokens - 1).bit_length(), _LEAST_TOKENS)
    return power if power <= step else -(-tokens // step) * step


_MOST_FOREIGN_TOKENS = 512
_FOREIGN_BATCH_SIZE = 64


class ForeignClassifier:
    """A classifier of any architecture of transformers."""

    def __init__(self, model: Any, tokenizer: Any, precision: str) -> None:
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        names: dict[int, str] = model.config.id2label
        self.classes_ = np.array([str(names[index]) for index in sorted(names)], dtype=str)
        limit = int(getattr(model.config, "max_position_embeddings", _MOST_FOREIGN_TOKENS))
        # RoBERTa's position table has rows that no token uses.
        self.max_length = min(limit, _MOST_FOREIGN_TOKENS)

    @classmethod
    def load(cls, folder: Path, *, precision: str) -> Self:
        """Reads a folder; raises `CheckpointError` if it cannot be loaded without its own code, or is not whole."""
        read_model_configuration(folder)
        if not (folder / WEIGHTS_NAME).is_file():
            raise CheckpointError(
                f"'{folder}' holds no {WEIGHTS_NAME}; pickled weights can run code when they are read and are refused"
            )
        model, details = read_pretrained(
            AutoModelForSequenceClassification, folder, "is no classifier that can be loaded without its own code"
        )
        if missing := sorted(details["missing_keys"]):
            raise CheckpointError(
                f"'{folder}' lacks weight '{missing[0]}': an encoder without a trained classifier cannot teach; "
                "fine-tune it first"
            )
        return cls(model.to(default_device()).eval(), tokenizer_from_folder(folder), precision)

    def logits(self, texts: Sequence[str], *, clean: bool = True) -> Logits:
        """Returns ``(texts, labels)``."""
        rows = clean_texts(texts) if clean else list(texts)
        input_ids, offsets = encode_texts(rows, self.tokenizer, self.max_length)
        pad = self.tokenizer.pad_token_id
        flat = FlatRows(input_ids, offsets, int(pad or 0))
        return predict_logits(self.model, flat.padded(_FOREIGN_BATCH_SIZE), len(rows), precision=self.precision)


class TransformerEngine(Engine):
    """Runs one of our classifiers on torch; it is converted in place, so that batches do not cast weights again."""

    max_length: int

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        precision: str,
        max_length: int,
        windows: int = 1,
    ) -> None:
        self.precision = check_precision(precision)
        device = default_device()
        self.computation: Computation = Computation(
            engine="torch", storage_precision=_stored_in(model), compute_precision=precision, device=device.type
        )
        self.model = model.to(device=device, dtype=PRECISIONS[precision]).eval()
        self.tokenizer = tokenizer
        self.max_length = min(max_length, int(model.config.max_position_embeddings))
        self.windows = windows
        config = model.config
        counted = getattr(config, "tokens_without_recurrence", None) is not None
        self.depth: Depth = Depth(
            tuple(config.exits), int(config.num_recurrences), int(config.num_labels), windows, counted
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        max_length: int,
        windows: int = 1,
        precision: str | None = None,
        preferred: str | None = None,
    ) -> TransformerEngine:
        """Reads model and tokenizer from a model folder.

        It computes in ``precision`` if one is given, else in ``preferred`` or the weights' precision if the device is
        fast in it. A text is cut after ``max_length`` tokens, or read in windows of this length.
        """
        if precision is not None:
            check_precision(precision)
        model = load_classifier_model(folder)
        device = default_device()
        storage = preferred or _stored_in(model)
        compute = compute_precision(storage, precision, device.type, imitates_bf16=imitates_bf16(device))
        tokenizer = read_tokenizer(folder)
        highest = max(tokenizer.get_vocab().values(), default=0)
        if highest >= model.config.vocab_size:
            raise CheckpointError(
                f"'{folder}': its tokenizer writes token numbers up to {highest:,}, but its model has "
                f"{model.config.vocab_size:,} tokens: they do not belong together; copy or train it again"
            )
        return cls(model, tokenizer, precision=compute, max_length=max_length, windows=windows)

    @property
    def pad_token_id(self) -> int:
        """The padding token."""
        return int(self.model.config.pad_token_id or 0)

    def are_cut(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        return are_cut(texts, self.tokenizer, self.max_length, self.windows)

    def logits(self, texts: Sequence[str], batch_size: int) -> Logits:
        batches, rows, counts = self._read(texts, batch_size)
        return pool_windows(predict_logits(self.model, batches, rows), counts)

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> tuple[Logits, Integers]:

        def compute(**inputs: Any) -> list[torch.Tensor]:
            output = self.model(**inputs, exit_rule=rule)
            return [output.logits.float(), output.exited_after]

        logits, exited_after = self._compute(texts, batch_size, compute)
        return logits, exited_after

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, Logits]:

        def compute(**inputs: Any) -> list[torch.Tensor]:
            return list(self.model.logits_by_recurrence(**inputs).values())

        return dict(zip(self.depth.output_after, self._compute(texts, batch_size, compute), strict=True))

    def recurrences(self, texts: Sequence[str], batch_size: int) -> Integers | None:
        """Recurrences that a halting head chooses for each cleaned text, ``(texts,)``; none for texts in windows."""
        if self.windows > 1 or not getattr(self.model.config, "learned_halt", False):
            return None
        return self._compute(texts, batch_size, lambda **inputs: [self.model(**inputs).exited_after])[0]

    def _compute(
        self, texts: Sequence[str], batch_size: int, compute: Callable[..., Sequence[torch.Tensor]]
    ) -> list[npt.NDArray[Any]]:
        """Values of cleaned texts, each the mean over its windows."""
        batches, rows, counts = self._read(texts, batch_size)
        return [pool_windows(values, counts) for values in compute_rows(self.model, batches, rows, compute)]

    def _read(self, texts: Sequence[str], batch_size: int) -> tuple[Iterator[Batch], int, Integers | None]:
        """Batches of windows, the number of all windows, and that of each text."""
        input_ids, offsets, counts = encode_windows(texts, self.tokenizer, self.max_length, self.windows)
        rows = FlatRows(input_ids, offsets, self.pad_token_id)
        on_cpu = self.model.device.type == "cpu"
        batches = rows.packed(batch_size, few_sizes=self.precision != "fp32") if on_cpu else rows.padded(batch_size)
        return batches, len(offsets) - 1, counts


class JoinedEngine(TransformerEngine):
    """Adds the scores of a linear model to those of a classifier on mean token states.

    The mean and that classifier are computed in FP32, as when they were fitted.
    """

    words: LinearModel

    @classmethod
    def of(cls, engine: TransformerEngine, words: LinearModel) -> Self:
        """An engine of the encoder with its classifier, and a linear model beside it."""
        joined = cls(
            engine.model, engine.tokenizer, precision=engine.precision, max_length=engine.max_length, windows=1
        )
        joined.computation, joined.words = engine.computation, words
        joined.model.classifier.float()
        joined.depth = Depth((), 1, words.num_labels)
        return joined

    @classmethod
    def load(cls, folder: Path, **reading: Any) -> JoinedEngine:
        """Reads encoder, tokenizer and linear model from a model folder."""
        from recurra.models.controls.linear import LinearModel

        encoder = TransformerEngine.load(folder, **{**reading, "max_length": STATES_TOKENS, "windows": 1})
        return cls.of(encoder, LinearModel.load(folder))

    @property
    def reads_all(self) -> bool:
        """True, because the linear model reads texts whole."""
        return True

    def logits(self, texts: Sequence[str], batch_size: int) -> Logits:
        """Returns ``(texts, labels)`` for cleaned texts: the scores of the linear model and of the encoder, added."""

        def compute(**inputs: Any) -> list[torch.Tensor]:
            states = self.model.model(**inputs, return_dict=True).last_hidden_state.float()
            pooled = pool(states, "mean", inputs.get("attention_mask"), inputs.get("row_lengths"))
            return [self.model.classifier(pooled)]

        words = self.words.logits(texts)
        return words + self._compute(texts, batch_size, compute)[0] if len(texts) else words

    def leave_early(self, texts: Sequence[str], batch_size: int, rule: ExitRule) -> tuple[Logits, Integers]:  # noqa: ARG002
        """Every text takes the only pass of the encoder, and the linear model's scores are added."""
        return self.logits(texts, batch_size), np.ones(len(texts), dtype=np.int64)

    def logits_by_recurrence(self, texts: Sequence[str], batch_size: int) -> dict[int, Logits]:
        return {1: self.logits(texts, batch_size)}


def _stored_in(model: PreTrainedModel) -> str:
    weight_dtype = next(model.parameters()).dtype
    return next((name for name, dtype in PRECISIONS.items() if dtype == weight_dtype), str(weight_dtype))
