"""`Megabatches`: how a loader uses a partitioned store; `MegabatchSource`: an epoch's windows.

`choose_megabatches` (`window_size.py`) makes a loader's `Megabatches` once. Each epoch has a
`MegabatchSource`, from which the pipeline's keeper takes rows and graphs (`pipeline/windows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from statistics import median
from typing import Any

import numpy as np

from gnndrive.common.records import IndexPointers, Int64Array
from gnndrive.loader.find_partitioned import AUTO
from gnndrive.loader.ranks import Ranks
from gnndrive.pipeline.windows import Rows
from gnndrive.plan.windows import CHUNK_ROWS, PlannedWindows
from gnndrive.sampling.dealing import skip
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window
from gnndrive.sampling.window_graph import WindowGraph
from gnndrive.store.partitioned.format import TABLE
from gnndrive.store.partitioned.partitioned import Partitioned, touching
from gnndrive.store.reader import Store

PASSES_MAX = 8  # that are chosen
_DIGITS = 12  # of a checksum, in a state


def passes_for(seconds: Collection[tuple[float, float]]) -> int | None:
    """How many passes hide the loading of windows; None: no window was measured.

    Args:
        seconds: of each window, those that loading it took and those that its batches took.
    """
    if not seconds:
        return None
    load, compute = (median(each) for each in zip(*seconds, strict=True))
    if load >= PASSES_MAX * compute:
        return PASSES_MAX
    return max(int(load / compute), 1)


@dataclass(frozen=True)
class Megabatches:
    """How a loader uses a partitioned store.

    Attributes:
        windows: how large windows are, and what they need.
        passes: how often a window's batches come.
        measured: whether `passes` follows from what a first epoch's windows took (`passes_for`).
        order: see `ScheduleContext`.
    """

    windows: PlannedWindows
    passes: int = 1
    order: str | None = None
    measured: bool = False

    @property
    def partitioned(self) -> Partitioned:
        """The partitioned store."""
        return self.windows.partitioned

    def settings(self) -> dict[str, Any]:
        """What batches depend on, by the names of arguments, in a form that JSON can hold."""
        arrays = self.partitioned.info.arrays
        checksums = f"{arrays['order'].checksum} {arrays['bounds'].checksum}"
        return {
            "partitioned": sha256(checksums.encode()).hexdigest()[:_DIGITS],
            "megabatch": self.windows.megabatch, "static": self.windows.static,
            "passes": AUTO if self.measured else self.passes, "order": self.order,
        }  # fmt: skip

    def context(self, context: ScheduleContext, ranks: Ranks) -> ScheduleContext:
        """What the schedule of windows is made from."""
        dealt = ranks.dealt_by == "loader"
        return replace(
            context, partitioned=self.partitioned, megabatch=self.windows.megabatch,
            passes=self.passes, order=self.order,
            rank=ranks.rank if dealt else 0, world=ranks.world if dealt else 1,
        )  # fmt: skip

    def sources(
        self, store: Store, schedule: Schedule, number: int, done: int
    ) -> Callable[[int], MegabatchSource]:
        """What makes the source of an epoch's windows.

        Args:
            store: the store.
            schedule: the epoch's.
            number: the epoch's number.
            done: how many of this rank's batches were done before.

        Returns:
            Takes how many batches were yielded since then.
        """

        def source(yielded: int) -> MegabatchSource:
            def left() -> Iterator[Window]:
                return skip(schedule.windows(number), done + yielded)

            return MegabatchSource(self.windows, store.edges().index_pointers, left)

        return source


class MegabatchSource:
    """The windows of an epoch; see `pipeline.windows.WindowSource`.

    Args:
        windows: how large they are.
        index_pointers: of the store.
        left: yields the windows that have batches left.
    """

    def __init__(
        self, windows: PlannedWindows, index_pointers: IndexPointers,
        left: Callable[[], Iterator[Window]],
    ) -> None:  # fmt: skip
        self._windows, self._partitioned = windows, windows.partitioned
        self._index_pointers, self._left = index_pointers, left
        self._stop = StopToken()

    def windows(self) -> Iterator[Window]:
        """See `WindowSource.windows`."""
        return self._left()

    def kept_rows(self) -> Iterator[Rows]:
        """See `WindowSource.kept_rows`: the static rows, which lie behind all partitions."""
        first = self._partitioned.num_nodes
        return _chunks(first, first + self._windows.static)

    def rows_of(self, window: Window) -> Iterator[Rows]:
        """See `WindowSource.rows_of`."""
        assert window.partitions is not None
        bounds = self._partitioned.bounds
        first, last = touching(bounds, window.partitions)
        for begin, end in zip(bounds[first].tolist(), bounds[last + 1].tolist(), strict=True):
            yield from _chunks(begin, end)

    def codes_of(self, window: Window) -> int:
        """How many in-edges the nodes of a window's graph have in the store."""
        assert window.partitions is not None
        static = int(self._partitioned.static_bounds[self._windows.static])
        return static + int(self._other_codes[window.partitions].sum())

    @cached_property
    def _other_codes(self) -> Int64Array:
        """The in-edges of the nodes of each partition that are not static, int64 [P]."""
        partitioned, static = self._partitioned, self._windows.static
        home = np.searchsorted(partitioned.bounds, partitioned.home[:static], "right") - 1
        found = np.diff(partitioned.edge_bounds)
        np.subtract.at(found, home, np.diff(partitioned.static_bounds[: static + 1]))
        return found

    def graph(self, window: Window) -> WindowGraph:
        """See `WindowSource.graph`."""
        assert window.partitions is not None
        return load_window(
            self._partitioned, self._index_pointers, window.partitions, self._windows.static,
            self._stop,
        )  # fmt: skip

    def stop(self) -> None:
        """See `WindowSource.stop`."""
        self._stop.set()


def _chunks(first: int, last: int) -> Iterator[Rows]:
    """The rows from `first` to `last` - 1, in chunks that the keeper leases."""
    for start in range(first, last, CHUNK_ROWS):
        yield {TABLE: np.arange(start, min(start + CHUNK_ROWS, last))}
