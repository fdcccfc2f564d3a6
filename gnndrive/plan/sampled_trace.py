"""`SampledTrace`: which rows drawn batches need, for a sample of all rows (SHARDS, FAST 2015).

How many rows a batch loads depends on what the batches before it have left in the feature buffer,
so sizes of batches do not tell it. A trace of some dozens of batches does, and a sample of it does
as well: whether a row is kept depends on its number alone, so a row that is kept is kept in each
batch, and a buffer that is scaled down by the share of the kept rows has the hits of the whole one.

`loader/drawing.py` keeps traces beside the store; `plan/replay.py` replays them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from math import ceil
from typing import Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.distinct import distinct
from gnndrive.common.progress import report
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.common.threads import in_turn, thread_pool
from gnndrive.plan.drawn import size_of
from gnndrive.sampling.samplers.base import Bounds, Sampler, batch_key
from gnndrive.sampling.topologies.base import Topology

IDS_MAX = 1 << 20  # about as many row ids are kept of a table
BATCHES_MIN, BATCHES_MAX = 32, 1024
ROUNDS = 4  # batches are drawn until they have asked for each row of a table so often, on average
LONG, LONG_EDGES = 128, 1 << 23  # so many batches are drawn if they are small, up to so many edges
EDGES_MAX = 1 << 26  # and of so many edges; sampling them takes some ten seconds of one core
SETTLED = 0.02  # of a batch's rows
_KEY = 0x7472616365  # with which batches are drawn; no epoch's
_VERSION = 2
_HASH = np.uint64(0x9E3779B97F4A7C15)

Keep = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SampledTrace:
    """The rows of one table that batches need.

    Attributes:
        bits: the share of the rows that is kept is 1 / 2 to this power.
        kept: the rows that are kept and that a batch needs, int64 [kept], ascending.
        ids: what each batch needs of them, as places in `kept`, int64 [n], batch after batch.
        ends: where each batch begins in `ids`, and the end, int64 [batches + 1].
        wanted: rows that each batch needs, kept or not, int64 [batches].
    """

    table_rows: int
    bits: int
    kept: Int64Array
    ids: Int64Array
    ends: Int64Array
    wanted: Int64Array

    @property
    def rows(self) -> int:
        """Rows that the trace is about."""
        return len(self.kept)

    @property
    def share(self) -> float:
        """The share of the rows that is kept."""
        return float(0.5**self.bits)

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, index: int) -> Int64Array:
        """The places in `kept` of a batch's rows, int64 [n]."""
        return self.ids[self.ends[index] : self.ends[index + 1]]

    def size(self, first: int, last: int) -> int:
        """Kept rows of the batches [first, last) together."""
        return int(self.ends[last] - self.ends[first])

    def filled(self, slots: float) -> int | None:
        """The first batch before which `slots` distinct kept rows are needed; None: none is."""
        at = int(np.searchsorted(np.cumsum(self._new), slots))
        return None if at >= len(self) else at + 1

    @property
    def settled(self) -> bool:
        """Whether the last quarter of the batches needs hardly any row that none before needed."""
        start = 3 * len(self) // 4
        return bool(self._new[start:].sum() <= SETTLED * self.size(start, len(self)))

    @cached_property
    def _new(self) -> Int64Array:
        """How many rows each batch needs that none before it needed, int64 [batches]."""
        _, first = np.unique(self.ids, return_index=True)
        batches = np.searchsorted(self.ends, first, "right") - 1
        return np.bincount(batches, minlength=len(self))

    # ---- kept beside the store ----

    def to_array(self) -> Int64Array:
        """All of it as one array, int64 [n]."""
        head = [_VERSION, self.table_rows, self.bits, self.rows, len(self)]
        parts = [np.array(head, np.int64), self.wanted, self.ends, self.kept, self.ids]
        return np.concatenate(parts)

    @classmethod
    def from_array(cls, numbers: Int64Array, table_rows: int) -> Self | None:
        """What `to_array` made of a trace of a table of `table_rows` rows; None: it is damaged."""
        if len(numbers) < 5:
            return None
        version, rows, bits, kept, batches = numbers[:5].tolist()
        ids = len(numbers) - 5 - batches - (batches + 1) - kept
        if (version, rows) != (_VERSION, table_rows) or not 0 <= bits < 63 or ids < 0:
            return None
        if kept < 0 or not 1 <= batches <= BATCHES_MAX:
            return None
        at = np.cumsum([5, batches, batches + 1, kept])
        wanted, ends, names, rest = (
            numbers[first:last] for first, last in zip(at, [*at[1:], len(numbers)], strict=True)
        )
        right = (
            ends[0] == 0 and ends[-1] == ids and np.all(np.diff(ends) >= 0)
            and np.all(np.diff(ends) <= wanted) and np.all(wanted <= table_rows)
            and np.all(names[1:] > names[:-1])
            and (not kept or (names[0] >= 0 and names[-1] < table_rows))
            and (not ids or (rest.min() >= 0 and rest.max() < kept))
        )  # fmt: skip
        if not right or not _ascending(rest, ends):
            return None
        return cls(rows, bits, names, rest, ends, wanted)


def _ascending(ids: Int64Array, ends: Int64Array) -> bool:
    """Whether each batch has its rows in ascending order, each of them once."""
    rises = ids[1:] > ids[:-1]
    inner = ends[1:-1]
    rises[inner[(inner > 0) & (inner < len(ids))] - 1] = True  # a batch begins
    return bool(rises.all())


def kept_rows(rows: Int64Array, bits: int) -> Keep:
    """Whether rows are kept, bool [n]: by a hash of each row's number."""
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * _HASH
    mixed ^= mixed >> np.uint64(32)
    mixed *= _HASH
    kept: Keep = (mixed >> np.uint64(64 - bits)) == 0 if bits else np.ones(len(rows), np.bool_)
    return kept


def draw_traces(
    batches: Iterator[Seeds], sampler: Sampler, topologies: Sequence[Topology],
    rows_of: Callable[[Sample | Subgraph], Mapping[str, Int64Array]], tables: Mapping[str, int],
    bounds: Bounds, threads: int,
) -> dict[str, SampledTrace]:  # fmt: skip
    """Sample batches, as many as `EDGES_MAX` and the other limits say, and keep their rows.

    Arguments and errors are those of `draw_batches`, but that batches have no end if there is one,
    and a number each, and that so many `threads` share the sampler. Returns the traces by their
    tables' names; {}: there is no batch.
    """

    def sample(seeds: Seeds) -> tuple[dict[str, Int64Array], int]:
        drawn = sampler.sample(seeds, batch_key(_KEY, 0, seeds.index), topologies)
        once = drawn.node if isinstance(drawn, Sample) else None  # a sample has each node once
        found = {
            name: ids if ids is once else distinct(ids)
            for name, ids in rows_of(drawn).items()
            if name in tables
        }
        return found, sum(size_of(drawn, bounds).edges.values())

    seeds = next(batches, None)
    if seeds is None:
        return {}
    first, edges = sample(seeds)
    most = _how_many({name: len(ids) for name, ids in first.items()}, tables, edges)
    taken: dict[str, _Taken] = {name: _Taken() for name in first}
    rest = ([partial(sample, seeds)] for seeds in islice(batches, BATCHES_MAX - 1))
    with thread_pool(threads, "gnndrive draw") as pool:
        drawn, total = 0, 0
        for found, count in chain([(first, edges)], in_turn(pool, rest, threads - 1)):
            for name, ids in found.items():
                taken[name].add(ids)
            drawn, total = drawn + 1, total + count
            report("drawing more batches", drawn, most)
            if drawn >= most or total >= EDGES_MAX:
                report("drawing more batches", most, most)
                break
    return {name: each.trace(tables[name]) for name, each in taken.items()}


class _Taken:
    """The kept rows of a table that batches need; a smaller share once they are too many."""

    def __init__(self) -> None:
        self._bits, self._total = 0, 0
        self._taken: list[Int64Array] = []
        self._wanted: list[int] = []

    def add(self, ids: Int64Array) -> None:
        self._wanted.append(len(ids))
        self._taken.append(np.sort(ids[kept_rows(ids, self._bits)]))
        self._total += len(self._taken[-1])
        while self._total > IDS_MAX:  # what is kept by more bits is a part of what is kept by fewer
            self._bits += 1
            self._taken = [each[kept_rows(each, self._bits)] for each in self._taken]
            self._total = sum(map(len, self._taken))

    def trace(self, table_rows: int) -> SampledTrace:
        ends = np.cumsum([0, *map(len, self._taken)]).astype(np.int64)
        kept, ids = np.unique(np.concatenate(self._taken), return_inverse=True)
        wanted = np.array(self._wanted, np.int64)
        return SampledTrace(table_rows, self._bits, kept, ids.astype(np.int64), ends, wanted)


def _how_many(rows: Mapping[str, int], tables: Mapping[str, int], edges: int) -> int:
    """How many batches to draw, if each has so many rows and edges."""
    rounds = [ROUNDS * tables[name] / count for name, count in rows.items() if count]
    count = min(max([ceil(each) for each in rounds], default=0), BATCHES_MAX)
    long = min(LONG, LONG_EDGES // max(edges, 1))
    return max(min(max(count, BATCHES_MIN, long), EDGES_MAX // max(edges, 1)), 1)
