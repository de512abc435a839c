"""Calls a function once another library's module has been imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds the module in the usual way, and lets the function be called after the module's code has run."""
        del path, target
        call = self.waiting.pop(name, None)
        if call is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.waiting[name] = call
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                run(module)
            except BaseException:
                self.waiting[name] = call
                raise
            call(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Calls a function once with a module: now if it has been imported, else as soon as it is."""
    if (module := sys.modules.get(name)) is not None:
        call(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.waiting[name] = call
