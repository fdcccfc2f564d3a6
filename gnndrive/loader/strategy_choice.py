"""Compares the strategies for one loader, and chooses one for `strategy="auto"`.

`compare` makes the plan of each strategy with the loader's own arguments and predicts what a batch
costs (`plan/strategy_costs.py`). `choose` takes the cheapest that changes nothing about the
batches. Recorded batches and batches inside windows are listed with their gain and the command that
prepares them; a loader takes them only if the user names the strategy.

When not to use it: for data in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnndrive.buffer.ranking import Classes
from gnndrive.common.errors import ConfigError, GNNDriveError, ReadError, StoreError
from gnndrive.common.malloc import return_free_memory
from gnndrive.common.records import NodeKey
from gnndrive.loader.arguments import victim_bytes
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.drawing import PROGRESS
from gnndrive.loader.find_pack import find_recording
from gnndrive.loader.find_partitioned import (
    check_tables,
    check_window_arguments,
    find_partitioned,
    suited_partitions,
)
from gnndrive.loader.recording import pack_command
from gnndrive.loader.superbatches import check_superbatch_arguments
from gnndrive.loader.window_size import choose_megabatches
from gnndrive.plan.choice import loading_of, make_planner
from gnndrive.plan.comparison import Comparison, MissRatio, cheapest, duration
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.layout_costs import packed_cost, partitioned_cost, unpacked_cost
from gnndrive.plan.pace import measure_pace
from gnndrive.plan.planner import Planner
from gnndrive.plan.prediction import Loading
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.plan.simulation import curve_slots
from gnndrive.plan.strategy_costs import StrategyCost, predict, predict_curve
from gnndrive.store.calibration import load_calibration
from gnndrive.store.partitioned.format import TABLE
from gnndrive.store.row_classes import kept_classes, row_classes
from gnndrive.strategies import AUTO, STRATEGIES, Strategy, batches_of

DEFAULT = "gnndrive"
UNCALIBRATED = "the disk is taken for a usual SSD: run gnndrive bench disk to measure it"
OWN = "predicted as if its batches needed the rows of those that were drawn"
MORE_BYTES = 10**9  # of memory, for the line of what more gives; half of a smaller `memory=`


@dataclass(frozen=True)
class _Known:
    """What all predictions for a loader share.

    Attributes:
        assembly: the loader's.
        traces: by the tables' names.
        types: table name → its node type, without tables of edges.
        drawn: what is known of the batches.
        pace: see `plan/pace.py`.
        batches: of an epoch; None: not known.
        classes: of rows, by score and table, as far as they were asked for.
    """

    assembly: Assembly
    traces: Mapping[str, SampledTrace]
    types: Mapping[str, NodeKey]
    drawn: DrawnBatches
    pace: float
    batches: int | None
    classes: dict[tuple[str, str], Classes | None] = field(default_factory=dict)

    def loading(self, request: PlanRequest, planner: Planner) -> Loading:
        """What a step of a loader costs by."""
        return loading_of(request, planner, self.drawn, self.pace)

    def classes_of(self, score: str, table: str) -> Classes | None:
        """The classes of a table's rows; None: it is of edges, or the graph cannot be read. A score
        that takes several passes over the graph is not computed for a prediction: the degree stands
        in for it."""
        if table not in self.types:
            return None
        key = score, table
        if key not in self.classes:
            store, type = self.assembly.store, self.types[table]
            found = kept_classes(store, type, score)
            if found is None:
                with contextlib.suppress(StoreError, ReadError):  # the batch that needs it says so
                    found = row_classes(store, type, "degree")
            self.classes[key] = found
        return self.classes[key]


def compare(assembly: Assembly, all: bool = True, curve: bool = True) -> Comparison | None:
    """Predict what a batch of a loader costs with each strategy; None: its batches cannot be drawn,
    such as those of a user's sampler. Takes some ten seconds the first time for a store and
    settings, then less than one.

    Args:
        assembly: the loader's.
        all: whether to predict all strategies, and not the loader's own alone.
        curve: whether to add the miss-ratio curve, and what more memory gives.

    Raises:
        ConfigError: the plan of the loader's own strategy does not fit.
        StoreError, ReadError: the graph is damaged or cannot be read.
    """
    try:
        return _compared(assembly, all, curve)
    finally:  # loading begins next, and no plan counts what drawing and simulating have freed
        return_free_memory()


def _compared(assembly: Assembly, all: bool, curve: bool) -> Comparison | None:
    own = assembly.strategy
    whole = assembly  # from which batches are drawn, with all tables in the feature buffer
    if own.replays or own.partitioned:
        whole = replace(_with(assembly, STRATEGIES[DEFAULT]), recording=None, megabatches=None)
    drawing = whole.drawing(for_plan=False)
    if drawing is None or assembly.ranks.on_host > 1:
        return None
    request = whole.request()
    drawn = drawing.drawn(request)
    traces = {} if drawn is None else drawing.traces(request)
    if drawn is None:
        return None
    types: dict[str, NodeKey] = {
        table.name: table.type  # type: ignore[misc]
        for table in whole.collate.tables
        if not table.of_edges
    }
    try:
        batches = assembly.steps()
    except TypeError:
        batches = None
    pace = measure_pace(STRATEGIES[DEFAULT].policy)
    known = _Known(whole, traces, types, drawn, pace, batches)
    others = [each for each in STRATEGIES.values() if all and each.name != own.name]
    costs = _costs(known, request, others if own == AUTO else [own, *others])
    notes = () if load_calibration(assembly.store) is not None else (UNCALIBRATED,)
    found = Comparison(own.name, tuple(costs), notes=notes)
    if not (all and curve) or own.replays or own.partitioned:
        return found
    with contextlib.suppress(GNNDriveError):  # with more memory something else may be refused
        return _with_curve(found, known, own)
    return found


def choose(assembly: Assembly) -> tuple[Strategy, str]:
    """Choose the strategy of a loader with `strategy="auto"`, and say why.

    Raises:
        ConfigError: no strategy can run with these arguments.
        StoreError, ReadError: the graph is damaged or cannot be read.
    """
    default = STRATEGIES[DEFAULT]
    if assembly.ranks.world > 1:
        return default, "because ranks must have the same strategy"
    planner = make_planner(_with(assembly, default).request())
    if planner.plan().holds_everything:
        return default, "because all rows fit into memory"
    found = compare(assembly, curve=False)
    if found is None:
        return default, "because batches cannot be drawn to compare others"
    best = cheapest(found.costs)
    if best is None:
        return default, "because nothing is known of the others"
    others = ", ".join(
        f"{duration(each.batch_s)} with {each.strategy}"
        for each in found.costs
        if each.same_batches and not each.refused and each.strategy != best.strategy
    )
    why = f"because a batch costs about {duration(best.batch_s)}, bound by {best.bound_by}"
    return STRATEGIES[best.strategy], f"{why}; {others}" if others else why


def _with(assembly: Assembly, strategy: Strategy) -> Assembly:
    """The assembly with another strategy, and all tables in the feature buffer."""
    return replace(assembly, strategy=strategy, collate=assembly.collate.buffering(None))


def _costs(
    known: _Known, request: PlanRequest, strategies: Sequence[Strategy]
) -> list[StrategyCost]:
    """The costs of strategies: those with the same batches first."""
    found: list[StrategyCost] = []
    others: list[StrategyCost] = []
    for done, strategy in enumerate(strategies):
        PROGRESS.get()("comparing strategies", done, len(strategies))
        same = batches_of(strategy) == DEFAULT
        try:
            if same:
                cost = _drawn_cost(known, strategy)
            elif strategy.replays:
                cost = _packed_cost(known, strategy, request)
            elif strategy.partitioned:
                cost = _partitioned_cost(known, strategy)
            else:  # a composed one with batches of its own
                cost = replace(_drawn_cost(known, strategy), same_batches=False, note=OWN)
        except GNNDriveError as error:
            said = str(error).partition("\n")[0].removesuffix(". With the least it uses")
            cost = StrategyCost(strategy.name, same_batches=same, refused=said)
        (found if same else others).append(cost)
    PROGRESS.get()("comparing strategies", len(strategies), len(strategies))
    return found + others


def _drawn_cost(known: _Known, strategy: Strategy) -> StrategyCost:
    """The cost of a strategy that samples from the whole graph."""
    assembly = _with(known.assembly, strategy)
    plain = assembly.subgraphs is None
    check_superbatch_arguments(assembly.own, strategy, assembly.store.path, plain)
    victim_bytes(assembly.own, strategy)
    request = assembly.request()
    planner = make_planner(request)
    return predict(
        strategy.name, request, planner, known.loading(request, planner), known.traces,
        known.classes_of,
        known.batches,
    )  # fmt: skip


def _packed_cost(known: _Known, strategy: Strategy, request: PlanRequest) -> StrategyCost:
    """The cost of replaying a pack, or what it would be if there were one."""
    assembly = _with(known.assembly, strategy)
    try:
        recording = find_recording(assembly, assembly.own["packed"])
    except (ConfigError, StoreError):
        if assembly.own["packed"] is not None:
            raise
        planner = make_planner(request)
        return unpacked_cost(
            strategy.name,
            request,
            planner,
            known.loading(request, planner),
            known.traces,
            known.batches,
            pack_command(assembly) or "gnndrive.pack and the arguments of the loader",
        )
    collate = assembly.collate.buffering(recording.files)
    planner = make_planner(replace(assembly, collate=collate, recording=recording).request())
    return packed_cost(strategy.name, planner, known.pace, known.batches)


def _partitioned_cost(known: _Known, strategy: Strategy) -> StrategyCost:
    """The cost of sampling inside the windows of a partitioned folder."""
    assembly, own = _with(known.assembly, strategy), known.assembly.own
    check_window_arguments(own, strategy.name)
    check_tables([table.name for table in assembly.collate.tables], strategy.name)
    named = own["partitioned"]
    if named is None:
        named = suited_partitions(strategy, assembly.store)
    partitioned = find_partitioned(assembly.store, named, strategy.name)
    assembly = replace(assembly, collate=assembly.collate.buffering({TABLE}))
    megabatches = choose_megabatches(assembly, partitioned)
    inside = replace(assembly, megabatches=megabatches)
    request = inside.request()
    planner = make_planner(request)
    windows = (each.partitions for each in inside.schedule(0).windows(0))
    return partitioned_cost(strategy.name, request, planner, known.pace, windows, inside.steps())


def _with_curve(found: Comparison, known: _Known, own: Strategy) -> Comparison:
    """The comparison with the miss-ratio curve, and what more memory gives."""
    assembly = _with(known.assembly, own)
    request = assembly.request()
    planner = make_planner(request)
    plan = planner.plan()
    tables = [each for each in plan.tables if each.slots < each.rows and each.name in known.traces]
    if not tables:
        return found
    table = max(tables, key=lambda each: each.rows * each.row_bytes)
    curve = predict_curve(
        table, curve_slots(table.slots, table.rows), request, planner,
        known.loading(request, planner), known.traces, known.classes_of,
    )  # fmt: skip
    points, seconds = tuple(point for point, _ in curve), tuple(each for _, each in curve)
    found = replace(
        found, curve=MissRatio(table.name, table.slots * table.row_bytes, points, seconds)
    )
    if request.memory is None or found.own is None or found.own.refused:
        return found
    step = MORE_BYTES if request.memory >= 2 * MORE_BYTES else request.memory // 2
    larger = replace(assembly, own=assembly.own | {"memory": request.memory + step})
    cost = _drawn_cost(replace(known, assembly=larger), own)
    return replace(found, more=(step, cost.batch_s))
