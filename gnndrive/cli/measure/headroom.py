"""What each part of training costs: the same batches, with one part after the other made free.

`Bench` makes a new loader for each line and each round, in turn, because others use the disk and
the processors too. In a run the first batches are not timed, so that queues and feature buffer are
as full as they are in the middle of an epoch (twice as many where the buffer is twice as large);
the run goes on into further epochs if one is short.

Before the first round the batches are drawn once, with a free disk. Their samples are kept for the
runs with a free sampler, a few whole batches for those with a free loader, and the page cache gets
the adjacency for those with a free disk (`free.py`). Rows that were not read are zeros, so the
training step must take as long for any values, as a model's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from statistics import median
from time import perf_counter
from typing import Any, Literal

from gnndrive.cli.measure.free import FreeReads, KeptSamples, bytes_of, with_replaying_sampler
from gnndrive.cli.measure.verdict import Headroom
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import available_memory, format_size
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.loader.store_loader import plan_for_ranks
from gnndrive.plan.costs import DISK, Loading, step_seconds
from gnndrive.plan.plan import Plan
from gnndrive.sampling.graph import graph_sizes
from gnndrive.store.calibration import load_calibration
from gnndrive.store.reader import Store

SAMPLES_SHARE = 0.25  # of the available memory, for the samples that are kept
BATCHES_SHARE = 0.125  # likewise, for whole batches
BATCHES_KEPT = 3
WARM_UP_MIN, WARM_UP_MAX = 2, 32
COUNTED = (
    "rows_hit", "rows_waited", "rows_loaded", "requests", "bytes_read",
    "topology_requests", "topology_bytes_read", "wait_slots_s",
)  # fmt: skip

Free = Literal["nothing", "sampler", "disk", "loader", "step", "buffer"]
LINES: tuple[Free, ...] = ("nothing", "sampler", "disk", "loader", "step")
Step = Callable[[Any], object]
MakeLoader = Callable[..., NeighborLoader]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a line: seconds a batch, and what the loader, if there was one, counted."""

    seconds: float
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Measured:
    """All runs, and what they were made with.

    Attributes:
        runs: what was free → its runs; "buffer": nothing, but the buffer was twice as large.
        batches, warm_up: batches a run, timed and before.
        plan: the loader's.
        notes: what a reader must know of these figures.
        twice_s, predicted, calibrated_s: see `Headroom`.
    """

    runs: dict[Free, list[Run]]
    batches: int
    warm_up: int
    plan: Plan
    notes: list[str]
    twice_s: float | None = None
    predicted: bool = False
    calibrated_s: float | None = None

    def seconds(self, free: Free) -> float:
        """The median of a line's runs."""
        return median(run.seconds for run in self.runs[free])

    def headroom(self) -> Headroom:
        """What the verdict is made of."""
        real = self.runs["nothing"]
        total = {name: sum(run.stats.get(name, 0.0) for run in real) for name in COUNTED}
        rows = total["rows_hit"] + total["rows_waited"] + total["rows_loaded"]
        known = all("wait_slots_s" in run.stats for run in real)
        elapsed_s = sum(run.seconds for run in real) * self.batches
        return Headroom(
            {free: self.seconds(free) for free in LINES}, self.twice_s, self.predicted,
            total["rows_hit"] / rows if rows else None,
            total["wait_slots_s"] / elapsed_s if known else None, self.calibrated_s,
            {free: (min(all_s), max(all_s)) for free in LINES
             if (all_s := [run.seconds for run in self.runs[free]])},
        )  # fmt: skip


class Bench:
    """Measures all lines.

    Args:
        make: makes loaders of the user's options; keyword arguments replace some of them.
        step: trains on a batch; must take as long for any values of its rows.
        batches, rounds: batches that are timed in a run, and runs of each line.
        warm_up: batches before them; None: until rows leave the feature buffer, at most 32, and two
            more.
        say: told what goes on.
    """

    def __init__(
        self, store: Store, make: MakeLoader, step: Step, batches: int, rounds: int,
        warm_up: int | None, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._store, self._make, self._step, self._say = store, make, step, say
        self._batches, self._rounds = batches, rounds
        self._asked_warm_up, self._warm_up = warm_up, warm_up or WARM_UP_MIN
        available = available_memory()
        self._samples = KeptSamples(int(SAMPLES_SHARE * available))
        self._batch_bytes_most = int(BATCHES_SHARE * available)
        self._kept: list[Any] = []
        self._notes: list[str] = []

    def measure(self) -> Measured:
        """Draw the batches, and time all lines in turn.

        Raises:
            ConfigError: the loader's options cannot work, or memory has no room for the samples.
        """
        with self._make() as loader:
            planned = plan_for_ranks(loader, 1, False)
        plan, stages = planned.planner.plan(), planned.planner.stages
        # batches that are sampled behind the one that was delivered last
        ahead = int(stages.extracting_queue + stages.training_queue + 1)
        self._replaying = with_replaying_sampler(planned.strategy, self._samples)
        self._make = partial(self._make, strategy=planned.strategy)
        if plan.memory is None:  # else the default would change while batches are kept
            self._make = partial(self._make, buffer=plan.buffer_bytes)
        self._draw(plan, ahead)
        twice = self._twice(plan)
        runs: dict[Free, list[Run]] = {free: [] for free in LINES}
        if twice is not None:
            runs["buffer"] = []
        for number in range(1, self._rounds + 1):
            for free, done in runs.items():
                run = self._run(free, plan, twice or {})
                done.append(run)
                self._say(f"round {number}/{self._rounds}: {NAMES[free]}: {run.seconds:.4g} s")
        found = Measured(runs, self._batches, self._warm_up, plan, self._notes)
        found.calibrated_s = self._calibrated(runs["nothing"])
        if twice is not None:
            found.twice_s = found.seconds("buffer")
        elif planned.loading is not None and not plan.holds_everything:
            found.twice_s, found.predicted = _predicted(found, plan, planned.loading), True
        return found

    # ---- before the rounds

    def _draw(self, plan: Plan, ahead: int) -> None:
        """Draw the batches that all runs will load, and keep what the free runs need of them."""
        done, asked = 0, self._asked_warm_up
        full = asked is not None
        with self._make(strategy=self._replaying, engine=FreeReads) as loader:
            for batch in _epochs(loader):
                done += 1
                if not full:  # rows have left the buffer, or it was large enough for an epoch
                    full = float(loader.stats()["evictions"]) > 0 or done >= WARM_UP_MAX
                    self._warm_up = done + WARM_UP_MIN
                self._keep(batch)
                if self._samples.full or (full and done >= self._warm_up + self._batches + ahead):
                    break
            evicted = float(loader.stats()["evictions"])
        self._samples.keeps = False
        if self._samples.full:
            self._fit(ahead)
        if asked is None and not evicted and not plan.holds_everything:
            self._notes.append(
                f"the feature buffer was not full after {self._warm_up} batches: later ones find "
                "more rows in it; --warm-up says how many are not timed"
            )
        self._say(
            f"{self._samples.count} samples are kept ({format_size(self._samples.nbytes)}), and "
            f"{len(self._kept)} whole batches"
        )

    def _keep(self, batch: Any) -> None:
        """Keep a whole batch, if it fits; at least one."""
        nbytes = bytes_of([value for _, value in batch])
        held = sum(bytes_of([value for _, value in each]) for each in self._kept)
        if not self._kept or (
            len(self._kept) < BATCHES_KEPT and held + nbytes <= self._batch_bytes_most
        ):
            self._kept.append(batch)

    def _fit(self, ahead: int) -> None:
        """Measure fewer batches, because memory has no room for the samples of all."""
        share = f"{SAMPLES_SHARE:.0%} of the available memory"
        kept = self._samples.count
        if self._asked_warm_up is None:
            self._warm_up = min(self._warm_up, max(kept // 2, 1))
        left = kept - self._warm_up
        if left < 1:
            raise ConfigError(
                f"{share} has room for the samples of {kept} batches, so none can be timed after "
                f"{self._warm_up} others: give a smaller --batch-size, --fanout or --warm-up"
            )
        batches = min(self._batches, max(left - ahead, 1))
        if batches < self._batches:
            self._notes.append(
                f"{batches} batches are timed, not {self._batches}, because the samples that are "
                f"kept may take {share}"
            )
        self._batches = batches

    def _twice(self, plan: Plan) -> dict[str, Any] | None:
        """Arguments of a loader with twice the feature buffer; None: it holds all rows, it is not
        in host memory, or memory has no room for it."""
        more = plan.buffer_bytes + plan.slots * plan.slot_table_bytes
        least = plan.total_bytes + more
        if plan.holds_everything or plan.on_device or least > available_memory():
            return None
        instead: dict[str, Any] = {"buffer": 2 * plan.buffer_bytes}
        if plan.memory is not None:
            instead |= {"memory": plan.memory + more, "topology": plan.topology.kind}
        try:
            with self._make(**instead) as loader:
                plan_for_ranks(loader, 1, False).planner.plan()
        except (ConfigError, NotImplementedError):
            return None
        return instead

    # ---- one run

    def _run(self, free: Free, plan: Plan, twice: dict[str, Any]) -> Run:
        """Time the batches once."""
        if free == "loader":
            return self._steps_alone()
        instead: dict[str, Any] = {
            "sampler": {"strategy": self._replaying},
            "disk": self._without_disk(plan),
            "buffer": twice,
        }.get(free, {})
        step: Step = (lambda batch: None) if free == "step" else self._step
        with self._make(**instead) as loader:
            batches = _epochs(loader)
            for _ in range((1 + (free == "buffer")) * self._warm_up):
                step(next(batches))
            before, started = loader.stats(), perf_counter()
            for _ in range(self._batches):
                step(next(batches))
            seconds = (perf_counter() - started) / self._batches
            after = loader.stats()
        return Run(seconds, {
            name: float(after[name]) - float(before.get(name, 0)) for name in COUNTED
            if name in after
        })  # fmt: skip

    def _without_disk(self, plan: Plan) -> dict[str, Any]:
        """Arguments of a loader for which the disk is free. If the adjacency stays on disk and the
        page cache has no room for it, samples are replayed, too."""
        instead: dict[str, Any] = {"engine": FreeReads}
        nbytes = sum(size.indices_bytes for size in graph_sizes(self._store))
        if plan.topology.name == "resident" or nbytes <= available_memory() - plan.total_bytes:
            return instead
        note = (
            f"without the disk, samples are replayed, too: the page cache has no room for the "
            f"adjacency, {format_size(nbytes)}"
        )
        if note not in self._notes:
            self._notes.append(note)
        return instead | {"strategy": self._replaying}

    def _steps_alone(self) -> Run:
        """Time the training step on the batches that are kept."""
        self._step(self._kept[0])
        started = perf_counter()
        for number in range(self._batches):
            self._step(self._kept[number % len(self._kept)])
        return Run((perf_counter() - started) / self._batches)

    def _calibrated(self, runs: list[Run]) -> float | None:
        """Seconds a batch that the reads of these runs take by the disk's calibration."""
        cost = load_calibration(self._store)
        if cost is None:
            return None
        requests, nbytes = (
            sum(run.stats.get(name, 0.0) + run.stats.get(f"topology_{name}", 0.0) for run in runs)
            for name in ("requests", "bytes_read")
        )
        return cost.seconds(requests, nbytes) / (len(runs) * self._batches)


NAMES: dict[Free, str] = {
    "nothing": "nothing", "sampler": "the sampler", "disk": "the disk", "loader": "the loader",
    "step": "the training step", "buffer": "nothing, but twice the buffer",
}  # fmt: skip
"""How a line is called."""


def _epochs(loader: NeighborLoader) -> Iterator[Any]:
    """Batches, epoch after epoch, without end."""
    return chain.from_iterable(repeat(loader))


def _predicted(found: Measured, plan: Plan, loading: Loading) -> float | None:
    """Seconds a batch with twice the buffer: what a free disk saves shrinks as the seconds of the
    disk do that are predicted for both buffers; None: nothing is read."""
    tables = tuple(replace(each, slots=min(2 * each.slots, each.rows)) for each in plan.tables)
    now, then = (step_seconds(each, loading)[DISK] for each in (plan, replace(plan, tables=tables)))
    if not now:
        return None
    real, free = found.seconds("nothing"), found.seconds("disk")
    return free + max(real - free, 0.0) * min(then / now, 1.0)
