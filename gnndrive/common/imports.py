"""Import PyTorch and PyG later, or in less time.

`defer` puts off the import of a module until an attribute of it is used. The host service and the
commands that only look at files defer PyTorch, which they do not use: their arrays are numpy's.
Importing PyTorch takes a second and a half, and 120 MB that no other process shares. Most modules
import it for the names of types alone, or for functions that such a process does not call.

When not to use it: where PyTorch is used in the end, because each use through a deferred module
looks the module up again. `import_quickly` is for that.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands in `sys.modules` for a module of which nothing has been used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def defer(name: str) -> None:
    """Have Python import the top-level module `name` when an attribute of it is used; does nothing
    if it is imported already. The standard library's LazyLoader imports a module at its second
    `import` statement, whether it is used or not."""
    sys.modules.setdefault(name, _Deferred(name))


def import_quickly(name: str) -> ModuleType:
    """Import a module without garbage collections meanwhile: they take a fifth of the time that
    PyTorch and PyG need, and hardly anything that an import makes is garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collects:
            gc.enable()
