"""The graphs of windows that ranks share: which windows have places, and which windows rows say."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ClosedError, StoreError
from gnndrive.host.messages import Kind, ProtocolError, error_from
from gnndrive.host.window_graphs import WindowGraphs, window_of
from gnndrive.sampling.load_window import attach_window, load_window, window_bytes_max
from gnndrive.sampling.rounds import StopToken
from tests.host.spoken import in_loop, some_turns, two_ranks
from tests.store.partitioned.made import make_folder, make_store

Told = asyncio.Future[Mapping[str, Any]]


class Loading:
    """`load` of a `WindowGraphs`: each call waits for an outcome; `began` has their places."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.stops: list[StopToken] = []
        self._outcomes: list[asyncio.Future[Sequence[int]]] = []

    async def __call__(self, place: int, rows: Sequence[range], stop: StopToken) -> Sequence[int]:
        self.began.append(place)
        self.stops.append(stop)
        self._outcomes.append(asyncio.get_running_loop().create_future())
        return await self._outcomes[-1]

    async def end(self, call: int, error: Exception | None = None) -> None:
        outcome = self._outcomes[call]
        outcome.set_result([call]) if error is None else outcome.set_exception(error)
        await some_turns(3)


async def opened(graphs: WindowGraphs, *numbers: int) -> list[Told]:
    told = [graphs.open((0, number), [range(number)]) for number in numbers]
    await some_turns(3)
    return told


@in_loop
async def test_a_place_is_filled_again_when_its_window_has_ended():
    loading = Loading()
    graphs = WindowGraphs(loading)
    zero, one, two, three = await opened(graphs, 0, 1, 2, 3)
    assert loading.began == [0, 1]
    await loading.end(1)
    assert not zero.done()
    assert one.result() == {"place": 1, "sizes": [1]}
    graphs.end((0, 1))
    await some_turns(3)
    assert loading.began == [0, 1, 1], "the older one of those that wait"
    graphs.end((0, 0))  # while it is loaded
    await some_turns(3)
    assert loading.stops[0]
    assert loading.began == [0, 1, 1], "its loading has not ended"
    await loading.end(0, ClosedError("stopped"))
    assert loading.began == [0, 1, 1, 0]
    await loading.end(2, StoreError("is damaged"))
    await loading.end(3)
    assert not zero.done()
    assert str(error_from(two.result())) == "is damaged"
    assert three.result() == {"place": 0, "sizes": [3]}
    for number in (2, 3):
        graphs.end((0, number))
    await graphs.aclose()


@in_loop
async def test_a_window_is_not_shared_if_younger_ones_have_all_places():
    """They would wait for its batches. It waits while one of them has ended, but is being loaded;
    `aclose` waits for that, too."""
    loading = Loading()
    graphs = WindowGraphs(loading)
    await opened(graphs, 2, 3)
    (one,) = await opened(graphs, 1)
    assert one.result() == {}
    graphs.end((0, 1))
    graphs.end((0, 3))
    (again,) = await opened(graphs, 1)
    assert not again.done()
    for number in (1, 2):
        graphs.end((0, number))
    closing = asyncio.ensure_future(graphs.aclose())
    await some_turns(3)
    assert not closing.done()
    for call in range(2):
        await loading.end(call, ClosedError("stopped"))
    await closing


@in_loop
async def test_ranks_are_told_where_a_graph_is(rows):
    """When the rows are there, too; and the last rank that shuts the window ends it."""
    loading = Loading()
    async with two_ranks(rows, graphs=WindowGraphs(loading)) as (_, _, first, second):
        for rank in (first, second):
            rank.open(0, range(4))
        await some_turns()
        assert not first.heard(Kind.OPENED)
        await loading.end(0)
        for rank in (first, second):
            told = await rank.answer(Kind.OPENED)
            assert told.text == {"place": 0, "sizes": [0]}
        first.say(Kind.SHUT)
        assert not loading.stops[0]
        second.say(Kind.END)
        assert loading.stops[0]


@pytest.fixture
def partitioned(tmp_path):
    store = make_store(tmp_path / "graph.gnn", 300, 4000)
    part = np.random.default_rng(2).choice([0, 1, 3, 4, 5], 300)  # the third one is empty
    return store, make_folder(store, part, 6, static=0.2)


def test_rows_say_which_window_they_are(partitioned):
    _, made = partitioned
    bounds, behind = made.bounds.tolist(), made.num_nodes
    pieces = [range(behind, behind + 30), range(bounds[3], bounds[5] - 3)]
    pieces += [range(bounds[5] - 3, bounds[5]), range(bounds[0], bounds[1])]
    found, static = window_of(made, pieces)
    assert (found.tolist(), static) == ([0, 3, 4], 30)
    assert found.dtype == np.int32
    assert window_of(made, [])[0].tolist() == []
    for bad in (
        range(bounds[0], bounds[1] + 1), range(1, bounds[1]), range(behind + 1, behind + 3),
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match="whole partitions"):
            window_of(made, [bad])
    with pytest.raises(ProtocolError, match="whole partitions"):
        window_of(made, [range(bounds[1]), range(bounds[1])])


def test_a_graph_in_shared_memory(partitioned):
    """Is the same as one in a process's own, also where a larger one was before."""
    store, made = partitioned
    pointers = store.edges().index_pointers
    memory = np.zeros(window_bytes_max(made), np.uint8)
    for partitions, k in ((range(6), 60), ([0, 3], 20), ([], 0)):
        numbers = np.array(partitions, np.int32)
        own = load_window(made, pointers, numbers, k)
        sizes = load_window(made, pointers, numbers, k, memory=memory).sizes
        shared = attach_window(made, numbers, memory, list(sizes))
        for name in ("_indptr", "_indices", "positions", "store_ids", "new_ids", "_keys", "_empty"):
            ours, others = getattr(shared, name), getattr(own, name)
            assert np.array_equal(ours, others), name
            assert np.shares_memory(ours, memory) or not len(ours)
        assert shared.nbytes == own.nbytes
