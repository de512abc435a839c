"""A run folder is fresh, the same run, or refused; what was there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.core.configuration import write_yaml
from recurra.core.errors import ConfigurationError, RecurraError, StorageError
from recurra.data.configuration import DataConfig
from recurra.reported_study import refuse_folder_of_another
from recurra.study.plan import claim_folder, load_run_config
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine
from recurra.training.protocols import PROTOCOLS
from reviews import snapshot


def config(seed: int = 0) -> RunConfig:
    return make_run("baseline", DataConfig(name="demo"), PROTOCOLS["paper"], seed=seed, precision="fp32")


def test_a_fresh_folder_gets_the_configuration(tmp_path: Path) -> None:
    assert claim_folder(config(), tmp_path) is None
    assert load_run_config(tmp_path) == config()
    before = snapshot(tmp_path)
    assert claim_folder(config(), tmp_path) is None
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        (
            "config.yaml",
            write_yaml(config(seed=1).plain()),
            StorageError,
            r"holds another run \(demo-default-baseline-paper-s1-.*, wanted .*-s0-.*choose another --output",
        ),
        ("config.yaml", "model: [", ConfigurationError, "is not valid YAML"),
        ("thesis.tex", "x", StorageError, "is not empty and not a run folder of ours; choose another --output"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_untouched(
    name: str, text: str, error: type[RecurraError], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        claim_folder(config(), tmp_path)
    assert snapshot(tmp_path) == {name: text.encode()}


def test_what_a_failed_start_or_a_kill_left_is_no_hindrance(tmp_path: Path) -> None:
    for name in (".lock", "log.txt", "error.json", ".config.yaml.a1b2_c3d.part"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert claim_folder(config(), tmp_path) is None
    assert set(snapshot(tmp_path)) == {".lock", "log.txt", "error.json", "config.yaml"}


def test_a_part_of_a_study_file_is_no_hindrance_to_a_study(tmp_path: Path) -> None:
    (tmp_path / ".study.yaml.a1b2_c3d.part").write_text("name: hal", encoding="utf-8")
    refuse_folder_of_another("any", tmp_path)


def test_a_machine_comes_back_from_the_worker_s_argument(tmp_path: Path) -> None:
    machine = Machine(data_root=tmp_path, threads=3, latency=False)
    assert Machine.from_json(machine.to_json()) == machine
    assert Machine.from_json(Machine().to_json()) == Machine()
