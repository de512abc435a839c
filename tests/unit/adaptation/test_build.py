"""Plans are scored once, drawn, chosen within budgets; what cannot be is said before anything is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recurra.adaptation import AdaptationOptions, PlanScores, adapt
from recurra.cli.main import main
from recurra.core.progress import Reporter
from recurra.models.adaptation.convert import KeptFunction, load_encoder
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import find_encoder
from recurra.models.configuration import RecurraConfig
from reviews import write_reviews
from tiny_encoder import write_tiny_encoder

QUIET = Reporter(quiet=True)
RELAXED: dict[str, Any] = {"recurrence_norms": True, "low_rank": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    data = write_reviews(folder / "reviews.csv", rows=40)
    write_tiny_encoder(folder / "encoder", data.read_text(encoding="utf-8").splitlines(), initializer_range=0.3)
    return folder


@pytest.fixture
def options(root: Path) -> AdaptationOptions:
    return AdaptationOptions(texts=root / "reviews.csv", stored=2, cache_dir=root / "cache", overwrite=True)


def plans_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "adaptation.json").read_text(encoding="utf-8"))["scores"]
    return found


def test_scores_are_computed_once_and_by_content(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    honest = KeptFunction.score

    def counted(self: KeptFunction, plan: SharingPlan) -> Any:
        computed.append(str(plan))
        return honest(self, plan)

    monkeypatch.setattr(KeptFunction, "score", counted)
    own = replace(options, cache_dir=tmp_path / "cache")
    first = adapt(str(root / "encoder"), tmp_path / "one", own, reporter=QUIET)
    assert sorted(computed) == sorted(str(each.plan) for each in first.scores) and len(computed) > 10
    computed.clear()
    again = adapt(str(root / "encoder"), tmp_path / "two", own, reporter=QUIET)
    assert computed == [] and again.scores == first.scores
    windows = tmp_path / "windows.csv"
    windows.write_bytes((root / "reviews.csv").read_text(encoding="utf-8").encode("utf-16-le"))
    adapt(str(root / "encoder"), tmp_path / "four", replace(own, texts=windows, encoding="utf-16-le"), reporter=QUIET)
    assert computed == []
    # What changes nothing before training changes no score; other texts are scored anew.
    adapt(str(root / "encoder"), tmp_path / "three", replace(own, changes=RELAXED), reporter=QUIET)
    assert computed == []
    write_reviews(tmp_path / "other.csv", rows=30, seed=5)
    adapt(str(root / "encoder"), tmp_path / "five", replace(own, texts=tmp_path / "other.csv"), reporter=QUIET)
    assert len(computed) == len(first.scores)


def test_plans_are_counted_as_they_are_built(root: Path, options: AdaptationOptions, tmp_path: Path) -> None:
    made = adapt(str(root / "encoder"), tmp_path / "small", replace(options, changes=RELAXED), reporter=QUIET)
    for each in (made.scores[0], made.scores[-1], *made.scores[1:40:8]):
        looped = each.plan.recurrences > 1
        model = load_encoder(str(root / "encoder"), str(each.plan), **(RELAXED if looped else {}))
        assert each.parameters == sum(part.numel() for part in model.parameters())
    assert plans_of(tmp_path / "small")[0]["parameters"] == made.parameters


def test_a_relaxed_plan_is_written_the_same_every_time(root: Path, options: AdaptationOptions, tmp_path: Path) -> None:
    asked = replace(options, stored=None, plan="0 (1)x2 3", changes={"low_rank": 3, "recurrence_norms": True})
    for name in ("one", "two"):
        adapt(str(root / "encoder"), tmp_path / name, asked, reporter=QUIET)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
    kept = json.loads((tmp_path / "one" / "adaptation.json").read_text(encoding="utf-8"))
    assert kept["changes"] == asked.changes


def test_a_narrow_table_is_scored_counted_and_written(root: Path, options: AdaptationOptions, tmp_path: Path) -> None:
    encoder = str(root / "encoder")
    asked = replace(options, stored=None, plan="0 (1)x2 3")
    made, plain = (
        adapt(encoder, tmp_path / str(width), replace(asked, changes={"embedding_size": width}), reporter=QUIET)
        for width in (6, 16)
    )
    model = load_encoder(str(made.folder))
    assert model.embeddings.token.weight.shape[1] == 6
    assert made.parameters == sum(part.numel() for part in model.parameters()) < plain.parameters
    assert made.scores[0].score < plain.scores[0].score - 0.001
    assert plain.scores == adapt(encoder, tmp_path / "none", asked, reporter=QUIET).scores


def test_a_text_of_mean_length_is_not_cut_as_those_that_are_scored(root: Path, tmp_path: Path) -> None:
    source = find_encoder(str(write_tiny_encoder(tmp_path / "encoder", max_position_embeddings=300)))
    texts = [["a good film " * words] for words in (1, 1000)]
    scores = PlanScores(source, texts, RecurraConfig(**source.shape("(0)x2")), tmp_path / "cache")
    assert scores.mean_tokens == round((5 + 300) / 2)


def test_budgets_choose_among_plans(root: Path, options: AdaptationOptions, tmp_path: Path) -> None:
    encoder = str(root / "encoder")
    three = sum(part.numel() for part in load_encoder(encoder, "0 1 2").parameters())
    asked = replace(options, stored=None, max_parameters=three)
    made = adapt(encoder, tmp_path / "small", asked, reporter=QUIET)
    assert {each.plan.stored for each in made.scores} == {2, 3}
    assert max(each.parameters for each in made.scores) == three
    # Updates cost parameters too: a loop over three layers has no room for them.
    relaxed = adapt(encoder, tmp_path / "relaxed", replace(asked, changes=RELAXED), reporter=QUIET)
    assert all(each.parameters <= three for each in relaxed.scores)
    assert {each.plan.recurrences for each in relaxed.scores if each.plan.stored == 3} == {1}
    only = replace(asked, stored=3, changes={**RELAXED, "hidden_dropout": 0.2})
    stack = adapt(encoder, tmp_path / "stack", only, reporter=QUIET)
    assert stack.plan.recurrences == 1 and stack.changes == {"hidden_dropout": 0.2}
    shallow = adapt(encoder, tmp_path / "shallow", replace(options, stored=None, applied=2), reporter=QUIET)
    assert {each.plan.stored for each in shallow.scores} == {each.plan.applied for each in shallow.scores} == {2}
    timed = adapt(encoder, tmp_path / "timed", replace(options, max_ms=1e6), reporter=QUIET)
    times = {each.plan.applied: each.ms for each in timed.scores}
    assert sorted(times) == [2, 3, 4] and None not in times.values()
    assert plans_of(tmp_path / "timed")[0]["estimated_ms"] > 0


def test_the_folder_of_work_can_be_written(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    adapt(str(root / "encoder"), ".", replace(options, stored=None, plan="0 1"), reporter=QUIET)
    assert load_encoder(str(tmp_path)).config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--plan", "0 (1)x2", "low_rank=17"], "'low_rank' is 17; allowed: 0 to hidden_size, which is 16"),
        (["low_rank=17"], "'low_rank' is 17; allowed: 0 to hidden_size, which is 16"),
        (["exits=[1]"], "'exits' is [1], and --plan auto compares plans that cannot have it; leave it out, or give a"),
        (["--max-parameters", "10"], "no plan fits the limits; one layer applied once has"),
        (["--max-ms", "0.001"], "and takes about"),
        (["--plan", "0 1", "--stored", "2"], "--stored is 2, but the plan is '0 1'; use it with --plan auto"),
        (["--plan", "0 1", "--max-parameters", "10"], "--max-parameters is 10, but the plan is '0 1'; use it with"),
        (["--output", "{root}", "--overwrite"], "has files but no adaptation.json, and is not replaced"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_is_one_line(
    root: Path, tmp_path: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["--texts", str(root / "reviews.csv"), "--cache-dir", str(root / "cache")]
    given = ["adapt", str(root / "encoder"), *texts, "--output", str(tmp_path / "none"), "--quiet"]
    assert main([*given, *(part.format(root=root) for part in arguments)]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none").exists()
