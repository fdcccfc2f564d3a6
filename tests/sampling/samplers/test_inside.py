"""Sampling inside a window: ids are the store's, draws do not depend on the window's numbering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import BatchTooLarge, ConfigError, StoreError
from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.samplers.base import Bounds, SamplerContext
from gnndrive.sampling.samplers.inside import Inside
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies.base import Topology
from tests.sampling.samplers.graphs import DEPENDENT, random_graph
from tests.sampling.samplers.test_conformance import told
from tests.sampling.windows import partitioned_graph, random_parts

NODES, PARTS = 600, 11
GRAPH = random_graph(NODES, 14, seed=5)


def in_partitions(folder: Path, seed: int = 1, parts: int = PARTS) -> Any:
    """The graph in partitions, with 60 static nodes."""
    folder.mkdir(exist_ok=True)
    return partitioned_graph(folder, *GRAPH, random_parts(NODES, parts, seed), parts, 0.1)


def sampled(sampler: Any, seeds: Any, key: int, graph: Topology) -> Sample:
    """A sample around nodes."""
    node = np.array(seeds, np.int64)
    sample = sampler.sample(Seeds(0, node, node), key, [graph])
    assert isinstance(sample, Sample)
    return sample


@pytest.mark.parametrize("replace", [False, True])
def test_ids_positions_and_rows_are_the_stores(tmp_path, replace):
    made = in_partitions(tmp_path)
    targets = np.repeat(np.arange(NODES), np.diff(GRAPH[0]))
    drawn = 0
    for partitions, k in (([1, 4, 5, 9], 30), ([2, 3], 60)):
        graph = load_window(made, GRAPH[0], np.array(partitions, np.int32), k)
        members = graph.store_ids[k:].astype(np.int64)
        for batch in range(5):
            seeds = np.random.default_rng(batch).choice(members, 25)  # some of them twice
            sample = sampled(Inside([4, -1, 3], replace), seeds, batch, graph)
            assert np.array_equal(GRAPH[1][sample.edge], sample.node[sample.row])
            assert np.array_equal(targets[sample.edge], sample.node[sample.col])
            assert np.isin(sample.node, graph.store_ids).all()
            assert list(sample.rows or {}) == ["nodes/x"]
            assert np.array_equal(made.order[sample.rows["nodes/x"]], sample.node)  # type: ignore
            assert (sample.edge.dtype, sample.node.dtype) == (np.int32, np.int64)
            assert not sample.numbered
            drawn += sample.num_edges
    assert drawn > 1_000


@pytest.mark.parametrize("replace", [False, True])
def test_a_window_of_all_nodes_gives_the_batches_of_the_whole_graph(tmp_path, replace, seeds):
    """Whatever its partitions are and however many static nodes it has."""
    whole = over_arrays(*GRAPH)
    for parts in (1, PARTS):
        made = in_partitions(tmp_path / str(parts), parts, parts)
        for k in (0, 1, 60):
            graph = load_window(made, GRAPH[0], np.arange(parts, dtype=np.int32), k)
            for seed in seeds(2):
                node = np.random.default_rng(seed).integers(0, NODES, 30)
                for given in (
                    {"num_neighbors": [5, 4], "replace": replace},
                    {"num_neighbors": [40, -1], "replace": replace},
                    {"num_neighbors": [5, 4], "sampling": DEPENDENT},
                ):
                    one = sampled(Inside(**given), node, seed, graph)
                    assert told(one) == told(sampled(Uniform(**given), node, seed, whole))


def test_what_is_refused_or_left_to_the_context(tmp_path):
    made = in_partitions(tmp_path)
    graph = load_window(made, GRAPH[0], np.array([0, 1], np.int32), 10)
    outside = int(np.setdiff1d(np.arange(NODES), graph.store_ids)[0])
    with pytest.raises(StoreError, match=f"seed {outside} is not in the window"):
        sampled(Inside([2]), [int(graph.store_ids[0]), outside], 0, graph)
    with pytest.raises(ConfigError, match="draws inside windows, and papers is a whole graph"):
        sampled(Inside([2]), [0], 0, over_arrays(*GRAPH, "papers"))
    other: Any = object()
    assert Inside.make(SamplerContext([2], subgraphs=lambda: other, window_nodes=9)) is other
    with pytest.raises(ConfigError, match="inside windows, and the strategy has none"):
        Inside.make(SamplerContext([2], subgraphs=lambda: other))


def test_bounds_have_no_more_nodes_than_a_window_and_limits_are_the_contexts(tmp_path):
    nodes, edges = {None: 1000}, {None: 10_000}
    for window, expected in ((None, 1000), (5000, 1000), (300, 300)):
        sampler = Inside.make(SamplerContext([10, 10], window_nodes=window))
        assert sampler.bounds(100, nodes, edges).nodes == {None: expected}
    graph = load_window(in_partitions(tmp_path), GRAPH[0], np.arange(PARTS, dtype=np.int32), 0)
    limits = Bounds({None: 20}, {None: 100}, {None: 20})
    with pytest.raises(BatchTooLarge):
        sampled(Inside.make(SamplerContext([10, 10], limits=limits)), range(20), 0, graph)
