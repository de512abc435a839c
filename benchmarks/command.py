"""Runs our commands as a user does, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from recurra.core.errors import RunError

# Modules are compiled once, as an installer does.
COMPILED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def run_recurra(*words: object) -> None:
    """Runs a command of ours in a process.

    Raises:
        RunError: If it fails.
    """
    # An audit that fails (3) is no failure of the command, but an export that is refused (3 too) writes nothing.
    process = subprocess.run(
        [sys.executable, "-m", "recurra", *map(str, words), "--quiet"],
        check=False, capture_output=True, text=True, env=COMPILED,
    )  # fmt: skip
    if process.returncode and (process.returncode != 3 or words[0] == "export"):
        raise RunError(f"recurra {words[0]} failed: {process.stderr.strip()[-300:]}")
