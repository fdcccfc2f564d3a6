"""The windows of an epoch whose batches are sampled inside mega-batches (HierBatching §3).

A window is a lease: its rows are prefetched through the feature buffer and stay in it until the
window's last batch is released. `PartitionWindows` says what belongs to a window, `WindowFeed`
samples inside windows. One of its tasks opens them in order, each while the one before is trained
on: it leases the window's rows by chunks, and has a worker load the window's graph. The sample
stage waits for the graph; a batch that finds a row missing loads it, as ever.

Two windows hold rows at the same time. This task never waits for slots, because the batches that
hold them may stand behind it in the admission queue: a chunk that is not admitted in the step in
which it joins is given up until slots were released (rule 16). The rows of a younger window are
leased only when the older one holds all of its rows; an oldest window that cannot hold all of them
gives them back, because its batches need those slots to load what is missing (rule 17). The batches
of a younger window that lacks rows are not sampled before the older one has ended, because in any
order (in_order=False) they may join the queue before the older one's last batches, and would wait
for the slots that it holds (rule 18).

The plan counts slots for two windows, so that this happens only if windows differ more than planned
because others between them are left out; to a second iterator, which has a smaller buffer; and if a
row cannot be read: the slots of such rows are of no use to the batches that need them, so their
window counts as one that lacks slots.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.errors import ClosedError, ConfigError, ReadError
from gnndrive.common.records import IndexPointers, Int64Array, Seeds
from gnndrive.pipeline.epoch import BatchLease, Counters, Epoch
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.pipeline.workers import Workers
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.window_graph import WindowGraph
from gnndrive.store.partitioned.format import TABLE
from gnndrive.store.partitioned.partitioned import Partitioned, touching

LIVE_MAX = 2  # windows: one is trained on, the next one is loaded
READING_MAX = 2  # chunks of rows that are read at the same time
CHUNK_ROWS = 1 << 16  # rows that are leased together

Rows = Mapping[str, Int64Array]


class PartitionWindows:
    """An epoch's windows that have batches left, their rows and graphs, and `static` rows."""

    def __init__(
        self, partitioned: Partitioned, static: int, index_pointers: IndexPointers,
        left: Callable[[], Iterator[Window]],
    ) -> None:  # fmt: skip
        self._partitioned, self._static = partitioned, static
        self._index_pointers, self._left = index_pointers, left
        self._stop = StopToken()

    def windows(self) -> Iterator[Window]:
        """The windows in order, each with the number of its batches that are left."""
        return self._left()

    def kept_rows(self) -> Iterator[Rows]:
        """Chunks of the static rows, which lie behind all partitions."""
        first = self._partitioned.num_nodes
        return _chunks(first, first + self._static)

    def rows_of(self, window: Window) -> Iterator[Rows]:
        """Chunks of a window's rows, in the order in which they lie on disk."""
        assert window.partitions is not None
        bounds = self._partitioned.bounds
        first, last = touching(bounds, window.partitions)
        for begin, end in zip(bounds[first].tolist(), bounds[last + 1].tolist(), strict=True):
            yield from _chunks(begin, end)

    def in_edges_of(self, window: Window) -> int:
        """How many in-edges the nodes of a window's graph have in the store."""
        assert window.partitions is not None
        static = int(self._partitioned.static_bounds[self._static])
        return static + int(self._other_codes[window.partitions].sum())

    @cached_property
    def _other_codes(self) -> Int64Array:
        """The in-edges of the nodes of each partition that are not static, int64 [P]."""
        partitioned, static = self._partitioned, self._static
        home = np.searchsorted(partitioned.bounds, partitioned.home[:static], "right") - 1
        found = np.diff(partitioned.edge_bounds)
        np.subtract.at(found, home, np.diff(partitioned.static_bounds[: static + 1]))
        return found

    def graph(self, window: Window) -> WindowGraph:
        """In a worker thread: load the adjacency inside a window; ClosedError after `stop`."""
        assert window.partitions is not None
        return load_window(
            self._partitioned, self._index_pointers, window.partitions, self._static, self._stop
        )

    def stop(self) -> None:
        """Make `graph` end soon; any thread may call this."""
        self._stop.set()


def _chunks(first: int, last: int) -> Iterator[Rows]:
    for start in range(first, last, CHUNK_ROWS):
        yield {TABLE: np.arange(start, min(start + CHUNK_ROWS, last))}


class _Source(Protocol):
    """What a feed asks of `PartitionWindows`, or of simulated windows."""

    def windows(self) -> Iterator[Window]: ...
    def kept_rows(self) -> Iterable[Rows]: ...
    def rows_of(self, window: Window) -> Iterable[Rows]: ...
    def graph(self, window: Window) -> Topology: ...
    def stop(self) -> None: ...


@dataclass(eq=False)
class _Held:
    """Rows that the feed holds, in chunks: a window's, or those of the whole epoch."""

    missing: deque[Rows]
    leases: list[tuple[Rows, BatchLease]] = field(default_factory=list)
    left: int = 0  # batches of the window that are not released
    growing: bool = False  # whether chunks are being leased now
    failed: bool = False  # whether a row could not be read
    load_s: float = 0.0
    opened: float | None = None  # when the window was loaded, by `perf_counter`

    def release(self) -> None:
        """Release all leases for good; if the feed is leasing more, it does so afterwards."""
        self.missing.clear()
        while self.leases and not self.growing:
            self.leases.pop()[1].release()

    def give_back(self) -> None:
        """Release all leases; the chunks are missing then."""
        while self.leases:
            rows, lease = self.leases.pop()
            self.missing.appendleft(rows)
            lease.release()


class WindowFeed(SampledFeed):
    """Samples inside windows, of which two are in memory; see `epoch.Feed`."""

    _buffer: FeatureBuffer | None = None
    _workers: Workers
    _counters: Counters

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._kept = _Held(deque(source.kept_rows()))
        self._live: dict[int, _Held] = {}
        self._graphs: dict[int, asyncio.Future[Topology]] = {}
        self._window_of: dict[int, int] = {}  # of a batch that was drawn and is not released
        self._released = asyncio.Event()
        self._idle_since: float | None = None
        self._last_end = 0.0  # when the last window's batches were released

    # ---- what the stages call ----

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`: the sample stage, and what opens windows."""
        assert isinstance(epoch.buffer, FeatureBuffer), "only a FeatureBuffer keeps windows"
        self._buffer, self._workers = epoch.buffer, epoch.workers
        self._counters, self._idle_since = epoch.counters, perf_counter()
        return [*super().stages(epoch), self.run()]

    def drawn(self, window: Window, seeds: Seeds) -> None:
        """See `Feed.drawn`."""
        self._window_of[seeds.index] = window.number

    async def topologies(self, index: int) -> Sequence[Topology]:
        """See `Feed.topologies`: the graph of the batch's window, once that is open."""
        return [await asyncio.shield(self._graph(self._window_of[index]))]

    def stop(self) -> None:
        """See `Feed.stop`."""
        self._source.stop()

    def close(self) -> None:
        """See `Feed.close`."""
        self._graphs.clear()
        self._live.clear()
        self._buffer = None

    def released(self, index: int) -> None:
        """See `Feed.released`; a window's rows and graph go with its last batch."""
        number = self._window_of.pop(index)
        held = self._live[number]
        held.left -= 1
        if not held.left:
            del self._live[number], self._graphs[number]
            held.release()
            now = perf_counter()
            if held.opened is not None:
                compute_s = now - max(held.opened, self._last_end)
                self._counters.window_seconds.append((held.load_s, compute_s))
            self._last_end = now
            if not self._live or not self._opened(next(iter(self._live))):
                self._idle_since = now
            self._released.set()

    # ---- what opens windows ----

    async def run(self) -> None:
        """Open window after window until the epoch's last batch is released."""
        try:
            for window in self._source.windows():
                await self._no_more_than(LIVE_MAX - 1)
                await self._open(window)
            await self._no_more_than(0)
        finally:
            for held in (*self._live.values(), self._kept):
                held.release()
            for graph in self._graphs.values():
                if not graph.done():
                    graph.set_exception(ClosedError("the epoch has ended"))
                    graph.exception()  # retrieved, because perhaps no batch waits for it

    def _graph(self, number: int) -> asyncio.Future[Topology]:
        if number not in self._graphs:
            self._graphs[number] = asyncio.get_running_loop().create_future()
        return self._graphs[number]

    def _opened(self, number: int) -> bool:
        return number in self._graphs and self._graphs[number].done()

    async def _no_more_than(self, count: int) -> None:
        """Wait until at most `count` windows are live."""
        while len(self._live) > count:
            self._released.clear()
            await self._lease_all()
            await self._released.wait()

    async def _open(self, window: Window) -> None:
        """Load a window; then its batches may be sampled."""
        started = perf_counter()
        held = _Held(deque(self._source.rows_of(window)), left=window.count)
        self._live[window.number] = held
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(self._load_graph(window))
            await self._lease_all()
        held.load_s = perf_counter() - started
        await self._wait_for_rows(held)
        held.opened = perf_counter()
        self._counters.windows += 1
        self._counters.window_load_s += held.load_s
        if self._idle_since is not None:
            self._counters.window_wait_s += held.opened - self._idle_since
            self._idle_since = None
        graph, loaded = self._graph(window.number), loading.result()
        if isinstance(loaded, Topology):
            graph.set_result(loaded)
        else:  # surfaces at the turn of the window's first batch
            graph.set_exception(loaded)
            graph.exception()  # retrieved, because perhaps no batch waits for it

    async def _wait_for_rows(self, held: _Held) -> None:
        """Wait until a window has all its rows, or is the oldest one (rule 18)."""
        while (held.missing or held.failed) and held is not self._oldest:
            self._released.clear()
            await self._released.wait()
            await self._lease_all()

    @property
    def _oldest(self) -> _Held | None:
        return next(iter(self._live.values()), None)

    async def _load_graph(self, window: Window) -> Topology | Exception:
        try:
            return await self._workers.run(self._source.graph, window)
        except Exception as error:
            return error

    async def _lease_all(self) -> None:
        """Lease what is missing, the oldest window's rows first, as far as there are slots."""
        for held in (self._kept, *self._live.values()):
            if not await self._lease(held):
                if held is self._kept or held is self._oldest:
                    held.give_back()
                return

    async def _lease(self, held: _Held) -> bool:
        """Lease the chunks that are missing and wait for their rows; return whether all chunks are
        leased. A row that cannot be read is an error of the batches that need it."""
        reading, room = deque[BatchLease](), not held.failed
        held.growing = True
        try:
            while (held.missing and room) or reading:
                if held.missing and room and len(reading) < READING_MAX:
                    lease = self._lease_now(held.missing[0])
                    if lease is not None:
                        held.leases.append((held.missing.popleft(), lease))
                        reading.append(lease)
                    room = lease is not None
                elif not await _all_valid(reading.popleft()):
                    held.failed, room = True, False
            return room
        finally:
            held.growing = False
            if held is not self._kept and not held.left:
                held.release()  # its last batch was released meanwhile

    def _lease_now(self, rows: Rows) -> BatchLease | None:
        assert self._buffer is not None
        try:
            return self._buffer.lease_now(rows)
        except ConfigError:  # the buffer, perhaps a second iterator's, has fewer slots than rows
            return None


async def _all_valid(lease: BatchLease) -> bool:
    """Wait until each row of a lease is valid or has failed; return whether all are valid."""
    try:
        await lease.ready()
    except (ReadError, ClosedError):
        return False
    return True
