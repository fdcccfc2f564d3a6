"""Faults of the simulated engine, and the settings that select it.

`Faults` holds the rates of faults; `simulated(seed, faults)` makes the settings. `NOISE` holds
faults that a healthy disk may have at any time, so they must not change any result. A bad sector
fails only the rows that touch it.
"""

from __future__ import annotations

from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.simulated import POISON, Faults, Request, Simulated

__all__ = ["NOISE", "POISON", "Faults", "Request", "Simulated", "simulated"]

NOISE = Faults(short=0.15, eagain=0.05, eintr=0.05, delay_turns_max=3)


def simulated(
    seed: int = 0, faults: Faults | None = None, depth: int = 32, block_bytes: int = 65536
) -> EngineSettings:
    """Make the settings of a simulated engine.

    Args:
        seed: determines the engine's faults and delays.
        faults: their rates; None: no faults.
        depth: number of reads in flight at once.
        block_bytes: bytes of staging for each read.
    """
    return EngineSettings(depth=depth, block_bytes=block_bytes, seed=seed, faults=faults)
