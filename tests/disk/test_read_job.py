"""A read job: what its consumer gets, and when."""

from __future__ import annotations

import asyncio

from gnndrive.common.ffi import ffi, lib
from gnndrive.disk.read_job import ReadJob
from gnndrive.testing.loop import run
from tests.disk.engines.test_machine import Machine


def made_of(machine: Machine) -> ReadJob:
    """A job over the machine's reads, which owns them from now on."""
    ffi.gc(machine.reads, None)
    return ReadJob(machine.reads, -1, "rows")


def test_others_run_though_there_is_news_at_every_look() -> None:
    machine = Machine([0, 4, 8, 12, 16], 512)
    job = made_of(machine)
    got: list[int] = []

    def land() -> None:
        """The next extent, or the end."""
        extent = lib.gd_reads_take(machine.reads)
        if extent < 0:
            lib.gd_reads_let_go(machine.reads)
        else:
            assert machine.complete(512, extent) == lib.GD_WHOLE

    async def listen() -> None:
        async for stretch in job:
            got.extend(stretch.slots.tolist())
            land()

    async def main() -> None:
        land()
        listening, seen = asyncio.ensure_future(listen()), set()
        while not listening.done():
            seen.add(len(got))
            await asyncio.sleep(0)
        await listening
        assert got == [0, 4, 8, 12, 16]
        assert seen == set(range(5)), "other tasks run between any two stretches"

    run(main())


def test_a_job_that_the_engine_forgets_has_woken_its_consumer() -> None:
    """The ring lets go between any two looks at its progress."""
    for look in range(1, 4):
        job = made_of(Machine([0], 512))
        looks = iter([0] * look + [1] * 4)

        class Progress:
            landed = failed = 0
            let_go = property(lambda _, looks=looks: next(looks))

        job._progress = Progress()
        while not job.wake():
            pass
        assert job._news.is_set()
