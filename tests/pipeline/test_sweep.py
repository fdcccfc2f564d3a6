"""Sweeps: batches admitted together, and what an extractor waits for before it takes one."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import TableFile
from gnndrive.pipeline import extract
from gnndrive.pipeline.batch import Failed
from gnndrive.pipeline.channel import Channel
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline.tight import closing, ids, use

READ_ROWS = 8  # to a sector
PARTS = pytest.mark.parametrize("part_rows", [4, 100])  # many, and none


def simulation_of(
    rows: TableFile, slots: int, part_rows: int = 4
) -> AbstractAsyncContextManager[Simulation]:
    scenario = Scenario(rows, slots=slots, policy=Belady(), part_rows=part_rows)
    return closing(Simulation(scenario, seed=0))


# ---- sweeps


def test_a_sweep_is_one_pass(rows):
    """Two batches need every other row of the same sectors: each sector is read once."""

    async def main() -> None:
        async with simulation_of(rows, 64, part_rows=64) as simulation:
            wanted = [ids(0, 64, 2), ids(1, 64, 2)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            leases = [await simulation.buffer.granted(ticket) for ticket in tickets]
            for one, lease in zip(wanted, leases, strict=True):
                await use(simulation, lease, one)
            assert simulation.engine.stats()["requests"] == 64 / READ_ROWS / 8  # 4,096 bytes each
            assert simulation.table.stats()["admitted"] == 1

    run(main())


@PARTS
@pytest.mark.parametrize("together", [2, 3])
def test_batches_that_do_not_fit_together_are_admitted_one_by_one(rows, together, part_rows):
    async def main() -> None:
        async with simulation_of(rows, 16 * together - 1, part_rows) as simulation:
            wanted = [ids(16 * n, 16 * n + 16) for n in range(together)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            granted = [ticket.granted.done() for ticket in tickets]
            assert granted == [True] * (together - 1) + [False]
            for one, ticket in zip(wanted, tickets, strict=True):
                lease = await simulation.buffer.granted(ticket)
                await use(simulation, lease, one)

    run(main())


@PARTS
@pytest.mark.parametrize(
    ("bad", "error"),
    [(ids(190, 210), IndexError), (ids(0, 40), ConfigError)],
    ids=["range", "size"],
)
def test_a_refused_batch_does_not_fail_the_others(rows, bad, error, part_rows):
    async def main() -> None:
        async with simulation_of(rows, 32, part_rows) as simulation:
            wanted = [ids(0, 16), bad, ids(16, 32)]
            tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
            for number, (one, ticket) in enumerate(zip(wanted, tickets, strict=True)):
                if number == 1:
                    with pytest.raises(error):
                        await simulation.buffer.granted(ticket)
                    continue
                lease = await simulation.buffer.granted(ticket)
                await use(simulation, lease, one)

    run(main())


@PARTS
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_one_of_a_waiting_sweep_may_leave(rows, gone, part_rows):
    async def main() -> None:
        async with simulation_of(rows, 48, part_rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(100, 130)})
            wanted = [ids(16 * n, 16 * n + 16) for n in range(3)]
            tickets = buffer.join([(None, {"x": one}) for one in wanted])
            waiting = [asyncio.ensure_future(buffer.granted(ticket)) for ticket in tickets]
            await asyncio.sleep(0)
            waiting[gone].cancel()
            await asyncio.wait([waiting[gone]])
            await first.ready()
            first.release()
            for number, task in enumerate(waiting):
                if number != gone:
                    lease = await task
                    await lease.ready()
                    lease.release()

    run(main())


@PARTS
def test_the_missing_share(rows, part_rows):
    async def main() -> None:
        async with simulation_of(rows, 24, part_rows) as simulation:
            shares = []
            held = await simulation.buffer.lease({"x": ids(100, 102)})
            for wanted in (ids(0, 16), ids(0, 16), ids(8, 24)):
                waiting = asyncio.ensure_future(simulation.buffer.lease({"x": wanted}))
                await asyncio.sleep(0)
                if not held.released:
                    held.release()
                lease = await waiting
                await lease.ready()
                lease.release()
                shares.append(simulation.buffer.missing_share)
            assert shares == [1.0, 0.0, 0.5]

    run(main())


# ---- what an extractor waits for before it takes the samples of a sweep


@pytest.mark.parametrize(
    ("loading", "missing_share", "ready", "training", "together", "waits"),
    [
        (True, 1.0, 1, (1, 3), 1, True),
        (True, 0.0, 1, (1, 3), 1, True),
        (False, 1.0, 1, (1, 3), 1, False),  # the disk is idle
        (False, 1.0, 3, (1, 3), 1, True),  # for a place, which the next batch that is taken frees
        (False, 0.0, 3, (1, 3), 1, False),  # nothing to read while it waits
        # Of six samples three are there. With a combined fetch of four none comes before one is
        # taken: the sweep is complete, and waits for its places.
        (False, 1.0, 3, (2, 4), 1, False),
        (False, 1.0, 3, (2, 4), 3, False),
        (False, 1.0, 3, (2, 4), 4, True),
        (False, 0.0, 1, (1, 1), 1, True),  # for a place, without any other reason
    ],
)
def test_what_a_sweep_waits_for(loading, missing_share, ready, training, together, waits):
    """`training`: how many of how many places are taken by other batches."""

    async def main() -> None:
        taken, bound = training
        queues = Channel[Failed](6), Channel[Failed](bound)
        for channel, places in zip(queues, (ready, taken), strict=True):
            for _ in range(places):
                await channel.reserve()
        for index in range(ready):
            queues[0].put(index, Failed(index, KeyError()))
        buffer = SimpleNamespace(
            loading=loading, missing_share=missing_share, fits_together=lambda batches: True
        )
        epoch: Any = SimpleNamespace(
            extracting=queues[0], training=queues[1], stages=Stages(), buffer=buffer,
            together=together,
        )  # fmt: skip
        sweep = asyncio.ensure_future(extract._next_sweep_size(epoch))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sweep.done() is not waits
        queues[1].put(0, Failed(0, KeyError()))
        queues[1].take_now()
        buffer.loading = False
        assert await sweep == min(ready, bound - taken + waits)

    run(main())
