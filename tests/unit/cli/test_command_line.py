"""The command line as a whole: quick to answer, one line for what is wrong, and what is typed reaches its settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import typer

from recurra.adaptation import AdaptationOptions
from recurra.cli import main as command_line
from recurra.comparison import CompareRequest
from recurra.core.errors import AuditError, CheckpointError, DataError, RunError, StorageError
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.generation import GenerationSettings
from recurra.deployment.prediction.folder import FolderJob
from recurra.deployment.serving.limits import Rate, ServerLimits
from reviews import Command

INTERRUPTED = "interrupted; start the same command again to continue: finished work is not repeated\n"


def list_data(output: IO[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process that writes into a file or a pipe."""
    words = [sys.executable, "-m", "recurra", "data", "list", *arguments]
    return subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True, timeout=600, check=False)


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """All commands with their full names, groups left out."""
    command = command or typer.main.get_command(command_line.make_app())
    inner = getattr(command, "commands", {})
    for word, one in inner.items():
        yield from commands(one, f"{name} {word}".strip())
    if not inner:
        yield name, command


COMMANDS = list(commands())


def test_a_name_that_the_system_cannot_decode_is_refused_in_one_line(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")
    Path(name).write_text("text,label\na,b\n")
    assert command_line.main(["data", "describe", name]) == 2
    error = capfdbinary.readouterr().err
    assert error.count(b"\n") == 1 and b"is not UTF-8; rename the file" in error


def test_the_help_names_every_command(command: Command) -> None:
    words = command("--help").out.split()
    assert {name.split()[0] for name, _ in COMMANDS} <= {*words}


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_has_an_example_that_it_accepts_and_can_answer_in_json(name: str, command: Any) -> None:
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert command.help is not None
    _, found, example = " ".join(command.help.split()).partition("Example: recurra ")
    assert found, f"'recurra {name} --help' shows no example"
    words = example.rstrip(".").split()
    path = name.split()
    assert words[: len(path)] == path
    # Parses the example as the command would, without running it.
    command.make_context(name, words[len(path) :], resilient_parsing=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trian", "Did you mean 'train'?"),
        ("train --modle x", "--model"),
        ("train --data x.csv --output y", "Missing option '--model'"),
        ("compare x.csv --seeds none", "--seeds"),
        ("data describe", "NAME|FILE"),
        ("adapt a --max-parameters 19M", "value '19M' for '--max-parameters': Input should be a valid integer;"),
        ("adapt a --stored 0", "value '0' for '--stored': Input should be greater than or equal to 1;"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: str, said: str, refused: Callable[..., str]) -> None:
    err = refused(*arguments.split())
    assert said in err and "--help'" in err


def test_without_a_command_the_help_is_shown(command: Command) -> None:
    out, err = command(code=2)
    assert "compare" in out + err and "error:" not in err


def fail(error: Exception, *_: object, interrupted: bool = False, **__: object) -> None:
    """Ends a command with an error; after an interrupt that pydantic's compiled code swallows, if that is asked."""
    if interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    raise error


def fail_on_the_way_out(*_: object, **__: object) -> None:
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("release unlocked lock")


def fail_because_of_that(*_: object, **__: object) -> None:
    try:
        fail_on_the_way_out()
    except RuntimeError as error:
        raise CheckpointError("'out/model' cannot be loaded: release unlocked lock") from error


FULL = StorageError("the disk is full")
ERRORS = {
    "data": (partial(fail, DataError("two\nlines")), 2, "error: two lines\n"),
    "audit": (partial(fail, AuditError("d")), 3, "error: d\n"),
    "run": (partial(fail, RunError("e")), 1, "error: e\n"),
    "after an interrupt": (partial(fail, FULL, interrupted=True), 2, "error: the disk is full\n"),
    "abort": (partial(fail, typer.Abort()), 130, INTERRUPTED),
    "lock": (fail_on_the_way_out, 130, INTERRUPTED),
    "lock of a model": (fail_because_of_that, 130, INTERRUPTED),
    "swallowed": (partial(fail, TypeError("a class half built"), interrupted=True), 130, INTERRUPTED),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_of_ours_is_one_line_and_an_interrupt_says_how_to_go_on_whatever_it_became(
    kind: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, code, said = ERRORS[kind]
    monkeypatch.setattr(command_line, "make_app", lambda _: app)
    assert command(code=code) == ("", said)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "make_app", lambda _: partial(fail, ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        command_line.main([])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = list_data(full)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write standard output: No space left on device")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = list_data(pipe, "--json")
    assert (done.returncode, done.stderr) == (0, "")


def test_limits_of_a_server_that_are_typed_hold(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    handed: list[ServerLimits] = []
    monkeypatch.setattr("recurra.deployment.serving.server.serve", lambda _, limits, **__: handed.append(limits))
    words = "--max-body-bytes 2048 --max-texts 3 --max-characters 50 --timeout-s 7.5 --batch-texts 2"
    words += " --max-waiting-texts 9 --max-wait-s 1.5 --rate-limit 5/s --alone"
    command("serve", "exports/a", *words.split())
    assert handed == [
        ServerLimits(
            alone=True, rate=Rate.parse("5/s"), max_body_bytes=2048, max_texts=3, max_characters=50, timeout_s=7.5,
            batch_texts=2, max_waiting_texts=9, max_wait_s=1.5,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["predict a", "predict a -i . -o b", "export a", "generate a", "adapt a"])
def test_an_encoding_that_is_none_is_one_line(words: str, refused: Callable[..., str]) -> None:
    for name in ("cp1251x", "hex"):
        assert f"--encoding is '{name}': there is no such encoding" in refused(*words.split(), "--encoding", name)


# What a command works out, or leaves as it is: it has no option of that name.
WITHOUT_OPTION: dict[Any, tuple[str, set[str]]] = {
    AdaptationOptions: ("adapt", {"changes", "loss"}),
    CompareRequest: ("compare", {"values", "protocol_keys", "prices"}),
    ExportOptions: ("export", {"abstain_below"}),
    FolderJob: ("predict", {"model"}),
    GenerationSettings: ("generate", {"rule"}),
    ServerLimits: ("serve", {"rate", "body_timeout_s", "max_held_bytes", "max_connections"}),
}


@pytest.mark.parametrize("kind", WITHOUT_OPTION, ids=lambda kind: kind.__name__)
def test_every_setting_has_an_option_of_its_name(kind: Any) -> None:
    name, without = WITHOUT_OPTION[kind]
    settings = {field.name for field in fields(kind) if field.init} if is_dataclass(kind) else set(kind.model_fields)
    options = {parameter.name for parameter in dict(COMMANDS)[name].params}
    assert settings - options == without
