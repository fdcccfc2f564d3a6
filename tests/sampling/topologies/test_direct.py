"""The direct topology: its neighbour cache, combined fetches, read errors and cancellation."""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ClosedError, GNNDriveError, ReadError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Sample
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.rounds import CombinedFetch, Participant
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import _neighbours
from gnndrive.sampling.topologies._csc import make_csc
from gnndrive.sampling.topologies.base import GraphSize
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.testing.faults import NOISE, Faults
from tests.sampling.samplers.graphs import random_graph
from tests.soak import product

from .conftest import DATA_OFFSET, Graph, Opened

# ---- the neighbour cache


def kept(cache: _neighbours.NeighbourCache, graph: Graph) -> np.ndarray:
    """Whether each node's list is in the cache, found by requesting its first index."""
    inside = np.zeros(len(graph.indptr) - 1, bool)
    neighbours, counts = np.empty(1, graph.dtype), np.zeros(len(graph.indices), np.int64)
    until = np.ones(1, np.int32)
    for at in np.flatnonzero(np.diff(graph.indptr)):
        node, edge = np.array([at]), graph.indptr[at : at + 1].copy()
        wanted = ffi.new("gd_wanted *", [pointer(edge), pointer(node), pointer(until), 0, 1])
        missing = lib.gd_neighbours_serve(
            cache.handle, cache._csc, wanted, 1, ffi.from_buffer(neighbours), 0, pointer(counts)
        )
        assert counts[edge[0]] == missing
        inside[at] = missing == 0
        assert missing or neighbours[0] == graph.indices[edge[0]]
    return inside


def make_cache(graph: Graph, nbytes: int) -> _neighbours.NeighbourCache:
    csc = make_csc(graph.indptr, len(graph.indices), None, graph.dtype.itemsize)
    with SequentialReader(graph.indices_file) as reader:
        return _neighbours.NeighbourCache(csc, reader, nbytes)


@product("nbytes,dtype", [1_600, 5_000, 20_000, 10**6], [np.int32, np.int64])
def test_lists_with_the_highest_out_degree_for_their_length_are_kept(
    on_disk, monkeypatch, nbytes, dtype
):
    """Though they go on in another stretch of the file."""
    monkeypatch.setattr("gnndrive.disk.sequential_reader.STRETCH_BYTES", 4096)
    indptr, indices = random_graph(500, 12, seed=3, dtype=dtype)
    graph = on_disk(indptr, indices)
    cache = make_cache(graph, nbytes)
    degrees = np.diff(indptr)
    inside = kept(cache, graph)
    assert inside.sum() == cache.nodes
    size = GraphSize(500, len(indices), indices.itemsize)
    lists = (degrees[inside] * size.index_bytes + 8).sum()
    assert lists < cache.nbytes <= min(nbytes, _neighbours.most_bytes(size))
    assert nbytes - cache.nbytes < 2_000 or inside[degrees > 0].all()
    ratio = np.bincount(indices, minlength=500)[degrees > 0] / degrees[degrees > 0]
    of_kept, of_others = ratio[inside[degrees > 0]], ratio[~inside[degrees > 0]]
    if of_kept.size and of_others.size:  # the core compares the leading 7 bits of ratios only
        assert of_kept.min() * (1 + 2**-6) >= of_others.max()


def test_a_cache_smaller_than_its_address_table_is_refused(on_disk):
    graph = on_disk(*random_graph(10_000, 2))
    with pytest.raises(OSError, match="ENOSPC"):
        make_cache(graph, 1_500)
    assert make_cache(graph, _neighbours.least_bytes(GraphSize(10_000, 1, 8))).nodes < 200


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_out_degrees_skip_indices_that_are_no_nodes(dtype):
    indices = np.array([0, 3, -1, 3, 4, np.iinfo(dtype).max, np.iinfo(dtype).min] * 20, dtype)
    counts = np.zeros(4, np.uint32)
    lib.gd_count_out_degrees(
        ffi.from_buffer(indices), indices.itemsize, len(indices), 4,
        ffi.from_buffer("uint32_t[]", counts),
    )  # fmt: skip
    assert counts.tolist() == [20, 0, 0, 40]


def test_neighbours_from_the_cache_are_not_read_from_disk(opened, on_disk):
    graph = on_disk(*random_graph(2000, 20, seed=1, dtype=np.int32))
    read = []
    for cache in (0, 60_000, 10**6):
        direct = opened(graph, cache_bytes=cache, gap=0)
        assert direct.topology.fetches == (cache < 10**6)
        sample = Uniform([10, 10]).sample_nodes(np.arange(100), 1, direct.topology)
        stats = direct.stats()
        assert stats["neighbours_wanted"] == len(sample.edge)
        assert (stats["neighbours_cached"] > 0) == (cache > 0)
        read.append(stats["topology_bytes_read"])
    assert read[0] > read[1] > read[2] == 0


# ---- combined fetches


def drawn_together(
    topology: Any, seeds: list[np.ndarray], sampler: Uniform
) -> list[Sample | BaseException]:
    """For each of `seeds` a sample or its error; all samples share one combined fetch."""
    group: CombinedFetch[Any] = CombinedFetch()
    participants = [group.join() for _ in seeds]

    def draw(node: np.ndarray, participant: Participant) -> Sample | BaseException:
        try:
            return sampler.sample_nodes(node, 7, topology.in_group(group))
        except GNNDriveError as error:
            return error
        finally:
            participant.leave()

    with ThreadPoolExecutor(len(seeds)) as threads:
        return list(threads.map(draw, seeds, participants))


@product("cache,small", [0, 30_000], [False, True])
def test_samples_drawn_together_equal_those_drawn_alone_and_read_less(
    opened, on_disk, cache, small, monkeypatch
):
    if small:
        monkeypatch.setattr(Direct, "missing_max", 97)
        monkeypatch.setattr(Direct, "wanted_max", 301)
    indptr, indices = random_graph(2000, 20, seed=1, dtype=np.int32)
    graph, memory = on_disk(indptr, indices), Mmap(indptr, indices)
    seeds = [np.arange(100 * n, 100 * n + 20 * n) for n in range(5)]
    sampler = Uniform([4, 4])
    alone, together = (opened(graph, cache_bytes=cache, gap=0) for _ in range(2))
    for node, got in zip(seeds, drawn_together(together.topology, seeds, sampler), strict=True):
        expected = sampler.sample_nodes(node, 7, memory)
        np.testing.assert_array_equal(got.node, expected.node)
        np.testing.assert_array_equal(got.row, expected.row)
        sampler.sample_nodes(node, 7, alone.topology)
    for name in ("neighbours_wanted", "neighbours_cached"):
        assert alone.stats()[name] == together.stats()[name]
    assert 0 < together.stats()["topology_bytes_read"] < alone.stats()["topology_bytes_read"]


def test_a_bad_sector_fails_only_the_samples_that_need_it(opened, on_disk, seeds):
    """Whether they are drawn alone or together."""
    indptr, indices = random_graph(400, 40, seed=5, dtype=np.int32)
    graph, memory, sampler = on_disk(indptr, indices), Mmap(indptr, indices), Uniform([-1])
    sector = int(indptr[210]) // 128
    bad = DATA_OFFSET + 512 * sector
    nodes = range(200, 222, 3)
    for seed in seeds(2):
        faults = Faults(
            eio_offsets=((bad, bad + 512),), short=0.2, eagain=0.1, delay_turns_max=seed % 6
        )
        topology = opened(graph, engine="simulated", faults=faults, seed=seed).topology
        apart = [np.array([each]) for each in nodes]
        paired = [np.array([each, 0]) for each in nodes]
        outcomes = drawn_together(topology, apart, sampler)
        outcomes += [drawn_together(topology, [each], sampler)[0] for each in paired]
        failed = 0
        for node, got in zip([*apart, *paired], outcomes, strict=True):
            if indptr[node[0]] < 128 * (sector + 1) and indptr[node[0] + 1] > 128 * sector:
                failed += 1
                assert isinstance(got, ReadError)
                assert (got.path, got.errno) == (str(graph.path), errno.EIO)
                assert bad - 512 < got.offset <= bad
            else:
                expected = sampler.sample_nodes(node, 7, memory)
                np.testing.assert_array_equal(got.node, expected.node)
        assert 0 < failed < len(outcomes)


def test_a_fetch_passes_through_the_file_in_parts(opened, on_disk, monkeypatch):
    monkeypatch.setattr(Direct, "missing_max", 100)
    parts: list[np.ndarray] = []
    plans: weakref.WeakSet[Any] = weakref.WeakSet()
    locate = TableLayout.locate

    def measured(self: Any, rows: np.ndarray, *rest: Any) -> Any:
        parts.append(rows.copy())
        assert not plans, "there is memory for one plan"
        job = locate(self, rows, *rest)
        plans.add(job)
        return job

    monkeypatch.setattr(TableLayout, "locate", measured)
    graph = on_disk(*random_graph(1000, 20, seed=1))
    # Simulated, because the threads of other engines may hold a plan a little longer than its end.
    topology = opened(graph, engine="simulated").topology
    edges = len(Uniform([-1]).sample_nodes(np.arange(300), 0, topology).edge)
    sizes = [*map(len, parts)]
    assert sum(sizes) == edges > 80 * len(sizes)
    assert 90 < max(sizes) <= 100
    assert all(one.max() < other.min() for one, other in pairwise(parts)), "one pass, by parts"


# ---- stopping and closing, on a disk that does not answer


NODES = np.arange(0, 3000, 10)


def in_loop(one: Opened, function: Callable[[Any], Any]) -> Any:
    """Call a function with the engine, in the engine's thread."""

    async def call() -> Any:
        return function(one._engine)

    return one._loop_thread.call(call())  # type: ignore[union-attr]


def until_it_reads(one: Opened) -> None:
    assert any(in_loop(one, lambda engine: bool(engine.inflight)) for _ in range(1_000_000))


@pytest.fixture
def paused(opened, on_disk):
    """A topology of `random_graph(3000, 20, seed=1)` whose reads do not end."""
    one = opened(on_disk(*random_graph(3000, 20, seed=1)), engine="simulated", faults=NOISE, gap=0)
    in_loop(one, lambda engine: setattr(engine, "paused", True))
    return one


def test_stopping_ends_a_reading_and_a_waiting_sampler(paused):
    """Samplers that wait for the lock end at once, the one that reads ends when its reads in flight
    have ended."""
    stopped, other = Uniform([5, 5]), Uniform([5, 5])
    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(stopped.sample_nodes, NODES, 0, paused.topology)
        until_it_reads(paused)
        waiting = [
            threads.submit(stopped.sample_nodes, NODES, 0, paused.topology) for _ in range(3)
        ]
        unharmed = threads.submit(other.sample_nodes, NODES, 0, paused.topology)
        stopped.stop()
        assert all(isinstance(each.exception(60), ClosedError) for each in waiting)
        assert not first.done(), "law 3: the kernel may still write"
        in_loop(paused, lambda engine: setattr(engine, "paused", False))
        assert isinstance(first.exception(60), ClosedError)
        expected = other.sample_nodes(NODES, 0, Mmap(*random_graph(3000, 20, seed=1)))
        np.testing.assert_array_equal(unharmed.result(60).node, expected.node)


def test_closing_ends_a_reading_sampler(paused):
    with ThreadPoolExecutor(1) as threads:
        drawing = threads.submit(Uniform([5]).sample_nodes, NODES, 0, paused.topology)
        until_it_reads(paused)
        paused.close()
        assert isinstance(drawing.exception(60), ClosedError)
