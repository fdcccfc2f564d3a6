"""The windows of an epoch whose batches are sampled inside mega-batches (HierBatching §3).

A window is a lease: its rows are prefetched through the feature buffer and stay in it until the
window's last batch is released (`buffer/held_windows.py`). If ranks share the buffer, the host
service holds the rows and loads the graphs. `PartitionWindows` says what belongs to a window,
`WindowFeed` samples inside windows. One of its tasks opens them in order, each while the one before
is trained on, and has a worker load or attach the window's graph. The sample stage waits for the
graph; a batch that finds a row missing loads it, as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.buffer.held_windows import HeldWindows, Key, chunks
from gnndrive.common.errors import ClosedError
from gnndrive.common.records import IndexPointers, Int64Array, Seeds
from gnndrive.host.remote_buffer import RemoteBuffer, SharedGraph
from gnndrive.host.window_graphs import LIVE_MAX
from gnndrive.pipeline.epoch import Counters, Epoch
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.pipeline.workers import Workers
from gnndrive.sampling.load_window import attach_window, load_window
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.window_graph import WindowGraph
from gnndrive.store.partitioned.partitioned import Partitioned, touching


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

    def rows_of(self, window: Window) -> Iterator[range]:
        """A window's rows, in chunks: the static ones, which lie behind all partitions, and those
        of its partitions, in the order in which they lie on disk."""
        assert window.partitions is not None
        bounds, behind = self._partitioned.bounds, self._partitioned.num_nodes
        yield from chunks(behind, behind + self._static)
        first, last = touching(bounds, window.partitions)
        for begin, end in zip(bounds[first].tolist(), bounds[last + 1].tolist(), strict=True):
            yield from chunks(begin, end)

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

    def graph(self, window: Window, shared: SharedGraph | None = None) -> WindowGraph:
        """In a worker thread: load the adjacency inside a window, unless the service has; after
        `stop` ClosedError."""
        assert window.partitions is not None
        if shared is not None:
            memory, sizes = shared.memory, shared.sizes
            return attach_window(self._partitioned, window.partitions, memory, sizes)
        return load_window(
            self._partitioned, self._index_pointers, window.partitions, self._static, self._stop
        )

    def stop(self) -> None:
        """Make `graph` end soon; any thread may call this."""
        self._stop.set()


class _Source(Protocol):
    """What a feed asks of `PartitionWindows`, or of simulated windows."""

    def windows(self) -> Iterator[Window]: ...
    def rows_of(self, window: Window) -> Iterable[range]: ...
    def graph(self, window: Window, shared: SharedGraph | None) -> Topology: ...
    def stop(self) -> None: ...


class _Rows(Protocol):
    """Holds the rows of windows: `HeldWindows`, or the host service's, which may have graphs."""

    @property
    def has_graphs(self) -> bool: ...
    def open(self, key: Key, rows: Iterable[range]) -> asyncio.Future[Any]: ...
    def end(self, key: Key) -> None: ...
    async def run(self) -> None: ...


@dataclass(eq=False)
class _Live:
    """A window that is in memory, or being loaded."""

    left: int  # batches that are not released
    load_s: float = 0.0
    opened: float | None = None  # when the window was loaded, by `perf_counter`


class WindowFeed(SampledFeed):
    """Samples inside windows, of which two are in memory; see `epoch.Feed`."""

    _rows: _Rows | None = None
    _workers: Workers
    _counters: Counters

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._live: dict[int, _Live] = {}
        self._graphs: dict[int, asyncio.Future[Topology]] = {}
        self._window_of: dict[int, int] = {}  # of a batch that was drawn and is not released
        self._released = asyncio.Event()
        self._idle_since: float | None = None
        self._last_end = 0.0  # when the last window's batches were released

    # ---- what the stages call ----

    def stages(self, epoch: Epoch) -> Sequence[Coroutine[Any, Any, None]]:
        """See `Feed.stages`: the sample stage, and what opens windows."""
        buffer = epoch.buffer
        if isinstance(buffer, RemoteBuffer):
            self._rows = buffer.windows
        else:
            assert isinstance(buffer, FeatureBuffer), "no other buffer keeps windows"
            self._rows = HeldWindows(buffer)
        self._workers = epoch.workers
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
        if self._rows is not None:  # here, because no worker samples in their graphs any more
            for number in self._live:
                self._rows.end((number,))
        self._graphs.clear()
        self._live.clear()
        self._rows = None

    def released(self, index: int) -> None:
        """See `Feed.released`; a window's rows and graph go with its last batch."""
        number = self._window_of.pop(index)
        live = self._live[number]
        live.left -= 1
        if not live.left:
            del self._live[number], self._graphs[number]
            if self._rows is not None:
                self._rows.end((number,))
            now = perf_counter()
            if live.opened is not None:
                compute_s = now - max(live.opened, self._last_end)
                self._counters.window_seconds.append((live.load_s, compute_s))
            self._last_end = now
            if not self._live or not self._opened(next(iter(self._live))):
                self._idle_since = now
            self._released.set()

    # ---- what opens windows ----

    async def run(self) -> None:
        """Open window after window until the epoch's last batch is released."""
        rows = self._rows
        assert rows is not None
        try:
            async with asyncio.TaskGroup() as group:
                holding = group.create_task(rows.run())
                for window in self._source.windows():
                    await self._no_more_than(LIVE_MAX - 1)
                    await self._open(window, rows)
                await self._no_more_than(0)
                holding.cancel()
        finally:
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
            await self._released.wait()

    async def _open(self, window: Window, rows: _Rows) -> None:
        """Load a window; then its batches may be sampled."""
        started = perf_counter()
        live = self._live[window.number] = _Live(window.count)
        async with asyncio.TaskGroup() as group:
            opening = rows.open((window.number,), self._source.rows_of(window))
            shared = opening if rows.has_graphs else None
            loading = group.create_task(self._load_graph(window, shared))
            await asyncio.wait([opening])
        live.opened = perf_counter()
        live.load_s = live.opened - started
        self._counters.windows += 1
        self._counters.window_load_s += live.load_s
        if self._idle_since is not None:
            self._counters.window_wait_s += live.opened - self._idle_since
            self._idle_since = None
        graph, loaded = self._graph(window.number), loading.result()
        if isinstance(loaded, Topology):
            graph.set_result(loaded)
        else:  # surfaces at the turn of the window's first batch
            graph.set_exception(loaded)
            graph.exception()  # retrieved, because perhaps no batch waits for it

    async def _load_graph(
        self, window: Window, opening: asyncio.Future[SharedGraph | None] | None
    ) -> Topology | Exception:
        try:
            shared = None if opening is None else await opening
            return await self._workers.run(self._source.graph, window, shared)
        except Exception as error:
            return error
