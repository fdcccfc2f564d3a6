"""The table layout: a table as the store has it, read with O_DIRECT (GNNDrive §4.2).

It needs no preparation. A layout that stores rows together that are used together would read fewer
bytes.
"""

from __future__ import annotations

from gnndrive.disk.layouts._rows_file import RowsFile


class TableLayout(RowsFile):
    """One table of rows in one file; see `RowsFile`."""

    name = "table"

    @property
    def ahead_bytes(self) -> int:  # type: ignore[override]
        """See `Layout`."""
        return self.gap_bytes_max
