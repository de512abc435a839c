"""Messages name what their reader has: options of the command that was typed, arguments of the function called."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_command_line import commands

import recurra
from recurra.cli.main import translator_for
from recurra.core.errors import for_python
from recurra.data.configuration import MultiLabelData

SOURCE = Path(recurra.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?!\w)")
# Commands of others, and variables of style sheets.
FOREIGN = re.compile(r"\b(?:ray|pip|git|python) [^';]*|var\([^)]*\)|--[a-z-]+:|--porcelain")
TYPED = re.compile(r"recurra ((?:[a-z][a-z-]* ?)+)[^;,'\n]*")
# What is printed without being an error, and every command that prints it.
NOTES = {
    "comparison.py": ["compare"],
    "ladder.py": ["compare"],
    "evaluation/audits": ["compare", "train"],
    "tasks/labelling/answers.py": ["compare"],
    "study/estimate.py": ["study plan"],
    "study/status.py": ["compare"],
    "study/workers.py": ["compare", "study run"],
}


@cache
def messages(folder: str) -> list[str]:
    """Texts of a room that name an option, with blanks for their values."""
    place, found = SOURCE / folder, list[str]()
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
                found.append(text)
    return found


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}


ALL = dict(commands())
TRANSLATORS = {name: translator_for(name.split()) for name in ALL}
# Texts that speak of an option: one that is nothing but an option is its declaration, and one that begins with it, or
# stands in a command's own file, is of the command that has it.
MESSAGES = {
    text
    for room in SOURCE.iterdir()
    if room.name != "cli"
    for text in messages(room.name)
    if " " in text.strip() and not text.lstrip(" '").startswith(("--", "or "))
}


def options_in(message: str) -> set[str]:
    """Options that a message speaks of, but for those of commands to be typed and of others."""
    return {*OPTION.findall(FOREIGN.sub("", TYPED.sub("", message)))}


def test_every_option_in_a_message_is_one_of_a_command_and_of_the_one_to_be_typed() -> None:
    known = {"--help"}.union(*map(options_of, ALL.values()))
    for message in messages("."):
        if not message.startswith("--"):
            assert {*OPTION.findall(FOREIGN.sub("", message))} <= known, message
    typed = [match for message in messages(".") for match in TYPED.finditer(message)]
    assert len(typed) > 5
    for match in typed:
        name = next((name for name in ALL if f"{match[1]} ".startswith(f"{name} ")), None)
        if options := OPTION.findall(match[0]):
            assert name is not None and {*options} <= options_of(ALL[name]), match[0]


@pytest.mark.parametrize("name", ALL)
def test_no_command_is_told_of_an_option_that_it_lacks(name: str) -> None:
    of_data = {*messages("data")}
    for message in MESSAGES:
        told = TRANSLATORS[name](message)
        assert options_in(told) <= options_of(ALL[name]), message
        # What is wrong stays.
        if message in of_data and message.strip()[0] not in ",;":
            assert len(told) > min(20, len(message) - 1), message
    reads = name.startswith("study") or any(parameter.name == "assignments" for parameter in ALL[name].params)
    told = TRANSLATORS[name]("a; leave it out with --id-column")
    form = "id_column: VALUE (under data)" if name.startswith("study") else "data.id_column=VALUE"
    if "--id-column" not in options_of(ALL[name]):
        assert told == (f"a; leave it out with {form}" if reads and name != "audit model" else "a")


@pytest.mark.parametrize("source", NOTES)
def test_a_note_names_options_of_the_commands_that_print_it(source: str) -> None:
    for message in messages(source):
        for name in NOTES[source]:
            assert options_in(message) - {"--output"} <= options_of(ALL[name]), message


def test_no_function_is_told_of_an_option_and_errors_of_compare_name_its_arguments() -> None:
    for message in MESSAGES:
        assert not options_in(for_python(message)), message
    arguments = {*inspect.signature(recurra.compare).parameters, *MultiLabelData.model_fields}
    for source in ("comparison.py", "ladder.py", "data"):
        for message in messages(source):
            told = TYPED.sub("", for_python(message, **{"from": "encoder"}))
            assert {*re.findall(r"([a-z_]+)=", told)} <= arguments, message


@pytest.mark.parametrize(
    ("command", "message", "told"),
    [
        (
            "study run",
            "a; fix it, or leave them out with --skip-unlabelled",
            "a; fix it, or leave them out with skip_unlabelled: true (under data)",
        ),
        ("label-errors", "a; name it with --group-column", "a; name it with data.group_column=VALUE"),
        ("predict", "a; fix it, or leave them out with --skip-unlabelled", "a; fix it"),
        ("predict", "a (1 row); leave them out with --skip-unlabelled; then go on", "a (1 row); then go on"),
        ("predict", "name it with --text-column", "name it with --text-column"),
        ("data describe", "your own files with --validation and --test", "your own files with --validation and --test"),
        (
            "predict",
            "a; name it with --group-column or recurra data list; then recurra exits RUN --keep",
            "a; then recurra exits RUN --keep",
        ),
    ],
)
def test_an_option_that_a_command_lacks_becomes_a_key_or_goes(command: str, message: str, told: str) -> None:
    assert TRANSLATORS[command](message) == told


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("with --skip-unlabelled", "with skip_unlabelled=True"),
        ("with --label-separator json (data.label_separator=json)", "with label_separator='json'"),
        ("with --label-separator '|'", "with label_separator='|'"),
        ("train with data.join_labels=true", "train with join_labels=True"),
        ("data.clean=none keeps them", "clean='none' keeps them"),
        ("measure them: recurra exits RUN --keep", "measure them: recurra exits RUN --keep"),
        ("choose another --output", "choose another folder="),
    ],
)
def test_options_become_arguments(message: str, said: str) -> None:
    assert for_python(message, output="folder") == said
