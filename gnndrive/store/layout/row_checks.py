"""Packed rows compared with their table, and checksums of rows that are stored.

The comparison reads table and outputs once each, from beginning to end, and compares the checksums
of the rows (native/pack.c). So it finds an output that differs, but not which of its rows does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from gnndrive.common.errors import StoreError
from gnndrive.common.io.direct_file import PAGE_BYTES, STRETCH_BYTES, DirectReader, page_buffer
from gnndrive.common.records import TableFile
from gnndrive.store.format import Progress
from gnndrive.store.layout.outputs import Division, Output, divide
from gnndrive.store.layout.rows import budget_for
from gnndrive.store.layout.table_parts import SUM_MODULUS, Part, TableParts, gather, sum_of_rows


def stored_sum(file: Path, offset: int, rows: int, row_bytes: int, position: int) -> int:
    """The checksum of rows that are in a file.

    Args:
        file: the file.
        offset: where the first row starts, in bytes.
        rows: how many rows.
        row_bytes: bytes of one row.
        position: the position of the first row in the file's array; 0 with all rows of the array
            makes the array's checksum.

    Raises:
        ReadError: the disk failed.
        StoreError: the file is missing or too short.
    """
    step = max(STRETCH_BYTES // row_bytes, 1)
    buffer, total = page_buffer(step * row_bytes + 2 * PAGE_BYTES), 0
    with DirectReader(file) as reader:
        for row in range(0, rows, step):
            nbytes = min(step, rows - row) * row_bytes
            found = reader.read(offset + row * row_bytes, nbytes, buffer)
            total += sum_of_rows(found, row_bytes, position + row)
    return total % SUM_MODULUS


def table_sums(
    table: TableFile,
    outputs: Sequence[Output],
    folder: Path,
    memory: int,
    progress: Progress | None = None,
) -> list[int]:
    """The checksums that outputs should have, from one pass over the table.

    Args:
        table: the table.
        outputs: the outputs; their files are in `folder`.
        folder: the packed folder.
        memory: bytes that this may use, at least 64 MiB; the ids are not counted.
        progress: called as progress("table", bytes done, bytes in all).

    Raises:
        ConfigError: `memory` is too little, or an id is no row of the table.
        ReadError, StoreError: the table cannot be read.
    """
    budget = budget_for(memory, table.row_bytes)
    division = divide(table, outputs, budget.slice_rows, folder)
    total = (division.last - division.first) * table.row_bytes
    sums = [0] * len(outputs)
    parts = TableParts(table, budget.part_bytes).parts(division.first, division.last)
    with closing(parts):
        for part in parts:
            _add(sums, division, part, outputs, table.row_bytes)
            if progress is not None:
                done = part.first + part.count - division.first
                progress("table", done * table.row_bytes, total)
    return [each % SUM_MODULUS for each in sums]


def verify_rows(
    table: TableFile,
    outputs: Sequence[Output],
    folder: Path,
    memory: int,
    progress: Progress | None = None,
    mend: str = "pack again, and check the disk",
) -> int:
    """Check that the rows in the outputs' files are the table's; see `table_sums`.

    Args:
        table, outputs, folder, memory, progress: as for `table_sums`.
        mend: what to do if they are not, for errors.

    Returns:
        The checksum of all outputs' rows.

    Raises:
        StoreError: some are not, or a file is missing or too short.
        ConfigError, ReadError: as for `table_sums`.
    """
    expected = table_sums(table, outputs, folder, memory, progress)
    for output, wanted in zip(outputs, expected, strict=True):
        rows, position = len(output.ids), output.position(table.row_bytes)
        if stored_sum(output.file, output.offset, rows, table.row_bytes, position) != wanted:
            raise StoreError(
                f"rows {position} to {position + rows - 1} of {output.file} are not those of "
                f"{table.path}: {mend}"
            )
    return sum(expected) % SUM_MODULUS


def _add(
    sums: list[int], division: Division, part: Part, outputs: Sequence[Output], row_bytes: int
) -> None:
    """Add what the rows of a part contribute."""
    first, last = part.first, part.first + part.count
    for piece in division.pieces:
        output = outputs[piece.output]
        ids, position = np.asarray(output.ids), output.position(row_bytes)
        if piece.bounds is None:
            places = piece.within(ids, first, last)
            sums[piece.output] += gather(part, row_bytes, ids[places], position + places)
            continue
        for low, high in piece.slices(ids, first, last):
            sums[piece.output] += gather(part, row_bytes, ids[low:high], position + low)
