"""The process of a worker: ``python -m recurra.study.worker``, which takes calls one after the other.

A call is a line of JSON on standard input, ``["module:function", machine, arguments]``; with a machine, the
process's `StudyData` is the first argument. Standard output and standard error are one stream with lines for a person,
and a line that begins with `REPLY` once a call is done. When standard input ends,
because the study has closed it or has died, the worker ends at once, in the middle of a run too.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

from pydantic import BaseModel

from recurra.core.environment import reset_peak_memory
from recurra.core.errors import RecurraError
from recurra.tasks.study_data import Machine, StudyData

REPLY = "\x1e"


def serve(modules: list[str]) -> None:
    """Imports modules, then takes calls; ends with standard input, or after an exception that is no `RecurraError`."""
    calls: queue.SimpleQueue[tuple[str, str | None, list[Any]]] = queue.SimpleQueue()
    data = StudyData()
    threading.Thread(target=_listen, args=(calls,), daemon=True).start()
    for module in modules:
        importlib.import_module(module)
    while True:
        function, machine, arguments = calls.get()
        if machine is not None:
            data.machine = Machine.from_json(machine)
            arguments = [data, *arguments]
        module, _, name = function.partition(":")
        reply: dict[str, Any] = {"code": 0}
        try:
            result = getattr(importlib.import_module(module), name)(*arguments)
            # A record is not sent: the caller reads it from its folder.
            reply["result"] = None if isinstance(result, BaseModel) else result
        except RecurraError as error:
            sys.stdout.write(f"error: {error}\n")
            reply["code"] = error.exit_code
        # The next run must not record the peak memory of this one.
        reply["reusable"] = reset_peak_memory()
        sys.stderr.flush()
        sys.stdout.write(f"\n{REPLY}{json.dumps(reply)}\n")
        sys.stdout.flush()


def _listen(calls: queue.SimpleQueue[tuple[str, str | None, list[Any]]]) -> None:
    with os.fdopen(os.dup(0), encoding="utf-8") as lines:
        for line in lines:
            calls.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    # A terminal sends Ctrl-C to all processes; only the study reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(sys.argv[1:])
