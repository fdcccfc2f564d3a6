"""Admission in parts: the head of the admission queue takes slots as they become available, and
releases them if it is given up.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from gnndrive.common.errors import ReadError
from gnndrive.common.records import Int32Array, Int64Array, Landing, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline.tight import SLOTS, closing, ids, loads, simulation_of, use


def test_the_head_reads_before_all_its_slots_are_there(rows: TableFile) -> None:
    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 10)})
            wanted = np.concatenate([ids(4, 10), ids(20, 30)])
            (ticket,) = buffer.join([(None, {"x": wanted})])
            assert not ticket.granted.done()
            assert 10 < loads(simulation) <= SLOTS
            await use(simulation, first, ids(0, 10))
            await use(simulation, await buffer.granted(ticket), wanted)
            assert loads(simulation) == 20

    run(main())


def test_no_part_evicts_rows_that_another_part_needs(rows: TableFile) -> None:
    """Rows 40 … 47 are the oldest on standby and the last of the needed rows in the file."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            await use(simulation, await buffer.lease({"x": ids(40, 48)}), ids(40, 48))
            first = await buffer.lease({"x": ids(0, 8)})
            wanted = np.concatenate([ids(10, 18), ids(40, 48)])
            (ticket,) = buffer.join([(None, {"x": wanted})])
            await use(simulation, first, ids(0, 8))
            await use(simulation, await buffer.granted(ticket), wanted)
            assert loads(simulation) == 24

    run(main())


def test_repeated_rows_and_rows_that_another_batch_is_loading(rows: TableFile) -> None:
    async def main() -> None:
        for part_rows in (1, 2, 3, 100):
            async with simulation_of(rows, part_rows) as simulation:
                buffer = simulation.buffer
                first = await buffer.lease({"x": ids(0, 12)})
                wanted = [np.array([3, 20, 3, 21, 20]), np.array([21, 22, 23, 24, 5, 25, 26])]
                tickets = buffer.join([(None, {"x": one}) for one in wanted])
                await use(simulation, first, ids(0, 12))
                for one, ticket in zip(wanted, tickets, strict=True):
                    await use(simulation, await buffer.granted(ticket), one)
                assert loads(simulation) == 19
                stats = simulation.table.stats()
                assert stats["hits"] + stats["waits"] + stats["repeats"] == 5

    run(main())


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("cancelled", [False, True])
def test_one_batch_of_a_sweep_is_given_up_meanwhile(
    rows: TableFile, gone: int, cancelled: bool
) -> None:
    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 12)})
            wanted = [ids(20, 28), ids(28, 36)]
            tickets = buffer.join([(n, {"x": one}) for n, one in enumerate(wanted)])
            behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 48)}))
            await asyncio.sleep(0)
            assert 12 < loads(simulation) <= SLOTS, "it has begun"
            if cancelled:
                waiting = asyncio.ensure_future(buffer.granted(tickets[gone]))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            else:
                buffer.leave(tickets[gone])
            assert not behind.done()
            await use(simulation, first, ids(0, 12))
            await use(simulation, await buffer.granted(tickets[1 - gone]), wanted[1 - gone])
            await use(simulation, await behind, ids(40, 48))

    run(main())


def test_all_batches_of_a_sweep_are_given_up_meanwhile(rows: TableFile) -> None:
    """The next batch gets the slots they held; no more is read for them."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 12)})
            tickets = buffer.join([(None, {"x": one}) for one in (ids(20, 28), ids(28, 36))])
            behind = asyncio.ensure_future(buffer.lease({"x": np.array([20, 40])}))
            await asyncio.sleep(0)
            begun = loads(simulation)
            assert 12 < begun <= SLOTS
            for ticket in tickets:
                buffer.leave(ticket)
            await use(simulation, await behind, np.array([20, 40]))
            await use(simulation, first, ids(0, 12))
            assert loads(simulation) <= begun + 2

    run(main())


class Limited(Tier):
    """Passes on `passed` fetches to `below` and refuses the next one."""

    name = "limited"

    def __init__(self, below: Tier, passed: int) -> None:
        self.below, self.path, self.left = below, below.path, passed

    @classmethod
    def make(cls, context: TierContext) -> Limited:
        raise NotImplementedError("made by hand")

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        self.left -= 1
        if self.left == -1:
            raise MemoryError("no memory for the reads")
        return self.below.fetch(rows, places, landing)


@pytest.mark.parametrize("passed", [0, 1, 2, 3])
@pytest.mark.parametrize("gone", [None, 0, 1])
def test_a_part_whose_fetch_raises(rows: TableFile, passed: int, gone: int | None) -> None:
    """From then on the batches of its sweep are tried one by one, and all are admitted."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 14)})
            await first.ready()
            simulation.table.tier = Limited(simulation.table.tier, passed)
            wanted = [ids(20, 28), ids(28, 36)]
            tickets = buffer.join([(None, {"x": one}) for one in wanted])
            if gone is not None:
                buffer.leave(tickets[gone])
            await use(simulation, first, ids(0, 14))
            for number, ticket in enumerate(tickets):
                if number != gone:
                    await use(simulation, await buffer.granted(ticket), wanted[number])
                    assert buffer.missing_share <= 1, "the rows of the failed try are not counted"
            await use(simulation, await buffer.lease({"x": ids(40, 56)}), ids(40, 56))

    run(main())


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_the_error_of_a_parts_fetch_reaches_its_batch(rows: TableFile, passed: int) -> None:
    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 14)})
            await first.ready()
            simulation.table.tier = Limited(simulation.table.tier, passed)
            (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
            behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 56)}))
            await use(simulation, first, ids(0, 14))
            with pytest.raises(MemoryError, match="no memory for the reads"):
                await buffer.granted(ticket)
            await use(simulation, await behind, ids(40, 56))

    run(main())


def test_a_part_whose_fetch_raises_after_its_batch_was_cancelled(rows: TableFile) -> None:
    """The cancelled batch is still in the queue when the part is tried; the next one keeps its
    place."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 14)})
            await first.ready()
            simulation.table.tier = Limited(simulation.table.tier, 1)
            (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
            behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 56)}))
            ticket.granted.cancel()
            first.release()  # the part that fails
            buffer.leave(ticket)
            await use(simulation, await behind, ids(40, 56))

    run(main())


def test_rows_that_fail_while_parts_are_to_come(rows: TableFile) -> None:
    """In a buffer with no slot to spare, rows of both batches fail before the next part comes."""

    async def main() -> None:
        at = rows.data_offset + 20 * rows.row_bytes
        faults = Faults(eio_offsets=((at, at + 1),))
        for part_rows in (1, 2, 3, 5):
            scenario = Scenario(rows, slots=SLOTS, faults=faults, part_rows=part_rows)
            async with closing(Simulation(scenario, seed=0)) as simulation:
                buffer = simulation.buffer
                first = await buffer.lease({"x": ids(0, 12)})
                await first.ready()
                wanted = [ids(20, 36), ids(20, 36)[::-1].copy()]
                tickets = buffer.join([(None, {"x": one}) for one in wanted])
                for _ in range(50):
                    await asyncio.sleep(0)
                first.release()
                for ticket in tickets:
                    lease = await buffer.granted(ticket)
                    with pytest.raises(ReadError):
                        await lease.ready()
                    lease.release()

    run(main())


def test_a_buffer_that_breaks_meanwhile(rows: TableFile, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 12)})
            await first.ready()
            (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
            assert 12 < loads(simulation) <= SLOTS, "it has begun"
            buffer.fail(OSError("the device fell off"))
            with pytest.raises(OSError, match="fell off"):
                await buffer.granted(ticket)
            first.release()
            await buffer.drain()

    run(main())
