"""Indices that one process has read, and that topologies of others use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import TopologyChoice
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.base import GraphSize, IndicesInMemory, Topology
from tests.sampling.samplers.graphs import random_graph
from tests.second import Widened

from .conftest import Graph, Opened

OnDisk = Callable[[np.ndarray, np.ndarray], Graph]
Open = Callable[..., Opened]
KINDS = [*plugins.names("topologies"), Widened]
SHARING = [kind for kind in KINDS if plugins.find("topologies", kind).shares_indices]


def with_indices(graph: Graph, kind: Any, given: IndicesInMemory) -> Topology:
    """A topology over indices that another process has read."""
    edges: Any = graph
    return Adjacency([edges], TopologyChoice(kind, "", 0), 0, {None: given}).topologies[0]


def read_only(indices: IndicesInMemory) -> IndicesInMemory:
    array = indices.array.copy()
    array.flags.writeable = False
    return IndicesInMemory(array, indices.bits)


def test_a_topology_shares_its_indices_or_has_none_to_share(opened: Open, on_disk: OnDisk) -> None:
    graph = on_disk(*random_graph(300, 9, seed=1))
    assert SHARING
    for kind in KINDS:
        topology = opened(graph, kind).topology
        assert (topology.in_memory is not None) == topology.shares_indices


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", SHARING)
def test_shared_indices_give_the_same_samples_and_nothing_is_read(
    opened: Open, on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch, kind: Any, dtype: type
) -> None:
    graph = on_disk(*random_graph(900, 12, seed=2, dtype=dtype))
    own = opened(graph, kind).topology
    assert own.in_memory is not None
    monkeypatch.setattr("os.preadv", lambda *_: pytest.fail("the indices are read"))
    theirs = with_indices(graph, kind, read_only(own.in_memory))
    assert theirs.nbytes == own.nbytes
    seeds = np.arange(0, 900, 7)
    for fanout in ([5, 5], [-1, 2]):
        one, other = (Uniform(fanout).sample_nodes(seeds, 3, each) for each in (own, theirs))
        for name in ("node", "row", "col", "edge"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("kind", SHARING)
def test_indices_of_which_one_is_no_node_are_shared_unpacked(
    opened: Open, on_disk: OnDisk, kind: Any
) -> None:
    indptr, indices = random_graph(300, 9, seed=3, dtype=np.int32)
    bad = int(np.flatnonzero(np.diff(indptr))[0])
    indices[indptr[bad]] = 300
    graph = on_disk(indptr, indices)
    own = opened(graph, kind).topology
    assert own.in_memory is not None
    assert own.in_memory.bits == 0
    assert own.in_memory.array.dtype == np.int32
    for topology in (own, with_indices(graph, kind, read_only(own.in_memory))):
        with pytest.raises(StoreError, match="node 300"):
            Uniform([-1]).sample_nodes(np.array([bad]), 0, topology)


@pytest.mark.parametrize("kind", SHARING)
def test_indices_are_read_into_the_memory_that_is_given(on_disk: OnDisk, kind: Any) -> None:
    indptr, indices = random_graph(300, 9, seed=4, dtype=np.int32)
    made: list[np.ndarray] = []

    def allocate(nbytes: int) -> np.ndarray:
        made.append(np.zeros(nbytes, np.uint8))
        return made[-1]

    for bad in (False, True):
        if bad:
            indices[0] = -1
        made.clear()
        graph: Any = on_disk(indptr, indices)
        adjacency = Adjacency([graph], TopologyChoice(kind, "", 0), 0, allocate=allocate)
        (topology,) = adjacency.topologies
        assert topology.in_memory is not None
        size = GraphSize(300, len(indices), 4)
        assert [len(each) for each in made] == [size.packed_bytes, size.indices_bytes][: bad + 1]
        assert np.shares_memory(topology.in_memory.array, made[-1])


@pytest.mark.parametrize("kind", SHARING)
def test_too_little_memory_says_what_to_do(on_disk: OnDisk, kind: Any) -> None:
    def refuse(nbytes: int) -> np.ndarray:
        raise MemoryError(f"no memory for {nbytes} bytes")

    graph: Any = on_disk(*random_graph(300, 9, seed=4))
    with pytest.raises(ConfigError, match=r"cannot hold the graph .no memory.*direct"):
        Adjacency([graph], TopologyChoice(kind, "", 0), 0, allocate=refuse)


@pytest.mark.parametrize("kind", SHARING)
def test_c_never_gets_indices_of_another_size(opened: Open, on_disk: OnDisk, kind: Any) -> None:
    graph = on_disk(*random_graph(300, 9, seed=5, dtype=np.int32))
    good = opened(graph, kind).topology.in_memory
    assert good is not None
    for bad in (
        IndicesInMemory(good.array[:-1], good.bits),
        IndicesInMemory(good.array, good.bits + 1),
        IndicesInMemory(good.array, 0),
        IndicesInMemory(graph.indices[:-1], 0),
    ):
        with pytest.raises(AssertionError):
            with_indices(graph, kind, bad)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SHARING])
def test_other_topologies_ignore_shared_indices(opened: Open, on_disk: OnDisk, kind: Any) -> None:
    graph: Any = on_disk(*random_graph(300, 9, seed=6))
    nothing = IndicesInMemory(np.empty(0, np.uint8), 1)
    adjacency = Adjacency([graph], TopologyChoice(kind, "", 0), 8192, {None: nothing})
    assert adjacency.topologies[0].num_edges == graph.num_edges
    adjacency.close()
