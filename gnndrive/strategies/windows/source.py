"""`PartitionWindows`: what belongs to the windows of one epoch.

`WindowScheme` (`scheme.py`) makes one for each part of an epoch; `WindowFeed` (`feed.py`) takes
rows and graphs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from gnndrive.common.records import IndexPointers, Int64Array
from gnndrive.sampling.load_window import load_window
from gnndrive.sampling.rounds import StopToken
from gnndrive.sampling.schedules.base import Window
from gnndrive.sampling.window_graph import WindowGraph
from gnndrive.store.partitioned.format import TABLE
from gnndrive.store.partitioned.partitioned import touching
from gnndrive.strategies.windows.feed import Rows
from gnndrive.strategies.windows.plan import CHUNK_ROWS, PlannedWindows


class PartitionWindows:
    """The windows of an epoch; see `feed.WindowSource`.

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

    def in_edges_of(self, window: Window) -> int:
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
    """The rows from `first` to `last` - 1, in chunks that `WindowFeed` leases."""
    for start in range(first, last, CHUNK_ROWS):
        yield {TABLE: np.arange(start, min(start + CHUNK_ROWS, last))}
