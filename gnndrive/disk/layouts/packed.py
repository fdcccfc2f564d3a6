"""The packed layout: rows in the order in which recorded batches use them (DiskGNN §4.3).

A pack has the rows of a table in one file (`gnndrive/store/packed/sections.py`): the hot rows,
then for each segment its shared rows and its batches' chunks. A batch's `Replayed.rows` are
positions in this file, so a batch is one long read, a few shorter ones in the segment's stretch,
and rows that are in memory already. Reads are planned as in the table layout.

When not to use it: for batches that are drawn while they are trained.
"""

from __future__ import annotations

from typing import Self

from gnndrive.common.errors import ConfigError
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.base import LayoutContext


class Packed(RowsFile):
    """A table's packed rows; see `RowsFile`."""

    name = "packed"

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        """See `Layout.make`."""
        if context.derived is None:
            raise ConfigError(
                "the packed layout reads a pack: pack the store first (gnndrive pack), and give "
                "strategy='diskgnn'"
            )
        # A batch of disjoint trees needs a row of the segment several times.
        return cls(context.derived, context.extent_bytes_max, context.gap_bytes_max, repeats=True)
