"""`Ranking`: the standby keys of one table's rows, as its policy sets them for what is known.

A policy computes keys for *cases*, a table has few of them, and the C core looks up the case of
each row (`native/ranking.h`). There are three kinds of cases:

- `WindowRanking`: the sets of up to eight announced batches that request a row. The queued samples
  are a look-ahead window that costs a byte a row.
- `CodeRanking`: a code for each row of a batch, which says the row's next use in a superbatch that
  was sampled before (Ginex §4, §5).
- `FixedRanking`: one case. Nothing is known of next uses, and rows leave by their class alone.

`SlotTable` makes one with `make_ranking` and passes it to the C core. A tier may keep rows that
have left the feature buffer in a table that is ranked likewise (`Tier.ranked`); methods take all
such tables. No method waits.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.buffer.policies.base import NO_USE, Keys, Policy
from gnndrive.common.ffi import check, ffi, holding_gil, lib, pointer
from gnndrive.common.records import Codes, Int64Array

Classes = npt.NDArray[np.uint8]
Tables: TypeAlias = Sequence[Any]
"""Slot tables of the C core (`gd_buffer`), whose rows are ranked together."""


class Ranking:
    """The standby keys of the rows of one table. This class has none: rows leave in the order of
    their release (LRU).

    Attributes:
        c: the C core's `gd_ranking`, whose arrays this object owns, or NULL.
        takes_codes: whether the cases are codes that come with the rows of an admission.
    """

    c: Any = ffi.NULL
    takes_codes = False
    _now = 0

    @property
    def announced(self) -> int:
        """Batches that are announced and neither admitted nor withdrawn."""
        return 0

    @property
    def now(self) -> int:
        """The index of the newest batch that was admitted, is being admitted, or never will be."""
        return self._now

    def next_uses(self, known: Codes) -> Int64Array:
        """The index of the batch that needs rows next, by what is known of them: `known` are cases,
        uint16 [n]. `NO_USE`: no known batch needs them."""
        return np.full(len(known), NO_USE)

    def announce(
        self, tables: Tables, index: int, rows: Int64Array, near: Int64Array | None = None
    ) -> None:
        """Batch `index` will need `rows`, int64 [n]; `near`: see `NextUses`; None: it is
        unknown."""

    def withdraw(self, tables: Tables, index: int, rows: Int64Array) -> None:
        """Batch `index` is being admitted, or will not be; `rows` are those that were announced."""

    def rekey(self, tables: Tables, rows: Int64Array) -> None:
        """Set the keys of `rows` again, after the batch that needed them was withdrawn."""

    def foresee(
        self, tables: Tables, first: int, last: int, later: Codes | None, anew: bool
    ) -> None:
        """See `FeatureBuffer.foresee`."""

    def keep_from(self, least: int) -> None:
        """See `SlotTable.keep_from`; only if the policy has a score."""
        raise AssertionError("rows have no classes")

    def together(self, indices: Sequence[int]) -> int | None:
        """How many distinct rows these announced batches need together; None: it is unknown."""
        return None


class CaseRanking(Ranking):
    """Keys by cases.

    Args:
        classes: the class of each row, uint8 [rows], the highest is kept longest; None: all rows
            have class 0.
        window: the C core's window, or NULL.
    """

    def __init__(
        self, policy: Policy, cases: int, classes: Classes | None, window: Any = ffi.NULL
    ) -> None:
        self._policy, self._classes = policy, classes
        self._base, self._mask = np.zeros(cases, np.int64), np.zeros(cases, np.uint8)
        self.c = ffi.new("gd_ranking *")
        self.c.base, self.c.mask = pointer(self._base), pointer(self._mask)
        self.c.class_of = ffi.NULL if classes is None else pointer(classes)
        self.c.window = window

    def _set_keys(self, keys: Keys) -> None:
        self._base[:], self._mask[:] = keys

    def keep_from(self, least: int) -> None:
        """See `Ranking.keep_from`."""
        assert self._classes is not None
        self.c.keep_from = least


class FixedRanking(CaseRanking):
    """One key for each class of rows, for policies that do not look ahead."""

    def __init__(self, policy: Policy, classes: Classes | None) -> None:
        super().__init__(policy, 1, classes)
        self._set_keys(policy.keys(np.full(1, NO_USE), 0))


class WindowRanking(CaseRanking):
    """Keys by the announced batches, up to `GD_WINDOW_BATCHES`; further ones wait for a place."""

    def __init__(self, policy: Policy, rows: int, classes: Classes | None) -> None:
        window = lib.gd_window_new(rows)
        if window == ffi.NULL:
            raise MemoryError(
                f"no memory to look ahead in a table of {rows} rows: choose policy='lru'"
            )
        self._window = ffi.gc(window, lib.gd_window_free)
        super().__init__(policy, lib.GD_WINDOW_SETS, classes, self._window)
        next_uses = ffi.buffer(lib.gd_window_next_uses(window), 8 * lib.GD_WINDOW_SETS)
        self._next_use = np.frombuffer(next_uses, np.int64)
        # By index: the rows of the batches in the window, and of those that it has no place for.
        self._known: dict[int, Int64Array] = {}
        self._waiting: dict[int, Int64Array] = {}
        self._update_keys()

    def _update_keys(self) -> None:
        self._set_keys(self._policy.keys(self._next_use.copy(), self._now))

    def next_uses(self, known: Codes) -> Int64Array:
        """See `Ranking.next_uses`; the cases are sets of announced batches."""
        return self._next_use[known]

    @property
    def _full(self) -> bool:
        return bool(holding_gil.gd_window_count(self._window) == lib.GD_WINDOW_BATCHES)

    @property
    def announced(self) -> int:
        """See `Ranking.announced`."""
        return int(holding_gil.gd_window_count(self._window)) + len(self._waiting)

    def announce(
        self, tables: Tables, index: int, rows: Int64Array, near: Int64Array | None = None
    ) -> None:
        """See `Ranking.announce`."""
        if self._full:
            self._waiting[index] = rows
            return
        code = lib.gd_window_add(self._window, index, pointer(rows), len(rows))
        if code != -errno.ERANGE:  # ids out of range: the admission raises the error
            check(code, "look-ahead")
            self._known[index] = rows
            self._update_keys()
            for table in tables:
                check(lib.gd_buffer_rekey(table, self.c, pointer(rows), len(rows)), "rekey")

    def withdraw(self, tables: Tables, index: int, rows: Int64Array) -> None:
        """See `Ranking.withdraw`."""
        if self._waiting.pop(index, None) is not None:
            return
        if lib.gd_window_drop(self._window, index, pointer(rows), len(rows)) == 0:
            self._known.pop(index, None)
            nearer, self._now = self._rank_otherwise(index), index
            self._update_keys()
            for each in nearer:
                self.rekey(tables, self._known[each])
            while self._waiting and not self._full:
                nearest = min(self._waiting)
                self.announce(tables, nearest, self._waiting.pop(nearest))

    def _rank_otherwise(self, now: int) -> list[int]:
        """The batches in the window whose rows get other keys because the batches are nearer, seen
        from batch `now`."""
        uses = np.fromiter(self._known, np.int64)
        old, new = (self._policy.keys(uses.copy(), seen) for seen in (self._now, now))
        changed: list[int] = uses[(old.base != new.base) | (old.mask != new.mask)].tolist()
        return changed

    def rekey(self, tables: Tables, rows: Int64Array) -> None:
        """See `Ranking.rekey`."""
        for table in tables:  # -ERANGE: a batch with such a row was never in the window
            lib.gd_buffer_rekey(table, self.c, pointer(rows), len(rows))

    def together(self, indices: Sequence[int]) -> int | None:
        """See `Ranking.together`."""
        numbers = np.array(indices, np.int64)
        count = holding_gil.gd_window_together(self._window, pointer(numbers), len(numbers))
        return int(count) if count >= 0 else None


class CodeRanking(CaseRanking):
    """Keys by the codes of rows: `index % GD_NO_CODE` of the batch that needs the row next.

    A superbatch is far shorter than `GD_NO_CODE` batches, so at any time a code means one batch.
    The codes come with the rows of each admission. When another superbatch becomes known, rows in
    slots that the known batches did not need any more get its codes.
    """

    takes_codes = True

    def __init__(self, policy: Policy, buffer: Any, classes: Classes | None) -> None:
        super().__init__(policy, lib.GD_CODES, classes)
        self._end = 0  # the next uses that are known are those by the batches [_now, _end)
        self._changed = np.zeros(lib.GD_CODES, np.uint8)
        self._near: dict[int, Int64Array] = {}  # by index, of announced batches
        if lib.gd_buffer_keep_codes(buffer):
            raise MemoryError("no memory for the codes of slots: give buffer= less")
        self._update_keys(0)

    def _update_keys(self, now: int) -> Int64Array:
        """Ask the policy for the keys of the codes that mean something; those that have changed."""
        indices = np.arange(self._now, self._end)
        codes = np.append(indices % lib.GD_NO_CODE, lib.GD_NO_CODE)
        base, mask = self._policy.keys(np.append(indices, NO_USE), now)
        changed: Int64Array = codes[(base != self._base[codes]) | (mask != self._mask[codes])]
        self._base[codes], self._mask[codes] = base, mask
        return changed

    @property
    def now(self) -> int:
        """See `Ranking.now`; `_now` is the next batch."""
        return self._now - 1

    def next_uses(self, known: Codes) -> Int64Array:
        """See `Ranking.next_uses`; the cases are codes."""
        ahead = (known.astype(np.int64) - self._now) % lib.GD_NO_CODE
        unknown = (known == lib.GD_NO_CODE) | (ahead >= self._end - self._now)
        return np.where(unknown, NO_USE, self._now + ahead)

    @property
    def announced(self) -> int:
        """See `Ranking.announced`."""
        return len(self._near)

    def announce(
        self, tables: Tables, index: int, rows: Int64Array, near: Int64Array | None = None
    ) -> None:
        """See `Ranking.announce`."""
        if near is not None:
            self._near[index] = near

    def together(self, indices: Sequence[int]) -> int | None:
        """See `Ranking.together`; a row of several batches is counted in the last of them."""
        near, end = [self._near.get(index) for index in indices], indices[-1] + 1
        if any(each is None for each in near) or end - indices[0] > lib.GD_NEAR:
            return None
        pairs = zip(indices, near, strict=True)
        return sum(int(each[0] - each[1 : end - i].sum()) for i, each in pairs if each is not None)

    def foresee(
        self, tables: Tables, first: int, last: int, later: Codes | None, anew: bool
    ) -> None:
        """See `Ranking.foresee`."""
        self._now, self._end = first if later is None else self._now, last
        self._update_keys(self._now)
        codes = ffi.NULL if later is None else pointer(later)
        for table in tables:
            check(lib.gd_buffer_recode(table, self.c, codes, later is None or anew), "recode")

    def withdraw(self, tables: Tables, index: int, rows: Int64Array) -> None:
        """The batches up to `index` have been tried: rows that are needed soon may rank higher.
        Those of the batch itself get new codes now."""
        self._near.pop(index, None)
        if index < self._now:
            return
        self._now = min(index + 1, self._end)
        changed = self._update_keys(index)
        self._changed[changed] = 1
        for table in tables if len(changed) else ():
            check(lib.gd_buffer_rekey_codes(table, self.c, pointer(self._changed)), "rekey")
        self._changed[changed] = 0


def make_ranking(
    policy: Policy | None, buffer: Any, rows: int, classes: Classes | None, foreseen: bool
) -> Ranking:
    """Make the ranking of a table of so many rows.

    Args:
        buffer: the C core's slot table.
        foreseen: whether codes come with the rows that are admitted.
    """
    if policy is None or (policy.score is None and not policy.looks_ahead):
        return Ranking()
    if not policy.looks_ahead:
        return FixedRanking(policy, classes)
    if foreseen:
        return CodeRanking(policy, buffer, classes)
    return WindowRanking(policy, rows, classes)
