"""The graph of a window, held against the whole graph; and what a damaged folder does."""

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.disk import sequential_reader
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling import load_window as module
from gnndrive.sampling import window_graph
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.window_graph import WindowGraph, check_size, window_bytes
from gnndrive.store.partitioned.partitioned import Partitioned
from tests.sampling.samplers.graphs import graph_of_degrees, random_graph
from tests.soak import product
from tests.store.partitioned.made import make_folder, make_store, renumber

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
    graph_indptr, graph_indices = graph._indptr, graph._indices
    assert graph.num_nodes == len(store_ids) == len(graph_indptr) - 1
    assert graph_indptr[0] == 0
    assert graph_indptr[-1] == graph.num_edges == len(graph_indices) == len(graph.positions)
    target = np.repeat(np.arange(graph.num_nodes), np.diff(graph_indptr.astype(np.int64)))

    member = np.zeros(made.num_nodes, np.bool_)
    member[store_ids] = True
    targets = np.repeat(np.arange(made.num_nodes), np.diff(indptr))
    kept = np.flatnonzero(member[targets] & member[indices])
    positions = graph.positions.astype(np.int64)
    assert np.array_equal(np.sort(positions), kept), "every edge inside comes once, and no other"
    assert np.array_equal(store_ids[target], targets[positions])
    assert np.array_equal(store_ids[graph_indices], indices[positions])
    same = target[1:] == target[:-1]
    assert (np.diff(positions)[same] > 0).all(), "a list is in the store's order"

    of_node = np.full(made.num_nodes, -1)
    of_node[store_ids[::-1]] = np.arange(len(store_ids))[::-1]  # the lower one, if there are two
    assert np.array_equal(of_node[indices[positions]], graph_indices), "a rank comes first"
    assert np.array_equal(of_node[targets[positions]], target)
    assert np.array_equal(graph.to_local(store_ids), of_node[store_ids])
    distinct = graph.distinct_ids(np.arange(graph.num_distinct))
    assert np.array_equal(np.sort(distinct), np.unique(store_ids)), "each node has one number"


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
        return self._whole.csc()


def random_parts(nodes: int, parts: int, seed: int) -> Int64Array:
    """The partition of each node; some of the partitions have no nodes."""
    random = np.random.default_rng(seed)
    used = random.permutation(parts)[: max(parts - parts // 3, 1)]
    return used[random.integers(0, len(used), nodes)]


NODES, STATIC, PARTS = 400, 40, 13
GRAPH = random_graph(NODES, 20, seed=3)  # hubs, self-loops, duplicate edges and isolated nodes
ALL = np.arange(PARTS, dtype=np.int32)


@pytest.fixture
def made(tmp_path):
    """The graph in partitions, some without nodes, with 40 static nodes."""
    return partitioned_graph(tmp_path, *GRAPH, random_parts(NODES, PARTS, 4), PARTS, 0.1)


def windows() -> Iterator[tuple[np.ndarray, int]]:
    random = np.random.default_rng(8)
    for count in (0, 1, 2, 5, PARTS - 1, PARTS):
        for k in (0, 1, 20, STATIC):
            yield np.sort(random.permutation(PARTS)[:count]).astype(np.int32), k


@product("dtype,pointers,blocks", ["int32", "int64"], [np.uint32, np.int64], [1, 8, 1 << 16])
def test_a_window_has_the_edges_inside(tmp_path, monkeypatch, dtype, pointers, blocks):
    """Read in stretches that end within lists, and looked up in blocks larger than partitions."""
    monkeypatch.setattr(sequential_reader, "STRETCH_BYTES", 4096)
    monkeypatch.setattr(module, "_BLOCKS", blocks)
    part = random_parts(NODES, PARTS, 4)
    made = partitioned_graph(tmp_path, *GRAPH, part, PARTS, 0.1, dtype)
    assert len(GRAPH[1]) * 4 > 4 * 4096
    for partitions, k in windows():
        window = load_window(made, GRAPH[0].astype(pointers), partitions, k)
        assert_window(window, made, partitions, k, *GRAPH)
        assert window.positions.dtype == np.uint32
        assert window.nbytes == window_bytes(
            window.num_nodes, window.num_edges, NODES + STATIC, len(GRAPH[1])
        )
    assert (window.num_edges, window.num_nodes) == (len(GRAPH[1]), NODES + STATIC)


def test_positions_and_ids_of_a_large_store(made, monkeypatch):
    """Are int64."""
    made.num_edges = 1 << 32
    made.order = np.memmap(made.path / "order.npy", np.int32, "r").astype(np.int64)
    made.order.tofile(made.path / "order.npy")
    made.order = np.memmap(made.path / "order.npy", np.int64, "r")
    monkeypatch.setattr(window_graph, "id_dtype", lambda nodes: np.int64)
    for partitions, k in windows():
        window = load_window(made, GRAPH[0], partitions, k)
        assert {each.dtype for each in (window.positions, window.store_ids, window.new_ids)} == {
            np.dtype(np.int64)
        }
        assert window._indptr.dtype == np.int64
        assert_window(window, made, partitions, k, *GRAPH)


@settings(max_examples=25)
@given(data=st.data())
def test_small_windows(data):
    draw = data.draw
    degrees = draw(st.lists(st.integers(0, 7), min_size=1, max_size=30))
    parts, count = draw(st.integers(1, 8)), len(degrees)
    part = draw(st.lists(st.integers(0, parts - 1), min_size=count, max_size=count))
    window = sorted(draw(st.lists(st.integers(0, parts - 1), unique=True)))
    static = draw(st.sampled_from([0, 0.1, 0.5, 1]))
    k = draw(st.integers(0, round(static * count)))
    indptr, indices = graph_of_degrees(degrees, draw(st.integers(0, 99)))
    partitions, blocks = np.array(window, np.int32), draw(st.sampled_from([1, 4, 1 << 16]))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(module, "_BLOCKS", blocks):
        made = partitioned_graph(Path(folder), indptr, indices, np.array(part), parts, static)
        loaded = load_window(made, indptr, partitions, k)
        assert_window(loaded, made, partitions, k, indptr, indices)
        outside = np.setdiff1d(np.arange(count), loaded.store_ids).tolist()
        for nodes, error, message in (
            (outside, StoreError, "is not in the window"),
            ([-1, count, 2**62, -(2**62)], ConfigError, "is no node"),
        ):
            for node in nodes:
                with pytest.raises(error, match=f"seed {node} {message}"):
                    loaded.to_local(np.array([*loaded.store_ids[:2], node], np.int64))


def test_a_folder_that_is_opened(tmp_path):
    """As it is in training."""
    store = make_store(tmp_path / "graph.gnn", 300, 4000)
    part = random_parts(300, 6, 1)
    made = make_folder(store, part, 6, static=0.2)
    indptr, indices = np.asarray(store.indptr), np.asarray(store.indices)
    for partitions in (np.array([0, 2, 3], np.int32), np.arange(6, dtype=np.int32)):
        window = load_window(made, store.edges().index_pointers, partitions, 30)
        assert_window(window, made, partitions, 30, indptr, indices)
    (made.path / "partition.json").rename(made.path / "other.json")
    with pytest.raises(StoreError, match="removed or replaced"):
        load_window(made, store.edges().index_pointers, partitions, 30)


def test_only_the_windows_lists_are_read(made, monkeypatch):
    """And lists that touch are read at once."""
    read = []
    stretch = SequentialReader.stretch

    def counted(self: SequentialReader, at: int, last: int | None = None) -> Any:
        read.append((Path(self.file.path).name, at, last))
        return stretch(self, at, last)

    monkeypatch.setattr(SequentialReader, "stretch", counted)
    full = np.flatnonzero(np.diff(made.edge_bounds))
    load_window(made, GRAPH[0], full[[0, 1, 3]].astype(np.int32), 20)
    ends = made.edge_bounds.tolist()
    assert read == [
        ("static_indices", 0, made.static_bounds[20]),
        ("indices", ends[full[0]], ends[full[1] + 1]),
        ("indices", ends[full[3]], ends[full[3] + 1]),
    ]


def test_windows_that_there_are_not(made):
    for partitions in ([3, 1], [2, 2], [-1, 3], [0, PARTS]):
        with pytest.raises(ConfigError, match=f"ascending numbers from 0 to {PARTS - 1}"):
            load_window(made, GRAPH[0], np.array(partitions, np.int32), 0)
    for k in (-1, STATIC + 1):
        with pytest.raises(ConfigError, match=f"{k} static nodes of {STATIC}: lower static="):
            load_window(made, GRAPH[0], ALL, k)
    check_size((1 << 31) - 1, 1 << 31)
    for nodes, store_nodes in ((1 << 31, 1 << 31), ((1 << 31) - 1, 1 << 32), (4, 1 << 61)):
        with pytest.raises(ConfigError, match="lower megabatch="):
            check_size(nodes, store_nodes)


def damage(path: Path, at: Any, value: Any) -> None:
    """Change a file of int32."""
    values = np.fromfile(path, np.int32)
    values[at] = value
    values.tofile(path)


@pytest.mark.parametrize("file", ["indices", "static_indices"])
def test_codes_that_cannot_be(made, file):
    for bad in (-1, -(2**31), NODES + STATIC, 2**31 - 1):
        damage(made.path / file, slice(None, None, 7), bad)
        message = rf"/{file} has the code {bad}, and codes go from 0 to {NODES + STATIC - 1}: .*gnn"
        with pytest.raises(StoreError, match=message):
            load_window(made, GRAPH[0], ALL, STATIC)
    (made.path / file).write_bytes(b"")
    with pytest.raises(StoreError, match="became shorter"):
        load_window(made, GRAPH[0], ALL, STATIC)


def test_random_codes_do_not_crash(made, seeds):
    """A window of codes in range is some graph; its indices are local ids."""
    for seed in seeds(1):
        random = np.random.default_rng(seed)
        for file in ("indices", "static_indices"):
            count = (made.path / file).stat().st_size // 4
            damage(made.path / file, slice(None), random.integers(0, NODES + STATIC, count))
        for partitions, k in windows():
            window = load_window(made, GRAPH[0], partitions, k)
            indices = window._indices
            assert len(indices) == 0 or 0 <= indices.min() <= indices.max() < window.num_nodes


def test_an_order_or_index_pointers_that_cannot_be(made):
    order = made.order.copy()
    for bad in (-1, NODES, 2**31 - 1, -(2**31)):
        damage(made.path / "order.npy", 5, bad)
        with pytest.raises(StoreError, match=r"order.npy has no node for row 5 of x, .*gnndriv"):
            load_window(made, GRAPH[0], ALL, 0)
    # A node comes twice, so that lists have other lengths.
    by_degree = np.argsort(np.diff(GRAPH[0])[order[:NODES]])
    for one, other, found in (
        (by_degree[-1], by_degree[0], "fewer"),
        (*by_degree[[0, -1]], "more"),
    ):
        damage(made.path / "order.npy", slice(None), order)
        damage(made.path / "order.npy", other, order[one])
        with pytest.raises(StoreError, match=f"indices has {found} codes than"):
            load_window(made, GRAPH[0], ALL, 0)
    indptr = GRAPH[0].copy()
    damage(made.path / "order.npy", slice(None), order)
    for indptr[NODES // 2] in (-5, 2**40):
        with pytest.raises(StoreError, match="the index pointers of the store are damaged"):
            load_window(made, indptr, ALL, 0)


def test_a_stop_ends_the_loading(made, monkeypatch):
    """Within a window: the next stretch is not filtered."""
    stop, read = StopToken(), []
    stretch = SequentialReader.stretch

    def stopping(self: SequentialReader, at: int, last: int | None = None) -> Any:
        read.append(at)
        if len(read) == 3:
            stop.set()
        return stretch(self, at, last)

    monkeypatch.setattr(sequential_reader, "STRETCH_BYTES", 4096)
    monkeypatch.setattr(SequentialReader, "stretch", stopping)
    for expected in (3, 4):
        with pytest.raises(ClosedError):
            load_window(made, GRAPH[0], ALL, STATIC, stop)
        assert len(read) == expected
