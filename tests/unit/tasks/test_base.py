"""What a run is called, and the model that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.core.errors import ConfigurationError
from recurra.data.configuration import DataConfig
from recurra.tasks.runs import make_run, resolve_model
from recurra.training.protocols import PROTOCOLS
from reviews import write_reviews


def test_a_run_of_a_file_with_a_long_name_in_any_script_has_a_folder(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / f"{'評' * 80}.csv", rows=4)
    run = make_run("recurrent", DataConfig(name=str(path)), PROTOCOLS["paper"], seed=0, precision="fp32")
    (tmp_path / run.run_id).mkdir()
    assert run.run_id == f"{'評' * 76}-{run.config_hash[:8]}"


@pytest.mark.parametrize("key", ["encoder", "method"])
def test_a_model_file_names_what_it_starts_from_or_leaves_it_out(key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"preset: recurrent\n{key}:\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"mine.yaml': '{key}' has no value; give one, or leave it out"):
        resolve_model(str(path))
