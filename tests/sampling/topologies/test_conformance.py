"""The conformance test of topologies: the same graph gives the same samples in each of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Sample, TableFile
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import resident
from gnndrive.sampling.topologies.base import GraphSize, TopologyQuestion
from gnndrive.sampling.topologies.direct import Direct
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.testing.faults import NOISE
from tests.sampling.samplers.graphs import Scratch, assert_contract, graph_of_degrees, random_graph
from tests.sampling.samplers.shared_numbers import DEPENDENT
from tests.second import Widened

from .conftest import DATA_OFFSET, Graph, Opened

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
Open = Callable[[Graph], Opened]
OnDisk = Callable[[np.ndarray, np.ndarray], Graph]


def test_every_topology_is_tested_here() -> None:
    ways = {way.get("name", "direct") for way in WAYS.values()}
    assert ways == {*plugins.names("topologies"), Widened}


@pytest.fixture(params=WAYS)
def way(
    request: pytest.FixtureRequest, opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> Open:
    """Opens a graph as one of the topologies."""
    if "small" in request.param:
        monkeypatch.setattr(Direct, "missing_max", 97)
        monkeypatch.setattr(Direct, "wanted_max", 301)
    return lambda graph: opened(graph, **WAYS[request.param])


def assert_same(a: Sample, b: Sample) -> None:
    for name in ("node", "row", "col", "edge", "num_sampled_nodes", "num_sampled_edges"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


GRAPHS = {
    "no nodes": [],
    "a node": [0],
    "no edges": [0] * 70,
    "a loop": [1],
    "isolated nodes": [0, 3, 0, 0, 5, 0],
    "one hub": [0, 20_000, 1],
    "hubs": [3, 5_000, 0, 4_000, *[2] * 300],
    "a power law": [int(500 / (k + 1)) for k in range(700)],
    "lists over sector borders": [100, 27, 1, 129, 128, 127, 3, *[125] * 40],
}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("degrees", GRAPHS.values(), ids=GRAPHS)
def test_samples_equal_those_from_memory(
    way: Open, on_disk: OnDisk, degrees: list[int], dtype: type
) -> None:
    indptr, indices = graph_of_degrees(degrees, 1, dtype)
    if not degrees:
        indices = indices[:0]
    memory, topology = Mmap(indptr, indices), way(on_disk(indptr, indices)).topology
    assert (topology.num_nodes, topology.num_edges) == (len(degrees), len(indices))
    seeds = np.arange(len(degrees))[:40]
    for fanout, replace in (([3, 2], False), ([-1, 2], False), ([4, 3], True), ([40], False)):
        sample = Uniform(fanout, replace).sample_nodes(seeds, 5, topology)
        assert_same(sample, Uniform(fanout, replace).sample_nodes(seeds, 5, memory))
        assert_contract(sample, indptr, indices, seeds.tolist(), fanout, replace)


@pytest.mark.parametrize("name", ["isolated nodes", "hubs", "a power law"])
def test_so_do_samples_with_shared_numbers(way: Open, on_disk: OnDisk, name: str) -> None:
    """Which read whole lists."""
    indptr, indices = graph_of_degrees(GRAPHS[name], 1, np.int32)
    memory, topology = Mmap(indptr, indices), way(on_disk(indptr, indices)).topology
    seeds = np.arange(len(GRAPHS[name]))[:40]
    for fanout in ([3, 2], [-1, 2], [40], [0, 1]):
        sample = Uniform(fanout, sampling=DEPENDENT).sample_nodes(seeds, 5, topology)
        assert_same(sample, Uniform(fanout, sampling=DEPENDENT).sample_nodes(seeds, 5, memory))
        assert_contract(sample, indptr, indices, seeds.tolist(), fanout, False)


@pytest.mark.parametrize("cache", [0, 30_000])
def test_lists_longer_than_a_sampler_asks_for_at_once(
    opened: Callable[..., Opened], on_disk: OnDisk, cache: int
) -> None:
    """And more nodes without neighbours."""
    degrees = [0] * 150_000 + [7, 300_000, 0, 150_000, 40, *[0] * 150_000, 9]
    indptr, indices = graph_of_degrees(degrees, 1, np.int32)
    topology = opened(on_disk(indptr, indices), cache_bytes=cache).topology
    seeds = np.arange(len(degrees))
    for fanout in ([30], [200_000], [-1]):
        sampler = Uniform(fanout, sampling=DEPENDENT)
        sample = sampler.sample_nodes(seeds, 2, topology)
        assert_same(sample, sampler.sample_nodes(seeds, 2, Mmap(indptr, indices)))
        taken = np.diff(sample.colptr)
        assert np.array_equal(taken, [min(each, fanout[0] % 10**9) for each in degrees])


def test_seeds_given_twice(way: Open, on_disk: OnDisk) -> None:
    indptr, indices = random_graph(500, 30, seed=1)
    topology, seeds = way(on_disk(indptr, indices)).topology, [7, 7, 3, 7, 3]
    sample = Uniform([5, 5]).sample_nodes(np.array(seeds), 1, topology)
    assert_contract(sample, indptr, indices, seeds, [5, 5], False)


def test_no_seeds_no_hops_no_fanout(way: Open, on_disk: OnDisk) -> None:
    topology = way(on_disk(*random_graph(50, 5))).topology
    assert len(Uniform([3]).sample_nodes(np.zeros(0, np.int64), 0, topology).node) == 0
    assert len(Uniform([]).sample_nodes(np.array([4]), 0, topology).node) == 1
    assert len(Uniform([0, 3]).sample_nodes(np.array([4]), 0, topology).node) == 1


def test_samples_do_not_depend_on_threads(way: Open, on_disk: OnDisk) -> None:
    indptr, indices = random_graph(3000, 15, seed=2, dtype=np.int32)
    topology, memory = way(on_disk(indptr, indices)).topology, Mmap(indptr, indices)
    sampler = Uniform([5, 5])

    def sample(batch: int, topology: Any = topology) -> Sample:
        seeds = np.arange(batch * 10, batch * 10 + 10 * (batch % 7))
        return sampler.sample_nodes(seeds, batch_key(1, 0, batch), topology)

    with ThreadPoolExecutor(4) as pool:
        for batch, got in enumerate(pool.map(sample, range(40))):
            assert_same(got, sample(batch, memory))


@pytest.mark.parametrize(
    ("name", "cache"),
    [("mmap", 0), ("resident", 0), ("direct", 0), ("direct", 9_000), (Widened, 0)],
)
def test_a_topology_holds_as_much_memory_as_planned(
    opened: Callable[..., Opened], on_disk: OnDisk, name: Any, cache: int
) -> None:
    graph = on_disk(*random_graph(3000, 15, seed=2, dtype=np.int32))
    topology = opened(graph, name, cache).topology
    size = GraphSize(3000, len(graph.indices), 4)
    beside = topology.nbytes - size.index_pointer_bytes
    question = TopologyQuestion([size], 1, lambda _: 10**9, 10**9, True, cache, asked=True)
    choice = type(topology).plan(question)
    assert choice is not None
    assert cache - 500 < beside <= choice.nbytes


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 3, 255, 256, 257, 70_000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_packed_indices_of_any_width(
    opened: Callable[..., Opened], on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch,
    nodes: int, dtype: type, halved: bool,
) -> None:  # fmt: skip
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
def test_a_bad_index_in_either_half(
    opened: Callable[..., Opened], on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """Or between the halves: the indices stay unpacked, and a sampler reports the bad one."""
    monkeypatch.setattr(resident, "HALVED_EDGES", 5000)
    indices = np.zeros(5000, np.int32)
    indices[bad] = 5000
    topology = opened(on_disk(np.arange(5001), indices), "resident").topology
    sampler = Uniform([-1])
    assert len(sampler.sample_nodes(np.array([bad - 1]) % 5000, 0, topology).node) == 2
    with pytest.raises(StoreError, match="node 5000"):
        sampler.sample_nodes(np.array([bad]), 0, topology)


@pytest.mark.parametrize("bits", [1, 7, 24, 31, 33, 56])
def test_c_reads_the_indices_that_it_packs(bits: int) -> None:
    random = np.random.default_rng(bits)
    nodes = 1 << bits
    indices = random.integers(0, nodes, 900)
    indices[[0, -1]] = nodes - 1
    packed = np.zeros(-(-900 * bits // 8) + 8, np.uint8)
    indptr = np.array([0, 900])
    for first, last in (
        (0, 311),
        (602, 900),
        (311, 602),
    ):  # in the order of resident.py: the halves, then the middle
        some = indices[first:last].copy()
        arguments = (8, first, len(some), nodes, bits, pointer(packed))
        assert lib.gd_pack_indices(pointer(some), *arguments) == 0
    csc = ffi.new("gd_csc *", [pointer(indptr), pointer(packed), 8, 8, nodes, 900, bits])
    scratch = Scratch()
    assert scratch.sample(csc, [0], [-1]) == 0
    np.testing.assert_array_equal(scratch.sources(), indices)


def test_c_packs_no_index_that_needs_more_bits() -> None:
    indices, packed = np.array([1, 2, 3]), np.zeros(100, np.uint8)
    for nodes, bits, code in (
        (4, 2, 0), (3, 2, -errno.ERANGE), (5, 2, -errno.EINVAL), (4, 0, -errno.EINVAL),
        (4, 57, -errno.EINVAL),
    ):  # fmt: skip
        arguments = (8, 0, 3, nodes, bits, pointer(packed))
        assert lib.gd_pack_indices(pointer(indices), *arguments) == code


# ---- damaged graphs


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, -(2**31), 6, 2**31 - 1])
def test_a_neighbour_out_of_range(way: Open, on_disk: OnDisk, dtype: type, bad: int) -> None:
    graph = on_disk(np.array([0, 5, 5, 5, 5, 5, 5]), np.array([1, 2, bad, 4, 5], dtype))
    topology = way(graph).topology
    sampler = Uniform([-1])
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"indices.*npy.*node {bad},.*gnndrive verify"):
            sampler.sample_nodes(np.array([0]), 0, topology)
    assert (
        len(sampler.sample_nodes(np.array([5]), 0, topology).node) == 1
    )  # the bad index is not read: no error


@pytest.mark.parametrize("bad", [-(2**63), -1, 3, 8, 2**32, 2**63 - 1])
def test_damaged_index_pointers(way: Open, on_disk: OnDisk, bad: int) -> None:
    """A list that the pointers put outside of the edges is an error; other lists are sampled."""
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


def test_all_topologies_treat_random_damage_alike(
    opened: Callable[..., Opened], on_disk: OnDisk
) -> None:
    """All give the same sample or the same error for graphs overwritten with random numbers."""
    outcomes = {"sample": 0, "error": 0}
    for seed in range(60):
        random = np.random.default_rng(seed)
        indptr, indices = random_graph(30, 6, seed, [np.int32, np.int64][seed % 2])
        for array, odds in ((indptr[1:-1], 0.5), (indices, 0.7)):
            if len(array) and random.random() < odds:
                limits, at = np.iinfo(array.dtype), random.integers(0, len(array))
                low, high = [(-3, len(indices) + 3), (limits.min, limits.max)][seed // 2 % 2]
                array[at] = random.integers(low, high, endpoint=True)
        seeds, fanout = random.integers(0, 30, 4), random.choice([-1, 2, 40], 3).tolist()
        graph, found = on_disk(indptr, indices), []
        for name, cache in (
            ("mmap", 0), ("resident", 0), ("direct", 1_500), ("direct", 10**6), (Widened, 0),
        ):  # fmt: skip
            topology = opened(graph, name, cache).topology
            try:
                found.append(Uniform(fanout).sample_nodes(seeds, seed, topology))
            except StoreError as error:
                found.append(str(error))
        outcomes["error" if isinstance(found[0], str) else "sample"] += 1
        for other in found[1:]:
            if isinstance(other, str):
                assert other == found[0]
            else:
                assert_same(other, found[0])
    assert min(outcomes.values()) > 10


@pytest.mark.parametrize("name", [*plugins.names("topologies"), Widened])
@pytest.mark.parametrize("ends", [[0, 3], [1, 2], []])
def test_index_pointers_with_wrong_ends_are_refused(
    opened: Callable[..., Opened], on_disk: OnDisk, name: Any, ends: list[int]
) -> None:
    graph = on_disk(np.array(ends, np.int64), np.zeros(2, np.int32))
    with pytest.raises(StoreError, match="gnndrive verify"):
        opened(graph, name)


@pytest.mark.parametrize(("name", "cache"), [("resident", 0), ("direct", 10_000), (Widened, 0)])
def test_a_file_that_became_shorter(
    opened: Callable[..., Opened], on_disk: OnDisk, name: Any, cache: int
) -> None:
    class Cut(Graph):
        @property
        def indices_file(self) -> TableFile:
            return TableFile(str(self.path), DATA_OFFSET, 5000, 4, "int32", ())

    graph = on_disk(np.array([0, 5000]), np.zeros(4000, np.int32))
    with pytest.raises(StoreError, match="became shorter"):
        opened(Cut(graph.indptr, graph.path, graph.dtype), name, cache)
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(Cut(graph.indptr, graph.path / "none", graph.dtype), name, cache)


def test_a_seed_out_of_range(way: Open, on_disk: OnDisk) -> None:
    topology = way(on_disk(*random_graph(50, 5))).topology
    with pytest.raises(ConfigError, match=r"seed 50 .*from 0 to 49"):
        Uniform([2]).sample_nodes(np.array([0, 50]), 0, topology)


def test_a_disk_that_fails_at_the_start(
    opened: Callable[..., Opened], on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr("os.preadv", fail)
    graph = on_disk(*random_graph(50, 5))
    for name, cache in (("resident", 0), ("direct", 10_000), (Widened, 0)):
        with pytest.raises(ReadError) as caught:
            opened(graph, name, cache)
        assert (caught.value.path, caught.value.errno) == (str(graph.path), errno.EIO)
        assert caught.value.offset == DATA_OFFSET
