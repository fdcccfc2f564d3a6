"""The graph of a window, held against the whole graph; and what a damaged folder does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.disk import sequential_reader
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling import load_window as module
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.topologies.base import TopologyContext
from gnndrive.sampling.window_graph import WindowGraph, check_size, window_bytes
from tests.sampling.samplers.graphs import graph_of_degrees, random_graph
from tests.sampling.windows import arrays_of, assert_window, partitioned_graph, random_parts
from tests.store.partitioned.made import make_folder, make_store

NODES, PARTS = 900, 13


@pytest.fixture
def graph() -> tuple[Any, Any]:
    """A graph with hubs, self-loops, duplicate edges and isolated nodes."""
    return random_graph(NODES, 14, seed=3)


@pytest.fixture
def made(graph: tuple[Any, Any], tmp_path: Path) -> Any:
    """The graph in partitions, some without nodes, with 90 static nodes."""
    return partitioned_graph(tmp_path, *graph, random_parts(NODES, PARTS, 4), PARTS, 0.1)


def windows() -> Iterator[tuple[np.ndarray, int]]:
    """Partitions and numbers of static nodes."""
    random = np.random.default_rng(8)
    for count in (0, 1, 2, 5, PARTS - 1, PARTS):
        for k in (0, 1, 40, 90):
            yield np.sort(random.permutation(PARTS)[:count]).astype(np.int32), k


# ---- against brute force


@pytest.mark.parametrize("blocks", [1, 8, 1 << 16])
@pytest.mark.parametrize(("dtype", "pointers"), [("int32", np.uint32), ("int64", np.int64)])
def test_a_window_has_the_edges_inside(
    graph: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str,
    pointers: Any, blocks: int,
) -> None:  # fmt: skip
    """Read in stretches that end within lists, and looked up in blocks larger than partitions."""
    monkeypatch.setattr(sequential_reader, "STRETCH_BYTES", 4096)
    monkeypatch.setattr(module, "_BLOCKS", blocks)
    part = random_parts(NODES, PARTS, 4)
    made = partitioned_graph(tmp_path, *graph, part, PARTS, 0.1, dtype)
    assert len(graph[1]) * 4 > 4 * 4096
    for partitions, k in windows():
        window = load_window(made, graph[0].astype(pointers), partitions, k)
        assert_window(window, made, partitions, k, *graph)
        assert window.positions.dtype == np.uint32
        assert window.nbytes == window_bytes(
            window.num_nodes, window.num_edges, NODES + 90, len(graph[1])
        )


def test_positions_and_ids_of_a_large_store(
    graph: tuple[Any, Any], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Are int64."""
    made.num_edges = 1 << 32
    made.order = np.memmap(made.path / "order.npy", np.int32, "r").astype(np.int64)
    made.order.tofile(made.path / "order.npy")
    made.order = np.memmap(made.path / "order.npy", np.int64, "r")
    monkeypatch.setattr(module, "id_dtype", lambda nodes: np.int64)
    for partitions, k in windows():
        window = load_window(made, graph[0], partitions, k)
        assert {window.positions.dtype, window.store_ids.dtype, window.new_ids.dtype} == {
            np.dtype(np.int64)
        }
        assert arrays_of(window).indptr.dtype == np.int64
        assert_window(window, made, partitions, k, *graph)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, list[int], int, float, list[int], int, int]:
    """Degrees, a seed, partitions of the nodes and how many, static nodes, a window, blocks."""
    degrees = draw(st.lists(st.integers(0, 7), min_size=1, max_size=30))
    parts = draw(st.integers(1, 8))
    part = st.lists(st.integers(0, parts - 1), min_size=len(degrees), max_size=len(degrees))
    window = draw(st.lists(st.integers(0, parts - 1), unique=True))
    static = draw(st.sampled_from([0, 0.1, 0.5, 1]))
    k = draw(st.integers(0, round(static * len(degrees))))
    seed, blocks = draw(st.integers(0, 99)), draw(st.sampled_from([1, 4, 1 << 16]))
    return degrees, seed, draw(part), parts, static, sorted(window), k, blocks


@settings(deadline=None, max_examples=300, derandomize=True, database=None)
@given(cases())
def test_small_windows(
    case: tuple[list[int], int, list[int], int, float, list[int], int, int],
) -> None:
    degrees, seed, part, parts, static, window, k, blocks = case
    indptr, indices = graph_of_degrees(degrees, seed)
    partitions = np.array(window, np.int32)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(module, "_BLOCKS", blocks):
        made = partitioned_graph(Path(folder), indptr, indices, np.array(part), parts, static)
        loaded = load_window(made, indptr, partitions, k)
        assert_window(loaded, made, partitions, k, indptr, indices)
        outside = np.setdiff1d(np.arange(len(part)), loaded.store_ids)
        for node in outside.tolist():
            with pytest.raises(StoreError, match=f"seed {node} is not in the window"):
                loaded.to_local(np.array([*loaded.store_ids[:2], node], np.int64))
        for node in [-1, len(part), 2**62, -(2**62)]:
            with pytest.raises(ConfigError, match=f"seed {node} is no node"):
                loaded.to_local(np.array([*loaded.store_ids[:2], node], np.int64))


def test_all_partitions_are_the_whole_graph(graph: tuple[Any, Any], made: Any) -> None:
    window = load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 90)
    assert window.num_edges == len(graph[1])
    assert window.num_nodes == NODES + 90


def test_a_folder_that_is_opened(tmp_path: Path) -> None:
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


def test_only_the_windows_lists_are_read(
    graph: tuple[Any, Any], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lists that touch are read at once."""
    read = []
    stretch = SequentialReader.stretch

    def counted(self: SequentialReader, at: int, last: int | None = None) -> Any:
        read.append((Path(self.file.path).name, at, last))
        return stretch(self, at, last)

    monkeypatch.setattr(SequentialReader, "stretch", counted)
    full = np.flatnonzero(np.diff(made.edge_bounds))
    partitions = full[[0, 1, 3]].astype(np.int32)
    load_window(made, graph[0], partitions, 20)
    ends = made.edge_bounds.tolist()
    assert read == [
        ("static_indices", 0, made.static_bounds[20]),
        ("indices", ends[full[0]], ends[full[1] + 1]),
        ("indices", ends[full[3]], ends[full[3] + 1]),
    ]


def test_several_windows_at_once(graph: tuple[Any, Any], made: Any) -> None:
    """In threads, as the next window is loaded while batches are drawn from this one."""

    def load(case: tuple[np.ndarray, int]) -> WindowGraph:
        return load_window(made, graph[0], *case)

    with ThreadPoolExecutor(4) as threads:
        for case, window in zip(windows(), threads.map(load, windows()), strict=True):
            assert_window(window, made, *case, *graph)


# ---- what is refused


@pytest.mark.parametrize("partitions", [[3, 1], [2, 2], [-1, 3], [0, PARTS]])
def test_partitions_that_there_are_not(
    graph: tuple[Any, Any], made: Any, partitions: list[int]
) -> None:
    with pytest.raises(ConfigError, match=f"ascending numbers from 0 to {PARTS - 1}"):
        load_window(made, graph[0], np.array(partitions, np.int32), 0)


@pytest.mark.parametrize("k", [-1, 91])
def test_static_nodes_that_there_are_not(graph: tuple[Any, Any], made: Any, k: int) -> None:
    with pytest.raises(ConfigError, match=f"{k} static nodes of 90: lower static="):
        load_window(made, graph[0], np.array([0], np.int32), k)


def test_a_window_of_too_many_nodes() -> None:
    check_size((1 << 31) - 1, 1 << 31)
    for nodes, store_nodes in ((1 << 31, 1 << 31), ((1 << 31) - 1, 1 << 32), (4, 1 << 61)):
        with pytest.raises(ConfigError, match="lower megabatch="):
            check_size(nodes, store_nodes)


def test_it_is_no_topology_to_choose() -> None:
    question: Any = None
    assert WindowGraph.plan(question) is None
    context: TopologyContext = question
    with pytest.raises(ConfigError, match="leave topology= out"):
        WindowGraph.make(context)


def damage(path: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change a file of int32."""
    values = np.fromfile(path, np.int32)
    change(values)
    values.tofile(path)


@pytest.mark.parametrize("bad", [-1, -(2**31), NODES + 90, 2**31 - 1])
@pytest.mark.parametrize("file", ["indices", "static_indices"])
def test_a_code_out_of_range(graph: tuple[Any, Any], made: Any, file: str, bad: int) -> None:
    damage(made.path / file, lambda codes: codes.__setitem__(slice(None, None, 7), bad))
    message = rf"/{file} has the code {bad}, and codes go from 0 to {NODES + 89}: .*gnndrive part"
    with pytest.raises(StoreError, match=message):
        load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 90)


def test_random_codes_do_not_crash(graph: tuple[Any, Any], made: Any) -> None:
    """A window of codes in range is some graph; its indices are local ids."""
    random = np.random.default_rng(0)
    for _ in range(20):
        for file in ("indices", "static_indices"):
            damage(
                made.path / file,
                lambda codes: codes.__setitem__(
                    slice(None), random.integers(0, NODES + 90, len(codes))
                ),
            )
        for partitions, k in windows():
            window = load_window(made, graph[0], partitions, k)
            indices = arrays_of(window).indices
            assert len(indices) == 0 or 0 <= indices.min() <= indices.max() < window.num_nodes


@pytest.mark.parametrize("bad", [-1, NODES, 2**31 - 1, -(2**31)])
def test_an_order_with_other_nodes(graph: tuple[Any, Any], made: Any, bad: int) -> None:
    damage(made.path / "order.npy", lambda order: order.__setitem__(5, bad))
    with pytest.raises(StoreError, match=r"order.npy has no node for row 5 of x, .*gnndrive pa"):
        load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 0)


@pytest.mark.parametrize(("longer", "found"), [(True, "fewer"), (False, "more")])
def test_lists_of_other_lengths(
    graph: tuple[Any, Any], made: Any, longer: bool, found: str
) -> None:
    """The order has one node twice."""
    degrees = np.diff(graph[0])[np.asarray(made.order[:NODES])]
    one, other = np.argsort(degrees)[[0, -1]]
    if longer:
        one, other = other, one
    damage(made.path / "order.npy", lambda order: order.__setitem__(other, order[one]))
    with pytest.raises(StoreError, match=f"indices has {found} codes than"):
        load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 0)


def test_a_static_node_twice(graph: tuple[Any, Any], made: Any) -> None:
    """Is some graph, and no crash: `verify` finds it."""
    lengths = np.diff(made.static_bounds).tolist()
    pairs = [(one, other) for other in range(90) for one in range(other)
             if lengths[one] == lengths[other] > 0]  # fmt: skip
    one, other = pairs[0]
    made.home[other] = made.home[one]
    damage(
        made.path / "order.npy",
        lambda order: order.__setitem__(NODES + other, order[NODES + one]),
    )
    window = load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 90)
    assert window.store_ids[one] == window.store_ids[other]
    assert window.to_local(window.store_ids[[other]].astype(np.int64)) == [one]
    assert arrays_of(window).indices.max() < window.num_nodes


@pytest.mark.parametrize("bad", [-5, 2**40])
def test_damaged_index_pointers(graph: tuple[Any, Any], made: Any, bad: int) -> None:
    indptr = graph[0].copy()
    indptr[NODES // 2] = bad
    with pytest.raises(StoreError, match="the index pointers of the store are damaged"):
        load_window(made, indptr, np.arange(PARTS, dtype=np.int32), 0)


@pytest.mark.parametrize("file", ["indices", "static_indices"])
def test_a_file_that_became_shorter(graph: tuple[Any, Any], made: Any, file: str) -> None:
    (made.path / file).write_bytes(b"")
    with pytest.raises(StoreError, match="became shorter"):
        load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 90)


def test_c_refuses_more_codes_than_there_is_room_for() -> None:
    codes = ffi.new("gd_codes *", {"nodes": 1})
    lists = ffi.new("gd_filter *", {"room": 3, "lists": 1})
    assert lib.gd_filter_lists(lists, codes, ffi.NULL, 4, 3, 1) == -28  # ENOSPC


def test_c_finds_no_local_id_for_what_is_no_new_id() -> None:
    ranges, first = np.array([5, 0]), np.zeros(1, np.int32)
    codes = ffi.new("gd_codes *", {
        "nodes": 5, "ranges": ffi.cast("gd_id_range *", ranges.ctypes.data),
        "first": pointer(first), "shift": 3,
    })  # fmt: skip
    found = np.empty(5, np.int32)
    assert lib.gd_locals(codes, pointer(np.arange(5)), 5, pointer(found)) == 0
    assert found.tolist() == [0, 1, 2, 3, 4]
    for bad in (-1, 5, 2**62):
        assert lib.gd_locals(codes, pointer(np.array([bad])), 1, pointer(found)) == -34  # ERANGE


# ---- the end of an epoch


def test_a_stop_ends_the_loading(
    graph: tuple[Any, Any], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a window: the next stretch is not filtered."""
    stop, count = StopToken(), 0
    stretch = SequentialReader.stretch

    def stopping(self: SequentialReader, at: int, last: int | None = None) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            stop.set()
        return stretch(self, at, last)

    monkeypatch.setattr(sequential_reader, "STRETCH_BYTES", 4096)
    monkeypatch.setattr(SequentialReader, "stretch", stopping)
    for expected in (3, 1):
        with pytest.raises(ClosedError):
            load_window(made, graph[0], np.arange(PARTS, dtype=np.int32), 90, stop)
        assert count == expected
        count = 0
