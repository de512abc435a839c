"""Keeping other libraries off the terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import transformers


def quieten_libraries() -> None:
    """Switches off other libraries' bars and chatter for this process; errors still show.

    For programs, such as our commands: a library that imports ours keeps the settings it chose.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Keeps transformers from reporting on a checkpoint as it is read: what is wrong with it is ours to say."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
