"""What a run is called."""

from __future__ import annotations

from pathlib import Path

from recurra.data.configuration import DataConfig
from recurra.tasks.runs import make_run
from recurra.training.protocols import PROTOCOLS
from reviews import write_reviews


def test_a_run_of_a_file_with_a_long_name_in_any_script_has_a_folder(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / f"{'評' * 80}.csv", rows=4)
    run = make_run("recurrent", DataConfig(name=str(path)), PROTOCOLS["paper"], seed=0, precision="fp32")
    (tmp_path / run.run_id).mkdir()
    assert run.run_id == f"{'評' * 76}-{run.config_hash[:8]}"
