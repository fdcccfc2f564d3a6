"""Faults of the simulated engine, and the settings that select it.

`Faults` holds the rates of faults; `simulated(seed, faults)` makes the settings. `NOISE` holds what
a healthy disk may do at any time, so it must not change any result. A bad sector fails the rows
that touch it, and no others.
"""

from __future__ import annotations

from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.simulated import POISON, Faults, Request, Simulated

__all__ = ["NOISE", "POISON", "Faults", "Request", "Simulated", "simulated"]

NOISE = Faults(short=0.15, eagain=0.05, eintr=0.05, delay_turns_max=3)


def simulated(
    seed: int = 0, faults: Faults | None = None, depth: int = 32, block_bytes: int = 65536
) -> EngineSettings:
    """Settings of a simulated engine whose faults and delays are drawn from `seed`."""
    return EngineSettings(depth=depth, block_bytes=block_bytes, seed=seed, faults=faults)
