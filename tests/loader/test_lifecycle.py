"""Iterators and loaders that end free everything and do not disturb others."""

import gc
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborLoader, Store
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.lease import Lease
from gnndrive.common import array_pool
from gnndrive.common.loop_thread import LoopThread
from gnndrive.loader.runtime import Runtime
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.output_queue import OutputQueue, References
from tests.interrupted import drop_and_interrupt
from tests.loader.conftest import NODES, Make

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
def test_two_hundred_iterators_leave_nothing(
    wide: Store, engine: str, nothing_is_left: None
) -> None:
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

    for number in range(80):
        cycle(number)
    before = threads(), descriptors(), len(gc.get_objects()), psutil.Process().memory_info().rss
    for number in range(200):
        cycle(number)
    # 200 batches would be 60 MB, 200 buffers 160 MB; an epoch has dozens of objects.
    assert becomes_true(lambda: threads() == before[0])
    assert becomes_true(lambda: descriptors() == before[1])
    loader.close()
    gc.collect()
    assert len(gc.get_objects()) - before[2] < 1_000
    assert psutil.Process().memory_info().rss - before[3] < 25_000_000
    assert living(Epoch, Lease, FeatureBuffer) <= alive + 1, "more than the loader's own buffer"


@pytest.mark.parametrize("topology", ["resident", "mmap", "direct"])
def test_loaders_leave_nothing(make: Make, topology: str, nothing_is_left: None) -> None:
    for number in range(20):
        loader = make(topology=topology)
        iterator = iter(loader)
        if number % 2:
            next(iterator)
        loader.close()


def test_a_loader_that_is_dropped_leaves_nothing(store: Store, nothing_is_left: None) -> None:
    loader = NeighborLoader(store, [4], batch_size=16, buffer="40KB")
    for _ in loader:
        pass
    iterator = iter(loader)
    next(iterator)
    number = sys.getrefcount(loader)
    del iterator
    assert sys.getrefcount(loader) == number - 1, "only an iterator keeps its loader"
    gc.disable()  # no cycle: it goes at once, and its buffer with it
    try:
        del loader
        assert becomes_true(lambda: not any("gnndrive" in name.name for name in named_threads()))
    finally:
        gc.enable()


def named_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread()]


def test_a_loader_collected_in_its_own_thread_leaves_nothing(
    store: Store, nothing_is_left: None
) -> None:
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


def test_an_iterator_keeps_its_loader(store: Store) -> None:
    """`for batch in NeighborLoader(…)` holds nothing but the iterator."""
    number = 0
    for _ in NeighborLoader(store, [2], batch_size=50, buffer="40KB"):
        gc.collect()
        number += 1
    assert number == NODES // 50


def test_an_engine_that_cannot_start_leaves_nothing(
    make: Make, nothing_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnndrive.loader.arguments.IO_DEPTH_MAX", 1 << 30)
    for _ in range(3):
        with pytest.raises(ConfigError):
            iter(make(engine="uring", io_depth=1_000_000))


def test_no_more_batches_live_than_are_planned_for(make: Make) -> None:
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


def test_closing_an_iterator_ends_it_like_a_generator(make: Make) -> None:
    loader = make()
    iterator = iter(loader)
    next(iterator)
    iterator.close(), iterator.close()
    assert list(iterator) == []
    assert sum(1 for _ in loader) == len(loader)


def test_closing_the_loader_in_the_middle_raises(make: Make) -> None:
    """An epoch that ends too early must not look like one that is complete."""
    loader = make()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    loader.close()
    with pytest.raises(ClosedError, match="in the middle of this epoch"):
        next(iterator)
    assert list(iterator) == []


def test_closing_the_loader_after_the_end_does_not_raise(make: Make) -> None:
    loader = make(batch_size=200, buffer="80KB")
    iterator, closed = iter(loader), iter(loader)
    assert len([next(iterator), next(iterator)]) == len(loader)
    closed.close()
    assert next(iterator, None) is None
    loader.close(), loader.close()
    assert list(iterator) == list(closed) == []


def test_closing_again_after_an_interrupt(
    make: Make, nothing_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while `close` waits: the next `close` waits for the same end."""
    loader = make()
    iterator = iter(loader)
    next(iterator)
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
    with pytest.raises(ClosedError):
        list(iterator)


def test_closing_from_within_a_start(
    make: Make, nothing_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler closes loaders while one reads its graph at its first `iter`."""
    starting, other = make(), make()
    next(iter(other))

    def interrupted(*arguments: Any, **more: Any) -> Runtime:
        monkeypatch.undo()
        other.close()
        starting.close()
        return Runtime(*arguments, **more)

    monkeypatch.setattr("gnndrive.loader.store_loader.Runtime", interrupted)
    with pytest.raises(ClosedError):
        iter(starting)


def test_an_interrupt_right_after_the_engines_have_started(
    make: Make, nothing_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_closed_loader_cannot_be_iterated(make: Make) -> None:
    loader, unused = make(), make()
    next(iter(loader))
    for each in (loader, unused):
        each.close()
        with pytest.raises(ClosedError, match="make a new one"):
            iter(each)


def divide_by_zero(loader: NeighborLoader) -> None:
    for batch in loader:
        batch.batch_size / 0


def test_a_loader_as_a_context(make: Make, nothing_is_left: None) -> None:
    with make() as loader:
        assert next(iter(loader)).batch_size == 16
    with pytest.raises(ClosedError):
        iter(loader)
    loader = make()
    with pytest.raises(ZeroDivisionError), loader:
        divide_by_zero(loader)
    with pytest.raises(ClosedError):
        iter(loader)


def test_threads_may_close_and_iterate_at_once(make: Make, nothing_is_left: None) -> None:
    """A user who comes too late gets ClosedError; no thread waits for ever."""
    for _ in range(20):
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


def test_an_iterator_may_move_between_threads(make: Make) -> None:
    iterator = iter(make())
    got: list[Data] = []
    for _ in range(NODES // 16):
        user = threading.Thread(target=lambda: got.append(next(iterator)))
        user.start()
        user.join()
    assert next(iterator, None) is None
    input_id = torch.cat([batch.input_id for batch in got])
    assert np.array_equal(input_id, np.arange(NODES))


def test_the_output_queue_gets_references_to_a_batchs_rows(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_dropping_a_finished_iterator_loses_no_ctrl_c(make: Make) -> None:
    only = [iter(make())]
    for _ in only[0]:
        pass
    drop_and_interrupt(only)
