"""Admission in parts: the head of the admission queue takes slots as they become available.

`FeatureBuffer` uses it for sweeps of more rows than one part. A sweep of two batches may need
nearly every slot. If it waited until the batches before it have released all of theirs, the disk
would be idle while these are gathered. So the rows that it misses are divided in the order of the
file, and each part is admitted, and read, as soon as there are slots for it. Rows that have slots
already are held first, so that no part takes them away.

Only the head of the queue is admitted in parts (rule 3). The batches before it have all they need
and will release it; the batches behind it take no slots. So the last part always gets its slots.
Nothing else takes slots meanwhile, so the slots of each part are computed once, and no part is
tried in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gnndrive.buffer.row_table import Rows
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.ffi import check, ffi, holding_gil, lib, pointer
from gnndrive.common.records import Codes, Int32Array, Int64Array


class PartialAdmission:
    """The admission of one sweep, in parts, to all of its tables.

    Args:
        codes: table name → the rows' codes, uint16 [n]; tables that get none are left out.
        part_rows: about how many rows a part has; the first has an eighth of that, and each has as
            many as all before it together, until that is reached.
        raise_refusal: called with a table's name, a code (< 0) and the slots that are missing;
            raises the error that they mean.
    """

    def __init__(
        self, tables: Mapping[str, SlotTable], rows: Rows, codes: Mapping[str, Codes],
        part_rows: int, raise_refusal: Callable[[str, int, int], None],
    ) -> None:  # fmt: skip
        self._admissions: dict[str, _TableAdmission] = {}
        try:
            for name, ids in rows.items():
                code, deficit, held = tables[name].hold_present(ids, codes.get(name))
                if held is None:
                    raise_refusal(name, code, deficit)
                    raise AssertionError("raise_refusal did not raise")
                self._admissions[name] = admission = _TableAdmission(held, ids, codes.get(name))
                admission.divide(part_rows)
        except BaseException:
            self.release_all()
            raise

    @property
    def unfinished(self) -> bool:
        """Whether there is another part to admit."""
        return any(admission.unfinished for admission in self._admissions.values())

    def admit_next(self) -> SlotHold | None:
        """Admit the next part and return its hold; None: there are too few slots for it now."""
        return next(
            admission for admission in self._admissions.values() if admission.unfinished
        ).admit_next()

    def holds(self) -> dict[str, SlotHold]:
        """After the last part: table name → the hold of all of its rows."""
        return {name: admission.hold() for name, admission in self._admissions.items()}

    def learn(self, later: Mapping[str, Codes]) -> None:
        """Another superbatch is known; see `Foreseen.learn`."""
        for name in self._admissions.keys() & later.keys():
            self._admissions[name].learn(later[name])

    def release_all(self) -> None:
        """Release all that is held so far; no part is admitted after this."""
        for admission in self._admissions.values():
            admission.release_all()


class _TableAdmission:
    """The admission of a sweep's rows to one table; rows that have slots are held from the start.

    A part's row ids are collected, and its aliases written back to their places, when the part is
    admitted, which takes half a millisecond. For all parts at once it would take a tenth of a
    second, during which the event loop could do nothing else.
    """

    def __init__(self, held: SlotHold, rows: Int64Array, codes: Codes | None) -> None:
        self._table, self._rows, self._codes = held.table, rows, codes
        self._alias, self._pending = held.alias, [held.pending]
        # Places of the missing rows in `rows`, part by part.
        self._order: Int32Array = np.empty(0, np.int32)
        # Of each part: its end in `_order`, and the slots that it needs.
        self._parts: list[tuple[int, int]] = []
        self._start = 0

    def divide(self, part_rows: int) -> None:
        """Divide the missing rows into parts, in the order of the file. Equal rows are in the same
        part: in a later part a row would need another slot if its first read had failed."""
        rows, alias = self._rows, self._alias
        self._order = self._table.empty(len(rows), np.int32)
        parts = ffi.new("gd_part[]", len(rows) // part_rows + 5)
        count = lib.gd_parts(
            pointer(rows), pointer(alias), len(rows), part_rows, pointer(self._order), parts
        )
        self._parts = [(part.end, part.slots) for part in parts[0 : check(count, "gd_parts")]]

    @property
    def unfinished(self) -> bool:
        return bool(self._parts)

    def learn(self, later: Codes) -> None:
        if self._codes is not None:
            count = len(self._rows)
            lib.gd_trace_patch(pointer(self._codes), pointer(self._rows), count, pointer(later))

    def admit_next(self) -> SlotHold | None:
        end, slots = self._parts[0]
        if self._table.available < slots:
            return None
        order = self._order[self._start : end]
        rows = self._table.empty(len(order), np.int64)
        holding_gil.gd_part_take(pointer(self._rows), pointer(order), len(order), pointer(rows))
        codes = None if self._codes is None else self._codes[order]
        code, _, hold = self._table.admit(rows, codes)
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
        """After the last part: the hold of all rows."""
        assert not self._parts
        return SlotHold(self._table, self._alias, np.concatenate(self._pending))

    def release_all(self) -> None:
        self._parts.clear()
        self._table.release(self._alias[self._alias >= 0])
