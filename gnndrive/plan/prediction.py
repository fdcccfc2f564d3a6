"""What a step costs with a plan: seconds of reading and sampling, for choosing among plans.

The two constants of the disk (`gnndrive bench disk`) and the batches that were drawn say it: how
many rows several batches need together says how large a sweep fits the buffer, how much of the next
sweep is there already, and how dense the rest lies in the file. In a step, each rank of the host
gets one batch; all of them read from one disk. It is a model for comparing plans of one loader, not
a promise: it knows neither training nor other users of the disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp

from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import Plan, TablePlan
from gnndrive.sampling.topologies.base import GraphSize

REQUEST_S, BYTE_S = 5.5e-6, 0.48e-9  # an SSD's, used without a calibration
LOOK_AHEAD_GAIN = 0.04  # share of the reads that each queued sample saves by look-ahead
LOOK_AHEAD_MAX = 6
SWEEP_MAX = 4
FALL_OVER = 4  # batches over which the fall of the share of new rows is taken
SAMPLING_SHARE = 2  # a sampler is busy half of the time, so that batches of any size never wait
COPY_BYTE_S = 2.5e-10  # seconds that one thread takes to gather a byte
SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Disk:
    """What reads cost.

    Attributes:
        request_s: seconds of a request.
        byte_s: seconds of a byte.
        gap_bytes: rows with at most so many bytes between them are read in one request.
    """

    request_s: float = REQUEST_S
    byte_s: float = BYTE_S
    gap_bytes: int = 8192

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


def distinct_rows(together: Sequence[int], batches: float, rows: int) -> float:
    """Distinct rows that `batches` batches need together, by those that were drawn.

    Args:
        together: distinct rows of the first batch, the first two, ….
        batches: any number from 0 on.
        rows: rows of the table.
    """
    points = [0, *together]
    if batches < len(together):
        below = int(batches)
        return points[below] + (batches - below) * (points[below + 1] - points[below])
    # Beyond those that were drawn: each batch brings a share of the rows that no batch had before,
    # and the share falls from batch to batch, because the rows that are left are needed less often.
    shares = [(after - before) / max(rows - before, 1) for before, after in pairwise(points)]
    share, back = shares[-1], min(len(shares) - 1, FALL_OVER)
    fall = 1.0
    if back and shares[-1 - back] > 0:
        fall = min((share / shares[-1 - back]) ** (1 / back), 1.0)
    more = batches - len(together)
    sum_of_shares = share * (more if fall == 1 else (1 - fall**more) / (1 - fall))
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
    """What a step costs by, beside the plan.

    Attributes:
        drawn: what is known of the batches.
        sizes: the sizes of the graph, one for each edge type.
        disk: what reads cost.
        samplers: sampling threads of a rank.
        queues: bounds of a rank's extracting and training queue.
        sweep: the most batches that are read together; None: as many as fit.
        looks_ahead: whether the policy knows the queued samples.
    """

    drawn: DrawnBatches
    sizes: Sequence[GraphSize]
    disk: Disk
    samplers: int
    queues: tuple[int, int]
    sweep: int | None
    looks_ahead: bool

    @property
    def threads(self) -> int:
        """Batches that a rank samples at once."""
        return min(self.samplers, self.queues[0])

    def counts(self, table: TablePlan) -> tuple[int, ...]:
        """Distinct rows of a table that the first batch, the first two, … need together."""
        return self.drawn.together.get(table.name, (0,))


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """What a step, a batch for each rank of the host, keeps busy for how long.

    Attributes:
        sample_s: seconds of the sampling threads, side by side.
        disk_s: seconds of the disk.
        gather_s: seconds of gathering rows, one thread a rank.
    """

    sample_s: float
    disk_s: float
    gather_s: float

    @property
    def cost(self) -> float:
        """What plans are compared by: the busiest part, with samplers that have time to spare."""
        return max(self.disk_s, SAMPLING_SHARE * self.sample_s, self.gather_s)


def step_seconds(plan: Plan, loading: Loading) -> StepSeconds:
    """Predict what a step costs with a plan and its number of ranks."""
    ranks, cores = plan.ranks, os.cpu_count() or 1
    gathered = sum(loading.counts(each)[0] * each.row_bytes for each in plan.tables)
    return StepSeconds(
        ranks * loading.drawn.sample_s / min(ranks * loading.threads, cores),
        ranks * (features_seconds(plan, loading) + adjacency_seconds(plan, loading)),
        ranks * COPY_BYTE_S * gathered / min(ranks, cores),
    )


def features_seconds(plan: Plan, loading: Loading, hosts: int = 1) -> float:
    """Seconds a batch of reading rows on one host.

    Args:
        plan: the plan. With several hosts: of one feature buffer that has all their slots and
            serves all their ranks.
        loading: what it costs by.
        hosts: hosts that have an equal part of the rows each and read it side by side.
    """
    together, seconds = _together(plan, loading), 0.0
    for table in plan.tables:
        missing = _missing(table, loading, together) / hosts
        seconds += loading.disk.seconds(missing, table.rows // hosts, table.row_bytes) / together
    return seconds * _share_read(plan, loading)


def loaded_rows(plan: Plan, loading: Loading) -> dict[str, float]:
    """Rows of each table that a batch loads, because they are not in the feature buffer."""
    together, share = _together(plan, loading), _share_read(plan, loading)
    return {
        table.name: share * _missing(table, loading, together) / together for table in plan.tables
    }


def adjacency_seconds(plan: Plan, loading: Loading) -> float:
    """Seconds a batch of reading adjacency, if it is on disk; samples that are drawn together share
    each pass, and the lists of a neighbour cache are not read."""
    topology, samplers = plan.topology, loading.threads
    if topology is None or not topology.has_ring:
        return 0.0
    nbytes = sum(size.indices_bytes for size in loading.sizes)
    missing = 1 - min(topology.cache_bytes / max(nbytes, 1), 1.0) ** 0.5
    lists = sum(size.nodes for size in loading.sizes)
    wanted = min(samplers * loading.drawn.expanded, lists) * missing
    return loading.disk.seconds(wanted, lists, max(nbytes // max(lists, 1), 1)) / samplers


def _sharing(plan: Plan) -> int:
    """Ranks whose batches share sweeps and look-ahead."""
    return plan.ranks if plan.shared else 1


def _together(plan: Plan, loading: Loading) -> int:
    """The number of batches in a sweep."""
    together = min(_sharing(plan) * min(loading.queues), loading.sweep or SWEEP_MAX)
    while together > 1 and not all(_holds(each, loading, together) for each in plan.tables):
        together -= 1
    return together


def _holds(table: TablePlan, loading: Loading, batches: int) -> bool:
    return distinct_rows(loading.counts(table), batches, table.rows) <= table.slots


def _missing(table: TablePlan, loading: Loading, together: int) -> float:
    """Rows that a sweep of `together` batches finds missing."""
    counts = loading.counts(table)
    if table.slots >= table.rows or not counts[-1]:
        return 0.0
    held = batches_held(counts, table.slots, table.rows)
    return max(distinct_rows(counts, held + together, table.rows) - table.slots, 0.0)


def _share_read(plan: Plan, loading: Loading) -> float:
    """The share of the missing rows that is left with look-ahead."""
    if not loading.looks_ahead or plan.holds_everything:
        return 1.0
    return 1 - LOOK_AHEAD_GAIN * min(_sharing(plan) * loading.queues[0], LOOK_AHEAD_MAX)
