"""Keeping other libraries off the terminal."""

from __future__ import annotations

import transformers


def quieten_libraries() -> None:
    """Switches off other libraries' bars and chatter for this process; errors still show.

    For programs, such as our commands: a library that imports ours keeps the settings it chose.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
