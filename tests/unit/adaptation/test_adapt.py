"""An encoder that learns another's states: it comes nearer, goes on after a kill to the bit, and refuses test texts."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from recurra import adaptation
from recurra.adaptation import AdaptationOptions, PlanPoint, adapt
from recurra.cli.main import main
from recurra.core.errors import CheckpointError, UnavailableError
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.data.tokenization import read_tokenizer
from recurra.ladder import choose_models
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.source import INT8_NAME, SHIPPED, find_encoder
from recurra.tasks.base import task
from recurra.training import general_distillation
from recurra.training.general_distillation import GeneralDistillation
from reviews import write_reviews
from tiny_encoder import write_tiny_encoder

QUIET = Reporter(quiet=True)
TOKENS = 6000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    data = write_reviews(folder / "reviews.csv", rows=60)
    lines = data.read_text(encoding="utf-8").splitlines()
    (folder / "books.jsonl").write_text(json.dumps({"text": ". ".join(lines[1:])}) + "\n", encoding="utf-8")
    write_tiny_encoder(
        folder / "encoder", lines, initializer_range=0.3, max_position_embeddings=160, hidden_dropout_prob=0.1
    )
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general_distillation, "BATCH_TOKENS", 256)


@pytest.fixture
def options(root: Path) -> AdaptationOptions:
    texts = (str(root / "reviews.csv"), str(root / "books.jsonl"))
    return AdaptationOptions(plan="0 2 3", teach=texts, tokens=TOKENS, cache_dir=root / "cache", overwrite=True)


def stop(self: GeneralDistillation, rows: Any) -> None:
    raise KeyboardInterrupt


def weights_of(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = load_file(folder / "model.safetensors")
    return found


def test_teaching_brings_a_student_nearer_and_says_on_what(
    root: Path, options: AdaptationOptions, tmp_path: Path
) -> None:
    encoder = str(root / "encoder")
    made = adapt(encoder, tmp_path / "small", replace(options, changes={"embedding_size": 8}), reporter=QUIET)
    known = json.loads((tmp_path / "small" / "adaptation.json").read_text(encoding="utf-8"))
    history = known["taught"]["history"]
    assert history[-1]["held_out_loss"] < 0.9 * history[0]["held_out_loss"] and history[-1]["kept"] > history[0]["kept"]
    assert TOKENS <= history[-1]["tokens"] == known["taught"]["tokens"]
    names = [text["name"] for text in known["taught"]["texts"]]
    assert names == [f"{root.name}/reviews.csv", f"{root.name}/books.jsonl"]
    assert all(len(text["sha256"]) == 64 for text in known["taught"]["texts"])
    assert all(name in known["trained_on"] for name in names) and made.trained_on == known["trained_on"]
    assert load_encoder(str(tmp_path / "small")).embeddings.token.weight.shape[1] == 8
    assert not (tmp_path / "small.teaching").exists()


def test_a_killed_teaching_goes_on_to_the_bit(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = str(root / "encoder")
    adapt(encoder, tmp_path / "whole", options, reporter=QUIET)
    step = GeneralDistillation._step

    def killed(self: GeneralDistillation, rows: Any) -> None:
        step(self, rows)
        if self.steps == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.steps == 12:
            raise MemoryError

    monkeypatch.setattr(GeneralDistillation, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        adapt(encoder, tmp_path / "parts", options, reporter=QUIET)
    # After this step nothing is saved: it is done again.
    with pytest.raises(MemoryError):
        adapt(encoder, tmp_path / "parts", options, reporter=QUIET)
    assert not (tmp_path / "parts").exists()
    # What there is so far is an encoder that can be looked at.
    checkpoint = tmp_path / "parts.teaching" / "checkpoint-7"
    load_encoder(str(checkpoint))
    read_tokenizer(checkpoint)
    monkeypatch.setattr(GeneralDistillation, "_step", step)
    taught = find_encoder(str(checkpoint)).taught
    adapt(encoder, tmp_path / "parts", options, reporter=QUIET)
    assert taught == find_encoder(str(tmp_path / "parts")).taught and len(taught) == 2
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_stop_in_the_last_step_leaves_out_no_measurement(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = GeneralDistillation._step

    def stopped(self: GeneralDistillation, rows: Any) -> None:
        step(self, rows)
        if self.progress >= 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(GeneralDistillation, "_step", stopped)
    few = replace(options, tokens=600)
    with pytest.raises(KeyboardInterrupt):
        adapt(str(root / "encoder"), tmp_path / "small", few, reporter=QUIET)
    taught = adapt(str(root / "encoder"), tmp_path / "small", few, reporter=QUIET).taught
    assert taught["history"][-1]["tokens"] == taught["tokens"] >= 600


def test_another_plan_or_budget_does_not_go_on(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeneralDistillation, "_step", stop)
    encoder = str(root / "encoder")
    with pytest.raises(KeyboardInterrupt):
        adapt(encoder, tmp_path / "small", options, reporter=QUIET)
    for key, changed in (("plan", replace(options, plan="0 1 3")), ("tokens", replace(options, tokens=7000))):
        with pytest.raises(Exception, match=f"another '{key}'"):
            adapt(encoder, tmp_path / "small", changed, reporter=QUIET)


def test_other_reported_texts_are_not_learned_by_going_on(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeneralDistillation, "_step", stop)
    header, *lines = (root / "reviews.csv").read_text(encoding="utf-8").splitlines()
    for name, line in (("one", lines[0]), ("other", lines[1])):
        (tmp_path / f"{name}.csv").write_text(f"{header}\n{line}\n", encoding="utf-8")
    asked = replace(options, teach=options.teach[:1], apart=[str(tmp_path / "one.csv")])
    with pytest.raises(KeyboardInterrupt):
        adapt(str(root / "encoder"), tmp_path / "small", asked, reporter=QUIET)
    with pytest.raises(Exception, match="another 'texts'"):
        adapt(
            str(root / "encoder"), tmp_path / "small", replace(asked, apart=[str(tmp_path / "other.csv")]),
            reporter=QUIET,
        )  # fmt: skip


def test_a_plan_that_was_searched_is_not_searched_again(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tmp_path / "windows.csv"
    texts.write_bytes((root / "reviews.csv").read_text(encoding="utf-8").encode("utf-16-le"))
    asked = replace(options, plan="auto", stored=1, texts=texts, teach=(str(texts),), encoding="utf-16-le")
    asked = replace(asked, tokens=600, max_ms=1e6)
    encoder, small = str(root / "encoder"), tmp_path / "small"
    found: list[list[PlanPoint]] = []
    search, step = adaptation._search, GeneralDistillation._step

    def searched(*given: Any) -> list[PlanPoint]:
        found.append(search(*given))
        return found[-1]

    monkeypatch.setattr(adaptation, "_search", searched)
    monkeypatch.setattr(GeneralDistillation, "_step", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            adapt(encoder, small, asked, reporter=QUIET)
    # Where times have changed, another plan would be the best.
    assert len(found) == 1
    others = tmp_path / "others.csv"
    others.write_text("text\na good film\nno idea\n", encoding="utf-16-le")
    for changed in ({"applied": 2}, {"texts": others}):
        with pytest.raises(Exception, match=r"another '(plan|budgets)'|other texts"):
            adapt(encoder, small, replace(asked, **changed), reporter=QUIET)
    monkeypatch.setattr(GeneralDistillation, "_step", step)
    assert adapt(encoder, small, asked, reporter=QUIET).scores == found[0] and len(found[0]) > 1


def test_minutes_are_counted_over_restarts(root: Path, options: AdaptationOptions, tmp_path: Path) -> None:
    made = adapt(str(root / "encoder"), tmp_path / "small", replace(options, tokens=None, minutes=0.01), reporter=QUIET)
    assert 0.01 <= made.taught["minutes"] < 0.5


def test_reported_texts_teach_nothing(root: Path, options: AdaptationOptions, tmp_path: Path) -> None:
    lines = (root / "reviews.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "apart.csv").write_text("\n".join(lines[:6]) + "\n", encoding="utf-8")
    made = adapt(
        str(root / "encoder"), tmp_path / "small", replace(options, apart=[str(tmp_path / "apart.csv")]), reporter=QUIET
    )
    assert [text["left_out"] >= 1 for text in made.taught["texts"]] == [True, True]


def test_a_run_says_that_its_encoder_has_read_the_reported_texts(
    root: Path, options: AdaptationOptions, tmp_path: Path
) -> None:
    asked = replace(options, plan="0", teach=(str(root / "reviews.csv"),), tokens=300, int8=True)
    adapt(str(root / "encoder"), tmp_path / "taught", asked, reporter=QUIET)
    other = write_reviews(tmp_path / "other.csv", rows=60, seed=5)
    notes = {}
    for data in (root / "reviews.csv", other):
        given = ["--model", str(tmp_path / "taught"), "--data", str(data), "--output", str(tmp_path / data.stem)]
        given += ["--cache-dir", str(tmp_path / "cache"), "--quiet"]
        assert main(["train", *given, "max_epochs=1", "--max-length", "16"]) == 0
        record = read_record(tmp_path / data.stem)
        # By the number of training rows, because it starts from an encoder.
        assert record.training.protocol == "finetune-few"
        notes[data.stem] = [audit.status for audit in record.audits if audit.name == "encoder.texts"]
    assert notes == {"reviews": ["note"], "other": ["passed"]}


def test_whole_numbers_take_a_quarter_and_hardly_change_an_encoder(
    root: Path, options: AdaptationOptions, tmp_path: Path
) -> None:
    asked = replace(options, teach=(), tokens=None, changes={"embedding_size": 8})
    for name, int8 in (("whole", False), ("small", True)):
        adapt(str(root / "encoder"), tmp_path / name, replace(asked, int8=int8), reporter=QUIET)
    assert not (tmp_path / "small" / "model.safetensors").exists()
    full, small = (dict(load_encoder(str(tmp_path / name)).named_parameters()) for name in ("whole", "small"))
    for name, weights in full.items():
        step = weights.detach().abs().amax(dim=-1, keepdim=True) / 127 if weights.ndim == 2 else 0 * weights.detach()
        assert ((small[name] - weights).abs() <= 0.501 * step).all()


def test_an_encoder_that_is_shipped_is_found_by_name_and_checked(
    root: Path, options: AdaptationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    monkeypatch.setitem(SHIPPED, "recurra-small", shipped)
    with pytest.raises(UnavailableError, match="not in this installation"):
        find_encoder("recurra-small")
    adapt(str(root / "encoder"), shipped, replace(options, teach=(), tokens=None, int8=True), reporter=QUIET)
    assert find_encoder("recurra-small").num_layers == 3
    assert choose_models(task("classification"), encoder="recurra-small").models[-1] == "recurra-small"
    weights = shipped / INT8_NAME
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged or was changed; install it again: pip"):
        find_encoder("recurra-small")
    weights.unlink()
    with pytest.raises(CheckpointError, match="install it again"):
        find_encoder("recurra-small")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--teach", "{root}/reviews.csv"], "--minutes N"),
        (["--teach", "{root}/reviews.csv", "--minutes", "0"], "--minutes is 0; a budget is a finite number above 0"),
        (["--minutes", "3"], "--teach FILE"),
        (["--teach", "{root}/my_test.csv", "--tokens", "9"], "is named like a test or validation part"),
        (["--teach", "{root}/empty.csv", "--tokens", "9"], "is empty"),
        (["--teach", "{root}/blank.txt", "--tokens", "9"], "no passage to learn from"),
        (["--teach", "{root}/short.txt", "--tokens", "9"], "/short.txt': every passage is held out"),
        (
            ["--teach", "{root}/short.txt", "--teach", "{root}/brief.txt", "--tokens", "9"],
            "every passage is held out, and none remains to learn from; give more running text",
        ),
        (
            ["--teach", "{root}/reviews.csv", "--apart", "{root}/reviews.csv", "--tokens", "9"],
            "are texts that models are evaluated on",
        ),
    ],
)
def test_what_cannot_teach_is_said_in_a_line(
    root: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "my_test.csv").write_text("text\nfine\n", encoding="utf-8")
    (root / "empty.csv").touch()
    (root / "short.txt").write_text("A fine film.\n", encoding="utf-8")
    (root / "brief.txt").write_text("A dull film.\n", encoding="utf-8")
    (root / "blank.txt").write_text("\n\n", encoding="utf-8")
    given = [word.format(root=root) for word in arguments]
    fixed = ["--plan", "0 2", "--cache-dir", str(tmp_path / "cache"), "--quiet", "--output", str(tmp_path / "small")]
    assert main(["adapt", str(root / "encoder"), *given, *fixed]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "small").exists()
