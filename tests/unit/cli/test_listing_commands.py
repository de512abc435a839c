"""Commands that look and train nothing: models, data, audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recurra.cli.main import main
from recurra.models.adaptation.source import find_encoder
from recurra.models.names import LANGUAGE_PRESETS, PRESETS
from reviews import TINY_DATA, review_rows, write_csv, write_reviews


@pytest.fixture(autouse=True)
def _no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """The JSON document that a command prints, and nothing else."""
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_models_lists_all_presets_with_exact_counts(capsys: pytest.CaptureFixture[str]) -> None:
    presets = {item["name"]: item for item in answer(capsys, "models")["presets"]}
    assert list(presets) == [*PRESETS, *LANGUAGE_PRESETS]
    totals = {name: item["parameters"]["total"] for name, item in presets.items()}
    assert (totals["baseline"], totals["recurrent"], totals["recurrent-wide"]) == (25_912_706, 10_972_162, 18_817_538)
    for item in presets.values():
        counts = item["parameters"]
        assert sum(counts["parts"].values()) == counts["total"] == counts["embeddings"] + counts["non_embedding"]
        assert item["size_mib"]["fp32"] == pytest.approx(2 * item["size_mib"]["half"]) == counts["total"] * 4 / 2**20
        assert item["flops_per_token"] > 0


def test_models_shows_one_preset_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    (item,) = answer(capsys, "models", "crt-deep")["presets"]
    assert (item["task"], item["parameters"]["total"]) == ("language modelling", 92_053_760)
    assert item["parameters"]["parts"]["head"] == 2 * 512 * 50_257
    assert main(["models", "crt-deep"]) == 0
    out = capsys.readouterr().out
    assert "embeddings" in out and "51,463,168" in out and "92,053,760" in out
    assert main(["models", "crt-deap"]) == 2
    assert "did you mean 'crt-deep'" in capsys.readouterr().err


def test_data_describe_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*review_rows(100), ("   ", "positive")]
    path = write_csv(tmp_path / "r.csv", [(label, text) for text, label in rows], ("mood", "body"))
    options = ["--text-column", "body", "--label-column", "mood"]
    record = answer(capsys, "data", "describe", str(path), *options)
    assert {name: split["rows"] for name, split in record["splits"].items()} == {
        "train": 80,
        "validation": 10,
        "test": 10,
    }
    assert record["label_names"] == ["negative", "positive"]
    assert sum(record["dropped"].values()) == 1
    assert main(["data", "describe", str(path), *options, "fraction=0.5"]) == 0
    out = capsys.readouterr().out
    assert " 40 " in out and "empty after cleaning" in out


def test_data_prepare_fills_the_cache_and_reads_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cache = write_reviews(tmp_path / "r.csv"), tmp_path / "cache"
    arguments = ["data", "prepare", str(path), "--cache-dir", str(cache), *TINY_DATA]
    first = answer(capsys, *arguments)
    assert [split["name"] for split in first["splits"]] == ["train", "validation", "test"]
    assert all(split["longest_tokens"] <= 24 for split in first["splits"])
    files = {item: item.stat().st_mtime_ns for item in cache.iterdir()}
    assert len(files) == 3
    assert answer(capsys, *arguments) == first
    assert {item: item.stat().st_mtime_ns for item in cache.iterdir()} == files
    encoder = find_encoder("recurra-small")
    read = answer(capsys, "data", "prepare", str(path), "--cache-dir", str(cache), "--model", "recurra-small")
    assert read["tokenizer"]["vocab_size"] == encoder.values["vocab_size"]
    assert main(["data", "prepare", str(path), "--model", "linear"]) == 2
    assert "'linear' reads texts by itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit", "model", "recurent"], "did you mean 'recurrent'"),
        (["audit", "study", "nowhere"], "holds no finished run"),
        (["data", "describe", "sst"], "did you mean 'sst2'"),
        (["data", "describe", "demo", "fractoin=1"], "did you mean 'data.fraction'"),
        (["data", "describe", "demo", "fraction=2"], "'fraction' is 2"),
        (["evaluate", "runs/nowhere"], "'runs/nowhere' does not exist; give a folder made by 'recurra train'"),
    ],
)
def test_wrong_names_are_refused(arguments: list[str], said: str, refused: Callable[..., str]) -> None:
    assert said in refused(*arguments)


def test_rows_without_a_label_are_refused_or_skipped_by_every_command_that_trains_or_audits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "r.csv", [*review_rows(80), ("a row that nobody labelled", "")])
    for command in (["audit", "data"], ["data", "describe"], ["label-errors"]):
        assert main([*command, str(path)]) == 2
        assert "1 row without a label in column 'label' (line 82)" in capsys.readouterr().err
        assert main([*command, str(path), "--skip-unlabelled", "--json"]) == 0
        capsys.readouterr()
    assert "no label and are left out (line 82)" in str(answer(capsys, "label-errors", str(path), "--skip-unlabelled"))
    output = tmp_path / "run"
    train = ["train", "--model", "linear", "--data", str(path), "--output", str(output), "--no-latency", "--quiet"]
    assert main(train) == 2
    assert main([*train, "--skip-unlabelled"]) == 0
    capsys.readouterr()
    record = json.loads((output / "record.json").read_text(encoding="utf-8"))
    assert record["data"]["dropped"] == {"rows: without label": 1}
    # Rows that are evaluated on are given on purpose: what lacks a label is told, not passed over.
    assert main(["evaluate", str(output), "--data", str(path)]) == 2
    error = capsys.readouterr().err
    assert "without a label" in error and "--skip-unlabelled" not in error
