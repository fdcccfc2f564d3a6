"""Admission by parts: the head of the line takes slots as they come instead of waiting for all.

A sweep of two batches may want nearly every slot. If it waited until the batches before it have
given theirs back, the disk would stand still while they are gathered; so what it misses is divided
in the order of the file, and each part is admitted, and read, as soon as its slots are there. The
rows that are there already are held first, so that no part gives them up for another.

Nobody but the head of the line does this: whoever is before it holds all that it needs and will
give it back, and whoever is behind it takes nothing, so there is always an end (rule 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gnndrive.books import Share, Table
from gnndrive.records import Int32Array, Int64Array


class Admission:
    """A sweep's rows on their way into their tables.

    Args:
        tables: by name.
        rows: table name → row ids, int64 [n], duplicates allowed.
        part_rows: rows of a part, about.
    """

    def __init__(
        self, tables: Mapping[str, Table], rows: Mapping[str, Int64Array], part_rows: int
    ) -> None:
        self._ways = {name: _Way(tables[name], ids, part_rows) for name, ids in rows.items()}

    def next(self) -> str | None:
        """The table whose part comes next; None: everything is admitted."""
        return next((name for name, way in self._ways.items() if way.left), None)

    def admit(self, name: str) -> tuple[int, Any, Share | None]:
        """Try the table's next part, as `Table.admit` does."""
        return self._ways[name].admit()

    def shares(self) -> dict[str, Share]:
        """What is held, after the last part."""
        return {name: way.share() for name, way in self._ways.items()}

    def give_back(self) -> None:
        """Give up what is held so far; nothing more is admitted."""
        for way in self._ways.values():
            way.give_back()


class _Way:
    """The way of a sweep's rows into one table."""

    def __init__(self, table: Table, rows: Int64Array, part_rows: int) -> None:
        self._table = table
        held = table.hold(rows)
        self._alias, self._pending = held.alias, [held.pending]
        self._rows = rows
        missing = np.flatnonzero(self._alias < 0).astype(np.int32)
        # In the file's order, as far as 16 bits tell, which numpy sorts by radix.
        place = (rows[missing] * (1 << 16) // max(table.rows, 1 << 16)).astype(np.uint16)
        self._order: Int32Array = missing[np.argsort(place, kind="stable")]
        self._ends = [min(n + part_rows, len(missing)) for n in range(0, len(missing), part_rows)]
        self._start = 0

    @property
    def left(self) -> bool:
        """Whether a part is yet to be admitted."""
        return bool(self._ends)

    def admit(self) -> tuple[int, Any, Share | None]:
        start, end = self._start, self._ends[0]
        part = self._order[start:end]
        code, found, share = self._table.admit(self._rows[part])
        if share is not None:
            self._alias[part] = share.alias
            self._pending.append(share.pending)
            self._start = self._ends.pop(0)
        return code, found, share

    def share(self) -> Share:
        assert not self._ends
        return Share(self._table, self._alias, np.concatenate(self._pending))

    def give_back(self) -> None:
        self._ends.clear()
        self._table.release(self._alias[self._alias >= 0])
