"""What each recurrence has of its own while the core's matrices are shared: norms, biases, low-rank updates.

Bae et al. 2024, "Relaxed Recursive Transformers" (arXiv 2410.20672): recurrence p computes with
``W + B_p A_p`` where a stack of layers would have a matrix of its own. There all of its matrices have one;
here ``low_rank_where`` may leave some out, and norms and biases may be each recurrence's own too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurra.models.configuration import RecurraConfig
from recurra.models.normalisation import make_norm

_Module = TypeVar("_Module", bound=nn.Module)


class SharedLinear(nn.Module):
    """``W x + B A x + b`` with a ``W`` that another module holds: it stands once in the model's state.

    Args:
        linear: The map whose ``W`` is shared, and whose bias is where there is no other.
        rank: Rows of ``A`` and columns of ``B``; 0 means no update.
        own_bias: Whether ``b`` is a parameter of this module, if the map has a bias.
    """

    shared: nn.Linear

    def __init__(self, linear: nn.Linear, rank: int, *, own_bias: bool) -> None:
        super().__init__()
        # Not as a child: it would be registered, and saved, a second time.
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
        """Maps ``(..., inputs)`` to some of the outputs."""
        bias = self.shared.bias if self.bias is None else self.bias
        found = functional.linear(states, self.shared.weight[wanted], None if bias is None else bias[wanted])
        if self.down is None or self.up is None:
            return found
        return found + functional.linear(functional.linear(states, self.down), self.up[wanted])


def linear_outputs(linear: nn.Module, states: Tensor, wanted: slice) -> Tensor:
    """Maps ``(..., inputs)`` to some outputs of a linear map, shared or not."""
    if isinstance(linear, SharedLinear):
        return linear.outputs(states, wanted)
    bias = linear.bias
    return functional.linear(states, linear.weight[wanted], None if bias is None else bias[wanted])


def relax(make: Callable[[], _Module], original: nn.Module, config: RecurraConfig) -> _Module:
    """Returns a module that computes with the weights of another, but for what the configuration makes its own.

    Args:
        make: Makes a module of the same structure.
        original: Whose weights are used; they are found there whenever it computes, and are saved there alone.
        config: Says what is its own: `recurra.models.configuration.RecurraConfig.recurrence_norms`, ``low_rank`` and
            ``low_rank_where``.
    """
    with torch.device("meta"):
        copy = make()
    for name, module in list(original.named_modules()):
        if not list(module.parameters(recurse=False)):
            continue
        place, _, leaf = name.rpartition(".")
        holder = copy.get_submodule(place)
        rank = config.low_rank if _is_updated(f".{name}.", config) else 0
        if isinstance(module, nn.Linear) and (rank or config.recurrence_norms):
            setattr(holder, leaf, SharedLinear(module, rank, own_bias=config.recurrence_norms))
        elif _is_norm(module) and config.recurrence_norms:
            setattr(holder, leaf, make_norm(config))
        else:
            # A plain attribute: found as a child is, and not registered a second time.
            del holder._modules[leaf]
            holder.__dict__[leaf] = module
    return copy


def leave_matrices(original: nn.Module) -> None:
    """Takes norms and biases out of a module whose relaxed copies have their own."""
    for module in list(original.modules()):
        if isinstance(module, nn.Linear):
            module.register_parameter("bias", None)
        for name, child in module.named_children():
            if _is_norm(child):
                setattr(module, name, nn.Identity())


@torch.no_grad()
def start_from(relaxed: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Gives the norms and biases that a relaxed module has of its own these values.

    Args:
        relaxed: As `relax` makes it.
        weights: By the names that ``relaxed`` has for its parts.
    """
    for name, module in relaxed.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            if kind not in ("down", "up"):
                parameter.copy_(weights[f"{name}.{kind}"])


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.RMSNorm | nn.LayerNorm)


def _is_updated(name: str, config: RecurraConfig) -> bool:
    part = {"attention": ".attention.", "feed-forward": ".feed_forward."}.get(config.low_rank_where, "")
    return part in name
