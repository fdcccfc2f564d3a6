"""Index pointers in memory, indices on disk: each hop reads its indices in one planned pass.

For graphs whose adjacency does not fit beside the features. Its memory has a fixed size, and each
hop is one sorted pass over the disk at the ring's full depth; a sampler on memory-mapped indices
waits for one page after another instead (GNNDrive §3 measures that as memory contention). A
neighbour cache (Ginex) keeps in memory the lists that save the most reads for their size.

A sampler draws the positions of edges first and then asks for the indices at these positions. A
fetch plans single indices as rows of 4 or 8 bytes: the planner sorts them, reads indices that share
a sector once and bridges gaps, and each index is copied out of staging to its edge, so that no
sector is kept. If more indices are missing than one plan may hold, the fetch passes through the
file part by part, from its start to its end. One fetch runs at a time (`CancellableLock`), for all
samples that are drawn together (`CombinedFetch`). Drawing never reads indices, so samples equal
those of the other topologies, bit for bit. Do not use it if the indices fit in memory: `resident`
never waits.
"""

from __future__ import annotations

import copy
import errno
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ClosedError, ReadError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.memory import format_size
from gnndrive.common.records import Int64Array, Landing, TopologyChoice
from gnndrive.disk.read_job import ReadJob
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.rounds import CombinedFetch, StopToken
from gnndrive.sampling.topologies._csc import check_indptr, make_csc
from gnndrive.sampling.topologies._neighbours import NeighbourCache, build_bytes, cache_bytes
from gnndrive.sampling.topologies.base import (
    BUFFER_BATCHES,
    RING_BYTES,
    Topology,
    TopologyContext,
    TopologyQuestion,
)

_MISSING_BYTES = 34  # a missing index: position, place and its entry in the planned reads
_RANGES_MAX = 1024  # ranges of positions in which missing indices are counted
# Largest batches for which the feature buffer must keep room beside a neighbour cache: fewer than
# BUFFER_BATCHES, because a byte of the cache saves more reads than a byte of the buffer.
CACHE_BATCHES = 1.0
CACHE_SHARE = 0.1  # share of the memory given for the neighbour cache, if the user gave no size


@dataclass(eq=False, slots=True)
class _HopRequest:
    """The edges of one hop whose neighbours a sampler waits for.

    Attributes:
        wanted: the sampler's `gd_wanted *`.
        count: the number of these edges that this fetch serves.
        neighbours: the neighbours of all requests that are fetched together, int32 or int64.
        first: where this request's neighbours start in `neighbours`.
    """

    wanted: Any
    count: int
    neighbours: npt.NDArray[Any] | None = None
    first: int = 0
    error: ReadError | None = None


class Direct(Topology):
    """A CSC graph whose indices are read from disk when a sampler needs them. Making a neighbour
    cache reads the file.

    Attributes:
        missing_max: the most indices in one plan.
        wanted_max: the most edges of one sampler that one fetch serves, from the cache or disk.
    """

    name = "direct"
    has_indices = False
    keeps_lists = True
    missing_max = 1 << 19
    wanted_max = 1 << 20

    def __init__(self, context: TopologyContext) -> None:
        indptr, file = context.indptr, context.file
        check_indptr(indptr, file.row_count, file.path)
        self.path = file.path
        self.num_nodes = indptr.size - 1
        self.num_edges = file.row_count
        self._indptr = indptr
        self._dtype = np.dtype(f"i{file.row_bytes}")
        self._layout = context.layout()
        self._read = context.read
        self._csc = make_csc(indptr, file.row_count, None, file.row_bytes)
        self._cache: NeighbourCache | None = None
        if context.cache_bytes:
            bipartite = context.sources is not None
            with SequentialReader(file) as reader:
                self._cache = NeighbourCache(self._csc, reader, context.cache_bytes, bipartite)
        self.nbytes = indptr.nbytes + (0 if self._cache is None else self._cache.nbytes)
        self.fetches = self._cache is None or self._cache.indices < self.num_edges
        ranges = -(-max(self.num_edges, 1) // _RANGES_MAX)
        self._range_shift = (ranges - 1).bit_length()
        self._lock = context.lock
        # Has no participants, so a fetch waits for no other sample; `in_group` replaces it.
        self._group: CombinedFetch[_HopRequest] = CombinedFetch()
        self.counted: Counter[str] = Counter(neighbours_wanted=0, neighbours_cached=0)

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        """See `Topology.plan`; suits a loader with a budget, which the page cache would exceed.

        The neighbour cache gets a tenth of the memory given, or less if the feature buffer would
        not hold a largest batch; all that is left, if the buffer is not there meanwhile.
        """
        why = "as asked for"
        if not question.asked:
            if not question.budget:
                return None
            left = format_size(max(question.room(BUFFER_BATCHES), 0))
            why = f"because {left} are left for {question.indices}"
        fetches = cls.fetch_bytes(question) + RING_BYTES
        room = question.room(CACHE_BATCHES) - fetches
        share = 1.0 if question.apart else CACHE_SHARE
        cache = cache_bytes(question, min(int(share * question.given), room))
        # The out-degrees are freed before the memory in `spare` is needed.
        making = max(map(build_bytes, question.sizes)) - question.spare if cache else 0
        parts = f"neighbour cache {format_size(cache)}, reads {format_size(fetches)}"
        nbytes = max(cache + fetches, making)
        why = f"neighbours on disk (direct), {question.why or why}; {parts}"
        return TopologyChoice(cls, why, nbytes, cache, has_ring=True)

    @classmethod
    def fetch_bytes(cls, question: TopologyQuestion) -> int:
        """Return the bytes of the plan of one fetch and of the neighbours of all samplers."""
        # A graph of few edges needs as much: with replacement one list may be drawn many times.
        widest = max((size.index_bytes for size in question.sizes), default=0)
        given = question.samplers * cls.wanted_max * widest
        return cls.missing_max * _MISSING_BYTES + given

    @classmethod
    def make(cls, context: TopologyContext) -> Direct:
        """See `Topology.make`; with a neighbour cache, reads the indices at most twice."""
        return cls(context)

    def csc(self) -> Any:
        """See `Topology.csc`; the indices are NULL."""
        return self._csc

    def in_group(self, group: CombinedFetch[_HopRequest]) -> Direct:
        """See `Topology.in_group`; the copy shares everything but the group. Returns this object if
        the cache holds all indices."""
        if not self.fetches:
            return self
        other = copy.copy(self)
        other._group = group
        return other

    def serve(self, sampler: Any, stop: StopToken) -> int:
        """See `Topology.serve`. Waits for the other samples of the group, then for the lock, then
        for the disk."""
        wanted = ffi.new("gd_wanted *")
        lib.gd_sampler_wanted(sampler, wanted)
        request = _HopRequest(wanted, min(wanted.count, self.wanted_max))

        def fetch(requests: list[_HopRequest]) -> None:
            with self._lock.held(stop):
                self._fetch(requests, stop)

        self._group.fetch(self._csc, request, stop, fetch)
        try:
            if request.error is not None:
                raise request.error
            return int(lib.gd_sample_resume(sampler, self._neighbours_of(request), request.count))
        finally:
            del request  # it refers to the error, whose traceback refers to this frame

    def _fetch(self, requests: list[_HopRequest], stop: StopToken) -> None:
        """Fill in the neighbours of all requests, from the cache and from disk, or their errors."""
        ends = np.cumsum([request.count for request in requests])
        neighbours = np.empty(ends[-1], self._dtype)
        counts = np.zeros(_RANGES_MAX, np.int64)
        cache = ffi.NULL if self._cache is None else self._cache.handle
        for request, end in zip(requests, ends.tolist(), strict=True):
            request.neighbours, request.first = neighbours, end - request.count
            missing = lib.gd_neighbours_serve(
                cache, self._csc, request.wanted, request.count, self._neighbours_of(request),
                self._range_shift, pointer(counts),
            )  # fmt: skip
            self.counted["neighbours_wanted"] += request.count
            self.counted["neighbours_cached"] += request.count - missing
        for first, last, most in _parts(counts, self.missing_max):
            part = first << self._range_shift, last << self._range_shift
            for job in self._plan_reads(requests, part, most, neighbours):
                self._carry_out(job, requests, stop)
                del job  # before the next job is planned, because the memory is for one plan

    def _neighbours_of(self, request: _HopRequest) -> Any:
        assert request.neighbours is not None
        return ffi.from_buffer(request.neighbours[request.first : request.first + request.count])

    def _plan_reads(
        self,
        requests: list[_HopRequest],
        part: tuple[int, int],
        most: int,
        neighbours: npt.NDArray[Any],
    ) -> Iterator[ReadJob]:
        """Plan the reads of indices missing at the positions [first, last) of `part`, at most
        `most` in one job; requests that failed are left out."""
        left = [request for request in requests if request.error is None]
        landing = Landing(neighbours.ctypes.data, neighbours.itemsize, False, neighbours)
        at = 0
        while left:
            missing, places = np.empty(most, np.int64), np.empty(most, np.int32)
            found = ffi.new("gd_misses *", [pointer(missing), pointer(places), most, 0])
            while left:
                request = left[0]
                at = lib.gd_neighbours_missing(
                    request.wanted, at, request.count, self._neighbours_of(request),
                    neighbours.itemsize, *part, request.first, found,
                )  # fmt: skip
                if at < request.count:
                    break
                del left[0]
                at = 0
            if found.count:
                job = self._layout.locate(missing[: found.count], places[: found.count], landing)
                del missing, places
                yield job
                del job

    def _carry_out(self, job: ReadJob, requests: list[_HopRequest], stop: StopToken) -> None:
        """Carry out one job; record each request's first failure."""
        with stop.calling(job.cancel):
            failures = self._read(job)
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
    """Divide ranges of positions, with so many missing indices each, into parts that can be planned
    at once.

    Yields the first range of a part, the range after its last, and how many indices to plan at
    once. A part holds at most `most` missing indices, unless it is a single range.
    """
    ends = np.cumsum(counts)
    first = before = 0
    while before < ends[-1]:
        last = max(int(np.searchsorted(ends, before + most, "right")), first + 1)
        count = int(ends[last - 1]) - before
        if count:
            yield first, last, min(count, most)
        first, before = last, before + count
