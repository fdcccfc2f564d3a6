"""`WindowGraphs`: the graphs of windows, of which ranks that draw from the same ones have one each
(HierBatching, Algorithm 1).

A graph lies in one of two places, memories that ranks map when they come and that are filled again
and again. The first rank that opens a window has its graph loaded; the place is filled again after
the last rank has shut that window, when none samples in it any more.

A window that finds no place waits for one. That cannot be a deadlock if an older window has a
place: the turns of its batches come first, so its ranks shut it without this one (rule 15). A rank
may open a window that all others have left behind, and then younger ones may have all places. They
wait for the batches of this one, so that the rank is told to load the graph for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from gnndrive.common.records import Int32Array
from gnndrive.host.messages import ProtocolError, error_text
from gnndrive.sampling.rounds import StopToken
from gnndrive.store.partitioned.partitioned import Partitioned

LIVE_MAX = 2  # windows: one is trained on, the next one is loaded
Key: TypeAlias = tuple[int, int]
Load: TypeAlias = Callable[[int, Sequence[range], StopToken], Awaitable[Sequence[int]]]
"""(place, rows of the window, stop) → the sizes of the graph that it has loaded into the place."""


@dataclass(eq=False)
class _Graph:
    """The graph of a window.

    Attributes:
        rows: those of x that the window has.
        told: what ranks are told, once they can be.
        loading: runs from the moment when it has a place.
        ended: whether no rank needs it any more.
    """

    key: Key
    rows: Sequence[range]
    told: asyncio.Future[Mapping[str, Any]]
    stop: StopToken = field(default_factory=StopToken)
    loading: asyncio.Task[None] | None = None
    ended: bool = False


class WindowGraphs:
    """The graphs of the windows that a group's ranks have open; `load` reads them."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._live: dict[Key, _Graph] = {}
        self._places: dict[int, _Graph] = {}  # those that are used

    def open(self, key: Key, rows: Iterable[range]) -> asyncio.Future[Mapping[str, Any]]:
        """A rank needs the graph of a window. What is returned is done when it is loaded, and has
        the text of OPENED."""
        told: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._live[key] = _Graph(key, tuple(rows), told)
        self._go_on()
        return told

    def end(self, key: Key) -> None:
        """No rank needs the graph any more."""
        graph = self._live.pop(key)
        graph.ended = True
        graph.stop.set()
        if graph.loading is None or graph.loading.done():
            self._free(graph)

    def _free(self, graph: _Graph) -> None:
        self._places = {place: each for place, each in self._places.items() if each is not graph}
        self._go_on()

    def _go_on(self) -> None:
        """Load what waits for a place, the oldest windows first, as far as there are places."""
        for key, graph in sorted(self._live.items()):
            if graph.loading is not None or graph.told.done():
                continue
            if len(self._places) < LIVE_MAX:
                place = min(set(range(LIVE_MAX)) - self._places.keys())
                self._places[place] = graph
                loading = self._load_into(place, graph)
                graph.loading = asyncio.get_running_loop().create_task(loading)
            elif self._all_wait_for(key):
                graph.told.set_result({})

    def _all_wait_for(self, key: Key) -> bool:
        """Whether younger windows, which end after this one, have all places."""
        return all(key < each.key and not each.ended for each in self._places.values())

    async def _load_into(self, place: int, graph: _Graph) -> None:
        text: Mapping[str, Any]
        try:
            sizes = await self._load(place, graph.rows, graph.stop)
            text = {"place": place, "sizes": list(sizes)}
        except Exception as error:
            text = error_text(error)
        if graph.ended:
            self._free(graph)
        else:
            graph.told.set_result(text)

    async def aclose(self) -> None:
        """Wait for what is being loaded; all windows must have ended."""
        assert not self._live
        loading = [each.loading for each in self._places.values() if each.loading is not None]
        if loading:
            await asyncio.wait(loading)


def window_of(partitioned: Partitioned, rows: Sequence[range]) -> tuple[Int32Array, int]:
    """The partitions of the window that has these rows of x, in pieces, int32 [p], and the number
    of its static rows. ProtocolError: no window has them."""
    pieces = np.array(sorted([(0, 0), *((each.start, each.stop) for each in rows)]), np.int64)
    behind = partitioned.num_nodes  # static rows come from here on
    so_far = np.cumsum((pieces - pieces[:, :1]).reshape(-1))
    before = np.interp(partitioned.bounds, pieces.reshape(-1), so_far)  # rows before each bound
    sizes, found = np.diff(partitioned.bounds), np.diff(before)
    static, last = int(so_far[-1] - before[-1]), int(pieces[-1, 1])
    apart = (pieces[1:, 0] >= pieces[:-1, 1]).all() and (not static or last == behind + static)
    if not apart or not ((found == 0) | (found == sizes)).all():
        raise ProtocolError("these rows are not those of whole partitions and of static nodes")
    return np.flatnonzero((found == sizes) & (sizes > 0)).astype(np.int32), static
