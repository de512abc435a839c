"""`audit model` on presets and on folders of language models, ours and others'."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from factories import RunFactory, invariance, leakage, skipped
from foreign import tiny_bert, tiny_gpt2
from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.core.record import read_record, write_record
from recurra.models.loading import load_language_model
from recurra.study.model_auditing import audit_model
from reviews import Command
from tiny import language_model, tiny_model

LANGUAGE = ["causality.exit-1", "causality.final", "padding.logits", "padding.loss"]
OURS = [*LANGUAGE, "cache.logits", "parameters.count"]


@pytest.fixture
def audit(command: Command) -> Callable[..., dict[str, str]]:
    """Runs ``recurra audit model``; each audit's status."""

    def run(*arguments: object, code: int = 0) -> dict[str, str]:
        audits = command("audit", "model", *arguments, "--json", code=code).json["audits"]
        return {item["name"]: item["status"] for item in audits}

    return run


def test_a_language_preset_passes(audit: Callable[..., dict[str, str]]) -> None:
    states = audit("crt-tiny", "exits=[1]", "vocab_size=100")
    assert list(states) == OURS and set(states.values()) == {"passed"}


def test_a_leaking_one_fails_with_exit_code_3_and_says_how_far(command: Command) -> None:
    out, err = command("audit", "model", "crt-tiny", "model.causal_convolution=false", "vocab_size=100", code=3)
    assert "63 ahead (its shape can read 63 ahead)" in " ".join(out.split())
    assert "AUDIT FAILED: causality.exit-1, causality.exit-2, causality.exit-3, causality.final" in err


def test_a_folder_of_transformers_is_audited_too(tmp_path: Path, audit: Callable[..., dict[str, str]]) -> None:
    tiny_gpt2().save_pretrained(tmp_path)
    states = audit(tmp_path)
    assert list(states) == LANGUAGE[1:] and set(states.values()) == {"passed"}


@pytest.mark.parametrize(("is_decoder", "code"), [(True, 0), (False, 3)])
def test_an_encoder_that_is_taken_for_a_decoder_is_found_out(
    is_decoder: bool, code: int, tmp_path: Path, audit: Callable[..., dict[str, str]]
) -> None:
    """The same class and weights; only a switch in its configuration makes it causal."""
    tiny_bert(is_decoder=is_decoder).save_pretrained(tmp_path)
    states = audit(tmp_path, code=code)
    assert states["causality.final"] == ("passed" if is_decoder else "failed")


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_folder_of_ours_fails_if_its_model_leaks(
    inside: str, tmp_path: Path, audit: Callable[..., dict[str, str]]
) -> None:
    language_model(causal_convolution=False).save_pretrained(tmp_path / inside)
    states = audit(tmp_path, code=3)
    assert list(states) == OURS and states["cache.logits"] == "skipped"
    assert [name for name, state in states.items() if state == "failed"] == LANGUAGE[:2]


def test_a_classifier_s_folder_is_audited_as_a_classifier(tmp_path: Path, audit: Callable[..., dict[str, str]]) -> None:
    tiny_model().save_pretrained(tmp_path)
    states = audit(tmp_path)
    assert list(states) == ["invariance.padding", "invariance.neighbours", "parameters.count"]
    assert set(states.values()) == {"passed"}


def test_foreign_models_are_loaded_with_eager_attention_and_in_evaluation_mode(tmp_path: Path) -> None:
    tiny_gpt2().train().save_pretrained(tmp_path)
    model = load_language_model(tmp_path)
    assert model.config._attn_implementation == "eager" and not model.training


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    tiny_gpt2().save_pretrained(tmp_path)
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    path.write_text(json.dumps({**values, "model_type": "evil", "auto_map": names}))
    assert "without its own code" in refused("audit", "model", tmp_path)
    assert not marker.exists()


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights can run code when they are read and are refused"):
        audit_model(str(tmp_path))


def test_a_model_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    language_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "num_cycles": 3}))
    with pytest.raises(CheckpointError, match=r"lacks weight 'model.core.block.layers.0.feed_forward.cycles.2"):
        audit_model(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "is not a model folder: no config.json"), ("{", "is not valid JSON"), ("[]", "mapping")],
)
def test_a_folder_that_is_no_model_is_refused(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=said):
        audit_model(str(tmp_path))


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither a folder .* nor a preset \(did you mean 'crt-tiny'\?\)"):
        audit_model("crt-tini")
    with pytest.raises(ConfigurationError, match="did you mean 'causal_convolution'"):
        audit_model("crt-tiny", ["causal_convolutions=false"])
    with pytest.raises(ConfigurationError, match="unknown key of a model 'num_labels'"):
        audit_model("crt-tiny", ["num_labels=3"])
    with pytest.raises(ConfigurationError, match="is audited unchanged; leave 'num_cycles=3' out"):
        audit_model(str(tmp_path), ["num_cycles=3"])


ROWS = {"train": 60, "validation": 20, "test": 20}


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


def test_audits_on_different_data_stay_apart(tmp_path: Path, command: Command) -> None:
    RunFactory(tmp_path / "runs", rows=ROWS).run("linear", audits=[leakage(failed=True)])
    RunFactory(tmp_path / "runs", rows=ROWS, protocol="pooled").run("linear", audits=[leakage(failed=False)])
    found = command("audit", "study", tmp_path, "--json", code=3).json["audits"]
    assert sorted(audit["status"] for audit in found) == ["failed", "passed"]
    assert len({audit["data"] for audit in found}) == 2
    # A run folder is a study of one.
    run = RunFactory(tmp_path / "one", rows=ROWS).run("linear", audits=[skipped()])
    audits = command("audit", "study", run, "--json").json["audits"]
    assert [audit["status"] for audit in audits] == ["skipped"]


def test_a_trained_model_passes_and_a_wrong_count_is_seen(run: Path, tmp_path: Path) -> None:
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


def test_a_linear_model_has_only_its_parameters_to_audit(linear_run: Path) -> None:
    states = {audit.name: audit.status for audit in audit_model(str(linear_run))}
    assert states == {
        "invariance.padding": "skipped",
        "invariance.neighbours": "skipped",
        "parameters.count": "passed",
    }
