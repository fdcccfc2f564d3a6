"""Scenarios with a victim buffer on the simulated device, for test_victims.py and
test_victim_failures.py; each raises an error if something goes wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.buffer.policies.base import Keys
from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.disk.tiers._victims import Victims
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Delivered, Scenario, Simulation, simulate
from tests.pipeline.scenarios import SLOW

SEEDS = 12
AHEAD = Stages(4, 3, 8, 4)


def count_stats(patch: pytest.MonkeyPatch) -> Counter[str]:
    """The counters of simulations from now on, whose victim tables are verified at their end."""
    close, counts = Simulation.close, Counter[str]()

    async def verified(simulation: Simulation) -> None:
        tier = simulation.table.tier
        assert isinstance(tier, Victims)
        await simulation.buffer.drain()
        tier.verify()
        counts.update(simulation.table.stats())
        await close(simulation)

    patch.setattr(Simulation, "close", verified)
    return counts


class Soonest(Belady):
    """Gives up the row that is needed soonest, so that it is fetched back while it is copied."""

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        return Keys(next_use, np.zeros(len(next_use), np.uint8))


def given(rule: str = "victim", victims: int = 24) -> dict[str, Any]:
    """Arguments of a scenario with a victim buffer."""
    return {
        "tiers": (rule, "disk"), "victims": victims, "policy": Belady(), "device": "simulated-cuda",
    }  # fmt: skip


def small_buffer(rows: TableFile, seed: int, rule: str = "victim") -> None:
    """Batches with many rows in common through few slots, so that slots are used again soon and
    rows leave that are wanted."""
    more = given(rule, (24, 5)[seed // 2 % 2])
    more["policy"] = (Soonest(), Belady())[seed // 4 % 2]
    scenario = Scenario(
        replace(rows, row_count=70), slots=(32, 40)[seed % 2], faults=SLOW, batches=10,
        stages=AHEAD, consumer_turns_max=8, **more,
    )  # fmt: skip
    batches = simulate(scenario, seed)
    assert [batch.index for batch in batches] == list(range(10))


def back_at_once(rows: TableFile, seed: int, rule: str = "victim") -> None:
    """Rows that leave for one lease and are fetched back for the next, which is granted in the same
    turn: what leaves is copied out meanwhile."""

    async def main() -> None:
        more = given(rule, 64) | {"policy": Soonest(), "part_rows": 100}
        simulation = Simulation(Scenario(rows, slots=32, faults=SLOW, **more), seed)
        buffer = simulation.buffer
        parts = np.split(np.arange(48), 3)
        order = [0, 1, 2, 0, 1, 2, 0]
        for index in range(len(order)):
            buffer.announce(index, {"x": parts[order[index]]})

        async def use(index: int) -> None:
            wanted = {"x": parts[order[index]]}
            lease = await buffer.granted(buffer.join([(index, wanted)])[0])
            await lease.ready()
            got = lease.gather("x", torch.uint8, (rows.row_bytes,))
            simulation.check(Delivered(index, wanted["x"], got))
            await lease.gathered()
            lease.release()

        for first in range(0, len(order), 2):
            await asyncio.gather(*map(use, range(len(order))[first : first + 2]))
        await simulation.close()

    run(main())
