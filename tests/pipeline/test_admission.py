"""Admission of batches, one by one, in sweeps and in parts: the caller gets an error, every slot
comes back, and the next lease works."""

import asyncio
import errno
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import gnndrive.buffer.fetch_queue
from gnndrive.buffer.devices.host import Host
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.partial_admission import _TableAdmission
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.errors import ClosedError, ConfigError, ReadError
from gnndrive.common.records import Int32Array, TableFile
from gnndrive.disk.engines.simulated import Faults
from gnndrive.pipeline.epoch import Extracted
from gnndrive.pipeline.run import run_epoch
from gnndrive.testing.simulation import InlineWorkers, Scenario, Simulation, told_rows
from tests.pipeline.conftest import DEVICES
from tests.pipeline.scenarios import TURNS, lease_once
from tests.pipeline.tight import (
    SLOTS,
    Refusing,
    buffer_of,
    closing,
    ids,
    in_virtual_loop,
    loads,
    short_of_memory,
    simulation_of,
    use,
)  # fmt: skip

PARTS = pytest.mark.parametrize("part_rows", [2, 100])  # many, and none
NOT_IN_PARTS = 100


# ---- a fetch that is refused


@in_virtual_loop
async def test_a_fetch_refused_in_lease(rows):
    """Half of the rows are being loaded for another lease, which still gets them."""
    async with simulation_of(rows, NOT_IN_PARTS) as simulation:
        simulation.table.tier = Refusing(simulation.table.tier, rows=[20])
        first = await simulation.buffer.lease({"x": ids(0, 8)})
        with pytest.raises(MemoryError, match="no memory for the reads"):
            await simulation.buffer.lease({"x": np.concatenate([ids(0, 4), ids(18, 22)])})
        assert simulation.table.stats()["free"] == SLOTS - 8
        await use(simulation, first, ids(0, 8))
        await use(simulation, await simulation.buffer.lease({"x": ids(0, 16)}), ids(0, 16))


@pytest.mark.parametrize("loading", [False, True], ids=["in a release", "when another lands"])
@in_virtual_loop
async def test_a_fetch_refused_later(rows, loading):
    """The waiting batch gets the error, and the next one is admitted. The slots of a lease that was
    released while it was loading become free when its reads end."""
    async with simulation_of(rows, NOT_IN_PARTS) as simulation:
        simulation.table.tier = Refusing(simulation.table.tier, rows=[20])
        first = await simulation.buffer.lease({"x": ids(0, 16)})
        if loading:
            first.release()
        waiting = [
            asyncio.ensure_future(simulation.buffer.lease({"x": asked}))
            for asked in (ids(16, 32), ids(32, 48))
        ]
        if not loading:
            await use(simulation, first, ids(0, 16))
        with pytest.raises(MemoryError):
            await waiting[0]
        await use(simulation, await waiting[1], ids(32, 48))
        simulation.buffer.raise_if_broken()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("part_rows", [4, 100])
@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("what", ["landing", "order"])
@in_virtual_loop
async def test_no_memory_to_land_in(rows, monkeypatch, device, what, call, part_rows):
    """For the first part, or while others are being read: the caller gets the error, and the next
    batch is admitted."""
    async with simulation_of(rows, part_rows) as simulation:
        memory: Any = simulation.table.memory
        if device == "simulated-cuda":
            memory.landing_rows_max = 4
        patch: tuple[Any, str] = (memory, "landing") if what == "landing" else (
            gnndrive.buffer.fetch_queue, "_in_file_order")  # fmt: skip
        short_of_memory(monkeypatch, *patch, range(call, call + 1))
        errors = 0
        for start in (0, 16, 32):
            try:
                lease = await simulation.buffer.lease({"x": ids(start, start + 16)})
            except MemoryError:
                errors += 1
            else:
                await use(simulation, lease, ids(start, start + 16))
        assert errors == (device != "host" or what == "landing")


@pytest.mark.parametrize(("call", "calls"), [(8, 1), (9, 4), (11, 1), (13, 4)])
@in_virtual_loop
async def test_no_memory_to_land_in_for_rows_that_wait_for_staging(rows, monkeypatch, call, calls):
    """These rows fail; the rows that wait behind them are fetched, and the next lease gets all."""
    scenario = Scenario(rows, slots=64, device="simulated-cuda", part_rows=100)
    async with closing(Simulation(scenario, seed=0)) as simulation:
        memory: Any = simulation.table.memory
        memory.landing_rows_max = 4
        short_of_memory(monkeypatch, memory, "landing", range(call, call + calls))
        lease = await simulation.buffer.lease({"x": ids(0, 64)})
        with pytest.raises(ReadError, match=r"ENOMEM.*free some memory"):
            await lease.ready()
        lease.release()
        await use(simulation, await simulation.buffer.lease({"x": ids(0, 64)}), ids(0, 64))


# ---- sweeps


@PARTS
@pytest.mark.parametrize("together", [2, 3])
@in_virtual_loop
async def test_batches_that_do_not_fit_together_are_admitted_one_by_one(rows, together, part_rows):
    async with simulation_of(rows, part_rows, slots=16 * together - 1) as simulation:
        wanted = [ids(16 * n, 16 * n + 16) for n in range(together)]
        tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
        granted = [ticket.granted.done() for ticket in tickets]
        assert granted == [True] * (together - 1) + [False]
        for one, ticket in zip(wanted, tickets, strict=True):
            await use(simulation, await simulation.buffer.granted(ticket), one)


@PARTS
@pytest.mark.parametrize(
    ("bad", "error"),
    [(ids(190, 210), IndexError), (ids(0, 40), ConfigError)],
    ids=["range", "size"],
)
@in_virtual_loop
async def test_a_refused_batch_does_not_fail_the_others(rows, bad, error, part_rows):
    async with simulation_of(rows, part_rows, slots=32) as simulation:
        wanted = [ids(0, 16), bad, ids(16, 32)]
        tickets = simulation.buffer.join([(None, {"x": one}) for one in wanted])
        for number, (one, ticket) in enumerate(zip(wanted, tickets, strict=True)):
            if number == 1:
                with pytest.raises(error):
                    await simulation.buffer.granted(ticket)
            else:
                await use(simulation, await simulation.buffer.granted(ticket), one)


@PARTS
@in_virtual_loop
async def test_the_missing_share(rows, part_rows):
    async with simulation_of(rows, part_rows, slots=24) as simulation:
        held = await simulation.buffer.lease({"x": ids(100, 112)})
        for wanted, share in ((ids(0, 16), 1.0), (ids(0, 16), 0.0), (ids(8, 24), 0.5)):
            (ticket,) = simulation.buffer.join([(None, {"x": wanted})])
            if not held.released:
                held.release()
            await use(simulation, await simulation.buffer.granted(ticket), wanted)
            assert simulation.buffer.missing_share == share


@PARTS
@pytest.mark.parametrize("gone", [[0], [1], [0, 1]])
@pytest.mark.parametrize("how", ["left", "cancelled", "cancelled at the release"])
@in_virtual_loop
async def test_batches_of_a_waiting_sweep_are_given_up(rows, gone, how, part_rows):
    """The others do not wait for their rows. A cancelled batch is still in the queue when the head
    of its sweep is tried again."""
    async with simulation_of(rows, part_rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 12)})
        wanted = [ids(20, 28), ids(28, 36)]
        tickets = buffer.join([(n, {"x": one}) for n, one in enumerate(wanted)])
        behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 56)}))
        await first.ready()
        assert (loads(simulation) > 12) is (part_rows == 2), "it has begun"
        for ticket in [tickets[number] for number in gone]:
            if how == "left":
                buffer.leave(ticket)
            elif how == "cancelled":
                waiting = asyncio.ensure_future(buffer.granted(ticket))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            else:
                ticket.granted.cancel()
        assert not behind.done()
        await use(simulation, first, ids(0, 12))
        if how == "cancelled at the release":
            for number in gone:
                buffer.leave(tickets[number])
        for number in {0, 1} - set(gone):
            await use(simulation, await buffer.granted(tickets[number]), wanted[number])
        await use(simulation, await behind, ids(40, 56))


@PARTS
@in_virtual_loop
async def test_when_a_ticket_leaves_the_next_is_tried_at_once(rows, part_rows):
    """Nothing else happens that would make the gate try again (rule 4)."""
    async with simulation_of(rows, part_rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 12)})
        (large,) = buffer.join([(None, {"x": ids(20, 36)})])
        (small,) = buffer.join([(None, {"x": ids(40, 44)})])
        await first.ready()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not buffer.loading
        assert buffer.in_parts is (part_rows == 2)
        assert not small.granted.done()
        buffer.leave(large)
        assert small.granted.done()
        await use(simulation, await buffer.granted(small), ids(40, 44))
        first.release()


# ---- in parts: the head of the queue takes slots as they become available


@in_virtual_loop
async def test_no_part_evicts_rows_that_another_part_needs(rows):
    """Rows 40 … 47 are the oldest on standby and the last of the needed rows in the file."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        await use(simulation, await buffer.lease({"x": ids(40, 48)}), ids(40, 48))
        first = await buffer.lease({"x": ids(0, 8)})
        wanted = np.concatenate([ids(10, 18), ids(40, 48)])
        (ticket,) = buffer.join([(None, {"x": wanted})])
        await use(simulation, first, ids(0, 8))
        await use(simulation, await buffer.granted(ticket), wanted)
        assert loads(simulation) == 24


@pytest.mark.parametrize("passed", [0, 1, 2, 3])
@pytest.mark.parametrize("gone", [None, 0, 1])
@in_virtual_loop
async def test_a_part_whose_fetch_raises(rows, passed, gone):
    """From then on the batches of its sweep are tried one by one, and all are admitted."""
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


@pytest.mark.parametrize(("passed", "cancelled"), [(0, False), (1, False), (2, False), (1, True)])
@in_virtual_loop
async def test_the_error_of_a_parts_fetch_reaches_its_batch(rows, passed, cancelled):
    """Unless it was cancelled: then it is still in the queue when the part is tried."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 14)})
        await first.ready()
        simulation.table.tier = Refusing(simulation.table.tier, call=passed)
        (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
        behind = asyncio.ensure_future(buffer.lease({"x": ids(40, 56)}))
        if cancelled:
            ticket.granted.cancel()
        await use(simulation, first, ids(0, 14))
        if cancelled:
            buffer.leave(ticket)
        else:
            with pytest.raises(MemoryError, match="no memory for the reads"):
                await buffer.granted(ticket)
        await use(simulation, await behind, ids(40, 56))


@in_virtual_loop
async def test_failures_are_told_when_no_row_is_loading(wide):
    """The batches of a group that come before a failed row are delivered, so their rows must be
    valid. A buffer that breaks meanwhile wakes the lease early."""
    async with simulation_of(wide, NOT_IN_PARTS) as simulation:
        simulation.engine.paused = True
        lease = await simulation.buffer.lease({"x": ids(0, 16, 2)})
        last = max(simulation.engine.inflight, key=lambda request: request.offset)
        simulation.engine.complete(last, -errno.EIO)
        for _ in range(50):
            await asyncio.sleep(0)
        simulation.buffer.fail(ValueError("the device is gone"))
        with pytest.raises(ValueError, match="is gone"):
            await lease.ready()
        assert lease.failures() == {}
        simulation.engine.paused = False
        await simulation.buffer.drain()
        ((place, error),) = lease.failures().values()
        assert (place, type(error)) == (7, ReadError)
        lease.release()


@in_virtual_loop
async def test_rows_that_fail_while_parts_are_to_come(rows):
    """In a buffer with no slot to spare, rows of both batches fail before the next part comes."""
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


@in_virtual_loop
async def test_a_buffer_that_breaks_meanwhile(rows, monkeypatch):
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


@in_virtual_loop
async def test_rows_are_read_ahead_as_far_as_misses_allow(wide):
    """Three for each row that was missed, in order, at most 50 at once; they count for no batch. A
    row that fails ends it until the next miss."""
    size = wide.row_bytes
    faults = Faults(eio_offsets=((163 * size, 163 * size + 1),))
    simulation = Simulation(Scenario(wide, slots=200, ahead=(3, 50), faults=faults), seed=0)
    buffer = simulation.buffer
    for wanted, hits, missed, free in (
        (ids(0, 2), 0, 2, 200 - 6),
        (ids(4, 5), 1, 2, 200 - 6),
        (ids(60, 80), 1, 22, 200 - 80),  # those before 66
        (ids(56, 80), 25, 22, 200 - 80),
        (ids(100, 160), 25, 82, 200 - 165),  # those before 166, one of which failed
        (ids(190, 191), 25, 83, 200 - 169),
    ):  # fmt: skip
        lease = await buffer.lease({"x": wanted})
        await lease.ready()
        lease.release()
        for _ in range(2 * TURNS):  # until nothing is being read
            await asyncio.sleep(0)
        assert (buffer.stats()["hits"], buffer.stats()["loads"]) == (hits, missed)
        assert buffer.unused()[0] == free
    with pytest.raises(ReadError):
        await lease_once(simulation, {"x": ids(163, 164)})
    await buffer.drain()
    await simulation.close()


# ---- two tables behind one gate


def two_tables(rows: TableFile, part_rows: int = 2) -> AbstractAsyncContextManager[FeatureBuffer]:
    simulation = Simulation(Scenario(rows, slots=SLOTS), seed=0)
    tables = {
        name: SlotTable(
            rows.row_count, SLOTS, rows.row_bytes, Host().allocate(SLOTS, rows.row_bytes),
            simulation.table.tier, LRU(),
        )
        for name in ("one", "two")
    }  # fmt: skip
    return buffer_of(simulation, tables, part_rows)


@pytest.mark.parametrize(("part_rows", "takes"), [(2, True), (100, False)])
@pytest.mark.parametrize("tight", ["one", "two"])
@in_virtual_loop
async def test_a_lease_of_both(rows, part_rows, takes, tight):
    """Without parts it takes no slots until both tables have enough, because two batches could
    wait for each other for ever; in parts it takes the slots that are available."""
    async with two_tables(rows, part_rows) as buffer:
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


@PARTS
@pytest.mark.parametrize(
    ("owner", "what", "call"),
    [(SlotTable, "admit", 1), (SlotHold, "split", 1), (_TableAdmission, "divide", 0),
     (_TableAdmission, "hold", 1)],
)  # fmt: skip
@in_virtual_loop
async def test_memory_that_is_short_for_a_table(rows, monkeypatch, part_rows, owner, what, call):
    """When it is admitted, whole or by parts, or when holds are made behind the last part: what
    both tables hold is released once, and the next batch is admitted."""
    async with two_tables(rows, part_rows) as buffer:
        first = await buffer.lease({"one": ids(0, 12), "two": ids(0, 2)})
        await first.ready()
        with monkeypatch.context() as patch:
            short_of_memory(patch, owner, what, range(call, call + 1))
            (ticket,) = buffer.join([(None, {"one": ids(4, 20), "two": ids(0, 9)})])
            first.release()
            refused = part_rows == 2 or owner is not _TableAdmission
            with pytest.raises(MemoryError) if refused else nullcontext():
                (await buffer.granted(ticket)).release()
        lease = await buffer.lease({"one": ids(0, SLOTS), "two": ids(0, SLOTS)})
        await lease.ready()
        lease.release()


def record_releases(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], int]]:
    """A list that gets, for each release, its slots and the rows fetched before it."""
    released: list[tuple[list[int], int]] = []
    release = SlotTable.release

    def recording(table: SlotTable, slots: Int32Array) -> None:
        released.append((slots.tolist(), loads(simulation)))
        release(table, slots)

    monkeypatch.setattr(SlotTable, "release", recording)
    return released


@in_virtual_loop
async def test_a_lease_releases_in_steps_if_a_part_waits_for_slots(rows, monkeypatch):
    """The disk may be idle until then: the next part is read before all slots are released."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 16)})
        (ticket,) = buffer.join([(None, {"x": ids(20, 30)})])
        await first.ready()
        released = record_releases(simulation, monkeypatch)
        first.release()
        assert [(len(slots), read) for slots, read in released] == [
            (4, 16), (4, 20), (4, 24), (4, 26),
        ]  # fmt: skip
        lease = await buffer.granted(ticket)
        await use(simulation, lease, ids(20, 30))
        assert [(len(slots), read) for slots, read in released[4:]] == [(10, 26)]  # no ticket waits


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("late", [False, True])
@in_virtual_loop
async def test_gathered_slots_are_released_meanwhile(rows, device, monkeypatch, late):
    """On the host only; a GPU gathers in one copy. No slot is released twice if the lease ends
    before the loop runs the callback."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 16)})
        (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
        await first.ready()
        alias = first.alias("x").tolist()
        released = record_releases(simulation, monkeypatch)
        first.gather("x", torch.uint8, (rows.row_bytes,))
        if not late:
            await asyncio.sleep(0)
        pieces = [(alias[14:], 16), (alias[12:14], 18), (alias[8:12], 20)]
        assert released == (pieces if device == "host" and not late else [])
        left = 8 if released else 16
        released.clear()
        await first.gathered()
        first.release()
        await asyncio.sleep(0)
        assert sorted(slot for slots, _ in released for slot in slots) == sorted(alias[:left])
        await use(simulation, await buffer.granted(ticket), ids(20, 36))


@in_virtual_loop
async def test_an_error_while_a_piece_is_released_breaks_the_buffer(rows, monkeypatch):
    """No caller awaits that release."""
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        lease = await buffer.lease({"x": ids(0, 16)})
        await lease.ready()
        broken: list[BaseException] = []
        with monkeypatch.context() as patched:
            short_of_memory(patched, buffer, "advance", range(9))
            patched.setattr(buffer, "fail", broken.append)
            lease.gather("x", torch.uint8, (rows.row_bytes,))
            await asyncio.sleep(0)
        assert [type(error) for error in broken] == [MemoryError] * 3
        await lease.gathered()
        lease.release()


@in_virtual_loop
async def test_pieces_are_not_released_in_a_retired_buffer(rows, monkeypatch):
    async with simulation_of(rows) as simulation:
        lease = await simulation.buffer.lease({"x": ids(0, 16)})
        await lease.ready()
        lease.gather("x", torch.uint8, (rows.row_bytes,))
        simulation.buffer.retired = True
        await asyncio.sleep(0)
        assert simulation.table.available == SLOTS - 16
        simulation.buffer.retired = False
        await lease.gathered()
        lease.release()


@pytest.mark.parametrize("step", [0, 1, 3])
@in_virtual_loop
async def test_a_release_step_that_fails_releases_all_slots(rows, monkeypatch, step):
    async with simulation_of(rows) as simulation:
        buffer = simulation.buffer
        first = await buffer.lease({"x": ids(0, 16)})
        (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
        await first.ready()
        with monkeypatch.context() as patched:
            short_of_memory(patched, buffer, "advance", range(step, step + 1))
            with pytest.raises(MemoryError):
                first.release()
        await use(simulation, await buffer.granted(ticket), ids(20, 36))


class Holding(InlineWorkers):
    """Holds gathers that have run until `go_on` is set."""

    calls = 0

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        made = await super().run(function, *arguments)
        if function.__name__ == "_gather_and_put":
            self.calls += 1
            await self.go_on.wait()
        return made


@pytest.mark.parametrize("ended", [False, True])
@in_virtual_loop
async def test_slots_are_released_and_the_batch_is_put_before_the_gather_returns(rows, ended):
    scenario = Scenario(rows, slots=SLOTS, batches=1, extra_max=0)
    async with closing(Simulation(scenario, seed=0)) as simulation:
        epoch, workers = simulation.epoch(), Holding()
        epoch.workers, workers.go_on = workers, asyncio.Event()
        running = asyncio.ensure_future(run_epoch(epoch))
        for _ in range(200):
            await asyncio.sleep(0)
        assert workers.calls == 1
        assert simulation.table.available == SLOTS
        assert not running.done()
        assert len(await simulation.consume(epoch, 1)) == 1
        assert simulation.counters.batches == 1
        if ended:
            running.cancel()
        workers.go_on.set()
        await running
        with pytest.raises(ClosedError) if ended else nullcontext():
            assert await simulation.consume(epoch) == []


@in_virtual_loop
async def test_a_batch_of_an_abandoned_epoch_is_not_counted(rows):
    async with closing(Simulation(Scenario(rows, batches=1), seed=0)) as simulation:
        epoch, make = simulation.epoch(), simulation.make

        def left(item: Extracted, gathered: Callable[[], object]) -> Any:
            epoch.output.abandon()
            return make(item, gathered)

        simulation.make = left  # type: ignore[method-assign]
        await run_epoch(epoch)
        assert (simulation.counters.batches, simulation.counters.bytes_wanted) == (0, 0)
