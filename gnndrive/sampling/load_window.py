"""`load_window`: reads the graph of a window from a partitioned store (HierBatching).

It reads the lists of the window's partitions and of its static nodes in long direct reads, and C
(`native/filter.c`) keeps of each stretch the edges that begin in the window. So it holds the graph
and one stretch. It blocks, for as long as the disk and about four nanoseconds an edge take: call it
in a worker thread. Where the rows are, and when a window is loaded, is not decided here.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.array_pool import private_map
from gnndrive.common.distinct import distinct
from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.common.ffi import check, ffi, lib, pointer
from gnndrive.common.io.direct_file import STRETCH_BYTES
from gnndrive.common.records import IndexPointers, Int32Array, TableFile
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.sampling.rounds import STOPPED, StopToken
from gnndrive.sampling.window_graph import WindowGraph, check_size, count_dtype, id_dtype
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
) -> WindowGraph:
    """Load the graph of a window; blocks. Its arrays have no spare room.

    Args:
        index_pointers: of the store, int64 or uint32 [N + 1].
        partitions: the window's partitions, ascending, int32 [p].
        k: how many static nodes it has.
        stop: ends the loading with ClosedError.
    """
    window = _Window(partitioned, partitions, k)
    assert len(index_pointers) == partitioned.num_nodes + 1
    with partitioned.unchanged():
        new_ids = window.new_ids()
        store_ids = np.empty_like(new_ids)
        _look_up(partitioned, new_ids, store_ids)
        lists = _Lists(window, index_pointers, store_ids)
        lists.read(partitioned.static_indices, window.static_runs(), stop)
        lists.read(partitioned.indices, window.runs(), stop)
    indptr, indices, positions = lists.finish()
    return WindowGraph(
        partitions, indptr, indices, positions, store_ids, new_ids, partitioned.num_nodes,
        partitioned.num_edges, partitioned.indices.path, window.empty,
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
        pick_rows(file, order, rows, torch.from_numpy(out[first : first + _PICKED]))


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

    def new_ids(self) -> npt.NDArray[Any]:
        """The row of x of each local id, int32 or int64 [n]: of a static node its copy, of others
        the new id."""
        nodes, static = self.partitioned.num_nodes, self.partitioned.num_static
        found = np.empty(self.num_nodes, id_dtype(nodes + static))
        found[: self.k] = np.arange(nodes, nodes + self.k, dtype=found.dtype)
        for first, last, local in zip(self._first, self._last, self._local, strict=False):
            found[local : local + last - first] = np.arange(first, last, dtype=found.dtype)
        return found

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
        self, window: _Window, index_pointers: IndexPointers, store_ids: npt.NDArray[Any]
    ) -> None:
        self._window, nodes = window, window.num_nodes
        edges, room = window.partitioned.num_edges, window.num_codes + 1
        self._dtype = np.dtype(count_dtype(edges))
        self._indptr = np.zeros(nodes + 1, self._dtype)
        # Room for all codes takes addresses, but memory only for the edges that are kept.
        self._indices = private_map(4 * room, huge=True)
        self._positions = private_map(self._dtype.itemsize * room, huge=True)
        self._kept = index_pointers, store_ids
        self._filter = ffi.new("gd_filter *", {
            "store_ids": ffi.from_buffer(store_ids), "id_bytes": store_ids.itemsize,
            "pointers": ffi.from_buffer(index_pointers), "pointer_bytes": index_pointers.itemsize,
            "empty": pointer(window.empty), "empty_count": len(window.empty),
            "indptr": ffi.from_buffer(self._indptr), "indptr_bytes": self._indptr.itemsize,
            "indices": ffi.cast("int32_t *", _address_of_map(self._indices)),
            "positions": ffi.cast("void *", _address_of_map(self._positions)),
            "position_bytes": self._dtype.itemsize,
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

    def finish(self) -> tuple[Any, Int32Array, npt.NDArray[Any]]:
        """Return index pointers, indices and positions, without the spare room."""
        kept = self._filter.kept
        self._indices.resize(max(4 * kept, 1))
        self._positions.resize(max(self._dtype.itemsize * kept, 1))
        indices = np.frombuffer(self._indices, np.int32, kept)
        return self._indptr, indices, np.frombuffer(self._positions, self._dtype, kept)

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
            new_id = window.new_ids()[culprit]
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


def _address_of_map(block: mmap.mmap) -> int:
    """The address of a map; no reference to it is kept, so that it may be resized."""
    return np.frombuffer(block, np.uint8).ctypes.data
