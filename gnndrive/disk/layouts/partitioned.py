"""The partitioned layout: rows in the order of their partitions (HierBatching §3).

A row's number is the node's new id (`gnndrive/store/partitioned/format.py`), so a window is one
long read for each of its partitions; the static rows lie behind them and are one more. Reads are
planned as in the table layout.

When not to use it: for batches that are sampled from the whole graph, which use no long stretches.
"""

from __future__ import annotations

from typing import Self

from gnndrive.common.errors import ConfigError
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.base import LayoutContext


class PartitionedLayout(RowsFile):
    """A table's rows by partition; see `RowsFile`."""

    name = "partitioned"

    @classmethod
    def make(cls, context: LayoutContext) -> Self:
        """See `Layout.make`."""
        if context.derived is None:
            raise ConfigError(
                "the partitioned layout reads a partitioned store: partition it first (gnndrive "
                "partition), and give strategy='hierbatching'"
            )
        return cls(
            context.derived, context.extent_bytes_max, context.gap_bytes_max,
            repeats=context.repeats,
        )  # fmt: skip
