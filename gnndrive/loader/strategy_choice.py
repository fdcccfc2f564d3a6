"""Compares the strategies for one loader, and chooses one for `strategy="auto"`.

`compare` plans for each strategy with the loader's own arguments and predicts what a batch costs
(`plan/strategy_costs.py`). `choose` takes the cheapest that changes nothing about the batches; the
others are listed with what they need, for a user to name one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from gnndrive.common.duration import duration
from gnndrive.common.errors import GNNDriveError
from gnndrive.common.memory import return_free_memory
from gnndrive.common.progress import report
from gnndrive.common.records import NodeKey
from gnndrive.loader.assembly import Assembly
from gnndrive.plan.choice import without_plan
from gnndrive.plan.replay import measure_pace
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.strategy_costs import Comparison, Known, StrategyCost, cheapest, predict_curve
from gnndrive.store.calibration import calibrate_command, load_calibration
from gnndrive.strategies.base import (
    PLAIN,
    UNPREPARED,
    Strategy,
    auto,
    batches_of,
    default,
    strategies,
)

USUAL_DISK = "the disk is taken for a usual SSD"
UNCALIBRATED = f"{USUAL_DISK}: run {{}} to measure it"
MORE_BYTES = 10**9  # of memory, for the line of what more gives; half of a smaller `memory=`


def compare(assembly: Assembly, all: bool = True, curve: bool = True) -> Comparison | None:
    """Predict what a batch of a loader costs with each strategy, or its own alone; None: its
    batches cannot be drawn, or its strategy is a baseline. Takes some ten seconds the first time
    for a store and settings. May add the miss-ratio curve, and what more memory gives."""
    try:
        return _compared(assembly, all, curve)
    finally:  # loading begins next, and no plan counts what drawing and simulating have freed
        return_free_memory()


def _compared(assembly: Assembly, all: bool, curve: bool) -> Comparison | None:
    own = assembly.strategy
    # From which batches are drawn, with all tables in the feature buffer.
    whole = assembly if own.whole_graph else _with(assembly, default())
    drawing = whole.drawing(for_plan=False)
    if drawing is None or assembly.ranks.on_host > 1 or own.baseline:
        return None
    request = whole.request()
    if (drawn := drawing.drawn(request)) is None:
        return None
    traces = drawing.traces(request)
    types: dict[str, NodeKey] = {
        table.name: table.type  # type: ignore[misc]
        for table in whole.collate.tables
        if not table.of_edges
    }
    try:
        batches = _with(assembly, default()).steps()
    except TypeError:
        batches = None
    pace = measure_pace(default().policy)
    known = Known(traces, types, drawn, pace, batches, assembly.store)
    # The default arguments of the loader's own strategy stand beside the user's, too.
    others = [
        each for each in strategies().values()
        if all and not each.baseline
        and (each.name != own.name or (own.whole_graph and each != own))
    ]  # fmt: skip
    costs = _costs(whole, known, request, others if own == auto() else [own, *others])
    notes: tuple[str, ...] = ()
    if load_calibration(assembly.store) is None:
        notes = (UNCALIBRATED.format(calibrate_command(assembly.store)),)
    found = Comparison(own.text, tuple(costs), notes=notes)
    if not (all and curve and own.whole_graph):
        return found
    with contextlib.suppress(GNNDriveError):  # with more memory something else may be refused
        return _with_curve(found, whole, known, own)
    return found


def choose(assembly: Assembly) -> tuple[Strategy, str]:
    """Choose the strategy of a loader with `strategy="auto"`, and say why."""
    if assembly.ranks.world > 1:
        return default(), "because ranks must have the same strategy"
    if _with(assembly, default()).plan().holds_everything:
        return default(), "because all rows fit into memory"
    found = compare(assembly, curve=False)
    if found is None:
        return default(), "because batches cannot be drawn to compare others"
    best = cheapest(found.costs)
    if best is None:
        return default(), "because nothing is known of the others"
    others = ", ".join(
        f"{duration(each.batch_s)} with {each.strategy}"
        for each in found.costs
        if each.same_batches
        and each.strategy != best.strategy
        and not each.refused
        and not each.assumed
    )
    why = f"because a batch costs about {duration(best.batch_s)}, bound by {best.bound_by}"
    return strategies()[best.strategy], f"{why}; {others}" if others else why


def _with(assembly: Assembly, strategy: Strategy) -> Assembly:
    """The assembly with another strategy, not open yet, and all tables in the feature buffer."""
    asked = assembly.asked or assembly
    plain = replace(
        asked, strategy=strategy, scheme=PLAIN, collate=assembly.collate.buffering(None)
    )
    chosen: Assembly = strategy.preset(plain)
    return replace(chosen, asked=asked)


def _costs(
    whole: Assembly, known: Known, request: PlanRequest, compared: Sequence[Strategy]
) -> list[StrategyCost]:
    """The costs of strategies: those with the same batches first."""
    found: list[StrategyCost] = []
    for done, strategy in enumerate(compared):
        report("comparing strategies", done, len(compared))
        try:
            cost = strategy.cost(_with(whole, strategy), known, request)
        except GNNDriveError as error:
            said = without_plan(str(error))
            lacks, same = strategy.lacks(whole.store), batches_of(strategy) == default().name
            command = lacks if lacks is not None and lacks in said else ""
            cost = StrategyCost(
                strategy.text, same_batches=same, refused=UNPREPARED if command else said,
                command=command,
            )  # fmt: skip
        changes = cost.changes or strategy.changes
        found.append(replace(cost, changes=changes, about=strategy.about))
    report("comparing strategies", len(compared), len(compared))
    return sorted(found, key=lambda each: not each.same_batches)


def _with_curve(found: Comparison, whole: Assembly, known: Known, own: Strategy) -> Comparison:
    """The comparison with the miss-ratio curve, and what more memory gives."""
    assembly = _with(whole, own)
    scheme = own.open(assembly)
    request = replace(assembly, scheme=scheme).request()
    curve = predict_curve(request, scheme.planner(request), known)
    if curve is None:
        return found
    found = replace(found, curve=curve)
    if request.memory is None or found.own is None or found.own.refused:
        return found
    step = MORE_BYTES if request.memory >= 2 * MORE_BYTES else request.memory // 2
    larger = replace(assembly, own=assembly.own | {"memory": request.memory + step})
    cost = own.cost(larger, known, request)
    return replace(found, more=(step, cost.batch_s))
