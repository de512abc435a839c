"""The command ``recurra``: puts the commands together and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import typer

from recurra.core.errors import RecurraError, for_command
from recurra.core.terminal import one_line

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_PATH_ERRORS = {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR}

# Base class of all errors in the arguments: from click itself, or from Typer's copy of click.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# In the order of the help; each is in the module of its name, a group as `app` of that module.
COMMANDS = (
    "models", "data", "adapt", "train", "evaluate", "predict", "generate", "exits", "compare", "study", "audit",
    "label-errors", "bench", "export", "serve", "demo",
)  # fmt: skip
_GROUPS = {"data", "study", "audit"}
_MODULES = {"demo": "compare"}


class _Group(typer.core.TyperGroup):
    """Lists the whole first sentence of each command; click would cut it after a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click calls it
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1_000)) for name, command in self.commands.items()])


def make_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Builds the command line with these commands; imports only their modules."""
    app = typer.Typer(
        name="recurra",
        cls=_Group,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Rich's panels leave 19 of 80 columns to the text.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in commands:
        function = name.replace("-", "_")
        module = importlib.import_module(f"recurra.cli.{_MODULES.get(name, function)}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name, cls=_Group)
        else:
            app.command(name)(getattr(module, function))
    return app


def _version(value: bool) -> None:
    if value:
        from recurra.core.version import __version__

        sys.stdout.write(f"recurra {__version__}\n")
        raise typer.Exit


def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Transformers that reuse their layers: train, compare, audit and use them.

    Start with: recurra demo   or: recurra compare reviews.csv --output runs/reviews
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; every error is one line on standard error.

    Returns the exit code: 0 done, 1 failed, 2 wrong input, 3 an audit failed, 130 interrupted.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of any encoding must show labels of any script.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Names of existing files that are not UTF-8; an undecoded text is reported by the command itself.
    undecoded = (word for word in words if any("\udc80" <= letter <= "\udcff" for letter in word))
    if name := next(filter(os.path.lexists, undecoded), None):
        return _fail(f"'{name}' is not UTF-8; rename the file, or set a UTF-8 locale", EXIT_USAGE)
    command = next((word for word in words if not word.startswith("-")), "")
    with _interrupts() as interrupts:
        try:
            app = make_app([command] if command in COMMANDS else COMMANDS)
            code = app(words, prog_name="recurra", standalone_mode=False)
        except (KeyboardInterrupt, typer.Abort):
            code = EXIT_INTERRUPTED
        except Exception as error:  # noqa: BLE001 - what is not known is raised again
            code = EXIT_INTERRUPTED if _was_interrupted(error, interrupts) else _report(error, words)
    if code == EXIT_INTERRUPTED:
        sys.stderr.write("interrupted; start the same command again to continue: finished work is not repeated\n")
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Records each Ctrl-C: pydantic's compiled code may raise another error instead while it builds a class."""
    interrupts: list[int] = []

    def note(number: int, frame: Any) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    handles_interrupts = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if handles_interrupts:
        signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        if handles_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _was_interrupted(error: BaseException | None, interrupts: Sequence[int]) -> bool:
    """Whether a Ctrl-C caused an error; one that arrives inside a lock may be raised as another error."""
    if interrupts and not isinstance(error, RecurraError):
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _report(error: Exception, words: Sequence[str]) -> int:
    """Prints an error in one line and returns the exit code; raises our own defects again."""
    if isinstance(error, RecurraError):
        return _fail(translator_for(words)(str(error)) if "--" in str(error) else str(error), error.exit_code)
    if isinstance(error, ModuleNotFoundError):
        # An installation for ONNX exports lacks other dependencies; a missing module of ours is a defect.
        name = (error.name or "").partition(".")[0]
        if name not in ("", "recurra"):
            return _fail(f"this needs the package {name}, which is not installed; pip install recurra", EXIT_USAGE)
    # A path that the user gave may fail wherever it is first used; other OS errors do not come from the arguments.
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS and error.filename is not None:
        return _fail(f"cannot use '{error.filename}': {error.strerror}; give another path", EXIT_USAGE)
    if isinstance(error, _UsageError):
        return _refuse_usage(error)
    raise error


def translator_for(given: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that words a message with the options of a command, and keys where it has no option."""
    from recurra.data.configuration import MultiLabelData

    command: Any = typer.main.get_command(make_app())
    for word in given:
        command = getattr(command, "commands", {}).get(word, command)
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    form = ""
    if given[:1] == ["study"]:
        form = "{}: {{}} (under data)"
    elif given[:2] != ["audit", "model"] and any(parameter.name == "assignments" for parameter in command.params):
        form = "data.{}={{}}"
    keys = {key.replace("_", "-"): form.format(key) for key in MultiLabelData.model_fields if form}
    return lambda message: for_command(message, options, keys)


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"error: {one_line(message)}\n")
    return code


def _refuse_usage(error: Exception) -> int:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    # If no command is given, the message is the help.
    if "\n" in message:
        sys.stderr.write(f"{message}\n")
        return EXIT_USAGE
    command = getattr(context, "command_path", "recurra")
    # The errors of pydantic contain the wrong value, which the message lacks.
    problems: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if problems:
        message = message.replace("Invalid value for", f"Invalid value '{problems[0]['input']}' for", 1)
        message = message.partition(", unable to parse")[0]
    return _fail(f"{message.strip().rstrip('.')}; see '{command} --help'", EXIT_USAGE)
