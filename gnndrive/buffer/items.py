"""The memory of a feature buffer beside its slots, and of the device that has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gnndrive.common.items import BATCH_SIZE, Item, Life, Owner, Phase, Shape, Use, if_any

# A slot's entries in native/buffer.c and standby.c. Standby also has one bucket for each distinct
# key; these are not counted, because LRU has few.
SLOT_TABLE_BYTES = 38
CODE_BYTES = 2  # when a row is needed next, of many batches
MAPPING_BYTES = 4  # a row's entry in the mapping table
ALIAS_BYTES = 4  # a row of a batch: its slot
# For each row of a batch in extraction: joined 8, alias 4, pending 4, load_rows 8 and load_slots 4,
# planned reads 21. If it is admitted by parts, also its order 4 and its part's pending 4, but
# then load_rows and load_slots are one part's, unless reads wait for a device's staging.
LEASE_BYTES, LEASE_BYTES_STAGED = 49, 57
WINDOW_BYTES = 1  # a row's entry in native/window.c


def slot_table_bytes(shape: Shape) -> int:
    """Bytes of a slot in the slot tables."""
    return SLOT_TABLE_BYTES + CODE_BYTES * (shape.foreseen_rows > 0)


def slot_bytes(shape: Shape) -> list[int]:
    """For each table, bytes of host memory of a slot and its entries in the slot table."""
    own, on_host = slot_table_bytes(shape), not shape.on_device
    return [own + max(table.row_bytes, 1) * on_host for table in shape.tables]


def buffers_bytes(shape: Shape, slots: Sequence[int]) -> int:
    """Bytes of this host's memory of feature buffers with so many slots for each table."""
    each = sum(count * own for count, own in zip(slots, slot_bytes(shape), strict=True))
    return shape.buffers * each


@dataclass(frozen=True, slots=True)
class SlotTables:
    """What slot tables take beside the entries of their slots.

    Attributes:
        ranked_rows: rows of the tables whose classes the policy ranks rows by.
    """

    ranked_rows: int = 0

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        entry = f"where each of {shape.rows:,} rows is in the feature buffer"
        item, epoch = partial(Item, use=Use.FEATURES), (Owner.BUFFER, Life.EPOCH, Phase.EXTRACTION)
        yield item("mapping table", MAPPING_BYTES * shape.rows, entry, *epoch)
        ahead = shape.looks_ahead * WINDOW_BYTES * (shape.rows - shape.foreseen_rows)
        yield from if_any(item("look-ahead", ahead, "when queued batches need each row", *epoch))
        ranked = "how often each row is needed, so that rare rows leave first"
        yield from if_any(item("row classes", self.ranked_rows, ranked, Owner.BUFFER))
        leased = shape.extracted * (shape.ranks // shape.buffers)
        lease_bytes = LEASE_BYTES_STAGED if shape.on_device else LEASE_BYTES
        why = f"of {shape.group * leased} batches: where their rows are, and which are being read"
        yield Item(
            "leases", lease_bytes * shape.entries * leased, why, *epoch, argument=BATCH_SIZE,
            use=Use.READING,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What a device takes beside slots and batches; nothing if it is the host.

    Attributes:
        pinned_bytes: bytes of pinned staging, through which rows reach the device.
        pinned_per_byte: bytes of pinned copies for each byte that is copied to the device.
        scratch_bytes: bytes of the device that moving rows into and out of slots takes.
    """

    pinned_bytes: int = 0
    pinned_per_byte: int = 0
    scratch_bytes: int = 0

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        if not shape.delivers:
            return
        staging = Item(
            "pinned staging", self.pinned_bytes, "for rows on their way to the device",
            life=Life.EPOCH, during=Phase.EXTRACTION, use=Use.READING,
        )  # fmt: skip
        yield from if_any(staging)
        copied = shape.batch_bytes + ALIAS_BYTES * sum(each.delivered_max for each in shape.tables)
        why = "of two batches without features, rounded up by torch"
        yield from if_any(Item("pinned copies", self.pinned_per_byte * copied, why, life=Life.KEPT))
        scratch, why = self.scratch_bytes * shape.on_device, "to put rows in order"
        yield from if_any(Item("scratch", scratch, why, on_device=True, use=Use.READING))
