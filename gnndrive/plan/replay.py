"""`replay`: admits the batches of a trace to a real slot table, and counts what is loaded.

The slot table, its ranking and admission in parts are the loader's, so the counts hold for each
policy. There is no memory for slots and no read: a row is valid as soon as it is admitted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields, replace
from functools import cache
from time import thread_time
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from gnndrive.buffer.feature_buffer import PART_ROWS, RELEASE_STEPS
from gnndrive.buffer.partial_admission import PartialAdmission
from gnndrive.buffer.policies.base import PolicyContext
from gnndrive.buffer.ranking import Classes
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import lib
from gnndrive.common.plugins import find
from gnndrive.common.records import Codes, Int32Array, Int64Array, Stretch
from gnndrive.plan.costs import Loads
from gnndrive.plan.sampled_trace import SampledTrace
from gnndrive.store.reader import Store

NOTHING: Any = None  # no memory for slots is used, and no store
NO_TIER: Any = SimpleNamespace(takes_offers=False, ranked=())  # nothing is fetched
ONE = ""  # the name of the only table of an admission
BATCHES_MIN = 8  # that are counted behind those that fill the buffer
ALL_AHEAD = 1 << 16  # a window that reaches to the end of the trace
# What the pace is measured with: batches that are the same everywhere.
PACE_ROWS, PACE_SLOTS, PACE_RUNS = 100_000, 60_000, 3
PACE_BATCHES, PACE_DRAWS = 16, 20_000  # of row ids of a batch, some of them twice
PACE_ROW_S = 3.3e-8  # seconds for a row of these batches on the machine of the constants


class Trace(Protocol):
    """The row ids of batches in order, each int64 [n]."""

    @property
    def rows(self) -> int:
        """Rows of the table."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Int64Array: ...


@dataclass
class Counts:
    """What the sweeps of a run took, one entry for each sweep: its batches, the rows that each of
    them wanted, and those that were missing."""

    batches: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)

    def begin(self, batches: int, wanted: int) -> None:
        """A sweep begins."""
        for counts in self.sweeps().values():
            counts.append(0)
        self.batches[-1], self.wanted[-1] = batches, wanted

    def read(self, rows: Int64Array) -> None:
        """The sweep that began last reads `rows` in one pass; each row comes once."""
        self.loads[-1] += len(rows)

    def sweeps(self) -> dict[str, list[int]]:
        """What each sweep took, by the names of the attributes."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def between(self, skip: int, end: int) -> dict[str, int]:
        """The sums over the sweeps whose first batch has an index from `skip` to below `end`."""
        first, last = np.searchsorted(np.cumsum([0, *self.batches[:-1]]), [skip, end]).tolist()
        return {name: sum(counts[first:last]) for name, counts in self.sweeps().items()}


class _Nothing:
    """What a policy knows of later batches: nothing. The other classes extend it."""

    def __init__(self, trace: Trace, table: SlotTable) -> None:
        self.trace, self.table = trace, table

    def reach(self, index: int) -> int:
        """Tell the table what is known before batch `index`; returns the end of a sweep at most."""
        return len(self.trace)

    def take(self, first: int, last: int) -> Codes | None:
        """The batches [first, last) are admitted now: return the codes of their rows."""
        return None


class _Announced(_Nothing):
    """A window of queued samples behind the batch that is admitted, announced as the loader does:
    the farthest gets its place in the window as the nearest is withdrawn."""

    def __init__(self, trace: Trace, table: SlotTable, window: int) -> None:
        super().__init__(trace, table)
        self._window, self._announced = window, 0

    def reach(self, index: int) -> int:
        last = min(index + 1 + self._window, len(self.trace))
        for each in range(self._announced, last):
            self.table.announce(each, self.trace[each])
        self._announced = last
        return last

    def take(self, first: int, last: int) -> None:
        for each in range(first, last):
            self.table.withdraw(each, self.trace[each])


class _Foreseen(_Nothing):
    """Batches that are sampled ahead: so many, before the first of them is admitted."""

    def __init__(self, trace: Trace, table: SlotTable, window: int) -> None:
        super().__init__(trace, table)
        self._window, self._first, self._last = window, 0, 0
        self._codes: list[Codes] = []  # of the rows of each, when they are needed next
        table.foresee(0, 0, None)

    def reach(self, index: int) -> int:
        # A sweep does not reach into the batches that are sampled next.
        if index == self._last:
            self._first, self._last = index, min(index + self._window, len(self.trace))
            self._codes, later = [], np.full(self.trace.rows, lib.GD_NO_CODE, np.uint16)
            for each in reversed(range(self._first, self._last)):
                ids = self.trace[each]
                self._codes.insert(0, later[ids])
                later[ids] = each % lib.GD_NO_CODE
            self.table.foresee(self._first, self._last, later)
        return self._last

    def take(self, first: int, last: int) -> Codes:
        for each in range(first, last):
            self.table.withdraw(each, np.empty(0, np.int64))
        return np.concatenate(self._codes[first - self._first : last - self._first])


@dataclass(frozen=True)
class Run:
    """How batches go through a slot table.

    Attributes:
        window: what is known when a batch is admitted: 1, nothing; up to `GD_WINDOW_BATCHES`, that
            many batches behind it; more, the rest of that many batches which were sampled together.
        sweep: the most batches of a sweep; fewer, if more do not fit together.
        in_flight: batches that hold slots while a sweep is admitted, with its own. If it finds too
            few slots, the oldest of the others release theirs, a piece of a batch at a time.
        pieces: in which a batch releases its slots while a sweep is admitted in parts.
        part_rows: a sweep of more rows is admitted in parts of about so many missing rows.
        table: the table's name, for the policy.
    """

    policy: str
    window: int
    slots: int
    sweep: int = 1
    in_flight: int = 2
    pieces: int = RELEASE_STEPS
    part_rows: int = PART_ROWS
    table: str = "nodes/x"


class _Held:
    """The batches that hold slots, in order; for `pieces` see `Run`."""

    def __init__(self, table: SlotTable, pieces: int) -> None:
        self._table, self._count = table, pieces
        self._batches = deque[Int32Array]()  # the slots of each
        self._pieces = deque[Int32Array]()  # what the oldest one still holds, if it is in pieces

    def __bool__(self) -> bool:
        return bool(self._batches or self._pieces)

    def add(self, alias: Int32Array) -> None:
        self._batches.append(alias)

    def keep(self, count: int) -> None:
        """Release all batches but the last `count`."""
        while self._pieces and len(self._batches) >= max(count, 0):
            self._table.release(self._pieces.popleft())
        while len(self._batches) > max(count, 0):
            self._table.release(self._batches.popleft())

    def release_oldest(self) -> None:
        """Release the oldest batch, or what it still holds."""
        self.keep(len(self._batches) - (not self._pieces))

    def release_piece(self) -> None:
        if not self._pieces:
            # A loader's rows are not in the order of the file: each piece has rows of all of it.
            alias = self._batches.popleft()
            self._pieces.extend(alias[start :: self._count].copy() for start in range(self._count))
        self._table.release(self._pieces.popleft())


def replay(
    run: Run, trace: Trace, store: Store, classes: Classes | None, counts: Counts | None = None
) -> Counts:
    """Admit all batches of a trace, in order, and count what is loaded; `classes` are those of its
    rows. ConfigError if a batch has more rows than the table has slots."""
    counts = Counts() if counts is None else counts
    largest = max((len(trace[each]) for each in range(len(trace))), default=0)
    context = PolicyContext(run.table, trace.rows, run.slots, store, largest, run.window)
    policy = find("policies", run.policy).make(context)
    foreseen = run.window > lib.GD_WINDOW_BATCHES and policy.looks_ahead
    table = SlotTable(
        trace.rows, run.slots, 1, NOTHING, NO_TIER, policy, classes=classes, foreseen=foreseen
    )
    known = _Nothing(trace, table)
    if foreseen:
        known = _Foreseen(trace, table, run.window)
    elif policy.looks_ahead and run.window > 1:
        known = _Announced(trace, table, run.window)
    held, index = _Held(table, run.pieces), 0
    while index < len(trace):
        last = _sweep_end(table, trace, index, min(known.reach(index), index + run.sweep))
        ids = [trace[each] for each in range(index, last)]
        sizes = [*map(len, ids)]
        counts.begin(len(ids), sum(sizes))
        codes = known.take(index, last)
        held.keep(run.in_flight - len(ids))
        hold = _admit(table, table.joined(ids), codes, held, counts, run.part_rows)
        for each in hold.split(sizes):
            held.add(each.alias)
        index = last
    table.verify()
    return counts


def _sweep_end(table: SlotTable, trace: Trace, first: int, most: int) -> int:
    """The index behind the sweep that begins with batch `first`: as many as fit together."""
    batches = [(first, trace[first])]
    while first + len(batches) < most:
        batches.append((first + len(batches), trace[first + len(batches)]))
        if not table.fits_together(batches):
            return first + len(batches) - 1
    return most


def _admit(
    table: SlotTable, rows: Int64Array, codes: Codes | None, held: _Held,
    counts: Counts, part_rows: int,
) -> SlotHold:  # fmt: skip
    """Admit a sweep as `FeatureBuffer` does: in parts if it is large. If there are too few slots,
    batches of `held` are released early, in pieces while parts are admitted."""

    def refuse(name: str, code: int, deficit: int) -> None:
        raise ConfigError(
            f"a batch has {deficit:,} more rows than the {table.slots:,} slots: give more"
        )

    def load(hold: SlotHold) -> None:
        assert hold.loads is not None
        counts.read(hold.loads[0])
        table.commit(Stretch(hold.loads[1]))

    if len(rows) > part_rows:
        of_rows = {} if codes is None else {ONE: codes}
        admission = PartialAdmission({ONE: table}, {ONE: rows}, of_rows, part_rows, refuse)
        while admission.unfinished:
            part = admission.admit_next()
            if part is None:
                held.release_piece()
            else:
                load(part)
        return admission.holds()[ONE]
    while True:
        code, deficit, hold = table.admit(rows, codes)
        if hold is not None:
            load(hold)
            return hold
        if not held:
            refuse(ONE, code, deficit)
        held.release_oldest()


def simulate(trace: SampledTrace, run: Run, store: Store, classes: Classes | None) -> Loads:
    """Say what a batch of a table loads when the buffer is full. Here `run` has all slots of the
    buffer, and `classes` are those of all rows of the table."""
    wanted = float(trace.wanted.mean())
    if run.slots >= trace.table_rows:
        return Loads(1.0, 0.0, float(run.sweep))
    slots = max(int(run.slots * trace.share), 1)
    window = len(trace) if run.window >= ALL_AHEAD else run.window
    if run.window > lib.GD_WINDOW_BATCHES:  # batches are foreseen, however few the trace has
        window = max(window, lib.GD_WINDOW_BATCHES + 1)
    part_rows = max(int(run.part_rows * trace.share), 1)
    scaled = replace(run, window=window, slots=slots, part_rows=part_rows)
    counts = replay(scaled, trace, store, None if classes is None else classes[trace.kept])
    # Near its end the trace says too little of what comes.
    end = len(trace) - (min(len(trace) // 4, 2 * BATCHES_MIN) if window > 1 else 0)
    full = trace.filled(slots)
    if full is None and trace.settled:  # all rows that batches ever need fit
        full = 3 * len(trace) // 4 - run.sweep
    full = len(trace) if full is None else min(full + run.sweep, len(trace))
    known = end - full >= BATCHES_MIN or not trace.rows
    sums = counts.between(full if known else max(end - BATCHES_MIN, 0), end)
    if not sums["batches"]:
        sums, known = counts.between(0, len(trace)), False
    share = sums["loads"] / max(sums["wanted"], 1)
    return Loads(1 - share, wanted * share, len(trace) / max(len(counts.batches), 1), known)


# ---- how fast this machine computes


def pace_trace() -> SampledTrace:
    """Batches with rows at random, some rows far more often than others."""
    random = np.random.default_rng(0)
    drawn = (PACE_ROWS * random.random((PACE_BATCHES, PACE_DRAWS)) ** 2).astype(np.int64)
    ids = [np.unique(each) for each in drawn]
    ends, kept = np.cumsum([0, *map(len, ids)]), np.arange(PACE_ROWS)
    return SampledTrace(PACE_ROWS, 0, kept, np.concatenate(ids), ends, np.diff(ends))


@cache
def measure_pace(policy: str) -> float:
    """Seconds that computing takes on this machine, as a multiple of what the constants of
    `plan/costs.py` say, which are of one machine.

    The event loop spends most of its time on slot tables, so one with this policy is timed, in some
    tens of milliseconds. A process measures once, so that its predictions agree. It is no measure
    for topology, samplers and queues, because the same plan must come of the same arguments.
    """
    trace, run = pace_trace(), Run(policy, 1, PACE_SLOTS)
    seconds = []
    for _ in range(PACE_RUNS):
        began = thread_time()
        replay(run, trace, NOTHING, None)
        seconds.append(thread_time() - began)
    return min(seconds) / (PACE_ROW_S * len(trace.ids))
