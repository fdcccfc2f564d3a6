"""The conformance test of topologies: the same graph gives the same samples in each of them; and
indices that one process has read, which topologies of others use."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Sample, TopologyChoice
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import resident
from gnndrive.sampling.topologies.base import (
    GraphSize,
    IndicesInMemory,
    Topology,
    TopologyQuestion,
)
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.testing.faults import NOISE
from tests.sampling.samplers.graphs import (
    DEPENDENT,
    Scratch,
    assert_contract,
    graph_of_degrees,
    random_graph,
)
from tests.second import Widened
from tests.soak import product

from .conftest import DATA_OFFSET, Graph

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
    """Opens a graph as one of the topologies."""
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
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "no")

    graph = on_disk(np.array([0, 5000]), np.zeros(4000, np.int32))
    for path, message in ((graph.path, "became shorter"), (graph.path / "no", "cannot be opened")):
        with pytest.raises(StoreError, match=message):
            opened(Graph(graph.indptr, path, graph.dtype, 5000), name, cache)
    monkeypatch.setattr("os.preadv", fail)
    graph = on_disk(*random_graph(50, 5))
    with pytest.raises(ReadError) as caught:
        opened(graph, name, cache)
    found = caught.value
    assert (found.path, found.errno, found.offset) == (str(graph.path), errno.EIO, DATA_OFFSET)


# ---- a broken one is found


def broken(change: Callable[[Any], None]) -> type[Widened]:
    """A topology that changes what it has read."""

    class Broken(Widened):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            change(self)

    return Broken


class Modest(Widened):
    """Plans less memory than it takes."""

    @classmethod
    def plan(cls, question: TopologyQuestion) -> Any:
        return replace(super().plan(question), nbytes=1000)


def turn(topology: Any) -> None:
    topology._indices[:] = topology._indices[::-1].copy()


def mend(topology: Any) -> None:
    topology._indices %= max(topology.num_nodes, 1)


def smooth(topology: Any) -> None:
    indptr = topology._indptr
    np.maximum.accumulate(np.clip(indptr, 0, topology.num_edges), out=indptr)


def test_a_broken_topology_is_found(opened, on_disk):
    """Positions name other edges; what cannot be is taken for something else."""
    for kind, message, check in (
        (broken(turn), "not equal", lambda way: samples_equal_those_from_memory(
            way, on_disk, 0, GRAPHS["a power law"])),
        (broken(mend), "NOT RAISE", lambda way: a_neighbour_out_of_range(way, on_disk)),
        (broken(smooth), "NOT RAISE", lambda way: damaged_index_pointers(way, on_disk)),
        (Modest, "more than", lambda _: holds_as_much_as_planned(opened, on_disk, Modest)),
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

    def refuse(nbytes: int) -> np.ndarray:
        raise MemoryError(f"no memory for {nbytes} bytes")

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
        Adjacency([graph], choice, 0, allocate=refuse)
