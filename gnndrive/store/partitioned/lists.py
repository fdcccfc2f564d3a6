"""The lists of a store in the new order, as codes: `indices` and `static_indices`.

The nodes of a partition have ascending ids in the store, so a part of the store's indices, however
short, makes one consecutive slice of each partition. So one pass over the store in file order makes
all lists, and a slice can be made again at any time (`NewLists`).

The copies of the static nodes' lists, by rank, are made from `indices` window by window; a window
is as many entries as memory holds. For each, one pass over `indices` in file order copies the
stretches that belong to it, so that nothing is read at random (`static_windows`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.io.write_errors import write_failure
from gnndrive.common.records import Int64Array, TableFile
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.layout.arrays import Ids, table_file
from gnndrive.store.layout.row_writer import BUFFERS, RowWriter, buffer_bytes
from gnndrive.store.layout.rows import SUFFIX, SYNC_BYTES, RowRecord, budget_for, place_in
from gnndrive.store.layout.table_parts import Part, TableParts
from gnndrive.store.partitioned.arrays import Unfinished, numbers, zeros
from gnndrive.store.partitioned.format import HOT_SHARE
from gnndrive.store.partitioned.renumbering import PART_BYTES, checked, no_such_node
from gnndrive.store.reader import Store

LISTS, STATIC_LISTS = "lists of neighbours", "lists of static nodes"
_DIRTY_BYTES = 16 << 20
_STEP = 1 << 20


# ---- the lists in the new order


@dataclass(frozen=True, slots=True)
class Slice:
    """`count` consecutive entries of `indices`, from the position `first` on; `target` is the new
    id of the first entry's target."""

    partition: int
    first: int
    count: int
    target: int


class NewLists:
    """The slices of `indices` that parts of the store's indices make, from position `first` on;
    codes are from 0 to `codes` - 1. The next slice of each partition is at `begins`, int64 [P].
    StoreError: `order` has the id of no node."""

    def __init__(
        self, store: Store, order: Ids, place: Ids, bounds: Int64Array, edge_bounds: Int64Array,
        codes: int, first: int = 0,
    ) -> None:  # fmt: skip
        self._store, self._order, self._place, self._codes = store, order, place, codes
        self._pointers, self._file = store.index_pointers, store.edges().indices_file
        ends = pairwise(bounds.tolist())
        self._filled = [(p, low, high) for p, (low, high) in enumerate(ends) if low < high]
        self.begins = edge_bounds[:-1].copy()
        self._lists: Any = None
        before = Part(0, first, np.empty(0, np.uint8))
        for partition, low, high in self._filled if first else ():
            self.begins[partition] += self._begin(before, low, high)

    def slices(self, part: Part) -> Iterator[Slice]:
        """The slices that the next part of the store's indices makes; each is to be made by `fill`
        before the next one is asked for."""
        first, last = part.first, part.first + part.count
        low_node = place_in(self._pointers, first, "right") - 1
        high_node = place_in(self._pointers, last)
        for partition, start, stop in self._filled:
            ids = self._order[start:stop]
            low, high = start + place_in(ids, low_node), start + place_in(ids, high_node)
            if low < high and (count := self._begin(part, low, high)):
                yield Slice(partition, int(self.begins[partition]), count, low)
                self.begins[partition] += count

    def fill(self, done: int, count: int, out: Bytes) -> None:
        """Make the next entries of the slice: a `Fill` of the row writer."""
        into = ffi.cast("void *", out.ctypes.data)
        written = lib.gd_lists_write(self._lists, count, into)
        assert checked(written, lambda: no_such_node(self._store)) == count

    def _begin(self, part: Part, low: int, high: int) -> int:
        """Begin with the lists of the new ids from `low` to `high` - 1; returns their entries."""
        self._targets = targets = np.ascontiguousarray(self._order[low:high])
        lists = self._lists = ffi.new("gd_lists *")
        indices = part.rows.view(self._file.dtype)
        lists.indices, lists.first, lists.count = numbers(indices), part.first, part.count
        lists.order, lists.targets = numbers(targets), len(targets)
        lists.pointers, lists.place = numbers(self._pointers), numbers(self._place)
        lists.nodes, lists.codes = self._store.num_nodes, self._codes
        total = lib.gd_lists_total(lists)
        return checked(total, lambda: "order.npy has ids of no nodes: partition the store again")


# ---- copies of the static nodes' lists


def list_starts(store: Store, order: Ids, place: Ids, statics: int) -> Int64Array:
    """Where the list of each static node begins in `indices`, int64 [K]."""
    starts, pointers = np.zeros(statics, np.int64), store.index_pointers
    at, nodes = 0, store.num_nodes
    for start in range(0, nodes, _STEP):
        block = np.ascontiguousarray(order[start : min(start + _STEP, nodes)])
        given = numbers(block), len(block), numbers(pointers), numbers(place)
        at = checked(
            lib.gd_static_starts(*given, nodes, statics, at, pointer(starts)),
            lambda: "order.npy or place.npy has a number out of range: partition the store again",
        )
    return starts


def static_windows(
    indices: TableFile, starts: Int64Array, bounds: Int64Array, nbytes: int,
    told: Callable[[int], None],
) -> Iterator[tuple[int, Ids]]:  # fmt: skip
    """Yield `static_indices` in stretches of at most `nbytes`: the position of the first entry, and
    the codes.

    Args:
        indices: the file of lists in the new order.
        starts: where the list of each rank begins in it, int64 [K].
        bounds: where the copy of each list begins, int64 [K + 1].
        told: called with the entries of `indices` that were read in each part.
    """
    width = indices.row_bytes
    step = max(nbytes // width, 1)
    window = zeros(min(step, int(bounds[-1])), indices.dtype)
    for first in range(0, int(bounds[-1]), step):
        last = min(first + step, int(bounds[-1]))
        low = np.maximum(bounds[:-1], first)
        length = np.minimum(bounds[1:], last) - low
        ranks = np.flatnonzero(length > 0)
        source = (starts + low - bounds[:-1])[ranks]
        by_place = np.argsort(source)
        source, length = source[by_place], length[ranks][by_place]
        to = (low[ranks] - first)[by_place]
        del low, ranks, by_place
        _copy(indices, source, length, to, window, told)
        yield first, window[: last - first]


def _copy(
    indices: TableFile, source: Int64Array, length: Int64Array, to: Int64Array, window: Ids,
    told: Callable[[int], None],
) -> None:  # fmt: skip
    """Copy the stretches of `indices` at `source`, which ascends, to their places in a window."""
    ends = source + length
    into: Any = ffi.cast("uint8_t *", window.ctypes.data)
    parts = TableParts(indices, PART_BYTES).parts(int(source[0]), int(ends[-1]))
    with closing(parts):
        for part in parts:
            low = int(np.searchsorted(ends, part.first, "right"))
            high = int(np.searchsorted(source, part.first + part.count))
            lib.gd_copy_stretches(
                ffi.cast("uint8_t *", part.rows.ctypes.data), part.first, part.count,
                indices.row_bytes, pointer(source[low:high]), pointer(length[low:high]),
                pointer(to[low:high]), high - low, into,
            )  # fmt: skip
            told(part.count)


# ---- writing


def write_lists(folder: Unfinished) -> None:
    """Write `indices`, which is reserved, from one pass over the store's lists, or go on after a
    kill."""
    record, at_record = _record(folder, "indices")
    if record.ended:
        return
    store, info, path = folder.store, folder.infos["indices"], folder.path("indices")
    file, order = store.edges().indices_file, folder.numbers("order")
    place = zeros(store.num_nodes, folder.infos["place"].storage)
    place[:] = folder.numbers("place")
    lists = NewLists(
        store, order, place, folder.small("bounds"), folder.small("edge_bounds"),
        store.num_nodes + folder.infos["home"].shape[0], record.rows,
    )  # fmt: skip
    budget = budget_for(folder.memory - place.nbytes, max(info.row_bytes, file.row_bytes))
    saved = record.rows
    with RowWriter(folder.root, info.row_bytes, budget.dirty_bytes) as writer:
        parts = TableParts(file, budget.part_bytes).parts(record.rows, file.row_count)
        with closing(parts):
            for part in parts:
                for each in lists.slices(part):
                    at = DATA_OFFSET + each.first * info.row_bytes
                    writer.fill(path, at, each.count, lists.fill)
                record.rows = part.first + part.count
                folder.report(LISTS, record.rows, file.row_count)
                if (record.rows - saved) * file.row_bytes >= SYNC_BYTES:
                    writer.sync()
                    saved = record.rows
                    record.save(at_record)
        writer.sync()
    record.end(at_record)


def write_static_lists(folder: Unfinished) -> None:
    """Write `static_indices`, which is reserved, from `indices`; begins again after a kill."""
    record, at_record = _record(folder, "static_indices")
    if record.ended:
        return
    info, bounds = folder.infos["static_indices"], folder.small("static_bounds")
    path, statics = folder.path("static_indices"), len(bounds) - 1
    starts = list_starts(folder.store, folder.numbers("order"), folder.numbers("place"), statics)
    indices = table_file(folder.root, folder.infos["indices"])
    window = window_bytes(folder.memory, statics)
    passes = -(-info.shape[0] * info.row_bytes // window)
    done, total = 0, passes * indices.row_count
    with RowWriter(folder.root, info.row_bytes, _DIRTY_BYTES) as writer:

        def told(count: int) -> None:
            nonlocal done
            done += count
            folder.report(STATIC_LISTS, min(done, total), total)

        for first, codes in static_windows(indices, starts, bounds, window, told):

            def fill(done: int, count: int, out: Bytes, codes: Ids = codes) -> None:
                out[:] = codes[done : done + count].view(np.uint8)

            writer.fill(path, DATA_OFFSET + first * info.row_bytes, len(codes), fill)
        writer.sync()
    folder.report(STATIC_LISTS, total, total)
    record.end(at_record)


def window_bytes(memory: int, statics: int) -> int:
    """Bytes of the static nodes' lists that are made at a time."""
    used = 72 * statics + 2 * PART_BYTES + BUFFERS * buffer_bytes(8)
    return max(memory - used, 1 << 20)


def _record(folder: Unfinished, name: str) -> tuple[RowRecord, Path]:
    """What of an array is durable, and the file that says so."""
    path, at = folder.path(name), folder.root / f"{name}{SUFFIX}"
    try:
        record = RowRecord.load(at, f"{path.name} {os.stat(path).st_ino}", 0)
    except OSError as error:
        raise write_failure(path, error) from error
    record.files = [path.name]
    return record, at


# ---- edges inside


class Shares:
    """Counts from codes, of dtype `codes`, how many in-edges sampling inside a window keeps: all
    edges inside its partitions, those from static nodes in memory, and of the others as many as
    chance puts both ends into the window (`PartitionInfo.share_kept`)."""

    def __init__(
        self, home: Int64Array, bounds: Int64Array, edge_bounds: Int64Array, nodes: int,
        codes: np.dtype[Any],
    ) -> None:  # fmt: skip
        self._home, self._bounds, self._edge_bounds, self._nodes = home, bounds, edge_bounds, nodes
        self._dtype = codes
        self._hot = min(round(HOT_SHARE * nodes), len(home))
        self._found, self._edges = np.zeros(2, np.int64), 0

    def each(self, name: str, offset: int, content: Bytes) -> None:
        """Count the next codes of `indices`, whose header comes first; see `checksums`."""
        if name != "indices" or not offset:
            return
        codes = content.view(self._dtype)
        first, last = self._edges, self._edges + len(codes)
        part = int(np.searchsorted(self._edge_bounds, first, "right")) - 1
        while first < last:
            end = min(int(self._edge_bounds[part + 1]), last)
            if end > first:
                low, high = self._bounds[part : part + 2].tolist()
                taken, codes = codes[: end - first], codes[end - first :]
                given = numbers(taken), len(taken), pointer(self._home), len(self._home)
                counted = lib.gd_count_inside(
                    *given, self._nodes, self._hot, low, high, pointer(self._found)
                )
                checked(counted, lambda: "indices.npy has a code out of range: partition again")
            first, part = end, part + 1
        self._edges = last

    def found(self) -> tuple[float, float]:
        """`share_inside` and `share_hot`, see `PartitionInfo`."""
        inside, hot = self._found.tolist()
        return inside / max(self._edges, 1), hot / max(self._edges, 1)
