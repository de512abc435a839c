"""Messages name what their reader has: options of the command that was typed, arguments of the function called."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import recurra
from recurra.cli.main import make_app
from recurra.core.errors import for_command, for_python
from recurra.data.configuration import DataConfig

SOURCE = Path(recurra.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?!\w)")
# Commands of others, and variables of style sheets.
FOREIGN = re.compile(r"\b(?:ray|pip|git|python) [^';]*|var\([^)]*\)|--[a-z-]+:|--porcelain")
TYPED = re.compile(r"recurra ((?:[a-z][a-z-]* ?)+)[^;,'\n]*")
# Where a message can come from alone, and every command that it can come to; those on data come to all.
READERS = {
    "comparison.py": ["compare"],
    "ladder.py": ["compare"],
    "adaptation": ["adapt"],
    "deployment/export": ["export"],
    "deployment/generation.py": ["generate"],
    "deployment/serving": ["serve"],
    "evaluation/label_errors.py": ["label-errors"],
    "study/workers.py": ["compare", "study run"],
}
# Those of `recurra.compare`, which takes keys of the protocol and of the data too.
PYTHON = ["comparison.py", "ladder.py"]


def messages(folder: str) -> Iterator[str]:
    """Texts of a room that name an option, with blanks for their values."""
    place = SOURCE / folder
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts_of = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in parts_of:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else " " for part in node.values]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                text = node.value
            else:
                continue
            if OPTION.search(text):
                yield text


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(make_app())
    inner = getattr(command, "commands", {})
    for word, one in inner.items():
        yield from commands(one, f"{name} {word}".strip())
    if not inner:
        yield name, command


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}


ALL = dict(commands())
OF_DATA = sorted(set(messages("data")))


def test_every_option_in_a_message_is_one_of_a_command() -> None:
    known = {"--help"}.union(*map(options_of, ALL.values()))
    for message in messages("."):
        if not message.startswith("--"):
            assert {*OPTION.findall(FOREIGN.sub("", message))} <= known, message


def test_a_command_that_is_to_be_typed_has_its_options() -> None:
    typed = [match for message in messages(".") for match in TYPED.finditer(message)]
    assert len(typed) > 5
    for match in typed:
        name = next((name for name in ALL if f"{match[1]} ".startswith(f"{name} ")), None)
        if options := OPTION.findall(match[0]):
            assert name is not None and {*options} <= options_of(ALL[name]), match[0]


@pytest.mark.parametrize("source", READERS)
def test_a_message_names_options_of_the_commands_that_it_comes_to(source: str) -> None:
    for message in messages(source):
        options = {*OPTION.findall(TYPED.sub("", FOREIGN.sub("", message)))}
        for name in READERS[source]:
            assert options <= options_of(ALL[name]), message


@pytest.mark.parametrize("source", PYTHON)
def test_errors_of_compare_name_its_arguments(source: str) -> None:
    arguments = {*inspect.signature(recurra.compare).parameters, *DataConfig.model_fields}
    for message in messages(source):
        translated = TYPED.sub("", for_python(message))
        assert "--" not in translated, message
        assert {*re.findall(r"([a-z_]+)=", translated)} <= arguments, message


@pytest.mark.parametrize("name", ALL)
def test_messages_on_data_name_options_of_the_command(name: str) -> None:
    options = options_of(ALL[name])
    keys = any(parameter.name == "assignments" for parameter in ALL[name].params)
    for message in OF_DATA:
        assert {*OPTION.findall(for_command(message, options, keys=keys))} <= options, message


def test_messages_on_data_name_arguments_in_python() -> None:
    assert len(OF_DATA) > 10
    for message in OF_DATA:
        assert "--" not in for_python(message) and "data." not in for_python(message), message


@pytest.mark.parametrize(
    ("message", "options", "keys", "said"),
    [
        ("a; fix it, or leave them out with --skip-unlabelled", set(), True, "data.skip_unlabelled=true"),
        ("a; fix it, or leave them out with --skip-unlabelled", set(), False, "a; fix it"),
        ("name it with --text-column", {"--text-column"}, False, "name it with --text-column"),
        ("your own files with --validation and --test", {"--test"}, True, "data.validation=VALUE and --test"),
    ],
)
def test_an_option_that_a_command_lacks_becomes_a_key_or_goes(
    message: str, options: set[str], keys: bool, said: str
) -> None:
    assert for_command(message, options, keys=keys).endswith(said)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("with --skip-unlabelled", "with skip_unlabelled=True"),
        ("with --label-separator json (data.label_separator=json)", "with label_separator='json'"),
        ("with --label-separator '|'", "with label_separator='|'"),
        ("train with data.join_labels=true", "train with join_labels=True"),
        ("data.clean=none keeps them", "clean='none' keeps them"),
    ],
)
def test_options_become_arguments(message: str, said: str) -> None:
    assert for_python(message) == said
