"""Index pointers in memory, indices on disk: what a hop wants of them is read in one planned sweep.

For graphs whose adjacency does not fit beside the features: memory is of a fixed size that nothing
contends for, and each hop is one sorted pass over the disk at the ring's full depth, where a
sampler on mapped indices waits for page after page (GNNDrive §3 measures that as memory
contention). Lists that are wanted most are kept in memory (Ginex's neighbour cache).

A fetch plans single indices as rows of 4 or 8 bytes: the planner sorts them, reads what shares a
sector once and bridges gaps, and each index is copied out of staging to its edge, so that no sector
is kept. One fetch goes on at a time: two at once would sweep the disk twice and need the memory
twice. The draw never looks at indices, so samples are those of the other topologies, bit for bit.
Do not use it where the indices fit in memory: `resident` never waits.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnndrive._ffi import ffi, lib, pointer
from gnndrive.errors import ClosedError, ReadError
from gnndrive.records import IndexPointers, Landing, TableFile
from gnndrive.stream import ColumnStream
from gnndrive.topologies._csc import check_indptr, make_csc
from gnndrive.topologies._neighbours import NeighbourCache
from gnndrive.topologies.base import GraphSize, Source, Stop, Topology, Turns

if TYPE_CHECKING:
    from gnndrive.layouts.base import Layout, Reads

_MISSING_BYTES = 34  # position and slot, and their place in the planned reads


class Direct(Topology):
    """A CSC graph whose indices are read when they are wanted.

    Args:
        indptr: int64 or uint32 [nodes + 1], non-decreasing from 0 to the number of edges (only the
            two ends are checked here, the rest by the C samplers as they go).
        file: where the indices are.
        layout: plans reads of that file; not closed by this object.
        read: carries reads out and returns the failures; blocking.
        cache_bytes: of the neighbour cache; 0: none. Making one reads the file.
        bipartite: whether edges come from other nodes than they go to.
        turns: whom to take turns with; None: its own samplers alone.

    Attributes:
        missing_max: indices that one fetch reads at most.
        wanted_max: edges that one fetch serves at most, from the cache or from disk.

    Raises:
        StoreError: the arrays cannot be a CSC graph, or the file is not there.
        ReadError: the disk failed.
    """

    name = "direct"
    missing_max = 1 << 19
    wanted_max = 1 << 20

    def __init__(
        self,
        indptr: IndexPointers,
        file: TableFile,
        layout: Layout,
        read: Callable[[Reads], npt.NDArray[np.void]],
        cache_bytes: int = 0,
        bipartite: bool = False,
        turns: Turns | None = None,
    ) -> None:
        check_indptr(indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes = indptr.size - 1
        self.num_edges = file.row_count
        self._indptr = indptr
        self._dtype = np.dtype(f"i{file.row_bytes}")
        self._layout = layout
        self._read = read
        self._csc = make_csc(indptr, file.row_count, None, file.row_bytes)
        self._cache: NeighbourCache | None = None
        if cache_bytes:
            with ColumnStream(file) as stream:
                self._cache = NeighbourCache(self._csc, stream, cache_bytes, bipartite)
        self._turns = turns or Turns()
        self._wanted = self._cached = 0

    @classmethod
    def open(cls, source: Source) -> Direct:
        """See `Topology.open`; with a neighbour cache, reads the indices twice at most."""
        return cls(
            source.indptr, source.file, source.layout(), source.read, source.cache_bytes,
            source.sources is not None, source.turns,
        )  # fmt: skip

    @classmethod
    def planned_bytes(cls, sizes: Sequence[GraphSize], cache_bytes: int, samplers: int) -> int:
        """Bytes of neighbour caches, of the fetch under way, and of what samplers were given."""
        # With replacement a list may be drawn from many times over, so that a graph of few edges
        # does not make for small fetches.
        widest = max((size.index_bytes for size in sizes), default=0)
        given = samplers * cls.wanted_max * widest
        return cache_bytes + cls.missing_max * _MISSING_BYTES + given

    def csc(self) -> Any:
        """The C `gd_csc *`, without indices, valid while this object lives."""
        return self._csc

    def resident_bytes(self) -> int:
        """Bytes of the index pointers and the neighbour cache."""
        return self._indptr.nbytes + (0 if self._cache is None else self._cache.nbytes)

    def serve(self, sampler: Any, stop: Stop) -> int:
        """See `Topology.serve`; waits for its turn, then for the disk."""
        wanted = ffi.new("gd_wanted *")
        lib.gd_sampler_wanted(sampler, wanted)
        with self._turns.turn(stop):
            neighbours, count = self._fetch(wanted, stop)
        return int(lib.gd_sample_resume(sampler, ffi.from_buffer(neighbours), count))

    def stats(self) -> dict[str, int]:
        """See `Topology.stats`."""
        return {"neighbours_wanted": self._wanted, "neighbours_cached": self._cached}

    def _fetch(self, wanted: Any, stop: Stop) -> tuple[npt.NDArray[Any], int]:
        """Neighbours of the first edges wanted, and of how many."""
        most = min(wanted.count, self.wanted_max)
        neighbours = np.empty(most, self._dtype)
        missing = np.empty(min(most, self.missing_max), np.int64)
        slots = np.empty(missing.size, np.int32)
        missed = ffi.new("int64_t *")
        count = lib.gd_neighbours_serve(
            ffi.NULL if self._cache is None else self._cache.handle, self._csc, wanted, most,
            missing.size, ffi.from_buffer(neighbours), pointer(missing), pointer(slots), missed,
        )  # fmt: skip
        misses = missed[0]
        self._wanted += count
        self._cached += count - misses
        if misses:
            landing = Landing(neighbours.ctypes.data, neighbours.itemsize, False, neighbours)
            reads = self._layout.locate(missing[:misses], slots[:misses], landing)
            del missing, slots
            self._carry_out(reads, stop)
        return neighbours, count

    def _carry_out(self, reads: Reads, stop: Stop) -> None:
        with stop.calling(reads.cancel):
            failures = self._read(reads)
        if not len(failures):
            return
        failures = failures[failures["error"] != errno.ECANCELED]
        if stop or not len(failures):
            raise ClosedError("the loader or iterator was closed while this batch was sampled")
        first = failures[np.argmin(failures["offset"])]
        raise ReadError(self.path, int(first["offset"]), int(first["error"]))
