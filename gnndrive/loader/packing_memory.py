"""How many rows of each table training will hold in memory, for a pack."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gnndrive.loader.assembly import Assembly
from gnndrive.store.packed.record import Recorded


def hot_slots(assembly: Assembly, recorded: Recorded) -> dict[str, int]:
    """Give the memory of the loader's feature buffer to the rows with the most uses.

    A row saves its bytes once for each use, so the same number of uses is needed in each table.

    Args:
        assembly: the loader's that trains; without `memory=`, its buffer is a quarter of the memory
            that is left.
        recorded: says how many batches use each row.

    Returns:
        The number of rows of each table.
    """
    left = assembly.plan().buffer_bytes
    width = {table.name: table.file.row_bytes for table in assembly.collate.tables}
    having = {name: _histogram(recorded.counts[name]) for name in width}
    found = dict.fromkeys(width, 0)
    for uses in range(max(map(len, having.values()), default=0) - 1, 0, -1):
        for name, rows in having.items():
            count = int(rows[uses]) if uses < len(rows) else 0
            taken = min(count, left // width[name])
            found[name] += taken
            left -= taken * width[name]
            if taken < count:
                return found
    return found


def _histogram(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """How many rows have 0, 1, 2, ... uses."""
    having = np.zeros(int(counts.max(initial=0)) + 1, np.int64)
    for start in range(0, len(counts), 1 << 22):
        having += np.bincount(counts[start : start + (1 << 22)], minlength=len(having))
    return having


def expected_slots(assembly: Assembly) -> Mapping[str, int]:
    """How many rows of each table the loader's feature buffer holds, before batches are known."""
    return {table.name: table.slots for table in assembly.plan().tables}
