"""How many rows a batch loads: a trace of drawn batches, replayed through scaled slot tables.

The replay (`plan/replay.py`) uses the policies, the rankings and the sweeps of a loader. So what it
says holds for each of them, and at each number of slots: `miss_ratio` makes the curve of hits over
bytes (the miss-ratio curve). It counts when the buffer is full. When not to use it: for batches
whose loads are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnndrive.buffer.feature_buffer import PART_ROWS
from gnndrive.buffer.lease import RELEASE_STEPS
from gnndrive.buffer.ranking import Classes
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import lib
from gnndrive.plan.costs import Loads
from gnndrive.plan.replay import Run, replay
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.store.reader import Store

BATCHES_MIN = 8  # that are counted behind those that fill the buffer
ALL_AHEAD = 1 << 16  # a window that reaches to the end of the trace
CURVE_POINTS = 16
CURVE_LEAST = 1 / 8  # of the buffer, the smallest of the curve


@dataclass(frozen=True, slots=True)
class BufferUse:
    """How a loader uses the feature buffer of a table.

    Attributes:
        policy: the policy's name.
        window: batches that are known behind the one that is admitted; 1: nothing is known.
        sweep: the most batches that are admitted together.
        slots: rows that the buffer holds.
        in_flight: batches that hold slots while a sweep is admitted, with its own.
        pieces: see `replay.Run`.
    """

    policy: str
    window: int
    sweep: int
    slots: int
    in_flight: int = 2
    pieces: int = RELEASE_STEPS


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of a miss-ratio curve.

    Attributes:
        slots: rows that the buffer holds.
        nbytes: their bytes.
        hit_share: the share of a batch's rows that need not be loaded.
        loads: rows that a batch loads.
        sweep: batches that are admitted together.
    """

    slots: int
    nbytes: int
    hit_share: float
    loads: float
    sweep: float


def simulate(
    trace: SampledTrace, use: BufferUse, store: Store, table: str, classes: Classes | None
) -> Loads:
    """Say what a batch takes.

    Args:
        trace: the rows of the table that drawn batches need.
        use: how the loader uses the buffer.
        store: the graph's store, for the policy.
        table: the table's name.
        classes: the classes of all rows of the table for the policy, or None.

    Raises:
        ConfigError: a batch has more rows than there are slots.
    """
    wanted = float(trace.wanted.mean())
    if use.slots >= trace.table_rows:
        return Loads(1.0, 0.0, float(use.sweep))
    slots = max(int(use.slots * trace.share), 1)
    foreseen = use.window > lib.GD_WINDOW_BATCHES
    window = len(trace) if use.window >= ALL_AHEAD else use.window
    if foreseen and window <= lib.GD_WINDOW_BATCHES:
        window = lib.GD_WINDOW_BATCHES + 1
    part_rows = max(int(PART_ROWS * trace.share), 1)
    run = Run(
        use.policy, window, slots, use.sweep, use.in_flight, use.pieces, part_rows, table
    )  # fmt: skip
    sampled = None if classes is None else classes[trace.kept]
    counts = replay(run, trace, store, sampled)
    # Near its end the trace says too little of what comes.
    end = len(trace) - (min(len(trace) // 4, 2 * BATCHES_MIN) if window > 1 else 0)
    full = trace.filled(slots)
    if full is None and trace.settled:  # all rows that batches ever need fit
        full = 3 * len(trace) // 4 - use.sweep
    full = len(trace) if full is None else min(full + use.sweep, len(trace))
    known = end - full >= BATCHES_MIN or not trace.rows
    sums = counts.between(full if known else max(end - BATCHES_MIN, 0), end)
    if not sums["batches"]:
        sums, known = counts.after(0), False
    share = sums["loads"] / max(sums["wanted"], 1)
    sweeps = sum(1 for _ in counts.batches)
    return Loads(1 - share, wanted * share, len(trace) / max(sweeps, 1), known)


def curve_slots(slots: int, rows: int) -> list[int]:
    """The numbers of slots of a curve: from a part of `slots` to all `rows`, about each as many
    times larger than the one before; `slots` is one of them."""
    if not slots or not rows:
        return []
    low = max(int(slots * CURVE_LEAST), 1)
    ratio = (rows / low) ** (1 / (CURVE_POINTS - 1)) if rows > low else 1.0
    points = {min(int(low * ratio**n), rows) for n in range(CURVE_POINTS - 1)}
    return sorted(points | {min(slots, rows), rows})


def miss_ratio(
    trace: SampledTrace, use: BufferUse, row_bytes: int, store: Store, table: str,
    classes: Classes | None, slots: Sequence[int],
) -> list[CurvePoint]:  # fmt: skip
    """The miss-ratio curve at some numbers of slots; those that hold no batch are left out.

    Args:
        trace, store, table, classes: see `simulate`.
        use: how the loader uses the buffer, whose slots do not count.
        row_bytes: bytes of a row.
        slots: numbers of slots.
    """
    points = []
    for count in slots:
        try:
            found = simulate(trace, replace(use, slots=count), store, table, classes)
        except ConfigError:
            continue
        if found.known:
            points.append(
                CurvePoint(count, count * row_bytes, found.hit_share, found.loads, found.sweep)
            )
    return points
