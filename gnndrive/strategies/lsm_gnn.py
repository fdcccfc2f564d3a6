"""LSM-GNN (2024) and GIDS (VLDB 2024): next uses and reverse PageRank, and a victim buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.items import MAPPING_BYTES, SLOT_TABLE_BYTES
from gnndrive.common.items import Item, Life, Phase, Shape, Use
from gnndrive.common.memory import size_or_none
from gnndrive.common.plugins import find
from gnndrive.loader.assembly import Assembly
from gnndrive.plan.plan import Elastic, TablePlan
from gnndrive.plan.slots import split_slots
from gnndrive.strategies.base import Scheme
from gnndrive.strategies.superbatches.scheme import AheadScheme, SamplesAhead

# A place of a victim buffer: a slot table's entries, its code, and its slot and place on their way,
# which torch rounds up. And an evicted row of a part, with its next use, until it is offered.
VICTIM_PLACE_BYTES = SLOT_TABLE_BYTES + 2 + 16
EVICTED_BYTES, EVICTED_ROWS_MAX = 48, 1 << 18
NO_VICTIMS = {
    "slots": "none: the feature buffer's slots are in host memory themselves",
    "policy": "none: the policy does not look ahead, so that no row is known to be needed again",
    "whole": "none: no row ever leaves the device",
    "room": "none: the other items leave no memory for it",
}


@dataclass(frozen=True, kw_only=True)
class LSMGNN(SamplesAhead):
    """LSM-GNN, "Large-scale Storage-based Multi-GPU GNN Training by Optimizing Data Transfer
    Scheme", and its predecessor GIDS.

    The cache on the GPU knows the next uses of rows in the batches that are sampled ahead; rows
    without one are kept by their reverse PageRank, which says how likely they are to be sampled (a
    hybrid policy, section 4.2). Rows that leave the GPU and are needed again go into a victim
    buffer in host memory, from which they come back without a read (section 4.3).

    Where this differs: batches that are sampled ahead wait on disk in superbatches, as with
    `Ginex`, so that the policy looks 128 batches ahead. Each GPU has a cache of its own: the
    exchange of section 4.1 is built for buffers in host memory whose strategy does not sample ahead
    (`Tuning(exchange="stride")`).

    Args:
        victim_buffer: the pinned host memory for rows that leave a GPU and are needed again, in
            bytes or as text. "auto": what `memory` leaves, or without it a quarter of the available
            host memory.
        superbatch, folder, phases: see `SamplesAhead`.
    """

    name: str = "lsm-gnn"
    published: str = "LSM-GNN (2024), GIDS (VLDB 2024)"
    policy: Any = "hybrid"
    tiers: tuple[Any, ...] = ("victim", "disk")
    superbatch: int | str = 128
    victim_buffer: str | int = "auto"

    does: ClassVar[str] = "samples ahead, keeps evicted rows"
    pays: ClassVar[str] = "a GPU's memory is short; not measured yet"

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        self._check(assembly)
        scheme = _VictimScheme(self)
        scheme.elastic(assembly)  # so that a wrong size is an error here
        return scheme


class _VictimScheme(AheadScheme):
    """How a loader keeps victims, beside sampling ahead."""

    strategy: LSMGNN

    def elastic(self, assembly: Assembly) -> Victims | None:
        return victims(self.strategy.victim_buffer, assembly.device[0])


def victims(victim_buffer: str | int, device: Any) -> Victims | None:
    """The victim buffers on a device plug-in, if any; ConfigError: `victim_buffer` is no size."""
    nbytes = None if victim_buffer == "auto" else size_or_none(victim_buffer, "victim_buffer")
    if nbytes == 0:
        return None
    kind: type[Device] = find("devices", device)
    return Victims(nbytes, kind.copy_out_bytes(), kind.copy_out_scratch_bytes())


@dataclass(frozen=True, slots=True)
class Victims(Elastic):
    """The victim buffers of all ranks of a host (LSM-GNN, section 4.3); see `plan.plan.Elastic`.

    Attributes:
        nbytes: bytes of their rows; None: what memory leaves.
        copy_out_bytes: bytes of pinned memory that rows take on their way to a victim buffer.
        scratch_bytes: see `Elastic`.
    """

    nbytes: int | None
    copy_out_bytes: int = 0
    scratch_bytes: int = 0

    def items(self, shape: Shape) -> Sequence[Item]:
        """See `Part`."""
        return [] if self.nbytes is None else self._items(shape, self._places(shape, 0))

    def fit(
        self, shape: Shape, tables: tuple[TablePlan, ...], left: int
    ) -> tuple[tuple[TablePlan, ...], Sequence[Item]]:
        """See `Elastic.fit`."""
        places, items = self._places(shape, left), list[Item]()
        if self.nbytes is None:
            none = self._none(shape)
            whole = all(table.slots >= table.rows for table in tables)
            if none is None and (whole or not any(places)):
                places, none = [0] * len(tables), "whole" if whole else "room"
            items = self._items(shape, places, none)
        kept = zip(tables, places, strict=True)
        return tuple(replace(table, evicted=count) for table, count in kept), items

    def _none(self, shape: Shape) -> str | None:
        """Why there is no victim buffer, a key of `NO_VICTIMS`; None: there may be one."""
        if not shape.on_device:
            return "slots"
        return None if shape.looks_ahead else "policy"

    def _places(self, shape: Shape, left: int) -> list[int]:
        """How many rows of each table the victim buffer of one rank has room for: in the `left`
        bytes of that rank for all items, unless `nbytes` says the size."""
        if self._none(shape) is not None:
            return [0] * len(shape.tables)
        row_bytes = [max(table.row_bytes, 1) for table in shape.tables]
        if self.nbytes is not None:
            return split_slots(self.nbytes // shape.ranks, shape.tables, row_bytes)
        left -= sum(item.nbytes for item in self._items(shape, [0] * len(shape.tables)))
        return split_slots(left, shape.tables, [each + VICTIM_PLACE_BYTES for each in row_bytes])

    def _items(self, shape: Shape, places: Sequence[int], none: str | None = None) -> list[Item]:
        """The items of victim buffers with so many places for the rows of each table."""
        none = none or self._none(shape)
        item = partial(Item, life=Life.BUFFER, during=Phase.EXTRACTION, use=Use.FEATURES)
        if none is not None:
            return [item("victim buffer", 0, NO_VICTIMS[none])]
        tables = shape.tables
        nbytes = sum(n * max(each.row_bytes, 1) for n, each in zip(places, tables, strict=True))
        table_bytes = MAPPING_BYTES * shape.rows + VICTIM_PLACE_BYTES * sum(places)
        table_bytes += EVICTED_BYTES * min(shape.entries, EVICTED_ROWS_MAX)
        on_the_way = self.copy_out_bytes * len(tables)
        rows = f"{sum(places):,} rows that leave the device and are needed again, pinned"
        return [
            item("victim buffer", nbytes + on_the_way, rows),
            item("victim table", table_bytes, "where which of these rows is"),
        ]
