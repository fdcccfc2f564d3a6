"""The conformance test of engines: what each of them must do."""

import asyncio
import errno
import gc
import resource
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.tiers.disk import Disk
from gnndrive.testing.faults import NOISE
from tests.second import OneThread
from tests.soak import product

from .conftest import UNTOUCHED

ROW_BYTES = [1, 3, 127, 256, 258, 512, 516, 1536, 4096, 9428, 37712]

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").exists()


MADE = {name: (name, None) for name in plugins.names("engines")} | {
    "simulated-noise": ("simulated", NOISE),
    "second": (OneThread, None),
}


@pytest.fixture(params=MADE)
async def make(request):
    """A function that makes the engine under test, which is closed after the test."""
    name, faults = MADE[request.param]
    made = []

    def build(depth=16, block_bytes=65536) -> Engine:
        settings = EngineSettings(depth, block_bytes, 1, faults)
        made.append(plugins.find("engines", name).make(settings))
        return made[-1]

    yield build
    for engine in made:
        await engine.aclose()


def some(generator, rows, count):
    """Return `count` different rows and as many different slots, both in random order."""
    total = len(rows.content)
    picked = generator.choice(total, count, replace=False)
    return picked, generator.permutation(len(rows.memory))[:count].astype(np.int32)


def huge_bytes():
    """Return the bytes of this process's memory for which it asked for huge pages."""
    total, length = 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Size":
            length = int(rest.split()[0]) << 10
        elif name == "VmFlags" and "hg" in rest.split():
            total += length
    return total


async def test_staging_is_in_huge_pages(make):
    """If the kernel has them: reading into scattered pages takes up to three times as long."""
    gc.collect()
    before = huge_bytes()
    make(block_bytes=1 << 18)
    assert huge_bytes() - before == (16 << 18 if HUGE_PAGES else 0)


@product("row_bytes", ROW_BYTES)
async def test_every_byte_of_any_row_size(make, rows_of, row_bytes):
    row_count = max(40, min(600, 400_000 // row_bytes))
    rows, engine = rows_of(row_bytes, row_count), make()
    generator = np.random.default_rng(row_bytes)
    for share in (0.02, 0.3, 1.0):
        rows.memory[:] = UNTOUCHED
        picked, slots = some(generator, rows, max(1, int(share * row_count)))
        await rows.bring(engine, picked, slots)
        assert (np.delete(rows.memory, slots, axis=0) == UNTOUCHED).all()


@pytest.mark.parametrize(
    ("row_bytes", "limits", "engine", "step"),
    [
        (300, {"gap_bytes_max": 8192}, {}, 3),
        (300, {"extent_bytes_max": 4096}, {}, 3),
        (200, {"extent_bytes_max": 1024}, {"depth": 4, "block_bytes": 1100}, 1),  # of any size
        (16384, {}, {"block_bytes": 4096}, 2),  # rows that land directly need no block
        (64, {}, {}, 1000),  # no rows
    ],
)
async def test_limits_of_reads_and_blocks_change_no_byte(
    make, rows_of, row_bytes, limits, engine, step
):
    picked = np.arange(0, 200, step) if step < 200 else np.empty(0, np.int64)
    await rows_of(row_bytes, 200, **limits).bring(make(**engine), picked, picked[::-1].astype("i4"))


async def test_several_reads_at_once(make, rows_of):
    rows, engine = rows_of(400, 3000), make()
    picked, slots = some(np.random.default_rng(5), rows, 3000)
    parts = [(picked[i::5], slots[i::5]) for i in range(5)]
    jobs = await asyncio.gather(*(rows.bring(engine, *part) for part in parts))
    assert rows.wrong(picked, slots) == 0
    await engine.aclose()
    assert engine.stats()["requests"] >= sum(job.requests for job in jobs)
    assert engine.stats()["bytes"] > 0


async def test_dropping_the_iterator_stops_nothing(make, rows_of):
    rows, engine = rows_of(256, 3000), make()
    picked, slots = some(np.random.default_rng(6), rows, 2000)
    reads = rows.locate(picked, slots)
    kept = weakref.ref(reads)
    engine.read(reads)
    del reads
    gc.collect()
    other = np.setdiff1d(np.arange(3000), picked)[:100]
    free = np.setdiff1d(np.arange(3000), slots)[:100].astype(np.int32)
    await rows.bring(engine, other, free)
    await engine.aclose()
    gc.collect()
    assert kept() is None
    assert rows.wrong(picked, slots) < len(slots)


async def test_cancelled_reads_end(make, rows_of):
    rows, engine = rows_of(1024, 2000), make(depth=2)
    picked, slots = some(np.random.default_rng(7), rows, 2000)
    fetch = Disk(rows.table, engine).fetch(picked, slots, rows.landing)
    fetch.cancel()
    _, failures = await rows.ended(fetch, picked, slots)
    assert {code for _, code, _ in failures} <= {errno.ECANCELED}


async def test_closing_waits_for_reads_that_are_under_way(make, rows_of):
    rows, engine = rows_of(1024, 2000), make(depth=2)
    picked, slots = some(np.random.default_rng(8), rows, 2000)
    parts = [(picked[i::2], slots[i::2]) for i in range(2)]
    jobs = [engine.read(rows.locate(*part)) for part in parts]
    await asyncio.sleep(0)
    await asyncio.gather(engine.aclose(), engine.aclose())
    assert all(job.wake() for job in jobs), "the engine has not let go of a job"
    after = rows.memory.copy()
    for job, part in zip(jobs, parts, strict=True):
        _, failures = await rows.ended(job, *part)
        assert {code for _, code, _ in failures} <= {errno.ECANCELED}
    assert np.array_equal(rows.memory, after)
    await engine.aclose()
    with pytest.raises(ClosedError):
        engine.read(rows.locate(picked, slots))


async def test_closing_may_be_cancelled_and_tried_again(make, rows_of):
    rows, engine = rows_of(1024, 500), make(depth=1)
    engine.read(rows.locate(np.arange(500)))
    closing = asyncio.create_task(engine.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await engine.aclose()


async def test_a_waiting_consumer_may_be_cancelled(make, rows_of):
    rows, engine = rows_of(512, 1000), make(depth=1)
    picked, slots = some(np.random.default_rng(9), rows, 1000)
    iterator = engine.read(rows.locate(picked, slots))
    waiting = asyncio.create_task(anext(iterator))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    rest = [slot async for stretch in iterator for slot in stretch.slots.tolist()]
    taken = [] if waiting.cancelled() else waiting.result().slots.tolist()
    assert sorted(rest + taken) == sorted(slots)


async def test_an_extent_longer_than_a_block_is_refused(make, rows_of):
    with pytest.raises(ConfigError, match="block_bytes at least 9,728"):
        make(block_bytes=8192).read(rows_of(9428, 20).locate(np.zeros(1, np.int64)))


async def test_rows_behind_the_end_of_a_truncated_file_fail(make, rows_of):
    rows = rows_of(200, 100, cut_bytes=1000)  # rows 95 to 99 are missing
    picked = np.arange(100)[::-1].copy()
    slots = picked.astype(np.int32)
    _, failures = await rows.ended(make().read(rows.locate(picked)), picked, slots)
    assert sorted(failures) == [
        (slot, errno.ENODATA, (4096 + slot * 200) // 512 * 512) for slot in range(95, 100)
    ]


# ---- writes


@product("row_bytes", [4096, 69632])
async def test_what_was_written_is_in_the_file(make, rows_of, row_bytes):
    """Also rows that are longer than a staging block."""
    rows, engine = rows_of(row_bytes, 60), make()
    picked, slots = some(np.random.default_rng(row_bytes), rows, 40)
    job = engine.read(rows.writes(picked, slots))
    _, failures = await rows.ended(job, picked, slots)
    assert not failures
    assert not rows.lost()
    await engine.aclose()
    stats = engine.stats()
    assert (stats["requests"], stats["bytes"]) == (0, 0), "users see these as what was read"
    assert stats["writes"] - stats["retries"] == 40
    assert stats["bytes_written"] >= 40 * row_bytes


async def test_writes_that_the_kernel_refuses_fail_alone(make, rows_of):
    """A process may write no file behind a limit, which lies within row 30."""
    rows, engine = rows_of(8192, 60), make()
    picked, slots = some(np.random.default_rng(10), rows, 60)
    job, limits = rows.writes(picked, slots), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + 30 * 8192 + 4096, limits[1]))
    try:
        _, failures = await rows.ended(engine.read(job), picked, slots)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refused = [(slots[picked == row][0], errno.EFBIG, 4096 + row * 8192) for row in range(30, 60)]
    assert sorted(failures) == sorted(refused)
    assert rows.lost() == list(range(30, 60))


async def test_closing_waits_for_writes_that_are_under_way(make, rows_of):
    rows, engine = rows_of(4096, 500), make(depth=2)
    picked, slots = some(np.random.default_rng(11), rows, 500)
    job = engine.read(rows.writes(picked, slots))
    await asyncio.sleep(0)
    await engine.aclose()
    lost = set(rows.lost())
    rows.memory[:] = UNTOUCHED
    assert set(rows.lost()) == lost, "written after the end"
    landed, failed = [], []
    async for stretch in job:
        landed += stretch.slots.tolist()
        failed += stretch.failures.tolist()
    assert {code for _, code, _ in failed} <= {errno.ECANCELED}
    assert sorted([*landed, *(slot for slot, _, _ in failed)]) == list(range(500))
    assert not lost & set(picked[np.isin(slots, landed)].tolist())


# ---- a broken one is found


class Spoiling(OneThread):
    """Writes over the first slot, which another row may be in."""

    def _carry_out(self, job: ReadJob) -> None:
        _, landing = job._keeps
        ffi.memmove(ffi.cast("uint8_t *", landing.address), b"\x11", 1)
        super()._carry_out(job)


class Uncounted(OneThread):
    """Counts no requests."""

    def stats(self) -> dict[str, int]:
        return dict.fromkeys(super().stats(), 0)


class Forgetful(OneThread):
    """Reports rows that it has not written."""

    def _carry_out(self, job: ReadJob) -> None:
        request = ffi.new("gd_request *")
        while (extent := lib.gd_reads_take(job.handle)) >= 0:
            lib.gd_reads_request(job.handle, extent, ffi.NULL, request)
            lib.gd_reads_complete(job.handle, extent, request.length, ffi.NULL)
        lib.gd_reads_let_go(job.handle)
        self._tell(job)


@pytest.mark.parametrize(
    ("engine", "check", "message"),
    [
        (Spoiling, partial(test_every_byte_of_any_row_size, row_bytes=512), "== 238"),
        (Uncounted, test_several_reads_at_once, ">="),
        (Forgetful, partial(test_what_was_written_is_in_the_file, row_bytes=4096), "lost"),
    ],
)
async def test_a_broken_engine_is_found(engine, check, message, rows_of):
    made = engine(EngineSettings(16, 65536))
    with pytest.raises(AssertionError, match=message):
        await check(lambda: made, rows_of)
    await made.aclose()
