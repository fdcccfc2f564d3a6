"""Iterators and loaders that end, or cannot begin, free everything and do not disturb others."""

import asyncio
import errno
import gc
import os
import re
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborLoader, Store, StoreError
from gnndrive.buffer.feature_buffer import FeatureBuffer, Lease
from gnndrive.common import array_pool
from gnndrive.common.ffi import ffi
from gnndrive.common.loop_thread import LoopThread
from gnndrive.common.memory import parse_size
from gnndrive.disk.engines import uring
from gnndrive.loader.runtime import Runtime
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.output_queue import OutputQueue, Ready, References
from tests import forked
from tests.given import moved
from tests.interrupted import drop_and_interrupt, interrupted
from tests.loader.conftest import NODES
from tests.soak import product

STEP = 31  # between the points of a start at which it is interrupted
LOOKS = 20_000  # at a condition that soon becomes true, such as the end of a joined thread's entry


def open_files() -> Counter[str]:
    """What the open descriptors refer to, but for a store's graph, which it keeps mapped."""
    found = Counter[str]()
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found[os.readlink(entry.path)] += 1
    return Counter({name: n for name, n in found.items() if not re.match("/proc/|.*/graph/", name)})


def threads() -> Counter[str]:
    """The names of all threads, C's and Python's; the kernel's own for io_uring left out."""
    found = Counter[str]()
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            found[name] += not name.startswith("iou-")
    return +found


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
    before, files, alive = threads(), open_files(), threading.active_count()
    yield
    gc.collect()
    assert becomes_true(lambda: threading.active_count() <= alive), threading.enumerate()
    assert becomes_true(lambda: threads() <= before), threads()
    assert becomes_true(lambda: open_files() <= files), open_files()


@pytest.fixture
def wide(data: Data, tmp_path: Any) -> Store:
    """The graph with rows of 4 KB, so that a batch, once leaked, shows: it is some 300 KB."""
    graph = Data(x=torch.rand(NODES, 1024), edge_index=data.edge_index)
    return gnndrive.from_data(graph, tmp_path / "wide.gnn")


# ---- leaks


@pytest.mark.parametrize(("engine", "topology"), [("uring", "direct"), ("threads", "resident")])
def test_many_iterators_leave_nothing(wide, engine, topology, nothing_is_left):
    alive = living(Epoch, Lease, FeatureBuffer)  # in tracebacks that other tests keep
    loader = NeighborLoader(
        wide, [4], batch_size=16, buffer="800KB", seed=0,
        tuning=gnndrive.Tuning(engine=engine, topology=topology, io_depth=16),
    )  # fmt: skip

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
    before = threads(), open_files(), len(gc.get_objects()), psutil.Process().memory_info().rss
    for number in range(120):
        cycle(number)
    # 120 batches would be 36 MB, 120 buffers 96 MB; an epoch has dozens of objects.
    assert becomes_true(lambda: (threads(), open_files()) == before[:2])
    loader.close()
    gc.collect()
    assert len(gc.get_objects()) - before[2] < 1_000
    assert psutil.Process().memory_info().rss - before[3] < 25_000_000
    assert living(Epoch, Lease, FeatureBuffer) <= alive + 1, "more than the loader's own buffer"


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
        assert becomes_true(lambda: not any("gnndrive" in name for name in thread_names()))
    finally:
        gc.enable()


def thread_names() -> list[str]:
    return [each.name for each in threading.enumerate() if each is not threading.main_thread()]


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
        store,
        [4],
        batch_size=16,
        buffer="40KB",
        transform=transform,
        tuning=gnndrive.Tuning(samplers=1),
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

    class Interrupted:
        def __init__(self) -> None:
            self._queue = SimpleQueue[Any]()
            self.put = self._queue.put

        def get(self, timeout: None) -> Any:
            for interrupt in interrupts:
                raise interrupt
            return self._queue.get()

    monkeypatch.setattr("gnndrive.common.threads.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    loader.close()
    with pytest.raises(ClosedError, match="in the middle of this epoch"):
        next(iterator)
    assert list(iterator) == list(closed) == []


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("phase", ["start", "epoch", "close"])
def test_an_interrupt_at_any_point_leaves_nothing(store, nothing_is_left, phase, seeds):
    """The loader may be used again, closed or dropped. Here some of the points; and a graph that is
    mapped, because Python's pools of threads are not safe."""
    places = "/threading.py", "/_base.py", "/contextlib.py", "common/forks.py", "common/threads.py"
    own = "runtime.py", "store_loader.py", "iterator.py", "loop_thread.py", "workers.py"
    places += tuple(f"/{name}" for name in own)
    given = {"batch_size": 16, "buffer": "40KB", "io_depth": 16, "topology": "mmap"}
    (first,) = seeds(1)
    for number in count(first % STEP, STEP):
        loader = NeighborLoader(store, [4, 3], **moved(given))
        if phase == "close":
            iterator = iter(loader)
            next(iterator)
            there_is_one = interrupted(loader.close, number, *places)
        elif phase == "epoch":
            iterator = iter(loader)
            there_is_one = interrupted(partial(list, iterator), number, *places)
            iterator = None
            assert sum(1 for _ in loader) == len(loader)
        else:
            there_is_one = interrupted(partial(iter, loader), number, *places)
            assert sum(1 for _ in loader) == len(loader)
        if number % 2:
            loader.close()
        loader = iterator = None
        gc.collect()  # not within the next one
        if not there_is_one:
            break
    assert number > 2 * STEP


def test_an_interrupt_right_after_the_engines_have_started(make, nothing_is_left, monkeypatch):
    """Both engines are there by then, each in a thread of its own."""
    call = LoopThread.call

    def interrupted(loop_thread: LoopThread, doing: Any) -> Any:
        done = call(loop_thread, doing)
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
        loader, results = make(batch_size=100, buffer="60KB"), list[Any]()

        def use(loader: NeighborLoader = loader, results: list[Any] = results) -> None:
            try:
                results.append(sum(batch.batch_size for batch in loader))
            except ClosedError:
                results.append("closed")

        users = [threading.Thread(target=call) for call in (use, use, loader.close, loader.close)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        assert set(results) <= {NODES, "closed"}
        assert len(results) == 2


def test_the_output_queue_gets_references_to_a_batchs_rows(make, monkeypatch):
    monkeypatch.setattr(array_pool, "SMALL_BYTES", 1)
    references, put_all = list[References](), OutputQueue.put_all

    def spy(output: OutputQueue, batches: list[Ready]) -> None:
        references.extend(memory for _, memory, _, _ in batches)
        put_all(output, batches)

    monkeypatch.setattr(OutputQueue, "put_all", spy)
    with make(sweep=1) as loader:
        batches = iter(loader)
        x = next(batches).x
        left = sum(1 for _ in batches)
    # All threads have ended, and hold nothing.
    assert [[each() is None for each in memory] for memory in references] == [[False]] + left * [
        [True]
    ]
    del x
    assert references[0][0]() is None


def test_dropping_a_finished_iterator_loses_no_ctrl_c(make):
    only = [iter(make())]
    for _ in only[0]:
        pass
    drop_and_interrupt(only)


# ---- several iterators at once: none waits for another


def test_an_iterator_is_refused_if_the_loader_is_closed_while_it_waits(make, stack, monkeypatch):
    """It waits for the end of a dropped iterator, whose buffer it would use."""
    inside, go_on, wait = threading.Event(), threading.Event(), asyncio.wait
    closing: list[asyncio.Future[None]] = []

    def held(batch: Any) -> Any:
        inside.set()
        go_on.wait()
        return batch

    def closed_meanwhile(tasks: Any) -> Any:
        if not closing and list(tasks) == list(runtime._tasks.values()):
            closing.append(asyncio.ensure_future(runtime._free_once()))
            go_on.set()
        return wait(tasks)

    loader = make(transform=held)
    stack.callback(go_on.set)  # before the loader is closed, which would wait for ever
    dropped = iter(loader)
    runtime = dropped._runtime
    inside.wait()
    monkeypatch.setattr(asyncio, "wait", closed_meanwhile)
    runtime.drop(dropped._epoch)
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
    with pytest.raises(ConfigError, match=r"of its own, (.+?), and memory") as refused:
        iter(alone)
    more = parse_size(re.findall(r"of its own, (.+?), and memory", str(refused.value))[0], "more")
    first.close()
    loader = make(buffer="40KB", memory=alone.plan().total_bytes + 2 * more + 1000, **stages)
    live = [iter(loader) for _ in range(3)]
    assert len({id(iterator._epoch.buffer) for iterator in live}) == 3
    with pytest.raises(ConfigError, match="a second live iterator"):
        iter(loader)
    live.pop().close()
    live.append(iter(loader))
    assert [sum(1 for _ in iterator) for iterator in live] == [len(loader)] * 3


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


@product("place,call", PLACES, [*CALLS])
def test_calls_from_its_own_threads(make, place, call):
    """They would wait for themselves."""
    loaders: list[NeighborLoader] = []
    loaders.append(make(**place(lambda: CALLS[call](loaders[0]))))
    with pytest.raises((ConfigError, RuntimeError), match=r"own threads|was closed"):
        list(loaders[0])


def test_an_iterator_in_its_own_transform(make):
    iterators: list[Iterator[Any]] = []
    loader = make(transform=lambda batch: next(iterators[0]) if iterators else batch)
    iterators.append(iter(loader))
    with pytest.raises(ConfigError, match="own threads"):
        list(iterators[0])


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
    # The limit is of the numbers of files, of which the lowest free is taken.
    free = [number for number in range(len(used) + count + 2) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], before[1]))
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
                batches = list(loader)  # labels are opened when a batch needs them
                break
            except (ConfigError, StoreError) as error:
                said.append(str(error))
        loader.close()
        assert_no_more(before)
    assert len(batches) == len(loader)
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


HEAPS = """
import ctypes, sys
import gnndrive
libc = ctypes.CDLL(None)

def print_heaps():
    libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)

print_heaps()
store = gnndrive.open(sys.argv[1])
gnndrive.pack(store, [4, 3], batch_size=16, memory="100MB", out=sys.argv[2])
with gnndrive.NeighborLoader(store, [4, 3], batch_size=16,
                             buffer="40KB",
                             tuning=gnndrive.Tuning(samplers=4, engine="threads")) as loader:
    assert len(list(loader)) == len(loader)
    print_heaps()
"""


def test_threads_share_one_heap(store, tmp_path):
    """Each would keep what it has freed in one of its own, which no plan counts."""
    ended = forked.run(HEAPS, str(store.path), str(tmp_path / "pack"))
    before, after = ended.stdout.split("</malloc>")[:2]
    assert before.count("<heap nr=") == after.count("<heap nr=") <= 2, ended.stderr
