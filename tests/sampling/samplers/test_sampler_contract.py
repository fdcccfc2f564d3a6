"""The contract of uniform sampling, checked in plain numpy and against PyG itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.utils import k_hop_subgraph

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.sampling.samplers.base import most, position_dtype
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from tests.sampling.samplers.graphs import (
    Scratch,
    assert_contract,
    graph_of_degrees,
    random_graph,
    star,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, type, list[int], list[int], bool]:
    degrees = draw(st.lists(st.integers(0, 12), min_size=1, max_size=30))
    node = st.integers(0, len(degrees) - 1)
    return (
        degrees,
        draw(st.integers(0, 2**64 - 1)),
        draw(st.sampled_from([np.int32, np.int64])),
        draw(st.lists(node, max_size=8)),
        draw(st.lists(st.integers(-1, 6), max_size=4)),
        draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None, max_examples=400)
@given(cases())
def test_contract_on_small_graphs(
    case: tuple[list[int], int, type, list[int], list[int], bool],
) -> None:
    degrees, key, dtype, seeds, fanout, replace = case
    indptr, indices = graph_of_degrees(degrees, key % 2**32, dtype)
    topology = Mmap(indptr, indices, "graph")
    sample = Uniform(fanout, replace).sample_nodes(np.array(seeds, np.int64), key, topology)
    assert_contract(sample, indptr, indices, seeds, fanout, replace)
    if len(set(seeds)) == len(seeds):
        nodes, edges = len(degrees), len(indices)
        bound = most({None: len(seeds)}, {None: fanout}, {None: nodes}, {None: edges}, replace)
        assert len(sample.node) <= bound.nodes[None]
        assert len(sample.edge) <= bound.edges[None]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [[10, 5, 5], [-1, 3], [40, 33], [0, 5], [1, -1, 1]])
def test_contract_on_a_graph_with_hubs(dtype: type, replace: bool, fanout: list[int]) -> None:
    indptr, indices = random_graph(2000, 20, seed=3, dtype=dtype)
    seeds = [5, 1999, 5, 0, 17, 17, 800, *range(100, 300)]
    sample = Uniform(fanout, replace).sample_nodes(
        np.array(seeds), 11, Mmap(indptr, indices, "graph")
    )
    assert_contract(sample, indptr, indices, seeds, fanout, replace)


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_all_neighbours_equal_pygs_k_hop_subgraph(hops: int) -> None:
    indptr, indices = random_graph(300, 2, seed=5)
    target = np.repeat(np.arange(300), np.diff(indptr))
    edge_index = torch.from_numpy(np.stack([indices, target]))
    seeds = np.array([1, 50, 299])
    topology = Mmap(indptr, indices, "graph")
    sample = Uniform([-1] * hops).sample_nodes(seeds, 0, topology)
    subset, *_ = k_hop_subgraph(torch.from_numpy(seeds), hops, edge_index, num_nodes=300)
    assert sorted(sample.node.tolist()) == sorted(subset.tolist())
    if hops:
        inner, *_ = k_hop_subgraph(torch.from_numpy(seeds), hops - 1, edge_index, num_nodes=300)
        into_inner = np.flatnonzero(np.isin(target, inner.numpy()))
        assert sorted(sample.edge.tolist()) == into_inner.tolist()


def test_duplicate_seeds_stay_and_are_each_expanded() -> None:
    sample = Uniform([2]).sample_nodes(np.array([0, 0, 1, 0]), 4, star(2))
    assert sample.node.tolist() == [0, 0, 1, 0, 2]
    assert sample.row.tolist() == [2, 4, 2, 4, 2, 4]
    assert sample.col.tolist() == [0, 0, 1, 1, 3, 3]
    assert sample.num_sampled_nodes == (4, 1)
    assert sample.num_sampled_edges == (6,)


def test_no_seeds_and_no_hops() -> None:
    empty = Uniform([3, -1]).sample_nodes(np.array([], np.int64), 0, star(4))
    assert (empty.num_sampled_nodes, empty.num_sampled_edges) == ((0, 0, 0), (0, 0))
    alone = Uniform([]).sample_nodes(np.array([2, 0]), 0, star(4))
    assert alone.node.tolist() == [2, 0]
    assert (alone.num_sampled_nodes, alone.num_sampled_edges) == ((2,), ())


def test_nodes_equal_in_their_low_32_bits_stay_apart() -> None:
    """Three thousand ids, so that some collide in the hash table, and each of them twice."""
    wide = 5 + np.tile(np.arange(3000, dtype=np.int64) << 32, 2)
    indptr = np.array([0, len(wide)], np.int64)  # enough, because only node 0 is expanded
    graph = ffi.new("gd_csc *", [pointer(indptr), pointer(wide), 8, 8, 2**48, len(wide)])
    scratch = Scratch()
    assert scratch.sample(graph, [0], [-1]) == 0
    assert lib.gd_sampler_nodes(scratch.handle, 0) == 3001
    np.testing.assert_array_equal(scratch.sources(), wide)


def test_positions_take_the_width_that_the_graph_needs() -> None:
    assert (position_dtype(2**31 - 1), position_dtype(2**31)) == (np.int32, np.int64)
    topology, scratch, null = star(40), Scratch(), ffi.NULL
    assert scratch.sample(topology.csc(), [0], [7], key=3) == 0
    narrow, wide = np.empty(7, np.int32), np.empty(7, np.int64)
    for edge in (narrow, wide):
        lib.gd_sampler_drawn(scratch.handle, 0, null, null, pointer(edge), edge.itemsize, null)
    assert narrow.tolist() == wide.tolist()
    assert len(set(wide.tolist()) & set(range(40))) == 7


@pytest.mark.parametrize("fanout", [[-2], [3, 2.5], ["10"], [None], [2**63]])
def test_a_bad_fanout_is_refused(fanout: list[int]) -> None:
    with pytest.raises(ConfigError, match="num_neighbors"):
        Uniform(fanout)


def bounds(
    fanout: list[int], nodes: int, edges: int = 10**9, replace: bool = False
) -> tuple[int, int]:
    found = most({None: 1000}, {None: fanout}, {None: nodes}, {None: edges}, replace)
    return found.nodes[None], found.edges[None]


def test_bounds_for_the_plan() -> None:
    assert bounds([10, 10, 10], 10**9)[0] == 1000 + 10**4 + 10**5 + 10**6
    assert bounds([10, 10, 10], 50_000)[0] == 50_000
    assert bounds([10, -1], 10**9)[0] == 10**9
    assert bounds([], 10**9) == (1000, 0)
    assert bounds([10, 10], 10**9)[1] == 10**4 + 10**5
    assert bounds([10, 10], 10**9, 20_000)[1] == 20_000
    assert bounds([10, 10], 5000, 20_000, replace=True)[1] == 10_000 + 50_000
    assert bounds([-1, 10], 5000, 20_000)[1] == 20_000


def test_bounds_by_type() -> None:
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    nodes, edges = {"author": 50, "paper": 1000}, {writes: 400, cites: 9000}
    found = most({"paper": 10}, {writes: [5, 5], cites: [2, 3]}, nodes, edges)
    assert found.nodes == {"author": 50, "paper": 10 + 20 + 60}
    assert found.edges == {writes: 50 + 100, cites: 20 + 60}
    found = most({"author": 10}, {writes: [5, 5], cites: [2, 3]}, nodes, edges)
    assert (found.nodes, found.edges) == ({"author": 10, "paper": 0}, {writes: 0, cites: 0})
    found = most({"paper": 10}, {writes: [-1, 1], cites: [1, -1]}, nodes, edges)
    assert (found.nodes, found.edges) == (nodes, {writes: 400, cites: 9000})


def test_found_by_name() -> None:
    assert plugins.find("samplers", "uniform") is Uniform
    assert plugins.find("topologies", "mmap") is Mmap
