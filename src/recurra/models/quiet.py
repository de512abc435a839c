"""Keeps other libraries from writing to the terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import transformers


def quieten_libraries() -> None:
    """Switches off progress bars and messages of other libraries for this process; errors still show."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Keeps transformers from reporting on a checkpoint that is read or written; restores its settings afterwards."""
    logger = logging.getLogger("transformers")
    level, bars = logger.level, transformers.utils.logging.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
