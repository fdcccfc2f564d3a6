"""What an exchange is for one loader, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gnndrive.buffer.items import CODE_BYTES, MAPPING_BYTES, SLOT_TABLE_BYTES
from gnndrive.common.items import Item, Life, Owner, Shape, Use, if_any
from gnndrive.common.owners import Owners
from gnndrive.disk.tiers.base import Tier
from gnndrive.exchange.links import PIECE_BYTES
from gnndrive.exchange.owned_rows import OwnedRows
from gnndrive.exchange.slot_copies import PIECES, piece_rows
from gnndrive.host.arena import ANNOUNCED_BYTES, JOINED_BYTES
from gnndrive.store.row_classes import Classes

# Of a row that is asked for: its owner's number of it, and where it goes when it arrives.
ASKED_BYTES = 8 + 4
# Of a row that a batch holds, or asks for beside those: the same again, and its slot. And while the
# rows of one batch are looked up or kept: row id 8, slot 4, pending 4, to load 8 + 4, place 8.
_KEPT_BYTES, _KEEPING_BYTES = ASKED_BYTES + 4, 36
MOVE_BYTES = 2 * 4  # of a row that a device copies: its slot, and where it goes
INDEX_BYTES = 8  # of a row that torch puts into a batch: where it goes
COPIERS = 2  # threads that copy rows for batches and other ranks


@dataclass(frozen=True, slots=True)
class Exchange:
    """Which rank owns which rows of the tables, by their names; and which one this is.

    Attributes:
        places: for each rank, which of the owners it is.
        parts: of tables of which this host's store has one part: how they were divided.
        kept_bytes: memory for rows of other ranks that this one keeps, with their slot tables.
    """

    owners: Mapping[str, Owners]
    rank: int
    places: Sequence[int]
    parts: Mapping[str, Owners]
    kept_bytes: int = 0

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.places)

    @property
    def pulls(self) -> bool:
        """Whether devices may copy rows by themselves; those that are kept are in host memory."""
        return not self.kept_bytes

    def count(self, table: str) -> int:
        """How many rows of a table this rank owns."""
        return self.owners[table].count(self.places[self.rank])

    def kept_slots(self, tables: Sequence[tuple[str, int, int]]) -> dict[str, int]:
        """How many rows of others this rank keeps, by table: of each as many times its largest
        batch. `tables` are names, bytes of a row and the most rows of a batch, of all owners."""
        bytes_of = {name: most * _slot_bytes(nbytes) for name, nbytes, most in tables}
        of_batch = max(sum(bytes_of.values()), 1)
        found = {
            name: min(self.kept_bytes * most // of_batch, self.owners[name].rows - self.count(name))
            for name, _, most in tables
        }
        return {name: slots for name, slots in found.items() if slots}

    def tier(self, table: str, below: Tier) -> OwnedRows:
        """What brings these rows, from `below`, the table's file."""
        owner = self.places[self.rank]
        return OwnedRows(below, self.owners[table], owner, self.parts.get(table))

    def classes(self, table: str, classes: Classes | None) -> Classes | None:
        """The classes of these rows, from those of all."""
        if classes is None:
            return None
        return self.owners[table].values_of(self.places[self.rank], classes)

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        ids = (ASKED_BYTES + 2 * ANNOUNCED_BYTES) * shape.queued + JOINED_BYTES * shape.extracted
        why = f"numbers of rows that {shape.queued} batches of each rank need"
        yield Item("announced rows", ids * shape.entries, why, life=Life.EPOCH)
        yield from self._kept_items(shape)
        if shape.foreseen_rows:
            # Of its own rows an owner has a code by each rank, and two while a superbatch becomes
            # known; a rank has one of all rows, of which the samples ahead count its own, and
            # sends it.
            codes = self.world + 2 + (self.world - 1) + self.world
            nbytes, why = CODE_BYTES * shape.foreseen_rows * codes, "when each rank needs each row"
            yield Item("next uses of all ranks", nbytes, why, life=Life.EPOCH, use=Use.FEATURES)

    def _kept_items(self, shape: Shape) -> Iterator[Item]:
        kept = self.kept_slots([(n.name, n.row_bytes, n.batch_entries_max) for n in shape.tables])
        if not kept:
            return
        slots, rows = sum(kept.values()), sum(self.owners[name].rows for name in kept)
        of = {each.name: _slot_bytes(each.row_bytes) for each in shape.tables}
        nbytes = sum(count * of[name] for name, count in kept.items())
        why = f"{slots:,} rows that other ranks own"
        yield Item(
            "remote rows", nbytes, why, life=Life.BUFFER, argument="remote_cache", use=Use.FEATURES
        )
        why = f"where each of {rows:,} rows is among the remote rows"
        nbytes = MAPPING_BYTES * rows
        yield Item("remote mapping table", nbytes, why, life=Life.BUFFER, use=Use.FEATURES)
        why = f"which remote rows {shape.queued} batches hold or ask for"
        nbytes = (_KEPT_BYTES * shape.queued + _KEEPING_BYTES) * shape.entries
        yield Item("held remote rows", nbytes, why, life=Life.EPOCH)


def _slot_bytes(row_bytes: int) -> int:
    return SLOT_TABLE_BYTES + max(row_bytes, 1)


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows that `world` ranks send each other."""

    world: int

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`. All ranks ask one owner for as many rows as one rank asks all owners for."""
        coming, why = shape.extracted, "rows of {} batches that arrive, and as many that are sent"
        yield Item(
            "exchanged rows", 2 * coming * _rows_bytes(shape) + self.world * PIECE_BYTES,
            why.format(coming), Owner.RANK, Life.EPOCH, use=Use.READING,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What sent rows take beside that if batches are delivered to a device.

    Attributes:
        pinned_per_byte: see `Device`.
        copy_out_bytes, scratch_bytes: of a table's rows on their way out of slots; see
            `Device.copy_out_bytes` and `Device.copy_out_scratch_bytes`.
    """

    pinned_per_byte: int
    copy_out_bytes: int
    scratch_bytes: int

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        tables = shape.tables
        why = "features of two batches that have arrived, rounded up by torch"
        pinned = self.pinned_per_byte * _rows_bytes(shape)
        yield Item("pinned features", pinned, why, life=Life.KEPT, use=Use.READING)
        nbytes = sum(PIECES * piece_rows(n.row_bytes, n.rows) * n.row_bytes for n in tables)
        nbytes += self.copy_out_bytes * len(tables)
        why = "for rows on their way from slots to other ranks"
        yield Item("exchange staging", nbytes, why, life=Life.BUFFER, use=Use.READING)
        scratch = self.scratch_bytes * len(tables) * shape.on_device
        yield from if_any(Item("exchange scratch", scratch, why, on_device=True, use=Use.READING))


@dataclass(frozen=True, slots=True)
class OutOfSlots:
    """What rows take that a device copies out of slots of ranks of this host (`PulledRows`).

    Attributes:
        pinned_per_byte: see `Device`.
        scratch_bytes: of a copy; see `Device.copy_out_scratch_bytes`.
        sent: whether others arrive in host memory.
    """

    pinned_per_byte: int
    scratch_bytes: int
    sent: bool

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        copied, coming = shape.entries * MOVE_BYTES, shape.extracted
        nbytes = coming * (_rows_bytes(shape) + copied)
        if self.sent:
            nbytes += 2 * (_rows_bytes(shape) + shape.entries * INDEX_BYTES)
        why = f"rows of {coming} batches that are copied out of GPUs' slots"
        device = partial(Item, life=Life.EPOCH, on_device=True, use=Use.READING)
        yield device("exchanged rows", nbytes * shape.on_device, why)
        scratch = 0
        if self.scratch_bytes and shape.on_device:
            at_once = min(self.scratch_bytes, _rows_bytes(shape)) + shape.entries * INDEX_BYTES
            scratch = COPIERS * at_once
        yield from if_any(device("exchange scratch", scratch, "for rows on their way there"))
        why = "which slots, of two batches, rounded up by torch"
        yield Item("pinned slots", self.pinned_per_byte * copied, why, use=Use.READING)


def _rows_bytes(shape: Shape) -> int:
    return sum(each.row_bytes * each.entries_max for each in shape.tables)
