"""`duration`: seconds as people write them; `memory.py` has bytes."""

from __future__ import annotations

_UNITS = ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (300.0, 1.0, "s"), (18e3, 1 / 60, "min"))


def duration(seconds: float) -> str:
    """Seconds in the unit that leaves a number from 1 on, as far as there is one."""
    if seconds == 0:
        return "0 s"
    for limit, factor, unit in _UNITS:
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"
