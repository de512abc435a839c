"""The corpus of the demo, as it comes with the package."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np

from recurra.comparison import demonstration
from recurra.core.progress import Reporter
from recurra.data.configuration import DataConfig
from recurra.data.corpora import DEMO, load_dataset
from recurra.evaluation.audits.leakage import audit_leakage
from recurra.study.spec import expand
from recurra.tasks.study_data import Machine, StudyData


def test_its_sentences_are_as_its_card_says() -> None:
    dataset = load_dataset(DataConfig(name="demo"))
    card = (DEMO / "README.md").read_text(encoding="utf-8")
    assert dataset.label_names == ["1790-1835", "1870-1910", "1945-1985"]
    assert all(name.replace("-", "–") in card for name in dataset.label_names)
    for split, (name, rows) in zip(
        dataset.splits.values(), (("train", 300), ("validation", 100), ("test", 200)), strict=True
    ):
        assert (split.name, np.bincount(split.labels).tolist()) == (name, [rows] * 3)
        for text, label, group in zip(split.texts, split.labels, split.groups or (), strict=True):
            assert 8 <= len(text.split()) <= 40 and not re.search(r"\b(1[789]|20)\d\d(s|\b)", text)
            first, last = dataset.label_names[label].split("-")
            assert first <= str(group[0])[:4] <= last
    for one, other in itertools.combinations(dataset.splits.values(), 2):
        assert not set(one.groups or ()) & set(other.groups or ()) and not set(one.texts) & set(other.texts)
    assert {audit.status for audit in audit_leakage(dataset)} == {"passed"}


def test_its_comparison_needs_nothing_but_the_package(tmp_path: Path) -> None:
    data = StudyData(Machine(cache_dir=tmp_path))
    spec, _ = demonstration(seeds=2).plan_study(data, tmp_path / "out", Reporter(quiet=True))
    runs = expand(spec)
    models = [run.model for run in runs]
    assert models == ["linear-tuned", "recurra-small-and-words", "recurra-small", "recurra-small"]
    assert {run.model_overrides.get("encoder") for run in runs} == {None, "recurra-small"}
