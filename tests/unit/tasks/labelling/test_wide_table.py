"""An encoder of many languages in a run: its table is cut down, and training rows are answered as by the whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocks_file import pieces_of, write_blocks
from recurra.cli.main import main
from recurra.core.record import read_record
from recurra.data.corpora import recorded_split
from recurra.data.tokenization import read_tokenizer
from recurra.deployment.classifier import Classifier
from recurra.models.adaptation.blocks import unpack_encoder
from recurra.tasks.labelling import teacher, training
from reviews import review_rows, write_csv

ROWS = review_rows(120)
OTHERS = ["质量 还不错", "очень хорошая книга", "unbelievable wonders"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wide")
    write_blocks(root / "tiny.bin", [*(text for text, _ in ROWS), *OTHERS])
    unpack_encoder(root / "tiny.bin", root / "tiny")
    return root / "tiny"


@pytest.mark.parametrize("keys", ["preset: words-and-encoder\n", ""])
def test_rows_are_answered_as_with_the_whole_table(
    keys: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, model = tmp_path / "rows.csv", tmp_path / "wide.yaml"
    write_csv(file, ROWS)
    model.write_text(f"{keys}encoder: {encoder}\n", encoding="utf-8")
    options = ["--quiet", "--max-length", "32", "--cache-dir", str(tmp_path / "cache")]
    runs = {}
    for name, wide in (("whole", 10**6), ("narrow", 10)):
        monkeypatch.setattr(training, "WIDE_TABLE", wide)
        monkeypatch.setattr(training, "NARROWED_TO", 10)
        runs[name] = tmp_path / name
        command = ["train", "--model", str(model), "--data", str(file), *options]
        trained = [] if keys else ["--protocol", "finetune-few", "max_epochs=1"]
        assert main([*command, *trained, "--output", str(runs[name])]) == 0
    whole, narrow = (Classifier.from_run(run) for run in runs.values())
    texts = recorded_split(read_record(runs["narrow"]), "train", None).texts
    np.testing.assert_allclose(narrow.logits(texts), whole.logits(texts), rtol=1e-4, atol=1e-4)
    pieces = len(pieces_of([*(text for text, _ in ROWS), *OTHERS])[0])
    tables = [read_record(run).model.embedding_parameters for run in runs.values()]
    assert (tables[0] - tables[1]) % 32 == 0 and tables[1] < tables[0] < pieces * 32 + 50 * 32
    expected = narrow.logits([*texts, *OTHERS])
    for precision, tolerance in (("fp32", 1e-4), ("int8", 0.1)):
        target = tmp_path / precision
        command = ["export", str(runs["narrow"]), "--format", "onnx", "--precision", precision]
        assert main([*command, "--output", str(target)]) == 0
        found = Classifier.from_export(target).logits([*texts, *OTHERS])
        np.testing.assert_allclose(found, expected, atol=tolerance * max(1, np.abs(expected).max()))


def test_a_teacher_of_other_rows_reads_a_students_rows_in_its_own_pieces(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "WIDE_TABLE", 10)
    monkeypatch.setattr(training, "NARROWED_TO", 10)
    asked: list[list[int]] = []
    compute = teacher.Teacher._compute_states

    def seen(self: Any, ids: Any, offsets: Any, layers: Any) -> Any:
        asked.extend(row.tolist() for row in np.split(ids, offsets[1:-1]))
        return compute(self, ids, offsets, layers)

    monkeypatch.setattr(teacher.Teacher, "_compute_states", seen)
    options = ["--quiet", "--max-length", "32", "--cache-dir", str(tmp_path / "cache"), "--protocol", "finetune-few"]
    # Each has words that the other lacks, and the student more of them.
    rows = {
        "teacher": [(f"{text} {OTHERS[1]}", name) for text, name in ROWS[:60]],
        "student": [(f"{text} {OTHERS[number % 3]}", name) for number, (text, name) in enumerate(ROWS[60:])],
    }
    for name, keys in (("teacher", ""), ("student", "plan: '0'\n")):
        file, model = tmp_path / f"{name}.csv", tmp_path / f"{name}.yaml"
        write_csv(file, rows[name])
        model.write_text(f"encoder: {encoder}\n{keys}", encoding="utf-8")
        taught = [f"teacher={tmp_path / 'teacher'}"] if keys else []
        command = ["train", "--model", str(model), "--data", str(file), *options, "max_epochs=1", *taught]
        assert main([*command, "--output", str(tmp_path / name)]) == 0
    record = read_record(tmp_path / "student")
    texts = recorded_split(record, "train", None).texts
    own, theirs = (read_tokenizer(tmp_path / name / "model") for name in ("student", "teacher"))
    assert own.get_vocab() != theirs.get_vocab() and record.teacher is not None and record.teacher.compares_states
    assert asked == [theirs(text, truncation=True, max_length=32)["input_ids"] for text in texts]
