"""Run a function on a module right after that module is first imported.

The plugin is loaded in every process that imports veRL, and few of them ever need vLLM or transformers, which take
tens of seconds to import. So nothing is imported in order to be adapted; it is adapted when it comes.
"""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class ImportHook(MetaPathFinder):
    """A finder at the head of ``sys.meta_path`` that finds nothing itself: it adds callbacks to what others find."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._searching: set[str] = set()
        sys.meta_path.insert(0, self)

    def after_import(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """Call ``callback(module)`` once: now if the module has been imported, else at the end of its import."""
        module = sys.modules.get(name)
        if module is not None:
            callback(module)
        else:
            self._callbacks.setdefault(name, []).append(callback)

    def close(self) -> None:
        """Stop watching; modules that have not been imported yet will come unchanged."""
        self._callbacks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        if name not in self._callbacks or name in self._searching:
            return None
        self._searching.add(name)  # the search below passes through this finder again
        try:
            spec = find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then_call_back(module: ModuleType) -> None:
            execute(module)
            for callback in self._callbacks.pop(name, []):
                callback(module)

        spec.loader.exec_module = execute_then_call_back
        return spec
