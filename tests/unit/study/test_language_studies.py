"""The shipped studies of language models compare what they say they compare, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra import RecurraConfig, preset
from recurra.models.presets import HeadKind, count_parameters, language_flops
from recurra.study.spec import expand, load_study
from recurra.tasks.base import RunConfig, base_preset

STUDIES = Path(__file__).parents[3] / "configs" / "studies"
VARIES: dict[str, set[str]] = {
    "lm-leak": {"causal_convolution"},
    "lm-exits": set(),
    "lm-trm": {"feed_forward", "causal_convolution"},
    "lm-embedding": {"embedding_size", "embedding_cycles"},
    "lm-norm": {"norm"},
    "crt-supervision": {"exit_loss_weight"},
    "crt-parts": {"recurrence_embedding", "dilations", "num_cycles", "num_recurrences", "exits"},
}


AGAINST_STACKS = ("lm-compare", "lm-epochs")


def configured(run: RunConfig) -> RecurraConfig:
    values = dict(run.model_overrides)
    base = base_preset(run.model, values)
    values.pop("preset", None)
    return preset(base, **{"vocab_size": run.data.trained_vocab_size, **values})


def test_every_study_of_language_models_is_looked_at() -> None:
    found = {path.stem for start in ("lm", "crt") for path in STUDIES.glob(f"{start}-*.yaml")}
    # lm-depth has one model under two protocols.
    assert found == {*VARIES, *AGAINST_STACKS, "crt-deep", "lm-depth"}


@pytest.mark.parametrize("name", VARIES)
def test_models_differ_in_what_is_asked_about_alone(name: str) -> None:
    runs = expand(load_study(STUDIES / f"{name}.yaml"))
    shapes = [configured(run).to_dict() for run in runs]
    assert {key for shape in shapes for key in shape if shape[key] != shapes[0][key]} == VARIES[name]
    assert len({(run.protocol.name, str(run.data.plain()), run.precision) for run in runs}) == 1


@pytest.mark.parametrize("name", AGAINST_STACKS)
def test_the_controls_are_as_large_or_as_costly_as_what_they_stand_beside(name: str) -> None:
    runs = expand(load_study(STUDIES / f"{name}.yaml"))
    sizes = {run.model: count_parameters(configured(run), HeadKind.LANGUAGE_MODELLING).total for run in runs}
    costs = {run.model: language_flops(configured(run), run.data.context, with_exits=False) for run in runs}
    assert list(sizes) == ["crt-tiny", "stacked-tiny-parameters", "stacked-tiny-flops"]
    assert sizes["stacked-tiny-parameters"] == pytest.approx(sizes["crt-tiny"], rel=1e-3)
    assert costs["stacked-tiny-flops"] == pytest.approx(costs["crt-tiny"], rel=1e-3)
    # Each is equal in one of the two alone.
    assert sizes["stacked-tiny-flops"] > 2 * sizes["crt-tiny"]
    assert costs["stacked-tiny-parameters"] < costs["crt-tiny"] / 2
