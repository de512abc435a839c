"""An encoder of many languages in a run: its table is cut down, and training rows are answered as by the whole one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocks_file import pieces_of, write_blocks
from recurra.core.record import RECORD_NAME, TrainingRecord, read_record
from recurra.data.corpora import recorded_split
from recurra.data.tokenization import read_tokenizer
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.models.adaptation.blocks import unpack_encoder
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.tasks.labelling import task, teacher, training, transformer
from reviews import Command, Row, review_rows, write_csv
from tiny_encoder import write_tiny_encoder

ROWS = review_rows(80)
OTHERS = ["质量 还不错", "очень хорошая книга", "unbelievable wonders"]
TUNED = ("--protocol", "finetune-few", "max_epochs=1")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wide")
    write_blocks(root / "tiny.bin", [*(text for text, _ in ROWS), *OTHERS])
    unpack_encoder(root / "tiny.bin", root / "tiny")
    return root / "tiny"


@pytest.fixture
def train(encoder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Trains a model from the encoder, whose table is cut down if it is wide."""
    monkeypatch.setattr(training, "NARROWED_TO", 10)

    def run(name: str, rows: Sequence[Row], *options: object, keys: str = "", wide: int = 10) -> Path:
        monkeypatch.setattr(training, "WIDE_TABLE", wide)
        file, model = write_csv(tmp_path / f"{name}.csv", rows), tmp_path / f"{name}.yaml"
        model.write_text(f"{keys}encoder: {encoder}\n", encoding="utf-8")
        words = ["train", "--model", model, "--data", file, "--output", tmp_path / name, "--no-latency"]
        command(*words, "--max-length", 32, "--cache-dir", tmp_path / "cache", *options)
        return tmp_path / name

    return run


@pytest.mark.parametrize("keys", ["preset: words-and-encoder\n", ""], ids=["words", "tuned"])
def test_rows_are_answered_as_with_the_whole_table(keys: str, train: Callable[..., Path], tmp_path: Path) -> None:
    options = () if keys else TUNED
    runs = [train(name, ROWS, *options, keys=keys, wide=wide) for name, wide in (("whole", 10**6), ("narrow", 10))]
    whole, narrow = (Classifier.from_run(run) for run in runs)
    texts = recorded_split(read_record(runs[1]), "train", None).texts
    np.testing.assert_allclose(narrow.logits(texts), whole.logits(texts), rtol=1e-4, atol=1e-4)
    pieces = len(pieces_of([*(text for text, _ in ROWS), *OTHERS])[0])
    tables = [read_record(run).model.embedding_parameters for run in runs]
    assert (tables[0] - tables[1]) % 32 == 0 and tables[1] < tables[0] < pieces * 32 + 50 * 32
    expected = narrow.logits([*texts, *OTHERS])
    for precision, tolerance in (("fp32", 1e-4), ("int8", 0.1)):
        export_run(runs[1], tmp_path / precision, ExportOptions("onnx", precision))
        found = Classifier.from_export(tmp_path / precision).logits([*texts, *OTHERS])
        np.testing.assert_allclose(found, expected, atol=tolerance * max(1, np.abs(expected).max()))


def test_a_teacher_of_other_rows_reads_a_students_rows_in_its_own_pieces(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    compute = teacher.Teacher._compute_states

    def seen(self: Any, ids: Any, offsets: Any, layers: Any) -> Any:
        asked.extend(row.tolist() for row in np.split(ids, offsets[1:-1]))
        return compute(self, ids, offsets, layers)

    monkeypatch.setattr(teacher.Teacher, "_compute_states", seen)
    # Each has words that the other lacks, and the student more of them.
    first = train("teacher", [(f"{text} {OTHERS[1]}", name) for text, name in ROWS[:40]], *TUNED)
    rows = [(f"{text} {OTHERS[number % 3]}", name) for number, (text, name) in enumerate(ROWS[40:])]
    second = train("student", rows, *TUNED, f"teacher={first}", keys="plan: '0'\n")
    record = read_record(second)
    texts = recorded_split(record, "train", None).texts
    own, theirs = (read_tokenizer(run / "model") for run in (second, first))
    assert own.get_vocab() != theirs.get_vocab() and record.teacher is not None and record.teacher.compares_states
    assert asked == [theirs(text, truncation=True, max_length=32)["input_ids"] for text in texts]


def test_a_package_trains_the_whole_table_before_it_is_cut_down(
    encoder: Path, train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def by_package(model: Any, source: Any, rows: Any, **_: Any) -> TrainingRecord:
        trained.extend(rows.texts)
        load_encoder_weights(model.model, source)
        return TrainingRecord(
            protocol="paper", epochs=1, steps=1, best_epoch=1, wall_s=1.0, tokens_per_s=1.0, peak_memory_mib=1.0
        )

    monkeypatch.setattr(transformer, "train_by_setfit", by_package)
    monkeypatch.setattr(transformer, "version", lambda: "1")
    for module in (task, transformer):
        monkeypatch.setattr(module, "check_method", lambda overrides: None)
    run = train("pairs", ROWS, keys="method: setfit\n")
    first = read_record(run)
    assert len(read_tokenizer(run / "model")) < len(read_tokenizer(encoder))
    assert np.isfinite(Classifier.from_run(run).logits(OTHERS)).all()
    # Killed before its record, it is not trained again, and has the same table.
    (run / RECORD_NAME).unlink()
    again = read_record(train("pairs", ROWS, keys="method: setfit\n"))
    assert again.model == first.model and len(trained) == first.data.splits["train"].rows


@pytest.mark.slow
def test_compare_names_e5_for_texts_of_a_language_that_the_encoder_was_not_made_for(
    tmp_path: Path, command: Command
) -> None:
    encoder = write_tiny_encoder(tmp_path / "tiny", [text for text, _ in ROWS])
    model = tmp_path / "words.yaml"
    model.write_text(f"preset: words-and-encoder\nencoder: {encoder}\n", encoding="utf-8")
    letters = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстуввхыз")
    english = write_csv(tmp_path / "english.csv", ROWS)
    russian = write_csv(tmp_path / "russian.csv", [(text.translate(letters), label) for text, label in ROWS])
    words = ["--no-latency", "--cache-dir", tmp_path / "cache", "--output"]
    assert "language" not in command("train", "--model", model, "--data", english, *words, tmp_path / "train").err
    once = ["--models", model, "--folds", 1, "--workers", 1, "--no-estimate", "--no-final"]
    lines = command("compare", russian, *once, *words, tmp_path / "compare").err.splitlines()
    (said,) = (line for line in lines if "was not made for this language" in line)
    assert "for other languages: --from e5 (pip install 'recurra[languages]')" in said
