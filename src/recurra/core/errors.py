"""The exception tree.

One root and six children. Each message is one line that says what is wrong, the value that came, what is allowed, and
what to do; the command line prints it and exits with the class's ``exit_code``.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path


class RecurraError(Exception):
    """Root of everything that Recurra raises on purpose."""

    exit_code = 1


class ConfigurationError(RecurraError):
    """A model, run, protocol or study configuration is wrong: unknown key, wrong type, impossible value."""

    exit_code = 2


class DataError(RecurraError):
    """A user's file or a corpus cannot be used: missing column, one class only, broken encoding, no rows."""

    exit_code = 2


class CheckpointError(RecurraError):
    """A run folder or model folder cannot be read: truncated, not ours, holds a pickle."""

    exit_code = 2


class StorageError(RecurraError):
    """A folder cannot be written: no space left, no permission, in use by another process."""

    exit_code = 2


class UnavailableError(RecurraError):
    """Something outside is missing: the network, an optional dependency, a local copy of a corpus."""

    exit_code = 2


class AuditError(RecurraError):
    """An audit failed: the numbers of this run must not be trusted as they stand."""

    exit_code = 3


class RunError(RecurraError):
    """A run failed while working: the loss is not finite, or a worker process died."""

    exit_code = 1


class UnusedLabelWarning(UserWarning):
    """A fitted classifier never gives a label that it was trained on."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Returns ``" (did you mean 'x'?)"`` for the closest allowed word or the one it abbreviates, or an empty string."""
    options = [str(item) for item in allowed]
    initials = [item for item in options if "_" in item and "".join(part[:1] for part in item.split("_")) == str(word)]
    matches = initials[:1] or difflib.get_close_matches(str(word), options, n=1, cutoff=0.6)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def near_name(path: Path) -> str:
    """The same for a missing path, with the closest name in its folder."""
    with contextlib.suppress(OSError, ValueError):
        return did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()])
    return ""


def no_numbers(of: str = "") -> RunError:
    """Returns the error for scores that are not numbers; ``of`` may name a text, such as `` for text 3 of 8``."""
    return RunError(
        f"the model gives scores that are not numbers{of}: its weights are damaged, or too large for the precision "
        "that it computes in; copy or train it again, or use --precision fp32"
    )


def unknown(kind: str, word: str, allowed: Iterable[str]) -> str:
    """Returns the message for an unknown name of some kind: value, closest match and what is allowed."""
    options = [str(item) for item in allowed]
    return f"unknown {kind} '{word}'{did_you_mean(word, options)}; allowed: {', '.join(options)}"


# In messages: an option of the command line with its proposed value, and a key of the data with its value.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)(?: (json|cp1252|utf-16-le|'[^']*'|[A-Z]{2,}\b))?")
_KEY = re.compile(r"\bdata\.([a-z_]+)(?:=(\w+))?")
_SWITCHES = frozenset({"skip-unlabelled", "form-must-not-predict", "from-scratch", "overwrite", "keep"})
# Commands that the user should type; they keep their options.
_TYPED = re.compile(r"\b(?:recurra [a-z]|ray |pip |git |python )[^;,']*")


def for_python(message: str, **arguments: str) -> str:
    """Replaces command-line options in a message by a function's arguments; ``arguments`` gives other names."""

    def argument(name: str, value: str | None) -> str:
        key = arguments.get(name.replace("-", "_"), name.replace("-", "_"))
        quoted = value and (value if value.startswith("'") else f"'{value}'")
        return f"{key}={quoted or ('True' if name in _SWITCHES else '')}"

    def key(match: re.Match[str]) -> str:
        value = {"true": "True", "false": "False", None: ""}.get(match[2], f"'{match[2]}'")
        return f"{match[1]}={value}"

    with_arguments = _with_options(re.sub(r"(?<=json) \(data\.[^)]*\)", "", message), argument)
    return _outside_of_commands(with_arguments, lambda text: _KEY.sub(key, text))


@contextlib.contextmanager
def errors_for_python(**arguments: str) -> Iterator[None]:
    """Raises errors with a function's arguments instead of options; see `for_python`."""
    try:
        yield
    except RecurraError as error:
        error.args = (for_python(str(error), **arguments),)
        raise


def for_command(message: str, options: Collection[str], keys: Mapping[str, str]) -> str:
    """Removes from a message the options that a command lacks.

    ``keys`` gives the text that replaces such an option, with ``{}`` for the value; an option without one is removed
    with its clause.
    """

    def instead(name: str, value: str | None) -> str | None:
        if f"--{name}" in options:
            return f"--{name} {value}" if value else f"--{name}"
        return keys[name].format(value or ("true" if name in _SWITCHES else "VALUE")) if name in keys else None

    return _with_options(message, instead)


def _with_options(message: str, instead: Callable[[str, str | None], str | None]) -> str:
    """Replaces each option in a message by ``instead``; if that is None, the option and its clause are removed."""

    def written(text: str) -> str:
        for option in _OPTION.finditer(text):
            if instead(option[1], option[2]) is None:
                name = re.escape(option[0])
                bracket, clause = rf" \([^()]*{name}[^()]*\)", rf"[^;,(]*{name}(?:\([^()]*\)|[^;,()])*"
                text = re.sub(rf"{bracket}|(?:; |: | and |,? or |, ){clause}|^{clause}; ", "", text, count=1)
        return _OPTION.sub(lambda option: instead(option[1], option[2]) or option[0], text)

    return _outside_of_commands(message, written)


def _outside_of_commands(message: str, change: Callable[[str], str]) -> str:
    """Changes a message everywhere except in the commands that it tells the user to type."""
    typed = _TYPED.findall(message)
    numbers = iter(range(len(typed)))
    changed_text = change(_TYPED.sub(lambda _: f"\0{next(numbers)}\0", message))
    # A clause may have been removed with its command.
    return re.sub("\0(\\d+)\0", lambda match: typed[int(match[1])], changed_text)
