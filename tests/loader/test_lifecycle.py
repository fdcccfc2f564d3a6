"""Iterators and loaders that end, or cannot begin, free everything and do not disturb others."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import resource
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborLoader, Store, StoreError
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.lease import Lease
from gnndrive.common import array_pool
from gnndrive.common.ffi import ffi
from gnndrive.common.loop_thread import LoopThread
from gnndrive.common.memory import parse_size
from gnndrive.disk.engines import uring
from gnndrive.loader.runtime import Runtime
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.output_queue import OutputQueue, References
from tests.interrupted import drop_and_interrupt
from tests.loader.conftest import NODES
from tests.soak import product

LOOKS = 20_000  # at a condition that soon becomes true, such as the end of a joined thread's entry


def descriptors() -> list[str]:
    """What the open descriptors refer to, but for a store's graph, which it keeps mapped."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.append(os.readlink(entry.path))
        except FileNotFoundError:
            continue
    return sorted(name for name in found if not name.startswith("/proc/") and "/graph/" not in name)


def threads() -> list[str]:
    """The names of all threads, C's and Python's; the kernel's own for io_uring left out."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as name:
                names.append(name.read().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(name for name in names if not name.startswith("iou-"))


def becomes_true(condition: Callable[[], bool]) -> bool:
    return any(condition() for _ in range(LOOKS))


def living(*kinds: type) -> int:
    """How many objects of these classes there are, garbage collected first."""
    gc.collect()
    return sum(type(thing) in kinds for thing in gc.get_objects())


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fails the test if a thread or a descriptor is left behind. Those of the test before it may
    end meanwhile."""
    gc.collect()
    before = Counter(threads()), Counter(descriptors()), threading.active_count()
    yield
    gc.collect()
    assert becomes_true(lambda: threading.active_count() <= before[2]), threading.enumerate()
    assert becomes_true(lambda: Counter(threads()) <= before[0]), threads()
    assert becomes_true(lambda: Counter(descriptors()) <= before[1]), descriptors()


@pytest.fixture
def wide(data: Data, tmp_path: Any) -> Store:
    """The graph with rows of 4 KB, so that a batch, once leaked, shows: it is some 300 KB."""
    graph = Data(x=torch.rand(NODES, 1024), edge_index=data.edge_index)
    return gnndrive.from_data(graph, tmp_path / "wide.gnn")


# ---- leaks


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_many_iterators_leave_nothing(wide, engine, nothing_is_left):
    alive = living(Epoch, Lease, FeatureBuffer)  # in tracebacks that other tests keep
    loader = NeighborLoader(
        wide, [4], batch_size=16, buffer="800KB", engine=engine, io_depth=16, seed=0
    )

    def cycle(number: int) -> None:
        iterator = iter(loader)
        if number % 4 == 1:
            next(iterator)
        elif number % 4 == 2:
            next(iterator), next(iterator)
            iterator.close()
        elif number % 40 == 3:
            assert sum(1 for _ in iterator) == len(loader)

    for number in range(40):
        cycle(number)
    before = threads(), descriptors(), len(gc.get_objects()), psutil.Process().memory_info().rss
    for number in range(120):
        cycle(number)
    # 120 batches would be 36 MB, 120 buffers 96 MB; an epoch has dozens of objects.
    assert becomes_true(lambda: threads() == before[0])
    assert becomes_true(lambda: descriptors() == before[1])
    loader.close()
    gc.collect()
    assert len(gc.get_objects()) - before[2] < 1_000
    assert psutil.Process().memory_info().rss - before[3] < 25_000_000
    assert living(Epoch, Lease, FeatureBuffer) <= alive + 1, "more than the loader's own buffer"


@pytest.mark.parametrize("topology", ["resident", "direct"])
def test_loaders_leave_nothing(make, topology, nothing_is_left):
    for number in range(6):
        loader = make(topology=topology)
        iterator = iter(loader)
        if number % 2:
            next(iterator)
        loader.close()


def test_a_loader_that_is_dropped_leaves_nothing(store, nothing_is_left):
    """Only an iterator keeps its loader."""
    number = 0
    for _ in NeighborLoader(store, [2], batch_size=100, buffer="40KB"):
        gc.collect()
        number += 1
    assert number == NODES // 100
    loader = NeighborLoader(store, [4], batch_size=16, buffer="40KB")
    iterator = iter(loader)
    next(iterator)
    references = sys.getrefcount(loader)
    del iterator
    assert sys.getrefcount(loader) == references - 1
    gc.disable()  # no cycle: it goes at once, and its buffer with it
    try:
        del loader
        assert becomes_true(lambda: not any("gnndrive" in each.name for each in running()))
    finally:
        gc.enable()


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread()]


def test_a_loader_collected_in_its_own_thread_leaves_nothing(store, nothing_is_left):
    """Any thread may collect garbage; gnndrive's own threads must not wait for themselves."""
    collected = threading.Event()

    def transform(batch: Data) -> Data:
        if threading.current_thread() is not threading.main_thread() and cycle:
            cycle.clear()
            gc.collect()
            collected.set()
        return batch

    loader = NeighborLoader(
        store, [4], batch_size=16, buffer="40KB", transform=transform, samplers=1
    )
    cycle: list[Any] = []
    with loader:
        iterator = iter(loader)
        next(iterator)
        hold = [iterator]
        hold.append(hold)
        del iterator
        gc.disable()
        del hold  # an iterator in a cycle: only the collector finds it
        cycle.append(True)
        assert sum(1 for _ in loader) == len(loader)
        gc.enable()
    assert collected.is_set()


def test_no_more_batches_live_than_are_planned_for(make):
    """One with the user, one ready, one in the making, and what six workers are about to drop."""
    made: list[weakref.ref[Data]] = []

    def transform(batch: Data) -> Data:
        made.append(weakref.ref(batch))
        return batch

    for _ in make(transform=transform):
        assert sum(batch() is not None for batch in made) <= 3 + 6
    del _
    assert len(made) == NODES // 16
    assert becomes_true(lambda: not any(batch() for batch in made))


# ---- the end


def test_closing_in_the_middle_raises_and_again_after_an_interrupt(
    make, nothing_is_left, monkeypatch
):
    """An epoch that ends too early must not look like one that is complete. Ctrl-C while `close`
    waits: the next `close` waits for the same end."""
    loader = make()
    iterator, closed = iter(loader), iter(loader)
    next(iterator)
    closed.close(), closed.close()
    interrupts = iter([KeyboardInterrupt])
    result = Future.result

    def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
        if threading.current_thread() is threading.main_thread():
            for interrupt in interrupts:
                raise interrupt
        return result(self, timeout)

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    loader.close()
    with pytest.raises(ClosedError, match="in the middle of this epoch"):
        next(iterator)
    assert list(iterator) == list(closed) == []


def test_an_interrupt_right_after_the_engines_have_started(make, nothing_is_left, monkeypatch):
    """Both engines are there by then, each in a thread of its own."""
    call = LoopThread.call

    def interrupted(loop_thread: LoopThread, doing: Any, discard: Any = None) -> Any:
        done = call(loop_thread, doing, discard)
        if doing.__name__ == "_start_buffers":
            monkeypatch.undo()
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(LoopThread, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iter(make(topology="direct"))


def test_a_closed_loader_cannot_be_iterated(make, nothing_is_left, monkeypatch):
    """Also one that a signal's handler closes while it reads its graph at its first `iter`."""
    used, unused, failing, starting = (make() for _ in range(4))
    with pytest.raises(ZeroDivisionError), failing:
        next(iter(failing)).batch_size / 0

    def interrupted(*arguments: Any, **more: Any) -> Runtime:
        monkeypatch.undo()
        used.close()
        starting.close()
        return Runtime(*arguments, **more)

    whole = iter(used)
    assert sum(1 for _ in whole) == len(used)
    monkeypatch.setattr("gnndrive.loader.store_loader.Runtime", interrupted)
    with pytest.raises(ClosedError):
        iter(starting)
    unused.close()
    for each in (failing, used, unused):
        with pytest.raises(ClosedError, match="make a new one"):
            iter(each)
    assert list(whole) == [], "it had ended before"


def test_threads_may_close_and_iterate_at_once(make, nothing_is_left):
    """A user who comes too late gets ClosedError; no thread waits for ever."""
    for _ in range(8):
        loader = make(batch_size=100, buffer="60KB")
        results: list[Any] = []

        def use(loader: NeighborLoader = loader, results: list[Any] = results) -> None:
            try:
                results.append(sum(batch.batch_size for batch in loader))
            except ClosedError:
                results.append("closed")

        users = [threading.Thread(target=use) for _ in range(2)]
        users += [threading.Thread(target=loader.close) for _ in range(2)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        assert set(results) <= {NODES, "closed"}
        assert len(results) == 2


def test_the_output_queue_gets_references_to_a_batchs_rows(make, monkeypatch):
    monkeypatch.setattr(array_pool, "SMALL_BYTES", 1)
    references, put = list[References](), OutputQueue.put

    def spy(output: OutputQueue, batch: Data, memory: References = (), times: Any = None) -> None:
        references.append(memory)
        put(output, batch, memory, times)

    monkeypatch.setattr(OutputQueue, "put", spy)
    with make() as loader:
        batches = iter(loader)
        x = next(batches).x
        left = sum(1 for _ in batches)
    assert left > 1  # all threads have ended, and hold nothing
    assert all(len(memory) == 1 for memory in references)
    assert [memory[0]() is None for memory in references] == [False] + [True] * left
    del x
    assert references[0][0]() is None


def test_dropping_a_finished_iterator_loses_no_ctrl_c(make):
    only = [iter(make())]
    for _ in only[0]:
        pass
    drop_and_interrupt(only)


# ---- several iterators at once: none waits for another


def test_closing_the_loader_retires_all_buffers(make, monkeypatch):
    retired: list[FeatureBuffer] = []
    monkeypatch.setattr(FeatureBuffer, "retire", lambda self: retired.append(self))
    loader = make()
    iterators = [iter(loader) for _ in range(3)]
    buffers = [iterator._run.epoch.buffer for iterator in iterators]
    assert len({id(buffer) for buffer in buffers}) == 3
    assert buffers[0].tables["nodes/x"].slots == loader.plan().slots
    iterators[0].close()
    assert not retired, "the next epoch may use the rows that it holds"
    loader.close()
    assert retired == buffers[1:]


def test_an_iterator_is_refused_if_the_loader_is_closed_while_it_waits(make, monkeypatch):
    """It waits for the end of a dropped iterator, whose buffer it would use."""
    inside, go_on, wait = threading.Event(), threading.Event(), asyncio.wait

    def held(batch: Any) -> Any:
        inside.set()
        go_on.wait()
        return batch

    loader = make(transform=held)
    dropped = iter(loader)
    runtime = dropped._runtime
    closing: list[asyncio.Future[None]] = []

    def closed_meanwhile(tasks: Any) -> Any:
        if not closing and list(tasks) == list(runtime._tasks.values()):
            closing.append(asyncio.ensure_future(runtime._free_once()))
            go_on.set()
        return wait(tasks)

    inside.wait()
    monkeypatch.setattr(asyncio, "wait", closed_meanwhile)
    runtime.drop(dropped._run)
    with pytest.raises(ClosedError):
        iter(loader)
    assert closing
    loader.close()


def test_as_many_iterators_as_memory_holds(make):
    """Each further one is counted; closing one makes room for another."""
    stages = {"samplers": 4, "extracting_queue": 6, "training_queue": 4}
    least = make(buffer="40KB", **stages).plan().total_bytes
    alone = make(buffer="40KB", memory=least + 10_000, **stages)
    first = iter(alone)
    with pytest.raises(ConfigError) as refused:
        iter(alone)
    words = re.search(r"of its own, (.+?), and memory", str(refused.value))
    assert words is not None
    more = parse_size(words[1], "more")
    first.close()
    loader = make(buffer="40KB", memory=alone.plan().total_bytes + 2 * more + 1000, **stages)
    live = [iter(loader) for _ in range(3)]
    with pytest.raises(ConfigError, match="a second live iterator"):
        iter(loader)
    live.pop().close()
    live.append(iter(loader))
    assert [sum(1 for _ in iterator) for iterator in live] == [len(loader)] * 3


def test_breaking_off_frees_the_buffer_for_the_next(make):
    loader = make(memory=make().plan().total_bytes)  # for one iterator
    for _ in range(6):
        for batch in loader:
            assert batch.batch_size == 16
            break
    for _ in range(5):
        iter(loader)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for batch in loader:
            batch.batch_size / 0
    assert sum(1 for _ in loader) == len(loader)


# ---- calls from a loader's own threads


CALLS: dict[str, Callable[[NeighborLoader], Any]] = {
    "close": lambda loader: loader.close(),
    "iterate": lambda loader: list(loader),
    "begin": iter,
}


class Calling(list[int]):
    """A sampler that calls a function before one of its numbers."""

    def __init__(self, call: Callable[[], Any], at: int) -> None:
        super().__init__(range(100))
        self.call, self.at = call, at

    def __iter__(self) -> Iterator[int]:
        for number in range(100):
            yield (number == self.at and self.call()) or number


PLACES: list[Callable[[Callable[[], Any]], dict[str, Any]]] = [
    lambda call: {"transform": lambda batch: call() and batch},
    lambda call: {"num_workers": 2, "worker_init_fn": lambda _: call()},
    lambda call: {"sampler": Calling(call, 0)},  # in the user's thread
    lambda call: {"sampler": Calling(call, 40)},  # in the loop thread
]


@product("place,call", PLACES, list(CALLS))
def test_calls_from_its_own_threads(make, place, call):
    """They would wait for themselves."""
    loaders: list[NeighborLoader] = []
    loaders.append(make(**place(lambda: CALLS[call](loaders[0]))))
    with pytest.raises((ConfigError, RuntimeError), match=r"own threads|was closed"):
        list(loaders[0])


def test_another_loader_and_stats_may_be_used_in_a_transform(make):
    other, loaders = make(seed=0), list[NeighborLoader]()

    def transform(batch: Any) -> Any:
        assert next(iter(other)).num_nodes > 16
        batch.so_far = loaders[0].stats()["batches"]
        return batch

    loaders.append(make(transform=transform))
    assert [batch.so_far for batch in loaders[0]] == list(range(len(loaders[0])))


SETTINGS: list[dict[str, Any]] = [
    {"samplers": 2, "topology": "direct"},
    {"samplers": 1, "topology": "direct", "engine": "threads", "io_depth": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["uring", "threads"])
def test_whichever_thread_is_refused(make, settings, monkeypatch):
    gc.collect()  # a loader that an earlier test dropped is closed in a thread
    loader = make(**settings)
    allowed, started, before, said = 0, threading.Thread.start, held(), list[str]()

    def start(thread: threading.Thread) -> None:
        nonlocal allowed
        if allowed == 0:
            raise RuntimeError("can't start new thread")  # as CPython does
        allowed -= 1
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    while len(said) < 100:
        allowed = len(said)
        try:
            batches = iter(loader)
            break
        except ConfigError as error:
            said.append(str(error))
        assert_no_more(before)
    allowed = 100
    assert len(list(batches)) == len(loader)
    assert settings["samplers"] + 3 <= len(said)
    assert all("ulimit -u" in text and "samplers=1" in text for text in said)


def held() -> tuple[int, int]:
    """Threads and file descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def assert_no_more(before: tuple[int, int]) -> None:
    """Threads and files of earlier tests may have ended."""
    assert not any(now > then for now, then in zip(held(), before, strict=True))


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """A context in which this process can open that many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = os.listdir("/proc/self/fd")
    used = {int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}")}
    limit = 0
    while count >= 0:  # the limit is of the numbers of files, of which the lowest free is taken
        count -= limit not in used
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit - 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("settings", SETTINGS, ids=["uring", "threads"])
def test_whichever_file_is_refused(make, store, settings):
    before, said = held(), list[str]()
    while len(said) < 100:
        loader = make(**settings)
        with files_left(len(said)):
            try:
                batches = iter(loader)
                break
            except (ConfigError, StoreError) as error:
                said.append(str(error))
        loader.close()
        assert_no_more(before)
    assert len(list(batches)) == len(loader)
    assert len(said) >= 3
    assert all("ulimit -n" in text for text in said)
    with files_left(0), pytest.raises(ConfigError, match="refuses to open another file"):
        gnndrive.open(store.path)


def test_the_rings_own_thread_is_refused(make, tmp_path, monkeypatch):
    def refuse(*arguments: Any) -> Any:
        arguments[-1][0] = -errno.EAGAIN
        return ffi.NULL

    monkeypatch.setattr(uring, "lib", SimpleNamespace(gd_ring_new=refuse))
    monkeypatch.setattr(uring, "why_not_uring", lambda: None)
    path = tmp_path / "pids.max"
    path.write_text("77\n")
    monkeypatch.setattr("gnndrive.common.limits._CGROUP_LIMITS", (str(path), "/no/such/file"))
    before = held()
    with pytest.raises(
        ConfigError,
        match=r"refuses to start another thread .* \(ulimit -u\).*the container's .* is 77;",
    ):
        iter(make(engine="uring"))
    assert_no_more(before)
