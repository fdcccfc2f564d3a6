"""What a batch costs with a strategy (`StrategyCost`, `predict`), and all beside each other
(`Comparison`).

Reading is predicted by the simulated loads of the strategy's policy (`plan/replay.py`) and the
disk's two constants, sampling by the batches that were drawn, and the rest by what a row takes
(`plan/costs.py`). What a batch takes in fact is measured by `gnndrive bench strategies`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from textwrap import wrap
from typing import Any

from gnndrive.buffer.devices.base import PIECES, PIECES_BYTES
from gnndrive.buffer.feature_buffer import RELEASE_STEPS
from gnndrive.buffer.policies.base import Policy
from gnndrive.buffer.ranking import Classes
from gnndrive.common.duration import duration
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.ffi import lib
from gnndrive.common.memory import format_size
from gnndrive.common.plugins import find
from gnndrive.common.records import NodeKey
from gnndrive.pipeline.extract import SWEEP_MAX
from gnndrive.plan.choice import loading_of
from gnndrive.plan.costs import Loading, Loads, combined, counted, part_seconds
from gnndrive.plan.drawn import DrawnBatches
from gnndrive.plan.plan import Plan, Planner, TablePlan
from gnndrive.plan.replay import ALL_AHEAD, Run, simulate
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.store.reader import Store
from gnndrive.store.row_classes import kept_classes, row_classes

FEW_DRAWN = "too few batches were drawn to fill the buffer: loads are estimated"
OWN = "predicted as if its batches needed the rows of those that were drawn"
WITHIN = 1.05  # a strategy that costs up to so many times the least is as good
WIDTH, INDENT = 100, "  "  # of the lines that are printed
_NEEDED = re.compile(r"needs? (\d[\d.]* [KMGT]?B)")  # in what a refusal says of too little memory
CURVE_POINTS = 16
CURVE_LEAST = 1 / 8  # of the buffer, the smallest of the curve


@dataclass(frozen=True, slots=True)
class StrategyCost:
    """What a batch costs with a strategy.

    Attributes:
        seconds: what a batch keeps busy for how long, by part; see `plan/costs.py`.
        batches: batches of an epoch; None: not known.
        hit_share: the share of a batch's rows that need not be loaded; None: not known.
        same_batches: whether the batches are those of strategy "gnndrive".
        changes: what it changes in the samples, in few words; empty: see `Strategy.changes`.
        note: what to know of it; empty: nothing.
        assumed: what was assumed and can be measured, so that "auto" does not take it; empty:
            nothing.
        refused: why it cannot run, with the remedy; empty: it can.
        command: what makes that which it lacks on the store; empty: it lacks nothing.
        about: lines that say what the strategy does, what it needs and when it pays.
    """

    strategy: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    batches: int | None = None
    hit_share: float | None = None
    same_batches: bool = True
    changes: str = ""
    note: str = ""
    assumed: str = ""
    refused: str = ""
    command: str = ""
    about: tuple[str, ...] = ()

    @property
    def batch_s(self) -> float:
        """Seconds that a batch is expected to take."""
        return combined(self.seconds)[0]

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch; None: its batches are not known."""
        return None if self.batches is None else self.batches * self.batch_s

    @property
    def said(self) -> list[str]:
        """Lines that say what it does, and what to know of it; a command is never broken."""
        first, *more = self.about or ("",)
        lines = [f"{self.strategy}: {first}", *(INDENT + each for each in more)]
        lines += wrap(
            self.refused or self.noted, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        return [*lines, 2 * INDENT + self.command] if self.command else lines

    @property
    def noted(self) -> str:
        """What to know of it, and what was assumed."""
        return "; ".join(filter(None, (self.note, self.assumed)))

    @property
    def why_not(self) -> str:
        """In two words why it cannot run; empty: it can."""
        if not self.refused:
            return ""
        needed = _NEEDED.search(self.refused)
        return f"needs {needed[1]}" if needed else "unprepared" if self.command else "cannot run"

    @property
    def bound_by(self) -> str:
        """The part that these seconds are due to; empty: nothing is known."""
        return combined(self.seconds)[1] if self.seconds else ""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of a miss-ratio curve: the share of a batch's rows that need not be loaded with a
    buffer of `nbytes`, and the seconds that a batch is expected to take."""

    nbytes: int
    hit_share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MissRatio:
    """How many of a batch's rows of a table are hits with buffers of several sizes, the smallest
    first (the miss-ratio curve); the loader's own has `buffer_bytes`."""

    table: str
    buffer_bytes: int
    points: tuple[CurvePoint, ...]

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can hold."""
        points = [
            {"bytes": each.nbytes, "hit_share": each.hit_share, "seconds_per_batch": each.seconds}
            for each in self.points
        ]
        return {"table": self.table, "buffer_bytes": self.buffer_bytes, "points": points}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a batch costs with each strategy. Printing it says what those strategies do that are
    cheaper than the loader's own; `details()` says it of all.

    Attributes:
        strategy: the loader's own.
        costs: the loader's own first, then those with the same batches.
        why: why the loader has this strategy; empty: the user named it.
        more: bytes more of `memory=`, and the seconds of a batch with them; None: not known.
        curve: the miss-ratio curve of the largest table; None: all rows fit, or nothing is known.
        notes: limits of the prediction, a sentence each.
    """

    strategy: str
    costs: tuple[StrategyCost, ...]
    why: str = ""
    more: tuple[int, float] | None = None
    curve: MissRatio | None = None
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> StrategyCost | None:
        """The cost of the loader's own strategy; None: it is not known."""
        return next((each for each in self.costs if each.strategy == self.strategy), None)

    def __str__(self) -> str:
        own = self.own
        if own is None or own.refused:
            return self._text([each for each in self.costs if each is own])
        return self._text(
            each for each in self.costs if not each.refused and WITHIN * each.batch_s < own.batch_s
        )

    def details(self) -> str:
        """The same with what each strategy does and needs, when it pays, and why it cannot run."""
        return self._text(self.costs)

    def _text(self, described: Iterable[StrategyCost]) -> str:
        rows = [("predicted", "a batch", "an epoch", "bound by", "hits", "changes in the samples")]
        for each in self.costs:
            batch = each.why_not or duration(each.batch_s)
            hits = "" if each.hit_share is None else f"{each.hit_share:.0%}"
            epoch = "" if each.refused or each.epoch_s is None else duration(each.epoch_s)
            rows.append((each.strategy, batch, epoch, each.bound_by, hits, each.changes))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        lines.append("seconds are of loading: the training step is not counted")
        own = self.own
        if self.more is not None and own is not None and not own.refused:
            nbytes, seconds = self.more
            lines.append(
                f"with {format_size(nbytes)} more: {duration(seconds)} a batch "
                f"({seconds / own.batch_s - 1:+.0%})"
            )
        if self.why:
            lines.append(f"strategy: {self.strategy}, {self.why}")
        return "\n".join([*lines, *self.notes, *chain.from_iterable(c.said for c in described)])

    def to_json(self) -> dict[str, Any]:
        """The sections "choice" and "miss_ratio" of a run's JSON."""
        costs = [
            {
                "strategy": each.strategy,
                "seconds_per_batch": None if each.refused else each.batch_s,
                "seconds_per_epoch": None if each.refused else each.epoch_s,
                "bound_by": each.bound_by,
                "hit_share": each.hit_share,
                "parts": dict(each.seconds),
                "same_batches": each.same_batches,
                "changes": each.changes,
                "note": ": ".join(filter(None, (each.refused or each.noted, each.command))),
            }
            for each in self.costs
        ]
        found: dict[str, Any] = {"choice": costs}
        if self.curve is not None:
            found["miss_ratio"] = self.curve.to_json()
        return found


def cheapest(costs: Sequence[StrategyCost]) -> StrategyCost | None:
    """The strategy to take, of those that run and have the same batches: the first, if its batches
    cost at most `WITHIN` times the least; else the one with the least. None: there is none."""
    known = [
        each for each in costs
        if each.same_batches and each.seconds and not each.refused and not each.assumed
    ]  # fmt: skip
    if not known:
        return None
    least = min(known, key=lambda each: each.batch_s)
    return known[0] if known[0].batch_s <= WITHIN * least.batch_s else least


# ---- predicting


@dataclass(frozen=True)
class Known:
    """What all predictions for a loader share.

    Attributes:
        traces: by table; those that are missing are not simulated.
        types: node types by table, without tables of edges.
        drawn: what is known of the batches.
        pace: see `replay.measure_pace`.
        batches: of an epoch; None: not known.
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
        """The classes of a table's rows; None: it is of edges, or the graph cannot be read. The
        degree stands in for a score that reads the graph several times."""
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


def predict(name: str, request: PlanRequest, planner: Planner, known: Known) -> StrategyCost:
    """Say what a batch costs with the strategy of that name, if it samples from the whole graph;
    `request` and `planner` are those of a loader with it. ConfigError if its plan does not fit."""
    predicted = Prediction(request, planner, known)
    tables = predicted.plan.tables
    loads = {each.name: predicted.loads(each) for each in tables}
    rows = {each.name: predicted.loading.counts(each)[0] for each in tables}
    hits = sum(loads[each].hit_share * count for each, count in rows.items())
    return StrategyCost(
        name, predicted.seconds(predicted.plan, loads), known.batches,
        hits / max(sum(rows.values()), 1),
        note="" if all(each.known for each in loads.values()) else FEW_DRAWN,
    )  # fmt: skip


def predict_curve(request: PlanRequest, planner: Planner, known: Known) -> MissRatio | None:
    """The miss-ratio curve of the largest table that does not fit, without the points for which
    its trace is too short; None: all rows fit, or there is no trace. See `predict`."""
    predicted = Prediction(request, planner, known)
    plan = predicted.plan
    leaving = [each for each in plan.tables if each.slots < each.rows and each.name in known.traces]
    if not leaving:
        return None
    table = max(leaving, key=lambda each: each.rows * each.row_bytes)
    loads = {each.name: predicted.loads(each) for each in plan.tables if each is not table}
    points = []
    for slots in curve_slots(table.slots, table.rows):
        sized = replace(table, slots=slots)
        found = predicted.simulated(sized)
        if found is None:
            continue
        tables = tuple(sized if each is table else each for each in plan.tables)
        parts = predicted.seconds(replace(plan, tables=tables), {**loads, table.name: found})
        point = CurvePoint(slots * table.row_bytes, found.hit_share, combined(parts)[0])
        points.append(point)
    return MissRatio(table.name, table.slots * table.row_bytes, tuple(points))


def curve_slots(slots: int, rows: int) -> list[int]:
    """The numbers of slots of a curve: from a part of `slots` to all `rows`, about each as many
    times larger than the one before; `slots` is one of them."""
    if not slots or not rows:
        return []
    low = max(int(slots * CURVE_LEAST), 1)
    ratio = (rows / low) ** (1 / (CURVE_POINTS - 1)) if rows > low else 1.0
    points = {min(int(low * ratio**n), rows) for n in range(CURVE_POINTS - 1)}
    return sorted(points | {min(slots, rows), rows})


class Prediction:
    """What batches load and cost with a strategy that samples from the whole graph; for the
    arguments see `predict`."""

    def __init__(self, request: PlanRequest, planner: Planner, known: Known) -> None:
        self.plan, self.loading = planner.plan(), known.loading(request, planner)
        self._request, self._known = request, known
        self._policy: type[Policy] = find("policies", request.policy)

    def seconds(self, plan: Plan, loads: Mapping[str, Loads]) -> dict[str, float]:
        """What a batch keeps busy for how long, by part."""
        ahead, records_s = self._request.ahead, 0.0
        if ahead is not None:  # a batch's sample is written and read again
            records_s = 2 * ahead.record_bytes(self._request.planned) * self._request.disk.byte_s
        return part_seconds(plan, self.loading, loads, records_s)

    def loads(self, table: TablePlan) -> Loads:
        """What a batch loads of a table: simulated, or estimated if it cannot be."""
        found = self.simulated(table)
        if found is not None:
            return found
        return replace(counted(self.plan, self.loading)[table.name], sweep=self._run(table).sweep)

    def simulated(self, table: TablePlan) -> Loads | None:
        """The same by a replay; None: there is no trace, or it is too short."""
        trace, score = self._known.traces.get(table.name), self._policy.score
        if trace is None:
            return None
        classes = None if score is None else self._known.classes_of(score, table.name)
        try:
            found = simulate(trace, self._run(table), self._request.store, classes)
        except ConfigError:  # a batch has more rows than there are slots
            return None
        return found if found.known else None

    def _run(self, table: TablePlan) -> Run:
        """How the loader uses the feature buffer of a table."""
        request, stages = self._request, self.loading.stages
        # The queue has the batch that is admitted, too; a window of 1 says that nothing is known.
        window = stages.extracting_queue - (stages.extracting_queue > 2)
        window = min(window, lib.GD_WINDOW_BATCHES) if self._policy.looks_ahead else 1
        of_edges = {each.name for each in request.tables if each.of_edges}
        if request.ahead is not None and self._policy.looks_ahead and table.name not in of_edges:
            window = request.ahead.foreseen(request.planned) or ALL_AHEAD
        sweep = min(stages.swept, self.loading.sweep or SWEEP_MAX)
        gathered = self.loading.counts(table)[0] * table.row_bytes
        # Of the host's pieces the last is half of a batch, which is released in `RELEASE_STEPS`
        # steps: about as many pieces as the first one goes into a batch.
        pieces = RELEASE_STEPS if gathered < PIECES_BYTES else round(1 / (1 - PIECES[0]))
        # A sweep joins once it has its places in the training queue; a batch more is handed over.
        held = stages.training_queue + 1
        # One order says which rows leave the slots and which the host level below a device.
        return Run(request.policy, window, table.held, sweep, held, pieces, table=table.name)
