"""`audit model` on presets, runs and folders of language models, ours and others'; `audit study` over runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from factories import RunFactory, invariance, leakage, skipped
from foreign import tiny_bert, tiny_gpt2
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.record import read_record, write_record
from recurra.models.controls import LINEAR_NAME
from recurra.models.loading import load_language_model
from recurra.study.model_auditing import audit_model
from reviews import Command
from tiny import language_model, tiny_model

LANGUAGE = ["causality.exit-1", "causality.final", "padding.logits", "padding.loss"]
OURS = [*LANGUAGE, "cache.logits", "parameters.count"]
NARROW = ["vocab_size=100", "hidden_size=32", "embedding_size=16", "num_attention_heads=2", "intermediate_size=32"]
ROWS = {"train": 60, "validation": 20, "test": 20}
Audit = Callable[..., dict[str, str]]


@pytest.fixture
def audit(command: Command) -> Audit:
    """Runs ``recurra audit model``; each audit's status."""

    def run(*arguments: object, code: int = 0) -> dict[str, str]:
        audits = command("audit", "model", *arguments, "--json", code=code).json["audits"]
        return {item["name"]: item["status"] for item in audits}

    return run


def test_a_language_preset_passes_and_a_leaking_one_says_how_far(audit: Audit, command: Command) -> None:
    assert audit("crt-tiny", "exits=[1]", *NARROW) == dict.fromkeys(OURS, "passed")
    out, err = command("audit", "model", "crt-tiny", "model.causal_convolution=false", "vocab_size=100", code=3)
    assert "63 ahead (its shape can read 63 ahead)" in " ".join(out.split())
    assert "AUDIT FAILED: causality.exit-1, causality.exit-2, causality.exit-3, causality.final" in err


@pytest.mark.parametrize(
    ("make", "final"),
    [
        (tiny_gpt2, "passed"),
        # The same class and weights; only a switch in its configuration makes it causal.
        (lambda: tiny_bert(is_decoder=True), "passed"),
        (lambda: tiny_bert(is_decoder=False), "failed"),
    ],
    ids=["gpt2", "decoder", "encoder"],
)
def test_a_folder_of_transformers_is_audited_too(
    make: Callable[[], Any], final: str, tmp_path: Path, audit: Audit
) -> None:
    make().train().save_pretrained(tmp_path)
    states = audit(tmp_path, code=0 if final == "passed" else 3)
    assert list(states) == LANGUAGE[1:] and states["causality.final"] == final
    assert final == "failed" or set(states.values()) == {"passed"}
    model = load_language_model(tmp_path)
    assert model.config._attn_implementation == "eager" and not model.training


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_folder_of_ours_fails_if_its_model_leaks(inside: str, tmp_path: Path, audit: Audit) -> None:
    language_model(causal_convolution=False).save_pretrained(tmp_path / inside)
    states = audit(tmp_path, code=3)
    assert list(states) == OURS and states["cache.logits"] == "skipped"
    assert [name for name, state in states.items() if state == "failed"] == LANGUAGE[:2]


def test_a_classifier_s_folder_is_audited_as_a_classifier(tmp_path: Path, audit: Audit) -> None:
    tiny_model().save_pretrained(tmp_path)
    names = ["invariance.padding", "invariance.neighbours", "parameters.count"]
    assert audit(tmp_path) == dict.fromkeys(names, "passed")


def test_code_of_a_checkpoint_is_never_run_and_pickled_weights_are_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    model = tiny_gpt2()
    model.save_pretrained(tmp_path)
    path, marker = tmp_path / "config.json", tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    written = path.read_text()
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    path.write_text(json.dumps({**json.loads(written), "model_type": "evil", "auto_map": names}))
    assert "without its own code" in refused("audit", "model", tmp_path)
    assert not marker.exists()
    path.write_text(written)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights can run code when they are read and are refused"):
        audit_model(str(tmp_path))
    path.write_text("[]")
    with pytest.raises(CheckpointError, match="mapping"):
        audit_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "assignments", "said"),
    [
        ("crt-tini", [], r"neither a folder .* nor a preset \(did you mean 'crt-tiny'\?\)"),
        ("crt-tiny", ["causal_convolutions=false"], "did you mean 'causal_convolution'"),
        ("crt-tiny", ["num_labels=3"], "unknown key of a model 'num_labels'"),
        (".", ["num_cycles=3"], "is audited unchanged; leave 'num_cycles=3' out"),
    ],
)
def test_wrong_words_are_refused(name: str, assignments: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        audit_model(name, assignments)


def test_a_trained_model_passes_and_a_wrong_count_is_seen(run: Path, linear_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run"))
    audits = {audit.name: audit for audit in audit_model(str(run))}
    assert {audit.status for audit in audits.values()} == {"passed"}
    assert audits["parameters.count"].details["counted"] > 1000
    record = read_record(run)
    model = record.model.model_copy(update={"parameters": record.model.parameters + 1})
    write_record(run, record.model_copy(update={"model": model}))
    audits = {audit.name: audit for audit in audit_model(str(run))}
    assert (audits["parameters.count"].status, audits["parameters.count"].value) == ("failed", 1.0)
    assert audits["invariance.padding"].status == "passed"
    # A linear model has only its parameters to audit.
    states = {audit.name: audit.status for audit in audit_model(str(linear_run))}
    unknown = dict.fromkeys(["invariance.padding", "invariance.neighbours"], "skipped")
    assert states == {**unknown, "parameters.count": "passed"}
    weights = shutil.copytree(linear_run, tmp_path / "linear") / "model" / LINEAR_NAME
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="was changed after the run was made"):
        audit_model(str(tmp_path / "linear"))


def test_a_study_s_audits_are_collected_over_its_runs(tmp_path: Path, command: Command) -> None:
    factory = RunFactory(tmp_path / "runs", rows=ROWS)
    audits = [leakage(failed=False), skipped()]
    factory.run("linear", audits=audits)
    factory.run("recurrent", audits=[*audits, invariance()])
    factory.run("recurrent", seed=1, audits=[*audits, invariance(failed=True)])
    (tmp_path / "runs" / "broken").mkdir()
    found = command("audit", "study", tmp_path, "--json", code=3).json
    assert [(audit["name"], audit["status"], audit["concerns"]) for audit in found["audits"]] == [
        ("invariance.padding", "failed", "recurrent (seed 1)"),
        ("leakage.source.test", "skipped", "every run"),
        ("leakage.contained.test", "passed", "every run"),
        ("invariance.padding", "passed", "recurrent (seed 0)"),
    ]
    assert "3.1e-02" in found["audits"][0]["summary"] and list(found["without_record"]) == ["broken"]
    # Audits on different data stay apart.
    RunFactory(tmp_path / "two" / "runs", rows=ROWS).run("linear", audits=[leakage(failed=True)])
    pooled = RunFactory(tmp_path / "two" / "runs", rows=ROWS, protocol="pooled")
    run = pooled.run("linear", audits=[leakage(failed=False)])
    found = command("audit", "study", tmp_path / "two", "--json", code=3).json["audits"]
    assert sorted(audit["status"] for audit in found) == ["failed", "passed"]
    assert len({audit["data"] for audit in found}) == 2
    # A run folder is a study of one.
    assert [audit["status"] for audit in command("audit", "study", run, "--json").json["audits"]] == ["passed"]
