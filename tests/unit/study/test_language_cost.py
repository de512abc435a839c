"""What runs of language models cost, and which goes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from language_runs import language_run, tiny_variant
from recurra.data.language.corpora import load_language_dataset
from recurra.data.language.preparation import encode_for, make_samples
from recurra.data.language.tokenization import load_language_tokenizer
from recurra.models.presets import language_flops
from recurra.study.estimate import training_flops, training_speed
from recurra.study.executor import rough_weight
from recurra.tasks.language.configuration import language_configuration
from recurra.tasks.machine import Machine
from recurra.tasks.study_data import StudyData


@pytest.mark.parametrize("mode", ["packed", "lines"])
def test_a_training_costs_three_forward_passes_over_every_sample(mode: str, tmp_path: Path) -> None:
    run = language_run(tmp_path, mode=mode)
    run = run.model_copy(update={"data": run.data.model_copy(update={"context": 32})})
    known = StudyData(Machine(cache_dir=tmp_path / "cache"))
    dataset = load_language_dataset(run.data)
    tokenizer = load_language_tokenizer(run.data, dataset, None)
    encoded = encode_for(dataset.splits["train"], run.data, tokenizer, tmp_path / "own")
    samples = make_samples(encoded, run.data)
    shape = language_configuration(run, len(tokenizer), tokenizer.eos_token_id)
    forward = sum(language_flops(shape, len(row["input_ids"]), with_exits=True) for row in samples)
    assert training_flops(run, known, 1) == pytest.approx(3 * forward)
    assert training_flops(run, known) == pytest.approx(3 * forward * run.protocol.max_epochs)
    assert (len({len(row["input_ids"]) for row in samples}) == 1) == (mode == "packed")


def test_a_language_model_can_be_calibrated(tmp_path: Path) -> None:
    assert training_speed(language_run(tmp_path), 16, threads=1) > 0


def test_more_recurrences_and_more_text_weigh_more(tmp_path: Path) -> None:
    run = language_run(tmp_path)
    deeper = language_run(tmp_path, model=tiny_variant("deep", num_recurrences=4))
    part = run.model_copy(update={"data": run.data.model_copy(update={"fraction": 0.5})})
    assert rough_weight(part) == rough_weight(run) / 2 and rough_weight(deeper) == 2 * rough_weight(run)
