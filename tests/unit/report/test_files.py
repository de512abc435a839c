"""Figures and numbers of a study as files: whole, self-contained, true to the summary, and nothing left over."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from factories import RunFactory, study_latency
from recurra.core.terminal import slug
from recurra.tasks.questions import Contrast, Questions
from rendered import write_report

SMALL = {"train": 900, "validation": 300, "test": 400}
SVG = "{http://www.w3.org/2000/svg}"
QUESTIONS = Questions((Contrast(name="sharing & width_5", a="recurrent", b="baseline"),))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three fractions, with a contrast; not to be changed."""
    tmp_path = tmp_path_factory.mktemp("study")
    folders = []
    for index, fraction in enumerate((1.0, 0.5, 0.1)):
        rows = {**SMALL, "train": int(900 * fraction)}
        factory = RunFactory(tmp_path / "runs" / str(index), rows=rows, data_config={"fraction": fraction})
        folders += [
            factory.run(name, seed=seed, run_id=f"{name}-{index}-s{seed}")
            for name in ("baseline", "recurrent")
            for seed in (0, 1)
        ]
    write_report(tmp_path, folders, title="A study", latency=study_latency(folders), questions=QUESTIONS)
    return tmp_path


def figures(study: Path) -> dict[str, ElementTree.Element]:
    return {path.name: ElementTree.parse(path).getroot() for path in (study / "figures").glob("*.svg")}


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_a_figure_stands_alone(study: Path) -> None:
    for name, root in figures(study).items():
        text = (study / "figures" / name).read_text(encoding="utf-8")
        assert root.tag == f"{SVG}svg"
        assert float(root.get("width", "0")) > 0 and float(root.get("height", "0")) > 0
        assert not re.search(r"var\(|url\(|@import|<script|href", text)
        # Names of outside only as the name space.
        assert set(re.findall(r"https?://[^\s\"]+", text)) == {"http://www.w3.org/2000/svg"}
        assert all(
            0 <= float(item.get("y", "nan")) <= float(root.get("height", "0")) for item in root.iter(f"{SVG}text")
        )


def test_what_read_texts_to_another_length_is_another_chart(tmp_path: Path) -> None:
    folders = []
    for index, (fraction, length) in enumerate([(1.0, 64), (0.5, 64), (0.2, 128), (0.1, 128)]):
        keys = {"fraction": fraction, "max_length": length}
        rows = {**SMALL, "train": int(900 * fraction)}
        factory = RunFactory(tmp_path / "runs" / str(index), rows=rows, data_config=keys)
        folders.append(factory.run("recurrent", run_id=f"recurrent-{index}"))
    write_report(tmp_path, folders, title="A study", latency=study_latency(folders))
    drawn = {name for name in figures(tmp_path) if name.startswith("accuracy-against-data-size")}
    assert drawn == {f"accuracy-against-data-size-sst2-official-paper-fp32-{n}-tokens.svg" for n in (64, 128)}


@given(some.text(max_size=30))
def test_slugs_are_names_of_files(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+", slug(text)) and set(slug(text)) - {"."}


def test_what_is_drawn_no_more_is_removed_and_what_is_not_ours_stays(study: Path, tmp_path: Path) -> None:
    study = shutil.copytree(study, tmp_path / "copy")
    mine = study / "figures" / "mine.svg"
    mine.write_text("mine", encoding="utf-8")
    outside = study / "outside.svg"
    outside.write_text("mine too", encoding="utf-8")
    manifest = study / "exports.json"
    listed = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    manifest.write_text(json.dumps({"files": [*listed, "outside.svg", "figures/../outside.svg"]}), encoding="utf-8")
    folder = RunFactory(study / "runs" / "again", rows=SMALL).run("recurrent")
    write_report(study, [folder], title="A study")
    left = {path.name for path in (study / "figures").iterdir()}
    assert "accuracy-against-data-size-sst2-official-paper-fp32.svg" not in left
    assert "mine.svg" in left and outside.read_text(encoding="utf-8") == "mine too"
    assert not (study / "tables" / "contrasts.csv").exists()
