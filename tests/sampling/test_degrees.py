"""How many edges the nodes with the longest lists have, against a plain sum."""

from __future__ import annotations

import numpy as np
import pytest

import gnndrive
from gnndrive.sampling import degrees as module
from gnndrive.sampling.degrees import Degrees, degrees_of
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import over_arrays
from tests.sampling.samplers.graphs import random_graph


@pytest.mark.parametrize("chunk", [7, 1 << 22])
def test_the_most_edges_are_those_of_the_longest_lists(chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    indptr, _ = random_graph(300, 6)
    counted = Degrees(indptr)
    longest = np.sort(np.diff(indptr))[::-1]
    for nodes in (0, 1, 2, 17, 299, 300, 10_000):
        for fanout in (-1, 0, 1, 5, 10**6):
            each = longest if fanout < 0 else np.minimum(longest, fanout)
            assert counted.edges_most(nodes, fanout) == each[:nodes].sum()
            if fanout >= 0:
                drawn = np.where(longest > 0, fanout, 0)[:nodes].sum()
                assert counted.edges_most(nodes, fanout, replace=True) == drawn
    assert Degrees(np.zeros(1, np.int64)).edges_most(5, -1) == 0


@pytest.mark.parametrize("replace", [False, True])
def test_no_sample_is_larger_than_the_bounds_by_degrees(replace):
    graph = random_graph(400, 5)
    counted, topology = {None: Degrees(graph[0])}, over_arrays(*graph)
    nodes, edges, longest = {None: 400}, {None: len(graph[1])}, np.diff(graph[0])
    for fanout in ([-1], [3], [2, -1], [-1, 2], [4, 3, 2], [0], []):
        sampler = Uniform(fanout, replace)
        for size in (1, 7, 50):
            bounds = sampler.bounds(size, nodes, edges, counted)
            plain = sampler.bounds(size, nodes, edges)
            assert bounds.nodes[None] <= plain.nodes[None]
            assert bounds.edges[None] <= plain.edges[None]
            for seeds in (np.argsort(-longest, kind="stable")[:size], np.arange(size)):
                sample = sampler.sample_nodes(seeds.astype(np.int64), 3, topology)
                assert sample.num_nodes <= bounds.nodes[None]
                assert sample.num_edges <= bounds.edges[None]
    hub = Uniform([-1]).bounds(1, nodes, edges, counted).edges[None]
    assert hub == longest.max() < edges[None]


def test_degrees_are_counted_once_for_each_store(tmp_path):
    indptr, indices = random_graph(50, 3)
    store = gnndrive.write_store(tmp_path / "a.gnn", indptr=indptr, indices=indices, nodes={})
    assert degrees_of(store) is degrees_of(store)
    assert degrees_of(store)[None].edges_most(50, -1) == len(indices)
