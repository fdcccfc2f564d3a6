"""`Graphs`: the graph in shared memory, which the service reads when a loader first asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from gnndrive.common.errors import HostServiceError
from gnndrive.common.plugins import find
from gnndrive.common.records import TopologyChoice
from gnndrive.host.budget import LESS_GRAPH, OR_DIRECT, Budget
from gnndrive.pyg.labels import kept_bytes
from gnndrive.pyg.shared_store import PublishedStore, publish
from gnndrive.sampling.graph import graph_sizes
from gnndrive.store.reader import Store

T = TypeVar("T")


def graph_bytes(store: Store, topology: str) -> int:
    """Bytes that the graph will take in shared memory, for loaders that use a topology."""
    sizes, shares = graph_sizes(store), find("topologies", topology).shares_indices
    pointers = sum(size.index_pointer_bytes for size in sizes)
    indices = sum(size.packed_bytes for size in sizes) if shares else 0
    return pointers + indices + sum(map(kept_bytes, store.all_nodes()))


class Graphs:
    """What the service has published of its store: index pointers, labels, and perhaps indices.
    What it takes is counted in `budget`."""

    def __init__(self, store: Store, budget: Budget) -> None:
        self._store, self._budget = store, budget
        self._published: dict[str, PublishedStore] = {}  # by topology
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Future[Any] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of each, by topology."""
        return {topology: each.nbytes for topology, each in self._published.items()}

    async def get(self, topology: str) -> PublishedStore:
        """The graph for loaders that use a topology; read at the first call. Only one task calls
        this at a time. ConfigError: there is no such topology, or no memory left for the graph."""
        shares, published = find("topologies", topology).shares_indices, self._published
        found = published.get(topology) if shares else next(iter(published.values()), None)
        if found is not None:
            return found
        owner, name = ("graph", topology), f"the graph with topology={topology!r}"
        remedy = LESS_GRAPH + (OR_DIRECT if shares else "")
        await self._budget.take(owner, name, graph_bytes(self._store, topology), remedy)
        try:
            found = await self.read(publish, self._store, TopologyChoice(topology, "", 0))
        except BaseException:
            self._budget.give(owner)
            raise
        self._budget.correct(owner, found.nbytes)
        published[topology] = found
        return found

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call what reads the graph in a thread, which nothing can interrupt. Only one task calls
        this at a time. HostServiceError: `end` was called."""
        if not self._ended.done():
            reading = self._loop.run_in_executor(None, function, *arguments)
            self._reading = reading
            both: list[asyncio.Future[Any]] = [reading, self._ended]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
        raise HostServiceError("the service has ended")

    @property
    def reading(self) -> bool:
        """Whether a thread is reading a graph."""
        return self._reading is not None and not self._reading.done()

    def end(self) -> None:
        """Wait for no graph any more: `get` raises, also where it waits for one now."""
        if not self._ended.done():
            self._ended.set_result(None)

    def close(self) -> None:
        """Free this process's part; loaders that have mapped it keep it. Only after `end`, when
        `get` has returned everywhere."""
        for each in self._published.values():
            each.close()
        if self._reading is not None and self.reading:
            self._reading.add_done_callback(_close_late)


def _close_late(reading: asyncio.Future[Any]) -> None:
    """Free a graph whose reading ended after it was closed."""
    if reading.cancelled() or reading.exception() is not None:
        return
    if hasattr(reading.result(), "close"):  # classes of rows have nothing to free
        reading.result().close()
