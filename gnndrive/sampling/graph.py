"""`Adjacency`: the topologies of a store, and the engine that reads indices for them.

The loader's runtime opens one `Adjacency` and hands its topologies to the sample stage. A topology
that reads while samples are drawn gets an engine and a loop thread apart from the features'. The
features' ring serves jobs in the order of arrival, and the pipeline's event loop is busy for longer
than a hop takes while it admits a sweep; a sample must wait for neither.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError
from gnndrive.common.interrupts import interruptible
from gnndrive.common.loop_thread import CLOSED, LoopThread, in_loop_thread
from gnndrive.common.plugins import find
from gnndrive.common.records import FAILURE, EdgeKey, EngineSettings, TableFile, TopologyChoice
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts import open_array
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, Layout, LayoutContext
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.rounds import CancellableLock
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies._neighbours import divide_cache
from gnndrive.sampling.topologies.base import (
    IO_DEPTH,
    GraphSize,
    IndicesInMemory,
    Topology,
    TopologyContext,
    private_memory,
)
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges


def graph_sizes(store: Store) -> list[GraphSize]:
    """Return the size of each edge type's graph, in the order of the store's edge types."""
    return [graph_size(edges) for edges in store.all_edges()]


def graph_size(edges: StoredEdges) -> GraphSize:
    """Return the size of one edge type's graph."""
    source, target = edges.source, edges.target
    sources = None if source.type == target.type else source.num_nodes
    return GraphSize(target.num_nodes, edges.num_edges, edges.indices_file.row_bytes, sources)


def mapped(edges: StoredEdges) -> Topology:
    """Return a topology over an edge type's memory-mapped indices; reads nothing. For samples
    outside of a loader's epochs, which need no plan and no engine."""
    return over_arrays(edges.index_pointers, edges.indices, str(edges.indices_path))


class Adjacency:
    """A store's topologies, one for each edge type, and the engine that reads for them.

    Making this object opens the topologies, which may read the whole graph (`resident`, unless its
    indices are given) or parts of it (a neighbour cache). `start` must be called before the first
    sample.

    Args:
        edges: the stored edges of each type; none if batches are replayed.
        choice: which topology, and the size of its neighbour caches.
        gap_bytes_max: indices at most this many bytes apart on disk are read as one.
        in_memory: indices by edge type that another process has read, for a topology that
            `shares_indices`.
        allocate: see `TopologyContext.allocate`.

    Attributes:
        topologies: one for each of `edges`, in their order.
    """

    def __init__(
        self,
        edges: Sequence[StoredEdges],
        choice: TopologyChoice,
        gap_bytes_max: int,
        in_memory: Mapping[EdgeKey, IndicesInMemory] = MappingProxyType({}),
        allocate: Callable[[int], npt.NDArray[np.uint8]] = private_memory,
    ) -> None:
        self._layouts: list[Layout] = []
        self._loop_thread: LoopThread | None = None
        self._engine: Engine | None = None
        self._name, self._past_counters = choice.name, Counter[str]()
        self._gap_bytes_max = gap_bytes_max
        sizes = [graph_size(each) for each in edges]
        self.topologies: list[Topology] = []
        lock = CancellableLock()
        self._kind: Any = find("topologies", choice.kind) if edges else None
        self._contexts: list[TopologyContext] = []
        try:
            caches = divide_cache(choice.cache_bytes, sizes)
            for each, size, cache in zip(edges, sizes, caches, strict=True):
                file = each.indices_file
                context = TopologyContext(
                    each.index_pointers, partial(getattr, each, "indices"), file,
                    lru_cache(partial(self.layout, file)), self.read, cache, size.sources, lock,
                    allocate, in_memory.get(each.type),
                )  # fmt: skip
                self._contexts.append(context)
            self.load()
        except BaseException:
            for opened in self._layouts:
                opened.close()
            raise

    def load(self) -> None:
        """Open the topologies, if `free` has dropped them; blocks."""
        opened: list[Topology] = []
        with interruptible():
            for context in self._contexts[len(self.topologies) :]:
                opened.append(self._kind.make(context))
        self.topologies += opened

    def free(self) -> None:
        """Drop the topologies, also from every reference to `topologies`. Only while no sampler
        uses one; before the next sample, `load` opens them again."""
        self._past_counters.update(self._sum_counters())
        self.topologies.clear()

    def layout(self, file: TableFile) -> Layout:
        """Open a layout, which this object closes, to plan reads of `file`; call before `start`."""
        opened = open_array(
            LayoutContext(file, SWEEP_BLOCK_BYTES, self._gap_bytes_max, repeats=True)
        )
        self._layouts.append(opened)
        return opened

    def start(self, engine: type[Engine], settings: EngineSettings) -> None:
        """Make the engine if a topology opened a layout, with the class and settings of the
        features' engine, but for depth and block size."""
        if not self._layouts:
            return
        own = replace(settings, depth=IO_DEPTH, block_bytes=SWEEP_BLOCK_BYTES, gives_way=False)
        self._loop_thread, self._engine = in_loop_thread(
            partial(engine.make, own), "gnndrive-adjacency"
        )

    def read(self, job: ReadJob) -> npt.NDArray[np.void]:
        """Carry out a read job and return its failures, `FAILURE` [n]. Blocks; called by topologies
        in worker threads."""
        loop_thread = self._loop_thread
        if loop_thread is None:
            raise ClosedError(CLOSED)
        return loop_thread.call(self._read(job))

    async def _read(self, job: ReadJob) -> npt.NDArray[np.void]:
        assert self._engine is not None
        failures = [stretch.failures async for stretch in self._engine.read(job)]
        return np.concatenate([np.empty(0, FAILURE), *failures])

    def stats(self) -> dict[str, float | str]:
        """Return the topology's name and its counters since the start, still after `close`."""
        engine = Counter(self._engine_stats())
        counters = Counter(self._past_counters)
        counters.update(self._sum_counters())
        return {
            "topology": self._name,
            "topology_requests": engine["requests"],
            "topology_bytes_read": engine["bytes"],
            **counters,
        }

    def _engine_stats(self) -> dict[str, int]:
        engine, loop_thread = self._engine, self._loop_thread
        if engine is None:
            return {}

        async def ask() -> dict[str, int]:
            return engine.stats()

        if loop_thread is not None:
            with contextlib.suppress(ClosedError):
                return loop_thread.call(ask())
        return engine.stats()

    def _sum_counters(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for topology in self.topologies:
            total.update(topology.counted)
        return total

    def close(self) -> None:
        """Wait for reads in flight, close the files and drop the topologies. The caller has stopped
        all samplers."""
        loop_thread, self._loop_thread = self._loop_thread, None
        try:
            if loop_thread is not None and self._engine is not None:
                loop_thread.call(self._engine.aclose())
        finally:
            if loop_thread is not None:
                loop_thread.close()
            self.free()
            self._contexts = []
            for layout in self._layouts:
                layout.close()
