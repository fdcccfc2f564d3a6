"""The process of a host service: `python -m gnndrive.host LISTENER STORE`.

A rank starts it (`start.py`) with a listening socket; it ends when its last client has left.
`gnndrive serve` is the same for people.

The process defers PyTorch, which it does not use: its arrays are numpy's. Importing PyTorch takes a
second and a half, and 120 MB that no other process shares. Most modules import it for the names of
types alone, or for functions that the service does not call.
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
    if it is imported already. The standard library's LazyLoader imports a module at its second
    `import` statement, whether it is used or not."""
    sys.modules.setdefault(name, _Deferred(name))


def main() -> None:
    """Serve the store that the command line names."""
    defer("torch")
    from gnndrive.host.run import serve_folder  # numpy, the C core and much else

    sys.exit(serve_folder(int(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    main()
