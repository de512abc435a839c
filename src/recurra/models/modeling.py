"""A Transformer of prelude, recurrent core and coda, and its classifier, as native models of transformers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from recurra.core.errors import ConfigurationError, unknown
from recurra.models.cache import PAST, RecurraCache
from recurra.models.configuration import RecurraConfig
from recurra.models.exits.rules import CountedRecurrences, ExitRule, LearnedHalt, check_exit
from recurra.models.heads import pool, weigh_losses
from recurra.models.layers import (
    DepthwiseConvolution,
    Embeddings,
    ScaleKeepingLinear,
    SharedLinear,
    make_norm,
    rotary_table,
)
from recurra.models.recurrence import LayerStack, RecurrentCore
from recurra.models.rows import CachedRows, PackedRows, PaddedRows, RowLayout

P = ParamSpec("P")
R = TypeVar("R")

# Arguments of transformers' Trainer, generate and pipelines, without effect on a model that does not name them.
WITHOUT_EFFECT = ("cache_position", "num_items_in_batch", "use_cache")
# Arguments that many models of transformers have and ours do not: wrappers pass them as None.
ABSENT = {
    "head_mask": "heads cannot be switched off",
    "inputs_embeds": "give input_ids",
    "position_ids": "positions are counted from the attention_mask, or given as row_lengths",
}


def called_by_transformers(forward: Callable[P, R]) -> Callable[P, R]:
    """Lets transformers call a model's ``forward`` as one of its own; refuses arguments that neither knows."""
    known = [name for name in inspect.signature(forward).parameters if name != "self"]

    @can_return_tuple
    @functools.wraps(forward)
    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        if keywords.pop("output_attentions", None) or self.config.output_attentions:
            raise ConfigurationError(
                "'output_attentions' is true; allowed: false: attention is computed in one kernel, which keeps no "
                "weights; leave it out"
            )
        if PAST in known and "cache" in keywords and keywords.get(PAST) is None:
            keywords[PAST] = keywords.pop("cache")
        for name in [name for name in keywords if name not in known]:
            value = keywords.pop(name)
            if name in ABSENT and value is not None:
                raise TypeError(f"{type(self).__name__} has no '{name}': {ABSENT[name]}")
            if name not in WITHOUT_EFFECT and name not in ABSENT:
                raise TypeError(f"{type(self).__name__}: {unknown('keyword', name, known)}")
        return forward(self, *args, **keywords)

    return cast("Callable[P, R]", checked)


# The name in transformers for any number of labels a row.
SEVERAL_LABELS = "multi_label_classification"
PROBLEM_TYPES = (None, "single_label_classification", SEVERAL_LABELS)


@dataclass
class RecurraModelOutput(BaseModelOutputWithPast):
    """Output of the model without a head; states at exits, ``(batch, tokens, hidden)``, have the final norm too."""

    exit_states: tuple[Tensor, ...] | None = None


@dataclass
class RecurraClassifierOutput(SequenceClassifierOutput):
    """Output of the classifier.

    Attributes:
        exit_logits: ``(batch, labels)`` of each exit's head in FP32; None without exits or under an exit rule.
        exited_after: ``(batch,)``: recurrences that each row took, under an exit rule or by its own number.
        halt_loss: In training, the loss that the halting head adds; None without such a head.
    """

    exit_logits: tuple[Tensor, ...] | None = None
    exited_after: Tensor | None = None
    halt_loss: Tensor | None = None


class RecurraPreTrainedModel(PreTrainedModel):
    """Initialisation, loading and saving."""

    config_class = RecurraConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules: ClassVar[list[str]] = ["Layer", "PostNormLayer"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RecurrentCore) and module.residual_scale is not None:
            nn.init.constant_(module.residual_scale, self.config.residual_scale)
        if isinstance(module, ScaleKeepingLinear):
            module.reset_scale()
        if isinstance(module, DepthwiseConvolution):
            module.reset_parameters()
        if isinstance(module, SharedLinear):
            module.reset_update(self.config.initializer_range)
        if isinstance(module, RecurraModel):
            # The table is not in checkpoints and must be computed again after loading on the meta device.
            module.reset_rotary()


class RecurraModel(RecurraPreTrainedModel):
    """The encoder (or, with ``causal``, decoder) without a head."""

    rotary: Tensor | None

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.prelude = LayerStack(config, config.num_prelude_layers)
        self.core = RecurrentCore(config)
        self.coda = LayerStack(config, config.num_coda_layers)
        self.final_norm = make_norm(config) if config.final_norm else nn.Identity()
        shape = config.max_position_embeddings, config.head_dim // 2, 2
        table = torch.empty(shape, dtype=torch.float32) if config.position == "rotary" else None
        self.register_buffer("rotary", table, persistent=False)
        self.post_init()

    def reset_rotary(self) -> None:
        """Fills the rotary table, always in FP32, because half precision loses small steps of the angles."""
        config = self.config
        if self.rotary is not None:
            self.rotary = rotary_table(
                config.max_position_embeddings, config.head_dim, config.rope_theta, self.rotary.device
            )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # The rotary table stays in FP32 if the model is moved to half precision.
        result = super()._apply(fn, recurse)
        if self.rotary is not None and self.rotary.dtype != torch.float32:
            self.reset_rotary()
        return result

    def get_input_embeddings(self) -> nn.Module:
        """The token table."""
        return self.embeddings.token

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the token table."""
        self.embeddings.token = value

    @called_by_transformers
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        num_positions: int | None = None,
        row_lengths: Tensor | None = None,
        *,
        exit_after: int | None = None,
        each_recurrence: bool = False,
        past_key_values: Cache | None = None,
        output_hidden_states: bool | None = None,
    ) -> RecurraModelOutput:
        """Computes the last hidden states of ids ``(batch, tokens)``; their mask is non-zero at real tokens.

        Args:
            each_recurrence: Whether ``exit_states`` are those after each recurrence but the last, as if the core had
                been applied no further, with coda and final norm.
            num_positions: Number of leading positions that are returned; the last layer computes no others.
            row_lengths: ``(rows,)`` if ``input_ids`` is ``(1, tokens)`` and holds rows of these lengths end to end,
                without padding; ``num_positions`` is then 1 or None. A length of 0 is allowed: its states mean nothing.
            past_key_values: ``input_ids`` continue the tokens in this cache; ``attention_mask`` covers both.

        Returns:
            ``last_hidden_state``, ``(batch, positions, hidden)``, for packed rows ``(1, tokens or rows, hidden)``. If
            asked for, ``hidden_states`` of all positions: the embeddings, then the states after each layer application;
            after the last layer of a recurrence with the core's residual, and at the end with the final norm, as in
            ``last_hidden_state``.
        """
        layout = self._layout(input_ids, attention_mask, row_lengths, past_key_values)
        states = self.embeddings(input_ids, token_type_ids, layout)
        all_states = [states] if wants_states(self.config, output_hidden_states) else None
        states = self.prelude(states, layout, None, all_states)
        # All positions are computed if all states are wanted.
        narrowed = num_positions if all_states is None else None

        results: list[Tensor] = []

        last = check_exit(self.config, exit_after)

        def at_stop(recurrence: int, states: Tensor) -> None:
            if self.coda.layers:
                states = self.coda(states, layout, narrowed, all_states if recurrence == last else None)
            results.append(self.final_norm(states))

        self.core.run(
            states,
            layout,
            at_stop,
            stops=range(1, last) if each_recurrence else self.config.exits,
            last=last,
            # A coda reads all positions.
            queries=None if self.coda.layers else narrowed,
            all_states=all_states,
        )
        *exits, states = results
        if all_states is not None:
            all_states[-1] = states
            if num_positions is not None:
                *exits, states = [layout.leading(part, num_positions) for part in (*exits, states)]
        return RecurraModelOutput(
            states,
            past_key_values,
            hidden_states=None if all_states is None else tuple(all_states),
            exit_states=tuple(exits) or None,
        )

    def exit_early(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        num_positions: int | None = None,
        row_lengths: Tensor | None = None,
        *,
        rule: ExitRule,
        read_head: Callable[[int, Tensor, Tensor], Tensor],
        counted: Callable[[Tensor], Tensor] | None = None,
        past_key_values: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Lets each row stop after the first exit where the rule says so; returns its logits, and its recurrences.

        Args:
            read_head: Logits ``(remaining, ..., classes)`` of the head after a recurrence, given that, the states of
                the remaining rows, and their indices.
            counted: Which positions of the remaining rows decide, ``(remaining, positions)``, given their indices; None
                means all.
        """
        layout = self._layout(input_ids, attention_mask, row_lengths, past_key_values)
        states = self.prelude(self.embeddings(input_ids, token_type_ids, layout), layout)
        rows, last = len(input_ids) if row_lengths is None else len(row_lengths), rule.last(self.config)
        remaining = torch.arange(rows, device=states.device)
        exited_after = torch.full((rows,), last, device=states.device)
        logits: Tensor | None = None

        def at_stop(recurrence: int, states: Tensor) -> Tensor | None:
            nonlocal remaining, logits
            if recurrence < last and not rule.asks(recurrence):
                return None
            head_logits = read_head(recurrence, self.final_norm(states), remaining)
            exits = torch.ones_like(remaining, dtype=torch.bool)
            if recurrence < last:
                positions = None if counted is None else counted(remaining)
                exits = rule.decide(head_logits, recurrence, counted=positions, rows=remaining)
            if logits is None:
                all_stop = len(remaining) == rows and bool(exits.all())
                logits = head_logits if all_stop else head_logits.new_zeros(rows, *head_logits.shape[1:])
            stopped, remaining = remaining[exits], remaining[~exits]
            exited_after[stopped] = recurrence
            if logits is not head_logits:
                logits[stopped] = head_logits[exits]
            return exits

        self.core.run(states, layout, at_stop, stops=rule.stops(self.config), last=last, queries=num_positions)
        assert logits is not None
        return logits, exited_after

    def _layout(
        self, input_ids: Tensor, attention_mask: Tensor | None, row_lengths: Tensor | None, cache: Cache | None
    ) -> RowLayout:
        tokens = input_ids.shape[1] if row_lengths is None else int(row_lengths.max())
        tokens += 0 if cache is None else cache.get_seq_length()
        if tokens > self.config.max_position_embeddings:
            raise ConfigurationError(
                f"an input has {tokens} tokens; this model takes at most {self.config.max_position_embeddings}; "
                "truncate it, or train with a larger max_position_embeddings"
            )
        if cache is not None:
            self._check_cache(cache, row_lengths)
            new = input_ids.shape[1]
            return CachedRows.after(cache, self.rotary, attention_mask, new, device=input_ids.device)
        if row_lengths is None:
            return PaddedRows.of(
                self.rotary, attention_mask, tokens, causal=self.config.causal, device=input_ids.device
            )
        if attention_mask is not None or input_ids.shape != (1, int(row_lengths.sum())):
            raise ConfigurationError(
                f"packed rows of {int(row_lengths.sum())} tokens came with input_ids of shape {tuple(input_ids.shape)}"
                f"{' and an attention_mask' if attention_mask is not None else ''}; "
                "give the rows end to end as (1, tokens), without a mask"
            )
        return PackedRows.of(self.rotary, row_lengths, causal=self.config.causal)

    def _check_cache(self, cache: Cache, row_lengths: Tensor | None) -> None:
        config = self.config
        computes_twice = self.core.block.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for wrong, reason in (
            (config.leaks, "a leaking model has none: its convolutions read tokens that are not there yet"),
            (not config.causal, "an encoder has none: each token changes every other"),
            (row_lengths is not None, "packed rows have none"),
            (config.has_convolution and not isinstance(cache, RecurraCache), "convolutions need a RecurraCache"),
            (computes_twice, "activation checkpointing computes layers twice, which would keep their tokens twice"),
        ):
            if wrong:
                raise ConfigurationError(f"'past_key_values' is a {type(cache).__name__}; {reason}")


class RecurraForSequenceClassification(RecurraPreTrainedModel):
    """The model with a linear classifier on each row's pooled states ([CLS] by default), and one after each exit."""

    # The loss is a mean over the batch: the Trainer must scale it itself when it accumulates gradients.
    accepts_loss_kwargs = False

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__(config)
        if config.heads == "tied":
            raise ConfigurationError(
                "model configuration: 'heads' is 'tied'; allowed for a classifier: shared, separate; "
                "a token table has a row for each token, not for each label"
            )
        if config.problem_type not in PROBLEM_TYPES:
            raise ConfigurationError(
                f"model configuration: 'problem_type' is '{config.problem_type}'; allowed: null, "
                f"{', '.join(filter(None, PROBLEM_TYPES))}"
            )
        self.num_labels = config.num_labels
        self.model = RecurraModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.halt = nn.Linear(config.hidden_size, 1) if config.learned_halt else None
        exits = len(config.exits) if config.heads == "separate" else min(1, len(config.exits))
        self.exit_classifiers = nn.ModuleList(nn.Linear(config.hidden_size, config.num_labels) for _ in range(exits))
        self.post_init()

    @called_by_transformers
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        row_lengths: Tensor | None = None,
        *,
        exit_after: int | None = None,
        exit_rule: ExitRule | None = None,
        output_hidden_states: bool | None = None,
    ) -> RecurraClassifierOutput:
        """Classifies ids ``(batch, tokens)``; their mask is non-zero at real tokens, their types 0 if not given.

        Args:
            labels: ``(batch,)``, or 0 and 1 a label, ``(batch, labels)``, of a ``multi_label_classification``.
            exit_rule: A row stops after the first exit where the rule says so, and its logits are that exit's.

        Returns:
            ``logits``, ``(batch or packed rows, labels)`` in FP32, and with labels the mean cross-entropy (binary, also
            over labels, for several labels a row), weighted with that of the exits.
        """
        wants_all = wants_states(self.config, output_hidden_states)
        inputs = input_ids, attention_mask, token_type_ids, row_lengths
        if exit_rule is not None:
            check_exiting(labels, wants_all)
            exit_rule.check(self.config, self.num_labels)
            exit_after = exit_rule.always_after
            if exit_after is None:
                return self._exit_early(*inputs, rule=exit_rule, labels=None)
        if self.config.tokens_without_recurrence is not None:
            if wants_all or exit_after is not None:
                part = "states on the way" if wants_all else "an exit"
                raise ConfigurationError(
                    f"{part} of a model with tokens_without_recurrence, which gives each row recurrences of its own; "
                    "leave it out"
                )
            return self._exit_early(*inputs, rule=None, labels=labels)
        output = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            self._positions,
            row_lengths,
            exit_after=exit_after,
            output_hidden_states=wants_all,
            return_dict=True,
        )
        # Exits after the last computed recurrence have no states.
        after = dict(zip(self.config.exits, output.exit_states or (), strict=False))
        after[check_exit(self.config, exit_after)] = output.last_hidden_state
        *exits, logits = [
            self._head_after(number)(pool(states, self.config.pooling, attention_mask, row_lengths)).float()
            for number, states in after.items()
        ]
        loss = None
        if labels is not None:
            losses = [classification_loss(scores, labels, self.config) for scores in (*exits, logits)]
            loss = weigh_losses(losses, self.config.exit_loss_weight)
        return RecurraClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=output.hidden_states,
            exit_logits=(tuple(exits) or None) if exit_rule is None else None,
            exited_after=None if exit_rule is None else torch.full((len(logits),), exit_after, device=logits.device),
        )

    def logits_by_recurrence(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, row_lengths: Tensor | None = None
    ) -> dict[int, Tensor]:
        """Logits after each recurrence, by its number.

        With exits these are the recurrences with a head of their own, and the last one. Without exits they are all,
        read by the final head, which was trained on the last one alone. A row that takes fewer keeps its final logits.
        """
        if self.config.exits:
            output = self(input_ids, attention_mask, row_lengths=row_lengths, return_dict=True)
            numbers = [*self.config.exits, self.config.num_recurrences]
            return dict(zip(numbers, [*output.exit_logits, output.logits], strict=True))
        inputs = input_ids, attention_mask, None, self._positions, row_lengths
        output = self.model(*inputs, each_recurrence=True, output_hidden_states=False, return_dict=True)
        states = (*(output.exit_states or ()), output.last_hidden_state)
        pooled = [pool(state, self.config.pooling, attention_mask, row_lengths) for state in states]
        logits = torch.stack([self.classifier(state).float() for state in pooled])
        if self.config.tokens_without_recurrence is not None:
            last = self._counted_recurrences(input_ids, attention_mask, row_lengths)
            if self.halt is not None:
                stops = torch.stack([self.halt(state)[:, 0] > 0 for state in pooled])
                stops[-1] = True
                last = stops.int().argmax(0) + 1
            taken = torch.minimum(torch.arange(1, len(pooled) + 1, device=last.device)[:, None], last) - 1
            logits = logits.gather(0, taken[:, :, None].expand_as(logits))
        return dict(enumerate(logits, start=1))

    def _exit_early(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        row_lengths: Tensor | None,
        *,
        rule: ExitRule | None,
        labels: Tensor | None,
    ) -> RecurraClassifierOutput:
        """Lets rows leave by a rule; without one, when their tokens ask for it or, once learned, their states."""
        learning = rule is None and self.halt is not None and self.training
        if rule is None:
            counts = self._counted_recurrences(input_ids, attention_mask, row_lengths)
            counted = CountedRecurrences(counts, every=learning)
            rule = counted if self.halt is None or learning else LearnedHalt()
        halts: list[tuple[Tensor, Tensor]] = []

        def read_head(recurrence: int, states: Tensor, remaining: Tensor) -> Tensor:
            mask, lengths = (None if part is None else part[remaining] for part in (attention_mask, row_lengths))
            pooled = pool(states, self.config.pooling, mask, lengths)
            logits = self._head_after(recurrence)(pooled).float()
            if self.halt is None:
                return logits
            halt = self.halt(pooled).float()
            if learning:
                halts.append((halt[:, 0], (counts[remaining] == recurrence).to(halt.dtype)))
            return torch.cat([logits, halt], dim=1)

        logits, exited_after = self.model.exit_early(
            input_ids, attention_mask, token_type_ids, self._positions, row_lengths, rule=rule, read_head=read_head
        )
        logits = logits[:, : self.num_labels]
        loss = None if labels is None else classification_loss(logits, labels, self.config)
        halt_loss = None
        if learning:
            halt_logits, is_last = map(torch.cat, zip(*halts, strict=True))
            halt_loss = self.config.halt_loss_weight * functional.binary_cross_entropy_with_logits(halt_logits, is_last)
            loss = None if loss is None else loss + halt_loss
        return RecurraClassifierOutput(loss=loss, logits=logits, exited_after=exited_after, halt_loss=halt_loss)

    def _counted_recurrences(
        self, input_ids: Tensor, attention_mask: Tensor | None, row_lengths: Tensor | None
    ) -> Tensor:
        """Recurrences of each row, ``(rows,)``, by its number of tokens."""
        if row_lengths is None:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask != 0
            row_lengths = mask.sum(1)
        counted = row_lengths - self.config.tokens_without_recurrence
        return (counted // self.config.tokens_per_recurrence).clamp(1, self.config.num_recurrences)

    def _head_after(self, recurrence: int) -> nn.Module:
        if not self.config.exits or recurrence == self.config.num_recurrences:
            return self.classifier
        return self.exit_classifiers[min(self.config.exits.index(recurrence), len(self.exit_classifiers) - 1)]

    @property
    def _positions(self) -> int | None:
        """Leading positions that the classifier reads; None means all."""
        return 1 if self.config.pooling == "first" else None


def classification_loss(logits: Tensor, labels: Tensor, config: PreTrainedConfig) -> Tensor:
    """Mean cross-entropy; for any number of labels a row the logistic loss, also averaged over labels."""
    if config.problem_type == SEVERAL_LABELS:
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    return functional.cross_entropy(logits, labels)


def wants_states(config: PreTrainedConfig, requested: bool | None) -> bool:
    """Whether the states of all layers are to be returned."""
    return bool(config.output_hidden_states if requested is None else requested)


def check_exiting(labels: Tensor | None, wants_all: bool) -> None:
    """Refuses labels and all hidden states beside an exit rule that looks at every row."""
    if labels is not None:
        raise ConfigurationError("an exit rule came with labels; a rule is for inference: train without one")
    if wants_all:
        raise ConfigurationError(
            "an exit rule came with output_hidden_states; rows that stop early have no states to return: "
            "leave one of them out"
        )


@torch.no_grad()
def keep_rows(model: Any, rows: Sequence[int], pad: int) -> None:
    """Reduces a classifier's token table to some rows; ``pad`` is the new id of the padding token."""
    old_table = model.get_input_embeddings()
    table = nn.Embedding(len(rows), old_table.embedding_dim, padding_idx=pad)
    table.weight.copy_(old_table.weight[rows])
    model.set_input_embeddings(table)
    model.config.vocab_size, model.config.pad_token_id = len(rows), pad
    # These ids are of the whole vocabulary, and classifiers do not need them.
    model.config.bos_token_id = model.config.eos_token_id = None
