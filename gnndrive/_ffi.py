"""The one importer of the C core: `ffi`, `lib`, and how a numpy array becomes a C pointer.

Everything else says `from gnndrive._ffi import ffi, lib, pointer`. The core is built by
`build_ext.py`.
"""

from __future__ import annotations

import errno as errno_names
import os
from typing import Any

import numpy as np

try:
    from gnndrive._core import ffi, lib
except ImportError as error:  # pragma: no cover - only in a tree that was never built
    raise ImportError(
        "gnndrive's C core is not built: run `pip install .` (or `make test`) in the source tree; "
        f"the loader said: {error}"
    ) from error

__all__ = ["check", "ffi", "lib", "pointer"]

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


def check(code: int, what: str) -> int:
    """`code` if it is not negative, else an OSError that names `what` and the errno."""
    if code < 0:
        name = errno_names.errorcode.get(-code, str(-code))
        raise OSError(-code, f"{what}: {name} ({os.strerror(-code)})")
    return code
