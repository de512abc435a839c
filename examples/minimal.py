"""The models of both papers in plain PyTorch, to be read: nothing of recurra is imported, nothing is fast.

- `Classifier`: N layers applied R times, then a linear map of the first token's state (Guo et al., section 4.1).
  `R = 1` is the stacked baseline, `R = 2` the recurrent model.
- `LanguageModel`: one block applied L times, with a head after some of its loops, and early exit ("CRT-Deep").

Parameters have the names that recurra's models have, so `load_state_dict` takes a checkpoint of the same shape, and
`tests/unit/examples/test_minimal.py` holds outputs, losses and gradients to the library's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100


def rotate(states: Tensor) -> Tensor:
    """Rotary positions: pair (2i, 2i + 1) of a head turns by position * 10000^(-2i / d). (batch, heads, tokens, d)."""
    tokens, width = states.shape[-2:]
    speeds = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(tokens)[:, None] * speeds
    first, second = states[..., 0::2], states[..., 1::2]
    turned = (first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


class Attention(nn.Module):
    """Multi-head self-attention over (batch, tokens, hidden)."""

    def __init__(self, hidden: int, heads: int, *, bias: bool, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv_proj = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.out_proj = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, states: Tensor, visible: Tensor) -> Tensor:
        """``visible`` (batch or 1, 1, queries or 1, keys) is true where a query may look."""
        parts = self.qkv_proj(states).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        shares = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return self.out_proj((shares @ value).transpose(1, 2).flatten(-2))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, states: Tensor) -> Tensor:
        return states * (states.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


class SwiGLU(nn.Module):
    """W3 (SiLU(W1 x) * W2 x); W1 and W2 lie in one matrix."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inner)
        self.down_proj = nn.Linear(inner, hidden)

    def forward(self, states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(states).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


# --- Recurrent and stacked classifiers -------------------------------------------------------------------------------


class Layer(nn.Module):
    """Pre-norm: h' = h + Attention(Norm1(h)); h'' = h' + FFN(Norm2(h')), with dropout on both branches."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden)
        self.attention = Attention(hidden, heads, bias=True, rotary=True)
        self.feed_forward_norm = RMSNorm(hidden)
        self.feed_forward = SwiGLU(hidden, inner)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, visible: Tensor) -> Tensor:
        states = states + self.dropout(self.attention(self.attention_norm(states), visible))
        return states + self.dropout(self.feed_forward(self.feed_forward_norm(states)))


class Classifier(nn.Module):
    """h(r+1) = F(h(r)) + alpha h(r), r = 1 .. R, where F is the same N layers each time; alpha is 0 if R is 1."""

    def __init__(
        self, vocab: int, labels: int, hidden: int, heads: int, inner: int, layers: int, recurrences: int,
        alpha: float = 0.5, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.recurrences, self.alpha = recurrences, alpha if recurrences > 1 else 0.0
        embeddings = nn.ModuleDict(
            {"token": nn.Embedding(vocab, hidden), "token_type": nn.Embedding(2, hidden), "norm": RMSNorm(hidden)}
        )
        block = nn.ModuleDict({"layers": nn.ModuleList(Layer(hidden, heads, inner, dropout) for _ in range(layers))})
        self.model = nn.ModuleDict({"embeddings": embeddings, "core": nn.ModuleDict({"block": block})})
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, labels)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """Token ids and truth values (batch, tokens), true at real tokens, to logits (batch, labels)."""
        embeddings = self.model["embeddings"]
        states = embeddings["token"](ids) + embeddings["token_type"].weight[0]
        states = self.dropout(embeddings["norm"](states))
        visible = real[:, None, None, :]
        for _ in range(self.recurrences):
            updated = states
            for layer in self.model["core"]["block"]["layers"]:
                updated = layer(updated, visible)
            states = updated + self.alpha * states
        return self.classifier(states[:, 0])


# --- The convolutional recursive language model ----------------------------------------------------------------------


class Convolution(nn.Module):
    """A depthwise convolution that reads earlier positions alone, GELU, and a linear map."""

    def __init__(self, hidden: int, dilation: int, kernel: int = 3) -> None:
        super().__init__()
        self.dilation = dilation
        self.depthwise = nn.ParameterDict({"weight": torch.randn(kernel, hidden) / kernel**0.5})
        self.pointwise = nn.Linear(hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        taps = self.depthwise["weight"]
        tokens, mixed = states.shape[1], torch.zeros_like(states)
        for tap, weight in enumerate(taps):
            lag = (len(taps) - 1 - tap) * self.dilation
            mixed = mixed + functional.pad(states, (0, 0, lag, 0))[:, :tokens] * weight
        return self.pointwise(functional.gelu(mixed))


class Cycle(nn.Module):
    """h <- h + Dropout(MLP(Norm(Conv(h)))) (equation 2)."""

    def __init__(self, hidden: int, inner: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.mixer = Convolution(hidden, dilation)
        self.norm = nn.LayerNorm(hidden)
        self.transform = nn.ModuleDict({"up_proj": nn.Linear(hidden, inner), "down_proj": nn.Linear(inner, hidden)})
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        change = functional.gelu(self.transform["up_proj"](self.norm(self.mixer(states))))
        return states + self.dropout(self.transform["down_proj"](change))


class Cycles(nn.Module):
    """Cycles one after the other, each with weights of its own, dilated by 1, 2, 4, 8 in turn."""

    def __init__(self, hidden: int, inner: int, count: int, dropout: float) -> None:
        super().__init__()
        self.cycles = nn.ModuleList(Cycle(hidden, inner, (1, 2, 4, 8)[i % 4], dropout) for i in range(count))

    def forward(self, states: Tensor) -> Tensor:
        for cycle in self.cycles:
            states = cycle(states)
        return states


class Block(nn.Module):
    """Post-norm: x = Norm1(x + Attention(x)); z = Norm2(x + TRM(x)) (section 4.2.2)."""

    def __init__(self, hidden: int, heads: int, inner: int, cycles: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, bias=False, rotary=False)
        self.attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = Cycles(hidden, inner, cycles, dropout)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, visible: Tensor) -> Tensor:
        states = self.attention_norm(states + self.dropout(self.attention(states, visible)))
        return self.feed_forward_norm(states + self.feed_forward(states))


class LanguageModel(nn.Module):
    """One block, applied ``loops`` times; after each loop in ``exits``, and after the last, a head tied to the table.

    What a loop reads is the state before it plus a learned encoding of the loop's number.
    """

    def __init__(
        self, vocab: int, hidden: int, table: int, heads: int, inner: int, cycles: int, loops: int, exits: list[int],
        embedding_cycles: int, context: int, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.loops, self.exits = loops, exits
        embeddings = nn.ModuleDict(
            {
                "token": nn.Embedding(vocab, table),
                "projection": nn.Linear(table, hidden),
                "refinement": Cycles(hidden, inner, embedding_cycles, dropout),
                "position": nn.Embedding(context, hidden),
            }
        )
        block = nn.ModuleDict({"layers": nn.ModuleList([Block(hidden, heads, inner, cycles, dropout)])})
        core = nn.ModuleDict({"block": block, "recurrence_embedding": nn.Embedding(loops, hidden)})
        self.model = nn.ModuleDict({"embeddings": embeddings, "core": core})
        self.heads = nn.ModuleDict({"projection": nn.Linear(hidden, table, bias=False)})

    def embed(self, ids: Tensor) -> Tensor:
        """E = TRM(Linear(Embed(x))) + PosEmbed(p) (equation 1)."""
        embeddings = self.model["embeddings"]
        states = embeddings["refinement"](embeddings["projection"](embeddings["token"](ids)))
        return states + embeddings["position"].weight[: ids.shape[1]]

    def loop(self, states: Tensor, number: int) -> Tensor:
        """One application of the block, the first has number 0."""
        tokens = states.shape[1]
        visible = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()
        core = self.model["core"]
        return core["block"]["layers"][0](states + core["recurrence_embedding"].weight[number], visible)

    def head(self, states: Tensor) -> Tensor:
        """Logits over the vocabulary."""
        return self.heads["projection"](states) @ self.model["embeddings"]["token"].weight.T

    def forward(self, ids: Tensor) -> list[Tensor]:
        """Token ids (batch, tokens) to logits (batch, tokens, vocabulary) of each exit, the last head's at the end."""
        states, logits = self.embed(ids), []
        for number in range(self.loops):
            states = self.loop(states, number)
            if number + 1 in (*self.exits, self.loops):
                logits.append(self.head(states))
        return logits

    def loss(self, ids: Tensor, real: Tensor, exit_weight: float = 0.3) -> Tensor:
        """(1 - w) * last + w * mean of the exits, of the next token's cross-entropy (equation 5), without padding."""
        targets = ids[:, 1:].masked_fill(~real[:, 1:], IGNORED).flatten()
        *exits, last = [
            functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, ignore_index=IGNORED)
            for logits in self(ids)
        ]
        return last if not exits else (1 - exit_weight) * last + exit_weight * sum(exits) / len(exits)

    @torch.inference_mode()
    def predict_next(
        self, ids: Tensor, start: float = 0.92, decay: float = 0.98, floor: float = 0.80
    ) -> tuple[int, int]:
        """The next token of one row (1, tokens), and the loops it took: it leaves at the first exit that is sure.

        The bound falls with the loops: max(floor, start * decay^loop), the published schedule.
        """
        states = self.embed(ids)
        for number in range(1, self.loops + 1):
            states = self.loop(states, number - 1)
            if number in (*self.exits, self.loops):
                confidence, token = self.head(states[:, -1]).softmax(-1).max(-1)
                if number == self.loops or confidence.item() >= max(floor, start * decay**number):
                    break
        return int(token), number


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, shape in {"baseline": (384, 6, 1536, 6, 1), "recurrent": (256, 4, 1024, 3, 2)}.items():
        print(name, sum(weight.numel() for weight in Classifier(30_522, 2, *shape).parameters()))
    model = LanguageModel(8192, 128, 64, 4, 512, 4, 4, [1, 2, 3], 2, 256)
    print("crt-tiny", sum(weight.numel() for weight in model.parameters()))
