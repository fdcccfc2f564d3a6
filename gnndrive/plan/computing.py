"""What computing takes of a batch, in seconds by its rows and bytes.

The constants are of one machine with two processors, on which all four stages of a loader were
busy. A stage that runs beside others takes longer than alone: they use the same caches, and the
event loop holds the GIL while it admits and releases rows. When not to use it: for what a stage
takes in fact; a loader's `stage_stats()` has that.
"""

from __future__ import annotations

import os

# Parts of a batch's seconds.
PROCESSORS, RECORDS, HAND_OVER, FILTER = "processors", "records", "hand-over", "filter"
COPY_ROW_S, COPY_BYTE_S = 3.2e-8, 8.2e-11  # seconds that a thread takes to copy a row, a byte
BESIDE = 1.4  # times longer a thread takes beside an event loop that admits and releases rows
# Seconds of the event loop for a row of a batch: to admit and to release it; beside that, if not
# all rows have a slot, to announce it and to give its slot to another one; to plan its read.
ADMIT_ROW_S, RANK_ROW_S, PLAN_ROW_S = 7.5e-8, 1.5e-7, 1e-7
LAND_BYTE_S = 1.5e-10  # seconds of one core that a byte takes from staging to its slot
FILTER_EDGE_S = 6e-9  # seconds of one core to filter an in-edge of a window
HAND_OVER_S = 1.5e-3  # seconds from a batch's rows to the next one's, however small they are


def processors(ranks: int = 1) -> int:
    """How many processors this process may use; several ranks, which may have some of their own
    each, use those of the host."""
    return len(os.sched_getaffinity(0)) if ranks == 1 else os.cpu_count() or 1


def copy_seconds(rows: float, nbytes: float) -> float:
    """Seconds that a thread takes to copy so many rows, which have so many bytes together."""
    return COPY_ROW_S * rows + COPY_BYTE_S * nbytes


def gather_seconds(rows: float, nbytes: float) -> float:
    """The same beside an event loop that admits and releases rows."""
    return BESIDE * copy_seconds(rows, nbytes)


def admit_seconds(rows: float, missing: float, ranked: float = 0.0) -> float:
    """Seconds of the event loop for so many rows of batches.

    Args:
        rows: how many.
        missing: how many of them are read.
        ranked: how many of them are of tables that have no slot for each row.
    """
    return ADMIT_ROW_S * rows + RANK_ROW_S * ranked + PLAN_ROW_S * missing
