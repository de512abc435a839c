"""What README and docs tell a reader to type exists: commands with their options, targets, links, names, files."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
import yaml

import recurra
from recurra.cli.main import make_app
from recurra.core.errors import ConfigurationError
from recurra.core.packed import read_study_bytes, study_files
from recurra.core.record import holds_any_record
from recurra.deployment.export.formats import find_precision
from recurra.evaluation.perplexity import PositionLoss
from recurra.models.configuration import RecurraConfig
from recurra.study.spec import StudySpec, expand
from recurra.tasks.runs import resolve_model
from recurra.training.protocols import ProtocolConfig
from reviews import write_reviews

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
HARNESS = "recurra.study.harness"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def blocks(language: str) -> list[tuple[Path, str]]:
    found = []
    for path in DOCUMENTS:
        for kind, text in FENCE.findall(path.read_text(encoding="utf-8")):
            if kind == language:
                found.append((path, text))
    return found


def shell_lines() -> Iterator[tuple[Path, list[str]]]:
    for path, text in blocks("sh"):
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield path, words


def recurra_arguments(words: list[str]) -> list[str] | None:
    if Path(words[0]).name == "recurra":
        return words[1:]
    if "-m" in words and words[words.index("-m") + 1] == "recurra":
        return words[words.index("-m") + 2 :]
    return None


def parse(arguments: list[str]) -> object:
    command: Any = typer.main.get_command(make_app())
    remaining = list(arguments)
    names = ["recurra"]
    while hasattr(command, "commands"):
        names.append(remaining.pop(0))
        command = command.commands[names[-1]]
    return command.make_context(" ".join(names), remaining)


def parse_harness(words: list[str]) -> None:
    """Holds a command of lm-evaluation-harness against its parser, and the model's arguments against ours."""
    from lm_eval._cli import HarnessCLI

    from recurra.study.harness import RecurraLM

    options = HarnessCLI()._parser.parse_args(words)
    assert options.model == "recurra"
    assert set(options.model_args) <= set(inspect.signature(RecurraLM).parameters) - {"other"}


def test_the_documents_show_commands_at_all() -> None:
    commands = [words for _, words in shell_lines() if recurra_arguments(words) is not None]
    assert len(commands) >= 10


@pytest.mark.parametrize(
    ("path", "words"),
    [pytest.param(path, words, id=f"{path.name}: {shlex.join(words)}") for path, words in shell_lines()],
)
def test_every_shell_line_can_be_typed(path: Path, words: list[str]) -> None:
    arguments = recurra_arguments(words)
    if arguments is not None:
        parse(arguments)
    elif words[:3] == ["python", "-m", HARNESS]:
        parse_harness(words[3:])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    else:
        pytest.fail(f"{path.name} shows a command that this test does not know: {shlex.join(words)}")


def test_documented_exports_are_of_formats_that_exist() -> None:
    found = set()
    for _, words in shell_lines():
        arguments = recurra_arguments(words) or [""]
        if arguments[0] == "export":
            asked: Any = parse(arguments)
            found.add((asked.params["format"], asked.params["precision"]))
    assert len(found) >= 3
    for name, precision in found:
        find_precision(name, precision)


def test_a_misspelt_option_would_be_found() -> None:
    usage_error = typer.BadParameter.__mro__[1]
    with pytest.raises(usage_error, match="--seedz"):
        parse(["compare", "reviews.csv", "--seedz", "3"])


@pytest.mark.parametrize(("path", "text"), [pytest.param(p, t, id=p.name) for p, t in blocks("python")])
def test_python_blocks_use_names_that_exist(path: Path, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "recurra":
            assert node.attr in recurra.__all__, f"{path.name}: recurra.{node.attr}"


@pytest.mark.slow
def test_the_blocks_of_the_page_on_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reviews(tmp_path / "reviews.csv", rows=120)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for path, text in blocks("python"):
        if path.name == "python.md":
            exec(compile(text, path.name, "exec"), known)
    assert known["result"].best.model == "linear" and (tmp_path / "runs" / "chosen" / "record.json").is_file()


@pytest.mark.parametrize("name", ["compare", "RecurraClassifier"])
def test_the_reference_names_every_argument_with_its_default(name: str) -> None:
    text = (
        (ROOT / "docs/reference/python.md")
        .read_text(encoding="utf-8")
        .partition(f"## {name}\n")[2]
        .partition("\n## ")[0]
    )
    told = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", text, re.MULTILINE))
    parameters = inspect.signature(getattr(recurra, name)).parameters.values()
    empty = inspect.Parameter.empty
    assert told == {
        each.name: "" if each.default is empty else repr(each.default).replace("'", '"') for each in parameters
    }


def test_the_reference_names_every_public_name() -> None:
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)))) == set(
        recurra.__all__
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("path", sorted((ROOT / "configs/models").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_model_file_builds(path: Path) -> None:
    from recurra.models.presets import preset

    _, values = resolve_model(str(path))
    base = values.pop("preset")
    assert isinstance(preset(base, **values), RecurraConfig)


@pytest.mark.parametrize(("path", "text"), [pytest.param(p, t, id=p.name) for p, t in blocks("yaml")])
def test_yaml_blocks_are_of_a_kind_that_is_read(path: Path, text: str) -> None:
    values = yaml.safe_load(text)
    if "models" in values:
        assert expand(StudySpec.parse(values))
    elif "learning_rate" in values:
        ProtocolConfig.parse(values)
    elif "task" in values:
        # A task of lm-evaluation-harness; tests/integration/test_harness.py runs such ones.
        assert {"dataset_path", "test_split", "output_type", "metric_list"} <= set(values)
    elif "preset" in values:
        from recurra.models.presets import preset

        preset(values.pop("preset"), **values)
    elif "encoder" in values:
        from recurra.models.adaptation.source import find_encoder

        assert find_encoder(values["encoder"]).shape(values["plan"])
    else:
        raise ConfigurationError(f"{path.name} shows a YAML block of no known kind")


def test_the_losses_by_position_in_the_documents_are_those_of_the_committed_output() -> None:
    page = (ROOT / "docs/results/lm-leak.md").read_text(encoding="utf-8")
    study = ROOT / "results/lm-leak"
    for path in study_files(study, "by-position/*.json"):
        found = json.loads(read_study_bytes(path))
        assert holds_any_record(study / "runs" / found["run_id"])
        loss = found["positions"]["final"]["loss"]
        but_last = PositionLoss(tuple(loss), tuple(found["positions"]["final"]["tokens"])).mean(slice(0, -1))
        cells = [f"{value:.3f}" for value in (loss[0], loss[63], loss[127], but_last)]
        name = f"{path.stem} (leaks)" if "leaks" in path.stem else path.stem
        assert f"| {' | '.join([name, *cells])} |" in page
