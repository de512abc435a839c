"""A language model's run: texts that it cannot use, keys that it refuses, and the audits of a trained model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from language_runs import language_run, tiny_variant
from recurra.core.errors import ConfigurationError, DataError
from recurra.core.progress import Reporter
from recurra.core.record import AuditResult
from recurra.tasks.base import TeacherConfig
from recurra.tasks.language import training
from recurra.tasks.language.data import language_configuration
from recurra.tasks.language.task import TASK
from recurra.tasks.study_data import Machine, StudyData


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_without_a_long_line_is_refused_before_anything_is_trained(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "train_language_model", None)
    (tmp_path / "short.txt").write_text("the mill\nthe field\n", encoding="utf-8")
    run = language_run(tmp_path, mode="lines")
    text = run.data.model_copy(update={split: str(tmp_path / "short.txt")})
    run, data = run.model_copy(update={"data": text}), StudyData(Machine(cache_dir=tmp_path / "cache"))
    message = f"'{split}' has no line of more than 20 characters, .*lower min_characters"
    with pytest.raises(DataError, match=message):
        training.train_language(run, tmp_path / "run", data, Reporter(quiet=True))
    with pytest.raises(DataError, match=message):
        TASK.prepare_data(text, data)


def test_a_wrong_kernel_size_is_refused_where_the_model_is_configured(tmp_path: Path) -> None:
    run = language_run(tmp_path, model=tiny_variant("wide", causal_convolution=False, kernel_size="7"))
    assert run.run_id.partition("packed-16-")[2].startswith("wide-leaks-")
    with pytest.raises(ConfigurationError, match="'kernel_size' is '7'; allowed: a whole number from 1"):
        language_configuration(run, None, None)


def test_a_teacher_who_would_teach_nothing_is_refused(tmp_path: Path) -> None:
    teachers = [TeacherConfig(name="other", run_id="other")]
    run = language_run(tmp_path, model=tiny_variant("student", teacher="other"), teachers=teachers)
    with pytest.raises(ConfigurationError, match="model 'student': 'teacher' is 'other', and teachers are for class"):
        TASK.preflight(run, StudyData())


@pytest.mark.parametrize(("causal", "alarm"), [("failed", "failed"), ("passed", "measured")])
def test_a_model_that_is_too_good_has_the_word_of_its_causality_audit(
    causal: str, alarm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditResult(name="causality.final", status=causal, summary="")
    monkeypatch.setattr(training, "language_audits", lambda *_: [audit])
    monkeypatch.setattr(training, "running", lambda _: SimpleNamespace(min_characters=20))
    heads = {"exit 1": SimpleNamespace(word_perplexity=None), "final": SimpleNamespace(word_perplexity=2.0)}
    dataset: Any = SimpleNamespace(record=lambda _: {"splits": {}})
    config: Any = SimpleNamespace(seed=0, data=None)
    metrics: Any = {"test": SimpleNamespace(heads=heads)}
    results = training._audit(None, metrics, dataset, config)
    assert {result.name: result.status for result in results} == {
        "causality.final": causal,
        "perplexity.too-good": alarm,
    }
