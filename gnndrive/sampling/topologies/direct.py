"""Index pointers in memory, indices on disk: what a hop wants of them is read in one planned sweep.

For graphs whose adjacency does not fit beside the features: memory is of a fixed size that nothing
contends for, and each hop is one sorted pass over the disk at the ring's full depth, where a
sampler on mapped indices waits for page after page (GNNDrive §3 measures that as memory
contention). Lists that are wanted most are kept in memory (Ginex's neighbour cache).

A fetch plans single indices as rows of 4 or 8 bytes: the planner sorts them, reads what shares a
sector once and bridges gaps, and each index is copied out of staging to its edge, so that no sector
is kept. Where more is missing than is planned at once the file is gone through from its start to
its end, part by part. One fetch goes on at a time: two at once would sweep the disk twice and need
the memory twice. Samples that are drawn together share their fetches (`CombinedFetch`), because a
pass over much of the file takes little longer for four samples than for one. The draw never looks
at indices, so samples are those of the other topologies, bit for bit. Do not use it where the
indices fit in memory: `resident` never waits.
"""

from __future__ import annotations

import copy
import errno
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError, ReadError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.memory import format_size
from gnndrive.common.records import (
    IndexPointers,
    Int64Array,
    Landing,
    TableFile,
    TopologyChoice,
)
from gnndrive.disk.layouts.base import Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.rounds import CancellableLock, CombinedFetch, StopToken
from gnndrive.sampling.topologies._csc import check_indptr, make_csc
from gnndrive.sampling.topologies._neighbours import NeighbourCache, build_bytes, cache_bytes
from gnndrive.sampling.topologies.base import (
    BUFFER_BATCHES,
    RING_BYTES,
    Topology,
    TopologyContext,
    TopologyQuestion,
)

_MISSING_BYTES = 34  # position and slot, and their place in the planned reads
_RANGES_MAX = 1024  # of positions, in which missing ones are counted
CACHE_BATCHES = 1.0  # and beside a neighbour cache, whose bytes save more reads than a slot's
CACHE_SHARE = 0.1  # of the memory given, for the neighbour cache if none was asked for


@dataclass(eq=False, slots=True)
class _HopRequest:
    """What a sampler waits for.

    Attributes:
        wanted: its `gd_wanted *`.
        count: how many of the edges wanted it is given.
        neighbours: of all that are served together, int32 or int64.
        first: where its own start in them.
        error: why it got none.
    """

    wanted: Any
    count: int
    neighbours: npt.NDArray[Any] | None = None
    first: int = 0
    error: ReadError | None = None


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
        missing_max: indices that are planned at once, at most.
        wanted_max: edges of a sampler that one fetch serves at most, from the cache or from disk.

    Raises:
        StoreError: the arrays cannot be a CSC graph, or the file is not there.
        ReadError: the disk failed.
    """

    name = "direct"
    has_indices = False
    keeps_lists = True
    missing_max = 1 << 19
    wanted_max = 1 << 20

    def __init__(
        self,
        indptr: IndexPointers,
        file: TableFile,
        layout: Layout,
        read: Callable[[ReadJob], npt.NDArray[np.void]],
        cache_bytes: int = 0,
        bipartite: bool = False,
        lock: CancellableLock | None = None,
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
            with SequentialReader(file) as stream:
                self._cache = NeighbourCache(self._csc, stream, cache_bytes, bipartite)
        self.nbytes = indptr.nbytes + (0 if self._cache is None else self._cache.nbytes)
        self.fetches = self._cache is None or self._cache.indices < self.num_edges
        ranges = -(-max(self.num_edges, 1) // _RANGES_MAX)
        self._range_shift = (ranges - 1).bit_length()
        self._lock = lock or CancellableLock()
        self._round: CombinedFetch[_HopRequest] = CombinedFetch()  # without members: each is alone
        self.counted: Counter[str] = Counter(neighbours_wanted=0, neighbours_cached=0)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """See `Topology.plan`: where the user gave a budget, which the page cache would break. A
        neighbour cache gets a tenth of the memory given, if a largest batch still fits into the
        feature buffer."""
        why = "as asked for"
        if not question.asked:
            if not question.budget:
                return None
            left = format_size(max(question.room(BUFFER_BATCHES), 0))
            why = f"because {left} are left for {question.indices}"
        fetches = cls.fetch_bytes(question) + RING_BYTES
        room = question.room(CACHE_BATCHES) - fetches
        cache = cache_bytes(question, min(int(CACHE_SHARE * question.given), room))
        # Making a cache needs out-degrees for a moment, before the memory that `spare` counts.
        making = max(map(build_bytes, question.sizes)) - question.spare if cache else 0
        parts = f"neighbour cache {format_size(cache)}, fetches {format_size(fetches)}"
        nbytes = max(cache + fetches, making)
        return TopologyChoice(cls, f"direct, {why}; {parts}", nbytes, cache, has_ring=True)

    @classmethod
    def fetch_bytes(cls, question: TopologyQuestion) -> int:
        """Bytes of the fetch under way, and of the neighbours that samplers were given."""
        # With replacement a list may be drawn from many times, so that a graph of few edges does
        # not make for small fetches.
        widest = max((size.index_bytes for size in question.sizes), default=0)
        given = question.samplers * cls.wanted_max * widest
        return cls.missing_max * _MISSING_BYTES + given

    @classmethod
    def make(cls, context: TopologyContext) -> Direct:
        """See `Topology.make`; with a neighbour cache, reads the indices twice at most."""
        return cls(
            context.indptr, context.file, context.layout(), context.read, context.cache_bytes,
            context.sources is not None, context.lock,
        )  # fmt: skip

    def csc(self) -> Any:
        """The C `gd_csc *`, without indices, valid while this object lives."""
        return self._csc

    def joining(self, round: CombinedFetch[_HopRequest]) -> Direct:
        """See `Topology.joining`: a copy that shares all but whom it waits for; itself if the cache
        has all there is."""
        if not self.fetches:
            return self
        other = copy.copy(self)
        other._round = round
        return other

    def serve(self, sampler: Any, stop: StopToken) -> int:
        """See `Topology.serve`; waits for the others of its round, its turn, then for the disk."""
        wanted = ffi.new("gd_wanted *")
        lib.gd_sampler_wanted(sampler, wanted)
        request = _HopRequest(wanted, min(wanted.count, self.wanted_max))

        def fetch(requests: list[_HopRequest]) -> None:
            with self._lock.held(stop):
                self._fetch(requests, stop)

        self._round.fetch(self._csc, request, stop, fetch)
        try:
            if request.error is not None:
                raise request.error
            return int(lib.gd_sample_resume(sampler, self._given(request), request.count))
        finally:
            del request  # it knows the error, whose traceback knows this frame

    def _fetch(self, requests: list[_HopRequest], stop: StopToken) -> None:
        """Serve what is wanted, from the cache or from disk; or say in a wish why not."""
        ends = np.cumsum([request.count for request in requests])
        neighbours = np.empty(ends[-1], self._dtype)
        counts = np.zeros(_RANGES_MAX, np.int64)
        cache = ffi.NULL if self._cache is None else self._cache.handle
        for request, end in zip(requests, ends.tolist(), strict=True):
            request.neighbours, request.first = neighbours, end - request.count
            missing = lib.gd_neighbours_serve(
                cache, self._csc, request.wanted, request.count, self._given(request),
                self._range_shift, pointer(counts),
            )  # fmt: skip
            self.counted["neighbours_wanted"] += request.count
            self.counted["neighbours_cached"] += request.count - missing
        for first, last, most in _parts(counts, self.missing_max):
            part = first << self._range_shift, last << self._range_shift
            for reads in self._planned(requests, part, most, neighbours):
                self._carry_out(reads, requests, stop)
                del reads  # before the next are planned: there is memory for one plan

    def _given(self, request: _HopRequest) -> Any:
        """Where a wish's own neighbours go, for C."""
        assert request.neighbours is not None
        return ffi.from_buffer(request.neighbours[request.first : request.first + request.count])

    def _planned(
        self,
        requests: list[_HopRequest],
        part: tuple[int, int],
        most: int,
        neighbours: npt.NDArray[Any],
    ) -> Iterator[ReadJob]:
        """Reads of what is missing at positions in `part`, of `most` of them at once."""
        left = [request for request in requests if request.error is None]
        landing = Landing(neighbours.ctypes.data, neighbours.itemsize, False, neighbours)
        at = 0
        while left:
            missing, slots = np.empty(most, np.int64), np.empty(most, np.int32)
            found = ffi.new("gd_misses *", [pointer(missing), pointer(slots), most, 0])
            while left:
                request = left[0]
                at = lib.gd_neighbours_missing(
                    request.wanted, at, request.count, self._given(request), neighbours.itemsize,
                    *part, request.first, found,
                )  # fmt: skip
                if at < request.count:
                    break
                del left[0]
                at = 0
            if found.count:
                reads = self._layout.locate(missing[: found.count], slots[: found.count], landing)
                del missing, slots
                yield reads
                del reads

    def _carry_out(self, reads: ReadJob, requests: list[_HopRequest], stop: StopToken) -> None:
        with stop.calling(reads.cancel):
            failures = self._read(reads)
        if not len(failures):
            return
        if stop or (failures["error"] == errno.ECANCELED).any():
            raise ClosedError("the loader or iterator was closed while this batch was sampled")
        for request in requests:
            place = failures["slot"] - request.first
            own = failures[(place >= 0) & (place < request.count)]
            if len(own) and request.error is None:
                first = own[np.argmin(own["offset"])]
                request.error = ReadError(self.path, int(first["offset"]), int(first["error"]))


def _parts(counts: Int64Array, most: int) -> Iterator[tuple[int, int, int]]:
    """Ranges that together count `most` or less, or one that counts more: its first, the first
    behind it, and how many to plan at once."""
    ends = np.cumsum(counts)
    first = before = 0
    while before < ends[-1]:
        last = max(int(np.searchsorted(ends, before + most, "right")), first + 1)
        count = int(ends[last - 1]) - before
        if count:
            yield first, last, min(count, most)
        first, before = last, before + count
