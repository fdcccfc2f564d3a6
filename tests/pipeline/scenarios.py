"""Scenarios for the protocol's rules: each raises an error if something goes wrong.

`given` are further arguments of the `Scenario`, such as `PLACES`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.policies.base import Keys
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.policies.static import Static
from gnndrive.common.records import EngineSettings, Int64Array, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.disk.tiers.rolled import CLASSES, Rolled
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.epoch import Epoch, Stages
from gnndrive.pipeline.run import run_epoch
from gnndrive.plan.plan import Plan, TablePlan
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.strategies import Strategy
from gnndrive.testing.simulated_exchange import SimulatedExchange
from gnndrive.testing.simulated_ranks import simulate_ranks
from gnndrive.testing.simulated_windows import WindowedScenario, WindowedSimulation
from gnndrive.testing.simulation import (
    Delivered,
    InlineWorkers,
    RandomSampler,
    Scenario,
    Simulation,
    simulate,
)
from tests.pipeline.tight import in_virtual_loop

NOISE = Faults(short=0.2, eagain=0.1, eintr=0.1, delay_turns_max=2)
SLOW = Faults(short=0.1, delay_turns_max=6)
AHEAD_TURNS = 300
TURNS = 100  # most leases have ended by then
PLACES: dict[str, Any] = {"places": 2, "residents": 60}
AHEAD = Stages(4, 3, 8, 4)
ROLLING: dict[str, Any] = {
    "superbatch": 5, "blocks": 12, "tiers": ("rolled", "disk"), "policy": Static(),
    "classes": np.arange(200, dtype=np.uint8) % 100, "slots": 48,
}  # fmt: skip


def held(batches: Sequence[Delivered]) -> list[tuple[int, list[int]]]:
    """The nodes of each batch, by its index."""
    return [(batch.index, batch.node.tolist()) for batch in batches]


async def run_one(
    simulation: Simulation, number: int = 0, limit: int | None = None,
    change: Callable[[Epoch], object] = lambda epoch: None,
) -> tuple[list[Delivered], Exception | None]:  # fmt: skip
    """The batches of an epoch, which is cancelled after `limit`, and the error that ends it."""
    epoch = simulation.epoch(number)
    change(epoch)
    running = asyncio.ensure_future(run_epoch(epoch))
    delivered: list[Delivered] = []
    error: Exception | None = None
    try:
        while limit is None or len(delivered) < limit:
            if not (batch := await simulation.consume(epoch, 1)):
                break
            delivered += batch
    except AssertionError:
        raise
    except Exception as caught:
        error = caught
    if limit is None:
        await running
    else:
        running.cancel()
        await asyncio.wait([running])
    return delivered, error


async def lease_once(
    simulation: Simulation, wanted: dict[str, Int64Array], index: int | None = None,
    buffer: FeatureBuffer | None = None,
) -> None:  # fmt: skip
    """Lease rows of tables, check what a user gets, release."""
    buffer = buffer or simulation.buffer
    lease = await buffer.granted(buffer.join([(index, wanted)])[0])
    try:
        await lease.ready()
        for name, node in wanted.items():
            rows = lease.gather(name, torch.uint8, (simulation.scenario.file.row_bytes,))
            simulation.check(Delivered(index or 0, node, rows))
        await lease.gathered()
    finally:
        lease.release()


def epoch_ends_well(rows: TableFile, seed: int, **given: Any) -> None:
    scenario = Scenario(rows, faults=SLOW, batches=16, **given)
    assert [batch.index for batch in simulate(scenario, seed)] == list(range(16))


def narrow_queues_end_well(rows: TableFile, seed: int, **given: Any) -> None:
    epoch_ends_well(rows, seed, slots=48, stages=Stages(4, 4, 2, 2), **given)


def copies_end_well(rows: TableFile, seed: int) -> None:
    """Two epochs whose rows are copied ahead, to blocks that are soon used again."""
    faults = Faults(short=0.1, delay_turns_max=30)
    scenario = Scenario(rows, batches=12, faults=faults, **ROLLING)
    assert len(simulate(scenario, seed, epochs=2)) == 24


@in_virtual_loop
async def a_block_is_read_to_its_end(rows: TableFile, seed: int) -> None:
    """The only block is wanted for the rows of another batch while a fetch reads it, although its
    own batch was given up."""
    faults = Faults(delay_turns_max=100)
    more = ROLLING | {"blocks": 1, "part_rows": 100, "device": "host"}
    scenario = Scenario(rows, faults=faults, **more)
    simulation, run = Simulation(scenario, seed), InlineWorkers().run
    tier, (first, other) = rolled_of(simulation), np.split(np.arange(32), 2)
    await tier.copy(run, {0: tier.missed(first)})
    tier.expect(0, 0)
    leased = asyncio.ensure_future(lease_once(simulation, {"x": first}))
    await asyncio.sleep(0)
    assert tier.found_rows == 16
    tier.give(0)
    await tier.copy(run, {1: tier.missed(other)})
    tier.expect(1, 1)
    await asyncio.gather(leased, lease_once(simulation, {"x": other}))
    tier.give(1)
    assert (tier.found_rows, tier.other_rows) == (32, 0)
    await simulation.close()


def rolled_of(simulation: Simulation) -> Rolled:
    """The simulation's tier, which copies all rows."""
    assert isinstance(simulation.table.tier, Rolled)
    simulation.table.tier.threshold = CLASSES
    return simulation.table.tier


@in_virtual_loop
async def failing_epoch_ends(rows: TableFile, seed: int, **given: Any) -> None:
    bad = set(range(64, 72))  # the rows of bytes 4,096 … 4,608
    faults = replace(SLOW, eio_offsets=((4096, 4608),))
    scenario = Scenario(rows, batches=8, slots=64, faults=faults, **given)
    simulation = Simulation(scenario, seed)
    delivered, error = await run_one(simulation)
    nodes = {node for batch in delivered for node in batch.node.tolist()}
    assert not nodes & bad, "a failed row was delivered"
    expected = next((i for i, each in expected_nodes(scenario, seed) if bad & set(each)), 8)
    assert len(delivered) == expected, "a batch was lost"
    assert isinstance(error, OSError) is (expected < 8)
    await simulation.close()


def expected_nodes(scenario: Scenario, seed: int, number: int = 0) -> list[tuple[int, list[int]]]:
    """What each batch of an epoch holds, without the pipeline."""
    sampler = RandomSampler(scenario.file.row_count, scenario.extra_max)
    return [
        (s.index, sampler.sample(s, batch_key(seed, number, s.number)).node.tolist())
        for s in scenario.seeds(seed)
    ]


def unreadable(scenario: Scenario, seed: int, at: int) -> tuple[Scenario, int]:
    """The scenario with noise, and EIO for a row of batch `at`; and the first batch that needs that
    row, which is `at` unless earlier batches need all of its rows. Rows have sectors of their own.
    """
    nodes, size = [each for _, each in expected_nodes(scenario, seed)], scenario.file.row_bytes
    first = {node: turn for turn, each in reversed([*enumerate(nodes)]) for node in each}
    bad = max(nodes[at], key=first.__getitem__)
    faults = replace(NOISE, eio_offsets=((bad * size, bad * size + 1),))
    return replace(scenario, faults=faults), first[bad]


@in_virtual_loop
async def cancelled_leases_come_back(
    rows: TableFile, seed: int, slots: int = 24, **given: Any
) -> None:
    """Leases of overlapping rows, each row a read of its own; one is cancelled after some turns."""
    simulation = Simulation(Scenario(rows, slots=slots, depth=4, faults=SLOW, **given), seed)

    async def use(start: int) -> None:
        ids = (start + 2 * np.arange(16, dtype=np.int64)) % 200
        await lease_once(simulation, {"x": ids})

    users = [asyncio.ensure_future(use(start)) for start in (0, 16, 33, 6)]
    for _ in range(seed % TURNS):
        await asyncio.sleep(0)
    users[seed % 3].cancel()
    await asyncio.wait(users)
    for number, user in enumerate(users):
        if number != seed % 3:
            user.result()
    await simulation.close()


def cancelled_leases_among_many_slots(rows: TableFile, seed: int, **given: Any) -> None:
    """The same with room for all: leases wait for rows that a cancelled one was loading."""
    cancelled_leases_come_back(rows, seed, slots=100, **given)


@in_virtual_loop
async def leases_share_staging(rows: TableFile, seed: int) -> None:
    """There are fewer portions of staging than each lease needs. As many leases as there are
    portions have slots; as many others wait for slots."""
    device = SimulatedCuda.name
    simulation = Simulation(Scenario(rows, slots=72, part_rows=100, device=device), seed)
    assert isinstance(simulation.device, SimulatedCuda)
    portions = simulation.device.portions  # 2, 3 or 4
    simulation.table.memory.landing_rows_max = 3

    parts = np.split(np.arange(144, dtype=np.int64), 2 * portions)
    await asyncio.gather(*(lease_once(simulation, {"x": part}) for part in parts))
    await simulation.close()


def few_staging_blocks_end_well(rows: TableFile, seed: int, **given: Any) -> None:
    """The engine has fewer staging blocks than there are fetches at once."""
    stages = Stages(sweep=1)
    scenario = Scenario(rows, slots=100, batches=16, depth=2, faults=SLOW, stages=stages, **given)
    simulate(scenario, seed)


@in_virtual_loop
async def granted_and_cancelled_in_one_turn(rows: TableFile, seed: int, **given: Any) -> None:
    """A lease is granted by another's release and its task cancelled before it runs again."""
    simulation = Simulation(Scenario(rows, slots=16, **given), seed)
    first = await simulation.buffer.lease({"x": np.arange(16)})
    await first.ready()
    waiting = asyncio.ensure_future(simulation.buffer.lease({"x": np.arange(50, 66)}))
    await asyncio.sleep(0)
    first.release()  # grants it
    waiting.cancel()
    await asyncio.wait([waiting])
    await simulation.close()


@in_virtual_loop
async def two_epochs_in_one_task(rows: TableFile, seed: int, **given: Any) -> None:
    """zip(loader, loader): one user takes batches of two epochs in turn, so the releases of each
    wait for him. The buffers come from a `BufferPool`, as in a loader, and hold one batch."""
    scenario = Scenario(rows, batches=8, batch_size=8, extra_max=0, faults=SLOW, **given)
    simulation = Simulation(scenario, seed)
    pool = pool_of(simulation)
    epochs, running = [], []
    for number in range(2):
        epoch = simulation.epoch(number)
        epoch.buffer = pool.take()
        epochs.append(epoch)
        running.append(asyncio.ensure_future(run_epoch(epoch)))
        for _ in range(AHEAD_TURNS):  # until it is as far ahead as it can be
            await asyncio.sleep(0)
    for _ in range(scenario.batches):
        for epoch in epochs:
            simulation.check(await epoch.output.aget())
    await asyncio.wait(running)
    for epoch in epochs:
        pool.give(epoch.buffer)
    await pool.close()
    await simulation.close()


def pool_of(simulation: Simulation) -> BufferPool:
    """A loader's buffer pool on the simulation's disk and device."""
    table, scenario = simulation.table, simulation.scenario
    most = scenario.slots or scenario.batch_size + scenario.extra_max
    held = TablePlan("x", table.rows, table.slots, table.row_bytes, most)
    if scenario.places:
        held = replace(held, residents=scenario.residents, places=scenario.places, place_rows=most)
    disk = Strategy(name="disk", policy="lru")
    request: Any = SimpleNamespace(
        ahead=None, exchange=None, tables=(), device=(scenario.device, None)
    )
    settings = RuntimeSettings(
        strategy=disk, plan=Plan((), (held,), None), policy="lru", stages=scenario.stages,
        engine="simulated", engine_settings=EngineSettings(), request=request,
    )  # fmt: skip
    store: Any = None  # the policy does not use it
    layouts = {"x": simulation.layout}
    return BufferPool(settings, store, layouts, simulation.engine, simulation.device, np.empty)


@in_virtual_loop
async def closing_waits_for_the_kernel(rows: TableFile, seed: int, **given: Any) -> None:
    simulation = Simulation(Scenario(rows, faults=SLOW, **given), seed)
    lease = await simulation.buffer.lease({"x": np.arange(16)})
    lease.release()
    await simulation.buffer.drain()
    await simulation.buffer.aclose()  # refuses while a read is under way
    assert not simulation.engine.inflight
    await simulation.engine.aclose()


def ranks_end_well(rows: TableFile, seed: int, **given: Any) -> None:
    """The users of two ranks meet after each step, and the buffer holds one largest batch."""
    scenario = Scenario(rows, faults=SLOW, batches=12, **given)
    for delivered in simulate_ranks(scenario, seed):
        assert [batch.index for batch in delivered] == list(range(6))


def exchange_ends_well(rows: TableFile, seed: int, **given: Any) -> None:
    """The same for ranks whose buffers act as one, each for the largest batch."""
    scenario = Scenario(rows, faults=SLOW, batches=30, **given)
    for delivered in simulate_ranks(scenario, seed, 3, kind=SimulatedExchange):
        assert [batch.index for batch in delivered] == list(range(10))


@in_virtual_loop
async def windows_end_well(rows: TableFile, seed: int, **given: Any) -> None:
    """Two epochs in windows; the buffer lacks between 0 and 49 of the slots that they need."""
    chosen: dict[str, Any] = {"few_slots": 7 * seed % 50, "faults": SLOW, **given}
    scenario = WindowedScenario(rows, **chosen)
    wanted = list if scenario.stages.in_order else sorted
    simulation = WindowedSimulation(scenario, seed)
    for number in range(2):
        delivered, _ = await run_one(simulation, number)
        assert wanted(batch.index for batch in delivered) == list(range(scenario.batches))
    await simulation.close()


def windows_in_any_order(rows: TableFile, seed: int) -> None:
    """The younger of two windows lacks most of its slots, and its batches may overtake others."""
    stages = Stages(samplers=4, sweep=1, in_order=False)
    windows_end_well(rows, seed, stages=stages, few_slots=33 + 5 * seed % 15)


# ---- on the simulated device, where a copy is begun long before its bytes are there


def many_batches(rows: TableFile, seed: int, device: str = SimulatedCuda.name) -> None:
    """Through few slots, so that they are used again soon, to a slow consumer."""
    slots = (0, 32)[seed % 2]
    scenario = Scenario(rows, slots=slots, faults=SLOW, batches=16, consumer_turns_max=30)
    simulate(replace(scenario, device=device), seed)


@in_virtual_loop
async def broken_off(rows: TableFile, seed: int) -> None:
    """A batch that was taken from an epoch and is checked in the next one."""
    scenario = Scenario(rows, faults=SLOW, batches=6, device=SimulatedCuda.name)
    simulation = Simulation(scenario, seed)
    first = simulation.epoch()
    running = asyncio.ensure_future(run_epoch(first))
    taken: Delivered = await first.output.aget()
    running.cancel()
    await asyncio.wait([running])
    second = simulation.epoch(1)
    running = asyncio.ensure_future(run_epoch(second))
    simulation.check(await second.output.aget())
    simulation.check(taken)
    await simulation.consume(second)
    await running
    await simulation.close()


class Soonest(Belady):
    """Gives up the row that is needed soonest, so that it is fetched back while it is copied."""

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        return Keys(next_use, np.zeros(len(next_use), np.uint8))


def victims(rule: str = "victim", count: int = 24) -> dict[str, Any]:
    """Arguments of a scenario with a victim buffer."""
    return {
        "tiers": (rule, "disk"), "victims": count, "policy": Belady(),
        "device": SimulatedCuda.name,
    }  # fmt: skip


def victims_of_few_slots(rows: TableFile, seed: int, rule: str = "victim") -> None:
    """Batches with many rows in common through few slots, so that slots are used again soon and
    rows leave that are wanted; by next uses, or in the order of their release."""
    more = victims(rule, (24, 5)[seed // 2 % 2])
    more["policy"] = (Soonest(), Belady(), LRU())[seed % 3]
    scenario = Scenario(
        replace(rows, row_count=70), slots=(32, 40)[seed % 2], faults=SLOW, batches=10,
        stages=AHEAD, consumer_turns_max=8, **more,
    )  # fmt: skip
    batches = simulate(scenario, seed)
    assert [batch.index for batch in batches] == list(range(10))


@in_virtual_loop
async def victims_back_at_once(rows: TableFile, seed: int, rule: str = "victim") -> None:
    """Rows that leave for one lease and are fetched back for the next, which is granted in the same
    turn: what leaves is copied out meanwhile."""
    more = victims(rule, 64) | {"policy": Soonest(), "part_rows": 100}
    simulation = Simulation(Scenario(rows, slots=32, faults=SLOW, **more), seed)
    buffer = simulation.buffer
    parts = np.split(np.arange(48), 3)
    order = [0, 1, 2, 0, 1, 2, 0]
    for index in range(len(order)):
        buffer.announce(index, {"x": parts[order[index]]})

    for first in range(0, len(order), 2):
        await asyncio.gather(*(
            lease_once(simulation, {"x": parts[order[index]]}, index)
            for index in range(len(order))[first : first + 2]
        ))  # fmt: skip
    await simulation.close()
