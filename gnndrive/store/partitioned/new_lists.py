"""The lists of a store in the new order, as codes: what `indices` holds, slice by slice.

The nodes of a partition have ascending ids in the store, so a part of the store's indices, however
short, makes one consecutive slice of each partition. So one pass over the store in file order makes
all lists, and a slice can be made again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnndrive.common.ffi import ffi, lib
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.records import Int64Array
from gnndrive.store.layout.table_parts import Part
from gnndrive.store.partitioned.arrays import Ids, numbers
from gnndrive.store.partitioned.renumbering import checked, find, no_such_node
from gnndrive.store.reader import Store


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive entries of `indices`.

    Attributes:
        partition: their partition.
        first: the position of the first entry.
        count: how many there are.
        target: the new id of the first entry's target.
    """

    partition: int
    first: int
    count: int
    target: int


class NewLists:
    """See the module.

    Args:
        store: the store.
        order, place, bounds, edge_bounds: the arrays of the partitioned folder.
        codes: codes are from 0 to `codes` - 1.
        first: the position in the store's indices from which parts are given.

    Attributes:
        begins: where the next slice of each partition begins, int64 [P].

    Raises:
        StoreError: `order` has the id of no node.
    """

    def __init__(
        self, store: Store, order: Ids, place: Ids, bounds: Int64Array, edge_bounds: Int64Array,
        codes: int, first: int = 0,
    ) -> None:  # fmt: skip
        self._store, self._order, self._place, self._codes = store, order, place, codes
        self._pointers, self._file = store.index_pointers, store.edges().indices_file
        ends = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        self._filled = [(p, low, high) for p, (low, high) in enumerate(ends) if low < high]
        self.begins = edge_bounds[:-1].copy()
        self._lists: Any = None
        self._room = 0
        before = Part(0, first, np.empty(0, np.uint8))
        for partition, low, high in self._filled if first else ():
            self.begins[partition] += self._begin(before, low, high)

    def slices(self, part: Part) -> Iterator[Slice]:
        """The slices that the next part of the store's indices makes; each is to be made by
        `fill` before the next one is asked for.

        Raises:
            StoreError: `order` has the id of no node.
        """
        first, last = part.first, part.first + part.count
        low_node = find(self._pointers, first, "right") - 1
        high_node = find(self._pointers, last)
        for partition, start, stop in self._filled:
            ids = self._order[start:stop]
            low, high = start + find(ids, low_node), start + find(ids, high_node)
            if low < high and (count := self._begin(part, low, high)):
                yield Slice(partition, int(self.begins[partition]), count, low)
                self.begins[partition] += count

    def fill(self, done: int, count: int, out: Bytes) -> None:
        """Make the next entries of the slice: a `Fill` of the row writer.

        Raises:
            StoreError: the store's indices or `place` have a number out of range.
        """
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
