"""The protocol with one rule taken out: each `drop_…` patches the code that keeps the rule.

`test_rules.py` runs a scenario with each of them. `monkeypatch.setattr` raises if a patched name no
longer exists, and `test_rules.py` refuses an error that comes from a patch that does not fit.
"""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.admission_queue import Ticket
from gnndrive.buffer.devices._staged import StagedMemory
from gnndrive.buffer.devices.simulated_cuda import COMPUTE, SimulatedDriver
from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.buffer.fetch_queue import FetchQueue
from gnndrive.buffer.held_windows import HeldWindows, _Held
from gnndrive.buffer.place_table import PlaceHold, PlaceTable, _Place
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Int32Array, Landing, Stretch
from gnndrive.disk.tiers import _victims
from gnndrive.disk.tiers._victims import Victims
from gnndrive.disk.tiers.rolled import Rolled, _Copies, _Pass
from gnndrive.exchange.share import Asker
from gnndrive.host.group import Group
from gnndrive.host.messages import Kind, Message
from gnndrive.host.turns import Turns
from gnndrive.host.window_graphs import WindowGraphs
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.pipeline import extract
from gnndrive.pipeline import run as epoch_run
from gnndrive.pipeline.channel import Channel, ChannelEnded, change_of
from gnndrive.pipeline.epoch import Epoch, Extracted, Failed, Sampled

Patch = pytest.MonkeyPatch


def drop_order_of_tickets(patch: Patch) -> None:
    """1: samples go to extractors in any order, while the user gets batches in order."""
    feeding = epoch_run.extract_stage

    async def unordered(epoch: Any) -> None:
        epoch.extracting.ordered = False
        await feeding(epoch)

    patch.setattr(epoch_run, "extract_stage", unordered)


def drop_ticket_in_the_same_step(patch: Patch) -> None:
    """1: extractors pause between taking a sample and joining the admission queue."""

    async def slowly(epoch: Epoch) -> None:
        while True:
            try:
                await epoch.training.reserve()
                item = await epoch.extracting.take()
            except ChannelEnded:
                epoch.training.end(epoch.extracting.taken)
                return
            for _ in range(item.index * 5 % 7 if isinstance(item, Sampled) else 0):
                await asyncio.sleep(0)
            for waiting in extract._join_admission_queue(epoch, [item]):
                await extract._extract_one(epoch, *waiting)

    patch.setattr(epoch_run, "extract_stage", slowly)


def drop_windows(patch: Patch) -> None:
    """2: places are taken when work is finished, so a full queue refuses the oldest batch."""

    def reserve_now(channel: Channel[Any], count: int) -> None:
        channel.reserved += count

    async def reserve(channel: Channel[Any], count: int = 1) -> None:
        if channel._total is not None:
            raise ChannelEnded
        reserve_now(channel, count)

    async def room(channel: Channel[Any]) -> None:
        while channel.bound is not None and len(channel) >= channel.bound:
            await change_of(channel)

    async def extract_late(epoch: Epoch, item: Any, ticket: Any) -> None:
        lease = await epoch.buffer.granted(ticket)
        await lease.ready()
        await room(epoch.training)
        extracted = Extracted(item.index, item.batches, item.rows, lease=lease)
        epoch.training.put(item.index, extracted)

    async def alone(epoch: Epoch) -> int:
        await epoch.extracting.arrival()
        return 1

    patch.setattr(Channel, "reserve", reserve)
    patch.setattr(Channel, "reserve_now", reserve_now)
    patch.setattr(extract, "_next_sweep_size", alone)
    patch.setattr(extract, "_extract_one", extract_late)


def drop_all_or_none(patch: Patch) -> None:
    """3: a batch takes its first half and waits for room for the second."""
    join, granted = FeatureBuffer.join, FeatureBuffer.granted
    rest: dict[Any, Any] = {}

    def halves(buffer: FeatureBuffer, batches: Any) -> Any:
        tickets = []
        for _, wanted in batches:
            ids = wanted["x"]
            (ticket,) = join(buffer, [(None, {"x": ids[: len(ids) // 2]})])
            rest[ticket] = {"x": ids[len(ids) // 2 :]}
            tickets.append(ticket)
        return tickets

    async def both(buffer: FeatureBuffer, ticket: Any) -> Any:
        first = await granted(buffer, ticket)
        second = await granted(buffer, join(buffer, [(None, rest[ticket])])[0])
        hold, more = first._holds["x"], second._holds["x"]
        hold.alias = np.concatenate([hold.alias, more.alias])
        hold.pending = np.concatenate([hold.pending, more.pending])
        return first

    patch.setattr(FeatureBuffer, "join", halves)
    patch.setattr(FeatureBuffer, "granted", both)


def drop_first_come_first_served(patch: Patch) -> None:
    """3: any waiting batch that fits is admitted, whatever its place in the queue."""

    def any_that_fits(buffer: FeatureBuffer) -> None:
        buffer._part_rows = 1 << 30  # nothing in parts: only the head is admitted like that
        for ticket in list(buffer._queue._tickets):
            ticket.sweep.try_anew(1)
            if ticket.granted.done():
                buffer._queue.remove(ticket)
            elif leases := buffer._admit([ticket]):
                buffer._queue.remove(ticket)
                ticket.granted.set_result(leases[0])

    patch.setattr(FeatureBuffer, "advance", any_that_fits)


def drop_retry_on_completion(patch: Patch) -> None:
    """4: the head of the queue is tried at releases only, not when a late read frees a slot."""

    patch.setattr(
        FeatureBuffer, "_rows_settled",
        lambda buffer: [lease.wake_if_settled() for lease in list(buffer.watchers)],
    )  # fmt: skip


def drop_reads_belong_to_the_buffer(patch: Patch) -> None:
    """5: a lease that ends early takes its reads with it."""
    release, load, grant = Lease.release, FeatureBuffer._begin_fetch, FeatureBuffer._make_leases
    begun: list[Any] = []  # for the sweep at the head of the queue
    fetches: dict[Lease, list[Any]] = {}

    def loading(buffer: FeatureBuffer, hold: SlotHold) -> None:
        before = set(buffer._fetches._fetches.values())
        load(buffer, hold)
        now = buffer._fetches._fetches.values()
        begun.extend(fetch for fetch in now if fetch not in before)

    def granting(*given: Any) -> list[Lease]:
        leases = grant(*given)
        fetches.update((lease, list(begun)) for lease in leases)
        begun.clear()
        return leases

    def releasing(lease: Lease) -> None:
        for fetch in fetches.pop(lease, ()):
            fetch.cancel()
        release(lease)

    patch.setattr(FeatureBuffer, "_begin_fetch", loading)
    patch.setattr(FeatureBuffer, "_make_leases", granting)
    patch.setattr(Lease, "release", releasing)


def drop_orphans_wait(patch: Patch) -> None:
    """6: a loading slot that no lease holds any more is free at once."""
    release, commit = SlotTable.release, SlotTable.commit

    def freeing(table: SlotTable, alias: Any) -> None:
        release(table, alias)
        orphans = [
            slot
            for slot in set(alias.tolist())
            if lib.gd_buffer_state_of(table.handle, slot) == lib.GD_LOADING
            and lib.gd_buffer_references(table.handle, slot) == 0
        ]
        slots = np.array(orphans, np.int32)
        lib.gd_buffer_fail(table.handle, pointer(slots), len(slots))

    def tolerant(table: SlotTable, stretch: Stretch) -> None:
        def loading(slots: Any) -> Any:
            states = [lib.gd_buffer_state_of(table.handle, slot) for slot in slots]
            return np.array(states, np.int32) == lib.GD_LOADING

        failures = stretch.failures[loading(stretch.failures["slot"])]
        commit(table, Stretch(stretch.slots[loading(stretch.slots)], failures))

    patch.setattr(SlotTable, "release", freeing)
    patch.setattr(SlotTable, "commit", tolerant)


def drop_valid_after_commit(patch: Patch) -> None:
    """7: a row is valid as soon as its read was submitted."""
    load = FeatureBuffer._begin_fetch

    def hasty(buffer: FeatureBuffer, hold: SlotHold) -> None:
        slots = hold.loads[1].copy() if hold.loads else np.empty(0, np.int32)
        load(buffer, hold)
        lib.gd_buffer_commit(hold.table.handle, pointer(slots), len(slots))

    patch.setattr(FeatureBuffer, "_begin_fetch", hasty)
    patch.setattr(SlotTable, "commit", lambda table, stretch: None)


def drop_failures_reach_waiters(patch: Patch) -> None:
    """8: a failed completion is ignored."""
    commit = SlotTable.commit
    patch.setattr(SlotTable, "commit", lambda table, given: commit(table, Stretch(given.slots)))


def drop_failed_rows_stay_invalid(patch: Patch) -> None:
    """8: a failed row is marked valid all the same."""
    _commit_failures(patch, SlotTable)


def _commit_failures(patch: Patch, kind: Any) -> None:
    commit = kind.commit

    def careless(table: Any, stretch: Stretch) -> None:
        commit(table, Stretch(np.concatenate([stretch.slots, stretch.failures["slot"]])))

    patch.setattr(kind, "commit", careless)


def drop_release_behind_the_gather(patch: Patch) -> None:
    """9: a lease ends when its rows are there, before they are gathered."""
    ready, release = Lease.ready, Lease.release

    async def ready_and_gone(lease: Lease) -> None:
        await ready(lease)
        release(lease)

    patch.setattr(Lease, "ready", ready_and_gone)
    patch.setattr(Lease, "release", lambda lease: None if lease.released else release(lease))


def drop_cancelled_grants_come_back(patch: Patch) -> None:
    """10: an await that is cancelled after its grant does not release the lease."""

    async def forgetful(buffer: FeatureBuffer, ticket: Any) -> Lease:
        lease: Lease = await ticket.granted
        return lease

    patch.setattr(FeatureBuffer, "granted", forgetful)


def drop_staging_after_slots(patch: Patch) -> None:
    """11: a batch takes a portion of staging and keeps it while it waits for slots."""
    join, start_waiting = FeatureBuffer.join, FetchQueue._start_waiting
    waiting: list[tuple[Ticket, SlotTable]] = []

    def joining(buffer: FeatureBuffer, batches: Any) -> list[Ticket]:
        tickets = join(buffer, batches)
        waiting.extend((each, buffer.tables["x"]) for each in tickets if not each.granted.done())
        return tickets

    def waiting_batches_first(queue: FetchQueue) -> None:
        while waiting:
            ticket, table = waiting[0]
            landing = table.memory.landing(np.empty(0, np.int32))
            if landing is None:
                return
            del waiting[0]
            ticket.granted.add_done_callback(lambda _, taken=landing: taken.leave())
        start_waiting(queue)

    patch.setattr(FeatureBuffer, "join", joining)
    patch.setattr(FetchQueue, "_start_waiting", waiting_batches_first)


def drop_a_portion_for_each_part(patch: Patch) -> None:
    """11: a fetch takes its portions of staging one by one and starts when it has all of them."""

    # Of each hold: the table, its parts, and the portions that they have so far.
    collecting: dict[FetchQueue, list[tuple[SlotTable, list[Any], list[Landing]]]] = {}

    def take_one(table: SlotTable, parts: list[Any], landings: list[Landing]) -> bool:
        landing = table.memory.landing(parts[len(landings)][1])
        landings.extend([] if landing is None else [landing])
        return landing is not None

    def begin(queue: FetchQueue, hold: SlotHold) -> None:
        assert hold.loads is not None
        rows, slots = hold.loads
        most = hold.table.memory.landing_rows_max or max(len(rows), 1)
        cuts = [slice(start, start + most) for start in range(0, len(rows), most)]
        fetch = hold.table, [(rows[cut], slots[cut]) for cut in cuts], list[Landing]()
        hold.loads = None
        take_one(*fetch)
        collecting.setdefault(queue, []).append(fetch)
        asyncio.get_running_loop().call_soon(start_complete, queue)

    def start_complete(queue: FetchQueue) -> None:
        fetches, collecting[queue] = collecting.get(queue, []), []
        for table, parts, landings in fetches:
            while len(landings) < len(parts) and take_one(table, parts, landings):
                pass
            if len(landings) < len(parts):
                collecting[queue].append((table, parts, landings))
                continue
            for landing, part in zip(landings, parts, strict=True):
                queue._start_fetch(table, landing, part)

    patch.setattr(FetchQueue, "begin", begin)
    patch.setattr(FetchQueue, "_start_waiting", start_complete)


def drop_buffer_of_its_own(patch: Patch) -> None:
    """12: the buffer pool lends the first iterator's buffer to a second live iterator too."""
    take = BufferPool.take

    def shared(pool: BufferPool) -> FeatureBuffer:
        if not pool._lent:
            return take(pool)
        pool._lent.append(pool._lent[0])
        return pool._lent[0]

    patch.setattr(BufferPool, "take", shared)


def drop_drain_before_free(patch: Patch) -> None:
    """13: memory is freed without waiting for the reads."""
    patch.setattr(FeatureBuffer, "drain", no_wait)


def drop_errors_in_turn(patch: Patch) -> None:
    """14: an error reaches the user as soon as it is known."""
    put = Channel.put

    def put_first(channel: Channel[Any], index: int, item: Any) -> None:
        first = channel.taken if isinstance(item, Failed) else index
        if first != index and first in channel._items:
            put(channel, index, channel._items.pop(first))
        put(channel, first, item)

    patch.setattr(Channel, "put", put_first)


def drop_batches_before_a_failure(patch: Patch) -> None:
    """14: the error of a batch takes those of its group with it that come before."""
    patch.setattr(extract, "_before_failure", lambda item, lease: ((), None))


def drop_the_end_at_a_failure(patch: Patch) -> None:
    """14: a group with a row that could not be read is delivered whole."""
    patch.setattr(extract, "_before_failure", lambda item, lease: (item.batches, None))


def drop_turns_of_ranks(patch: Patch) -> None:
    """15: batches of several ranks are admitted in the order in which they join."""
    join = Turns.join
    arrived: dict[Turns[Any], list[Any]] = {}

    def joining(turns: Turns[Any], rank: int, epoch: int, step: int, item: Any) -> None:
        join(turns, rank, epoch, step, item)
        arrived.setdefault(turns, []).append(item)

    def peek(turns: Turns[Any], most: int) -> list[Any]:
        waiting = {id(item) for each in turns._waiting.values() for _, item in each}
        return [item for item in arrived.get(turns, ()) if id(item) in waiting][:most]

    patch.setattr(Turns, "join", joining)
    patch.setattr(Turns, "peek", peek)


def drop_release_of_copied_rows(patch: Patch) -> None:
    """21: an owner's slots are held until the rank that asked has the rows of all owners; and, what
    would be enough by itself, 15."""
    drop_turns_of_ranks(patch)
    handle, copied = Group.handle, dict[tuple[Any, int, int], Any]()

    def held(group: Group, member: Any, message: Message) -> None:
        if message.kind is not Kind.RELEASE:
            handle(group, member, message)
        else:
            copied[member, message.epoch, message.step] = group

    def receive(asker: Asker, message: Message, *rows: Any) -> None:
        key = asker._member, message.epoch, message.step
        if message.kind is Kind.RELEASE and key in copied:
            handle(copied.pop(key), asker._member, message)
        received(asker, message, *rows)

    received = Asker.receive
    patch.setattr(Group, "handle", held)
    patch.setattr(Asker, "receive", receive)


# ---- places for whole batches


def drop_places_wait_for_reads(patch: Patch) -> None:
    """6: a place is free as soon as its batch was released."""
    patch.setattr(_Place, "free", property(lambda place: not place.entries))


def drop_batches_wait_for_their_rows(patch: Patch) -> None:
    """7: a batch is ready as soon as its reads have begun."""
    patch.setattr(PlaceHold, "settled", lambda hold: True)


def drop_batches_wait_for_residents(patch: Patch) -> None:
    """7: a batch is ready although residents are still being read."""
    patch.setattr(PlaceTable, "residents_settled", True)


def drop_failures_reach_the_batch(patch: Patch) -> None:
    """8: a failed row counts as read."""
    _commit_failures(patch, PlaceTable)


# ---- waits for copies on a device


async def no_wait(*events: Any) -> None:
    """Goes on before the event has fired."""


def drop_commit_behind_the_scatter(patch: Patch) -> None:
    """A row is valid, and its staging free, as soon as its scatter was begun."""
    commit = StagedMemory.commit

    async def hasty(memory: StagedMemory, landing: Landing, stretch: Stretch) -> Stretch:
        driver: Any = memory._driver
        driver.wait = no_wait
        try:
            return await commit(memory, landing, stretch)
        finally:
            del driver.wait

    patch.setattr(StagedMemory, "commit", hasty)


def drop_staging_behind_the_scatter(patch: Patch) -> None:
    """Rows are valid when they should be, but their staging is free as soon as they landed."""
    take, commit = StagedMemory.landing, StagedMemory.commit

    def kept(memory: StagedMemory, slots: Any) -> Landing | None:
        landing = take(memory, slots)
        return None if landing is None else replace(landing, leave=lambda: None)

    async def early(memory: StagedMemory, landing: Landing, stretch: Stretch) -> Stretch:
        driver: Any = memory._driver
        wait, portion = type(driver).wait, landing.owner

        async def leaving(event: Any) -> None:
            if portion.moved == len(portion.slots):
                memory._free.append(portion)
            del driver.wait
            await wait(driver, event)

        driver.wait = leaving
        return await commit(memory, landing, stretch)

    patch.setattr(StagedMemory, "landing", kept)
    patch.setattr(StagedMemory, "commit", early)


def drop_release_behind_the_gathers_copy(patch: Patch) -> None:
    """A lease is released as soon as its gather was begun."""
    patch.setattr(Lease, "gathered", no_wait)


def drop_pieces_behind_their_copies(patch: Patch) -> None:
    """A piece of pinned memory is filled again while it is being copied to the device."""
    patch.setattr(SimulatedDriver, "finish", lambda driver, event: None)


def drop_cleanup_behind_the_gathers_copy(patch: Patch) -> None:
    """The same when an epoch ends early."""
    release_and_drain = epoch_run._release_and_drain

    async def at_once(epoch: Epoch) -> None:
        with patch.context() as meanwhile:
            drop_release_behind_the_gathers_copy(meanwhile)
            await release_and_drain(epoch)

    patch.setattr(epoch_run, "_release_and_drain", at_once)


# ---- waits of the victim buffer


def drop_copy_out_before_the_scatter(patch: Patch) -> None:
    """Rows are copied out on another stream than the one that scatters others over them."""
    begin, begin_copy_out = SimulatedDriver._begin, SimulatedDriver.copy_out

    def copy_out(driver: SimulatedDriver, slots: Any, into: Any, moves: Int32Array) -> Any:
        with patch.context() as meanwhile:
            meanwhile.setattr(
                SimulatedDriver, "_begin", lambda self, stream, work: begin(self, COMPUTE, work)
            )
            return begin_copy_out(driver, slots, into, moves)

    patch.setattr(SimulatedDriver, "copy_out", copy_out)


def drop_copy_back_behind_the_copy_out(patch: Patch) -> None:
    """A fetch copies a row back although its copy-out has not ended. A device that reads it itself
    does so in the order of its stream."""
    copy_back = Victims._copy_back

    async def at_once(tier: Victims, before: Any, kept: Any, *places: Any) -> None:
        assert tier._memory is not None
        if tier._memory.read_in_place:
            await copy_back(tier, before, kept, *places)
            return
        await tier._begin_copy_back(kept, *places)
        if before:
            await asyncio.wait(before)  # the table needs it
        tier._drop(kept)

    patch.setattr(Victims, "_copy_back", at_once)


def drop_valid_behind_the_copy_out(patch: Patch) -> None:
    """A place counts as arrived as soon as its copy-out was begun."""
    copy_out = Victims._copy_out

    async def hasty(tier: Victims, ended: Any, places: Int32Array) -> None:
        await copy_out(tier, no_wait, places)

    patch.setattr(Victims, "_copy_out", hasty)


def slow_copies_back(patch: Patch) -> None:
    """A thread that copies back some turns of the loop later."""
    begin = _victims.begin_copy

    def later(*given: Any) -> asyncio.Future[None]:
        async def copied() -> None:
            for _ in range(12):
                await asyncio.sleep(0)
            begin(*given)

        return asyncio.ensure_future(copied())

    patch.setattr(_victims, "begin_copy", later)


def drop_places_behind_the_copy_back(patch: Patch) -> None:
    """A place may be taken as soon as its row was found, some turns of the loop before the row is
    copied back."""
    drop = Victims._drop

    async def copied(tier: Victims, before: Any, kept: Any, *places: Any) -> None:
        if before:
            await asyncio.wait(before)
        drop(tier, kept)
        for _ in range(12):
            await asyncio.sleep(0)
        assert tier._memory is not None
        if not tier._memory.read_in_place:
            await tier._begin_copy_back(kept, *places)

    patch.setattr(Victims, "_drop", lambda tier, kept: None)
    patch.setattr(Victims, "_copy_back", copied)


# ---- rows that are copied ahead


def drop_reading_behind_the_writes(patch: Patch) -> None:
    """Batches may read their copies as soon as the last write of the pass was begun."""
    written = _Pass._written

    async def begun(copying: _Pass, spare: int) -> None:
        if spare < len(copying._memory):
            await written(copying, spare)

    patch.setattr(_Pass, "_written", begun)


def drop_blocks_behind_the_release(patch: Patch) -> None:
    """A batch's blocks are used again as soon as it is in the extracting queue."""
    expect = Rolled.expect

    def hasty(tier: Rolled, index: int, number: int) -> None:
        expect(tier, index, number)
        if (copies := tier._copies.pop(number, None)) is not None:
            copies.uses = -1  # so that they are not given once more
            tier.give_blocks(copies.blocks.tolist())

    patch.setattr(Rolled, "expect", hasty)


def drop_blocks_behind_the_fetches(patch: Patch) -> None:
    """A batch's blocks are used again at its release, while another batch's fetch reads them."""

    def hasty(tier: Rolled, copies: _Copies) -> None:
        if not copies.uses and len(copies.blocks):
            tier.give_blocks(copies.blocks.tolist())
            copies.blocks = copies.blocks[:0]

    patch.setattr(Rolled, "_give_unused", hasty)


def drop_buffers_behind_the_write(patch: Patch) -> None:
    """The buffer of a block is filled again while the kernel writes from it."""
    write, written = _Pass._write, _Pass._written

    async def hasty(copying: _Pass, full: Any) -> None:
        await write(copying, full)
        copying._spare += full["buffer"].tolist()

    async def ended(copying: _Pass, spare: int) -> None:
        await written(copying, spare)
        if spare == len(copying._memory) and copying._writes:
            await asyncio.wait(copying._writes)

    async def unnoticed(copying: _Pass, job: Any) -> None:
        async for _ in job:
            pass

    patch.setattr(_Pass, "_write", hasty)
    patch.setattr(_Pass, "_written", ended)
    patch.setattr(_Pass, "_end_write", unnoticed)


# ---- windows


def drop_giving_up_a_chunk(patch: Patch) -> None:
    """16: a window waits for the slots of a chunk, in front of batches that join later."""
    lease = HeldWindows._lease

    async def waiting(windows: HeldWindows, held: _Held) -> bool:
        while held.missing:
            rows = held.missing.popleft()
            leased = await windows._buffer.lease({windows._table: np.arange(rows.start, rows.stop)})
            held.leases.append((rows, leased))
        return await lease(windows, held)

    patch.setattr(HeldWindows, "_lease", waiting)


def drop_giving_back_what_is_incomplete(patch: Patch) -> None:
    """17: an oldest window that lacks slots keeps the rows that it holds."""
    patch.setattr(_Held, "give_back", lambda held: None)


def drop_giving_back_for_an_older_window(patch: Patch) -> None:
    """17: windows keep their rows when a rank that is late opens an older one."""

    async def lease_all(windows: HeldWindows) -> None:
        for held in list(windows._live.values()):
            if not held.ended and not await windows._lease(held):
                if held is windows._oldest:
                    held.give_back()
                return

    patch.setattr(HeldWindows, "_lease_all", lease_all)


def drop_waiting_for_the_older_window(patch: Patch) -> None:
    """18: the batches of a window that lacks rows are sampled beside those of the older one."""
    patch.setattr(_Held, "lacks_rows", False)


def drop_graphs_of_its_own(patch: Patch) -> None:
    """22: a window's graph waits for a place although younger windows have all of them."""
    patch.setattr(WindowGraphs, "_all_wait_for", lambda graphs, key: False)
