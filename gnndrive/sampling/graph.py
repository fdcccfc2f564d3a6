"""The adjacency behind a loader: its topologies and what they read with.

For topologies that read while samples are drawn there is a ring and an event loop apart from the
features': the features' ring serves jobs first come first served, and their loop is busy for longer
than a hop takes while it admits a sweep. A sample must wait for neither.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError
from gnndrive.common.loop_thread import CLOSED, LoopThread, in_loop_thread
from gnndrive.common.plugins import find, name_of
from gnndrive.common.records import FAILURE, EngineSettings, TableFile, TopologyChoice
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts import open_array
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, Layout, LayoutContext
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.rounds import CancellableLock
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies._neighbours import divided
from gnndrive.sampling.topologies.base import IO_DEPTH, GraphSize, Topology, TopologyContext
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges


def graph_sizes(store: Store) -> list[GraphSize]:
    """How large a store's graph is, of each edge type."""
    return [_size(edges) for edges in store.all_edges()]


def _size(edges: StoredEdges) -> GraphSize:
    source, target = edges.source, edges.target
    others = None if source.type == target.type else source.num_nodes
    return GraphSize(target.num_nodes, edges.num_edges, edges.indices_file.row_bytes, others)


def mapped(edges: StoredEdges) -> Topology:
    """A graph on mapped indices: ready at once, for a sample here and there."""
    return over_arrays(edges.index_pointers, edges.indices, str(edges.indices_path))


class Adjacency:
    """A store's topologies, one an edge type, and what they read with; opening them may read the
    graph.

    Args:
        edges: of each type.
        choice: which topology.
        gap_bytes_max: indices at most this far apart on disk are read as one.

    Attributes:
        topologies: in the same order.

    Raises:
        StoreError, ReadError: the graph cannot be read.
    """

    def __init__(
        self, edges: Sequence[StoredEdges], choice: TopologyChoice, gap_bytes_max: int
    ) -> None:
        self._layouts: list[Layout] = []
        self._loop_thread: LoopThread | None = None
        self._engine: Engine | None = None
        kind: type[Topology] = find("topologies", choice.kind)
        self._name, self._last_counted = name_of(choice.kind), Counter[str]()
        self._gap_bytes_max = gap_bytes_max
        sizes = [_size(each) for each in edges]
        self.topologies: list[Topology] = []
        lock = CancellableLock()
        try:
            caches = divided(choice.cache_bytes, sizes)
            for each, size, cache in zip(edges, sizes, caches, strict=True):
                file = each.indices_file
                context = TopologyContext(
                    each.index_pointers, partial(getattr, each, "indices"), file,
                    partial(self.layout, file), self.read, cache, size.sources, lock,
                )  # fmt: skip
                self.topologies.append(kind.make(context))
        except BaseException:
            for opened in self._layouts:
                opened.close()
            raise

    def layout(self, file: TableFile) -> Layout:
        """A layout for reads of `file` through `read`; closed with this object. Before `start`."""
        opened = open_array(
            LayoutContext(file, SWEEP_BLOCK_BYTES, self._gap_bytes_max, repeats=True)
        )
        self._layouts.append(opened)
        return opened

    def start(self, engine: type[Engine], settings: EngineSettings) -> None:
        """Make the engine, if there is need for one, of the kind and with the faults of the
        features'."""
        if not self._layouts:
            return
        own = replace(settings, depth=IO_DEPTH, block_bytes=SWEEP_BLOCK_BYTES, gives_way=False)
        self._loop_thread, self._engine = in_loop_thread(
            partial(engine.make, own), "gnndrive-adjacency"
        )

    def read(self, job: ReadJob) -> npt.NDArray[np.void]:
        """Carry reads out and return the failures, `FAILURE` [n]; blocking, for a worker thread.

        Raises:
            ClosedError: the loader was closed.
        """
        loop_thread = self._loop_thread
        if loop_thread is None:
            raise ClosedError(CLOSED)
        return loop_thread.call(self._read(job))

    async def _read(self, job: ReadJob) -> npt.NDArray[np.void]:
        assert self._engine is not None
        failures = [stretch.failures async for stretch in self._engine.read(job)]
        return np.concatenate([np.empty(0, FAILURE), *failures])

    def stats(self) -> dict[str, float | str]:
        """Counters since the start, and the topology's name."""
        engine = Counter(self._engine_stats())
        return {
            "topology": self._name,
            "topology_requests": engine["requests"],
            "topology_bytes_read": engine["bytes"],
            **(self._counted() if self.topologies else self._last_counted),
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

    def _counted(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for topology in self.topologies:
            counted.update(topology.counted)
        return counted

    def close(self) -> None:
        """Wait for the kernel, close files, let go of the graph; no sampler may be at work."""
        loop_thread, self._loop_thread = self._loop_thread, None
        try:
            if loop_thread is not None and self._engine is not None:
                loop_thread.call(self._engine.aclose())
        finally:
            if loop_thread is not None:
                loop_thread.close()
            if self.topologies:
                self._last_counted = self._counted()
                self.topologies = []
            for layout in self._layouts:
                layout.close()
