"""The table layout: a table as the store has it, read with O_DIRECT (GNNDrive §4.2).

It needs no preparation. A layout that stores rows together that are used together would read fewer
bytes. If the rows have copies on several disks, the disk tier reads these.
"""

from __future__ import annotations

from typing import Self

from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts._striped import StripedFile
from gnndrive.disk.layouts.base import LayoutContext


class TableLayout(RowsFile):
    """One table of rows in one file; see `RowsFile`.

    Attributes:
        striped: the copies of its rows; None: there are none.
    """

    name = "table"
    reads_stripes = True
    striped: StripedFile | None = None

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        """See `Layout.make`."""
        made = super().make(context)
        if context.stripes is not None:
            made.striped = StripedFile(context, context.stripes)
        return made

    @property
    def ahead_bytes(self) -> int:  # type: ignore[override]
        """See `Layout`."""
        return self.gap_bytes_max

    def close(self) -> None:
        """See `Layout.close`."""
        super().close()
        if self.striped is not None:
            self.striped.close()
