"""Which run a path stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from committed import RESULTS
from recurra.cli.main import main
from recurra.core.best_run import BEST_NAME, BestRunRecord, LocatedRun, find_run, no_run
from recurra.core.errors import CheckpointError


def make_comparison(folder: Path, *runs: str, best: str | None = None) -> Path:
    """A folder with runs that have a record, and what recommends one of them."""
    for run in runs:
        (folder / "runs" / run).mkdir(parents=True)
        (folder / "runs" / run / "record.json").write_text("{}", encoding="utf-8")
    if best is not None:
        BestRunRecord(folder=f"runs/{best}", model="linear", seed=0, why="the best.").write(folder / BEST_NAME)
    return folder


def test_a_comparison_stands_for_its_recommended_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = make_comparison(tmp_path / "x", "a-1", "é_b.2", best="é_b.2")
    run = comparison / "runs" / "é_b.2"
    for path in (comparison, str(comparison), comparison / "best"):
        found = find_run(path)
        assert found.folder == run
        assert found.note == f"'{comparison}' holds several runs; taking the recommended one, {run} (linear)"
    # A folder that is called so is itself.
    (comparison / "best").mkdir()
    assert find_run(comparison / "best") == LocatedRun(comparison / "best")
    monkeypatch.chdir(comparison)
    assert find_run(".").folder == Path("runs/é_b.2")


def test_anything_else_stands_for_itself(tmp_path: Path) -> None:
    comparison = make_comparison(tmp_path / "x", "a", best="a")
    (tmp_path / "empty" / "runs" / "unfinished").mkdir(parents=True)
    (tmp_path / "file").write_text("", encoding="utf-8")
    (comparison / "runs" / "a" / "runs").mkdir()
    for path in (
        comparison / "runs" / "a", comparison / "runs", tmp_path / "empty", tmp_path / "file", tmp_path / "nowhere",
        tmp_path / "nowhere" / "best", tmp_path / "file" / "best", "recurrent", "best", "a\0b", "",
    ):  # fmt: skip
        assert find_run(path) == LocatedRun(Path(path))


@pytest.mark.parametrize("asked", ["x", "x/best"])
def test_without_a_recommendation_the_runs_are_named(asked: str, tmp_path: Path) -> None:
    make_comparison(tmp_path / "x", *(f"run-{number:02}" for number in range(12)))
    (tmp_path / "x" / "runs" / "unfinished").mkdir()
    with pytest.raises(CheckpointError) as caught:
        find_run(tmp_path / asked)
    said = str(caught.value)
    assert "recommends none; give one of them: " in said and said.endswith(" and 2 more")
    assert [f"run-{number:02}" in said for number in range(12)] == [True] * 10 + [False] * 2 and "unfin" not in said


@pytest.mark.parametrize("folder", ["../outside", "runs/..", "/etc", "runs/a/model", "runs\\a", ""])
def test_a_path_out_of_the_folder_is_refused(folder: str, tmp_path: Path) -> None:
    comparison = make_comparison(tmp_path / "x", "a")
    with pytest.raises(ValueError, match="folder"):
        BestRunRecord(folder=folder, model="m", seed=0, why="w")
    # As somebody would write it who knows how such files are sealed.
    record = BestRunRecord.model_construct(schema_version=1, folder=folder, model="m", seed=0, why="w", content_hash="")
    record.write(comparison / BEST_NAME)
    with pytest.raises(CheckpointError, match=r"is not a recommendation of ours: 'folder'.*give it: \S+/runs/a$"):
        find_run(comparison)


def test_what_is_damaged_gone_or_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    make_comparison(tmp_path / "outside", "b")
    comparison = make_comparison(tmp_path / "x", "a", best="b")
    (comparison / "runs" / "b").symlink_to(tmp_path / "outside" / "runs" / "b")
    with pytest.raises(CheckpointError, match=r"names 'runs/b', which lies outside of it; give one of them: "):
        find_run(comparison)
    (comparison / "runs" / "b").unlink()
    path = make_comparison(comparison, best="a") / BEST_NAME
    whole = path.read_text(encoding="utf-8")
    for damaged, said in (
        (whole.replace('"linear"', '"static"'), "was changed after it was written"),
        (whole[:-9], "not valid JSON"),
        ("[]", "is not a recommendation of ours"),
        (whole.replace('"schema_version": 1', '"schema_version": 2'), "upgrade recurra"),
    ):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(CheckpointError, match=said):
            find_run(comparison)
    path.write_text(whole, encoding="utf-8")
    (comparison / "runs" / "a" / "record.json").unlink()
    with pytest.raises(CheckpointError, match="no finished run; none of its runs is finished: start its command again"):
        find_run(comparison)


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "{}", "a text"), ("evaluate", "{}"), ("export", "{}", "--output", "out"), ("serve", "{}"),
        ("serve", "name={}"), ("exits", "{}"), ("bench", "{}"), ("bench", "recurrent", "--against", "{}"),
        ("audit", "model", "{}"), ("generate", "{}", "a text"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_that_wants_one_run_asks(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_comparison(tmp_path / "x", "a", "b")
    assert main([part.format("x") for part in command]) == 2
    said = "error: 'x' holds several runs, but 'x/best.json' recommends none; give one of them: x/runs/a, x/runs/b\n"
    assert capsys.readouterr() == ("", said)


def test_what_is_no_finished_run_is_called_what_it_is(tmp_path: Path) -> None:
    run, comparison = tmp_path / "run", tmp_path / "comparison"
    (comparison / "runs").mkdir(parents=True)
    (comparison / "study.yaml").touch()
    run.mkdir()
    assert "is not a run folder; give a folder made by 'recurra train'" in str(no_run(run))
    (run / "config.yaml").touch()
    assert "is a run that is not finished; start its command again" in str(no_run(run))
    assert "is a comparison without a finished run; start its command again" in str(no_run(comparison))
    said = "does not exist (did you mean 'comparison'?); give a folder made by 'recurra train'"
    assert said in str(no_run(tmp_path / "comparisons"))
    assert "does not exist; give a folder" in str(no_run(tmp_path / "no" / "such" / "run"))
    assert "is a packed study, which keeps no models" in str(no_run(RESULTS / "demo"))
