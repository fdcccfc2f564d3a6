"""Two tables behind one gate: a batch gets slots of both, or waits, or gets an error."""

from __future__ import annotations

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
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import Scenario, Simulation, told_rows
from tests.pipeline.tight import SLOTS, ids


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
def test_a_lease_of_both(rows: TableFile, part_rows: int, takes: bool, tight: str) -> None:
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
def test_a_table_that_cannot_hold_its_rows(
    rows: TableFile, part_rows: int, two: Int64Array, error: type[Exception]
) -> None:
    async def main() -> None:
        async with two_tables(rows, part_rows) as (_, buffer):
            first = await buffer.lease({"one": ids(0, 12), "two": ids(0, 2)})
            (ticket,) = buffer.join([(None, {"one": ids(20, 34), "two": two})])
            with pytest.raises(error):
                await buffer.granted(ticket)
            await first.ready()
            first.release()

    run(main())


def test_memory_that_is_short_when_parts_are_made(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_memory_that_is_short_behind_the_last_part(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_memory_that_is_short_for_the_second_table(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch, part_rows: int, what: str
) -> None:
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
