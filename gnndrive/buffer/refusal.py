"""`raise_refusal`: the errors for batches that a feature buffer can never admit."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from math import ceil

from gnndrive.buffer.row_table import RowTable
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check


def raise_refusal(
    tables: Mapping[str, RowTable], buffers: int, name: str, code: int, deficit: int
) -> None:
    """Raise the error that the answer of a table means.

    Args:
        tables: the feature buffer's tables, by name.
        buffers: how many such buffers divide the user's `buffer=`.
        name: the table that answered.
        code, deficit: its answer, see `RowTable.admit`; the code is not -EAGAIN.

    Raises:
        ConfigError: the batch has more distinct rows than the table has slots; the message names
            the smallest buffer that works.
        IndexError: a row id is out of range.
        OSError: another code.
    """
    table = tables[name]
    if code == -errno.ENOSPC:
        need = table.slots + deficit
        most = table.batch_rows_max
        # Tables share buffer= in proportion to their largest batches, rounded down.
        several = len(tables) > 1
        whole = sum((each.slots + several) * each.row_bytes for each in tables.values())
        a_slot = whole / table.slots
        any_batch = f" ({_budget_text(most * a_slot * buffers)} holds any batch)" if most else ""
        give = f'give it at least buffer="{_budget_text(need * a_slot * buffers)}"'
        if buffers > 1:
            give += f" for all {buffers} ranks of this host"
        raise ConfigError(
            f"the feature buffer holds {table.slots:,} rows of {name!r} "
            f"({_budget_text(table.slots * table.row_bytes)}), but a batch needs {need:,}: "
            f"{give}{any_batch}, or a smaller batch_size or num_neighbors"
        )
    if code == -errno.ERANGE:
        raise IndexError(f"a row id of {name!r} is out of range: check neighbor_sampler=")
    check(code, "admission")


def _budget_text(count: float) -> str:
    """Bytes as text for buffer=: whole megabytes (10⁶), or kilobytes below ten, rounded up."""
    unit, name = (1_000_000, "MB") if count >= 10_000_000 else (1_000, "KB")
    return f"{ceil(count / unit)}{name}"
