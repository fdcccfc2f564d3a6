"""`TableGroup`: what is asked of all tables of a feature buffer together.

`FeatureBuffer` is one; it adds the gate, the leases and the fetches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gnndrive.buffer.row_table import RowTable
from gnndrive.common.records import Codes, Int64Array


class TableGroup:
    """The tables of a feature buffer.

    Args:
        tables: by name; a batch needs rows of some of them.

    Attributes:
        tables: the same.
    """

    def __init__(self, tables: Mapping[str, RowTable]) -> None:
        self.tables = dict(tables)

    def row_bytes(self, table: str) -> int:
        """Bytes of a row of a table."""
        return self.tables[table].row_bytes

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        """Whether the buffer could hold these batches together if no other batch held a slot; each
        is (index, table name → row ids, int64 [n])."""
        return all(
            table.fits_together([(index, rows[name]) for index, rows in batches if name in rows])
            for name, table in self.tables.items()
        )

    def foresee(self, first: int, last: int, later: Mapping[str, Codes] | None) -> None:
        """The next uses by the batches [first, last) are known: a superbatch was sampled ahead.

        Args:
            first, last: the indices; the code of batch i is `i % GD_NO_CODE`.
            later: table name → the code of the first of these batches that needs each row, uint16
                [rows], `GD_NO_CODE` for none; tables whose next uses are not known are left out. It
                is not kept. None: nothing is known any more, as at the start of an epoch; then
                `first` and `last` are equal.
        """
        for name in self.tables if later is None else later:
            self.tables[name].foresee(first, last, None if later is None else later[name])

    def stats(self) -> Counter[str]:
        """The counters of all tables, added; see `RowTable.stats`."""
        counted: Counter[str] = Counter()
        for table in self.tables.values():
            counted.update(table.stats())
        return counted

    def unused(self) -> tuple[int, int]:
        """How many slots are free, and how many are on standby, in all tables."""
        counted = [table.unused() for table in self.tables.values()]
        return sum(free for free, _ in counted), sum(standby for _, standby in counted)

    def verify(self) -> None:
        """Check every invariant of the tables.

        Raises:
            AssertionError: one does not hold.
        """
        for table in self.tables.values():
            table.verify()

    async def close_tiers(self) -> None:
        """Free what the tiers hold; no row can be fetched afterwards. Only after `drain`, and
        before the engine and the layouts are closed."""
        for table in self.tables.values():
            await table.tier.aclose()

    def free_slots(self) -> None:
        """Free the slots' memory; in any thread. Only after `drain` and `close_tiers`."""
        for table in self.tables.values():
            table.memory.close()
