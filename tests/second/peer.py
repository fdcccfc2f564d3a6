"""`WithPeer`: a strategy with an idea of its own, in this file alone.

Two hosts share the rows: a folder beside the store has those of even numbers (`halve` makes it), a
peer has the others. The peer is told of a batch's rows as soon as the batch is sampled, and what it
sends stays in memory that the plan has left. `PeerScheme` puts the strategy's parts together: a
source and the layout of its files, a feed, a tier, and the memory that the tier takes.

When not to use it: outside of tests; the peer is a thread of this process.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from gnndrive import Store
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.items import Item, Life, Shape
from gnndrive.common.records import (
    FAILURE,
    Int32Array,
    Int64Array,
    Landing,
    Stretch,
    TableFile,
)
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.base import LayoutContext
from gnndrive.disk.tiers._copied import spread_rows
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.loader.assembly import Assembly
from gnndrive.pipeline.epoch import SampledBatch
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.plan.costs import DISK, NET
from gnndrive.plan.plan import TablePlan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.slots import split_slots
from gnndrive.plan.strategy_costs import Known, StrategyCost
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.files import OpenedFolder
from gnndrive.strategies.base import FeedContext, Scheme, Strategy
from tests.second import Bytes

BYTE_S = 1e-9  # seconds that the network takes for a byte
RECORD = "store"


class NotSentError(GNNDriveError):
    """The peer did not send a row."""


class Peer:
    """Has the rows of odd numbers, and answers in a thread.

    Args:
        tables: table name → the rows with the numbers 1, 3, 5, …

    Attributes:
        sent: how many rows it has sent.
        surprises: how many of them it had not been told of.
        error: raised in place of the next answers; None: there are answers.
    """

    def __init__(self, tables: Mapping[str, Bytes]) -> None:
        self._tables = tables
        self._told = {name: np.zeros(len(rows), np.bool_) for name, rows in tables.items()}
        self._thread = ThreadPoolExecutor(1, "peer")
        self.sent = self.surprises = 0
        self.error: Exception | None = None

    def announce(self, table: str, rows: Int64Array) -> None:
        self._thread.submit(self._told[table].__setitem__, rows // 2, True)

    def ask(self, table: str, rows: Int64Array) -> Future[Bytes]:
        """Ask for rows; the result is uint8 [n, row_bytes]."""
        return self._thread.submit(self._send, table, rows // 2)

    def _send(self, table: str, places: Int64Array) -> Bytes:
        if self.error is not None:
            raise self.error
        self.sent += len(places)
        self.surprises += int((~self._told[table][places]).sum())
        return self._tables[table][places]

    def close(self) -> None:
        self._thread.shutdown()


# ---- a source: where rows lie on this host


def halve(store: Store, folder: Path) -> Peer:
    """Write the rows of even numbers to a folder, and return a peer that has the others."""
    folder.mkdir()
    others = dict[str, Bytes]()
    for table in feature_tables(store):
        file = table.file
        shape = file.row_count, file.row_bytes
        rows = np.memmap(file.path, np.uint8, "r", file.data_offset, shape)
        (folder / table.attribute).write_bytes(rows[::2].tobytes())
        others[table.name] = np.array(rows[1::2])
    (folder / RECORD).write_text(store.identity)
    return Peer(others)


class Half:
    """The rows of even numbers; see `Source`.

    Raises:
        StoreError: they are not there, or of another store.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._tables = folder, {each.name: each for each in feature_tables(store)}
        record = folder / RECORD
        self._opened = OpenedFolder(
            record, lambda: record.read_text() == store.identity,
            f"{folder} does not have half of the rows of {store.path}: make it with halve",
        )  # fmt: skip
        self._opened.check_unchanged()

    def file(self, table: str) -> TableFile:
        whole = self._tables[table].file
        path = str(self._folder / self._tables[table].attribute)
        return replace(whole, path=path, data_offset=0, row_count=(whole.row_count + 1) // 2)

    def unchanged(self) -> AbstractContextManager[None]:
        return self._opened.unchanged()


class HalfLayout(RowsFile):
    """The file of a `Half`: row r lies at r // 2."""

    name = "half"

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        assert context.derived is not None
        return cls(context.derived, context.extent_bytes_max, context.gap_bytes_max)

    def locate(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Any:
        if (rows % 2).any():
            raise ValueError(f"{self.path} has the rows of even numbers")
        return super().locate(rows // 2, places, landing)


# ---- a tier, and the memory that it takes


class FromPeer(Tier):
    """Asks the peer for the rows of odd numbers, and keeps some; the tier below has the others."""

    name = "from-peer"

    def __init__(self, context: TierContext) -> None:
        assert context.below is not None
        self.path, self._below, self._rows = context.below.path, context.below, context.rows
        self._peer, self._table = context.opened, context.table
        count = context.kept[1] - context.kept[0]
        self._kept = np.empty((count, context.row_bytes), np.uint8)
        self._row_of = np.full(count, -1, np.int64)  # whose copy each is

    @classmethod
    def make(cls, context: TierContext) -> Self:
        return cls(context)

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`; rows that are kept are copied in the call, those that the peer sends in
        its thread."""
        if len(np.unique(rows)) != len(rows) or ((rows < 0) | (rows >= self._rows)).any():
            raise ValueError(f"a row is out of range or requested twice: there are {self._rows}")
        own = rows % 2 == 0
        kept = ~own & (len(self._kept) > 0)
        kept[kept] = self._row_of[self._copies(rows[kept])] == rows[kept]
        away = ~own & ~kept
        copy_rows(self._kept, self._copies(rows[kept]), places[kept], landing)
        asked, there = self._peer.ask(self._table, rows[away]), places[away]
        # From here on the disk and the peer's thread write to the landing: nothing may fail.
        rest = self._below.fetch(rows[own], places[own], landing)

        def land(answer: Future[Bytes]) -> None:
            if _is_whole(answer, len(there)):
                copy_rows(answer.result(), np.arange(len(there)), there, landing)

        asked.add_done_callback(land)  # before that of the fetch, which tells the loop
        return _FromBoth(self, places[kept], rest, asked, (rows[away], there))

    def _copies(self, rows: Int64Array) -> Int64Array:
        """Where each row is kept, if it is."""
        return rows // 2 % len(self._kept)

    def keep(self, rows: Int64Array, content: Bytes) -> None:
        """Keep rows that have come, in place of others."""
        if len(self._kept):
            copies, first = np.unique(self._copies(rows), return_index=True)
            self._kept[copies], self._row_of[copies] = content[first], rows[first]

    def row_error(self, offset: int, errno: int) -> Exception:
        """See `Tier.row_error`; offset -1 stands for the peer."""
        if offset >= 0:
            return super().row_error(offset, errno)
        return NotSentError(f"the peer did not send rows of {self._table}: error {errno}")

    async def aclose(self) -> None:
        self._kept, self._row_of = self._kept[:0].copy(), self._row_of[:0].copy()
        await self._below.aclose()


class _FromBoth:
    """First the rows that were kept, then those from disk as they come, then the peer's."""

    def __init__(
        self, tier: FromPeer, served: Int32Array, rest: Fetch, asked: Future[Bytes], away: Any
    ) -> None:
        self._tier, self._served, self._rest = tier, served, rest
        self._asked, self._ended, self._away = asked, asyncio.wrap_future(asked), away

    async def __aiter__(self) -> AsyncIterator[Stretch]:
        yield Stretch(self._served)
        async for stretch in self._rest:
            yield stretch
        rows, places = self._away
        await asyncio.wait([self._ended])
        if self._asked.cancelled():
            yield _failed(places, errno.ECANCELED)
        elif not _is_whole(self._asked, len(rows)):
            yield _failed(places, errno.EREMOTEIO)
        else:
            self._tier.keep(rows, self._asked.result())
            yield Stretch(places)

    def cancel(self) -> None:
        self._asked.cancel()  # an answer that is being made is still copied to the landing
        self._rest.cancel()


def _is_whole(answer: Future[Bytes], rows: int) -> bool:
    whole = not answer.cancelled() and answer.exception() is None
    return whole and len(answer.result()) == rows


def copy_rows(memory: Bytes, rows: Int64Array, places: Int32Array, landing: Landing) -> None:
    """Copy row `rows[i]` of contiguous memory to place `places[i]`."""
    spread_rows(memory.ctypes.data, memory.shape[1], rows, places, landing)


def _failed(places: Int32Array, error: int) -> Stretch:
    failures = np.zeros(len(places), FAILURE)
    failures["slot"], failures["error"], failures["offset"] = places, error, -1
    return Stretch(places[:0], failures)


class Kept:
    """The memory of the tier; see `plan.plan.Elastic`."""

    scratch_bytes = 0

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`: what has come, until it is in its slots."""
        nbytes = sum(each.batch_rows_max * each.row_bytes for each in shape.tables)
        yield Item("answers", shape.extracted * nbytes, "rows from the peer", life=Life.EPOCH)

    def fit(
        self, shape: Shape, tables: tuple[TablePlan, ...], left: int
    ) -> tuple[tuple[TablePlan, ...], list[Item]]:
        costs = [each.row_bytes + 8 for each in tables]
        rows = [
            min(count, each.rows // 2) * (each.slots < each.rows)
            for count, each in zip(split_slots(left, shape.tables, costs), tables, strict=True)
        ]
        nbytes = sum(count * cost for count, cost in zip(rows, costs, strict=True))
        item = Item("kept", nbytes, f"{sum(rows):,} rows of the peer", life=Life.BUFFER)
        kept = zip(tables, rows, strict=True)
        return tuple(replace(table, kept=count) for table, count in kept), [item]


# ---- a feed


class Announcing(SampledFeed):
    """Tells the peer of a batch's rows as soon as the batch is sampled; see `Feed`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def sampled(self, batch: SampledBatch) -> None:
        for table, rows in batch.rows.items():
            self._peer.announce(table, rows[rows % 2 == 1])


# ---- the strategy


class PeerScheme(Scheme):
    not_shared = "the rows come from a peer of this process"

    def __init__(self, source: Half, peer: Peer) -> None:
        self.source, self._peer = source, peer

    def tier_context(self, context: TierContext) -> TierContext:
        return replace(context, opened=self._peer)

    def elastic(self, assembly: Assembly) -> Kept:
        return Kept()

    def feed(self, context: FeedContext) -> Announcing:
        return Announcing(self._peer)


@dataclass(frozen=True, kw_only=True)
class WithPeer(Strategy):
    """Rows of even numbers are read from a folder, the others come from a peer.

    Args:
        folder: the folder that `halve` has made.
        peer: has the other rows; its owner closes it.
    """

    name: str = "with-peer"
    paper: str = "none: an example"
    layout: Any = HalfLayout
    tiers: tuple[Any, ...] = (FromPeer, "disk")
    folder: Any = None
    peer: Any = None

    def open(self, assembly: Assembly) -> PeerScheme:
        if not self.folder or self.peer is None:
            raise ConfigError("strategy='with-peer' needs folder= and peer=: make them with halve")
        return PeerScheme(Half(Path(self.folder), assembly.store), self.peer)

    def folders(self) -> list[Path]:
        return [Path(self.folder)] if self.folder else []

    def cost(self, assembly: Assembly, known: Known, request: PlanRequest) -> StrategyCost:
        """See `Strategy.cost`: half of the rows is loaded from each; none counts as kept."""
        whole = super().cost(assembly, known, request)
        needed = sum(
            known.drawn.together[each.name][0] * each.file.row_bytes
            for each in assembly.collate.tables
        )
        sent = (1 - (whole.hit_share or 0)) * needed / 2
        seconds = {**whole.seconds, DISK: whole.seconds[DISK] / 2, NET: sent * BYTE_S}
        return replace(whole, seconds=seconds)
