"""What a batch costs with each strategy that loads the same batches: `StrategyCost`.

`loader/strategy_choice.py` makes the plan of each strategy and asks here; what all predictions for
a loader share is `Known`. Reading is predicted by
the simulated loads of the strategy's policy (`plan/simulation.py`) and the disk's two constants,
sampling by the batches that were drawn, and the rest by what a row takes (`plan/costs.py`).
`predict` serves all strategies that sample from the whole graph; others know their loads.

When not to use it: for what a batch takes in fact. `gnndrive bench strategies` measures that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnndrive.buffer.devices.base import PIECES, PIECES_BYTES
from gnndrive.buffer.lease import RELEASE_STEPS
from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.ranking import Classes
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.ffi import lib
from gnndrive.common.plugins import find
from gnndrive.common.records import NodeKey
from gnndrive.pipeline.extract import SWEEP_MAX
from gnndrive.plan.choice import loading_of
from gnndrive.plan.costs import Loads, combined
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import Plan, TablePlan
from gnndrive.plan.planner import Planner
from gnndrive.plan.prediction import Loading, counted, part_seconds
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.plan.simulation import (
    ALL_AHEAD,
    BufferUse,
    CurvePoint,
    miss_ratio,
    simulate,
)
from gnndrive.store.reader import Store
from gnndrive.store.row_classes import kept_classes, row_classes

FEW_DRAWN = "too few batches were drawn to fill the buffer: loads are estimated"
OWN = "predicted as if its batches needed the rows of those that were drawn"

ClassesOf = Callable[[str, str], Classes | None]
"""Takes a score and a table's name; returns the classes of the table's rows."""


@dataclass(frozen=True, slots=True)
class StrategyCost:
    """What a batch costs with a strategy.

    Attributes:
        strategy: its name.
        seconds: what a batch keeps busy for how long, by part; see `plan/costs.py`.
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
        return combined(self.seconds)[0]

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch; None: its batches are not known."""
        return None if self.batches is None else self.batches * self.batch_s

    @property
    def bound_by(self) -> str:
        """The part that these seconds are due to; empty: nothing is known."""
        return combined(self.seconds)[1] if self.seconds else ""


@dataclass(frozen=True)
class Known:
    """What all predictions for a loader share.

    Attributes:
        traces: by the tables' names; those that are missing are not simulated.
        types: table name → its node type, without tables of edges.
        drawn: what is known of the batches.
        pace: see `plan/pace.py`.
        batches: of an epoch; None: not known.
        store: the graph.
        classes: of rows, by score and table, as far as they were asked for.
    """

    traces: Mapping[str, SampledTrace]
    types: Mapping[str, NodeKey]
    drawn: DrawnBatches
    pace: float
    batches: int | None
    store: Store
    classes: dict[tuple[str, str], Classes | None] = field(default_factory=dict)

    def loading(self, request: PlanRequest, planner: Planner) -> Loading:
        """What a step of a loader costs by."""
        return loading_of(request, planner, self.drawn, self.pace)

    def classes_of(self, score: str, table: str) -> Classes | None:
        """The classes of a table's rows; None: it is of edges, or the graph cannot be read. A score
        that reads the graph several times is not computed for a prediction: the degree stands
        in for it."""
        if table not in self.types:
            return None
        key = score, table
        if key not in self.classes:
            type = self.types[table]
            found = kept_classes(self.store, type, score)
            if found is None:
                with contextlib.suppress(StoreError, ReadError):  # the batch that needs it says so
                    found = row_classes(self.store, type, "degree")
            self.classes[key] = found
        return self.classes[key]


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
    seconds = part_seconds(plan, loading, loads, _record_seconds(request))
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
        here = Loads(point.hit_share, point.loads, point.sweep)
        parts = part_seconds(
            _with_slots(plan, table.name, point.slots), loading, {**others, table.name: here},
            _record_seconds(request),
        )  # fmt: skip
        found.append((point, combined(parts)[0]))
    return found


def buffer_use(table: TablePlan, request: PlanRequest, loading: Loading) -> BufferUse:
    """How a loader uses the feature buffer of a table."""
    policy: type[Policy] = find("policies", request.policy)
    extracting, training = loading.queues
    # The queue has the batch that is admitted, too. A window of 1 would mean that nothing is known.
    window = extracting - 1 if extracting > 2 else extracting
    window = min(window, lib.GD_WINDOW_BATCHES) if policy.looks_ahead else 1
    of_edges = {each.name for each in request.tables if each.of_edges}
    if request.ahead is not None and policy.looks_ahead and table.name not in of_edges:
        window = request.ahead.foreseen(request.planned) or ALL_AHEAD
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
) -> Loads:  # fmt: skip
    """What a batch loads of a table: simulated, or estimated if there is no trace that is long
    enough."""
    use, trace = buffer_use(table, request, loading), traces.get(table.name)
    if trace is not None:
        policy: type[Policy] = find("policies", use.policy)
        classes = None if policy.score is None else classes_of(policy.score, table.name)
        try:
            found = simulate(trace, use, request.store, table.name, classes)
        except ConfigError:
            found = Loads(0.0, 0.0, 1.0, known=False)
        if found.known:
            return found
    return replace(counted(plan, loading)[table.name], sweep=use.sweep)


def _with_slots(plan: Plan, name: str, slots: int) -> Plan:
    """The plan with so many slots of a table."""
    tables = (replace(each, slots=slots) if each.name == name else each for each in plan.tables)
    return replace(plan, tables=tuple(tables))


def _record_seconds(request: PlanRequest) -> float:
    """Seconds to write a batch's sample and to read it again, if batches are sampled ahead."""
    ahead = request.ahead
    return 0.0 if ahead is None else 2 * ahead.record_bytes(request.planned) * request.disk.byte_s
