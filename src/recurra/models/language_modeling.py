"""The causal language model with exits, a native model of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from recurra.core.errors import ConfigurationError
from recurra.models.cache import CACHE, RecurraCache
from recurra.models.configuration import RecurraConfig
from recurra.models.exits.rules import ExitRule, check_exit
from recurra.models.heads import IGNORED, VocabularyHeads, next_token_targets, vocabulary_cross_entropy, weigh_losses
from recurra.models.modeling import (
    RecurraModel,
    RecurraPreTrainedModel,
    called_by_transformers,
    check_exiting,
    wants_states,
)


@dataclass
class RecurraCausalLMOutput(CausalLMOutputWithPast):
    """Output of the language model.

    Attributes:
        exit_logits: ``(batch, positions, vocabulary)`` of each exit in FP32, if they were asked for.
        exit_losses: ``(heads,)``: mean loss of each exit and of the final head, detached, if there are labels.
        exited_after: ``(batch,)``: recurrences that each row took under an exit rule; None without a rule.
    """

    exit_logits: tuple[Tensor, ...] | None = None
    exit_losses: Tensor | None = None
    exited_after: Tensor | None = None


class RecurraForCausalLM(RecurraPreTrainedModel, GenerationMixin):
    """The decoder with a head over the vocabulary after the last recurrence, and one after each exit.

    With cycles, learned positions and post-norm it is the model of "CRT-Deep"; its convolutions are causal unless the
    configuration says otherwise (`RecurraConfig.leaks`). ``generate`` keeps an exact cache (`RecurraCache`).
    """

    # The loss is a sum over tokens divided by what the Trainer counts over all accumulated batches.
    accepts_loss_kwargs = True

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__(config)
        if not config.causal:
            raise ConfigurationError(
                "model configuration: 'causal' is False; allowed for a language model: true; set causal: true"
            )
        if config.tokens_without_recurrence is not None:
            raise ConfigurationError(
                f"model configuration: 'tokens_without_recurrence' is {config.tokens_without_recurrence}; allowed for "
                "a language model: null, for every token is answered, whatever follows; leave it out"
            )
        self.model = RecurraModel(config)
        self.heads = VocabularyHeads(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module | None:
        """The final head; None if it is the token table."""
        return self.heads.final

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replaces the final head."""
        self.heads.final = new_embeddings

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        """Changes the number of rows of the token table and of every head."""
        table = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        for number, head in enumerate(self.heads.exits):
            if head.out_features != table.num_embeddings:
                mean = kwargs.get("mean_resizing", True)
                self.heads.exits[number] = self._get_resized_lm_head(head, table.num_embeddings, mean_resizing=mean)
        return table

    @called_by_transformers
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        row_lengths: Tensor | None = None,
        exit_after: int | None = None,
        exit_rule: ExitRule | None = None,
        output_exits: bool = False,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
    ) -> RecurraCausalLMOutput:
        """Predicts the next token at every position of ids ``(batch, tokens)``; padding may stand on either side.

        Args:
            labels: ``(batch, tokens)`` token ids, not shifted, -100 where nothing is to be predicted, as at padding.
            exit_rule: A row stops after the first exit where the rule says so, judged by the positions of
                ``logits_to_keep``; its logits are that exit's. With a cache it applies to single tokens, not a prompt.
            logits_to_keep: Number of last positions whose logits are wanted, 0 for all, or their indices. None means
                all without labels and none with labels: training never holds all logits.
            num_items_in_batch: What the sum of losses is divided by: the Trainer's count over accumulated batches.

        Returns:
            ``loss``, the weighted mean over heads (CRT-Deep, equation 5), if there are labels; ``logits``
            ``(batch, positions, vocabulary)`` in FP32.
        """
        cache = RecurraCache(self.config) if use_cache and past_key_values is None else past_key_values
        keep = 0 if logits_to_keep is None else logits_to_keep
        positions = slice(-keep, None) if isinstance(keep, int) else keep
        wants_all = wants_states(self.config, output_hidden_states)
        if exit_rule is not None:
            check_exiting(labels, wants_all and exit_rule.always_after is None)
            exit_rule.check(self.config, self.config.vocab_size)
            if exit_rule.always_after is not None:
                exit_after = exit_rule.always_after
            elif row_lengths is not None:
                raise ConfigurationError("an exit rule came with packed rows; give the rows side by side, padded")
            elif cache is not None and not isinstance(cache, RecurraCache):
                raise ConfigurationError(
                    f"an exit rule came with a {type(cache).__name__}; give a RecurraCache: it fills in what is skipped"
                )
            elif cache is None or input_ids.shape[1] == 1:
                inputs = input_ids, attention_mask, token_type_ids
                return self._exit_early(*inputs, exit_rule, cache=cache, positions=positions)
        output = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            row_lengths=row_lengths,
            exit_after=exit_after,
            past_key_values=cache,
            output_hidden_states=wants_all,
            return_dict=True,
        )
        states = {**dict(enumerate(output.exit_states or ())), self._last_head(exit_after): output.last_hidden_state}
        loss = losses = logits = exit_logits = None
        if labels is not None:
            targets = next_token_targets(labels, attention_mask)
            if row_lengths is not None:
                targets[0, row_lengths.cumsum(0)[row_lengths > 0] - 1] = IGNORED
            head_losses = self._losses(states, targets, num_items_in_batch)
            loss, losses = weigh_losses(head_losses, self.config.exit_loss_weight), torch.stack(head_losses).detach()
        if labels is None or logits_to_keep is not None:
            *others, last = states if output_exits else list(states)[-1:]
            logits = self._logits(states[last][:, positions], last)
            exit_logits = tuple(self._logits(states[number][:, positions], number) for number in others) or None
        depths = None
        if exit_rule is not None:
            depths = input_ids.new_full(input_ids.shape[:1], check_exit(self.config, exit_after))
        return RecurraCausalLMOutput(
            loss,
            logits,
            cache,
            output.hidden_states,
            exit_logits=exit_logits,
            exit_losses=losses,
            exited_after=depths,
        )

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Continues a prompt, as transformers' ``generate`` does.

        ``exit_after`` reads an exit's head; with ``exit_rule`` each token stops as early as the rule says, and the
        recurrences that it skips are filled in (`docs/decisions/0013-skipped-recurrences.md`).
        """
        self.check_generates()
        if (rule := kwargs.get("exit_rule")) is not None:
            rule.check(self.config, self.config.vocab_size)
        prompt = inputs if inputs is not None else kwargs.get("input_ids")
        limit = self.config.max_position_embeddings
        if prompt is not None and not 0 < prompt.shape[-1] < limit:
            raise ConfigurationError(
                f"a prompt has {prompt.shape[-1]} tokens; allowed: 1 to {limit - 1}, so that one more fits the context"
            )
        return super().generate(inputs, *args, **kwargs)

    def check_generates(self) -> None:
        """Refuses a model that cannot generate."""
        if self.config.leaks:
            raise ConfigurationError(
                "this model cannot generate: it leaks (causal_convolution is false), so its predictions read tokens "
                "that are not there yet; train one with causal_convolution: true"
            )

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_: object, **__: object
    ) -> None:
        """Hands ``generate`` our cache instead of the one it would make."""
        requested = generation_config.cache_implementation
        if requested is not None:
            raise ConfigurationError(
                f"'cache_implementation' is '{requested}'; allowed: none: every recurrence and every convolution keeps "
                "states of its own, which only our cache does"
            )
        if generation_config.use_cache and model_kwargs.get(CACHE) is None:
            model_kwargs[CACHE] = RecurraCache(self.config)

    def _exit_early(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        rule: ExitRule,
        *,
        cache: RecurraCache | None,
        positions: slice | Tensor,
    ) -> RecurraCausalLMOutput:
        # The mask covers cached tokens too.
        real = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :][:, positions].bool()
        logits, exited_after = self.model.exit_early(
            input_ids,
            attention_mask,
            token_type_ids,
            rule=rule,
            read_head=lambda recurrence, states, _: self._logits(states[:, positions], self._last_head(recurrence)),
            counted=None if real is None else real.__getitem__,
            past_key_values=cache,
        )
        if cache is not None:
            cache.exit_counts.update(exited_after.tolist())
        return RecurraCausalLMOutput(None, logits, cache, exited_after=exited_after)

    def _last_head(self, exit_after: int | None) -> int:
        """Index of the last head that is read: the exit's, or the number of exits for the final head."""
        if exit_after in self.config.exits:
            return self.config.exits.index(exit_after)
        return len(self.config.exits)

    def _logits(self, states: Tensor, head: int) -> Tensor:
        features = self.heads.projection(states)
        logits = functional.linear(features, self.heads.weight(head, self.model.embeddings.token.weight))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _losses(self, states: dict[int, Tensor], targets: Tensor, items: Tensor | int | None) -> list[Tensor]:
        """Each head's loss; only positions that predict something are multiplied with the vocabulary."""
        flat = targets.flatten()
        table = self.model.embeddings.token.weight
        counted = flat != IGNORED
        # On an accelerator, finding these positions would cost a synchronisation.
        chosen = counted.nonzero()[:, 0] if flat.device.type == "cpu" else slice(None)
        divisor = counted.sum().clamp(min=1) if items is None else items
        return [
            vocabulary_cross_entropy(
                self.heads.projection(head_states.flatten(0, 1)[chosen]), self.heads.weight(head, table), flat[chosen]
            )
            / divisor
            for head, head_states in states.items()
        ]
