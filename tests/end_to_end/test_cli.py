"""The main job through the real command line: a labelled file in, a report out."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recurra.core.configuration import read_yaml
from recurra.core.record import RunRecord, read_record
from recurra.study.plan import plan_study
from recurra.study.spec import load_study
from reviews import TINY_DATA, Command, review_rows, write_csv, write_reviews, write_tiny_model

# Far beyond what anything here takes: a busy machine is no failure.
PATIENCE_S = 900
pytestmark = pytest.mark.timeout(2 * PATIENCE_S)

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "RECURRA_DATA_ROOT"}


def recurra(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, in a folder."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "recurra", *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=folder, env=ENVIRONMENT,
    )  # fmt: skip


@dataclass
class Study:
    """A finished comparison: how it was started, and what it printed."""

    folder: Path
    arguments: list[str]
    done: subprocess.CompletedProcess[str]

    @property
    def records(self) -> dict[str, tuple[Path, RunRecord]]:
        """Folder and record of each run by its model."""
        folders = sorted((self.folder / "out" / "runs").iterdir())
        return {record.model.preset: (folder, record) for folder in folders for record in [read_record(folder)]}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("compare")
    write_reviews(folder / "reviews.csv")
    write_tiny_model(folder / "tiny.yaml")
    arguments = ["compare", "reviews.csv", "--models", "linear,tiny.yaml", "--seeds", "1", "--output", "out", "--json"]
    arguments += ["--folds", "1", "--cache-dir", "cache", "--threads", "1"]
    arguments += [*TINY_DATA, "max_epochs=2", "learning_rate=3e-3"]
    return Study(folder, arguments, recurra(folder, *arguments))


@pytest.fixture
def study(compared: Study, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(compared.folder)
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    return compared


def test_a_comparison_answers_with_one_document_and_leaves_what_is_promised_and_no_more(study: Study) -> None:
    assert study.done.returncode == 0, study.done.stderr
    answer = json.loads(study.done.stdout)
    assert answer["output"] == "out" and answer["report"] == str(Path("out") / "report.html")
    assert [model["preset"] for model in answer["tables"][0]["models"]] == ["linear", "tiny"]
    assert "epoch 2" in study.done.stderr and "tokenizer: trained" in study.done.stderr
    assert "Traceback" not in study.done.stderr and "Warning" not in study.done.stderr

    output, (run, _) = study.folder / "out", study.records["tiny"]
    assert names(output) == {
        "study.yaml", "summary.json", "latency.json", "report.html", "figures", "tables", "exports.json", "best.json",
        "runs", "final",
    }  # fmt: skip
    assert names(run) == {
        "config.yaml", "record.json", "history.jsonl", "training.json", "log.txt", "model", "model-files.json",
        "predictions",
    }  # fmt: skip
    assert names(run / "predictions") == {"validation.parquet", "test.parquet"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names(run / "model")
    assert len((run / "history.jsonl").read_text().splitlines()) == 2
    timed = json.loads((output / "latency.json").read_text())["runs"]
    assert set(timed) == {folder.name for folder, _ in study.records.values()}
    assert all(set(batches) == {"batch_1", "batch_32"} for batches in timed.values())
    report = (output / "report.html").read_text(encoding="utf-8")
    assert "linear" in report and "tiny" in report and "recurra compare reviews.csv" in report
    assert "http://" not in report.replace("http://www.w3.org", "") and "<script src" not in report


def test_the_same_command_again_does_nothing_again(study: Study, command: Command) -> None:
    def written() -> dict[Path, int]:
        runs = study.folder / "out" / "runs"
        return {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}

    before = written()
    again = command(*study.arguments)
    assert "2 runs, 2 done, 0 to do; tokenizer: trained" in again.err
    assert again.json["tables"] == json.loads(study.done.stdout)["tables"]
    assert written() == before
    # The file of the study plans the same runs.
    runs = plan_study(load_study("out/study.yaml"), Path("out"))
    assert len(runs) == 2 and all(run.record is not None for run in runs)
    assert read_yaml("out/study.yaml")["seeds"] == [0]


@pytest.mark.parametrize("model", ["linear", "tiny"])
def test_a_run_is_evaluated_and_predicts_as_recorded(
    model: str, study: Study, tmp_path: Path, command: Command
) -> None:
    folder, record = study.records[model]
    result = command("evaluate", folder, "--json").json
    assert result["metrics"]["confusion_matrix"] == record.metrics["test"].confusion_matrix
    assert result["metrics"]["loss"] == pytest.approx(record.metrics["test"].loss, abs=1e-6)

    rows = [*review_rows(50, seed=3), ("", "positive"), ("<b>  </b>", "negative")]
    source, output = write_csv(tmp_path / "new.csv", rows), tmp_path / "p.parquet"
    counts = command("predict", folder, "--input", source, "--output", output, "--json").json
    assert (counts["rows"], counts["empty"]) == (52, 2)
    table = pq.read_table(output).to_pydict()
    assert table["text"] == [text for text, _ in rows]

    texts = [text for text, _ in rows[:5]]
    some = command("predict", folder, *texts, "--json").json["predictions"]
    assert [row["label"] for row in some] == table["label_predicted"][:5]
    assert [row["probability"] for row in some] == pytest.approx(table["probability"][:5], abs=1e-5)
    lines = command("predict", folder, *texts).out.splitlines()
    assert [line.split("\t")[::2] for line in lines] == [[row["label"], row["text"]] for row in some]


@pytest.mark.slow
def test_a_leak_is_loud(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv")
    write_csv(tmp_path / "test.csv", review_rows()[:60])
    options = ["--models", "linear", "--output", "out", "--no-latency"]
    out, err = command("compare", "reviews.csv", "--test", "test.csv", "--no-estimate", *options, code=3)
    assert "AUDIT FAILED" in err and "leakage.exact.test" in err and "FAILED" in out
    assert "leakage" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "leakage.exact.test" in command("audit", "study", "out", code=3).out


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_the_same_command_goes_on(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECURRA_DATA_ROOT", raising=False)
    write_reviews(tmp_path / "reviews.csv")
    write_tiny_model(tmp_path / "tiny.yaml")
    arguments = ["train", "--model", "tiny.yaml", "--data", "reviews.csv", "--output", "run", "--no-latency", "--json"]
    arguments += ["--cache-dir", "cache", "--threads", "1", *TINY_DATA, "max_epochs=40", "early_stopping_patience=0"]
    with subprocess.Popen(
        [sys.executable, "-m", "recurra", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    ) as process:  # fmt: skip
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if "epoch 2:" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait() == 130
        assert process.stdout.read() == ""
    said = "interrupted; start the same command again to continue: finished work is not repeated"
    assert rest.splitlines()[-1] == said and "Traceback" not in rest
    assert not (tmp_path / "run" / "record.json").exists()
    record = command(*arguments).json
    assert (record["training"]["resumed"], record["training"]["epochs"]) == (1, 40)


@pytest.mark.slow
def test_hundreds_of_classes_of_three_rows_are_compared_in_bounds(tmp_path: Path) -> None:
    rows = [
        (f"w{label % 97} own{label} of{row} v{label % 13}", f"class {label}")
        for label in range(300)
        for row in range(3)
    ]
    write_csv(tmp_path / "many.csv", rows)
    done = recurra(tmp_path, "compare", "many.csv", "--models", "linear-tuned", "--output", "out")
    assert done.returncode == 0, done.stderr
    assert "arning" not in done.stderr and "estimating" in done.stderr and "fitting linear-tuned" in done.stderr
    assert len(done.stderr.splitlines()) < 60 and len(done.stdout) < 10_000
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Kilobytes on Linux, bytes elsewhere.
    assert usage.ru_maxrss / (1 if sys.platform == "linux" else 1024) < 2 * 2**20
    assert (tmp_path / "out" / "report.html").stat().st_size < 5 * 2**20


MOST_GROWTH_MIB = 200


def peak_mib(run: Path, source: Path, output: Path) -> float:
    """Largest resident size of a ``recurra predict`` process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "recurra", "predict", str(run), "-i", str(source), "-o", str(output), "--quiet"]
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def write_rows(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write("text\n")
        stream.writelines(f"film {number} was good\n" for number in range(rows))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_rows_grow_the_memory_by_less_than_200_mib(linear_run: Path, tmp_path: Path) -> None:
    small, large, output = tmp_path / "small.csv", tmp_path / "large.csv", tmp_path / "p.csv"
    write_rows(small, 1_000)
    write_rows(large, 1_000_000)
    growth = peak_mib(linear_run, large, output) - peak_mib(linear_run, small, tmp_path / "q.csv")
    assert growth < MOST_GROWTH_MIB
    number = 0
    with output.open(encoding="utf-8") as stream:
        next(stream)
        for number, line in enumerate(stream, start=1):
            assert line.startswith(f"film {number - 1} was good,")
    assert number == 1_000_000
