"""The C table of a victim buffer as tests call it: plain lists in, plain lists out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import EVICTED


class VictimTable:
    """One gd_victims; copies are begun and ended by hand.

    Attributes:
        arriving: places by the rows whose copies are under way.
    """

    def __init__(self, rows: int, places: int, queue_rows: int = 0) -> None:
        self.rows = rows
        self.c = ffi.gc(lib.gd_victims_new(rows, places, queue_rows), lib.gd_victims_free)
        assert self.c != ffi.NULL
        self.table = lib.gd_victims_table(self.c)
        self.arriving: dict[int, int] = {}

    def offer(
        self, rows: Sequence[tuple[int, int]], now: int = 0, most: int | None = None
    ) -> list[int]:
        """Offer (row, next use), the key is minus the next use; the rows that are kept."""
        given = sorted(rows, key=lambda each: -each[1])  # the smallest key first, as they leave
        left = np.zeros(len(given), EVICTED)
        left["row"], left["slot"] = [row for row, _ in given], [100 + row for row, _ in given]
        next_use = np.array([use for _, use in given], np.int64)
        left["key"] = -next_use
        slots, places = np.full(len(given) + 1, -7, np.int32), np.full(len(given) + 1, -7, np.int32)
        kept = lib.gd_victims_offer(
            self.c, ffi.cast("gd_evicted *", left.ctypes.data), pointer(next_use), len(given),
            len(given) if most is None else most, now, pointer(slots), pointer(places),
        )  # fmt: skip
        assert kept >= 0
        assert set(slots[kept:]) == set(places[kept:]) == {-7}
        found = (slots[:kept] - 100).tolist()
        self.arriving |= dict(zip(found, places[:kept].tolist(), strict=True))
        self.verify()
        return sorted(found)

    def arrive(self, *rows: int) -> None:
        """The copies of these rows have ended, or of all."""
        chosen = rows or tuple(self.arriving)
        places = np.array([self.arriving.pop(row) for row in chosen], np.int32)
        assert lib.gd_buffer_commit(self.table, pointer(places), len(places)) == 0
        self.verify()

    def withdraw(self, *rows: int) -> int:
        """The copies of these rows were not begun."""
        places = np.array([self.arriving.get(row, 0) for row in rows], np.int32)
        code = lib.gd_victims_withdraw(self.c, pointer(places), len(places))
        self.verify()
        return int(code)

    def find(self, rows: Sequence[int]) -> list[int] | int:
        """The place of each row, or -errno."""
        wanted, places = np.array(rows, np.int64), np.full(len(rows), -7, np.int32)
        code = lib.gd_victims_find(self.c, pointer(wanted), len(wanted), pointer(places))
        self.verify()
        return int(code) or places.tolist()

    def take(self, *rows: int) -> tuple[list[int], int]:
        """Hold those of the rows that are here: their places, and how many are arriving."""
        found = self.find(rows)
        assert isinstance(found, list)
        places = np.array([place for place in found if place >= 0], np.int32)
        arriving = lib.gd_victims_take(self.c, pointer(places), len(places))
        self.verify()
        return places.tolist(), int(arriving)

    def drop(self, places: Sequence[int]) -> int:
        """Rows were copied back."""
        given = np.array(places, np.int32)
        code = int(lib.gd_victims_drop(self.c, pointer(given), len(given)))
        self.verify()
        return code

    def fetch(self, *rows: int) -> list[int]:
        """Copy rows back that have arrived; those that were here."""
        there = [row for row in rows if lib.gd_buffer_slot_of(self.table, row) >= 0]
        places, arriving = self.take(*rows)
        assert arriving == 0
        assert self.drop(places) == 0
        return there

    @property
    def here(self) -> set[int]:
        """The rows that are kept or arriving."""
        return {r for r in range(self.rows) if lib.gd_buffer_slot_of(self.table, r) >= 0}

    def verify(self) -> None:
        """Every invariant holds."""
        assert lib.gd_buffer_verify(self.table) == 0
