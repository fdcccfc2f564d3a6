"""Blocks: as many batches of targets as need no more rows than memory holds.

One pass over the hidden states serves a block. A block of a graph whose ids tell nothing of its
communities needs rows of the whole file, so the number of blocks is the number of passes, and the
largest blocks need the fewest. Rows that the next block needs too stay in memory: that keeps the
rows of popular nodes without choosing them.

`BlockPlanner` runs one block ahead of the computation, in a thread of its own. It reads the
adjacency sequentially, and says which rows a block must load, and when which rows of the block
before it may leave.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, ends_of
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.inference.targets import TargetBatch, Targets
from gnndrive.store.format import index_dtype
from gnndrive.store.views import StoredEdges

Indices = npt.NDArray[Any]
BATCHES_MAX = 1 << 15  # of a block, so that a batch's place in it fits 16 bits
PLACES_MAX = 2**31 - 1  # targets and in-edges of a block, so that a row's last use fits 32 bits


@dataclass(frozen=True, slots=True)
class TableChange:
    """How the rows of one type change from one block to the next.

    Attributes:
        misses: the rows that the block needs and the block before it did not, ascending [n].
        leaving: the rows of the block before that this one does not need, in the order of their
            last use [m].
        left: for each batch of the block before, how many of `leaving` may leave after it.
    """

    misses: Indices
    leaving: Indices
    left: Int64Array


@dataclass(frozen=True, slots=True)
class Block:
    """Batches whose rows are in memory together, each with the in-neighbours of its targets by edge
    type; `changes` says by node type what changes from the block before."""

    batches: list[tuple[TargetBatch, Mapping[EdgeKey, Indices]]]
    changes: Mapping[NodeKey, TableChange]


class BlockPlanner:
    """Plans the blocks of one target type in one layer, from the target `first` on, the first of a
    batch. `rows` has the number of nodes of each of the targets' sources, `slots` how many rows of
    it memory holds: at least those of any one batch. A block has at most `edges_max` in-edges,
    unless a batch has more."""

    def __init__(
        self,
        targets: Targets,
        first: int,
        rows: Mapping[NodeKey, int],
        slots: Mapping[NodeKey, int],
        edges_max: int,
    ) -> None:
        self._targets, self._edges_max = targets, edges_max
        self._tables = {type: _Table(rows[type], slots[type]) for type in targets.sources}
        self._batches = self._read(targets.batches(first))
        self._waiting: tuple[TargetBatch, dict[EdgeKey, Indices]] | None = None

    def next_block(self) -> Block | None:
        """Plan the next block; None after the last. Blocks while it reads."""
        taken: list[tuple[TargetBatch, Mapping[EdgeKey, Indices]]] = []
        edges = places = 0
        while len(taken) < BATCHES_MAX:
            each = self._waiting or next(self._batches, None)
            self._waiting = None
            if each is None:
                break
            edges += sum(map(len, each[1].values()))
            places += each[0].entries
            full = edges > self._edges_max or places > PLACES_MAX
            if not self._add(*each, taken_any=bool(taken), full=full):
                self._waiting = each
                break
            taken.append(each)
        if not taken:
            return None
        return Block(taken, {type: table.finish() for type, table in self._tables.items()})

    def _add(
        self, batch: TargetBatch, indices: Mapping[EdgeKey, Indices], taken_any: bool, full: bool
    ) -> bool:
        """Add a batch to the block, unless it does not fit."""
        if full and taken_any:
            return False
        added: list[_Table] = []
        for type, table in self._tables.items():
            parts = [indices[key] for key in indices if ends_of(key)[0] == type]
            if type == self._targets.type:
                parts.append(np.arange(batch.first, batch.last, dtype=table.dtype))
            fits = table.add(parts)
            added.append(table)
            if not fits:
                assert taken_any, "memory was counted for any one batch"
                for each in added:
                    each.take_back()
                return False
        for table in added:
            table.keep()
        return True

    def _read(
        self, batches: Iterator[TargetBatch]
    ) -> Generator[tuple[TargetBatch, dict[EdgeKey, Indices]], None, None]:
        """Read the in-neighbours of each batch, in order."""
        files = {key: _Indices(view) for key, view in self._targets.edges.items()}
        try:
            for batch in batches:
                yield batch, {key: files[key].read(*batch.edges[key]) for key in files}
        finally:
            for each in files.values():
                each.close()

    def close(self) -> None:
        """Close the files of the adjacency."""
        self._batches.close()


class _Table:
    """The rows of one type that a block needs, while batches are added to it.

    `_last[row]` is the place of the row's last use among the uses of the block, -1: none.
    """

    def __init__(self, rows: int, slots: int) -> None:
        self.dtype = np.dtype(index_dtype(rows))
        self._slots, self._used = slots, 0
        self._last = np.full(rows, -1, np.int32)
        self._marked = np.zeros(rows, np.bool_)
        self._count, self._ends = 0, list[int]()
        self._before: tuple[list[Indices], list[Indices], int, int] | None = None
        self._rows: Indices = np.empty(0, self.dtype)  # of the block before,
        self._batch = np.empty(0, np.uint16)  # and the batch of their last use
        self._batches = 0

    def add(self, parts: list[Indices]) -> bool:
        """Note the rows of a batch; returns whether the block's rows still fit."""
        before, at, used = [], self._count, self._used
        assert at + sum(map(len, parts)) <= PLACES_MAX, "places would not fit 32 bits"
        for ids in parts:
            places = np.arange(at, at + len(ids), dtype=np.int32)
            earlier = self._last[ids]
            before.append(earlier)
            self._last[ids] = places
            self._used += int(np.count_nonzero((earlier < 0) & (self._last[ids] == places)))
            at += len(ids)
        self._before = parts, before, at, used
        return self._used <= self._slots

    def take_back(self) -> None:
        """Forget the batch that was noted last."""
        assert self._before is not None
        parts, earlier, _, self._used = self._before
        for ids, places in zip(reversed(parts), reversed(earlier), strict=True):
            self._last[ids] = places
        self._before = None

    def keep(self) -> None:
        """Keep the batch that was noted last."""
        assert self._before is not None
        self._count, self._before = self._before[2], None
        self._ends.append(self._count)

    def finish(self) -> TableChange:
        """End the block, and begin the next one."""
        rows = np.flatnonzero(self._last >= 0).astype(self.dtype, copy=False)
        last = self._last[rows]
        self._last[rows] = -1
        batch = np.searchsorted(np.array(self._ends), last, "right").astype(np.uint16)
        self._marked[self._rows] = True
        misses = rows[~self._marked[rows]]
        self._marked[self._rows] = False
        self._marked[rows] = True
        gone = ~self._marked[self._rows]
        self._marked[rows] = False
        when = self._batch[gone]
        leaving = self._rows[gone][np.argsort(when, kind="stable")]
        left = np.cumsum(np.bincount(when, minlength=self._batches))
        self._rows, self._batch, self._batches = rows, batch, len(self._ends)
        self._used, self._count, self._ends = 0, 0, []
        return TableChange(misses, leaving, left)


class _Indices:
    """The indices of one edge type, read sequentially and checked."""

    def __init__(self, view: StoredEdges) -> None:
        self._reader = SequentialReader(view.indices_file)
        self._nodes, self._path = view.source.num_nodes, view.indices_file.path
        self._start, self._held = 0, np.empty(0, self._reader.dtype)

    def read(self, first: int, last: int) -> Indices:
        """The indices at the positions [first, last), a copy."""
        out = np.empty(last - first, self._held.dtype)
        at = first
        while at < last:
            if not self._start <= at < self._start + len(self._held):
                self._start, self._held = self._reader.stretch(at)
            part = self._held[at - self._start : last - self._start]
            out[at - first : at - first + len(part)] = part
            at += len(part)
        if len(out) and not 0 <= int(out.min()) <= int(out.max()) < self._nodes:
            raise StoreError(
                f"{self._path} names a node outside 0 … {self._nodes - 1}: the store is damaged; "
                "copy or import it again"
            )
        return out

    def close(self) -> None:
        self._reader.__exit__(None, None, None)
