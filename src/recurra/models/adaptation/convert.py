"""Gives a student the layers of an encoder, and scores how much of the encoder's function a plan keeps."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.files import storage_errors
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import INT8_NAME, EncoderSource, find_encoder
from recurra.models.configuration import RecurraConfig
from recurra.models.heads import mean_of_packed
from recurra.models.layers import Embeddings
from recurra.models.modeling import RecurraModel
from recurra.models.rows import PackedRows

# Up to so many layers, every choice of layers is tried; deeper encoders lose the cheapest layer, one at a time.
_MOST_TRIED_LAYERS = 8
_MOST_APPLICATIONS = 4
# Number of best choices that are kept at each step.
_BEST_CHOICES = 6


class KeptFunction:
    """Scores plans against an encoder with all its layers, on some texts; ``embeddings`` replace its own in plans."""

    @torch.inference_mode()
    def __init__(
        self, encoder: RecurraModel, input_ids: Tensor, row_lengths: Tensor, embeddings: Embeddings | None = None
    ) -> None:
        self._layers = encoder.core.block.layers
        self._lengths = row_lengths
        self._layout = PackedRows.of(encoder.rotary, row_lengths, causal=False)
        # Layers of the previous plan, and the states after each of them: sorted plans share most of their first layers.
        self._order: Sequence[int] = ()
        self._states = [encoder.embeddings(input_ids[None], None, self._layout)]
        self._whole = self._output(range(len(self._layers)))
        if embeddings is not None:
            self._order, self._states = (), [embeddings(input_ids[None], None, self._layout)]

    def score(self, plan: SharingPlan) -> float:
        """How much a plan keeps: 1 is all of the encoder's function, 0 is nothing."""
        return functional.cosine_similarity(self._output(plan.order), self._whole).mean().item()

    @torch.inference_mode()
    def _output(self, order: Sequence[int]) -> Tensor:
        """Centred mean states ``(rows, hidden)`` after some layers."""
        pairs = zip(order, self._order, strict=False)
        unchanged = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        del self._states[unchanged + 1 :]
        for number in order[unchanged:]:
            self._states.append(self._layers[number](self._states[-1], self._layout))
        self._order = order
        means = mean_of_packed(self._states[-1], self._lengths)
        return means - means.mean(dim=0)


def candidate_plans(
    layers: int,
    score: Callable[[SharingPlan], float],
    stored: int,
    applied: int,
    *,
    fits: Callable[[SharingPlan], bool] = lambda _: True,
) -> list[SharingPlan]:
    """Plans that store ``stored`` layers and apply at most ``applied``; they include plain stacks.

    They are sorted by their layers, because neighbours share their first layers and then cost least to score. For a
    deep encoder, ``score`` also rates the stacks on the way to its choices of layers.
    """
    if not 1 <= stored <= layers:
        raise ConfigurationError(f"{stored} of {layers} layers are to be stored; allowed: 1 to {layers}")
    if applied < stored:
        raise ConfigurationError(f"{stored} layers are stored and {applied} applied; each is applied at least once")
    choices = _choices(layers, stored, lambda chosen: score(SharingPlan((), chosen, (), 1)))
    candidates = [plan for chosen in choices for plan in loops(chosen, applied) if fits(plan)]
    return sorted(candidates, key=lambda plan: plan.order)


def _choices(layers: int, stored: int, score: Callable[[tuple[int, ...]], float]) -> list[tuple[int, ...]]:
    """Choices of layers to store: all of them, or for a deep encoder the best after dropping layers one by one."""
    if layers <= _MOST_TRIED_LAYERS:
        return list(itertools.combinations(range(layers), stored))
    ranked = [tuple(range(layers))]
    score = functools.cache(score)
    while len(ranked[0]) > stored:
        smaller = {chosen[:index] + chosen[index + 1 :] for chosen in ranked for index in range(len(chosen))}
        ranked = sorted(smaller, key=lambda chosen: (-score(chosen), chosen))[:_BEST_CHOICES]
    return ranked


def loops(chosen: tuple[int, ...], applied: int) -> Iterator[SharingPlan]:
    """The stack of the chosen layers, and every way to apply a run of them several times."""
    yield SharingPlan((), chosen, (), 1)
    for start, end in itertools.combinations(range(len(chosen) + 1), 2):
        for times in range(2, _MOST_APPLICATIONS + 1):
            plan = SharingPlan(chosen[:start], chosen[start:end], chosen[end:], times)
            if plan.applied <= applied:
                yield plan


# Rows converted at once, because a table in FP64 may take gigabytes.
_ROWS = 8192
# Parameters of Zipf's law; the first thousand pieces (special tokens, characters, common words) count about alike.
_FLAT, _EXPONENT = 1000, 2.0


def factorise_table(table: Tensor, width: int, frequencies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces, weight and bias with ``weight @ pieces[i] + bias`` nearest to ``table[i]``, in weighted squared error.

    For a table ``(pieces, hidden)`` they are ``(pieces, width)``, ``(hidden, width)`` with orthonormal columns, and
    ``(hidden,)``: the mean row and the first right singular vectors of the centred rows, each scaled by the root of its
    weight ``(pieces,)`` (Eckart and Young 1936), from the Gram matrix in FP64.
    """
    weights = (frequencies.double() / frequencies.double().sum())[:, None]
    parts = list(zip(table.split(_ROWS), weights.split(_ROWS), strict=True))
    mean = torch.stack([(part.double() * weight).sum(0) for part, weight in parts]).sum(0)
    gram = table.new_zeros(table.shape[1], table.shape[1], dtype=torch.float64)
    for part, weight in parts:
        scaled = (part.double() - mean) * weight.sqrt()
        gram += scaled.T @ scaled
    # `eigh` returns the eigenvectors in rising order of the eigenvalues.
    basis = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :width]
    pieces = torch.cat([(part.double() - mean) @ basis for part, _ in parts])
    return pieces.to(table), basis.to(table), mean.to(table)


def expected_frequencies(vocabulary: int, pieces: Tensor | None = None) -> Tensor:
    """Expected frequencies ``(vocabulary,)``: by piece number, since vocabularies are sorted, and by texts if given."""
    by_number = (_FLAT + torch.arange(vocabulary, dtype=torch.float64)) ** -_EXPONENT
    by_number /= by_number.sum()
    if pieces is None:
        return by_number
    return by_number + torch.bincount(pieces.long(), minlength=vocabulary) / len(pieces)


_SCALE = ".scale"


def save_int8(model: RecurraModel, folder: Path) -> None:
    """Writes matrices as INT8, each row scaled so that its largest number is 127, and vectors in FP32."""
    tensors: dict[str, Tensor] = {}
    for name, values in model.state_dict().items():
        if values.ndim != 2:
            tensors[name] = values.float().contiguous()
            continue
        scale = values.float().abs().amax(dim=1) / 127
        scale[scale == 0] = 1
        tensors[name] = (values / scale[:, None]).round().to(torch.int8)
        tensors[f"{name}{_SCALE}"] = scale
    with storage_errors(folder):
        model.config.save_pretrained(folder)
        save_file(tensors, folder / INT8_NAME)


_PREFIXES = ("", "bert.", "roberta.", "model.")
_BLOCK, _RECURRENCES, _ADDED = "core.block.", "core.recurrences.", "core.recurrence_embedding."
_TABLE, _PROJECTION = "embeddings.token.weight", "embeddings.projection."
# Names within a layer: ours, and those of the encoder.
_LAYER = {
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up_proj": "intermediate.dense",
    "feed_forward.down_proj": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
# Names in releases from before LayerNorm took those of torch.
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def load_encoder(name: str, plan: str = "", pieces: Tensor | None = None, **changes: object) -> RecurraModel:
    """Loads a pretrained encoder as a model of ours without a head; it computes the same as transformers, no pooler."""
    source = find_encoder(name)
    model = RecurraModel(RecurraConfig(**source.shape(plan, changes)))
    load_encoder_weights(model, source, plan, pieces)
    return model.eval()


@torch.no_grad()
def load_encoder_weights(
    model: RecurraModel, source: EncoderSource, plan: str = "", pieces: Tensor | None = None
) -> None:
    """Gives a model the weights of an encoder; parts that the encoder lacks change nothing at first.

    Weights of single recurrences start as those of the shared layers. A narrow token table starts from the factors
    nearest to the encoder's table, weighted by the ``pieces`` of the model's texts, ``(tokens,)``, or by the order of
    the vocabulary alone.
    """
    _refuse_foreign(source)
    layers = source.plan(plan)
    wanted = dict(model.named_parameters())
    own_names = [name for name in wanted if name.startswith(_RECURRENCES)]
    try:
        with safe_open(source.weights, framework="pt") as handle:
            reader = _Reader(handle, source)
            for name in [name for name in wanted if name.startswith(_ADDED) and name not in reader.names]:
                wanted.pop(name).zero_()
            if source.is_adapted:
                if lacking := [name for name in own_names if name not in reader.names]:
                    raise ConfigurationError(
                        f"'{source.name}' was adapted without '{lacking[0]}'; give recurrence_norms and low_rank to "
                        "recurra adapt, which has the layers that they start from"
                    )
                weights = reader.adapted(wanted)
            else:
                recurrences = len(model.core.recurrences or ())
                # Norms and biases that each recurrence has of its own are not in the shared layers.
                recurrent_norms = {_BLOCK + name.removeprefix(_RECURRENCES).split(".", 1)[1] for name in own_names}
                weights = (
                    (name, values)
                    for name, values in reader.converted(layers, recurrences)
                    if (name in wanted if name.startswith(_RECURRENCES) else name not in recurrent_norms)
                )
                # Low-rank updates stay as they were drawn.
                updates = {name for name in own_names if name.endswith((".down", ".up"))}
                wanted = {name: parameter for name, parameter in wanted.items() if name not in updates}
            for name, values in _with_narrow_table(weights, model, source, pieces):
                _fill(wanted.pop(name, None), values, name, source)
    except SafetensorError as error:
        raise CheckpointError(
            f"'{source.weights}' is an incomplete or damaged safetensors file ({error}); copy it again"
        ) from error
    if wanted:
        raise ConfigurationError(
            f"encoder '{source.name}' has no weight '{next(iter(wanted))}'; leave out the keys that give the model "
            "parts which the encoder lacks (input_injection, final_norm, cycles, exits)"
        )


def _refuse_foreign(source: EncoderSource) -> None:
    if source.is_foreign:
        raise ConfigurationError(
            f"encoder '{source.name}' is a {source.values['model_type']}, which is fine-tuned as it is alone: it gives "
            "no layers to share, no static vectors, and SetFit does not train it here"
        )


def _with_narrow_table(
    weights: Iterable[tuple[str, Tensor]], model: RecurraModel, source: EncoderSource, pieces: Tensor | None
) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights; if the model's token table is narrower than the encoder's, that comes as two factors."""
    width = model.config.token_embedding_size
    for name, values in weights:
        if name != _TABLE or not width < values.shape[1] == source.values["hidden_size"]:
            yield name, values
            continue
        factors = factorise_table(values, width, expected_frequencies(len(values), pieces))
        yield from zip((_TABLE, f"{_PROJECTION}weight", f"{_PROJECTION}bias"), factors, strict=True)


def _fill(parameter: Tensor | None, values: Tensor, name: str, source: EncoderSource) -> None:
    if parameter is None or parameter.shape != values.shape:
        model_part = "no such weight" if parameter is None else f"one of shape {tuple(parameter.shape)}"
        raise ConfigurationError(
            f"encoder '{source.name}' has a weight '{name}' of shape {tuple(values.shape)}, and the model has "
            f"{model_part}; sizes and parts are the encoder's: leave them out of the model's keys"
        )
    parameter.copy_(values)


class _Reader:
    """Reads tensors by the names that other libraries give them."""

    def __init__(self, handle: Any, source: EncoderSource) -> None:
        self._handle, self._source = handle, source
        self.names = set(handle.keys())
        prefixes = [prefix for prefix in _PREFIXES if f"{prefix}embeddings.word_embeddings.weight" in self.names]
        self._prefix = prefixes[0] if prefixes else ""

    def _get(self, name: str) -> Tensor:
        stored_name = f"{self._prefix}{name}"
        for new, old in _OLD_NAMES.items():
            if stored_name not in self.names and stored_name.endswith(new):
                stored_name = stored_name.removesuffix(new) + old
        if stored_name not in self.names:
            raise CheckpointError(f"'{self._source.weights}' lacks weight '{name}': not a whole encoder; copy it again")
        values: Tensor = self._handle.get_tensor(stored_name)
        if f"{stored_name}{_SCALE}" in self.names:
            return values.float() * self._handle.get_tensor(f"{stored_name}{_SCALE}")[:, None]
        return values.float()

    def adapted(self, wanted: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Weights under our own names."""
        for name in list(wanted):
            # A missing projection of a narrow table is made from the whole table.
            if name in self.names or not name.startswith(_PROJECTION):
                yield name, self._get(name)

    def converted(self, plan: SharingPlan, recurrences: int) -> Iterator[tuple[str, Tensor]]:
        """Weights of the encoder under our names, with its layers where the plan puts them, and in each recurrence."""
        positions = self._get("embeddings.position_embeddings.weight")
        longest = self._source.shape()["max_position_embeddings"]
        yield _TABLE, self._get("embeddings.word_embeddings.weight")
        yield "embeddings.position.weight", positions[len(positions) - longest :]
        yield "embeddings.token_type.weight", self._get("embeddings.token_type_embeddings.weight")
        for kind in ("weight", "bias"):
            yield f"embeddings.norm.{kind}", self._get(f"embeddings.LayerNorm.{kind}")
        parts = [("prelude", plan.prelude), ("core.block", plan.core), ("coda", plan.coda)]
        for part, numbers in [*parts, *((f"{_RECURRENCES}{number}", plan.core) for number in range(recurrences))]:
            for index, number in enumerate(numbers):
                for name, values in self.layer(number):
                    yield f"{part}.layers.{index}.{name}", values

    def layer(self, number: int) -> Iterator[tuple[str, Tensor]]:
        """Weights of one layer, under our names within a layer."""
        prefix = f"encoder.layer.{number}"
        for kind in ("weight", "bias"):
            parts = [self._get(f"{prefix}.attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            yield f"attention.qkv_proj.{kind}", torch.cat(parts)
            for our_name, their_name in _LAYER.items():
                yield f"{our_name}.{kind}", self._get(f"{prefix}.{their_name}.{kind}")


@torch.inference_mode()
def piece_vectors(source: EncoderSource, tokenizer: Any, *, batch_size: int = 512) -> Tensor:
    """The encoder's state of each piece alone between its special tokens, ``(pieces, hidden)``, mean square 1.

    They are weighted by the logarithm of one plus the piece's number, because WordPiece vocabularies are sorted by
    frequency (model2vec does the same).
    """
    _refuse_foreign(source)
    model = RecurraModel(RecurraConfig(**source.shape())).eval()
    load_encoder_weights(model, source)
    pieces = torch.arange(model.config.vocab_size)
    edges = [torch.full_like(pieces, token_id) for token_id in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    rows = torch.stack([edges[0], pieces, edges[1]], dim=1)
    vectors = [
        model(input_ids=part, attention_mask=torch.ones_like(part)).last_hidden_state[:, 1].float()
        for part in rows.split(batch_size)
    ]
    weighted = torch.cat(vectors) * (1 + pieces).log()[:, None]
    return weighted / weighted.square().mean().sqrt()
