"""General distillation: a small encoder learns the states of a large one on texts without labels.

    loss = d(final states) + w mean over layers of d(states) + 1 - cosine(mean states)

where d is the mean squared error over real tokens, divided by the variance of the teacher's states at that layer.
TinyBERT (Jiao et al. 2020, section 3.2) calls this step general distillation. The last term uses the cosine by which
sentences are compared (Reimers and Gurevych 2019). A training may add up other `TERMS`, such as MiniLM's own
(`relation_divergence`). Both encoders run without dropout, so only the order of batches is random, and for a student
with exits where a step stops. They depend on seed and step alone: a killed training resumes from its checkpoint bit for
bit. With a budget of minutes the learning rate follows the clock; weights, optimiser and position are still restored
bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model
from torch import Tensor
from torch.nn import functional

from recurra.core.errors import CheckpointError, ConfigurationError, RunError, unknown
from recurra.core.files import locked_folder, read_json, storage_errors, write_json
from recurra.core.progress import Reporter
from recurra.data.batching import pad_rows
from recurra.data.passages import Passages
from recurra.models.adaptation.source import ADAPTATION_NAME
from recurra.models.folder import WEIGHTS_NAME
from recurra.models.heads import mean
from recurra.models.inference import autocast, has_bf16
from recurra.models.layers import SelfAttention
from recurra.models.modeling import RecurraModel
from recurra.training.checkpoint import (
    OPTIMIZER_NAME,
    latest_checkpoint,
    load_optimizer,
    mark_complete,
    remove_checkpoints_but,
    save_optimizer,
)

BATCH_TOKENS = 2048
LEARNING_RATE = 5e-4
WARM_UP = 0.03
LAYER_WEIGHT = 0.5
WEIGHT_DECAY = 0.01
CHECKPOINT_S = 240.0
STATES, COSINE, RELATIONS = TERMS = "states", "cosine", "relations"
LOSS = STATES, COSINE
TASK_NAME = "teaching.json"
_STATE_NAME = "state.json"
_STATE = ("round", "batch", "steps", "tokens", "seconds", "history")


class GeneralDistillation:
    """One training of a student; ``matched`` is the teacher's layer that each of its layer applications learns.

    ``loss`` names the terms of the loss, some of `TERMS`. A step of a student with exits stops after a drawn one, or
    after the last recurrence, and its last states there learn the teacher's (`ProtocolConfig.sampled_recurrences`).
    """

    def __init__(
        self,
        student: RecurraModel,
        teacher: RecurraModel,
        matched: Sequence[int],
        passages: Passages,
        budget: float,
        *,
        in_tokens: bool,
        loss: Sequence[str] = LOSS,
    ) -> None:
        if not loss:
            raise ConfigurationError(f"no term of the loss is given; allowed: some of {', '.join(TERMS)}")
        for term in loss:
            if term not in TERMS:
                raise ConfigurationError(unknown("term of the loss", term, TERMS))
        self._loss = loss
        self.student, self._teacher, self._matched = student.eval(), teacher.eval(), matched
        self._passages, self._budget, self._in_tokens = passages, budget, in_tokens
        self._device = next(student.parameters()).device
        self._precision = "bf16" if has_bf16(self._device) else "fp32"
        self._padding = int(student.config.pad_token_id or 0)
        vectors = [weights for weights in student.parameters() if weights.ndim < 2]
        token_table = student.embeddings.token.weight
        matrices = [weights for weights in student.parameters() if weights.ndim >= 2 and weights is not token_table]
        groups = [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": [*vectors, token_table], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-6, fused=True)
        held_out = sorted((passages.row(*position) for position in passages.held_out), key=len)
        self._held_out = [self._batch_of(held_out[start : start + 64]) for start in range(0, len(held_out), 64)]
        self._variances = self._teacher_variances()
        self.round = self.batch = self.steps = self.tokens = 0
        self.seconds = 0.0
        self.history: list[dict[str, float]] = []

    def run(
        self, folder: Path, task: dict[str, Any], tokenizer: Any, origin: dict[str, Any], reporter: Reporter
    ) -> None:
        """Trains, from the last checkpoint in a folder if there is one, until the budget is spent.

        ``task`` must not change between restarts; each checkpoint says its ``origin`` as an adapted encoder does.

        Raises:
            KeyboardInterrupt: After SIGTERM or SIGINT, once a checkpoint is written.
        """
        with locked_folder(folder), _stop_signals() as stopped:
            self._check_task(folder, task)
            if (checkpoint := latest_checkpoint(folder)) is not None:
                self._load(checkpoint)
                reporter.say(f"going on after {self.tokens:,} tokens and {self.seconds / 60:.1f} minutes")
            else:
                self._measure(reporter, 0.0)
            while self.progress < 1:
                steps_before = self.steps
                self._until_checkpoint(stopped, reporter)
                # Without a new step the name would be that of an existing checkpoint, which is never overwritten.
                if self.steps > steps_before:
                    self._save(folder, tokenizer, origin)
                if stopped.is_set():
                    raise KeyboardInterrupt
            if self.history[-1]["steps"] != self.steps:  # it was stopped in the last step
                self._measure(reporter, self.tokens / self.seconds)

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return (self.tokens if self._in_tokens else self.seconds) / self._budget

    def _until_checkpoint(self, stopped: threading.Event, reporter: Reporter) -> None:
        start, seconds_before, tokens_before = time.monotonic(), self.seconds, self.tokens
        batches = self._passages.batches(self.round, BATCH_TOKENS)
        while self.progress < 1 and not stopped.is_set() and self.seconds - seconds_before < CHECKPOINT_S:
            self._step([self._passages.row(*position) for position in batches[self.batch]])
            self.batch += 1
            if self.batch == len(batches):
                self.round, self.batch = self.round + 1, 0
                batches = self._passages.batches(self.round, BATCH_TOKENS)
            self.seconds = seconds_before + time.monotonic() - start
        if not stopped.is_set():
            self._measure(reporter, (self.tokens - tokens_before) / max(self.seconds - seconds_before, 1e-9))
        self.seconds = seconds_before + time.monotonic() - start

    def _step(self, rows: Sequence[Any]) -> None:
        progress = self.progress
        rate = LEARNING_RATE * min(progress / WARM_UP, (1 - progress) / (1 - WARM_UP), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        ids, mask = self._batch_of(rows)
        config = self.student.config
        stops = [*config.exits, config.num_recurrences]
        loss, _, _ = self._compare(ids, mask, int(np.random.default_rng(self.steps).choice(stops)))
        if not torch.isfinite(loss):
            raise RunError(f"the loss is not a number after {self.steps:,} steps; the last checkpoint is untouched")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += int(mask.sum())

    def _compare(self, ids: Tensor, mask: Tensor, exit_after: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of a batch, and the mean final state of each row, the student's and the teacher's."""
        with torch.no_grad():
            teacher_states, teacher_projected = self._states(self._teacher, ids, mask)
        states, projected = self._states(self.student, ids, mask, exit_after)
        # The states before the first layer are compared, and those after each matched layer.
        layers = (0, *self._matched[: len(states) - 2], self._matched[-1])
        *earlier, final = (
            _distance(states_after, teacher_states[layer], mask) / self._variances[layer]
            for states_after, layer in zip(states, layers, strict=True)
        )
        student_means, teacher_means = mean(states[-1], mask), mean(teacher_states[-1], mask)
        terms = {
            STATES: final + LAYER_WEIGHT * torch.stack(earlier).mean(),
            COSINE: 1 - functional.cosine_similarity(student_means, teacher_means).mean(),
        }
        if projected is not None and teacher_projected is not None:
            heads = self.student.config.num_attention_heads
            terms[RELATIONS] = relation_divergence(projected, teacher_projected, mask, heads)
        return torch.stack([terms[term] for term in self._loss]).sum(), student_means, teacher_means

    def _states(
        self, model: RecurraModel, ids: Tensor, mask: Tensor, exit_after: int | None = None
    ) -> tuple[list[Tensor], Tensor | None]:
        """States before the first and after each layer, and the last layer's queries, keys and values if needed."""
        projected: deque[Tensor] = deque(maxlen=1)
        with contextlib.ExitStack() as hooks, autocast(self._precision, self._device):
            for module in model.modules() if RELATIONS in self._loss else ():
                if isinstance(module, SelfAttention):
                    hook = module.qkv_proj.register_forward_hook(lambda *call: projected.append(call[-1]))
                    hooks.enter_context(hook)
            output = model(ids, mask, exit_after=exit_after, output_hidden_states=True, return_dict=True)
        return [states.float() for states in output.hidden_states], projected[-1] if projected else None

    def _batch_of(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Padded rows and their mask."""
        ids, inside = pad_rows(rows, self._padding)
        return torch.from_numpy(ids).to(self._device), torch.from_numpy(inside.astype(np.int64)).to(self._device)

    @torch.no_grad()
    def _teacher_variances(self) -> list[float]:
        """Mean variance of a channel of the teacher's states on held-out passages, before and after each layer."""
        sums: list[Tensor] = []
        for ids, mask in self._held_out:
            real = mask.bool()
            layers = [states[real].double() for states in self._states(self._teacher, ids, mask)[0]]
            moments = [
                torch.stack([torch.full_like(rows[0], len(rows)), rows.sum(0), rows.square().sum(0)]) for rows in layers
            ]
            sums = [total + new for total, new in zip(sums, moments, strict=True)] if sums else moments
        return [((squares / count) - (total / count).square()).mean().item() for count, total, squares in sums]

    @torch.no_grad()
    def _measure(self, reporter: Reporter, tokens_per_s: float) -> None:
        """Measures loss and similarity to the teacher on the held-out passages, and reports them."""
        losses, *means = zip(*(self._compare(ids, mask) for ids, mask in self._held_out), strict=True)
        student, teacher = map(torch.cat, means)
        loss = sum(len(ids) * loss.item() for (ids, _), loss in zip(self._held_out, losses, strict=True)) / len(student)
        similarity = functional.cosine_similarity(student - student.mean(0), teacher - teacher.mean(0)).mean().item()
        entry = {
            "steps": self.steps,
            "tokens": self.tokens,
            "minutes": round(self.seconds / 60, 3),
            "tokens_per_s": round(tokens_per_s, 1),
            "held_out_loss": round(loss, 6),
            "kept": round(similarity, 6),
        }
        self.history.append(entry)
        reporter.say(
            f"{min(1.0, self.progress):.1%}: {self.tokens:,} tokens, {tokens_per_s:,.0f} a second; held out: loss "
            f"{entry['held_out_loss']:.4f}, {similarity:.3f} of the encoder's function kept"
        )

    def _check_task(self, folder: Path, task: dict[str, Any]) -> None:
        path = folder / TASK_NAME
        if not path.exists():
            write_json(path, task)
            return
        try:
            stored = read_json(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"'{path}' is damaged ({error}); delete '{folder}' and start again") from error
        # Earlier versions had one loss.
        stored = {"loss": list(LOSS), **stored} if isinstance(stored, dict) else {}
        for key, value in json.loads(json.dumps(task)).items():
            if stored.get(key) != value:
                other = f"another '{key}' ({stored.get(key)} instead of {value})"
                if key == "compared_on":
                    other = "other texts to compare plans on (--texts)"
                raise ConfigurationError(
                    f"'{folder}' holds a training that was started with {other}; continue it with the same command, "
                    "delete that folder, or choose another --output"
                )

    def _save(self, folder: Path, tokenizer: Any, origin: dict[str, Any]) -> None:
        checkpoint = folder / f"checkpoint-{self.steps}"
        with storage_errors(checkpoint):
            checkpoint.mkdir(parents=True, exist_ok=True)
            self.student.save_pretrained(checkpoint)
            tokenizer.save_pretrained(checkpoint)
        save_optimizer(checkpoint / OPTIMIZER_NAME, self._optimizer.state_dict())
        write_json(checkpoint / ADAPTATION_NAME, origin)
        write_json(checkpoint / _STATE_NAME, {name: getattr(self, name) for name in _STATE})
        mark_complete(checkpoint, self.steps)
        remove_checkpoints_but(folder, {self.steps})

    def _load(self, checkpoint: Path) -> None:
        try:
            state = read_json(checkpoint / _STATE_NAME)
            load_model(self.student, checkpoint / WEIGHTS_NAME)
            for name in _STATE:
                setattr(self, name, state[name])
        except Exception as error:
            raise CheckpointError(f"'{checkpoint}' is damaged ({error}); delete it and start again") from error
        self._optimizer.load_state_dict(load_optimizer(checkpoint / OPTIMIZER_NAME))


def _distance(student_states: Tensor, teacher_states: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error over real tokens."""
    squares = (student_states - teacher_states).square().mean(dim=-1)
    return (squares * mask).sum() / mask.sum()


def relation_divergence(student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
    """The loss of MiniLMv2 (Wang et al. 2021, section 3.1), for relation heads that are the encoder's own.

    Queries attend to queries, keys to keys and values to values. The divergence of the student's attention from the
    teacher's is a mean over heads and real tokens, and a sum over the three. ``student`` and ``teacher`` are those
    three side by side, ``(batch, tokens, 3 hidden)``.
    """

    def attention(projected: Tensor) -> Tensor:
        parts = projected.float().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        scores = parts @ parts.mT / parts.shape[-1] ** 0.5
        # Not infinite, because the difference of two infinities is not a number.
        return scores.masked_fill(mask[:, None, None] == 0, -1e4).log_softmax(dim=-1)

    divergences = functional.kl_div(attention(student), attention(teacher), reduction="none", log_target=True)
    return (divergences.sum(dim=-1) * mask[:, None]).sum() / (heads * mask.sum())


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set instead of their usual effect; only in the main thread."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    handlers = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
