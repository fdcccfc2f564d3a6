"""The one importer of the C core: `ffi`, `lib` and `holding_gil`, and how a numpy array becomes a C
pointer.

Everything else says `from gnndrive.common.ffi import ffi, lib, pointer`. The core is built by
`build_ext.py`.
"""

from __future__ import annotations

import ctypes
import errno as errno_names
import os
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from gnndrive._core import ffi, lib
except ImportError as error:  # pragma: no cover - only in a tree that was never built
    raise ImportError(
        "gnndrive's C core is not built: run `pip install .` (or `make test`) in the source tree; "
        f"the loader said: {error}"
    ) from error

__all__ = ["check", "ffi", "holding_gil", "lib", "pointer"]

_C_NAMES = {
    np.dtype(np.int64): "int64_t *",
    np.dtype(np.int32): "int32_t *",
    np.dtype(np.uint8): "uint8_t *",
}


def pointer(array: np.ndarray[Any, Any]) -> Any:
    """A C pointer to a C-contiguous int64, int32 or uint8 array; the caller keeps the array
    alive."""
    if not array.flags.c_contiguous:
        raise ValueError("the C core takes contiguous arrays: use np.ascontiguousarray")
    return ffi.cast(_C_NAMES[array.dtype], array.ctypes.data)


class HoldingGil:
    """The core's functions, called without letting the GIL go: for those that take microseconds, a
    millisecond at most.

    `lib`'s let it go in every call, and beside a thread that burns Python it takes a switch
    interval (5 ms) to get it back. None that is called like this may wait for anything that needs
    the GIL, and none may be a destructor: there Python would swallow a Ctrl-C.
    """

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function of the core, made at its first use; takes and returns what `lib`'s does, but
        pointers of its very types alone, and integers that fit."""
        self.__dict__[name] = function = _without_letting_go(ffi.addressof(self._core, name))
        return function


def _without_letting_go(where: Any) -> Callable[..., Any]:
    cast, typeof, address = ffi.cast, ffi.typeof, ffi.typeof("intptr_t")
    result, taken = ffi.typeof(where).result, ffi.typeof(where).args
    function = ctypes.PYFUNCTYPE(_c_type(result), *map(_c_type, taken))(int(cast(address, where)))
    pointers = [(place, each) for place, each in enumerate(taken) if each.kind == "pointer"]
    gives_pointer = result.kind == "pointer"

    def call(*arguments: Any) -> Any:
        given = list(arguments)
        for place, kind in pointers:
            if typeof(given[place]) is not kind and given[place] != ffi.NULL:
                raise TypeError(f"argument {place} is {given[place]}, not a {kind.cname}")
            given[place] = int(cast(address, given[place]))
        found = function(*given)
        return cast(result, found or 0) if gives_pointer else found

    return call


def _c_type(kind: Any) -> Any:
    if kind.kind == "pointer":
        return ctypes.c_void_p
    return {
        "void": None, "int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    }[kind.cname]  # fmt: skip


holding_gil: Any = HoldingGil(lib)


def check(code: int, what: str) -> int:
    """`code` if it is not negative, else an OSError that names `what` and the errno."""
    if code < 0:
        name = errno_names.errorcode.get(-code, str(-code))
        raise OSError(-code, f"{what}: {name} ({os.strerror(-code)})")
    return code
