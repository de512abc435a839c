"""Commands that look and train nothing: models, data, audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recurra.core.record import read_record
from recurra.models.adaptation.source import find_encoder
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from reviews import TINY_DATA, Command, review_rows, write_csv, write_reviews


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


def test_models_lists_all_presets(command: Command) -> None:
    presets = {item["name"]: item for item in command("models", "--json").json["presets"]}
    assert list(presets) == [*PRESETS, *LANGUAGE_PRESETS]
    for item in presets.values():
        counts = item["parameters"]
        assert sum(counts["parts"].values()) == counts["total"] == counts["embeddings"] + counts["non_embedding"]
        assert item["size_mib"]["fp32"] == pytest.approx(2 * item["size_mib"]["half"]) == counts["total"] * 4 / 2**20
        assert item["flops_per_token"] > 0
    (item,) = command("models", "crt-deep", "--json").json["presets"]
    assert item == presets["crt-deep"] and item["task"] == "language modelling"
    table = command("models", "crt-deep").out
    assert "embeddings" in table and "51,463,168" in table and "92,053,760" in table


def test_data_describe_a_file(tmp_path: Path, command: Command) -> None:
    rows = [*review_rows(100), ("   ", "positive")]
    path = write_csv(tmp_path / "r.csv", [(label, text) for text, label in rows], ("mood", "body"))
    words = ["data", "describe", path, "--text-column", "body", "--label-column", "mood"]
    record = command(*words, "--json").json
    rows_of = {name: split["rows"] for name, split in record["splits"].items()}
    assert rows_of == {"train": 80, "validation": 10, "test": 10}
    assert record["label_names"] == ["negative", "positive"]
    assert sum(record["dropped"].values()) == 1
    table = command(*words, "fraction=0.5").out
    assert " 40 " in table and "empty after cleaning" in table


def test_data_prepare_fills_the_cache_and_reads_it_again(tmp_path: Path, command: Command) -> None:
    path, cache = write_reviews(tmp_path / "r.csv"), tmp_path / "cache"
    words = ["data", "prepare", path, "--cache-dir", cache, "--json"]
    first = command(*words, *TINY_DATA).json
    assert [split["name"] for split in first["splits"]] == ["train", "validation", "test"]
    assert all(split["longest_tokens"] <= 24 for split in first["splits"])
    files = {item: item.stat().st_mtime_ns for item in cache.iterdir()}
    assert len(files) == 3
    assert command(*words, *TINY_DATA).json == first
    assert {item: item.stat().st_mtime_ns for item in cache.iterdir()} == files
    read = command(*words, "--model", "recurra-small").json
    assert read["tokenizer"]["vocab_size"] == find_encoder("recurra-small").values["vocab_size"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("audit model recurent", "did you mean 'recurrent'"),
        ("models crt-deap", "did you mean 'crt-deep'"),
        ("data prepare demo --model linear", "'linear' reads texts by itself"),
        ("audit study nowhere", "holds no finished run; give the folder of a comparison, study or training\n"),
        ("data describe sst", "did you mean 'sst2'"),
        ("data describe demo fractoin=1", "did you mean 'data.fraction'"),
        ("data describe demo fraction=2", "'fraction' is 2"),
        ("evaluate runs/nowhere", "'runs/nowhere' does not exist; give a folder made by 'recurra train'"),
    ],
)
def test_wrong_names_are_refused(arguments: str, said: str, refused: Callable[..., str]) -> None:
    assert said in refused(*arguments.split())


def test_rows_without_a_label_are_refused_or_skipped_by_every_command_that_trains_or_audits(
    tmp_path: Path, command: Command, refused: Callable[..., str]
) -> None:
    path = write_csv(tmp_path / "r.csv", [*review_rows(40), ("a row that nobody labelled", "")])
    for words in (["audit", "data"], ["data", "describe"], ["label-errors"]):
        assert "1 row without a label in column 'label' (line 42)" in refused(*words, path)
        said = command(*words, path, "--skip-unlabelled", "--json").json
    assert "no label and are left out (line 42)" in str(said)
    output = tmp_path / "run"
    train = ["train", "--model", "linear", "--data", path, "--output", output, "--no-latency", "--quiet"]
    refused(*train)
    command(*train, "--skip-unlabelled")
    assert read_record(output).data.dropped == {"rows: without label": 1}
    # Rows that are evaluated on are given on purpose: what lacks a label is told, not passed over.
    error = refused("evaluate", output, "--data", path)
    assert "without a label" in error and "--skip-unlabelled" not in error
