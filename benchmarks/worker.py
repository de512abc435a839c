"""A competitor's process: reads a call's number on each line of standard input, answers with milliseconds and value."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

import torch
import transformers

from benchmarks.lockstep import Job
from recurra.core.environment import tune_allocator


def main() -> int:
    """Builds the job of the first argument and serves its calls until standard input ends."""
    # Only answers may stand on standard output: whatever a library prints there goes to standard error.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    job = Job(**json.loads(sys.argv[1]))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    if job.keep_memory:
        tune_allocator()
    # By name: the Trainer takes seconds to import, and most competitors do without it.
    call = importlib.import_module(job.workload).build(job)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        index = int(line)
        start = time.perf_counter_ns()
        value = call(index)
        elapsed = time.perf_counter_ns() - start
        answers.write(json.dumps({"ms": elapsed / 1e6, "value": value}) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
