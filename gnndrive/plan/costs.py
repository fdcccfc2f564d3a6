"""What a step costs with a plan, in seconds by part, and how long the parts take together.

In a step, each rank of a host gets one batch; all of them read from one disk. `part_seconds` says
what a step keeps busy, by how many rows a batch loads: `counted` by a formula, or replayed
(`plan/replay.py`). For the formula, how many rows several drawn batches need together says how
large a sweep fits the buffer, how much of the next sweep is there already, and how dense the rest
lies in the file.

The constants of computing are of one machine with two processors, on which all four stages of a
loader were busy. A stage that runs beside others takes longer than alone: they use the same caches,
and the event loop holds the GIL while it admits and releases rows. It is a model for comparing
plans, not a promise: it knows neither training nor other users of the disk. A loader's
`stage_stats()` says what a stage takes in fact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from statistics import fmean
from typing import Any, Self

from gnndrive.pipeline.extract import SWEEP_MAX
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import AttributeFile, Plan, StageCounts, TablePlan
from gnndrive.sampling.topologies.base import GraphSize
from gnndrive.store.calibration import checked_gap, load_calibration
from gnndrive.store.reader import Store

SAMPLING, DISK, ADMISSION, GATHER = "sampling", "disk", "admission", "gather"
ATTRIBUTES = "attributes"  # reading rows of the files that memory has no room for
HAND_OVER = "hand-over"  # from a batch's rows to the next one's
FILTER = "filter"  # of the lists of windows
NET, COMPUTE = "net", "compute"
RECORDS = "records"  # what is written and read beside batches: samples, copies of rows
COPIES = "copies"  # waiting for copies of rows that are not made yet
PROCESSORS = "processors"  # all that computes, shared by the cores
CHAINS: tuple[tuple[str, ...], ...] = (
    (ADMISSION, DISK, FILTER), (NET,), (GATHER, ATTRIBUTES, HAND_OVER), (SAMPLING,), (COMPUTE,),
)  # fmt: skip
"""Parts of a step. Those of a chain follow each other: a sweep is read once it is admitted, a
window's lists are filtered once they are read, a batch is gathered, and then its attributes read,
once the one before is handed over. Chains overlap in part."""
NOT_OVERLAPPED = 1 / 3
"""Share of the chains beside the longest one that does not overlap with it. On two processors, 10 M
nodes, 5 GB: one process, two ranks that share a buffer and two that do not were within 8 %
(bench/ranks.py); docs/measurements.md has what strategies of one process are within."""
COPY_ROW_S, COPY_BYTE_S = 3.2e-8, 8.2e-11  # seconds that a thread takes to copy a row, a byte
BESIDE = 1.4  # times longer a thread takes beside an event loop that admits and releases rows
# Seconds of the event loop for a row of a batch: to admit and to release it; beside that, if not
# all rows have a slot, to announce it and to give its slot to another one; to plan its read.
ADMIT_ROW_S, RANK_ROW_S, PLAN_ROW_S = 7.5e-8, 1.5e-7, 1e-7
LAND_BYTE_S = 1.5e-10  # seconds of one core that a byte takes from staging to its slot
FILTER_EDGE_S = 6e-9  # seconds of one core to filter an in-edge of a window
LONG_READ_BYTES = 256 << 10  # of one request of a long read
HAND_OVER_S = 1.5e-3  # seconds from a batch's rows to the next one's, however small they are
REQUEST_S, BYTE_S = 5.5e-6, 0.48e-9  # an SSD's, used without a calibration
WRITTEN = 1.5  # times the seconds of a byte that is read, for a written one if that is not measured
FALL_OVER = 4  # batches over which the fall of the share of new rows is taken
HOP_GROWTH_MIN = 2.0  # a hop has at least so many times the nodes of the one before
SECTOR_BYTES = 512


def processors(ranks: int = 1) -> int:
    """How many processors this process may use, or with several ranks all those of the host."""
    return len(os.sched_getaffinity(0)) if ranks == 1 else os.cpu_count() or 1


def copy_seconds(rows: float, nbytes: float) -> float:
    """Seconds that a thread takes to copy so many rows, which have so many bytes together."""
    return COPY_ROW_S * rows + COPY_BYTE_S * nbytes


@dataclass(frozen=True, slots=True)
class Loads:
    """What a batch loads of a table on average, when the buffer is full; `sweep` batches are
    admitted together. Unless `known`, this is an estimate, over too few batches."""

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
    disk_s, records_s = parts.get(DISK, 0.0), parts.get(RECORDS, 0.0)
    busy_s = disk_s + records_s + NOT_OVERLAPPED * (whole - disk_s)
    terms.append((busy_s, (DISK, RECORDS)))
    terms.append((parts.get(PROCESSORS, 0.0), (PROCESSORS,)))
    seconds, names = max(terms, key=lambda each: each[0])
    names = (*names, COPIES)
    return seconds + parts.get(COPIES, 0.0), max(names, key=lambda name: parts.get(name, 0.0))


# ---- by how many rows batches load


@dataclass(frozen=True, slots=True)
class Disk:
    """The seconds of a request, of a byte, and of a written byte (None: not measured); rows at most
    `gap_bytes` apart are read in one. The rows of tables are read from so many `disks`, which are
    taken to be alike."""

    request_s: float = REQUEST_S
    byte_s: float = BYTE_S
    gap_bytes: int = 8192
    write_byte_s: float | None = None
    disks: int = 1

    @classmethod
    def of_store(
        cls, store: Store, gap: str | int | None, block_bytes: int, disks: int = 1
    ) -> Self:
        """What reads of a store cost, by its calibration if there is one, for a loader's `gap=`."""
        cost = load_calibration(store)
        found = cls(gap_bytes=checked_gap(gap, store, block_bytes), disks=disks)
        if cost is None:
            return found
        return replace(
            found, request_s=cost.request_s, byte_s=cost.byte_s, write_byte_s=cost.write_byte_s
        )

    @property
    def of_rows(self) -> Disk:
        """What reads of the rows of tables cost."""
        each = self.request_s / self.disks, self.byte_s / self.disks
        return replace(self, request_s=each[0], byte_s=each[1])

    def seconds(self, wanted: float, rows: int, row_bytes: int) -> float:
        """Seconds of one sorted pass for `wanted` rows that lie at random among `rows`."""
        density = min(wanted / max(rows, 1), 1.0)
        if not density:
            return 0.0
        bridged = self.gap_bytes // max(row_bytes, 1)
        apart = (1 - density) ** (bridged + 1)  # the share of rows with a wider gap behind them
        requests = wanted * apart + 1
        # The mean of a geometric gap, cut off at `bridged`.
        gaps = (1 - apart) * (1 - density) / density - (bridged + 1) * apart * (1 - density)
        nbytes = wanted * row_bytes + max(gaps, 0.0) * wanted * row_bytes + requests * SECTOR_BYTES
        return requests * self.request_s + min(nbytes, rows * row_bytes) * self.byte_s

    def long_reads(self, nbytes: float) -> float:
        """Seconds of reading so many bytes in long reads."""
        return nbytes / LONG_READ_BYTES * self.request_s + nbytes * self.byte_s

    def long_writes(self, nbytes: float) -> float:
        """Seconds of writing so many bytes in long writes."""
        return nbytes * (WRITTEN * self.byte_s if self.write_byte_s is None else self.write_byte_s)


def distinct_rows(together: Sequence[int], batches: float, rows: int) -> float:
    """Distinct rows, of `rows`, that any number of batches from 0 on need together, by those that
    the first one that was drawn, the first two, … need `together`."""
    points = [0, *together]
    if batches < len(together):
        below = int(batches)
        return points[below] + (batches - below) * (points[below + 1] - points[below])
    # Beyond those that were drawn: each batch brings a share of the rows that no batch had before.
    # The share falls with a power of the batch's number, because the rows that are left are needed
    # less often. For up to 100 batches of two kinds of graphs, that is right within 10 %.
    shares = [(after - before) / max(rows - before, 1) for before, after in pairwise(points)]
    share, back = shares[-1], min(len(shares) - 1, FALL_OVER)
    last, power = len(together) - 0.5, 0.0  # the middle of the last batch
    if back and 0 < share < shares[-1 - back]:
        power = log(shares[-1 - back] / share) / log(last / (last - back))
    ratio = (last + batches - len(together)) / last
    # The integral of x to the power of minus `power`, from 1 to `ratio`.
    integral = log(ratio) if power == 1 else (ratio ** (1 - power) - 1) / (1 - power)
    sum_of_shares = share * last * integral
    left = max(rows - together[-1], 0)
    return together[-1] + left * (1 - exp(-sum_of_shares))


def batches_held(together: Sequence[int], slots: int, rows: int) -> float:
    """How many batches' rows `slots` slots hold."""
    low, high = 0.0, 1.0
    if slots >= rows:
        return float("inf")
    while distinct_rows(together, high, rows) < slots and high < 1e6:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        if distinct_rows(together, middle, rows) < slots:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Loading:
    """What a step costs by, beside the plan. `sizes` are those of the graph, one for each edge
    type; `sweep` is the most batches that are read together, None: as many as fit; `pace` is 1
    where plans are compared, see `measure_pace`."""

    drawn: DrawnBatches
    sizes: Sequence[GraphSize]
    disk: Disk
    stages: StageCounts
    sweep: int | None
    looks_ahead: bool
    pace: float = 1.0
    attributes: Sequence[AttributeFile] = ()

    def counts(self, table: TablePlan) -> tuple[int, ...]:
        """Distinct rows of a table that the first batch, the first two, … need together."""
        return self.drawn.together.get(table.name, (0,))


def counted(plan: Plan, loading: Loading) -> dict[str, Loads]:
    """What a batch loads of each table, by the rows that the drawn batches need together. A formula
    takes no time, so `make_planner` compares all its plans by it."""
    stages = loading.stages
    sharing = plan.ranks if plan.shared else 1  # whose batches share sweeps and look-ahead
    together = min(sharing * stages.swept, loading.sweep or SWEEP_MAX)
    while together > 1 and any(
        distinct_rows(loading.counts(each), together, each.rows) > each.slots
        for each in plan.tables
    ):
        together -= 1
    # Samples that the policy knows behind such a sweep.
    queued = max(sharing * stages.extracting_queue - together, 0) * loading.looks_ahead
    found = dict[str, Loads]()
    for table in plan.tables:
        loads = _missing(table, loading, together, queued) / together
        hits = max(1 - loads / max(loading.counts(table)[0], 1), 0.0)
        found[table.name] = Loads(hits, loads, together, known=table.held >= table.rows)
    return found


def part_seconds(
    plan: Plan, loading: Loading, loads: Mapping[str, Loads], records_s: float = 0.0
) -> dict[str, float]:
    """What a step keeps busy for how long, by part, if its batches load so much of each table."""
    ranks, cores, pace = plan.ranks, processors(plan.ranks), loading.pace
    at_once = min(ranks, cores)
    disk_s = adjacency_seconds(plan, loading) + features_seconds(plan, loading, loads)
    rows = ranked = nbytes = 0.0
    for table in plan.tables:
        count = loading.counts(table)[0]
        rows, nbytes = rows + count, nbytes + count * table.row_bytes
        ranked += count if table.slots < table.rows else 0
    missing = sum(loads[table.name].loads for table in plan.tables)
    loaded = sum(loads[table.name].loads * table.row_bytes for table in plan.tables)
    sample_s = BESIDE * loading.drawn.sample_s
    gather_s = pace * (BESIDE * copy_seconds(rows, nbytes))
    admit_s = pace * (ADMIT_ROW_S * rows + RANK_ROW_S * ranked + PLAN_ROW_S * missing)
    computing = sample_s + admit_s + gather_s + pace * (LAND_BYTE_S * loaded + HAND_OVER_S)
    return {
        DISK: ranks * disk_s,
        SAMPLING: ranks * sample_s / min(ranks * loading.stages.threads, cores),
        ADMISSION: ranks * admit_s / (1 if plan.shared else at_once),
        GATHER: ranks * gather_s / at_once,
        ATTRIBUTES: ranks * attributes_seconds(plan, loading),
        HAND_OVER: pace * HAND_OVER_S,
        PROCESSORS: ranks * computing / cores,
        RECORDS: ranks * records_s,
    }


def step_seconds(plan: Plan, loading: Loading) -> dict[str, float]:
    """What a step keeps busy for how long, by part, with loads that are `counted`."""
    return part_seconds(plan, loading, counted(plan, loading))


def features_seconds(
    plan: Plan, loading: Loading, loads: Mapping[str, Loads], hosts: int = 1
) -> float:
    """Seconds a batch of reading rows on one host. If several read equal parts side by side, the
    plan is of one feature buffer that has all their slots and serves all their ranks."""
    seconds = 0.0
    for table in plan.tables:
        found = loads[table.name]
        sweep = max(found.sweep, 1.0)
        wanted, rows = found.loads * sweep / hosts, table.rows // hosts
        seconds += loading.disk.of_rows.seconds(wanted, rows, table.row_bytes) / sweep
    return seconds


def attributes_seconds(plan: Plan, loading: Loading) -> float:
    """Seconds a batch of reading rows of the attributes that are not mapped, in planned reads."""
    sizes, seconds = loading.drawn.sizes, 0.0
    for file in loading.attributes:
        if file.name in plan.fetched and sizes:
            counts: Iterable[Mapping[Any, int]] = (
                each.edges if file.of_edges else each.nodes for each in sizes
            )
            wanted = fmean(each[file.type] for each in counts)
            computing = PLAN_ROW_S * wanted + copy_seconds(wanted, wanted * file.row_bytes)
            seconds += loading.disk.seconds(wanted, file.rows, file.row_bytes)
            seconds += loading.pace * computing
    return seconds


def adjacency_seconds(plan: Plan, loading: Loading) -> float:
    """Seconds a batch of reading adjacency, if it is on disk; samples that are drawn together share
    each pass, and the lists of a neighbour cache are not read."""
    topology, samplers = plan.topology, loading.stages.threads
    if not topology.has_ring:
        return 0.0
    nbytes = sum(size.indices_bytes for size in loading.sizes)
    missing = 1 - min(topology.cache_bytes / max(nbytes, 1), 1.0) ** 0.5
    lists = sum(size.nodes for size in loading.sizes)
    list_bytes, seconds = max(nbytes // max(lists, 1), 1), 0.0
    # Each hop is a pass. How many nodes it has is taken from the last one, which has the most.
    nodes = loading.drawn.mean_nodes() if loading.drawn.sizes else 0.0
    growth = max(nodes / max(loading.drawn.expanded, 1.0), HOP_GROWTH_MIN)
    of_hop = loading.drawn.expanded * (1 - 1 / growth)
    while of_hop >= 1:
        wanted = min(samplers * of_hop, lists) * missing
        seconds += loading.disk.seconds(wanted, lists, list_bytes) / samplers
        of_hop /= growth
    return seconds


def _missing(table: TablePlan, loading: Loading, together: int, queued: int) -> float:
    """Rows that a sweep of `together` batches finds missing.

    Without look-ahead, a slot that is given up holds a row that the queued batches need as often as
    any row that has no slot. With it, such rows stay, and are not read again.
    """
    counts, rows, there = loading.counts(table), table.rows, table.held
    if there >= rows or not counts[-1]:
        return 0.0
    held = batches_held(counts, there, rows)
    missing = max(distinct_rows(counts, held + together, rows) - there, 0.0)
    needed = max(distinct_rows(counts, held + queued, rows) - there, 0.0)
    return missing * (1 - min(needed / (rows - there), 1.0))
