"""What a batch costs if it is replayed from a pack, or sampled inside windows: loads are known.

`packed_cost` and `partitioned_cost` ask the folders, `unpacked_cost` says what a pack would give
that is not there yet. When not to use it: for batches that are sampled from the whole graph
(`plan/strategy_costs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array
from gnndrive.plan.costs import (
    ADMISSION,
    BESIDE,
    DISK,
    FILTER,
    FILTER_EDGE_S,
    GATHER,
    HAND_OVER,
    HAND_OVER_S,
    LAND_BYTE_S,
    PROCESSORS,
    SAMPLING,
    admit_seconds,
    gather_seconds,
    processors,
    replayed_seconds,
)
from gnndrive.plan.packed import PackSlots
from gnndrive.plan.partitioned import WindowSlots
from gnndrive.plan.planner import Planner
from gnndrive.plan.prediction import Loading
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.plan.strategy_costs import StrategyCost

READ_BYTES = 256 << 10  # of one request of a long read
RECORDED = "recorded: the same epochs again and again"
INSIDE = "batches are smaller: neighbours outside their window are left out"


def packed_cost(name: str, planner: Planner, pace: float, batches: int | None) -> StrategyCost:
    """What a batch of a pack costs; see `plan/pace.py`.

    Raises:
        ConfigError: the plan does not fit.
    """
    plan, slots = planner.plan(), planner.slots
    assert isinstance(slots, PackSlots)
    seconds, hit_share = slots.batch_seconds(plan, pace)
    return StrategyCost(name, seconds, batches, hit_share, same_batches=False, note=RECORDED)


def unpacked_cost(
    name: str, request: PlanRequest, planner: Planner, loading: Loading,
    traces: Mapping[str, SampledTrace], batches: int | None, command: str,
) -> StrategyCost:  # fmt: skip
    """What a batch of a pack would cost.

    Args:
        name: the strategy's.
        request, planner, loading: of a loader that draws the batches.
        traces: by the tables' names.
        batches: of an epoch.
        command: what packs.

    Raises:
        ConfigError: the plan does not fit, or no trace says how often rows are used.
    """
    plan, read = planner.plan(), 0.0
    hits = wanted = nbytes = 0.0
    for table in plan.tables:
        trace = traces.get(table.name)
        if trace is None:
            raise ConfigError("there is no pack, and too little is known to say what one gives")
        # The hottest rows stay; how often rows are used is counted in the trace itself.
        counts = np.bincount(trace.ids, minlength=trace.rows)
        slots = int(table.slots * trace.share)
        share = float(np.sort(counts)[::-1][:slots].sum() / max(counts.sum(), 1))
        count = float(trace.wanted.mean())
        hits, wanted = hits + share * count, wanted + count
        read += (1 - share) * count * table.row_bytes
        nbytes += count * table.row_bytes
    disk_s = _long_reads(read, request)
    seconds = replayed_seconds(disk_s, wanted, nbytes, read, loading.pace)
    note = f"if packed, with {command}; {RECORDED}"
    return StrategyCost(
        name, seconds, batches, hits / max(wanted, 1), same_batches=False, note=note
    )


def partitioned_cost(
    name: str, request: PlanRequest, planner: Planner, pace: float,
    windows: Iterable[Int32Array | None], batches: int,
) -> StrategyCost:  # fmt: skip
    """What a batch inside a window costs.

    Args:
        name: the strategy's.
        request, planner: the loader's.
        pace: see `plan/pace.py`.
        windows: the partitions of each window of an epoch.
        batches: of an epoch.

    Raises:
        ConfigError: the plan does not fit, or no batch was drawn.
    """
    assert isinstance(planner.slots, WindowSlots)
    plan, sizes = planner.plan(), planner.slots.windows
    partitioned, drawn = sizes.partitioned, sizes.drawn
    if drawn is None:
        raise ConfigError("how large batches are is not known before one is drawn: give memory=")
    nodes, codes = np.diff(partitioned.bounds), np.diff(partitioned.edge_bounds)
    (table,) = plan.tables
    rows, edges, before = float(sizes.static), 0.0, set[int]()
    for window in windows:
        there = set() if window is None else set(window.tolist())
        rows += float(nodes[list(there - before)].sum())
        edges += float(codes[list(there)].sum())
        before = there
    batches = max(batches, 1)
    rows, edges = rows / batches, edges / batches
    read = rows * table.row_bytes + edges * partitioned.indices.row_bytes
    count, sample_s = drawn.together.get(table.name, (0,))[0], BESIDE * drawn.sample_s
    cores, gather_s = processors(), pace * gather_seconds(count, count * table.row_bytes)
    admit_s, filter_s = pace * admit_seconds(count, rows), pace * FILTER_EDGE_S * edges
    computing = sample_s + gather_s + admit_s + filter_s
    computing += pace * (HAND_OVER_S + LAND_BYTE_S * rows * table.row_bytes)
    seconds = {
        DISK: _long_reads(read, request),
        FILTER: filter_s,
        SAMPLING: sample_s / min(planner.stages.samplers, cores),
        ADMISSION: admit_s,
        GATHER: gather_s,
        HAND_OVER: pace * HAND_OVER_S,
        PROCESSORS: computing / cores,
    }
    note = f"{INSIDE} ({sizes.kept:.0%} of the edges to a window's nodes are inside)"
    return StrategyCost(name, seconds, batches, None, same_batches=False, note=note)


def _long_reads(nbytes: float, request: PlanRequest) -> float:
    """Seconds of reading so many bytes in long reads."""
    return nbytes / READ_BYTES * request.disk.request_s + nbytes * request.disk.byte_s
