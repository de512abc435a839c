"""Commands that look and train nothing: models, data, audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

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


def test_models_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, total in ((["models"], "25.9"), (["models", "--wide"], "25,912,706")):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert total in out and all(name in out for name in (*PRESETS, *LANGUAGE_PRESETS))


def test_the_presets_fit_a_terminal_of_80_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recurra.cli.output.console", lambda: Console(width=80))
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    # No name and no number is broken: each preset begins one line, with its three figures.
    for name in (*PRESETS, *LANGUAGE_PRESETS):
        (line,) = (line for line in lines if line.startswith(f"│ {name} "))
        assert len([cell for cell in line.split("│")[2:5] if float(cell)]) == 3


def test_data_describe_says_what_each_limit_of_tokens_cuts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "long.csv"
    rows = [f"{'word ' * (90 if number % 4 == 0 else 3)}{number},{number % 2}" for number in range(400)]
    path.write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    cut = answer(capsys, "data", "describe", str(path))["cut"]
    assert cut["64"] == pytest.approx(0.25, abs=0.05) and (cut["128"], cut["256"], cut["512"]) == (0, 0, 0)
    assert main(["data", "describe", str(path)]) == 0
    said = f"{cut['64']:.1%} at 64, 0.0% at 128, 0.0% at 256, 0.0% at 512"
    assert f"training rows that a limit of tokens cuts (trained tokenizer): {said}" in capsys.readouterr().out
    # A vocabulary that cannot be had is no reason to say nothing of the data.
    without = answer(capsys, "data", "describe", str(path), "tokenizer=bert-base-uncased")
    assert without["cut"] == {} and without["splits"]


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


@pytest.mark.parametrize("labels", [2, 20, 21, 77])
def test_data_describe_fits_a_terminal_of_80_characters_whatever_the_number_of_labels(
    labels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recurra.cli.output.console", lambda: Console(width=80))
    # Label 0 has twice the rows of the others.
    counts = {f"intent-{number:02}": 80 if number == 0 else 40 for number in range(labels)}
    rows = [(f"words of {label} in row {row}", label) for label, count in counts.items() for row in range(count)]
    path = write_csv(tmp_path / "intents.csv", rows)
    assert main(["data", "describe", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if line[:1] in "┏┃┡│└") <= 80
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    of_labels = [cells for cells in table if len(cells) == 5]
    # Every row of the data is counted once, the commonest label first.
    assert of_labels[0][0] == "intent-00"
    for column, split in enumerate(("train", "validation", "test"), start=1):
        (of_split,) = (cells for cells in table if cells[0] == split)
        counted = sum(int(cells[column].replace(",", "")) for cells in of_labels)
        assert counted == int(of_split[1].replace(",", ""))
    hidden = [cells[0] for cells in of_labels if "others" in cells[0]]
    assert hidden == (["… 57 others (--json has all)"] if labels == 77 else [])
    assert len(of_labels) == (21 if labels == 77 else labels)


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


def test_audit_data_is_loud_about_a_leak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, test = write_reviews(tmp_path / "r.csv"), write_csv(tmp_path / "t.csv", review_rows()[:40])
    for command in (["audit", "data"], ["data", "audit"]):
        assert main([*command, str(path), "--test", str(test)]) == 3
        out, err = capsys.readouterr()
        assert "FAILED" in out
        assert err.startswith("AUDIT FAILED: ") and "leakage.exact.test" in err


def test_a_form_that_tells_the_label_is_a_note_unless_it_must_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(f"{text}{'!!!' if label == 'positive' else '.'}", label) for text, label in review_rows(600)]
    path = write_csv(tmp_path / "spam.csv", rows)
    assert main(["audit", "data", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "note" in out and "--form-must-not-predict" in out and "the linear control is right on" in out and not err
    assert main(["audit", "data", str(path), "--form-must-not-predict"]) == 3
    assert "AUDIT FAILED: shortcuts.format" in capsys.readouterr().err


def test_study_plan_says_what_is_failed_interrupted_and_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_reviews(tmp_path / "r.csv")
    study, output = tmp_path / "s.yaml", tmp_path / "out"
    text = f"name: s\ndata: [{{name: '{path}', tokenizer: trained}}]\nmodels: [linear, recurrent]\nseeds: [0, 1]\n"
    study.write_text(text)
    arguments = ["study", "plan", str(study), "--output", str(output)]
    runs = answer(capsys, *arguments)["runs"]
    assert [run["state"] for run in runs] == ["to do"] * 3
    failed, started = Path(runs[1]["folder"]), Path(runs[2]["folder"])
    failed.mkdir(parents=True)
    started.mkdir()
    (failed / "error.json").write_text('{"error": "the loss is not finite"}')
    (started / "config.yaml").touch()
    runs = answer(capsys, *arguments)["runs"]
    assert [(run["state"], run["reason"]) for run in runs] == [
        ("to do", None),
        ("failed", "the loss is not finite"),
        ("interrupted", None),
    ]
    assert main(["study", "status", str(study), "--output", str(output)]) == 0
    assert "the loss is not finite" in capsys.readouterr().out


def test_audit_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    audits = {audit["name"]: audit for audit in answer(capsys, "audit", "model", "recurrent-tiny")["audits"]}
    assert set(audits) == {"invariance.padding", "invariance.neighbours", "parameters.count"}
    assert {audit["status"] for audit in audits.values()} == {"passed"}


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
