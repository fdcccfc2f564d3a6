"""`HostLevel`: rows that leave a device stay in host memory, in what `memory=` leaves.

A tier that takes offers keeps them (`disk/tiers/`). A row is in one of the two levels, so together
these hold as many rows as both have room for, and the policy orders all of them. It costs the bus:
each row that is kept is copied to the host. A level with copies of what was read would spare that,
but it would hold the device's rows too, and would see only what the device misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.items import MAPPING_BYTES, SLOT_TABLE_BYTES
from gnndrive.common.items import Item, Life, Phase, Shape, Use
from gnndrive.common.plugins import find
from gnndrive.plan.plan import Elastic, TablePlan
from gnndrive.plan.slots import split_slots

# A place: a slot table's entries, its code, and its slot and place on their way, which torch rounds
# up. And an evicted row of a part, with its next use, until it is offered.
PLACE_BYTES = SLOT_TABLE_BYTES + 2 + 16
EVICTED_BYTES, EVICTED_ROWS_MAX = 48, 1 << 18
NONE = {
    "slots": "none: the feature buffer's slots are in host memory themselves",
    "whole": "none: no row ever leaves the device",
    "room": "none: the other items leave no memory for it",
}


@dataclass(frozen=True, slots=True)
class HostLevel(Elastic):
    """The host levels of all ranks of a host; see `plan.plan.Elastic`.

    Attributes:
        nbytes: bytes of their rows; None: what memory leaves.
        copy_out_bytes: bytes of pinned memory that rows take on their way there.
        scratch_bytes: see `Elastic`.
    """

    nbytes: int | None = None
    copy_out_bytes: int = 0
    scratch_bytes: int = 0

    @classmethod
    def below(cls, device: Any, nbytes: int | None = None) -> Self:
        """The host level of so many bytes below a device plug-in."""
        kind: type[Device] = find("devices", device)
        return cls(nbytes, kind.copy_out_bytes(), kind.copy_out_scratch_bytes())

    def items(self, shape: Shape) -> Sequence[Item]:
        """See `Part`."""
        return [] if self.nbytes is None else self._items(shape, self._places(shape, 0))

    def fit(
        self, shape: Shape, tables: tuple[TablePlan, ...], left: int
    ) -> tuple[tuple[TablePlan, ...], Sequence[Item]]:
        """See `Elastic.fit`."""
        whole = [table.slots >= table.rows for table in tables]  # no row of it leaves the device
        if self.nbytes is None:
            every = zip(shape.tables, whole, strict=True)
            needed = (replace(each, batch_rows_max=0) if all_ else each for each, all_ in every)
            shape = replace(shape, tables=tuple(needed))
        places, items = self._places(shape, left), list[Item]()
        if self.nbytes is None:
            none = "whole" if all(whole) else "room"
            items = self._items(shape, places, none if not any(places) else None)
        kept = zip(tables, places, strict=True)
        return tuple(replace(table, evicted=count) for table, count in kept), items

    def _places(self, shape: Shape, left: int) -> list[int]:
        """How many rows of each table the host level of one rank has room for: in the `left` bytes
        of that rank for all items, unless `nbytes` says the size."""
        if not shape.on_device:
            return [0] * len(shape.tables)
        row_bytes = [max(table.row_bytes, 1) for table in shape.tables]
        if self.nbytes is not None:
            return split_slots(self.nbytes // shape.ranks, shape.tables, row_bytes)
        left -= sum(item.nbytes for item in self._items(shape, [0] * len(shape.tables)))
        return split_slots(left, shape.tables, [each + PLACE_BYTES for each in row_bytes])

    def _items(self, shape: Shape, places: Sequence[int], none: str | None = None) -> list[Item]:
        """The items of host levels with so many places for the rows of each table; `none`: a key of
        `NONE`."""
        none = none if shape.on_device else "slots"  # a strategy's own says so on the host, too
        item = partial(Item, life=Life.BUFFER, during=Phase.EXTRACTION, use=Use.FEATURES)
        if none is not None:
            return [item("host level", 0, NONE[none])]
        widths = [max(each.row_bytes, 1) for each in shape.tables]
        nbytes = sum(n * width for n, width in zip(places, widths, strict=True))
        leaving = [each.rows for each in shape.tables if each.batch_rows_max]
        table_bytes = MAPPING_BYTES * sum(leaving) + PLACE_BYTES * sum(places)
        table_bytes += EVICTED_BYTES * min(shape.entries, EVICTED_ROWS_MAX)
        on_the_way = self.copy_out_bytes * len(leaving)
        rows = f"{sum(places):,} rows that leave the device"
        return [
            item("host level", nbytes + on_the_way, rows),
            item("host level table", table_bytes, "where which of these rows is"),
        ]
