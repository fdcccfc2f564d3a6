"""A read job: what its consumer gets, when it wakes, and that other tasks run meanwhile."""

from __future__ import annotations

import asyncio

from gnndrive.common.ffi import ffi, lib
from gnndrive.disk.read_job import ReadJob
from gnndrive.testing.loop import run
from tests.disk.engines.test_machine import Machine


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
