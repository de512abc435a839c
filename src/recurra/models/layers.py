"""The parts of layers: norms, attention, feed-forward networks, convolutions, low-rank updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from recurra.models.configuration import RecurraConfig
from recurra.models.names import GELU, SWIGLU
from recurra.models.rows import RowLayout


class DepthwiseConvolution(nn.Module):
    """``y[t] = sum_k w[k] * x[t - lag_k]``, channel by channel, without bias; positions outside the row are zero.

    Causal: the lags are ``(kernel - 1) * dilation, ..., dilation, 0``. Otherwise they are centred on 0, and the later
    half reads the future (`nn.Conv1d` with padding on both sides).
    """

    def __init__(self, channels: int, kernel_size: int, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(kernel_size, channels))
        ahead = 0 if causal else kernel_size // 2
        self.lags = tuple((kernel_size - 1 - tap - ahead) * dilation for tap in range(kernel_size))
        # How far back it reads, in positions.
        self.span = max(self.lags)
        self.dilation = dilation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights as `nn.Conv1d` does: uniform within one over the square root of the taps."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(batch, tokens, channels)`` to the same shape; each entry of the first axis is a row of its own."""
        return _Convolve.apply(states, self.weight.to(states.dtype), self.lags)

    def last(self, window: Tensor) -> Tensor:
        """Maps the last states ``(batch, span + 1, channels)`` to the last position's result; only if causal."""
        return (window[:, :: self.dilation] * self.weight.to(window.dtype)).sum(1, keepdim=True)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, lags: Sequence[int]) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.lags = lags
        return _shifted_sum(states, weight, lags)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        states, weight = ctx.saved_tensors
        state_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            state_gradient = _shifted_sum(gradient, weight, [-lag for lag in ctx.lags])
        if ctx.needs_input_grad[1]:
            products = [_product(*_overlap(gradient, states, lag)) for lag in ctx.lags]
            weight_gradient = torch.stack(products).to(weight.dtype)
        return state_gradient, weight_gradient, None


def _shifted_sum(states: Tensor, weight: Tensor, lags: Sequence[int]) -> Tensor:
    """Sum over the lags of the shifted states times the weights of that tap."""
    taps = sorted(zip(lags, weight, strict=True), key=lambda tap: abs(tap[0]))
    # In every kernel one tap reads the position itself, and so covers every position of the result.
    result = states * taps[0][1]
    for lag, tap in taps[1:]:
        target, source = _overlap(result, states, lag)
        target.addcmul_(source, tap)
    return result


def _overlap(later: Tensor, earlier: Tensor, lag: int) -> tuple[Tensor, Tensor]:
    """The part of ``later`` whose positions minus ``lag`` lie in ``earlier``, and that part of ``earlier``."""
    tokens = later.shape[1]
    shared_tokens = max(tokens - abs(lag), 0)
    first, second = (tokens - shared_tokens, 0) if lag > 0 else (0, tokens - shared_tokens)
    return later[:, first : first + shared_tokens], earlier[:, second : second + shared_tokens]


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Sum of products over batch and tokens, ``(channels,)``, at least in FP32."""
    few_rows = 0 < first.shape[0] <= first.shape[1]
    if first.device.type != "cpu" or not few_rows or first.dtype in (torch.bfloat16, torch.float16):
        return (first * second).sum((0, 1), dtype=torch.promote_types(first.dtype, torch.float32))
    # Row by row, the sum stays in the processor's cache, and the products are never written to memory.
    rows: Iterator[tuple[Tensor, Tensor]] = iter(zip(first, second, strict=True))
    start, other = next(rows)
    total = start * other
    for row, other in rows:
        total.addcmul_(row, other)
    return total.sum(0)


def make_norm(config: RecurraConfig) -> nn.Module:
    """Returns a new norm of the configured kind over the hidden width."""
    if config.norm == "none":
        return nn.Identity()
    kinds = {"rms": RMSNorm, "layer": nn.LayerNorm, "batch": BatchNorm}
    return kinds[config.norm](config.hidden_size, eps=config.rms_norm_eps)


class BatchNorm(nn.BatchNorm1d):
    """Each channel at mean 0 and variance 1 over all positions of all rows (Ioffe and Szegedy 2015, algorithm 1).

    The published code of "CRT-Deep" offers it. In training a position's state depends on every other position, also on
    later ones and padding, so a decoder reads the future; in evaluation it depends on running means alone.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same."""
        return super().forward(states.flatten(0, -2)).view(states.shape)


class RMSNorm(nn.RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis (Zhang and Sennrich 2019, equation 4).

    Computed in FP32 if ``x`` is narrower, and returned in the type of ``x``. On an accelerator, torch's fused kernel
    computes it.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(..., hidden)`` to the same shape and type."""
        if states.device.type != "cpu":
            # The fused kernel wants one type; autocast gives half precision beside an FP32 scale.
            return super().forward(states.to(self.weight.dtype)).to(states.dtype)
        if torch.is_grad_enabled() and (states.requires_grad or self.weight.requires_grad):
            return _RMSNorm.apply(states, self.weight, self.eps)
        normalised, _ = _normalise(states, self.eps)
        return normalised.mul_(self.weight).to(states.dtype)


def _widened(states: Tensor) -> Tensor:
    """Half precision in FP32; FP32 and FP64 as they are."""
    return states if states.dtype == torch.float64 else states.float()


def _normalise(states: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the states scaled to a root mean square of 1, and the factors ``(..., 1)`` of the scaling."""
    states = _widened(states)
    # This takes one pass over the states and writes no squares to memory.
    norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    factor = norm.square_().mul_(1 / states.shape[-1]).add_(eps).rsqrt_()
    return states * factor, factor


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, eps: float) -> Tensor:
        normalised, factor = _normalise(states, eps)
        ctx.save_for_backward(normalised, factor, weight)
        return (normalised * weight).to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normalised, factor, weight = ctx.saved_tensors
        type_given, gradient = gradient.dtype, _widened(gradient)
        weight_gradient = (gradient * normalised).flatten(0, -2).sum(0).to(weight.dtype)
        # With n = x f and u = g w:  dL/dx = f (u - n mean(u n)), the last term through f.
        inner = gradient * weight
        mean_product = (inner * normalised).mean(-1, keepdim=True)
        state_gradient = inner.addcmul_(normalised, mean_product, value=-1).mul_(factor)
        return state_gradient.to(type_given), weight_gradient, None


_BITS = 16


class Dropout(nn.Dropout):
    """Zeroes each element with probability ``p`` while training, and scales the others to keep the mean.

    On a CPU, one element takes 16 random bits of torch's default generator, so ``p`` is rounded to a multiple of 2^-16
    and the scale is that of the rounded ``p``. Elsewhere it is torch's own fused kernel.
    """

    def forward(self, states: Tensor) -> Tensor:
        """Maps any shape to the same shape and type."""
        if not self.training or self.p == 0:
            return states
        if states.device.type != "cpu":
            return super().forward(states)
        return states * keep_mask(states, self.p)


def keep_mask(like: Tensor, p: float) -> Tensor:
    """Returns a random mask of the shape and type of ``like``: 0 with probability ``p``, else ``1 / (1 - p)``."""
    dropped = round(p * 2**_BITS)
    count = like.numel()
    words = torch.empty(-(-count * _BITS // 64), dtype=torch.int64).random_(-(2**63), None)
    # An in-place comparison writes 0 or 1 as int16, several times as fast as a comparison that makes booleans.
    mask = words.view(torch.int16)[:count].ge_(dropped - 2 ** (_BITS - 1)).view(like.shape)
    return mask.to(like.dtype).mul_(2**_BITS / (2**_BITS - dropped))


_Module = TypeVar("_Module", bound=nn.Module)


class SharedLinear(nn.Module):
    """``W x + B A x + b`` with a ``W`` that another module holds, so that the model's state has it once."""

    shared: nn.Linear

    def __init__(self, linear: nn.Linear, rank: int, *, own_bias: bool) -> None:
        super().__init__()
        # As a child module it would be registered, and saved, a second time.
        self.__dict__["shared"] = linear
        outputs, inputs = linear.weight.shape
        self.down = nn.Parameter(torch.zeros(rank, inputs)) if rank else None
        self.up = nn.Parameter(torch.zeros(outputs, rank)) if rank else None
        self.bias = nn.Parameter(torch.zeros(outputs)) if own_bias and linear.bias is not None else None

    def reset_update(self, spread: float) -> None:
        """Draws ``A`` and leaves ``B`` and the bias at 0, so that the update changes nothing at first."""
        for zeros in (self.up, self.bias):
            if zeros is not None:
                nn.init.zeros_(zeros)
        if self.down is not None:
            nn.init.normal_(self.down, std=spread)

    def forward(self, states: Tensor) -> Tensor:
        """Maps ``(..., inputs)`` to ``(..., outputs)``."""
        return self.outputs(states, slice(None))

    def outputs(self, states: Tensor, wanted: slice) -> Tensor:
        """Maps ``(..., inputs)`` to the ``wanted`` outputs."""
        bias = self.shared.bias if self.bias is None else self.bias
        outputs = functional.linear(states, self.shared.weight[wanted], None if bias is None else bias[wanted])
        if self.down is None or self.up is None:
            return outputs
        return outputs + functional.linear(functional.linear(states, self.down), self.up[wanted])


def linear_outputs(linear: nn.Module, states: Tensor, wanted: slice) -> Tensor:
    """Maps ``(..., inputs)`` to the ``wanted`` outputs of a linear map, shared or not."""
    if isinstance(linear, SharedLinear):
        return linear.outputs(states, wanted)
    bias = linear.bias
    return functional.linear(states, linear.weight[wanted], None if bias is None else bias[wanted])


def relax(make: Callable[[], _Module], original: nn.Module, config: RecurraConfig) -> _Module:
    """Returns a module with the weights of another one, except for parts that the configuration makes its own."""
    with torch.device("meta"):
        copy = make()
    updated_part = {"attention": ".attention.", "feed-forward": ".feed_forward."}.get(config.low_rank_where, "")
    for name, module in list(original.named_modules()):
        if not list(module.parameters(recurse=False)):
            continue
        parent_name, _, leaf = name.rpartition(".")
        holder = copy.get_submodule(parent_name)
        rank = config.low_rank if updated_part in f".{name}." else 0
        if isinstance(module, nn.Linear) and (rank or config.recurrence_norms):
            setattr(holder, leaf, SharedLinear(module, rank, own_bias=config.recurrence_norms))
        elif _is_norm(module) and config.recurrence_norms:
            setattr(holder, leaf, make_norm(config))
        else:
            # A plain attribute is accessed like a child but is not registered a second time.
            del holder._modules[leaf]
            holder.__dict__[leaf] = module
    return copy


def leave_matrices(original: nn.Module) -> None:
    """Removes the norms and biases of a module whose relaxed copies have their own."""
    for module in list(original.modules()):
        if isinstance(module, nn.Linear):
            module.register_parameter("bias", None)
        for name, child in module.named_children():
            if _is_norm(child):
                setattr(module, name, nn.Identity())


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.RMSNorm | nn.LayerNorm)


def rotary_table(positions: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Returns cosines and sines for every position and pair, ``(positions, head_dim / 2, 2)`` in FP32.

    Pair ``i`` turns by ``position * theta ** (-2 i / head_dim)`` (Su et al. 2021, RoFormer, equation 15).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), theta**-exponents)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def apply_rotary(states: Tensor, table: Tensor | None) -> Tensor:
    """Turns consecutive pairs ``(2i, 2i+1)`` of each head by the position's angle; without a table, does nothing.

    ``(batch, tokens, ..., head_dim)`` is computed in FP32, and stays in FP32 on a CPU, where attention needs that.
    """
    if table is None:
        return states
    tokens, pairs, _ = table.shape
    middle = (1,) * (states.dim() - 3)
    turn = torch.view_as_complex(table).view(1, tokens, *middle, pairs)
    paired = torch.view_as_complex(states.float().unflatten(-1, (pairs, 2)))
    turned = torch.view_as_real(paired * turn).flatten(-2)
    return turned if states.device.type == "cpu" else turned.to(states.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values come from one matrix product.

    RoPE, if the model has it, turns queries and keys, so that a score depends on the relative position alone. Softmax
    and the products run in ``scaled_dot_product_attention``, which uses the device's fused kernels, if any.
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.hidden_size = config.hidden_size
        self.dropout = config.attention_dropout
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)

    def forward(self, states: Tensor, layout: RowLayout, queries: int | None) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same, or to its first ``queries`` positions if given."""
        batch, tokens, _ = states.shape
        heads, head_dim, width = self.num_heads, self.head_dim, self.hidden_size
        if queries is None:
            qkv = self.qkv_proj(states).view(batch, tokens, 3 * heads, head_dim)
            turned, value = qkv.split((2 * heads, heads), dim=2)
            query, key = apply_rotary(turned, layout.rotary).split(heads, dim=2)
        else:
            query = linear_outputs(self.qkv_proj, layout.leading(states, queries), slice(width))
            rotary = None if layout.rotary is None else layout.leading(layout.rotary[None], queries)[0]
            query = apply_rotary(query.unflatten(-1, (heads, head_dim)), rotary)
            key, value = self.keys_and_values(states, layout.rotary)
        dropout = self.dropout if self.training else 0.0
        return self.out_proj(layout.attend(query, key, value, queries, dropout))

    def keys_and_values(self, states: Tensor, rotary: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values, ``(batch, tokens, heads, head_dim)`` each, of normed states ``(batch, tokens, hidden)``."""
        pair = linear_outputs(self.qkv_proj, states, slice(self.hidden_size, None))
        key, value = pair.unflatten(-1, (2 * self.num_heads, self.head_dim)).split(self.num_heads, dim=2)
        return apply_rotary(key, rotary), value


class SwiGLU(nn.Module):
    """``W3 (SiLU(W1 x) * W2 x)`` (Shazeer 2020, equation 6, with biases); W1 and W2 are one matrix product."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor, layout: RowLayout | None = None) -> Tensor:  # noqa: ARG002 - as cycles are called
        """Maps ``(batch, tokens, hidden)`` to the same shape."""
        # A layer that was wrapped or quantised has to be called as a module.
        if states.device.type == "cpu" and not torch.is_grad_enabled() and type(self.gate_up_proj) is nn.Linear:
            # Without a backward pass buffers are overwritten and nothing is kept.
            gate_weight, up_weight = self.gate_up_proj.weight.chunk(2)
            gate_bias, up_bias = self.gate_up_proj.bias.chunk(2)
            gate = functional.silu(functional.linear(states, gate_weight, gate_bias), inplace=True)
            return self.down_proj(gate.mul_(functional.linear(states, up_weight, up_bias)))
        gate, up = self.gate_up_proj(states).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


class TokenConvolution(nn.Module):
    """``Conv`` of equation 2: a depthwise dilated convolution and GELU, then, if asked for, a pointwise linear map."""

    def __init__(self, config: RecurraConfig, dilation: int, *, pointwise: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.depthwise = DepthwiseConvolution(width, config.kernel_size, dilation, causal=config.causal_convolution)
        self.pointwise = nn.Linear(width, width) if pointwise else nn.Identity()

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same; rows see neither each other nor padding."""
        return self.pointwise(functional.gelu(layout.convolve(states, self.depthwise)))


class Perceptron(nn.Module):
    """Maps to the inner width, GELU, and back: the ``MLP`` of equation 2, and the whole network of BERT's layers."""

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor, layout: RowLayout | None = None) -> Tensor:  # noqa: ARG002 - as cycles are called
        """Maps ``(batch, tokens, hidden)`` to the same shape."""
        return self.down_proj(functional.gelu(self.up_proj(states)))


class Cycle(nn.Module):
    """``h <- h + Dropout(MLP(Norm(Conv(h))))`` (CRT-Deep, equation 2), or one of its ablations (table 3).

    ``conv`` leaves out the MLP, ``linear`` the convolution, ``depthwise`` the convolution's pointwise map.
    """

    def __init__(self, config: RecurraConfig, dilation: int) -> None:
        super().__init__()
        kind = config.feed_forward
        mixes = config.has_convolution
        self.mixer = TokenConvolution(config, dilation, pointwise=kind != "depthwise") if mixes else None
        self.norm = make_norm(config)
        self.transform = nn.Identity() if kind == "conv" else Perceptron(config)
        self.dropout = Dropout(config.hidden_dropout)
        self.quick: Callable[[Tensor, RowLayout], Tensor] | None = None

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same."""
        if (quick := self.quick) is not None:
            return quick(states, layout)
        mixed = states if self.mixer is None else self.mixer(states, layout)
        return states + self.dropout(self.transform(self.norm(mixed)))


def without_modules(cycle: Cycle) -> Callable[[Tensor, RowLayout], Tensor] | None:
    """A cycle for inference without calls of its modules, which take as long as the products of a single token.

    None if the cycle has other parts than the published ones.
    """
    mixer, norm, transform = cycle.mixer, cycle.norm, cycle.transform
    if mixer is None or type(norm) is not nn.LayerNorm or not isinstance(transform, Perceptron) or cycle.training:
        return None
    maps = mixer.pointwise, transform.up_proj, transform.down_proj
    if any(type(linear_map) is not nn.Linear for linear_map in maps):
        return None
    (mix, mix_bias), (up, up_bias), (down, down_bias) = [(linear_map.weight, linear_map.bias) for linear_map in maps]
    depthwise, shape, scale, shift, eps = mixer.depthwise, norm.normalized_shape, norm.weight, norm.bias, norm.eps
    linear, gelu = functional.linear, functional.gelu

    def quick(states: Tensor, layout: RowLayout) -> Tensor:
        mixed = linear(gelu(layout.convolve(states, depthwise)), mix, mix_bias)
        mixed = torch.layer_norm(mixed, shape, scale, shift, eps)
        return states + linear(gelu(linear(mixed, up, up_bias)), down, down_bias)

    return quick


class Refinement(nn.Module):
    """Cycles one after another, each with weights of its own; dilations are taken in turn from the first."""

    def __init__(self, config: RecurraConfig, num_cycles: int) -> None:
        super().__init__()
        dilations = config.dilations
        self.cycles = nn.ModuleList(Cycle(config, dilations[number % len(dilations)]) for number in range(num_cycles))

    def forward(self, states: Tensor, layout: RowLayout) -> Tensor:
        """Maps ``(batch, tokens, hidden)`` to the same."""
        for cycle in self.cycles:
            states = cycle(states, layout)
        return states


def make_feed_forward(config: RecurraConfig) -> nn.Module:
    """Returns a new feed-forward network of the configured kind; it is called with states and layout."""
    if config.has_cycles:
        return Refinement(config, config.num_cycles)
    return {SWIGLU: SwiGLU, GELU: Perceptron}[config.feed_forward](config)


class ScaleKeepingLinear(nn.Linear):
    """A map up from a narrow token table whose fresh weights keep the table's scale.

    Weights of ``initializer_range`` would shrink the token far below what is added to it next, and a small model would
    learn the frequencies of words and little else for hundreds of steps (`docs/log.md`). If a norm follows, the scale
    does not matter.
    """

    def reset_scale(self) -> None:
        """Draws the weights."""
        nn.init.normal_(self.weight, std=self.in_features**-0.5)


class Embeddings(nn.Module):
    """Token table (optionally factorised and refined by cycles), learned positions if not rotary, types, norm, dropout.

    With refinement: ``E = TRM(Linear(Embed(x))) + PosEmbed(p)`` (CRT-Deep, equation 1).
    """

    def __init__(self, config: RecurraConfig) -> None:
        super().__init__()
        width = config.token_embedding_size
        self.token = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        linear = nn.Linear if config.embedding_norm else ScaleKeepingLinear
        self.projection = linear(width, config.hidden_size) if width != config.hidden_size else nn.Identity()
        self.refinement = Refinement(config, config.embedding_cycles) if config.embedding_cycles else None
        learned = config.position == "learned"
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        dropout = config.embedding_dropout
        self.dropout = Dropout(config.hidden_dropout if dropout is None else dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, layout: RowLayout) -> Tensor:
        """Maps ids ``(batch, tokens)`` to states ``(batch, tokens, hidden)``; missing token types mean type 0."""
        # Under autocast the projection gives half precision; the residual stream has the type of the weights.
        states = self.projection(self.token(input_ids)).to(self.token.weight.dtype)
        if self.refinement is not None:
            states = self.refinement(states, layout)
        if self.position is not None:
            states = states + self.position(layout.positions)
        if self.token_type is not None:
            types = self.token_type.weight[0] if token_type_ids is None else self.token_type(token_type_ids)
            states = states + types
        return self.dropout(self.norm(states))
