"""The adjacency behind a loader: which topology by the memory there is, and what it reads with.

`choose_topology` is for the plan and reads nothing. `Adjacency` opens what was chosen; for a
topology that reads as it goes it has a ring of its own, because the features' ring serves jobs
first come first served, and a sample must not wait behind a whole batch of rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gnndrive.arguments import size_or_none
from gnndrive.budget import (
    DEFAULT_SHARE,
    MAPPING_BYTES,
    Demand,
    available_memory,
    rest_bytes,
    slot_bytes,
)
from gnndrive.engines.base import Engine
from gnndrive.errors import ClosedError, ConfigError
from gnndrive.layouts.base import BLOCK_BYTES, Layout, Reads
from gnndrive.pipeline.service import CLOSED, Service
from gnndrive.plugins import find
from gnndrive.records import FAILURE, EngineSettings, TopologyChoice
from gnndrive.sizes import format_size
from gnndrive.store.reader import Store
from gnndrive.topologies._neighbours import build_bytes, least_bytes, most_bytes
from gnndrive.topologies.base import GraphSize, Source, Topology
from gnndrive.topologies.mmap import Mmap

IO_DEPTH = 64  # of the adjacency's ring; the features' is deeper and has more to read
BUFFER_BATCHES = 1.5  # largest batches that the feature buffer shall hold beside all indices,
CACHE_BATCHES = 1.0  # and beside a neighbour cache, whose bytes save more reads than a slot's
CACHE_SHARE = 0.1  # of the memory given, for the neighbour cache if nothing is said


def graph_size(store: Store) -> GraphSize:
    """How large a store's graph is."""
    return GraphSize(store.num_nodes, store.num_edges, store.table("graph/indices").row_bytes)


def choose_topology(
    name: str,
    neighbour_cache: str | int | None,
    size: GraphSize,
    demand: Demand,
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
        size: of the graph.
        demand: what else needs memory.
        memory, buffer: the loader's, in bytes, or None.

    Raises:
        ConfigError: there is no such topology, or a neighbour cache that cannot work.
    """
    reason = "as asked for"
    if name == "auto":
        name, reason = _by_memory(size, _room(demand, memory, buffer, BUFFER_BATCHES), memory)
    elif name != "direct" and neighbour_cache is not None:
        raise ConfigError(
            f"neighbour_cache={neighbour_cache!r} is for topology='direct', which reads the "
            f"adjacency from disk; topology={name!r} has no use for it: leave it out"
        )
    kind: type[Topology] = find("topologies", name)
    nbytes = kind.planned_bytes(size, 0, demand.samplers)
    if name != "direct":
        return TopologyChoice(name, f"{name}, {reason}", nbytes)
    nbytes += IO_DEPTH * BLOCK_BYTES
    given = memory if memory is not None else DEFAULT_SHARE * available_memory()
    room = _room(demand, memory, buffer, CACHE_BATCHES) - nbytes
    cache = _cache_bytes(neighbour_cache, size, min(int(CACHE_SHARE * given), room))
    # Making a cache needs out-degrees for a moment, before there is a mapping table.
    making = build_bytes(size) - MAPPING_BYTES * size.nodes if cache else 0
    parts = f"neighbour cache {format_size(cache)}, fetches {format_size(nbytes)}"
    why = f"direct, {reason}; {parts}"
    return TopologyChoice(name, why, max(cache + nbytes, making), cache)


def _room(demand: Demand, memory: int | None, buffer: int | None, batches: float) -> int:
    """What the adjacency may take beside a buffer of `buffer` or so many batches, in bytes; less
    than 0 if there is too little without it."""
    if memory is None:
        return int(DEFAULT_SHARE * available_memory())
    slots = int(batches * demand.batch_rows_max)
    if buffer is not None:
        slots = buffer // max(demand.row_bytes, 1)
    return memory - rest_bytes(demand) - min(slots, demand.nodes) * slot_bytes(demand)


def _by_memory(size: GraphSize, room: int, memory: int | None) -> tuple[str, str]:
    indices = f"{format_size(size.packed_bytes)} of indices"
    if size.packed_bytes <= room:
        return "resident", f"for {indices} fit beside the feature buffer"
    if memory is not None:
        return "direct", f"for {format_size(max(room, 0))} are left for {indices}"
    return "mmap", f"for {indices} are too many and no memory= asks to count them"


def _cache_bytes(asked: str | int | None, size: GraphSize, room: int) -> int:
    """The size of the neighbour cache: what was asked for, or up to `room`."""
    least, most = least_bytes(size), most_bytes(size)
    if asked is None:
        return min(room, most) if room > least else 0
    wanted = size_or_none(asked, "neighbour_cache")
    if 0 < wanted <= least:
        raise ConfigError(
            f"neighbour_cache={format_size(wanted)} holds no list: the address table alone takes "
            f"{format_size(least)}; give more, or 0 for none"
        )
    return min(wanted, most)


def mapped(store: Store) -> Topology:
    """A store's graph on mapped indices: at hand at once, for a sample here and there."""
    return Mmap(store.index_pointers, store.indices, str(store.indices_path))


class Adjacency:
    """A store's topology and what it reads with; opening one may read the graph.

    Args:
        store: whose graph.
        choice: which topology.
        layout: the name of the layout that plans its reads.
        gap_bytes_max: indices at most this far apart on disk are read as one.

    Raises:
        StoreError, ReadError: the graph cannot be read.
    """

    def __init__(
        self, store: Store, choice: TopologyChoice, layout: str, gap_bytes_max: int
    ) -> None:
        file = store.table("graph/indices")
        self._layout: Layout | None = None

        def open_layout() -> Layout:
            options = {"extent_bytes_max": BLOCK_BYTES, "gap_bytes_max": gap_bytes_max}
            opened: Layout = find("layouts", layout)(file, **options, repeats=True)
            self._layout = opened
            return opened

        self._service: Service | None = None
        self._engine: Engine | None = None
        source = Source(
            store.index_pointers,
            lambda: store.indices,
            file,
            open_layout,
            self.read,
            choice.cache_bytes,
        )  # fmt: skip
        kind: type[Topology] = find("topologies", choice.name)
        self._name, self._last_stats = choice.name, dict[str, int]()
        self.topology: Topology | None = kind.open(source)

    def start(self, service: Service, engine: type[Engine], settings: EngineSettings) -> None:
        """In the service's loop: make the engine, if there is need for one, of the kind and with
        the faults of the features'."""
        self._service = service
        if self._layout is not None:
            own = replace(settings, depth=IO_DEPTH, block_bytes=BLOCK_BYTES, gives_way=False)
            self._engine = engine(own)

    def read(self, reads: Reads) -> npt.NDArray[np.void]:
        """Carry reads out and return the failures, `FAILURE` [n]; blocking, for a worker thread.

        Raises:
            ClosedError: the loader was closed.
        """
        if self._service is None:
            raise ClosedError(CLOSED)
        return self._service.call(self._read(reads))

    async def _read(self, reads: Reads) -> npt.NDArray[np.void]:
        if self._engine is None:
            raise ClosedError(CLOSED)
        failures = [stretch.failures async for stretch in self._engine.read(reads)]
        return np.concatenate([np.empty(0, FAILURE), *failures])

    def stats(self) -> dict[str, float | str]:
        """Counters since the start, and the topology's name; in the service's loop while it
        runs."""
        engine = Counter({} if self._engine is None else self._engine.stats())
        return {
            "topology": self._name,
            "topology_requests": engine["requests"],
            "topology_bytes_read": engine["bytes"],
            **(self._last_stats if self.topology is None else self.topology.stats()),
        }

    async def aclose(self) -> None:
        """Wait for the kernel, close files, let go of the graph; no sampler may be at work."""
        try:
            if self._engine is not None:
                await self._engine.aclose()
        finally:
            if self.topology is not None:
                self._last_stats = self.topology.stats()
                self.topology = None
            if self._layout is not None:
                self._layout.close()
