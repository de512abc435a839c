"""Plans of an encoder are scored once and chosen within budgets, and a student learns the encoder's states.

It comes nearer, goes on after a kill to the bit, and refuses test texts; what cannot be is said before anything is
computed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recurra import adaptation
from recurra.adaptation import Adaptation, AdaptationOptions, PlanPoint, PlanScores, adapt
from recurra.core.errors import CheckpointError, ConfigurationError, UnavailableError
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.data.tokenization import read_tokenizer
from recurra.ladder import choose_models
from recurra.models.adaptation.convert import KeptFunction, load_encoder
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import INT8_NAME, SHIPPED, find_encoder
from recurra.models.configuration import RecurraConfig
from recurra.tasks.base import task
from recurra.training import general_distillation
from recurra.training.general_distillation import GeneralDistillation
from reviews import Command, write_reviews
from tiny_encoder import write_tiny_encoder

RELAXED: dict[str, Any] = {"recurrence_norms": True, "low_rank": 2}
LOOPED: dict[str, Any] = {"plan": "0 (1)x2", "stored": None}
STEP = GeneralDistillation._step
Adapt = Callable[..., Adaptation]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    lines = write_reviews(folder / "reviews.csv", rows=60).read_text(encoding="utf-8").splitlines()
    (folder / "books.jsonl").write_text(json.dumps({"text": ". ".join(lines[1:])}) + "\n", encoding="utf-8")
    sizes = {"layers": 3, "max_position_embeddings": 160}
    write_tiny_encoder(folder / "encoder", lines, initializer_range=0.3, hidden_dropout_prob=0.1, **sizes)
    return folder


@pytest.fixture
def adapted(root: Path, tmp_path: Path) -> Adapt:
    """Adapts the encoder into a folder of this name."""
    usual = {"texts": root / "reviews.csv", "stored": 2, "cache_dir": root / "cache", "overwrite": True}

    def run(name: str, **values: Any) -> Adaptation:
        options = AdaptationOptions(**{**usual, **values})
        return adapt(str(root / "encoder"), tmp_path / name, options, reporter=Reporter(quiet=True))

    return run


@pytest.fixture
def taught(root: Path, adapted: Adapt, monkeypatch: pytest.MonkeyPatch) -> Adapt:
    """Teaches a student of given layers."""
    monkeypatch.setattr(general_distillation, "BATCH_TOKENS", 256)
    teach = [str(root / "reviews.csv"), str(root / "books.jsonl")]
    usual = {"texts": None, "plan": "0 2", "stored": None, "teach": teach, "tokens": 4000}
    return lambda name="small", **values: adapted(name, **{**usual, **values})


def parameters_of(folder: object, plan: str = "", **keys: Any) -> int:
    return sum(part.numel() for part in load_encoder(str(folder), plan, **keys).parameters())


def kept(folder: Path) -> Any:
    return json.loads((folder / "adaptation.json").read_text(encoding="utf-8"))


def stop(self: GeneralDistillation, rows: Any) -> None:
    raise KeyboardInterrupt


def in_windows(root: Path, path: Path) -> Path:
    """The texts in another encoding."""
    path.write_bytes((root / "reviews.csv").read_text(encoding="utf-8").encode("utf-16-le"))
    return path


def some_rows_of(root: Path, path: Path, first: int, last: int) -> str:
    header, *lines = (root / "reviews.csv").read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, *lines[first:last]]) + "\n", encoding="utf-8")
    return str(path)


def test_scores_are_computed_once_and_by_content(
    root: Path, adapted: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    honest = KeptFunction.score

    def counted(self: KeptFunction, plan: SharingPlan) -> Any:
        computed.append(str(plan))
        return honest(self, plan)

    monkeypatch.setattr(KeptFunction, "score", counted)
    cache = {"cache_dir": tmp_path / "cache"}
    first = adapted("one", **cache)
    assert sorted(computed) == sorted(str(each.plan) for each in first.scores) and len(computed) > 5
    computed.clear()
    assert adapted("two", **cache).scores == first.scores
    adapted("three", **cache, texts=in_windows(root, tmp_path / "windows.csv"), encoding="utf-16-le")
    # What changes nothing before training changes no score.
    relaxed = adapted("four", **cache, changes=RELAXED)
    assert computed == []
    # Plans are counted as they are built.
    for each in relaxed.scores:
        own = RELAXED if each.plan.recurrences > 1 else {}
        assert each.parameters == parameters_of(root / "encoder", str(each.plan), **own)
    assert kept(tmp_path / "four")["scores"][0]["parameters"] == relaxed.parameters
    adapted("five", **cache, texts=write_reviews(tmp_path / "other.csv", rows=30, seed=5))
    assert len(computed) == len(first.scores)


def test_a_relaxed_plan_is_written_the_same_every_time(adapted: Adapt, tmp_path: Path) -> None:
    changes = {"low_rank": 3, "recurrence_norms": True}
    for name in ("one", "two"):
        adapted(name, **LOOPED, changes=changes)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
    assert kept(tmp_path / "one")["changes"] == changes


def test_a_narrow_table_is_scored_counted_and_written(adapted: Adapt) -> None:
    narrow, plain = (adapted(str(width), **LOOPED, changes={"embedding_size": width}) for width in (6, 16))
    assert load_encoder(str(narrow.folder)).embeddings.token.weight.shape[1] == 6
    assert narrow.parameters == parameters_of(narrow.folder) < plain.parameters
    assert narrow.scores[0].score < plain.scores[0].score - 0.001
    assert plain.scores == adapted("none", **LOOPED).scores


@pytest.mark.parametrize("longest", [300, 40], ids="{} tokens".format)
def test_a_text_of_mean_length_is_cut_to_what_the_encoder_reads_alone(longest: int, tmp_path: Path) -> None:
    source = find_encoder(str(write_tiny_encoder(tmp_path / "encoder", max_position_embeddings=longest)))
    texts = [["a good film " * words] for words in (1, 1000)]
    scores = PlanScores(source, texts, RecurraConfig(**source.shape("(0)x2")), tmp_path / "cache")
    assert scores.mean_tokens == round((5 + longest) / 2)
    assert scores.score(SharingPlan.stack(4)) == pytest.approx(1, abs=1e-4)


def test_budgets_choose_among_plans(root: Path, adapted: Adapt, tmp_path: Path) -> None:
    two = parameters_of(root / "encoder", "0 1")
    asked: dict[str, Any] = {"stored": None, "max_parameters": two}
    made = adapted("small", **asked)
    assert {each.plan.stored for each in made.scores} == {1, 2}
    assert max(each.parameters for each in made.scores) == two
    # Updates cost parameters too: a loop over two layers has no room for them.
    relaxed = adapted("relaxed", **asked, changes=RELAXED)
    assert all(each.parameters <= two for each in relaxed.scores)
    assert {each.plan.recurrences for each in relaxed.scores if each.plan.stored == 2} == {1}
    stack = adapted("stack", max_parameters=two, changes={**RELAXED, "hidden_dropout": 0.2})
    assert stack.plan.recurrences == 1 and stack.changes == {"hidden_dropout": 0.2}
    shallow = adapted("shallow", stored=None, applied=2)
    assert {each.plan.stored for each in shallow.scores} == {each.plan.applied for each in shallow.scores} == {2}
    timed = adapted("timed", max_ms=1e6)
    times = {each.plan.applied: each.ms for each in timed.scores}
    assert sorted(times) == [2, 3] and None not in times.values()
    assert kept(tmp_path / "timed")["scores"][0]["estimated_ms"] > 0


def test_the_folder_of_work_can_be_written(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = AdaptationOptions(plan="0 1", overwrite=True)
    adapt(str(root / "encoder"), ".", options, reporter=Reporter(quiet=True))
    assert load_encoder(str(tmp_path)).config.num_hidden_layers == 2


def test_teaching_brings_a_student_nearer_and_says_on_what(root: Path, taught: Adapt, tmp_path: Path) -> None:
    apart = some_rows_of(root, tmp_path / "apart.csv", 0, 5)
    made = taught(changes={"embedding_size": 8}, tokens=6000, apart=[apart])
    known = kept(tmp_path / "small")
    history, texts = known["taught"]["history"], known["taught"]["texts"]
    assert history[-1]["held_out_loss"] < 0.9 * history[0]["held_out_loss"] and history[-1]["kept"] > history[0]["kept"]
    assert 6000 <= history[-1]["tokens"] == known["taught"]["tokens"]
    names = [text["name"] for text in texts]
    assert names == [f"{root.name}/reviews.csv", f"{root.name}/books.jsonl"]
    # Reported texts teach nothing.
    assert all(len(text["sha256"]) == 64 and text["left_out"] >= 1 for text in texts)
    assert all(name in known["trained_on"] for name in names) and made.trained_on == known["trained_on"]
    assert load_encoder(str(tmp_path / "small")).embeddings.token.weight.shape[1] == 8
    assert not (tmp_path / "small.teaching").exists()


def test_a_killed_teaching_goes_on_to_the_bit(taught: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught("whole")

    def killed(self: GeneralDistillation, rows: Any) -> None:
        STEP(self, rows)
        if self.steps == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.steps == 12:
            raise MemoryError

    monkeypatch.setattr(GeneralDistillation, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        taught("parts")
    # After this step nothing is saved: it is done again.
    with pytest.raises(MemoryError):
        taught("parts")
    assert not (tmp_path / "parts").exists()
    # What there is so far is an encoder that can be looked at.
    checkpoint = tmp_path / "parts.teaching" / "checkpoint-7"
    load_encoder(str(checkpoint))
    read_tokenizer(checkpoint)
    monkeypatch.setattr(GeneralDistillation, "_step", STEP)
    names = find_encoder(str(checkpoint)).taught
    taught("parts")
    assert names == find_encoder(str(tmp_path / "parts")).taught and len(names) == 2
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    torch.testing.assert_close(parts, whole, rtol=0, atol=0)


def test_a_stop_in_the_last_step_leaves_out_no_measurement(taught: Adapt, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: GeneralDistillation, rows: Any) -> None:
        STEP(self, rows)
        if self.progress >= 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(GeneralDistillation, "_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        taught(tokens=600)
    found = taught(tokens=600).taught
    assert found["history"][-1]["tokens"] == found["tokens"] >= 600


def test_another_plan_budget_or_text_does_not_go_on(
    root: Path, taught: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeneralDistillation, "_step", stop)
    one, other = (some_rows_of(root, tmp_path / f"{row}.csv", row, row + 1) for row in (0, 1))
    asked: dict[str, Any] = {"teach": [str(root / "reviews.csv")], "apart": [one]}
    with pytest.raises(KeyboardInterrupt):
        taught(**asked)
    others: dict[str, dict[str, Any]] = {
        "plan": {"plan": "0 1"},
        "tokens": {"tokens": 7000},
        "texts": {"apart": [other]},
        "loss": {"loss": ["relations"]},
    }
    for key, changed in others.items():
        with pytest.raises(ConfigurationError, match=f"another '{key}'"):
            taught(**{**asked, **changed})


def test_a_plan_that_was_searched_is_not_searched_again(
    root: Path, taught: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, others = in_windows(root, tmp_path / "windows.csv"), tmp_path / "others.csv"
    others.write_text("text\na good film\nno idea\n", encoding="utf-16-le")
    asked: dict[str, Any] = {"plan": "auto", "stored": 1, "texts": texts, "teach": [str(texts)], "tokens": 600}
    asked |= {"encoding": "utf-16-le", "max_ms": 1e6}
    found: list[list[PlanPoint]] = []
    search = adaptation._search

    def searched(*given: Any) -> list[PlanPoint]:
        found.append(search(*given))
        return found[-1]

    monkeypatch.setattr(adaptation, "_search", searched)
    monkeypatch.setattr(GeneralDistillation, "_step", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            taught(**asked)
    # Where times have changed, another plan would be the best.
    assert len(found) == 1
    for changed in ({"applied": 2}, {"texts": others}):
        with pytest.raises(ConfigurationError, match=r"another '(plan|budgets)'|other texts"):
            taught(**{**asked, **changed})
    monkeypatch.setattr(GeneralDistillation, "_step", STEP)
    assert taught(**asked).scores == found[0] and len(found[0]) > 1


def test_minutes_are_counted(taught: Adapt) -> None:
    assert 0.01 <= taught(tokens=None, minutes=0.01).taught["minutes"] < 0.5


def test_a_run_says_that_its_encoder_has_read_the_reported_texts(
    root: Path, taught: Adapt, tmp_path: Path, command: Command
) -> None:
    encoder = taught(plan="0", teach=[str(root / "reviews.csv")], tokens=300, int8=True).folder
    notes = {}
    for data in (root / "reviews.csv", write_reviews(tmp_path / "other.csv", rows=60, seed=5)):
        given = ["--model", encoder, "--data", data, "--output", tmp_path / data.stem, "--max-length", 16]
        command("train", *given, "--cache-dir", tmp_path / "cache", "--quiet", "max_epochs=1")
        record = read_record(tmp_path / data.stem)
        # By the number of training rows, because it starts from an encoder.
        assert record.training.protocol == "finetune-few"
        notes[data.stem] = [audit.status for audit in record.audits if audit.name == "encoder.texts"]
    assert notes == {"reviews": ["note"], "other": ["passed"]}


def test_whole_numbers_take_a_quarter_and_hardly_change_an_encoder(adapted: Adapt) -> None:
    folders = [adapted(str(int8), **LOOPED, changes={"embedding_size": 8}, int8=int8).folder for int8 in (False, True)]
    assert not (folders[1] / "model.safetensors").exists()
    full, small = (dict(load_encoder(str(folder)).named_parameters()) for folder in folders)
    for name, weights in full.items():
        step = weights.detach().abs().amax(dim=-1, keepdim=True) / 127 if weights.ndim == 2 else 0 * weights.detach()
        assert ((small[name] - weights).abs() <= 0.501 * step).all()


def test_an_encoder_that_is_shipped_is_found_by_name_and_checked(
    adapted: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHIPPED, "recurra-small", tmp_path / "shipped")
    with pytest.raises(UnavailableError, match="not in this installation"):
        find_encoder("recurra-small")
    weights = adapted("shipped", plan="0 2", stored=None, int8=True).folder / INT8_NAME
    assert find_encoder("recurra-small").num_layers == 2
    assert choose_models(task("classification"), encoder="recurra-small").models[-1] == "recurra-small"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged or was changed; install it again: pip"):
        find_encoder("recurra-small")
    weights.unlink()
    with pytest.raises(CheckpointError, match="install it again"):
        find_encoder("recurra-small")


SCORED = "--texts {root}/reviews.csv"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (f"{SCORED} --plan 0,(1)x2 low_rank=17", "'low_rank' is 17; allowed: 0 to hidden_size, which is 16"),
        (f"{SCORED} low_rank=17", "'low_rank' is 17; allowed: 0 to hidden_size, which is 16"),
        (f"{SCORED} exits=[1]", "'exits' is [1], and --plan auto compares plans that cannot have it; leave it out, or"),
        (f"{SCORED} --plan 0,(1)x2 num_recurrences=3", "'num_recurrences' is 3, and the plan says which layers there"),
        (f"{SCORED} --max-parameters 10", "no plan fits the limits; one layer applied once has"),
        (f"{SCORED} --max-ms 0.001", "and takes about"),
        ("--plan 0,1 --stored 2", "--stored is 2, but the plan is '0 1'; use it with --plan auto"),
        ("--plan 0,1 --max-parameters 10", "--max-parameters is 10, but the plan is '0 1'; use it with"),
        ("--output {root} --overwrite", "has files but no adaptation.json, and is not replaced"),
        ("--plan 0,2 --teach {root}/reviews.csv", "--minutes N"),
        ("--teach {root}/reviews.csv --minutes 0", "--minutes is 0; a budget is a finite number above 0"),
        ("--minutes 3", "--teach FILE"),
        ("--plan 0,2 --teach {root}/my_test.csv --tokens 9", "is named like a test or validation part"),
        ("--plan 0,2 --teach {root}/empty.csv --tokens 9", "is empty"),
        ("--plan 0,2 --teach {root}/blank.txt --tokens 9", "no passage to learn from"),
        ("--plan 0,2 --teach {root}/short.txt --tokens 9", "/short.txt': every passage is held out"),
        (
            "--plan 0,2 --teach {root}/short.txt --teach {root}/brief.txt --tokens 9",
            "every passage is held out, and none remains to learn from; give more running text",
        ),
        (
            "--plan 0,2 --teach {root}/reviews.csv --apart {root}/reviews.csv --tokens 9",
            "are texts that models are evaluated on",
        ),
    ],
)
def test_what_cannot_be_is_one_line(root: Path, tmp_path: Path, arguments: str, why: str, command: Command) -> None:
    contents = {"my_test.csv": "text\nfine\n", "empty.csv": "", "blank.txt": "\n\n"}
    contents |= {"short.txt": "A fine film.\n", "brief.txt": "A dull film.\n"}
    for name, content in contents.items():
        (root / name).write_text(content, encoding="utf-8")
    fixed = ["--cache-dir", tmp_path / "cache", "--quiet", "--output", tmp_path / "none"]
    given = [part.format(root=root).replace(",", " ") for part in arguments.split()]
    error = command("adapt", root / "encoder", *fixed, *given, code=2).err
    assert why in error and error.count("\n") == 1
    assert not (tmp_path / "none").exists()
