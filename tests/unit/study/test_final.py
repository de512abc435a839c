"""The recommended model, trained once more: on which rows, when, and who takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recurra import reported_study
from recurra.comparison import compare
from recurra.core.best_run import FINAL_NAME, find_run
from recurra.core.progress import Reporter
from recurra.core.record import SplitRecord, read_record, write_record
from recurra.data.configuration import DataConfig
from recurra.data.corpora import recorded_split
from recurra.deployment.serving.models import open_models
from recurra.reported_study import QUICK_S, StudyResult, _own_texts, report_records
from recurra.study.final import final_config, final_run, gains_rows, train_again
from recurra.study.plan import load_run_config
from recurra.study.spec import StudySpec
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import PROTOCOLS
from reviews import Command, review_rows, write_csv, write_reviews
from small_study import Inline


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compares models on a file in this process, without timing them."""
    monkeypatch.setattr(reported_study, "Workers", Inline)
    monkeypatch.setattr(reported_study, "time_side_by_side", lambda *_, **__: None)
    path = write_reviews(tmp_path / "reviews.csv", 120)

    def run(**options: Any) -> StudyResult:
        keys = {"folds": 2, "models": ["linear"], "seeds": 1, "quiet": True, "estimate": False, **options}
        return compare(path, output=tmp_path / "out", **keys)

    return run


def test_test_rows_join_those_of_training_and_no_other_row_does(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "reviews.csv", 200)
    for folds in (None, 4):
        dataset = StudyData().rows(DataConfig(name=str(path), folds=folds))
        merged = dataset.with_test_rows("a note")
        assert merged.notes == [*dataset.notes, "a note"]
        train, test, chosen = (set(dataset.splits[name].ids) for name in ("train", "test", "validation"))
        assert set(merged.splits["train"].ids) == train | test and len(merged.splits["train"]) == len(train) + len(test)
        assert set(merged.splits) == {"train", "validation"} and set(merged.splits["validation"].ids) == chosen
        assert merged.reported_splits == ["validation"] == [merged.selection_split]
        texts = dict(zip(dataset.splits["test"].ids, dataset.splits["test"].labels.tolist(), strict=True))
        own = dict(zip(merged.splits["train"].ids, merged.splits["train"].labels.tolist(), strict=True))
        assert {row: own[row] for row in texts} == texts


def test_a_quick_model_is_trained_again_and_stands_for_the_folder(
    compared: Any, tmp_path: Path, command: Command
) -> None:
    output, result = tmp_path / "out", compared()
    final, judged = output / FINAL_NAME, result.recommendation[2]
    assert find_run(output).folder == final == result.best.folder
    record = read_record(final)
    rows, of_fold = (
        {name: split.rows for name, split in each.data.splits.items() if isinstance(split, SplitRecord)}
        for each in (record, judged.record)
    )
    assert rows == {"train": of_fold["train"] + of_fold["test"], "validation": of_fold["validation"]}
    for split in rows:
        assert recorded_split(record, split, None).fingerprint == record.data.splits[split].fingerprint
    assert record.run_id != judged.record.run_id and read_record(judged.folder).run_id == judged.record.run_id
    page = (output / "report.html").read_text(encoding="utf-8")
    assert f"trained once more on {rows['train']:,} rows" in page and f"recurra export {output} " in page
    command("predict", output, "a good soup")
    command("export", output, "--output", tmp_path / "export")
    (model,), measure = result.content.tables[0].models, result.content.tables[0].judged_by
    worth = f"on {model.scores['test'].rows:,} test rows: {measure.in_text} {measure.text(measure.of(model, 'test'))}"
    assert model.scores["test"].rows == 120
    card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert f"had {of_fold['train']:,} training rows; {worth}" in card
    # A server quotes those rows, and not the ones that set the probabilities.
    (served,) = open_models({"of-all-rows": output})
    assert served.description.quality is None and served.description.judged_before.endswith(f"{worth}.")
    # The same call does nothing anew; other settings replace it.
    before = (final / "record.json").read_bytes()
    assert compared(title="Named").best.folder == final
    assert (final / "record.json").read_bytes() == before
    again = compared(models=["linear-tuned"])
    assert again.best.folder == final and read_record(final).model.preset == "linear-tuned"
    assert load_run_config(final).config_hash == final_config(again.recommendation[2].config).config_hash
    # As a teacher it has seen the test rows of its student.
    given = ["--data", tmp_path / "reviews.csv", "--output", tmp_path / "student", "--no-latency"]
    said = command("train", "--model", "linear-tuned", *given, f"model.teacher={output}", code=3).err
    assert "teacher.test" in said


def test_what_takes_longer_waits_to_be_asked_and_the_report_does_not_wait(
    compared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(reported_study, "train_again", killed)
        compared()
    assert "linear" in (output / "report.html").read_text(encoding="utf-8") and not (output / FINAL_NAME).exists()
    assert find_run(output).folder.parent.name == "runs"
    judged = compared(final=False)
    assert "--final" not in judged.ships
    # A long training that was resumed: the process that finished it took a second.
    for outcome in judged.outcomes:
        training = outcome.record.training.model_copy(update={"wall_s": 2 * QUICK_S, "resumed": 1})
        write_record(outcome.folder, outcome.record.model_copy(update={"wall_s": 1.0, "training": training}))
    waiting = compared()
    assert QUICK_S == 60 and "--final trains it on test rows too" in waiting.ships
    assert waiting.best.folder == waiting.recommendation[2].folder and not (output / FINAL_NAME).exists()
    asked = compared(final=True)
    assert asked.best.folder == output / FINAL_NAME and "trained once more on" in asked.ships
    # Once it is there, it stands for the folder, whoever asks.
    assert compared(final=False).best.folder == output / FINAL_NAME
    # The report of a folder says so as well.
    assert report_records(output, command="").ships == asked.ships


def test_data_that_changed_train_no_final_model(compared: Any, tmp_path: Path) -> None:
    judged = compared(final=False).recommendation[2].config
    write_reviews(tmp_path / "reviews.csv", 100, seed=1)
    machine, reporter = Machine(threads=1), Reporter(quiet=True)
    record, reason = train_again(judged, "", tmp_path / "out", machine, reporter=reporter, workers=Inline(1, 1))
    assert record is None and "reviews.csv' was changed after the run was planned" in reason
    assert final_run(judged, tmp_path / "out") is None


def test_a_test_file_of_the_user_and_test_rows_of_a_corpus_stay_for_testing(compared: Any, tmp_path: Path) -> None:
    test = write_csv(tmp_path / "test.csv", review_rows(40, seed=9))
    result = compared(folds=1, test=str(test), final=True)
    assert not (tmp_path / "out" / FINAL_NAME).exists() and result.ships == ""
    more = tmp_path / "more.txt"
    more.write_text("a text without a label\n", encoding="utf-8")
    for name, own in (("demo", False), (str(tmp_path / "reviews.csv"), True)):
        data = DataConfig(name=name, unlabelled=str(more))
        judged = make_run("linear", data, PROTOCOLS["tuned"], seed=0, precision="fp32")
        assert judged.data_hash is not None and gains_rows(judged) == own


def test_the_report_shows_texts_as_they_stand_in_the_files(tmp_path: Path) -> None:
    rows = [(f"<b>{text.upper()}</b> !!", label) for text, label in review_rows(60, seed=2)]
    others = [(f"THE TEST: {text}", label) for text, label in review_rows(20, seed=3)]
    path, test = write_csv(tmp_path / "rows.csv", rows), write_csv(tmp_path / "test.csv", others)
    config = DataConfig(name=str(path), test=str(test), clean="recurra-2")
    spec = StudySpec.parse({"name": "s", "data": [config], "models": ["linear"]})
    texts, fingerprint = _own_texts(spec, StudyData())
    dataset = StudyData().rows(config)
    assert fingerprint == dataset.fingerprint
    assert {name: set(of_split) for name, of_split in texts.items()} == {
        name: set(split.ids) for name, split in dataset.splits.items()
    }
    assert {*texts["train"].values(), *texts["validation"].values()} == {text for text, _ in rows}
    assert set(texts["test"].values()) == {text for text, _ in others}
