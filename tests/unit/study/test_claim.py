"""A run folder is fresh, the same run, or refused; what was there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.core.errors import ConfigurationError, StorageError
from recurra.data.configuration import DataConfig
from recurra.reported_study import refuse_folder_of_another
from recurra.study.plan import claim_folder, load_run_config
from recurra.tasks.machine import Machine
from recurra.tasks.runs import RunConfig, make_run
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


def test_a_folder_of_another_run_is_refused_and_untouched(tmp_path: Path) -> None:
    claim_folder(config(), tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(
        StorageError, match=r"holds another run \(demo-default-baseline-paper-s0-.*, wanted .*-s1-"
    ) as caught:
        claim_folder(config(seed=1), tmp_path)
    assert "choose another --output" in str(caught.value)
    assert snapshot(tmp_path) == before


def test_a_folder_with_something_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(StorageError, match="is not empty and not a run folder of ours; choose another --output"):
        claim_folder(config(), tmp_path)
    assert snapshot(tmp_path) == {"thesis.tex": b"x"}


def test_what_a_failed_start_left_is_no_hindrance(tmp_path: Path) -> None:
    for name in (".lock", "log.txt", "error.json"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert claim_folder(config(), tmp_path) is None


def test_a_kill_while_the_configuration_was_written_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.a1b2_c3d.part").write_text("name: hal", encoding="utf-8")
    refuse_folder_of_another("any", tmp_path)
    assert claim_folder(config(), tmp_path) is None
    assert list(snapshot(tmp_path)) == ["config.yaml"]


def test_a_damaged_configuration_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: [", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="is not valid YAML"):
        claim_folder(config(), tmp_path)


def test_a_machine_comes_back_from_the_worker_s_argument(tmp_path: Path) -> None:
    machine = Machine(data_root=tmp_path, threads=3, latency=False, keep_checkpoints=True)
    assert Machine.from_json(machine.to_json()) == machine
    assert Machine.from_json(Machine().to_json()) == Machine()
