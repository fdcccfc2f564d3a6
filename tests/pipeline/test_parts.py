"""Admission in parts: the head of the admission queue takes slots as they become available, and
releases them if it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.partial_admission import _TableAdmission
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.common.records import TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, told_rows
from tests.pipeline.tight import SLOTS, Refusing, closing, ids, loads, simulation_of, use


def test_the_head_reads_before_all_its_slots_are_there(rows):
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


def test_no_part_evicts_rows_that_another_part_needs(rows):
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


def test_repeated_rows_and_rows_that_another_batch_is_loading(rows):
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
def test_one_batch_of_a_sweep_is_given_up_meanwhile(rows, gone, cancelled):
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


def test_all_batches_of_a_sweep_are_given_up_meanwhile(rows):
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


@pytest.mark.parametrize("passed", [0, 1, 2, 3])
@pytest.mark.parametrize("gone", [None, 0, 1])
def test_a_part_whose_fetch_raises(rows, passed, gone):
    """From then on the batches of its sweep are tried one by one, and all are admitted."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 14)})
            await first.ready()
            simulation.table.tier = Refusing(simulation.table.tier, call=passed)
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
def test_the_error_of_a_parts_fetch_reaches_its_batch(rows, passed):
    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 14)})
            await first.ready()
            simulation.table.tier = Refusing(simulation.table.tier, call=passed)
            (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
            behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 56)}))
            await use(simulation, first, ids(0, 14))
            with pytest.raises(MemoryError, match="no memory for the reads"):
                await buffer.granted(ticket)
            await use(simulation, await behind, ids(40, 56))

    run(main())


def test_a_part_whose_fetch_raises_after_its_batch_was_cancelled(rows):
    """The cancelled batch is still in the queue when the part is tried; the next one keeps its
    place."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 14)})
            await first.ready()
            simulation.table.tier = Refusing(simulation.table.tier, call=1)
            (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
            behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 56)}))
            ticket.granted.cancel()
            first.release()  # the part that fails
            buffer.leave(ticket)
            await use(simulation, await behind, ids(40, 56))

    run(main())


def test_rows_that_fail_while_parts_are_to_come(rows):
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


def test_a_buffer_that_breaks_meanwhile(rows, monkeypatch):
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


# ---- two tables behind one gate


@asynccontextmanager
async def two_tables(
    rows: TableFile, part_rows: int = 2
) -> AsyncIterator[tuple[Simulation, FeatureBuffer]]:
    simulation = Simulation(Scenario(rows, slots=SLOTS), seed=0)
    tables = {
        name: SlotTable(
            rows.row_count, SLOTS, rows.row_bytes, Host().allocate(SLOTS, rows.row_bytes),
            simulation.table.tier, LRU(),
        )
        for name in ("one", "two")
    }  # fmt: skip
    buffer = FeatureBuffer(tables, part_rows)
    yield simulation, buffer
    await buffer.drain()
    buffer.verify()
    assert [table.available for table in tables.values()] == [SLOTS, SLOTS]
    await buffer.aclose()
    await simulation.close()


@pytest.mark.parametrize(("part_rows", "takes"), [(2, True), (100, False)])
@pytest.mark.parametrize("tight", ["one", "two"])
def test_a_lease_of_both(rows, part_rows, takes, tight):
    """Without parts it takes no slots until both tables have enough, because two batches could
    wait for each other for ever; in parts it takes the slots that are available."""

    async def main() -> None:
        async with two_tables(rows, part_rows) as (_, buffer):
            held = {name: ids(0, 12 if name == tight else 2) for name in ("one", "two")}
            first = await buffer.lease(held)
            wanted = {"one": ids(20, 34), "two": ids(30, 44)}
            (ticket,) = buffer.join([(None, wanted)])
            assert not ticket.granted.done()
            left = {name: table.available for name, table in buffer.tables.items()}
            assert (left != {name: SLOTS - len(held[name]) for name in held}) is takes
            await first.ready()
            first.release()
            lease = await buffer.granted(ticket)
            await lease.ready()
            for name, asked in wanted.items():
                got = lease.gather(name, torch.uint8, (rows.row_bytes,)).numpy()
                assert np.array_equal(got, told_rows(asked, rows.row_bytes))
            lease.release()

    run(main())


@pytest.mark.parametrize("part_rows", [2, 100])
@pytest.mark.parametrize(
    ("two", "error"), [(ids(0, SLOTS + 1), ConfigError), (np.array([1, 10**6]), IndexError)]
)
def test_a_table_that_cannot_hold_its_rows(rows, part_rows, two, error):
    async def main() -> None:
        async with two_tables(rows, part_rows) as (_, buffer):
            first = await buffer.lease({"one": ids(0, 12), "two": ids(0, 2)})
            (ticket,) = buffer.join([(None, {"one": ids(20, 34), "two": two})])
            with pytest.raises(error):
                await buffer.granted(ticket)
            await first.ready()
            first.release()

    run(main())


def test_memory_that_is_short_when_parts_are_made(rows, monkeypatch):
    def refuse(admission: object, part_rows: int) -> None:
        raise MemoryError("no memory for parts")

    async def main() -> None:
        async with two_tables(rows) as (_, buffer):
            first = await buffer.lease({"one": ids(0, 12), "two": ids(0, 2)})
            with monkeypatch.context() as patch:
                patch.setattr(_TableAdmission, "divide", refuse)
                (ticket,) = buffer.join([(None, {"one": ids(4, 20), "two": ids(0, 9)})])
                with pytest.raises(MemoryError, match="for parts"):
                    await buffer.granted(ticket)
            await first.ready()
            first.release()

    run(main())


def test_memory_that_is_short_behind_the_last_part(rows, monkeypatch):
    """What the parts of both tables hold is released once, though one has made its hold."""

    def refuse(admission: _TableAdmission) -> SlotHold:
        monkeypatch.undo()
        raise MemoryError("no memory for leases")

    async def main() -> None:
        async with two_tables(rows) as (_, buffer):
            first = await buffer.lease({"one": ids(0, 12), "two": ids(0, 2)})
            (ticket,) = buffer.join([(None, {"one": ids(4, 20), "two": ids(0, 9)})])
            await first.ready()
            made, holds = _TableAdmission.hold, list[SlotHold]()

            def second_refused(admission: _TableAdmission) -> SlotHold:
                if holds:
                    return refuse(admission)
                holds.append(made(admission))
                return holds[0]

            monkeypatch.setattr(_TableAdmission, "hold", second_refused)
            first.release()
            with pytest.raises(MemoryError, match="for leases"):
                await buffer.granted(ticket)
            assert holds
            await buffer.drain()
            buffer.verify()
            assert all(table.available == table.slots for table in buffer.tables.values())

    run(main())


@pytest.mark.parametrize("part_rows", [2, 100])
@pytest.mark.parametrize("what", ["admit", "split"])
def test_memory_that_is_short_for_the_second_table(rows, monkeypatch, part_rows, what):
    """In its admission or its holds: the first table's slots are released, and the next batch is
    admitted."""
    owner: Any = SlotTable if what == "admit" else SlotHold
    made = getattr(owner, what)

    def refuse_two(mine: Any, *given: Any) -> Any:
        table = mine if what == "admit" else mine.table
        if table is second:
            monkeypatch.undo()
            raise MemoryError("no memory for two")
        return made(mine, *given)

    async def main() -> None:
        nonlocal second
        async with two_tables(rows, part_rows) as (_, buffer):
            second = buffer.tables["two"]
            monkeypatch.setattr(owner, what, refuse_two)
            wanted = {"one": ids(20, 34), "two": ids(30, 44)}
            with pytest.raises(MemoryError, match="for two"):
                await buffer.lease(wanted)
            lease = await buffer.lease({name: ids(0, SLOTS) for name in wanted})
            await lease.ready()
            lease.release()

    second: SlotTable | None = None
    run(main())
