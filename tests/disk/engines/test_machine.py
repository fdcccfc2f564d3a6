"""The state machine of native/reads.c, one completion at a time, without I/O."""

import asyncio
import errno

import numpy as np
import pytest

from gnndrive.common.ffi import ffi, lib
from gnndrive.disk.read_job import ReadJob
from gnndrive.testing.loop import run

from .conftest import slot_memory
from .test_planner import plan

DATA = np.random.default_rng(0).integers(0, 256, 1 << 17, np.uint8)
AGAIN, WHOLE, BROKEN = lib.GD_AGAIN, lib.GD_WHOLE, lib.GD_BROKEN


class Machine:
    """Planned reads of rows of `DATA`, row i into slot i, and the staging of one extent."""

    def __init__(self, rows, row_bytes, direct=False, write=False):
        self.row_bytes = row_bytes
        self.slots = slot_memory(max(rows) + 1, row_bytes)
        self.block = ffi.new("uint8_t[]", 65536)
        self.reads, error = plan(
            rows, rows, ffi.from_buffer("uint8_t[]", self.slots), row_bytes=row_bytes,
            row_count=DATA.size // row_bytes, slot_stride=row_bytes, land_direct=direct or write,
            write=write, extent_bytes_max=row_bytes if write else 65536,
        )  # fmt: skip
        assert error == 0

    def request(self, extent=0):
        """Return (offset, length, address) of the extent's present request."""
        out = ffi.new("gd_request *")
        lib.gd_reads_request(self.reads, extent, self.block, out)
        return out.offset, out.length, out.memory

    def complete(self, res, extent=0):
        """Complete the present request with `res`; its bytes come from DATA."""
        offset, length, into = self.request(extent)
        if res > 0:
            assert res <= length
            ffi.memmove(into, DATA[offset : offset + res].tobytes(), res)
        return lib.gd_reads_complete(self.reads, extent, res, self.block)

    def landed(self):
        log = self.log()
        return list(ffi.unpack(log.slots, log.landed)) if log.landed else []

    def failures(self):
        log = self.log()
        found = [log.failures[i] for i in range(log.failed)]
        return [(failure.slot, failure.error, failure.offset) for failure in found]

    def log(self):
        out = ffi.new("gd_log *")
        lib.gd_reads_log(self.reads, out)
        progress = lib.gd_reads_progress(self.reads)
        assert (progress.landed, progress.failed) == (out.landed, out.failed)
        return out

    def right(self):
        """Return whether every landed slot holds its row."""
        size = self.row_bytes
        return all(
            (self.slots[slot] == DATA[slot * size : (slot + 1) * size]).all()
            for slot in self.landed()
        )


def test_a_short_read_requests_the_rest_from_a_sector_on():
    machine = Machine([0], 1800)
    lib.gd_reads_take(machine.reads)
    assert machine.complete(700) == AGAIN
    assert machine.request()[:2] == (512, 1536)
    assert machine.complete(1024) == AGAIN
    assert machine.request()[:2] == (1536, 512)
    assert machine.landed() == []
    assert machine.complete(264) == WHOLE
    assert machine.right()
    counted = ffi.new("gd_reads_stats *")
    lib.gd_reads_get_stats(machine.reads, counted)
    assert (counted.requests, counted.bytes, counted.retries) == (3, 1988, 2)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EINTR, errno.EBUSY])
def test_transient_errors_are_retried_a_limited_number_of_times(code):
    machine = Machine([0, 1], 600)
    lib.gd_reads_take(machine.reads)
    assert machine.complete(-code) == AGAIN
    assert machine.complete(512) == AGAIN  # progress: the count starts anew
    tries = 1
    while machine.complete(-code) == AGAIN:
        tries += 1
    assert tries == 1000
    expected = errno.EBUSY if code == errno.EAGAIN else code
    assert machine.failures() == [(0, expected, 0), (1, expected, 0)]
    assert machine.landed() == []


def test_reads_that_never_bring_a_sector_fail_in_the_end():
    machine = Machine([0], 600)
    lib.gd_reads_take(machine.reads)
    results = {machine.complete(100) for _ in range(999)}
    assert results == {AGAIN}
    assert machine.complete(100) == BROKEN
    assert machine.failures() == [(0, errno.ENODATA, 0)]


def test_a_lone_row_of_whole_sectors_is_read_into_its_slot():
    machine = Machine([0, 2, 3], 1024, direct=True)
    assert lib.gd_reads_extents(machine.reads) == 2
    assert lib.gd_reads_block_bytes(machine.reads) == 2048  # of the pair, which is staged
    lib.gd_reads_take(machine.reads)
    assert machine.request()[2] == ffi.from_buffer("uint8_t[]", machine.slots)
    assert machine.complete(512) == AGAIN
    assert machine.request()[2] == ffi.from_buffer("uint8_t[]", machine.slots) + 512
    assert machine.complete(512) == WHOLE
    assert lib.gd_reads_take(machine.reads) == 1
    assert machine.request(1)[2] == machine.block
    assert machine.complete(2048, 1) == WHOLE
    assert machine.right()
    lib.gd_reads_let_go(machine.reads)
    machine = Machine([1], 768, direct=True)  # off its sector
    lib.gd_reads_take(machine.reads)
    assert machine.request()[2] == machine.block


def test_writes_go_row_by_row_in_the_order_of_the_file():
    """From the slots, and the rest of a short one from a sector on."""
    machine = Machine([3, 1, 0], 1024, write=True)
    slots = ffi.from_buffer("uint8_t[]", machine.slots)
    assert lib.gd_reads_block_bytes(machine.reads) == 0
    assert [lib.gd_reads_take(machine.reads) for _ in range(4)] == [0, 1, 2, -1]
    wanted = [(row * 1024, 1024, slots + row * 1024) for row in (0, 1, 3)]
    assert [machine.request(extent) for extent in range(3)] == wanted
    assert lib.gd_reads_complete(machine.reads, 2, 700, ffi.NULL) == AGAIN
    assert machine.request(2) == (3 * 1024 + 512, 512, slots + 3 * 1024 + 512)
    assert lib.gd_reads_complete(machine.reads, 2, 512, ffi.NULL) == WHOLE
    assert lib.gd_reads_complete(machine.reads, 0, 1024, ffi.NULL) == WHOLE
    assert machine.landed() == [3, 0]


def test_writes_that_make_no_progress_end_as_on_a_full_disk():
    machine = Machine([0, 1], 512, write=True)
    for _ in range(2):
        lib.gd_reads_take(machine.reads)
    assert lib.gd_reads_complete(machine.reads, 0, 0, ffi.NULL) == BROKEN
    results = {lib.gd_reads_complete(machine.reads, 1, 100, ffi.NULL) for _ in range(999)}
    assert results == {AGAIN}
    assert lib.gd_reads_complete(machine.reads, 1, 100, ffi.NULL) == BROKEN
    assert machine.failures() == [(0, errno.ENOSPC, 0), (1, errno.ENOSPC, 512)]


def test_cancelling_fails_extents_not_taken_and_retries():
    machine = Machine([0, 10, 20, 30], 600)
    assert lib.gd_reads_take(machine.reads) == 0
    assert lib.gd_reads_take(machine.reads) == 1
    lib.gd_reads_cancel(machine.reads)
    lib.gd_reads_cancel(machine.reads)
    assert lib.gd_reads_take(machine.reads) == -1
    assert [slot for slot, _, _ in machine.failures()] == [20, 30]
    assert machine.complete(1024, 0) == WHOLE
    assert machine.complete(-errno.EAGAIN, 1) == BROKEN
    assert machine.landed() == [0]
    assert {code for _, code, _ in machine.failures()} == {errno.ECANCELED}
    assert [slot for slot, _, _ in machine.failures()] == [20, 30, 10]
    lib.gd_reads_let_go(machine.reads)
    assert machine.log().finished


def test_cancelling_while_rows_are_read_one_by_one():
    machine = Machine([0, 1, 2], 512)
    lib.gd_reads_take(machine.reads)
    assert machine.complete(-errno.EIO) == AGAIN
    assert machine.complete(512) == AGAIN
    lib.gd_reads_cancel(machine.reads)
    assert machine.complete(512) == BROKEN
    assert machine.landed() == [0, 1]
    assert machine.failures() == [(2, errno.ECANCELED, 1024)]


# ---- the job that a consumer iterates over


def made_of(machine: Machine) -> ReadJob:
    """Return a job over the machine's reads; the job frees them."""
    ffi.gc(machine.reads, None)
    return ReadJob(machine.reads, -1, "rows")


def test_other_tasks_run_although_each_check_finds_new_rows() -> None:
    machine = Machine([0, 4, 8, 12, 16], 512)
    job = made_of(machine)
    got: list[int] = []

    def land() -> None:
        """Complete the next extent, or release the job."""
        extent = lib.gd_reads_take(machine.reads)
        if extent < 0:
            lib.gd_reads_let_go(machine.reads)
        else:
            assert machine.complete(512, extent) == lib.GD_WHOLE

    async def consume() -> None:
        async for stretch in job:
            got.extend(stretch.slots.tolist())
            land()

    async def main() -> None:
        land()
        consuming, seen = asyncio.ensure_future(consume()), set()
        while not consuming.done():
            seen.add(len(got))
            await asyncio.sleep(0)
        await consuming
        assert got == [0, 4, 8, 12, 16]
        assert seen == set(range(5)), "other tasks run between any two stretches"

    run(main())


def test_a_job_that_the_engine_forgets_has_woken_its_consumer() -> None:
    """Also if the ring releases the job between any two reads of its progress."""
    for reads in range(1, 4):
        job = made_of(Machine([0], 512))
        values = iter([0] * reads + [1] * 4)

        class Progress:
            landed = failed = 0
            let_go = property(lambda _, values=values: next(values))

        job._progress = Progress()
        while not job.wake():
            pass
        assert job._progress_event.is_set()
