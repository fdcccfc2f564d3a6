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
from types import SimpleNamespace

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import EngineSettings, Landing
from gnndrive.disk import engines
from gnndrive.disk.engines import uring
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


@pytest.fixture
async def ring():
    """A function that makes an engine, which is closed after the test."""
    made = []

    def make(depth=32, **settings):
        made.append(Uring(EngineSettings(depth, **settings)))
        return made[-1]

    yield make
    for engine in made:
        await engine.aclose()


async def test_the_ring_thread_asks_for_a_short_scheduler_slice(ring):
    before = rings()
    ring()
    (thread,) = rings() - before
    assert slice_ns(thread) == min(slice_ns(0), 100_000)


async def test_many_rings_leak_nothing(rows_of):
    rows, before = rows_of(512, 200), open_things()
    for _ in range(20):
        engine = Uring(EngineSettings(depth=8))
        await rows.bring(engine, np.arange(200))
        await engine.aclose()
    assert_back_to(before)


async def test_a_dropped_engine_ends_its_ring_and_its_reads(rows_of):
    rows, before = rows_of(1024, 1000), open_things()
    engine = Uring(EngineSettings(depth=2))
    picked = np.arange(0, 1000, 2)
    iterator = engine.read(rows.locate(picked))
    del engine
    gc.collect()
    await rows.ended(iterator, picked, picked)
    assert_back_to(before)


def test_an_engine_that_outlives_its_loop_is_freed():
    before = open_things()
    made = []

    async def make():
        made.append(Uring(EngineSettings(depth=2)))

    asyncio.run(make())
    made.clear()
    gc.collect()
    assert_back_to(before)


async def test_the_window_is_kept_full_over_several_reads(rows_of, ring):
    rows, engine, picked = rows_of(1024, 2000), ring(), np.arange(0, 2000, 2)
    jobs = await asyncio.gather(*(rows.bring(engine, picked[i::4]) for i in range(4)))
    expected = {
        "inflight_max": 32, "requests": sum(job.requests for job in jobs), "jobs": 4, "depth": 32,
        "bytes": sum(job.nbytes for job in jobs),
    }  # fmt: skip
    assert expected["requests"] == 1000
    assert engine.stats().items() >= expected.items()
    await engine.aclose()
    assert engine.stats()["requests"] == 1000


@pytest.mark.parametrize(("most", "in_flight"), [(1, 1), (4096, 2), (4097, 3), (0, 32)])
async def test_long_reads_need_fewer_in_flight(rows_of, ring, most, in_flight):
    """Reads of 2,048 bytes; another one starts while fewer than `most` bytes are in flight."""
    engine = ring(block_bytes=4096, inflight_bytes=most)
    await rows_of(2048, 400).bring(engine, np.arange(0, 400, 2))
    assert engine.stats()["inflight_max"] == in_flight


@pytest.mark.parametrize(("depth", "inflight"), [(1, 0), (7, 0), (7, 20_000), (64, 40_000)])
@pytest.mark.parametrize("direct", [False, True])
async def test_reads_of_all_lengths_share_staging(rows_of, ring, seeds, direct, depth, inflight):
    """From one page to the largest block, so that free staging is split into pieces of any size."""
    random = np.random.default_rng([*seeds(1)])
    start = np.cumsum(random.integers(33, 60, 60))
    picked = np.concatenate([at + np.arange(random.integers(1, 33)) for at in start])
    engine = ring(depth, block_bytes=16384, inflight_bytes=inflight)
    await rows_of(512, 4000, direct=direct).bring(engine, picked)
    assert engine.stats()["requests"] >= 60


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize(("submit_batch", "complete_min"), [(0, 1), (3, 7), (64, 64)])
async def test_submit_and_complete_settings_change_no_row(
    rows_of, ring, measure, submit_batch, complete_min
):
    rows = rows_of(1024, 600, direct=False)
    engine = ring(16, submit_batch=submit_batch, complete_min=complete_min, measure=measure)
    for part in np.split(np.arange(0, 600, 2), 3):
        await rows.bring(engine, part)
    stats = engine.stats()
    assert (stats["requests"], stats["inflight_max"]) == (300, 16)
    at_most = submit_batch or 16 // 8  # an eighth of the depth
    assert stats["submits"] >= 300 / at_most
    await engine.aclose()
    latency = engine.latency()
    assert latency.lat.count == sum(latency.lat.bucket) == 300
    assert latency.slat.count == latency.clat.count == (300 if measure else 0)
    if measure:
        assert latency.slat.sum_ns + latency.clat.sum_ns == latency.lat.sum_ns
    assert 0 < latency.lat.min_ns <= latency.lat.max_ns <= latency.lat.sum_ns


async def test_separate_rows_land_in_any_order_or_are_dropped(rows_of, ring):
    rows, engine = rows_of(700, 100, separate=True), ring(4, block_bytes=2048)
    picked, slots = np.array([9, 3, 3, 4]), np.array([0, 7, 5, 6], np.int32)
    assert (await rows.bring(engine, picked, slots)).requests == 4
    before = rows.memory.copy()
    rows.landing = Landing(0, 700, direct=True)
    landed, failures = await drain(engine, rows.locate(picked, slots))
    assert (len(landed), failures) == (4, [])
    assert (rows.memory == before).all()


async def test_the_threads_engine_times_its_reads_when_asked(rows_of):
    rows = rows_of(512, 100)
    for measure in (False, True):
        engine = Threads(EngineSettings(depth=3, measure=measure))
        await rows.bring(engine, np.arange(0, 100, 2))
        await engine.aclose()
        latency = engine.latency()
        assert latency.lat.count == latency.clat.count == (50 if measure else 0)
        assert latency.slat.count == 0


async def test_an_engine_gives_way_while_there_is_traffic(rows_of, ring):
    rows, traffic = rows_of(512, 600), ffi.new("int32_t *")
    for others, most in ((0, 32), (3, 1)):
        traffic[0] = others
        engine = ring(block_bytes=2048, traffic=traffic, gives_way=True)
        await rows.bring(engine, np.arange(0, 600, 2))
        assert traffic[0] == others
        assert most // 2 < engine.stats()["inflight_max"] <= most


@pytest.mark.parametrize("cancel", [False, True])
async def test_an_engine_that_does_not_give_way_counts_its_jobs(rows_of, ring, cancel):
    rows, traffic, picked = rows_of(512, 600), ffi.new("int32_t *"), np.arange(0, 600, 2)
    engine = ring(2, block_bytes=2048, traffic=traffic)
    jobs = [engine.read(rows.locate(picked)) for _ in range(3)]
    assert 0 <= traffic[0] <= 3
    if not cancel:
        for job in jobs:
            await rows.ended(job, picked, picked)
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
    engine, used = Uring(EngineSettings(depth=1, block_bytes=65536)), []
    real = uring._stats
    monkeypatch.setattr(
        uring, "_stats", lambda ring: used.append(engine._finish.alive) or real(ring)
    )
    engine.read(rows_of(512, 100).locate(np.arange(100)))
    await asyncio.gather(engine.aclose(), engine.aclose())
    assert used == [True]


def test_halting_twice_and_enqueueing_after_it(rows_of):
    reads = rows_of(512, 10).locate(np.zeros(1, np.int64))
    error = ffi.new("int *")
    notify = os.eventfd(0)
    ring = lib.gd_ring_new(2, 4096, notify, 1, ffi.NULL, error)
    lib.gd_ring_halt(ring)
    lib.gd_ring_halt(ring)
    assert lib.gd_ring_enqueue(ring, reads.handle, reads.fd) == -errno.ESHUTDOWN
    lib.gd_ring_free(ring)
    os.close(notify)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EPERM, "seccomp"), (errno.ENOSYS, "kernel"), (errno.ENOMEM, "ulimit -l"),
     (99, "99|EA")],
)  # fmt: skip
def test_falling_back_warns_once_and_names_the_remedy(monkeypatch, code, remedy):
    monkeypatch.setattr(uring, "lib", SimpleNamespace(gd_ring_probe=lambda: -code))
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
