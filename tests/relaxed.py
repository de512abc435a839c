"""What recurrences have of their own, for the shapes that tests draw."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

RELAXED: dict[str, Any] = {"recurrence_norms": True, "low_rank": 3}
_CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "recurrence_norms": st.booleans(),
    "low_rank": st.sampled_from([0, 1, 3]),
    "low_rank_where": st.sampled_from(["all", "attention", "feed-forward"]),
}


def relaxed_shapes(choices: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Shapes drawn from some choices, in which recurrences may have weights of their own if there are several."""

    def allowed(shape: dict[str, Any]) -> dict[str, Any]:
        if shape["num_recurrences"] == 1:
            return {key: shape[key] for key in choices}
        normed = shape.get("norm", "rms") in ("rms", "layer")
        return {**shape, "recurrence_norms": normed and shape["recurrence_norms"]}

    return st.fixed_dictionaries({**choices, **_CHOICES}).map(allowed)
