"""The conformance test of engines: what each of them must do."""

import asyncio
import errno
import gc
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.tiers.disk import Disk
from gnndrive.testing.faults import NOISE
from tests.second import OneThread
from tests.soak import product

from .conftest import drain

ROW_BYTES = [1, 3, 127, 256, 258, 512, 516, 1536, 4096, 9428, 37712]

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").exists()


MADE = {name: (name, None) for name in plugins.names("engines")} | {
    "simulated-noise": ("simulated", NOISE),
    "second": (OneThread, None),
}


@pytest.fixture(params=MADE)
def make(request):
    """A function that makes the engine under test."""

    def build(**settings) -> Engine:
        engine, faults = MADE[request.param]
        options = {"depth": 16, "block_bytes": 65536} | settings
        return plugins.find("engines", engine).make(
            EngineSettings(seed=1, faults=faults, **options)
        )

    return build


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
    engine = make(depth=16, block_bytes=1 << 18)
    assert huge_bytes() - before == (16 << 18 if HUGE_PAGES else 0)
    await engine.aclose()


@product("row_bytes", ROW_BYTES)
async def test_every_byte_of_any_row_size(make, rows_of, row_bytes):
    row_count = max(40, min(600, 400_000 // row_bytes))
    rows = rows_of(row_bytes, row_count)
    engine = make()
    generator = np.random.default_rng(row_bytes)
    for share in (0.02, 0.3, 1.0):
        rows.memory[:] = 0xEE
        picked, slots = some(generator, rows, max(1, int(share * row_count)))
        landed, failures = await drain(engine, rows.table.locate(picked, slots, rows.landing))
        assert not failures
        assert sorted(landed) == sorted(slots)
        assert rows.wrong(picked, slots) == 0
        untouched = np.setdiff1d(np.arange(row_count), slots)
        assert (rows.memory[untouched] == 0xEE).all()
    await engine.aclose()


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
    rows = rows_of(row_bytes, 200, **limits)
    engine = make(**engine)
    picked = np.arange(0, 200, step) if step < 200 else np.empty(0, np.int64)
    slots = picked.astype(np.int32)[::-1].copy()
    landed, failures = await drain(engine, rows.table.locate(picked, slots, rows.landing))
    assert not failures
    assert sorted(landed) == sorted(slots)
    assert rows.wrong(picked, slots) == 0
    await engine.aclose()


async def test_a_row_is_whole_when_its_stretch_comes(make, rows_of):
    rows = rows_of(512, 2000)
    engine = make()
    picked, slots = some(np.random.default_rng(3), rows, 1500)
    row_of_slot = dict(zip(slots.tolist(), picked.tolist(), strict=True))
    async for stretch in engine.read(rows.table.locate(picked, slots, rows.landing)):
        expected = [row_of_slot[slot] for slot in stretch.slots.tolist()]
        assert rows.wrong(expected, stretch.slots) == 0
    await engine.aclose()


async def test_several_reads_at_once(make, rows_of):
    rows = rows_of(400, 3000)
    engine = make()
    picked, slots = some(np.random.default_rng(5), rows, 3000)
    parts = [(picked[i::5], slots[i::5]) for i in range(5)]
    reads = [rows.table.locate(*part, rows.landing) for part in parts]
    results = await asyncio.gather(*(drain(engine, read) for read in reads))
    for (part_rows, part_slots), (landed, failures) in zip(parts, results, strict=True):
        assert not failures
        assert sorted(landed) == sorted(part_slots)
        assert rows.wrong(part_rows, part_slots) == 0
    await engine.aclose()
    assert engine.stats()["requests"] >= sum(read.requests for read in reads)
    assert engine.stats()["bytes"] > 0


async def test_dropping_the_iterator_stops_nothing(make, rows_of):
    rows = rows_of(256, 3000)
    engine = make()
    picked, slots = some(np.random.default_rng(6), rows, 2000)
    reads = rows.table.locate(picked, slots, rows.landing)
    kept = weakref.ref(reads)
    engine.read(reads)
    del reads
    gc.collect()
    other = np.setdiff1d(np.arange(3000), picked)[:100]
    free = np.setdiff1d(np.arange(3000), slots)[:100].astype(np.int32)
    await drain(engine, rows.table.locate(other, free, rows.landing))
    await engine.aclose()
    gc.collect()
    assert kept() is None
    landed = (rows.memory[slots] == rows.content[picked]).all(axis=1)
    assert landed.any()


async def test_cancelled_reads_end(make, rows_of):
    rows = rows_of(1024, 2000)
    engine = make(depth=2)
    picked, slots = some(np.random.default_rng(7), rows, 2000)
    fetch = Disk(rows.table, engine).fetch(picked, slots, rows.landing)
    fetch.cancel()
    landed, failed = [], []
    async for stretch in fetch:
        landed += stretch.slots.tolist()
        failed += stretch.failures.tolist()
    assert sorted(landed + [slot for slot, _, _ in failed]) == sorted(slots)
    assert {code for _, code, _ in failed} <= {errno.ECANCELED}
    row_of_slot = np.empty(2000, np.int64)
    row_of_slot[slots] = picked
    assert rows.wrong(row_of_slot[landed], np.array(landed, int)) == 0
    await engine.aclose()


async def test_closing_waits_for_reads_that_are_under_way(make, rows_of):
    rows = rows_of(1024, 2000)
    engine = make(depth=2)
    picked, slots = some(np.random.default_rng(8), rows, 2000)
    parts = [(picked[i::2], slots[i::2]) for i in range(2)]
    jobs = [engine.read(rows.table.locate(*part, rows.landing)) for part in parts]
    await asyncio.sleep(0)
    await asyncio.gather(engine.aclose(), engine.aclose())
    assert all(job.wake() for job in jobs), "the engine has not let go of a job"
    after, ended = rows.memory.copy(), []
    for job in jobs:
        async for stretch in job:
            ended += [*stretch.slots.tolist(), *stretch.failures["slot"].tolist()]
            assert set(stretch.failures["error"].tolist()) <= {errno.ECANCELED}
    assert sorted(ended) == sorted(slots)
    assert np.array_equal(rows.memory, after)
    await engine.aclose()
    with pytest.raises(ClosedError):
        engine.read(rows.table.locate(picked, slots, rows.landing))


async def test_closing_may_be_cancelled_and_tried_again(make, rows_of):
    rows = rows_of(1024, 500)
    engine = make(depth=1)
    picked, slots = some(np.random.default_rng(8), rows, 500)
    engine.read(rows.table.locate(picked, slots, rows.landing))
    closing = asyncio.create_task(engine.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await engine.aclose()


async def test_a_waiting_consumer_may_be_cancelled(make, rows_of):
    rows = rows_of(512, 1000)
    engine = make(depth=1)
    picked, slots = some(np.random.default_rng(9), rows, 1000)
    iterator = engine.read(rows.table.locate(picked, slots, rows.landing))
    waiting = asyncio.create_task(anext(iterator))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    rest = [slot async for stretch in iterator for slot in stretch.slots.tolist()]
    taken = [] if waiting.cancelled() else waiting.result().slots.tolist()
    assert sorted(rest + taken) == sorted(slots)
    await engine.aclose()


async def test_an_extent_longer_than_a_block_is_refused(make, rows_of):
    rows = rows_of(9428, 20)
    engine = make(block_bytes=8192)
    one = np.zeros(1, np.int64)
    with pytest.raises(ConfigError, match="block_bytes at least 9,728"):
        engine.read(rows.table.locate(one, one.astype(np.int32), rows.landing))
    await engine.aclose()


async def test_rows_behind_the_end_of_a_truncated_file_fail(make, rows_of):
    row_bytes, row_count = 200, 100
    rows = rows_of(row_bytes, row_count, cut_bytes=1000)  # rows 95 to 99 are missing
    engine = make()
    picked = np.arange(row_count)[::-1].copy()
    reads = rows.table.locate(picked, picked.astype(np.int32), rows.landing)
    landed, failures = await drain(engine, reads)
    assert sorted(landed) == list(range(95))
    assert rows.wrong(np.arange(95), np.arange(95)) == 0
    assert sorted(slot for slot, _, _ in failures) == list(range(95, 100))
    for slot, code, offset in failures:
        assert code == errno.ENODATA
        assert offset == (4096 + slot * row_bytes) // 512 * 512
    await engine.aclose()


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


@pytest.mark.parametrize(
    ("engine", "check", "message"),
    [
        (Spoiling, partial(test_every_byte_of_any_row_size, row_bytes=512), r"== 238"),
        (Uncounted, test_several_reads_at_once, ">="),
    ],
)
async def test_a_broken_engine_is_found(engine, check, message, rows_of):
    made = []

    def make(**settings):
        made.append(engine(EngineSettings(**({"depth": 16, "block_bytes": 65536} | settings))))
        return made[-1]

    with pytest.raises(AssertionError, match=message):
        await check(make, rows_of)
    await made[0].aclose()
