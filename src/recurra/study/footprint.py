"""Measures a deployed model's memory: ``python -m recurra.study.footprint FOLDER THREADS``, texts on standard input.

It runs in a process of its own that imports only what the model needs, so that an ONNX export is not charged for
torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from recurra.core.environment import peak_memory_mib
from recurra.core.errors import RunError
from recurra.deployment.classifier import Classifier

_BATCH = 32


def measure_footprint(folder: Path, texts: Sequence[str], threads: int) -> float:
    """Peak resident size, in MiB, of a process that opens a run or an export and labels texts.

    Raises:
        RunError: If the process fails.
    """
    process = subprocess.run(
        [sys.executable, "-m", "recurra.study.footprint", str(folder), str(threads)],
        input=json.dumps(list(texts)),
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["no message"])[-1][:300]
        raise RunError(f"the memory of '{folder}' could not be measured (exit code {process.returncode}: {last_line})")
    # A library may have printed before.
    return float(process.stdout.splitlines()[-1])


def main(arguments: list[str], texts: list[str]) -> int:
    """Opens the model, labels the texts and prints the peak memory of the process."""
    folder, threads = Path(arguments[0]), int(arguments[1])
    classifier = Classifier.open(folder, batch_size=_BATCH, threads=threads)
    classifier.logits(texts, clean=False)
    sys.stdout.write(f"\n{peak_memory_mib()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], json.loads(sys.stdin.read())))
