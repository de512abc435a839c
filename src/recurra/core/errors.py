"""The exception tree.

One root and six children. Each message is one line that says what is wrong, the value that came, what is allowed, and
what to do; the command line prints it and exits with the class's ``exit_code``.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Iterable, Iterator


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


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Returns ``" (did you mean 'x'?)"`` for the closest allowed word or the one it abbreviates, or an empty string."""
    options = [str(item) for item in allowed]
    initials = [item for item in options if "_" in item and "".join(part[:1] for part in item.split("_")) == str(word)]
    matches = initials[:1] or difflib.get_close_matches(str(word), options, n=1, cutoff=0.6)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def no_numbers(of: str = "") -> RunError:
    """Returns the error for a model that gives what is no number: it would be an answer, and a wrong one.

    Args:
        of: For which text, as `` for text 3 of 8``; empty for none in particular.
    """
    return RunError(
        f"the model gives scores that are no numbers{of}: its weights are damaged, or they are beyond the precision "
        "that it computes in; copy or train it again, or take --precision fp32"
    )


def unknown(kind: str, word: str, allowed: Iterable[str]) -> str:
    """Returns the message for an unknown name of some kind: value, closest match and what is allowed."""
    options = [str(item) for item in allowed]
    return f"unknown {kind} '{word}'{did_you_mean(word, options)}; allowed: {', '.join(options)}"


# An option of the command line with the value that a message proposes, and a key of the data with its value.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)(?: (json|cp1252|utf-16-le|'[^']*'|[A-Z]{2,}\b))?")
_KEY = re.compile(r"\bdata\.([a-z_]+)(?:=(\w+))?")
_SWITCHES = frozenset({"--skip-unlabelled", "--form-must-not-predict", "--from-scratch"})


def for_python(message: str) -> str:
    """A message in which options of the command line are arguments of a function."""

    def argument(option: re.Match[str]) -> str:
        name = "encoder" if option[1] == "from" else option[1].replace("-", "_")
        value = option[2] and (option[2] if option[2].startswith("'") else f"'{option[2]}'")
        return f"{name}={value or ('True' if option[0] in _SWITCHES else '')}"

    def key(match: re.Match[str]) -> str:
        value = {"true": "True", "false": "False", None: ""}.get(match[2], f"'{match[2]}'")
        return f"{match[1]}={value}"

    # A command that is to be typed keeps its options.
    parts = re.split(r"(recurra [a-z][^;,']*)", re.sub(r"(?<=json) \(data\.[^)]*\)", "", message))
    parts[::2] = [_KEY.sub(key, _OPTION.sub(argument, part)) for part in parts[::2]]
    return "".join(parts)


@contextlib.contextmanager
def errors_for_python() -> Iterator[None]:
    """Raises errors with the arguments of a function in place of options of the command line."""
    try:
        yield
    except RecurraError as error:
        error.args = (for_python(str(error)),)
        raise


def for_command(message: str, options: Collection[str], *, keys: bool) -> str:
    """A message that names no option which a command lacks."""

    def instead(option: re.Match[str]) -> str:
        name = f"--{option[1]}"
        if name in options:
            return option[0]
        value = option[2] or ("true" if name in _SWITCHES else "VALUE")
        return f"data.{option[1].replace('-', '_')}={value}"

    if not keys:
        for option in _OPTION.finditer(message):
            if f"--{option[1]}" not in options:
                clause = rf"(?:; | and |,? or |, )?[^;,(]*{re.escape(option[0])}[^;,)]*"
                message = re.sub(clause, "", message, count=1)
    return _OPTION.sub(instead, message)
