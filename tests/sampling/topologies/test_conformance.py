"""The conformance test of topologies: the same graph gives the same samples in each of them."""

import errno
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ClosedError, ConfigError, GNNDriveError, ReadError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import EngineSettings, Sample, TableFile, TopologyChoice
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.rounds import CombinedFetch, Participant
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import _neighbours, resident
from gnndrive.sampling.topologies._csc import make_csc
from gnndrive.sampling.topologies.base import GraphSize, IndicesInMemory, Topology, TopologyQuestion
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.testing.faults import NOISE, Faults
from tests.sampling.samplers.graphs import (
    DEPENDENT,
    Scratch,
    assert_contract,
    graph_of_degrees,
    random_graph,
)
from tests.sampling.test_rounds import in_thread, until
from tests.second import Widened
from tests.soak import product

DATA_OFFSET = 4096


@dataclass
class Graph:
    """A CSC graph whose indices are in a file; has the attributes of `StoredEdges`."""

    indptr: np.ndarray
    path: Path
    dtype: np.dtype[Any]
    count: int
    type = None

    def __post_init__(self) -> None:
        self.source = self.target = SimpleNamespace(type=None, num_nodes=len(self.indptr) - 1)
        self.num_edges = self.count
        self.indices_file = TableFile(
            str(self.path), DATA_OFFSET, self.count, self.dtype.itemsize, str(self.dtype), ()
        )
        # uint32 as in a store, or int64 if a damaged pointer does not fit.
        narrow = self.indptr.astype(np.uint32)
        self.index_pointers = narrow if np.array_equal(narrow, self.indptr) else self.indptr

    @property
    def indices(self) -> np.ndarray:
        return np.memmap(self.path, self.dtype, "r", DATA_OFFSET, (self.count,))


class Opened(Adjacency):
    @property
    def topology(self) -> Topology:
        return self.topologies[0]

    def close(self) -> None:
        if self._contexts:
            super().close()


@pytest.fixture
def on_disk(tmp_path):
    def write(indptr: np.ndarray, indices: np.ndarray) -> Graph:
        path = tmp_path / f"indices{len(list(tmp_path.iterdir()))}.npy"
        path.write_bytes(bytes(DATA_OFFSET) + indices.tobytes())
        return Graph(np.asarray(indptr, np.int64), path, indices.dtype, len(indices))

    return write


@pytest.fixture
def opened():
    """A function that opens a graph as the topology of that name; closed after the test."""
    made: list[Opened] = []

    def one(
        graph: Any, name: Any = "direct", cache_bytes: int = 0, engine: str = "threads",
        faults: Any = None, seed: int = 0, gap: int = 8192,
    ) -> Opened:  # fmt: skip
        made.append(Opened([graph], TopologyChoice(name, "", 0, cache_bytes), gap))
        made[-1].start(plugins.find("engines", engine), EngineSettings(16, 65536, seed, faults))
        return made[-1]

    yield one
    for each in made:
        each.close()


WAYS: dict[str, dict[str, Any]] = {
    "mmap": {"name": "mmap"},
    "resident": {"name": "resident"},
    "second": {"name": Widened},
    "direct": {},
    "direct, cache": {"cache_bytes": 6_000},
    "direct, all cached": {"cache_bytes": 10**9},
    "direct, small fetches": {"cache_bytes": 3_000},
    "direct, io_uring": {"engine": "uring"},
    "direct, noise": {"engine": "simulated", "faults": NOISE, "gap": 0},
}
KINDS = [*plugins.names("topologies"), Widened]
SHARING = [kind for kind in KINDS if plugins.find("topologies", kind).shares_indices]
DTYPES = (np.int32, np.int64)
GRAPHS = {
    "no nodes": [],
    "a node": [0],
    "no edges": [0] * 70,
    "a loop": [1],
    "isolated nodes": [0, 3, 0, 0, 5, 0],
    "one hub": [0, 3_000, 1],
    "hubs": [3, 1_500, 0, 1_000, *[2] * 300],
    "a power law": [int(500 / (k + 1)) for k in range(700)],
    "lists over sector borders": [100, 27, 1, 129, 128, 127, 3, *[125] * 40],
}
APART = (([3, 2], False), ([-1, 2], False), ([4, 3], True), ([40], False), ([0, 1], False))


def test_every_topology_is_tested_here():
    assert {way.get("name", "direct") for way in WAYS.values()} == set(KINDS)


@pytest.fixture(params=WAYS)
def way(request, opened, monkeypatch):
    if "small" in request.param:
        monkeypatch.setattr(Direct, "missing_max", 97)
        monkeypatch.setattr(Direct, "wanted_max", 301)
    return lambda graph: opened(graph, **WAYS[request.param])


def assert_same(a: Sample, b: Sample) -> None:
    for name in ("node", "row", "col", "edge", "num_sampled_nodes", "num_sampled_edges"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def samples_equal_those_from_memory(way, on_disk, seed: int, degrees: list[int]) -> None:
    """Also in threads, of seeds that are given twice, and with shared numbers, which read whole
    lists."""
    indptr, indices = graph_of_degrees(degrees, seed, DTYPES[(seed + len(degrees)) % 2])
    memory, topology = Mmap(indptr, indices), way(on_disk(indptr, indices)).topology
    assert (topology.num_nodes, topology.num_edges) == (len(degrees), len(indices))
    seeds = np.array([*range(len(degrees))[:40], *range(len(degrees))[:2]], np.int64)
    samplers = [Uniform(*each) for each in APART]
    samplers += [Uniform(hops, sampling=DEPENDENT) for hops, repeat in APART if not repeat]
    with ThreadPoolExecutor(4) as threads:
        samples = [*threads.map(lambda each: each.sample_nodes(seeds, seed, topology), samplers)]
    for sample, sampler in zip(samples, samplers, strict=True):
        assert_same(sample, sampler.sample_nodes(seeds, seed, memory))
    for sample, (fanout, repeat) in zip(samples, APART, strict=False):
        assert_contract(sample, indptr, indices, seeds.tolist(), fanout, repeat)
    with pytest.raises(ConfigError, match=f"seed {len(degrees)} "):
        Uniform([2]).sample_nodes(np.array([len(degrees)]), 0, topology)


def test_samples_equal_those_from_memory(way, on_disk, seeds):
    for seed in seeds(1):
        for degrees in GRAPHS.values():
            samples_equal_those_from_memory(way, on_disk, seed, degrees)


def test_lists_longer_than_a_sampler_asks_for_at_once(opened, on_disk):
    """And more nodes without neighbours."""
    degrees = [0] * 150_000 + [7, 300_000, 0, 150_000, 40, *[0] * 150_000, 9]
    indptr, indices = graph_of_degrees(degrees, 1, np.int32)
    seeds = np.arange(len(degrees))
    topology = opened(on_disk(indptr, indices), cache_bytes=30_000).topology
    for fanout in (30, 200_000):
        sampler = Uniform([fanout], sampling=DEPENDENT)
        sample = sampler.sample_nodes(seeds, 2, topology)
        assert_same(sample, sampler.sample_nodes(seeds, 2, Mmap(indptr, indices)))
        assert np.array_equal(np.diff(sample.colptr), np.minimum(degrees, fanout))


def holds_as_much_as_planned(opened, on_disk, name: Any, cache: int = 0) -> None:
    graph = on_disk(*random_graph(3000, 15, seed=2, dtype=np.int32))
    topology = opened(graph, name, cache).topology
    size = GraphSize(3000, graph.num_edges, 4)
    question = TopologyQuestion([size], 1, lambda _: 10**9, 10**9, True, cache, asked=True)
    choice = type(topology).plan(question)
    held = topology.nbytes - size.index_pointer_bytes
    assert cache - 500 < held <= choice.nbytes, "more than planned"


def test_a_topology_holds_as_much_memory_as_planned(opened, on_disk):
    for kind in KINDS:
        holds_as_much_as_planned(opened, on_disk, kind)
    holds_as_much_as_planned(opened, on_disk, "direct", 9_000)


# ---- packed indices


@product("nodes,dtype,halved", [1, 2, 3, 255, 256, 257, 70_000], DTYPES, [False, True])
def test_packed_indices_of_any_width(opened, on_disk, monkeypatch, nodes, dtype, halved):
    monkeypatch.setattr(resident, "HALVED_EDGES", 5000 if halved else 5001)
    random = np.random.default_rng(nodes)
    indices = random.integers(0, nodes, 5000).astype(dtype)
    indices[[0, 7, 2499, 2500, -1]] = nodes - 1
    indptr = np.full(nodes + 1, len(indices), np.int64)
    indptr[0] = 0  # all edges go to node 0
    topology = opened(on_disk(indptr, indices), "resident").topology
    sample = Uniform([-1]).sample_nodes(np.array([0]), 0, topology)
    np.testing.assert_array_equal(sample.node[sample.row], indices)
    bits = max(nodes - 1, 1).bit_length()
    assert topology.nbytes - 4 * len(indptr) == -(-5000 * bits // 8) + 8


@pytest.mark.parametrize("bad", [0, 2371, 2372, 2500, 4999])
def test_a_bad_index_in_either_half(opened, on_disk, monkeypatch, bad):
    """Or between the halves: the indices stay unpacked, and a sampler reports the bad one."""
    monkeypatch.setattr(resident, "HALVED_EDGES", 5000)
    indices = np.zeros(5000, np.int32)
    indices[bad] = 5000
    topology = opened(on_disk(np.arange(5001), indices), "resident").topology
    sampler = Uniform([-1])
    assert len(sampler.sample_nodes(np.array([bad - 1]) % 5000, 0, topology).node) == 2
    with pytest.raises(StoreError, match="node 5000"):
        sampler.sample_nodes(np.array([bad]), 0, topology)


@pytest.mark.parametrize("bits", [1, 7, 31, 33, 56])
def test_c_reads_the_indices_that_it_packs(bits):
    nodes = 1 << bits
    indices = np.random.default_rng(bits).integers(0, nodes, 900)
    indices[[0, -1]] = nodes - 1
    packed, indptr = np.zeros(-(-900 * bits // 8) + 8, np.uint8), np.array([0, 900])

    def pack(first: int, last: int, nodes: int = nodes, bits: int = bits) -> int:
        some = indices[first:last].copy()
        given = 8, first, len(some), nodes, bits, pointer(packed)
        return int(lib.gd_pack_indices(pointer(some), *given))

    # In the order of resident.py: the halves, then the middle.
    assert [pack(0, 311), pack(602, 900), pack(311, 602)] == [0, 0, 0]
    csc = ffi.new("gd_csc *", [pointer(indptr), pointer(packed), 8, 8, nodes, 900, bits])
    scratch = Scratch()
    assert scratch.sample(csc, [0], [-1]) == 0
    np.testing.assert_array_equal(scratch.sources(), indices)
    assert pack(0, 1, nodes - 1) == -errno.ERANGE
    assert pack(0, 1, nodes + 1) == pack(0, 1, nodes, 0) == pack(0, 1, nodes, 57) == -errno.EINVAL


# ---- damaged graphs


def a_neighbour_out_of_range(way, on_disk) -> None:
    for dtype, bad in ((np.int32, -1), (np.int64, 6), (np.int32, 2**31 - 1), (np.int64, -(2**31))):
        graph = on_disk(np.array([0, 5, 5, 5, 5, 5, 5]), np.array([1, 2, bad, 4, 5], dtype))
        topology, sampler = way(graph).topology, Uniform([-1])
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"indices.*npy.*node {bad},.*gnndrive verify"):
                sampler.sample_nodes(np.array([0]), 0, topology)
        # Of the other nodes the bad index is not read.
        assert len(sampler.sample_nodes(np.array([5]), 0, topology).node) == 1


def damaged_index_pointers(way, on_disk) -> None:
    """A list that the pointers put outside of the edges is an error; other lists are sampled."""
    for bad in (-(2**63), -1, 3, 8, 2**32, 2**63 - 1):
        indptr = np.array([0, 2, 4, 7])
        indptr[1] = bad
        topology = way(on_disk(indptr, np.array([1, 2, 0, 1, 2, 0, 1], np.int32))).topology
        for node in range(3):
            begin, end = indptr[node], indptr[node + 1]
            if 0 <= begin <= end <= 7:
                sample = Uniform([-1]).sample_nodes(np.array([node]), 0, topology)
                assert sample.edge.tolist() == list(range(begin, end))
            else:
                with pytest.raises(StoreError, match=f"of node {node} .*gnndrive verify"):
                    Uniform([-1]).sample_nodes(np.array([node]), 0, topology)


def wrong_ends_are_refused(way, on_disk) -> None:
    for ends in ([0, 3], [1, 2], []):
        with pytest.raises(StoreError, match="gnndrive verify"):
            way(on_disk(np.array(ends, np.int64), np.zeros(2, np.int32)))


@pytest.mark.parametrize(
    "check", [a_neighbour_out_of_range, damaged_index_pointers, wrong_ends_are_refused]
)
def test_damage_is_an_error(way, on_disk, check):
    check(way, on_disk)


def test_all_topologies_treat_random_damage_alike(opened, on_disk, seeds):
    """All give the same correct sample, or the same error."""
    for seed in seeds(8):
        random = np.random.default_rng(seed)
        indptr, indices = random_graph(30, 6, seed, DTYPES[seed % 2])
        for array, odds in ((indptr[1:-1], 0.5), (indices, 0.7)):
            if len(array) and random.random() < odds:
                limits, at = np.iinfo(array.dtype), random.integers(0, len(array))
                low, high = [(-3, len(indices) + 3), (limits.min, limits.max)][seed // 2 % 2]
                array[at] = random.integers(low, high, endpoint=True)
        node, fanout = random.integers(0, 30, 4), random.choice([-1, 2, 40], 3).tolist()
        graph, found = on_disk(indptr, indices), set()
        for name, cache in (*((kind, 0) for kind in KINDS), ("direct", 1_500)):
            topology = opened(graph, name, cache).topology
            try:
                sample = Uniform(fanout).sample_nodes(node, seed % 1000, topology)
                assert_contract(sample, indptr, indices, node.tolist(), fanout, False)
                found.add(tuple(sample.edge.tolist()))
            except StoreError as error:
                found.add(str(error))
        assert len(found) == 1


@pytest.mark.parametrize(("name", "cache"), [("resident", 0), ("direct", 10_000), (Widened, 0)])
def test_files_that_cannot_be_read(opened, on_disk, monkeypatch, name, cache):
    graph = on_disk(np.array([0, 5000]), np.zeros(4000, np.int32))
    for path, message in ((graph.path, "became shorter"), (graph.path / "no", "cannot be opened")):
        with pytest.raises(StoreError, match=message):
            opened(Graph(graph.indptr, path, graph.dtype, 5000), name, cache)
    monkeypatch.setattr("os.preadv", Mock(side_effect=OSError(errno.EIO, "no")))
    graph = on_disk(*random_graph(50, 5))
    with pytest.raises(ReadError) as caught:
        opened(graph, name, cache)
    found = caught.value
    assert (found.path, found.errno, found.offset) == (str(graph.path), errno.EIO, DATA_OFFSET)


# ---- a broken one is found


def broken(change: Callable[[Any], None]) -> Any:
    def make(self: Any, context: Any) -> None:
        Widened.__init__(self, context)
        change(self)

    return type("Broken", (Widened,), {"__init__": make})


def turn(topology: Any) -> None:
    topology._indices[:] = topology._indices[::-1].copy()


def mend(topology: Any) -> None:
    topology._indices %= max(topology.num_nodes, 1)


def smooth(topology: Any) -> None:
    indptr = topology._indptr
    np.maximum.accumulate(np.clip(indptr, 0, topology.num_edges), out=indptr)


def test_a_broken_topology_is_found(opened, on_disk):
    """Positions name other edges; what cannot be is taken for something else."""
    modest: Any = type("Modest", (Widened,), {
        "plan": classmethod(lambda _, question: replace(Widened.plan(question), nbytes=1000))
    })  # fmt: skip
    for kind, message, check in (
        (broken(turn), "not equal", lambda way: samples_equal_those_from_memory(
            way, on_disk, 0, GRAPHS["a power law"])),
        (broken(mend), "NOT RAISE", lambda way: a_neighbour_out_of_range(way, on_disk)),
        (broken(smooth), "NOT RAISE", lambda way: damaged_index_pointers(way, on_disk)),
        (modest, "more than", lambda _: holds_as_much_as_planned(opened, on_disk, modest)),
    ):  # fmt: skip
        with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
            check(lambda graph, kind=kind: opened(graph, kind))


# ---- indices that another process has read


def with_indices(graph: Any, kind: Any, given: IndicesInMemory) -> Topology:
    """A topology over indices that another process has read, which are read-only."""
    array = given.array.view()
    array.flags.writeable = False
    given = IndicesInMemory(array, given.bits)
    return Adjacency([graph], TopologyChoice(kind, "", 0), 0, {None: given}).topologies[0]


def test_a_topology_shares_its_indices_or_ignores_others(opened, on_disk):
    graph = on_disk(*random_graph(300, 9, seed=1))
    assert SHARING
    for kind in KINDS:
        assert (opened(graph, kind).topology.in_memory is not None) == (kind in SHARING)
        if kind not in SHARING:
            nothing = IndicesInMemory(np.empty(0, np.uint8), 1)
            assert with_indices(graph, kind, nothing).num_edges == graph.num_edges


@pytest.mark.parametrize("kind", SHARING)
def test_shared_indices_give_the_same_samples_and_nothing_is_read(
    opened, on_disk, monkeypatch, kind
):
    """C never gets indices of another size."""
    for dtype in DTYPES:
        graph = on_disk(*random_graph(900, 12, seed=2, dtype=dtype))
        own = opened(graph, kind).topology
        with monkeypatch.context() as patched:
            patched.setattr("os.preadv", lambda *_: pytest.fail("the indices are read"))
            theirs = with_indices(graph, kind, own.in_memory)
        assert theirs.nbytes == own.nbytes
        seeds = np.arange(0, 900, 7)
        for fanout in ([5, 5], [-1, 2]):
            assert_same(*(Uniform(fanout).sample_nodes(seeds, 3, each) for each in (own, theirs)))
        array, bits = own.in_memory.array, own.in_memory.bits
        for given in ((array[:-1], bits), (array, bits + 1), (array, 0), (graph.indices[:-1], 0)):
            with pytest.raises(AssertionError):
                with_indices(graph, kind, IndicesInMemory(*given))


@pytest.mark.parametrize("kind", SHARING)
def test_indices_are_read_into_the_memory_that_is_given(on_disk, kind):
    """And shared unpacked if one of them is no node."""
    indptr, indices = random_graph(300, 9, seed=4, dtype=np.int32)
    made: list[np.ndarray] = []

    def allocate(nbytes: int) -> np.ndarray:
        made.append(np.zeros(nbytes, np.uint8))
        return made[-1]

    choice, size = TopologyChoice(kind, "", 0), GraphSize(300, len(indices), 4)
    for expected in ([size.packed_bytes], [size.packed_bytes, size.indices_bytes]):
        made.clear()
        graph: Any = on_disk(indptr, indices)
        (topology,) = Adjacency([graph], choice, 0, allocate=allocate).topologies
        assert [len(each) for each in made] == expected
        assert np.shares_memory(topology.in_memory.array, made[-1])
        indices[0] = 300  # the second time, packing fails
    bad = np.flatnonzero(np.diff(indptr))[:1]
    for each in (topology, with_indices(graph, kind, topology.in_memory)):
        with pytest.raises(StoreError, match="node 300"):
            Uniform([-1]).sample_nodes(bad, 0, each)
    with pytest.raises(ConfigError, match=r"cannot hold the graph .no memory.*direct"):
        Adjacency([graph], choice, 0, allocate=Mock(side_effect=MemoryError("no memory")))


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
    graph = on_disk(*random_graph(10_000, 2))
    with pytest.raises(OSError, match="ENOSPC"):
        make_cache(graph, 1_500)
    assert make_cache(graph, _neighbours.least_bytes(GraphSize(10_000, 1, 8))).nodes < 200


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
    async def call() -> Any:
        return function(one._engine)

    return one._loop_thread.call(call())  # type: ignore[union-attr]


def until_it_reads(one: Opened) -> None:
    until(lambda: in_loop(one, lambda engine: bool(engine.inflight)))


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
    first = in_thread(stopped.sample_nodes, NODES, 0, paused.topology)
    until_it_reads(paused)
    waiting = [in_thread(stopped.sample_nodes, NODES, 0, paused.topology) for _ in range(3)]
    unharmed = in_thread(other.sample_nodes, NODES, 0, paused.topology)
    stopped.stop()
    assert all(isinstance(each.exception(60), ClosedError) for each in waiting)
    assert not first.done(), "law 3: the kernel may still write"
    in_loop(paused, lambda engine: setattr(engine, "paused", False))
    assert isinstance(first.exception(60), ClosedError)
    expected = other.sample_nodes(NODES, 0, Mmap(*random_graph(3000, 20, seed=1)))
    np.testing.assert_array_equal(unharmed.result(60).node, expected.node)


def test_closing_ends_a_reading_sampler(paused):
    drawing = in_thread(Uniform([5]).sample_nodes, NODES, 0, paused.topology)
    until_it_reads(paused)
    paused.close()
    assert isinstance(drawing.exception(60), ClosedError)
