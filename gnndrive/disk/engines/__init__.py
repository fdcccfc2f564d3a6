"""Engines carry out planned reads and writes: `uring`; `threads`, if io_uring is refused;
`simulated`, in tests.

The loader gets its engine from `choose`: io_uring if the kernel allows it, else threads and one
warning that says how to allow it. To add an engine, write one file here with a subclass of `Engine`
(`base.py`) that has a `name`.
`tests/disk/engines/test_conformance.py` holds every plug-in of the kind to its contract.
"""

from __future__ import annotations

import warnings
from typing import Any

from gnndrive.common import plugins
from gnndrive.disk.engines._each_disk import make_engine
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.engines.uring import why_not_uring

__all__ = ["choose", "make_engine", "why_not_uring"]

_warned = False


def choose(engine: Any = None) -> type[Engine]:
    """Return the class of an engine.

    Args:
        engine: its name, or the class itself; None or "auto": uring if it works here, else threads.
            The fallback warns once in a process (RuntimeWarning) and says how to allow io_uring.
    """
    global _warned
    if engine is not None and engine != "auto":
        found: type[Engine] = plugins.find("engines", engine)
        return found
    reason = why_not_uring()
    if reason is not None and not _warned:
        _warned = True
        warnings.warn(
            f"reading with threads, which is slower than io_uring. {reason}. "
            'Say engine="threads" to choose it without this warning.',
            RuntimeWarning,
            stacklevel=2,
        )
    chosen: type[Engine] = plugins.find("engines", "uring" if reason is None else "threads")
    return chosen
