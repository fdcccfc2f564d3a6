"""What every schedule must do, and that a schedule which does not is found."""

from __future__ import annotations

import itertools
import pickle
import resource
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import factorial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, holding_gil, lib, pointer
from gnndrive.common.records import Int32Array, Int64Array, Seeds
from gnndrive.loader.epoch_state import VERSION
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)
from gnndrive.sampling.schedules.given import Given
from gnndrive.sampling.schedules.recorded import Recorded
from gnndrive.sampling.schedules.shuffled import Shuffled
from tests.second import Dealt


@dataclass
class Parts:
    """The partition of each node; `asked`: how many nodes were looked up each time."""

    num_parts: int
    part: Int32Array
    asked: list[int] = field(default_factory=list)

    @classmethod
    def spread(cls, count: int, nodes: int = 1 << 12) -> Parts:
        """Partitions of as many nodes each, as good as at random."""
        return cls(count, _spread(count, nodes))

    def part_of(self, nodes: Int64Array) -> Int32Array:
        self.asked.append(len(nodes))
        return self.part[nodes]


@cache
def _spread(count: int, nodes: int) -> Int32Array:
    return (np.random.default_rng(0).permutation(nodes) % count).astype(np.int32)


def edges_between(source: Int64Array, target: Int64Array) -> InputEdges:
    def ends(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.from_numpy(source)[at], torch.from_numpy(target)[at], at

    return InputEdges(len(source), ends, "edges")


def parts_of(window: Window) -> list[int]:
    assert window.partitions is not None
    assert window.partitions.dtype == np.int32
    found: list[int] = window.partitions.tolist()
    return found


def batches(windows: Iterator[Window]) -> list[Seeds]:
    """All batches of an epoch, held against their numbers."""
    drawn: list[Seeds] = []
    for number, window in enumerate(windows):
        own = list(window.batches)
        assert (window.number, window.first) == (number, len(drawn)), "a wrong number of a window"
        assert window.count == len(own), "a wrong count of a window"
        drawn += own
    assert [seeds.index for seeds in drawn] == list(range(len(drawn))), "wrong numbers"
    return drawn


Inputs = InputNodes | InputEdges
NODES = 1 << 18  # of which a store of partitions has at least as many as there are inputs


def with_batches(context: ScheduleContext) -> ScheduleContext:
    """Of a loader with a batch sampler, which has an order of its own."""
    order: Any = SequentialSampler(range(len(context.inputs)))
    batches = BatchSampler(order, context.batch_size or 0, context.drop_last)
    return ScheduleContext(context.inputs, None, False, False, context.seed, batches)


def with_recording(context: ScheduleContext, epochs: int = 1) -> ScheduleContext:
    """Of a loader that replays batches of these inputs."""
    whole, rest = divmod(len(context.inputs), context.batch_size or 0)
    count = whole + bool(rest and not context.drop_last)
    recording: Any = SimpleNamespace(info=SimpleNamespace(batches=count, epochs=epochs))
    return replace(context, recording=recording)


def with_parts(context: ScheduleContext) -> ScheduleContext:
    """Of a loader whose store is partitioned; an epoch has four windows."""
    return replace(context, partitioned=Parts.spread(16, NODES), megabatch=4)


# Schedules that the standard context does not make, or whose order is not their own.
CONTEXTS: dict[str, Callable[[ScheduleContext], ScheduleContext]] = {
    "given": with_batches, "recorded": with_recording, "megabatch": with_parts,
    "marius": with_parts,
}  # fmt: skip
ORDERED_BY_OTHERS = ("given",)
REPLAYING = ("recorded",)
# Windows that are cut for themselves: their number, in the context above.
WINDOWED = {"megabatch": 4, "marius": 7}
OF_NODES = ("megabatch",)


def made(
    kind: type[Schedule], inputs: Inputs, batch_size: int = 10, shuffle: bool = True,
    drop_last: bool = False, seed: int = 3,
) -> Schedule:  # fmt: skip
    """A schedule of that kind; if it cannot be made, give it a context in CONTEXTS."""
    context = ScheduleContext(inputs, batch_size, shuffle, drop_last, seed)
    return kind.make(CONTEXTS.get(kind.name, lambda given: given)(context))


def positions(seeds: Seeds) -> list[Any]:
    """The positions of a batch's seeds, or the recorded batch that it replays."""
    return seeds.input_id.tolist() or [seeds.given() if seeds.given is not None else None]


def order(schedule: Schedule, epoch: int = 0) -> list[Any]:
    return [at for seeds in batches(schedule.windows(epoch)) for at in positions(seeds)]


def each_input_comes_once(kind: type[Schedule]) -> None:
    counts, sizes = (0, 1, 2, 7, 100, 103), (1, 2, 10, 103, 500)
    for drop_last, count, size in itertools.product((False, True), counts, sizes):
        shuffle = (count + size) % 2 == 0
        schedule = made(kind, InputNodes(count), size, shuffle, drop_last)
        drawn = batches(schedule.windows(4))
        assert len(schedule) == len(drawn), "a wrong length"
        if kind.name in REPLAYING:
            continue
        lengths = [len(seeds.node) for seeds in drawn]
        found = [at for seeds in drawn for at in seeds.input_id.tolist()]
        if drop_last:
            # Each window loses less than a batch, and as much is left out whatever they lose.
            whole = max(count // size - (WINDOWED.get(kind.name, 1) - 1), 0)
            assert lengths == [size] * whole, "other batches than whole ones"
            assert len(set(found)) == len(found)
        else:
            assert all(0 < each <= size for each in lengths), "too large a batch"
            assert sorted(found) == list(range(count)), "not each input once"


def seeds_are_those_of_the_inputs(kind: type[Schedule]) -> None:
    ids, time = torch.randperm(50) + 1000, torch.arange(50)
    for by_position in (False, True):
        drawn = batches(made(kind, InputNodes(50, ids, by_position, time), 7).windows(0))
        node = np.concatenate([seeds.node for seeds in drawn])
        assert sorted(node.tolist()) == sorted(ids.tolist())
        for seeds in drawn:
            given = seeds.given() if seeds.given is not None else None
            assert given is not None, "PyG's samplers are given nothing"
            assert given.node.tolist() == seeds.node.tolist()
            at = [ids.tolist().index(each) for each in seeds.node.tolist()]
            assert seeds.input_id.tolist() == (at if by_position else seeds.node.tolist())
            assert given.time.tolist() == time[at].tolist()
    edges = InputEdges(33, lambda at: (at + 100, at + 200, at), "edges")
    if kind.name in OF_NODES:
        with pytest.raises(ConfigError, match="seed nodes"):
            made(kind, edges, 8)
        return
    drawn = batches(made(kind, edges, 8).windows(2))
    assert all(seeds.of_edges for seeds in drawn)
    assert sorted(at for seeds in drawn for at in seeds.input_id.tolist()) == list(range(33))


def an_order_depends_on_seed_and_epoch(kind: type[Schedule]) -> None:
    """And on nothing else: not on the object, and not on what was drawn before."""
    schedule = made(kind, InputNodes(100))
    orders = [order(schedule, epoch) for epoch in (0, 1, 2, 3)]
    for epoch in (2, 0, 3, 1):
        assert order(schedule, epoch) == orders[epoch], "another order the second time"
        assert order(made(kind, InputNodes(100)), epoch) == orders[epoch]
    unshuffled = made(kind, InputNodes(100), shuffle=False)
    assert order(unshuffled, 0) == order(unshuffled, 7)
    if kind.name in ORDERED_BY_OTHERS:
        return
    orders += [order(made(kind, InputNodes(100), seed=seed), 1) for seed in (4, 2**62, -1)]
    assert len({tuple(each) for each in orders}) == 7, "epochs or seeds share an order"


def what_is_written_to_a_batch_changes_no_other(kind: type[Schedule]) -> None:
    ids = torch.arange(100)
    schedule = made(kind, InputNodes(100, ids), shuffle=False)
    expected = order(schedule)
    for window in schedule.windows(0):
        for seeds in window.batches:
            seeds.node[:] = -9
            seeds.input_id[:] = -9
    assert order(schedule) == expected
    assert ids.tolist() == list(range(100))


def assert_memory(schedule: Schedule) -> None:
    """Beginning two windows takes no more memory than the schedule says, as far as Python and numpy
    account for it."""
    assert type(schedule.order_bytes) is int
    tracemalloc.start()
    try:
        for window in itertools.islice(schedule.windows(0), 2):
            next(iter(window.batches))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= schedule.order_bytes + (1 << 16), "it takes more memory than it says"


def an_order_takes_no_more_memory_than_it_says(kind: type[Schedule]) -> None:
    for shuffle in (False, True):
        assert_memory(made(kind, InputNodes(NODES), 4, shuffle))


CONTRACT = (
    each_input_comes_once,
    an_order_depends_on_seed_and_epoch,
    an_order_takes_no_more_memory_than_it_says,
)
DRAWING = (seeds_are_those_of_the_inputs, what_is_written_to_a_batch_changes_no_other)


@pytest.mark.parametrize("check", CONTRACT + DRAWING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("schedule", [*plugins.names("schedules"), Dealt], ids=plugins.name_of)
def test_a_schedule_keeps_its_contract(schedule, check):
    if schedule not in REPLAYING or check in CONTRACT:
        check(plugins.find("schedules", schedule))


# ---- a broken one is found


def broken(change: Callable[[list[Window]], list[Window]]) -> Any:
    return type("Broken", (Dealt,), {
        "windows": lambda *given: iter(change(list(Dealt.windows(*given))))
    })  # fmt: skip


def each_batch(change: Callable[[int, Seeds], Seeds]) -> Any:
    return broken(lambda dealt: [
        replace(each, batches=[change(at, seeds) for at, seeds in enumerate(each.batches)])
        for each in dealt
    ])  # fmt: skip


class Stateful(Dealt):
    """Has other orders the second time it is asked."""

    asked = 0

    def windows(self, epoch: int) -> Iterator[Window]:
        self.asked += 1
        return super().windows(epoch + self.asked // 2)


def of_another(change: Callable[[ScheduleContext], dict[str, Any]]) -> Any:
    return type("Other", (Dealt,), {
        "make": classmethod(lambda kind, context: Dealt.make(replace(context, **change(context))))
    })  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "check", "message"),
    [
        (each_batch(lambda at, seeds: replace(seeds, input_id=0 * seeds.input_id)),
         each_input_comes_once, "not each input once"),
        (broken(lambda dealt: dealt[:-1]), each_input_comes_once, "a wrong length"),
        (each_batch(lambda at, seeds: replace(seeds, index=at)),
         each_input_comes_once, "wrong numbers"),
        (of_another(lambda given: {"batch_size": 2 * (given.batch_size or 0)}),
         each_input_comes_once, "too large a batch"),
        (of_another(lambda _: {"drop_last": False}), each_input_comes_once, "than whole ones"),
        (Stateful, an_order_depends_on_seed_and_epoch, "another order the second time"),
        (of_another(lambda _: {"seed": 0}), an_order_depends_on_seed_and_epoch,
         "epochs or seeds share an order"),
        (type("Unsparing", (Dealt,), {"order_bytes": 0}),
         an_order_takes_no_more_memory_than_it_says, "more memory than it says"),
    ],
)  # fmt: skip
def test_a_broken_schedule_is_found(schedule, check, message):
    with pytest.raises(AssertionError, match=message):
        check(schedule)


COUNT = 5
IDS = torch.tensor([30, 10, 20, 50, 40])
TIMES = torch.tensor([3, 1, 2, 5, 4])


INPUTS: dict[str, Callable[[], InputNodes | InputEdges]] = {
    "all": lambda: InputNodes(COUNT, time=TIMES),
    "ids": lambda: InputNodes(COUNT, IDS.clone(), time=TIMES),
    "mask": lambda: InputNodes(COUNT, IDS.clone(), by_position=False, time=TIMES),
    "edges": lambda: InputEdges(
        COUNT, lambda at: (at + 100, at + 200, at), "edges", label=IDS, time=TIMES),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("inputs", "node", "input_id"),
    [
        ("all", [4, 0, 4], [4, 0, -1]),
        ("ids", [40, 30, 40], [4, 0, -1]),
        ("mask", [40, 30, 40], [40, 30, 40]),
        ("edges", [104, 100, 104, 204, 200, 204], [4, 0, 4]),
    ],
)
def test_seeds_at_positions(inputs, node, input_id, dtype):
    """As in tensor indexing. As in PyG, `input_id` is the position as the caller gave it, or for a
    mask the node id."""
    edges, position = inputs == "edges", np.array([4, 0, -1], dtype)
    source = INPUTS[inputs]()
    seeds = source.seeds(7, position)
    assert (seeds.index, seeds.of_edges, seeds.type) == (7, edges, None)
    assert seeds.input_id.tolist() == input_id
    assert seeds.node.dtype == seeds.input_id.dtype == np.int64
    given: Any = seeds.given and seeds.given()
    assert given.time.tolist() == [4, 3, 4]
    if edges:
        assert torch.cat([given.row, given.col]).tolist() == node
        assert given.label.tolist() == [40, 30, 40]
    else:
        assert seeds.node.tolist() == given.node.tolist() == node
        assert given.input_id.tolist() == input_id
    for wrong in ([COUNT], [0, -COUNT - 1], [2**40]):
        with pytest.raises(IndexError, match=f"out of range: there are {COUNT}"):
            source.seeds(0, np.array(wrong))
    none = source.seeds(0, np.empty(0, np.int64))
    assert len(none.node) == len(none.input_id) == 0
    # What is written to a sampler's input changes no positions, seeds or inputs.
    kept = seeds.node.copy()
    for each in (given.input_id, given.time):
        each.fill_(-9)
    assert position.tolist() == [4, 0, -1]
    for each in (seeds, source.seeds(0, position)):
        assert each.node.tolist() == kept.tolist()
    assert TIMES.tolist() == [3, 1, 2, 5, 4]


def test_ids_are_pickled_once():
    node = torch.arange(10_000)
    assert len(pickle.dumps(InputNodes(len(node), node))) < 1.5 * node.nbytes


def test_a_batch_samplers_batch():
    for batch in ([3, 0], torch.tensor([[3], [0]]), np.array([3, 0], np.int32)):
        (window,) = Given(INPUTS["ids"](), [batch]).windows(0)
        assert [seeds.node.tolist() for seeds in window.batches] == [[50, 30]]


def shuffled(count: int, size: int, seed: int = 3, drop_last: bool = False) -> Shuffled:
    return Shuffled(ScheduleContext(InputNodes(count), size, True, drop_last, seed))


def test_an_order_does_not_depend_on_the_batch_size():
    """Also in batches so large that their order is drawn without the GIL."""
    whole = order(shuffled(20_001, 20_000))
    assert sorted(whole) == list(range(20_001))
    assert order(shuffled(20_001, 7)) == order(shuffled(20_001, 20_001)) == whole
    assert order(shuffled(20_001, 300, drop_last=True)) == whole[:19_800]
    # If this order changes, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is
    # restored from a saved state would continue in another order.
    assert (VERSION, order(shuffled(10, 3))) == (3, [1, 5, 9, 6, 2, 7, 4, 8, 0, 3])


def test_an_order_takes_memory_as_it_is_made_or_is_refused():
    """The first thousand of 2^28 numbers (1 GiB) touch a thousand pages of 4 KiB, also on a kernel
    that uses huge pages by default."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before, windows = resident(), shuffled(1 << 28, 1000).windows(0)
    next(windows)
    assert resident() - before < 100 << 20
    with pytest.raises(ConfigError, match=r"order of 8,796,.* input nodes .*shuffle=False"):
        next(shuffled(1 << 43, 1000).windows(0))


def test_every_order_is_as_likely_as_the_others():
    """Each of the 24 orders of four is expected 50 times in 1,200 seeds: chi-squared with 23
    degrees of freedom exceeds 50 once in a thousand times."""
    found = Counter(tuple(order(shuffled(4, 2, seed))) for seed in range(1200))
    assert len(found) == factorial(4)
    assert sum((times - 50) ** 2 / 50 for times in found.values()) < 50


@pytest.mark.parametrize("core", [lib, holding_gil], ids=["lib", "holding_gil"])
def test_orders_of_more_than_an_int32_can_count(core):
    """They take 8 bytes for each number, shorter ones 4; the width does not change the order."""
    count, out = 1000, {4: np.empty(1000, np.int64), 8: np.empty(1000, np.int64)}
    for width, numbers in out.items():
        swapped = np.zeros(count, f"i{width}")
        address = ffi.cast("void *", swapped.ctypes.data)
        for first in (0, 600):
            to = numbers[first : first + 600]
            core.gd_shuffle(address, width, count, 5, first, len(to), pointer(to))
    assert out[4].tolist() == out[8].tolist()
    # The last three of 2^40 numbers: the call accesses no memory before them.
    first, last, places = (1 << 40) - 3, np.empty(3, np.int64), np.zeros(3, np.int64)
    address = ffi.cast("void *", places.ctypes.data - first * places.itemsize)
    core.gd_shuffle(address, 8, 1 << 40, 5, first, 3, pointer(last))
    assert sorted(last - first) == [0, 1, 2]


BATCHES, EPOCHS = 11, 3


def replayed(epoch: int, shuffle: bool = True, seed: int = 5) -> list[Any]:
    """Which batches are replayed, of three recorded epochs of eleven batches."""
    context = ScheduleContext(InputNodes(105), 10, shuffle, False, seed)
    return order(Recorded.make(with_recording(context, EPOCHS)), epoch)


@pytest.mark.parametrize("epoch", [0, 2, 3, 7])
def test_an_epoch_replays_one_recording(epoch):
    """As it was recorded the first time or if it is not shuffled."""
    first = epoch % EPOCHS * BATCHES
    recorded = list(range(first, first + BATCHES))
    assert replayed(epoch, shuffle=False) == sorted(replayed(epoch)) == recorded
    assert (replayed(epoch) == recorded) is (epoch < EPOCHS)
    assert (replayed(epoch) == replayed(epoch, seed=6)) is (epoch < EPOCHS)


def test_nothing_is_replayed_without_a_pack():
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Recorded.make(ScheduleContext(InputNodes(105), 10))
