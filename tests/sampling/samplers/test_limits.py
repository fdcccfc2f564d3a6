"""Limits on a sample's nodes and edges, and what the plan counts for a sampler's scratch."""

from __future__ import annotations

import numpy as np
import pytest

from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.records import Int64Array
from gnndrive.sampling.samplers._native import (
    Native,
    Relation,
    SamplingOptions,
    SeedGroup,
    scratch_bytes,
)
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import over_arrays
from tests.sampling.samplers.graphs import random_graph

NODES = 20_000
SEEDS = np.arange(900, dtype=np.int64)


def bounds(nodes: int, edges: int) -> Bounds:
    return Bounds({None: nodes}, {None: edges}, {None: nodes})


def test_a_sample_within_its_limits_is_the_same_and_a_larger_one_is_given_up() -> None:
    graph = over_arrays(*random_graph(NODES, 20))
    sample = Uniform([5, 5]).sample_nodes(SEEDS, 1, graph)
    nodes, edges = sample.num_nodes, sample.num_edges
    assert min(nodes, edges) > 5_000, "it is larger than the first capacity of an array"
    exact = Uniform([5, 5], limits=bounds(nodes, edges)).sample_nodes(SEEDS, 1, graph)
    assert np.array_equal(exact.node, sample.node)
    assert np.array_equal(exact.edge, sample.edge)
    with pytest.raises(BatchTooLarge):
        Uniform([5, 5], limits=bounds(nodes, edges - 1)).sample_nodes(SEEDS, 1, graph)
    with pytest.raises(BatchTooLarge):  # nodes are counted before the next 256 edges
        Uniform([5, 5], limits=bounds(nodes - 257, edges)).sample_nodes(SEEDS, 1, graph)
    with pytest.raises(BatchTooLarge):
        Uniform([5, 5], limits=bounds(len(SEEDS) - 1, edges)).sample_nodes(SEEDS, 1, graph)


def test_a_sampler_can_be_used_again_after_it_gave_up_a_sample() -> None:
    graph = over_arrays(*random_graph(NODES, 20))
    few: Int64Array = SEEDS[:10]
    limited = Uniform([5, 5], limits=bounds(1_000, 1_000))
    expected = Uniform([5, 5]).sample_nodes(few, 1, graph)
    for _ in range(3):
        with pytest.raises(BatchTooLarge):
            limited.sample_nodes(SEEDS, 1, graph)
        assert np.array_equal(limited.sample_nodes(few, 1, graph).node, expected.node)


def test_each_type_has_its_own_limits() -> None:
    graph = over_arrays(*random_graph(NODES, 20))
    fanout = np.array([3], np.int64)
    relations = [Relation(graph, fanout, 0, 0), Relation(graph, fanout, 1, 0)]
    groups, options = [SeedGroup(SEEDS)], SamplingOptions(1)
    with Native([2_000_000, 3_000], [0, 3_000]).sampled(
        relations, [NODES, NODES], groups, options
    ) as sampled:
        found = sampled.nodes(1)[0]
    for nodes, edges in (([0, 0], [0, 900]), ([0, len(found) - 257], [0, 0])):
        with (
            pytest.raises(BatchTooLarge),
            Native(nodes, edges).sampled(relations, [NODES, NODES], groups, options),
        ):
            pass


def test_scratch_grows_with_the_limits_only() -> None:
    size = bounds(827_000, 930_000)
    assert scratch_bytes(size) < scratch_bytes(size, limited=False) < 2 * scratch_bytes(size)
    assert scratch_bytes(size) < scratch_bytes(size, disjoint=True)
    assert scratch_bytes(size) < 45e6
