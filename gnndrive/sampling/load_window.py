"""`load_window`: reads the graph of a window from a partitioned store (HierBatching).

It reads the lists of the window's partitions and of its static nodes in long direct reads, and C
(`native/filter.c`) keeps of each stretch the edges that begin in the window. So it holds the graph
and one stretch. It blocks, for as long as the disk and about four nanoseconds an edge take: call it
in a worker thread. Where the rows are, and when a window is loaded, is not decided here.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.distinct import distinct
from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.io.direct_file import STRETCH_BYTES
from gnndrive.common.records import IndexPointers, Int32Array, TableFile
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.rounds import STOPPED, StopToken
from gnndrive.sampling.window_graph import (
    ArraySizes,
    WindowArrays,
    WindowGraph,
    check_size,
    sort_keys,
)
from gnndrive.store.mapped_rows import pick_rows
from gnndrive.store.partitioned.partitioned import Partitioned, touching

_BLOCKS = 1 << 16  # of new ids, for which C looks up where to search; they fit into the L2 cache
_PICKED = 1 << 16  # store ids that are looked up at once
_OUTSIDE = -(1 << 62)  # added to the new id of a node outside of the window
Run: TypeAlias = tuple[int, int, int]
"""Lists that touch in a file: positions of the first code and behind the last one, and the local id
behind that of the last list."""


def load_window(
    partitioned: Partitioned,
    index_pointers: IndexPointers,
    partitions: Int32Array,
    k: int,
    stop: StopToken | None = None,
    memory: npt.NDArray[np.uint8] | None = None,
) -> WindowGraph:
    """Load the graph of a window; blocks.

    Args:
        index_pointers: of the store, int64 or uint32 [N + 1].
        partitions: the window's partitions, ascending, int32 [p].
        k: how many static nodes it has.
        stop: ends the loading with ClosedError.
        memory: for its arrays, at least `window_bytes_max`; None: memory of this process.
    """
    window = _Window(partitioned, partitions, k)
    nodes, empty = window.num_nodes, len(window.empty)
    assert len(index_pointers) == partitioned.num_nodes + 1
    if memory is None:
        sizes = _sizes(partitioned, nodes, empty, window.num_codes + 1)
        memory = np.frombuffer(private_map(sizes.nbytes, huge=True), np.uint8)
        arrays = sizes.arrays_in(memory)
    else:
        arrays = _shared_sizes(partitioned).arrays_in(memory).first(nodes, empty)
    with partitioned.unchanged():
        window.write_new_ids(arrays.new_ids)
        arrays.empty[:] = window.empty
        _look_up(partitioned, arrays.new_ids, arrays.store_ids)
        lists = _Lists(window, index_pointers, arrays)
        lists.read(partitioned.static_indices, window.static_runs(), stop)
        lists.read(partitioned.indices, window.runs(), stop)
    sort_keys(arrays.store_ids, partitioned.num_nodes, arrays.keys)
    return _graph(partitioned, partitions, arrays, lists.kept)


def attach_window(
    partitioned: Partitioned, partitions: Int32Array, memory: npt.NDArray[np.uint8],
    sizes: Sequence[int],
) -> WindowGraph:  # fmt: skip
    """The graph that another process has loaded into `memory`; `sizes` are the graph's."""
    nodes, empty, edges = sizes
    arrays = _shared_sizes(partitioned).arrays_in(memory).first(nodes, empty)
    return _graph(partitioned, partitions, arrays, edges)


def window_bytes_max(partitioned: Partitioned) -> int:
    """Bytes of the memory that the graph of any window fits into. Its arrays lie in the same places
    for each window, which touches a part of them."""
    return _shared_sizes(partitioned).nbytes


def _shared_sizes(partitioned: Partitioned) -> ArraySizes:
    codes = partitioned.num_edges + int(partitioned.static_bounds[-1])
    static = partitioned.num_static
    return _sizes(partitioned, partitioned.num_nodes + static, static, codes + 1)


def _sizes(partitioned: Partitioned, nodes: int, empty: int, room: int) -> ArraySizes:
    rows = partitioned.num_nodes + partitioned.num_static
    return ArraySizes(nodes, empty, room, rows, partitioned.num_edges)


def _graph(
    partitioned: Partitioned, partitions: Int32Array, arrays: WindowArrays, edges: int
) -> WindowGraph:
    return WindowGraph(
        partitions, arrays.indptr, arrays.indices[:edges], arrays.positions[:edges],
        arrays.store_ids, arrays.new_ids, partitioned.num_nodes, partitioned.num_edges,
        partitioned.indices.path, arrays.empty, arrays.keys,
    )  # fmt: skip


def loading_bytes(nodes: int, num_static: int) -> int:
    """Return the bytes that `load_window` takes beside the graph, at most, and those of `empty` of
    two graphs. `nodes`: of the window's partitions, and its static nodes; `num_static`: static
    nodes of the partitioned store."""
    return STRETCH_BYTES + 4 * (nodes + _BLOCKS + 5 * num_static) + 16 * _PICKED


def _look_up(partitioned: Partitioned, new_ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Write the store ids of rows of x; C checks their values where it uses them."""
    order = partitioned.order
    path = str(partitioned.path / "order.npy")
    file = TableFile(path, order.offset, len(order), order.itemsize, order.dtype.name, ())
    assert out.dtype == order.dtype
    for first in range(0, len(out), _PICKED):
        rows = new_ids[first : first + _PICKED].astype(np.int64)
        pick_rows(file, order, rows, out[first : first + _PICKED])


class _Window:
    """Which nodes a window has.

    Attributes:
        num_nodes: how many local ids there are.
        num_codes: how many codes the lists of these nodes have.
        codes: the C `gd_codes *`.
        empty: local ids of static nodes in the partitions, ascending, int32 [m].
    """

    def __init__(self, partitioned: Partitioned, partitions: Int32Array, k: int) -> None:
        self.partitioned, self.k = partitioned, k
        _check(partitioned, partitions, k)
        first, last = touching(partitioned.bounds, partitions)
        self._first, self._last = partitioned.bounds[first], partitioned.bounds[last + 1]
        self._codes_first = partitioned.edge_bounds[first]
        self._codes_last = partitioned.edge_bounds[last + 1]
        self._local = k + np.cumsum(np.append(0, self._last - self._first))
        self.num_nodes = int(self._local[-1])
        check_size(self.num_nodes, partitioned.num_nodes)
        self.num_codes = int(partitioned.static_bounds[k])
        self.num_codes += int((self._codes_last - self._codes_first).sum())
        self._make_codes()

    def write_new_ids(self, out: npt.NDArray[Any]) -> None:
        """Write the row of x of each local id, int32 or int64 [n]: of a static node its copy, of
        others the new id."""
        nodes = self.partitioned.num_nodes
        out[: self.k] = np.arange(nodes, nodes + self.k, dtype=out.dtype)
        for first, last, local in zip(self._first, self._last, self._local, strict=False):
            out[local : local + last - first] = np.arange(first, last, dtype=out.dtype)

    def static_runs(self) -> list[Run]:
        """Where the lists of the static nodes are in the file of their copies."""
        return [(0, int(self.partitioned.static_bounds[self.k]), self.k)]

    def runs(self) -> list[Run]:
        """Where the lists of the partitions are in the file of all lists."""
        ends = self._local[1:].tolist()
        return list(zip(self._codes_first.tolist(), self._codes_last.tolist(), ends, strict=True))

    def _make_codes(self) -> None:
        """Make the tables by which C finds the local id of a code."""
        nodes, static = self.partitioned.num_nodes, self.partitioned.num_static
        # Before each run, and behind the last, is a range of nodes that are not in the window.
        ranges = np.empty((2 * len(self._first) + 1, 2), np.int64)
        ranges[:-1:2, 0], ranges[1::2, 0], ranges[-1, 0] = self._first, self._last, nodes
        ranges[::2, 1], ranges[1::2, 1] = _OUTSIDE, self._local[:-1] - self._first
        shift = max((max(nodes, 1) - 1).bit_length() - _BLOCKS.bit_length() + 1, 0)
        starts = np.arange(0, max(nodes, 1), 1 << shift)
        of_blocks = np.searchsorted(ranges[:, 0], starts, "right").astype(np.int32)
        of_static = np.full(static + 1, -1, np.int32)
        self.codes = ffi.new("gd_codes *", {
            "nodes": nodes, "statics": static, "of_static": pointer(of_static),
            "ranges": ffi.cast("gd_id_range *", ranges.ctypes.data), "first": pointer(of_blocks),
            "shift": shift,
        })  # fmt: skip
        self._kept = ranges, of_blocks, of_static
        home = np.ascontiguousarray(self.partitioned.home)
        check(lib.gd_locals(self.codes, pointer(home), static, pointer(of_static)), "gd_locals")
        hot = of_static[: self.k]
        self.empty = distinct(hot[hot >= 0])
        of_static[: self.k] = np.arange(self.k)


def _check(partitioned: Partitioned, partitions: Int32Array, k: int) -> None:
    """Refuse partitions or static nodes that there are not."""
    count = partitioned.num_parts
    ascending = bool((partitions[1:] > partitions[:-1]).all())
    if not ascending or (len(partitions) and not 0 <= partitions[0] <= partitions[-1] < count):
        raise ConfigError(
            f"a window of partitions {partitions.tolist()[:20]}: give ascending numbers from 0 to "
            f"{count - 1}"
        )
    if not 0 <= k <= partitioned.num_static:
        raise ConfigError(
            f"a window with {k} static nodes of {partitioned.num_static}: lower static=, or "
            "partition the store again with a larger --static"
        )


class _Lists:
    """The lists of a window while they are read."""

    def __init__(
        self, window: _Window, index_pointers: IndexPointers, arrays: WindowArrays
    ) -> None:
        self._window, nodes = window, window.num_nodes
        edges, room = window.partitioned.num_edges, len(arrays.indices)
        indptr, ids, positions = arrays.indptr, arrays.store_ids, arrays.positions
        indptr[0] = 0
        self._kept = index_pointers, arrays
        self._filter = ffi.new("gd_filter *", {
            "store_ids": ffi.from_buffer(ids), "id_bytes": ids.itemsize,
            "pointers": ffi.from_buffer(index_pointers), "pointer_bytes": index_pointers.itemsize,
            "empty": pointer(arrays.empty), "empty_count": len(arrays.empty),
            "indptr": ffi.from_buffer(indptr), "indptr_bytes": indptr.itemsize,
            "indices": pointer(arrays.indices), "positions": ffi.from_buffer(positions),
            "position_bytes": positions.itemsize,
            "lists": nodes, "room": room, "edges": edges,
        })  # fmt: skip

    def read(self, file: TableFile, runs: Sequence[Run], stop: StopToken | None) -> None:
        """Read and filter the next lists."""
        with SequentialReader(file) as reader:
            for first, last, end in runs:
                for _, codes in reader.stretches(first, last):
                    if stop:
                        raise ClosedError(STOPPED)
                    self._add(file, codes, end)
                if first == last:
                    self._add(file, np.empty(0, file.dtype), end)
                if self._filter.list != end:
                    raise self._damaged(file, "has fewer codes than these nodes have neighbours")

    @property
    def kept(self) -> int:
        """The number of edges so far."""
        return int(self._filter.kept)

    def _add(self, file: TableFile, codes: npt.NDArray[Any], end: int) -> None:
        window = self._window
        code = lib.gd_filter_lists(
            self._filter, window.codes, ffi.from_buffer(codes), codes.itemsize, len(codes), end
        )
        culprit = self._filter.culprit
        if code == -errno.ERANGE:
            most = window.codes.nodes + window.codes.statics - 1
            raise self._damaged(file, f"has the code {culprit}, and codes go from 0 to {most}")
        if code == -errno.EFAULT:
            new_id = self._kept[1].new_ids[culprit]
            raise window.partitioned.damaged(
                "order.npy",
                f"has no node for row {new_id} of x, or the index pointers of the store are "
                "damaged",
            )
        if code == -errno.EINVAL:
            raise self._damaged(file, "has more codes than these nodes have neighbours")
        check(code, "gd_filter_lists")

    def _damaged(self, file: TableFile, why: str) -> StoreError:
        return self._window.partitioned.damaged(file.path, why)
