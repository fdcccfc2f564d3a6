"""What a batch costs with each strategy that loads the same batches: `StrategyCost`.

`loader/strategy_choice.py` makes the plan of each strategy and asks here. Reading is predicted by
the simulated loads of the strategy's policy (`plan/simulation.py`) and the disk's two constants,
sampling by the batches that were drawn, and the rest by what a row takes (`plan/computing.py`).
Beside packs and windows, whose loads are known, `predict` serves all strategies.

When not to use it: for what a batch takes in fact. `gnndrive bench strategies` measures that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnndrive.buffer.devices.base import PIECES, PIECES_BYTES
from gnndrive.buffer.lease import RELEASE_STEPS
from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.ranking import Classes
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import lib
from gnndrive.common.plugins import find
from gnndrive.pipeline.extract import SWEEP_MAX
from gnndrive.plan.computing import (
    BESIDE,
    FILTER,
    HAND_OVER,
    HAND_OVER_S,
    LAND_BYTE_S,
    PROCESSORS,
    RECORDS,
    admit_seconds,
    gather_seconds,
    processors,
)
from gnndrive.plan.plan import Plan, TablePlan
from gnndrive.plan.planner import Planner
from gnndrive.plan.prediction import (
    NOT_OVERLAPPED,
    Loading,
    adjacency_seconds,
    loaded_rows,
)
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.plan.simulation import (
    ALL_AHEAD,
    BufferUse,
    CurvePoint,
    Simulated,
    miss_ratio,
    simulate,
)

CHAINS: tuple[tuple[str, ...], ...] = (
    ("admission", "disk", FILTER), ("gather", HAND_OVER), ("sampling",),
)  # fmt: skip
"""Parts of a batch's seconds. Those of a chain follow each other: a sweep is read once it is
admitted, a window's lists are filtered once they are read, a batch is gathered once the one before
is handed over. Chains overlap in part."""
FEW_DRAWN = "too few batches were drawn to fill the buffer: loads are estimated"

ClassesOf = Callable[[str, str], Classes | None]
"""Takes a score and a table's name; returns the classes of the table's rows."""


@dataclass(frozen=True, slots=True)
class StrategyCost:
    """What a batch costs with a strategy.

    Attributes:
        strategy: its name.
        seconds: what a batch keeps busy for how long, by part: "sampling", "disk", "admission",
            "gather", "hand-over" (from a batch's rows to the next one's), "processors" (all that
            computes, shared by the cores), "records" (writing and reading samples that were drawn
            ahead, which keeps the disk busy, too), "filter" (of the lists of windows).
        batches: batches of an epoch; None: not known.
        hit_share: the share of a batch's rows that need not be loaded; None: not known.
        same_batches: whether the batches are those of strategy "gnndrive".
        note: what to know of it; empty: nothing.
        refused: why it cannot run, with the remedy; empty: it can.
    """

    strategy: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    batches: int | None = None
    hit_share: float | None = None
    same_batches: bool = True
    note: str = ""
    refused: str = ""

    @property
    def batch_s(self) -> float:
        """Seconds that a batch is expected to take."""
        return batch_seconds(self.seconds)[0]

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch; None: its batches are not known."""
        return None if self.batches is None else self.batches * self.batch_s

    @property
    def bound_by(self) -> str:
        """The part that these seconds are due to; empty: nothing is known."""
        return batch_seconds(self.seconds)[1] if self.seconds else ""


def predict(
    name: str, request: PlanRequest, planner: Planner, loading: Loading,
    traces: Mapping[str, SampledTrace], classes_of: ClassesOf, batches: int | None,
) -> StrategyCost:  # fmt: skip
    """Say what a batch costs with a strategy that samples from the whole graph.

    Args:
        name: the strategy's.
        request, planner: of a loader with this strategy.
        loading: what a step of it costs by.
        traces: by the tables' names; those that are missing are not simulated.
        classes_of: the classes of rows.
        batches: of an epoch.

    Raises:
        ConfigError: the plan does not fit.
    """
    plan = planner.plan()
    loads = {
        table.name: buffer_loads(table, request, plan, loading, traces, classes_of)
        for table in plan.tables
    }
    seconds = part_seconds(request, plan, loading, loads)
    rows = {table.name: loading.counts(table)[0] for table in plan.tables}
    hits = sum(loads[each].hit_share * count for each, count in rows.items())
    note = "" if all(each.known for each in loads.values()) else FEW_DRAWN
    return StrategyCost(name, seconds, batches, hits / max(sum(rows.values()), 1), note=note)


def predict_curve(
    table: TablePlan, slots: Sequence[int], request: PlanRequest, planner: Planner,
    loading: Loading, traces: Mapping[str, SampledTrace], classes_of: ClassesOf,
) -> list[tuple[CurvePoint, float]]:  # fmt: skip
    """The miss-ratio curve of a table at some numbers of slots, with the seconds of a batch.

    Args:
        table: its trace must be there.
        slots: numbers of slots; those at which the trace is too short are left out.
        request, planner, loading, traces, classes_of: see `predict`.
    """
    plan, trace = planner.plan(), traces[table.name]
    use = buffer_use(table, request, loading)
    policy: type[Policy] = find("policies", use.policy)
    classes = None if policy.score is None else classes_of(policy.score, table.name)
    others = {
        each.name: buffer_loads(each, request, plan, loading, traces, classes_of)
        for each in plan.tables
        if each.name != table.name
    }
    points = miss_ratio(
        trace, use, table.row_bytes, request.store, table.name, classes, slots
    )  # fmt: skip
    found = []
    for point in points:
        here = Simulated(point.hit_share, point.loads, point.sweep)
        parts = part_seconds(
            request, _with_slots(plan, table.name, point.slots), loading,
            {**others, table.name: here},
        )  # fmt: skip
        found.append((point, batch_seconds(parts)[0]))
    return found


def part_seconds(
    request: PlanRequest, plan: Plan, loading: Loading, loads: Mapping[str, Simulated]
) -> dict[str, float]:
    """What a batch keeps busy for how long, by part, if it loads so much of each table."""
    drawn = loading.drawn
    disk_s = adjacency_seconds(plan, loading)
    rows = ranked = missing = loaded = nbytes = 0.0
    for table in plan.tables:
        found = loads[table.name]
        sweep = max(found.sweep, 1.0)
        disk_s += loading.disk.seconds(found.loads * sweep, table.rows, table.row_bytes) / sweep
        count = loading.counts(table)[0]
        rows, missing = rows + count, missing + found.loads
        ranked += count if table.slots < table.rows else 0
        loaded += found.loads * table.row_bytes
        nbytes += count * table.row_bytes
    cores, pace, sample_s = processors(), loading.pace, BESIDE * drawn.sample_s
    gather_s = pace * gather_seconds(rows, nbytes)
    admit_s = pace * admit_seconds(rows, missing, ranked)
    computing = sample_s + admit_s + gather_s + pace * (LAND_BYTE_S * loaded + HAND_OVER_S)
    return {
        "disk": disk_s,
        "sampling": sample_s / min(loading.threads, cores),
        "admission": admit_s,
        "gather": gather_s,
        HAND_OVER: pace * HAND_OVER_S,
        PROCESSORS: computing / cores,
        RECORDS: _record_seconds(request),
    }


def batch_seconds(parts: Mapping[str, float]) -> tuple[float, str]:
    """Seconds that a batch is expected to take, and the part that they are due to: by the longest
    chain and a share of the others, or by the processors, if these have more to do."""
    sums = {chain: sum(parts.get(name, 0.0) for name in chain) for chain in CHAINS}
    whole = sum(sums.values())
    terms = [(own + NOT_OVERLAPPED * (whole - own), chain) for chain, own in sums.items()]
    # No batch waits for its record, but records keep the disk busy.
    terms.append((terms[0][0] + parts.get(RECORDS, 0.0), (*CHAINS[0], RECORDS)))
    terms.append((parts.get(PROCESSORS, 0.0), (PROCESSORS,)))
    seconds, names = max(terms, key=lambda each: each[0])
    return seconds, max(names, key=lambda name: parts.get(name, 0.0))


def buffer_use(table: TablePlan, request: PlanRequest, loading: Loading) -> BufferUse:
    """How a loader uses the feature buffer of a table."""
    policy: type[Policy] = find("policies", request.policy)
    extracting, training = loading.queues
    # The queue has the batch that is admitted, too. A window of 1 would mean that nothing is known.
    window = extracting - 1 if extracting > 2 else extracting
    window = min(window, lib.GD_WINDOW_BATCHES) if policy.looks_ahead else 1
    ahead = request.superbatches
    of_edges = {each.name for each in request.tables if each.of_edges}
    if ahead is not None and policy.looks_ahead and table.name not in of_edges:
        most = ahead.most(request.planned)
        window = most if ahead.asked is not None else ALL_AHEAD
    sweep = min(min(loading.queues), loading.sweep or SWEEP_MAX)
    gathered = loading.counts(table)[0] * table.row_bytes
    # Of the host's pieces the last is half of a batch, which is released in `RELEASE_STEPS` steps:
    # about as many pieces as the first one goes into a batch.
    pieces = RELEASE_STEPS if gathered < PIECES_BYTES else round(1 / (1 - PIECES[0]))
    # A sweep joins once it has its places in the training queue; a batch more is being handed over.
    return BufferUse(request.policy, window, sweep, table.slots, training + 1, pieces)


def buffer_loads(
    table: TablePlan, request: PlanRequest, plan: Plan, loading: Loading,
    traces: Mapping[str, SampledTrace], classes_of: ClassesOf,
) -> Simulated:  # fmt: skip
    """What a batch loads of a table: simulated, or estimated if there is no trace that is long
    enough."""
    use, trace = buffer_use(table, request, loading), traces.get(table.name)
    if trace is not None:
        policy: type[Policy] = find("policies", use.policy)
        classes = None if policy.score is None else classes_of(policy.score, table.name)
        try:
            found = simulate(trace, use, request.store, table.name, classes)
        except ConfigError:
            found = Simulated(0.0, 0.0, 1.0, known=False)
        if found.known:
            return found
    loads = loaded_rows(plan, loading)[table.name]
    count = max(loading.counts(table)[0], 1)
    return Simulated(max(1 - loads / count, 0.0), loads, use.sweep, known=table.slots >= table.rows)


def _with_slots(plan: Plan, name: str, slots: int) -> Plan:
    """The plan with so many slots of a table."""
    tables = (replace(each, slots=slots) if each.name == name else each for each in plan.tables)
    return replace(plan, tables=tuple(tables))


def _record_seconds(request: PlanRequest) -> float:
    """Seconds to write a batch's sample and to read it again, if batches are sampled ahead."""
    ahead = request.superbatches
    return 0.0 if ahead is None else 2 * ahead.record_bytes(request.planned) * request.disk.byte_s
