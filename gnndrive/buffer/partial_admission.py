"""Admission by parts: the head of the line takes slots as they come instead of waiting for all.

A sweep of two batches may want nearly every slot. If it waited until the batches before it have
given theirs back, the disk would stand still while they are gathered; so what it misses is divided
in the order of the file, and each part is admitted, and read, as soon as its slots are there. The
rows that are there already are held first, so that no part gives them up for another.

Nobody but the head of the line does this: whoever is before it holds all that it needs and will
give it back, and whoever is behind it takes nothing, so there is always an end (rule 3). For the
same reason what a part needs is known when the rows are divided, and none is tried in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.ffi import check, ffi, holding_gil, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array


class PartialAdmission:
    """A sweep's rows on their way into their tables.

    Args:
        tables: by name.
        rows: table name → row ids, int64 [n], duplicates allowed.
        part_rows: rows of a part, about; the first is an eighth of that, and each as large as all
            before it until that is reached.
        refuse: raises what a table's name, a code (< 0) and what was found mean.
    """

    def __init__(
        self,
        tables: Mapping[str, SlotTable],
        rows: Mapping[str, Int64Array],
        part_rows: int,
        refuse: Callable[[str, int, Any], None],
    ) -> None:
        self._ways: dict[str, _TableAdmission] = {}
        try:
            for name, ids in rows.items():
                code, found, held = tables[name].hold_present(ids)
                if held is None:
                    refuse(name, code, found)
                    raise AssertionError("it was not refused")
                self._ways[name] = way = _TableAdmission(held, ids)
                way.divide(part_rows)
        except BaseException:
            self.give_back()
            raise

    @property
    def left(self) -> bool:
        """Whether a part is yet to be admitted."""
        return any(way.left for way in self._ways.values())

    def admit(self) -> SlotHold | None:
        """The next part's share; None: there are too few slots for it now."""
        return next(way for way in self._ways.values() if way.left).admit()

    def holds(self) -> dict[str, SlotHold]:
        """What is held, after the last part."""
        return {name: way.hold() for name, way in self._ways.items()}

    def give_back(self) -> None:
        """Give up what is held so far; nothing more is admitted."""
        for way in self._ways.values():
            way.give_back()


class _TableAdmission:
    """The way of a sweep's rows into one table; what is there is held from the start.

    A part's rows are taken from their places, and its aliases put back there, as it is admitted: in
    half a millisecond. All at once they would take a tenth of a second, in which the event loop
    does nothing else.
    """

    def __init__(self, held: SlotHold, rows: Int64Array) -> None:
        self._table, self._rows = held.table, rows
        self._alias, self._pending = held.alias, [held.pending]
        self._order: Int32Array = np.empty(0, np.int32)  # places of what is missing, by parts
        self._parts: list[tuple[int, int]] = []  # where one ends, the slots it takes
        self._start = 0

    def divide(self, part_rows: int) -> None:
        """Divide what is missing into parts, in the file's order. Equal rows are in one part: of
        two, the second would need a slot of its own if the first one's read had failed."""
        rows, alias = self._rows, self._alias
        self._order = self._table.empty(len(rows), np.int32)
        parts = ffi.new("gd_part[]", len(rows) // part_rows + 5)
        count = lib.gd_parts(
            pointer(rows), pointer(alias), len(rows), part_rows, pointer(self._order), parts
        )
        self._parts = [(part.end, part.slots) for part in parts[0 : check(count, "gd_parts")]]

    @property
    def left(self) -> bool:
        return bool(self._parts)

    def admit(self) -> SlotHold | None:
        end, slots = self._parts[0]
        if self._table.available < slots:
            return None
        order = self._order[self._start : end]
        rows = self._table.empty(len(order), np.int64)
        holding_gil.gd_part_take(pointer(self._rows), pointer(order), len(order), pointer(rows))
        code, _, hold = self._table.admit(rows)
        check(code, "admission of a part")
        assert hold is not None
        holding_gil.gd_part_put(
            pointer(hold.alias), pointer(order), len(order), pointer(self._alias)
        )
        self._pending.append(hold.pending)
        self._start = end
        del self._parts[0]
        return hold

    def hold(self) -> SlotHold:
        assert not self._parts
        return SlotHold(self._table, self._alias, np.concatenate(self._pending))

    def give_back(self) -> None:
        self._parts.clear()
        self._table.release(self._alias[self._alias >= 0])
