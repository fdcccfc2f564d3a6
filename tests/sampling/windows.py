"""Partitioned graphs for tests, and what the graph of a window must be, in plain numpy."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Int64Array, TableFile
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.window_graph import WindowGraph
from gnndrive.store.partitioned.partitioned import Partitioned
from tests.store.partitioned.made import renumber

Array = npt.NDArray[Any]


def partitioned_graph(
    folder: Path, indptr: Array, indices: Array, part: Array, parts: int, static: float,
    dtype: str = "int32",
) -> Any:  # fmt: skip
    """A `Partitioned` of a graph in memory, with files of the least that `load_window` reads: codes
    of `dtype`. `part`: the partition of each node; `static`: the share of static nodes."""
    rows = np.zeros((len(part), 1))
    store: Any = SimpleNamespace(
        indptr=indptr, indices=indices, num_nodes=len(part), array=lambda name: rows
    )
    made = renumber(store, part, parts, static)
    made.order.astype(np.int32).tofile(folder / "order.npy")
    order = np.memmap(folder / "order.npy", np.int32, "r", shape=made.order.shape)
    files = {}
    for name in ("indices", "static_indices"):
        codes = getattr(made, name).astype(dtype)
        codes.tofile(folder / name)
        files[name] = TableFile(str(folder / name), 0, len(codes), codes.itemsize, dtype, ())
    view = SimpleNamespace(
        path=folder, num_nodes=len(part), num_edges=len(indices), num_parts=parts, order=order,
        num_static=len(made.home), bounds=made.bounds.astype(np.int64), home=made.home,
        edge_bounds=made.edge_bounds.astype(np.int64), static_bounds=made.static_bounds, **files,
    )  # fmt: skip
    view.unchanged = nullcontext
    view.damaged = lambda file, why: Partitioned.damaged(view, file, why)
    return view


def assert_window(
    graph: WindowGraph, made: Any, partitions: Array, k: int, indptr: Array, indices: Array
) -> None:
    """Hold a window's graph against the whole graph."""
    bounds = made.bounds
    locals_ = [np.arange(bounds[each], bounds[each + 1]) for each in partitions]
    new_ids = np.concatenate([made.home[:k], *locals_]).astype(np.int64)
    store_ids = np.asarray(made.order)[new_ids].astype(np.int64)
    rows = np.concatenate([made.num_nodes + np.arange(k), *locals_]).astype(np.int64)
    assert np.array_equal(graph.new_ids, rows), "static nodes have their copies' rows"
    assert np.array_equal(graph.store_ids, store_ids)
    csc = arrays_of(graph)
    assert graph.num_nodes == len(store_ids) == len(csc.indptr) - 1
    assert csc.indptr[0] == 0
    assert csc.indptr[-1] == graph.num_edges == len(csc.indices) == len(graph.positions)
    target = np.repeat(np.arange(graph.num_nodes), np.diff(csc.indptr.astype(np.int64)))

    member = np.zeros(made.num_nodes, np.bool_)
    member[store_ids] = True
    targets = np.repeat(np.arange(made.num_nodes), np.diff(indptr))
    kept = np.flatnonzero(member[targets] & member[indices])
    positions = graph.positions.astype(np.int64)
    assert np.array_equal(np.sort(positions), kept), "every edge inside comes once, and no other"
    assert np.array_equal(store_ids[target], targets[positions])
    assert np.array_equal(store_ids[csc.indices], indices[positions])
    same = target[1:] == target[:-1]
    assert (np.diff(positions)[same] > 0).all(), "a list is in the store's order"

    of_node = np.full(made.num_nodes, -1)
    of_node[store_ids[::-1]] = np.arange(len(store_ids))[::-1]  # the lower one, if there are two
    assert np.array_equal(of_node[indices[positions]], csc.indices), "a rank comes first"
    assert np.array_equal(of_node[targets[positions]], target)
    assert np.array_equal(graph.to_local(store_ids), of_node[store_ids])
    distinct = graph.distinct_ids(np.arange(graph.num_distinct))
    assert np.array_equal(np.sort(distinct), np.unique(store_ids)), "each node has one number"


def arrays_of(graph: WindowGraph) -> SimpleNamespace:
    """The index pointers and indices that C sees."""
    return SimpleNamespace(indptr=graph._indptr, indices=graph._indices)


class Whole(WindowGraph):
    """Another topology as the graph of a window that has all nodes, in their order."""

    def __init__(self, topology: Topology) -> None:
        nodes, edges = topology.num_nodes, topology.num_edges
        ids = np.arange(nodes, dtype=np.int32)
        super().__init__(
            np.zeros(1, np.int32), np.zeros(nodes + 1, np.uint32), np.zeros(edges, np.int32),
            np.arange(edges, dtype=np.uint32), ids, ids, nodes, edges, topology.path,
        )  # fmt: skip
        self._whole = topology

    def csc(self) -> Any:
        """See `Topology.csc`."""
        return self._whole.csc()


def random_parts(nodes: int, parts: int, seed: int) -> Int64Array:
    """The partition of each node; some of the partitions have no nodes."""
    random = np.random.default_rng(seed)
    used = random.permutation(parts)[: max(parts - parts // 3, 1)]
    return used[random.integers(0, len(used), nodes)]
