"""The uring engine and its ring: leaks, bounds, refusals, and the fallback to threads."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import platform
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import EngineSettings, Landing
from gnndrive.disk import engines
from gnndrive.disk.engines import _probe, uring
from gnndrive.disk.engines.threads import Threads
from gnndrive.disk.engines.uring import Uring

from .conftest import drain


def open_things():
    """Return the numbers of descriptors and of ring threads; other threads may be ending."""
    return len(os.listdir("/proc/self/fd")), len(rings())


def assert_back_to(before):
    """Poll, because the kernel lists a thread for a moment after it was joined."""
    for _ in range(100_000):
        if open_things() == before:
            return
        os.sched_yield()
    assert open_things() == before


def slice_ns(thread):
    """Return a thread's scheduler slice, requested or default; 0: the kernel does not report it."""
    attr = ctypes.create_string_buffer(48)  # sched_attr of sched_setattr(2)
    numbers = {"x86_64": 315, "aarch64": 275}
    assert ctypes.CDLL(None).syscall(numbers[platform.machine()], thread, attr, 48, 0) == 0
    return struct.unpack("IIQiIQQQ", attr.raw)[5]


def rings():
    """Return the ids of all ring threads."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended since
            if Path(f"/proc/self/task/{task}/comm").read_text() == "gd-ring\n":
                found.add(int(task))
    return found


async def test_the_ring_thread_asks_for_a_short_scheduler_slice():
    before = rings()
    engine = Uring(EngineSettings(depth=8))
    try:
        (ring,) = rings() - before
        assert slice_ns(ring) == min(slice_ns(0), 100_000)
    finally:
        await engine.aclose()


async def test_many_rings_leak_nothing(rows_of):
    rows = rows_of(512, 200)
    slots = np.arange(200, dtype=np.int32)
    before = open_things()
    for _ in range(20):
        engine = Uring(EngineSettings(depth=8))
        await drain(engine, rows.table.locate(slots.astype(np.int64), slots, rows.landing))
        await engine.aclose()
    assert_back_to(before)


async def test_a_dropped_engine_ends_its_ring_and_its_reads(rows_of):
    rows = rows_of(1024, 1000)
    before = open_things()
    engine = Uring(EngineSettings(depth=2))
    picked = np.arange(0, 1000, 2)
    iterator = engine.read(rows.table.locate(picked, picked.astype(np.int32), rows.landing))
    del engine
    gc.collect()
    ended = [stretch async for stretch in iterator]
    assert sum(len(s.slots) + len(s.failures) for s in ended) == 500
    assert_back_to(before)


def test_an_engine_that_outlives_its_loop_is_freed(rows_of):
    before = open_things()
    made = []

    async def make():
        made.append(Uring(EngineSettings(depth=2)))

    asyncio.run(make())
    made.clear()
    gc.collect()
    assert_back_to(before)


async def test_the_window_is_kept_full_over_several_reads(rows_of):
    rows = rows_of(1024, 2000)
    engine = Uring(EngineSettings(depth=32))
    picked = np.arange(0, 2000, 2)
    reads = [
        rows.table.locate(picked[i::4], picked[i::4].astype(np.int32), rows.landing)
        for i in range(4)
    ]
    await asyncio.gather(*(drain(engine, read) for read in reads))
    stats = engine.stats()
    assert stats["inflight_max"] == 32
    assert stats["requests"] == sum(read.requests for read in reads) == 1000
    assert stats["bytes"] == sum(read.nbytes for read in reads)
    assert stats["jobs"] == 4
    assert stats["depth"] == 32
    await engine.aclose()
    assert engine.stats()["requests"] == 1000


@pytest.mark.parametrize(("most", "in_flight"), [(1, 1), (4096, 2), (4097, 3), (0, 32)])
async def test_long_reads_need_fewer_in_flight(rows_of, most, in_flight):
    """Reads of 2,048 bytes; another one starts while fewer than `most` bytes are in flight."""
    rows = rows_of(2048, 400)
    picked = np.arange(0, 400, 2)
    engine = Uring(EngineSettings(depth=32, block_bytes=4096, inflight_bytes=most))
    landed, failures = await drain(
        engine, rows.table.locate(picked, picked.astype(np.int32), rows.landing)
    )
    await engine.aclose()
    assert (len(landed), len(failures)) == (200, 0)
    assert rows.wrong(picked, picked.astype(np.int32)) == 0
    assert engine.stats()["inflight_max"] == in_flight


@pytest.mark.parametrize(("depth", "inflight"), [(1, 0), (7, 0), (7, 20_000), (64, 40_000)])
@pytest.mark.parametrize("land_direct", [False, True])
async def test_reads_of_all_lengths_share_staging(rows_of, seeds, land_direct, depth, inflight):
    """From one page to the largest block, so that free staging is split into pieces of any size."""
    rows = rows_of(512, 4000, land_direct=land_direct)
    random = np.random.default_rng([*seeds(1)])
    start = np.cumsum(random.integers(33, 60, 60))
    picked = np.concatenate([at + np.arange(random.integers(1, 33)) for at in start])
    engine = Uring(EngineSettings(depth, block_bytes=16384, inflight_bytes=inflight))
    slots = picked.astype(np.int32)
    landed, failures = await drain(engine, rows.table.locate(picked, slots, rows.landing))
    await engine.aclose()
    assert not failures
    assert sorted(landed.tolist()) == picked.tolist()
    assert rows.wrong(picked, picked) == 0
    assert engine.stats()["requests"] >= 60


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize(("submit_batch", "complete_min"), [(0, 1), (3, 7), (64, 64)])
async def test_submit_and_complete_settings_change_no_row(
    rows_of, measure, submit_batch, complete_min
):
    rows = rows_of(1024, 600, land_direct=False)
    settings = EngineSettings(
        depth=16, submit_batch=submit_batch, complete_min=complete_min, measure=measure
    )
    engine = Uring(settings)
    picked = np.arange(0, 600, 2)
    for part in np.split(picked, 3):
        slots = part.astype(np.int32)
        landed, failures = await drain(engine, rows.table.locate(part, slots, rows.landing))
        assert sorted(landed.tolist()) == part.tolist()
        assert not failures
    assert rows.wrong(picked, picked) == 0
    stats = engine.stats()
    assert stats["requests"] == 300
    assert stats["inflight_max"] == 16
    at_most = submit_batch or 16 // 8  # an eighth of the depth
    assert stats["submits"] >= 300 / at_most
    await engine.aclose()
    latency = engine.latency()
    assert latency.lat.count == sum(latency.lat.bucket) == 300
    assert latency.slat.count == latency.clat.count == (300 if measure else 0)
    if measure:
        assert latency.slat.sum_ns + latency.clat.sum_ns == latency.lat.sum_ns
    assert 0 < latency.lat.min_ns <= latency.lat.max_ns <= latency.lat.sum_ns


async def test_separate_rows_land_in_any_order_or_are_dropped(rows_of):
    rows = rows_of(700, 100, separate=True)
    engine = Uring(EngineSettings(depth=4, block_bytes=2048))
    picked, slots = np.array([9, 3, 3, 4]), np.array([0, 7, 5, 6], np.int32)
    reads = rows.table.locate(picked, slots, rows.landing)
    assert reads.requests == 4
    landed, failures = await drain(engine, reads)
    assert sorted(landed.tolist()) == [0, 5, 6, 7]
    assert not failures
    assert rows.wrong(picked, slots) == 0
    nowhere = Landing(0, 700, direct=True)
    before = rows.memory.copy()
    landed, failures = await drain(engine, rows.table.locate(picked, slots, nowhere))
    assert len(landed) == 4
    assert not failures
    assert (rows.memory == before).all()
    await engine.aclose()


async def test_the_threads_engine_times_its_reads_when_asked(rows_of):
    rows = rows_of(512, 100)
    picked = np.arange(0, 100, 2)
    for measure in (False, True):
        engine = Threads(EngineSettings(depth=3, measure=measure))
        await drain(engine, rows.table.locate(picked, picked.astype(np.int32), rows.landing))
        await engine.aclose()
        latency = engine.latency()
        assert latency.lat.count == latency.clat.count == (50 if measure else 0)
        assert latency.slat.count == 0


async def test_an_engine_gives_way_while_there_is_traffic(rows_of):
    rows = rows_of(512, 600)
    traffic = ffi.new("int32_t *")
    picked = np.arange(0, 600, 2)
    settings = EngineSettings(depth=32, block_bytes=2048, traffic=traffic, gives_way=True)
    for others, most in ((0, 32), (3, 1)):
        traffic[0] = others
        engine = Uring(settings)
        landed, failures = await drain(
            engine, rows.table.locate(picked, picked.astype(np.int32), rows.landing)
        )
        await engine.aclose()
        assert (len(landed), len(failures), traffic[0]) == (300, 0, others)
        assert most // 2 < engine.stats()["inflight_max"] <= most
        assert rows.wrong(picked, picked.astype(np.int32)) == 0


@pytest.mark.parametrize("cancel", [False, True])
async def test_an_engine_that_does_not_give_way_counts_its_jobs(rows_of, cancel):
    rows = rows_of(512, 600)
    traffic = ffi.new("int32_t *")
    picked = np.arange(0, 600, 2)
    engine = Uring(EngineSettings(depth=2, block_bytes=2048, traffic=traffic))
    planned = [rows.table.locate(picked, picked.astype(np.int32), rows.landing) for _ in range(3)]
    jobs = [engine.read(reads) for reads in planned]
    assert 0 <= traffic[0] <= 3
    if cancel:
        await engine.aclose()
    else:
        for job in jobs:
            async for _ in job:
                pass
        await engine.aclose()
    assert traffic[0] == 0


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 4096, 1), (-1, 0, 0)),
        ((1, 4096, 1), (0, -1, 0)),
        ((1, 4096, 1), (0, 0, 0, 1)),
        ((1, 4096, 1), (0, 0, 0, 0, ffi.NULL, -1)),
        ((0, 4096, 1), None),
        ((10**6, 4096, 1), None),
        ((1, 0, 1), None),
        ((1, 1, 0), None),
    ],
)
def test_bad_ring_sizes_and_options_are_refused(sizes, options):
    error = ffi.new("int *")
    given = ffi.new("gd_ring_options *", options) if options else ffi.NULL
    depth, block_bytes, report_rows = sizes
    assert lib.gd_ring_new(depth, block_bytes, -1, report_rows, given, error) == ffi.NULL
    assert error[0] == -errno.EINVAL


async def test_the_second_of_two_that_close_at_once_does_not_use_the_freed_ring(
    rows_of, monkeypatch
):
    rows = rows_of(512, 100)
    engine, used = Uring(EngineSettings(depth=1, block_bytes=65536)), []
    real = uring._stats
    monkeypatch.setattr(
        uring, "_stats", lambda ring: used.append(engine._finish.alive) or real(ring)
    )
    picked = np.arange(100)
    engine.read(rows.table.locate(picked, picked.astype(np.int32), rows.landing))
    await asyncio.gather(engine.aclose(), engine.aclose())
    assert used == [True]


def test_halting_twice_and_enqueueing_after_it(rows_of):
    rows = rows_of(512, 10)
    one = np.zeros(1, np.int64)
    reads = rows.table.locate(one, one.astype(np.int32), rows.landing)
    error = ffi.new("int *")
    notify = os.eventfd(0)
    ring = lib.gd_ring_new(2, 4096, notify, 1, ffi.NULL, error)
    lib.gd_ring_halt(ring)
    lib.gd_ring_halt(ring)
    assert lib.gd_ring_enqueue(ring, reads.handle, reads.fd) == -errno.ESHUTDOWN
    lib.gd_ring_free(ring)
    os.close(notify)


class _Refused:
    """The C core of a kernel where io_uring_setup fails."""

    def __init__(self, code):
        self._code = code

    def gd_ring_probe(self):
        return -self._code


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EPERM, "seccomp"),
        (errno.ENOSYS, "kernel"),
        (errno.ENOMEM, "ulimit -l"),
        (99, "99|EA"),
    ],
)
def test_falling_back_warns_once_and_names_the_remedy(monkeypatch, code, remedy):
    monkeypatch.setattr(_probe, "lib", _Refused(code))
    monkeypatch.setattr(engines, "_warned", False)
    with pytest.warns(RuntimeWarning, match=remedy):
        assert engines.choose("auto") is Threads
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engines.choose() is Threads
        assert engines.choose("uring") is Uring


async def test_engines_and_depths_that_there_are_not_are_refused():
    before = open_things()
    assert engines.choose("threads") is Threads
    with pytest.raises(ConfigError, match="simulated, threads, uring"):
        engines.choose("tape")
    with pytest.raises(ConfigError, match="depth may be 1 to 4096"):
        Uring(EngineSettings(depth=10**6))
    assert_back_to(before)
