"""What the parts of a step cost in seconds, and how long they take together.

In a step each rank of a host gets a batch. The constants of computing are of one machine with two
processors, on which all four stages of a loader were busy. A stage that runs beside others takes
longer than alone: they use the same caches, and the event loop holds the GIL while it admits and
releases rows. When not to use it: for what a stage takes in fact; a loader's `stage_stats()` has
that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

SAMPLING, DISK, ADMISSION, GATHER = "sampling", "disk", "admission", "gather"
HAND_OVER = "hand-over"  # from a batch's rows to the next one's
FILTER = "filter"  # of the lists of windows
NET, COMPUTE = "net", "compute"
RECORDS = "records"  # writing and reading samples that were drawn ahead
PROCESSORS = "processors"  # all that computes, shared by the cores
CHAINS: tuple[tuple[str, ...], ...] = (
    (ADMISSION, DISK, FILTER), (NET,), (GATHER, HAND_OVER), (SAMPLING,), (COMPUTE,),
)  # fmt: skip
"""Parts of a step. Those of a chain follow each other: a sweep is read once it is admitted, a
window's lists are filtered once they are read, a batch is gathered once the one before is handed
over. Chains overlap in part."""
NOT_OVERLAPPED = 1 / 3
"""Share of the chains beside the longest one that does not overlap with it. On two processors, 10 M
nodes, 5 GB: one process, two ranks that share a buffer and two that do not were within 8 %
(bench/ranks.py); docs/tasks/strategies.md has what strategies of one process are within."""
COPY_ROW_S, COPY_BYTE_S = 3.2e-8, 8.2e-11  # seconds that a thread takes to copy a row, a byte
BESIDE = 1.4  # times longer a thread takes beside an event loop that admits and releases rows
# Seconds of the event loop for a row of a batch: to admit and to release it; beside that, if not
# all rows have a slot, to announce it and to give its slot to another one; to plan its read.
ADMIT_ROW_S, RANK_ROW_S, PLAN_ROW_S = 7.5e-8, 1.5e-7, 1e-7
LAND_BYTE_S = 1.5e-10  # seconds of one core that a byte takes from staging to its slot
FILTER_EDGE_S = 6e-9  # seconds of one core to filter an in-edge of a window
LONG_READ_BYTES = 256 << 10  # of one request of a long read
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
    """Seconds of the event loop for so many rows of batches, of which `missing` are read and
    `ranked` are of tables that have no slot for each row."""
    return ADMIT_ROW_S * rows + RANK_ROW_S * ranked + PLAN_ROW_S * missing


@dataclass(frozen=True, slots=True)
class Loads:
    """What a batch loads of a table on average, when the buffer is full.

    Attributes:
        hit_share: the share of its rows that need not be loaded.
        loads: rows that it loads.
        sweep: batches that are admitted together.
        known: whether this was counted over enough batches; if not, it is an estimate.
    """

    hit_share: float
    loads: float
    sweep: float
    known: bool = True


def combined(parts: Mapping[str, float]) -> tuple[float, str]:
    """Seconds that a step is expected to take, and the part that they are due to: by the longest
    chain and a share of the others, or by the processors, if these have more to do."""
    sums = {chain: sum(parts.get(name, 0.0) for name in chain) for chain in CHAINS}
    whole = sum(sums.values())
    terms = [(own + NOT_OVERLAPPED * (whole - own), chain) for chain, own in sums.items()]
    # No batch waits for its record, but records keep the disk busy.
    terms.append((terms[0][0] + parts.get(RECORDS, 0.0), (*CHAINS[0], RECORDS)))
    terms.append((parts.get(PROCESSORS, 0.0), (PROCESSORS,)))
    seconds, names = max(terms, key=lambda each: each[0])
    return seconds, max(names, key=lambda name: parts.get(name, 0.0))
