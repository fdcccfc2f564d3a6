"""The adjacency behind a loader: which topology by the memory there is, and what it reads with.

`choose_topology` is for the plan and reads nothing. `Adjacency` opens what was chosen; for a
topology that reads as it goes it has a ring and an event loop of its own: the features' ring serves
jobs first come first served, and their loop is busy for longer than a hop takes while it admits a
sweep; a sample must wait for neither.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import mul

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.loop_thread import CLOSED, LoopThread, in_loop_thread
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.plugins import find
from gnndrive.common.records import FAILURE, EngineSettings, TableFile, TopologyChoice
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.loader.arguments import size_or_none
from gnndrive.plan.plan import DEFAULT_SHARE, MAPPING_BYTES, rest_bytes, slot_bytes
from gnndrive.plan.requirements import Requirements
from gnndrive.plan.slot_split import split_slots
from gnndrive.sampling.rounds import CancellableLock
from gnndrive.sampling.topologies._neighbours import build_bytes, least_bytes, most_bytes
from gnndrive.sampling.topologies.base import GraphSize, Source, Topology
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges

IO_DEPTH = 64  # of the adjacency's ring; the features' is deeper and has more to read
RING_BYTES = IO_DEPTH * SWEEP_BLOCK_BYTES  # of its staging
BUFFER_BATCHES = 1.5  # largest batches that the feature buffer shall hold beside all indices,
CACHE_BATCHES = 1.0  # and beside a neighbour cache, whose bytes save more reads than a slot's
CACHE_SHARE = 0.1  # of the memory given, for the neighbour cache if nothing is said


def graph_sizes(store: Store) -> list[GraphSize]:
    """How large a store's graph is, of each edge type."""
    return [_size(edges) for edges in store.all_edges()]


def _size(edges: StoredEdges) -> GraphSize:
    source, target = edges.source, edges.target
    others = None if source.type == target.type else source.num_nodes
    return GraphSize(target.num_nodes, edges.num_edges, edges.indices_file.row_bytes, others)


def choose_topology(
    name: str,
    neighbour_cache: str | int | None,
    sizes: Sequence[GraphSize],
    requirements: Requirements,
    memory: int | None,
    buffer: int | None,
) -> TopologyChoice:
    """Choose the topology, and say why.

    "auto" is "resident" if the indices fit into `memory` beside everything else and a feature
    buffer of one and a half of the largest batch (or of the size asked for); without `memory`, if
    they fit into a quarter of what is available. Else it is "direct" where there is a `memory` to
    keep to, and "mmap" where there is none.

    Args:
        name: a topology's, or "auto".
        neighbour_cache: what "direct" keeps of the adjacency, bytes or text; 0: nothing; None: a
            tenth of the memory given, if a largest batch still fits into the feature buffer.
        sizes: of the graph, one an edge type.
        demand: what else needs memory.
        memory, buffer: the loader's, in bytes, or None.

    Raises:
        ConfigError: there is no such topology, or a neighbour cache that cannot work.
    """
    reason = "as asked for"
    if name == "auto":
        name, reason = _by_memory(
            sizes, _room(requirements, memory, buffer, BUFFER_BATCHES), memory
        )
    elif name != "direct" and neighbour_cache is not None:
        raise ConfigError(
            f"neighbour_cache={neighbour_cache!r} is for topology='direct', which reads the "
            f"adjacency from disk; topology={name!r} has no use for it: leave it out"
        )
    kind: type[Topology] = find("topologies", name)
    nbytes = kind.planned_bytes(sizes, 0, requirements.samplers)
    if name != "direct":
        return TopologyChoice(name, f"{name}, {reason}", nbytes)
    nbytes += RING_BYTES
    given = memory if memory is not None else DEFAULT_SHARE * available_memory()
    room = _room(requirements, memory, buffer, CACHE_BATCHES) - nbytes
    cache = _cache_bytes(neighbour_cache, sizes, min(int(CACHE_SHARE * given), room))
    # Making a cache needs out-degrees for a moment, before there is a mapping table.
    mapping = MAPPING_BYTES * requirements.table_rows
    making = max(build_bytes(size) for size in sizes) - mapping if cache else 0
    parts = f"neighbour cache {format_size(cache)}, fetches {format_size(nbytes)}"
    why = f"direct, {reason}; {parts}"
    return TopologyChoice(name, why, max(cache + nbytes, making), cache)


def _room(
    requirements: Requirements, memory: int | None, buffer: int | None, batches: float
) -> int:
    """What the adjacency may take beside a buffer of `buffer` or so many batches, in bytes; less
    than 0 if there is too little without it."""
    if memory is None:
        return int(DEFAULT_SHARE * available_memory())
    slots = [min(int(batches * table.batch_rows_max), table.rows) for table in requirements.tables]
    if buffer is not None:
        slots = split_slots(
            buffer, requirements.tables, [table.row_bytes for table in requirements.tables]
        )
    held: int = sum(map(mul, slots, slot_bytes(requirements)))
    return memory - rest_bytes(requirements) - held


def _by_memory(sizes: Sequence[GraphSize], room: int, memory: int | None) -> tuple[str, str]:
    packed = sum(size.packed_bytes for size in sizes)
    indices = f"{format_size(packed)} of indices"
    if packed <= room:
        return "resident", f"for {indices} fit beside the feature buffer"
    if memory is not None:
        return "direct", f"for {format_size(max(room, 0))} are left for {indices}"
    return "mmap", f"for {indices} are too many and no memory= asks to count them"


def _cache_bytes(asked: str | int | None, sizes: Sequence[GraphSize], room: int) -> int:
    """The size of the neighbour cache: what was asked for, or up to `room`."""
    least, most = sum(map(least_bytes, sizes)), sum(map(most_bytes, sizes))
    if asked is None:
        return min(room, most) if room > least else 0
    wanted = size_or_none(asked, "neighbour_cache")
    if 0 < wanted <= least:
        raise ConfigError(
            f"neighbour_cache={format_size(wanted)} holds no list: the address table alone takes "
            f"{format_size(least)}; give more, or 0 for none"
        )
    return min(wanted, most)


def _divided(cache: int, sizes: Sequence[GraphSize]) -> list[int]:
    """A neighbour cache for each edge type, by what its lists would take."""
    least, most = list(map(least_bytes, sizes)), list(map(most_bytes, sizes))
    left = max(cache - sum(least), 0)
    return [
        low + left * (high - low) // max(sum(most) - sum(least), 1) if cache else 0
        for low, high in zip(least, most, strict=True)
    ]


def mapped(edges: StoredEdges) -> Topology:
    """A graph on mapped indices: at hand at once, for a sample here and there."""
    return Mmap(edges.index_pointers, edges.indices, str(edges.indices_path))


class Adjacency:
    """A store's topologies, one an edge type, and what they read with; opening them may read the
    graph.

    Args:
        edges: of each type.
        choice: which topology.
        layout: the name of the layout that plans reads.
        gap_bytes_max: indices at most this far apart on disk are read as one.

    Attributes:
        topologies: in the same order.

    Raises:
        StoreError, ReadError: the graph cannot be read.
    """

    def __init__(
        self, edges: Sequence[StoredEdges], choice: TopologyChoice, layout: str, gap_bytes_max: int
    ) -> None:
        self._layouts: list[Layout] = []
        self._loop_thread: LoopThread | None = None
        self._engine: Engine | None = None
        kind: type[Topology] = find("topologies", choice.name)
        self._name, self._last_stats = choice.name, Counter[str]()
        self._layout, self._gap_bytes_max = layout, gap_bytes_max
        sizes = [_size(each) for each in edges]
        self.topologies: list[Topology] = []
        lock = CancellableLock()
        try:
            caches = _divided(choice.cache_bytes, sizes)
            for each, size, cache in zip(edges, sizes, caches, strict=True):
                file = each.indices_file
                source = Source(
                    each.index_pointers, partial(getattr, each, "indices"), file,
                    partial(self.layout, file), self.read, cache, size.sources, lock,
                )  # fmt: skip
                self.topologies.append(kind.open(source))
        except BaseException:
            for opened in self._layouts:
                opened.close()
            raise

    def layout(self, file: TableFile) -> Layout:
        """A layout for reads of `file` through `read`; closed with this object. Before `start`."""
        opened: Layout = find("layouts", self._layout)(
            file,
            extent_bytes_max=SWEEP_BLOCK_BYTES,
            gap_bytes_max=self._gap_bytes_max,
            repeats=True,
        )
        self._layouts.append(opened)
        return opened

    def start(self, engine: type[Engine], settings: EngineSettings) -> None:
        """Make the engine, if there is need for one, of the kind and with the faults of the
        features'."""
        if not self._layouts:
            return
        own = replace(settings, depth=IO_DEPTH, block_bytes=SWEEP_BLOCK_BYTES, gives_way=False)
        self._loop_thread, self._engine = in_loop_thread(partial(engine, own), "gnndrive-adjacency")

    def read(self, reads: ReadJob) -> npt.NDArray[np.void]:
        """Carry reads out and return the failures, `FAILURE` [n]; blocking, for a worker thread.

        Raises:
            ClosedError: the loader was closed.
        """
        loop_thread = self._loop_thread
        if loop_thread is None:
            raise ClosedError(CLOSED)
        return loop_thread.call(self._read(reads))

    async def _read(self, reads: ReadJob) -> npt.NDArray[np.void]:
        assert self._engine is not None
        failures = [stretch.failures async for stretch in self._engine.read(reads)]
        return np.concatenate([np.empty(0, FAILURE), *failures])

    def stats(self) -> dict[str, float | str]:
        """Counters since the start, and the topology's name."""
        engine = Counter(self._engine_stats())
        return {
            "topology": self._name,
            "topology_requests": engine["requests"],
            "topology_bytes_read": engine["bytes"],
            **(self._counted() if self.topologies else self._last_stats),
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
            counted.update(topology.stats())
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
                self._last_stats = self._counted()
                self.topologies = []
            for layout in self._layouts:
                layout.close()
