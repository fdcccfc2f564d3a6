"""Fault rates for the simulated engine, and how to ask for it.

`Faults` says what goes wrong; `simulated(seed, faults)` makes the settings. Noise is what a healthy
disk may do at any time and must change nothing; a bad sector fails the rows that touch it and no
others.
"""

from __future__ import annotations

from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.simulated import POISON, Faults, Request, Simulated

__all__ = ["NOISE", "POISON", "Faults", "Request", "Simulated", "simulated"]

NOISE = Faults(short=0.15, eagain=0.05, eintr=0.05, delay_turns_max=3)


def simulated(
    seed: int = 0, faults: Faults | None = None, depth: int = 32, block_bytes: int = 65536
) -> EngineSettings:
    """Settings of a simulated engine that draws from `seed`."""
    return EngineSettings(depth=depth, block_bytes=block_bytes, seed=seed, faults=faults)
