"""Language models under lm-evaluation-harness: `RecurraLM`, registered there as ``recurra`` once it is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recurra.core.errors import UnavailableError

if TYPE_CHECKING:
    from recurra.study.harness.adapter import RecurraLM

__all__ = ["RecurraLM"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from recurra.study.harness.adapter import RecurraLM
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise UnavailableError("lm-evaluation-harness is not installed; pip install 'recurra[harness]'") from error
    return RecurraLM
