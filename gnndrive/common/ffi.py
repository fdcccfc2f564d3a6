"""The C core: `ffi`, `lib` and `holding_gil`, and C pointers to numpy arrays.

The only module that imports the core; all others use `from gnndrive.common.ffi import ffi, lib,
pointer`. `build_ext.py` builds the core from native/. Functions of `lib` release the GIL in each
call, functions of `holding_gil` keep it.
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
        f"the import failed with: {error}"
    ) from error

__all__ = [
    "address",
    "check",
    "copy_rows",
    "core_for",
    "ffi",
    "holding_gil",
    "lib",
    "pointer",
    "widen",
]

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_FEW = 1 << 16  # items that a call goes over in about a tenth of a millisecond

_C_TYPES = {
    np.dtype(np.int64): ffi.typeof("int64_t *"),
    np.dtype(np.int32): ffi.typeof("int32_t *"),
    np.dtype(np.uint8): ffi.typeof("uint8_t *"),
    np.dtype(np.uint16): ffi.typeof("uint16_t *"),
}


def pointer(array: np.ndarray[Any, Any]) -> Any:
    """Return a C pointer to a contiguous array of int64, int32, uint16 or uint8; the caller keeps
    the array alive."""
    if not array.flags.c_contiguous:
        raise ValueError("the C core takes contiguous arrays: use np.ascontiguousarray")
    # array.ctypes.data would be the same, in five times the time.
    return ffi.cast(_C_TYPES[array.dtype], ffi.from_buffer(array))


def address(array: np.ndarray[Any, Any]) -> Any:
    """Return a `void *` to a contiguous array of any dtype; the caller keeps the array alive."""
    if not array.flags.c_contiguous:
        raise ValueError("the C core takes contiguous arrays: use np.ascontiguousarray")
    return ffi.cast("void *", ffi.from_buffer(array))


class HoldingGil:
    """The core's functions, called without releasing the GIL.

    For calls that take microseconds, at most a millisecond. Functions of `lib` release the GIL in
    each call, and while another thread runs Python code, getting it back takes a switch interval
    (5 ms). A function called in this way must not wait for anything that needs the GIL. It must not
    be a destructor either, because Python would swallow a Ctrl-C there.
    """

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function of the core, made at its first use. It takes and returns what the
        function of `lib` does, but pointers must have exactly its types, and integers must fit."""
        self.__dict__[name] = function = _bind_holding_gil(ffi.addressof(self._core, name))
        return function


def _bind_holding_gil(address: Any) -> Callable[..., Any]:
    cast, typeof, number = ffi.cast, ffi.typeof, ffi.typeof("intptr_t")
    result, types = ffi.typeof(address).result, ffi.typeof(address).args
    prototype = ctypes.PYFUNCTYPE(_c_type(result), *map(_c_type, types))
    function = prototype(int(cast(number, address)))
    pointers = [(index, each) for index, each in enumerate(types) if each.kind == "pointer"]
    returns_pointer = result.kind == "pointer"

    def call(*arguments: Any) -> Any:
        converted = list(arguments)
        for index, kind in pointers:
            if typeof(converted[index]) is not kind and converted[index] != ffi.NULL:
                raise TypeError(f"argument {index} is {converted[index]}, not a {kind.cname}")
            converted[index] = int(cast(number, converted[index]))
        returned = function(*converted)
        return cast(result, returned or 0) if returns_pointer else returned

    return call


def _c_type(kind: Any) -> Any:
    """Return the ctypes type of a cffi type; None for void."""
    if kind.kind == "pointer":
        return ctypes.c_void_p
    return {
        "void": None, "int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    }[kind.cname]  # fmt: skip


holding_gil: Any = HoldingGil(lib)


def core_for(count: int) -> Any:
    """The core's functions for a call that goes over `count` items in memory: with few items it
    keeps the GIL."""
    return holding_gil if count <= _FEW else lib


def widen(
    numbers: np.ndarray[Any, Any], out: np.ndarray[Any, Any], least: int = _LEAST, most: int = _MOST
) -> bool:
    """Copy integers into an int64 array of the same length; return whether all of them are from
    `least` to `most`."""
    count, width = len(numbers), numbers.itemsize
    core = core_for(count)
    return not core.gd_widen(address(numbers), width, count, least, most, pointer(out))


def copy_rows(
    rows: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any], places: np.ndarray[Any, Any],
    into: np.ndarray[Any, Any],
) -> None:  # fmt: skip
    """Copy row `numbers[i]` of `rows` to row `places[i]` of `into`, without the GIL.

    Args:
        rows, into: uint8 [any, row_bytes], contiguous.
        numbers, places: int64 and int32 [n]; they are not checked.
    """
    lib.gd_spread(
        pointer(rows), pointer(numbers), len(numbers), rows.shape[1], pointer(places),
        into.shape[1], pointer(into),
    )  # fmt: skip


def check(code: int, what: str) -> int:
    """Return `code`, a result of the core's function `what`; raise OSError if it is -errno."""
    if code < 0:
        name = errno_names.errorcode.get(-code, str(-code))
        raise OSError(-code, f"{what}: {name} ({os.strerror(-code)})")
    return code
