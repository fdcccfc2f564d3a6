"""The feature buffer of a loader that samples inside windows of a partitioned store.

It holds the static rows and those of two windows (HierBatching section 4): one is trained on while
the next one is loaded. Rows that both have are there once. `largest_window` says how many
partitions a window may have within the memory; `make_planner` (`choice.py`) calls
`partitioned_planner`, which makes the plan for windows of one size. The slots must hold two
windows, or batches would load rows one by one.

When not to use it: for batches that are sampled from the whole graph (`slots.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Shape
from gnndrive.common.memory import format_size, least_text
from gnndrive.common.records import NO_TOPOLOGY, TopologyChoice
from gnndrive.plan.plan import Budget, Plan, TablePlan, default_bytes
from gnndrive.plan.planner import Planner, StageCounts
from gnndrive.plan.request import PlanRequest, planner_of
from gnndrive.plan.windows import PlannedWindows
from gnndrive.sampling.schedules.base import WindowSizes

STAGES = StageCounts(2, 4, 3)
STAGE_NAMES = ("samplers", "extracting_queue", "training_queue")
FREE = "the part of the device's free memory that loading may use, "
QUARTER = "a quarter of the memory that is left, "
TOPOLOGY = TopologyChoice(NO_TOPOLOGY, "none, because each window has a graph of its own", 0)


@dataclass(frozen=True, slots=True)
class WindowSlots:
    """The feature buffer of a loader that samples inside windows; see `plan.plan.Slots`.

    Attributes:
        windows: what the windows need.
    """

    windows: PlannedWindows

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """See `Slots.fit`."""
        windows, (table,), slots = self.windows, shape.tables, self.windows.slots
        tables = (TablePlan(table.name, table.rows, slots, table.row_bytes, windows.nodes),)
        count = f"{windows.count} windows" if windows.count > 1 else "one window"
        in_common = 2 * windows.sizes.one - windows.sizes.two
        common = f", {in_common:,} of them in both" if in_common and windows.count > 1 else ""
        why = (
            f"{slots:,} rows: {windows.static:,} static ones and "
            f"{'two' if windows.count > 1 else 'one'} of {count}, each of "
            f"{windows.sizes.one:,} of {windows.partitioned.num_parts:,} partitions{common}"
        )
        return tables, why

    def said(self, plan: Plan) -> tuple[str, ...]:
        """See `Slots.said`."""
        return self.windows.said()

    def check(self, plan: Plan, budget: Budget) -> None:
        """See `Slots.check`."""
        windows, ranks, slots = self.windows, plan.ranks, plan.buffer_bytes
        limits = [("memory", "memory=", budget.memory, plan.host_bytes)]
        limits.append(("buffer", "buffer=", budget.buffer, slots * ranks))
        device, given = budget.device_memory, budget.device_given
        if given or (device is not None and not windows.chosen):
            said = "device_memory=" if given else FREE
            limits.append(("device_memory", said, device, plan.device_bytes))
        if not windows.chosen and (budget.memory, budget.buffer, device) == (None, None, None):
            limits.append(("buffer", QUARTER, default_bytes(ranks), slots * ranks))
        for name, said, limit, needed in limits:
            if limit is not None and needed > limit:
                raise ConfigError(
                    f"{said}{format_size(limit)} is too little for windows of "
                    f"{windows.megabatch:,} of {windows.partitioned.num_parts:,} partitions, which "
                    f'need {format_size(needed)}: give {name}="{least_text(needed)}", or '
                    f"{smaller(windows)}\n{plan}"
                )


def smaller(windows: PlannedWindows) -> str:
    """What makes a loader of windows need less memory, for error messages."""
    if windows.megabatch > 1:
        return "a smaller megabatch=, static= or batch_size="
    return (
        "a smaller static= or batch_size=, or partition the store into more parts (gnndrive "
        "partition)"
    )


def partitioned_planner(request: PlanRequest, windows: PlannedWindows) -> Planner:
    """The planner of a loader that samples inside windows."""
    request = windowed_request(request, windows)
    stages = StageCounts(*(int(getattr(request, name)) for name in STAGE_NAMES))
    planner = planner_of(request, stages)
    shape = replace(planner.shape, looks_ahead=False)  # whole windows are loaded
    return replace(
        planner, shape=shape, parts=(windows, *planner.parts), slots=WindowSlots(windows),
        topology=TOPOLOGY, beside=None, limits=None,
    )  # fmt: skip


def windowed_request(request: PlanRequest, windows: PlannedWindows) -> PlanRequest:
    """The request with what the windows change: their batches, the rows' file, and their own
    stages."""
    bounds = windows.within(request.bounds)
    planned = windows.planned(bounds)
    stages = {
        name: getattr(STAGES, name) if getattr(request, name) is None else getattr(request, name)
        for name in STAGE_NAMES
    }
    file = replace(windows.partitioned.x, row_count=windows.rows)
    return replace(
        request, tables=tuple(replace(table, file=file) for table in request.tables),
        bounds=bounds, seed_bounds=bounds, planned=planned, drawn=windows.drawn,
        shared=False, shared_graph=False, **stages,
    )  # fmt: skip


def largest_window(
    windows: PlannedWindows, sizes: Callable[[int], WindowSizes],
    fits: Callable[[PlannedWindows], bool], draw: Callable[[PlannedWindows], PlannedWindows],
) -> PlannedWindows:  # fmt: skip
    """The windows with the most partitions that fit into the memory, with what was drawn of them.

    How large batches are depends on the windows' size, so windows of a size that fits in any case
    are drawn first, then larger ones.

    Args:
        windows: with the fewest partitions in a window.
        sizes: takes the most partitions in a window, and returns the sizes of such windows; raises
            ConfigError if there cannot be such windows.
        fits: whether windows fit.
        draw: adds what is known of a window's batches, and draws some if nothing is known.

    Returns:
        Windows that fit; if not even the smallest do, these.
    """
    parts, least = windows.partitioned.num_parts, windows.megabatch

    def fitting(of: PlannedWindows, megabatch: int) -> PlannedWindows | None:
        """Windows whose batches are expected to be like those of `of`; None: they do not fit."""
        try:
            tried = replace(of, sizes=sizes(megabatch))
        except ConfigError:
            return None
        return tried if fits(tried) else None

    def most(of: PlannedWindows) -> PlannedWindows:
        """The largest of these windows that fit; the smallest if none do."""
        best, low, high = replace(of, sizes=windows.sizes), least, parts
        while low < high:
            middle = (low + high + 1) // 2
            tried = fitting(of, middle)
            if tried is None:
                high = middle - 1
            else:
                best, low = tried, middle
        return best

    found = draw(most(windows))
    for _ in range(3):
        larger = most(found)
        if larger.megabatch == found.megabatch:
            break
        found = draw(larger)
    while found.megabatch > least and not fits(found):
        fewer = max(found.megabatch * 9 // 10, least)
        found = draw(replace(found, sizes=sizes(fewer)))
    return found
