"""`defer`: a module that is imported when something in it is used, and not before.

The process of the host service defers PyTorch, which it does not use: its arrays are numpy's.
Importing PyTorch takes a second and a half, and 120 MB that no other process shares. Most modules
import it for the names of types alone, or for functions that the service does not call.

When not to use it: in a process that computes with PyTorch. The standard library's LazyLoader
imports a module at its second `import` statement, whether it is used or not.
"""

from __future__ import annotations

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
    if it is imported already."""
    sys.modules.setdefault(name, _Deferred(name))
