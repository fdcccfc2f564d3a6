"""What every schedule must do, and that a schedule which does not is found.

A schedule that replays batches knows their seeds only when they are read, so rules about seeds are
for schedules that draw them; `test_recorded.py` has what replaying adds. A schedule of mega-batches
cuts each window for itself, so that it has more batches in an epoch, and with drop_last fewer whole
ones; `test_megabatch.py` and `test_marius.py` hold these to their own rules.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Seeds
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)
from tests.sampling.schedules.parts import Parts
from tests.second import Dealt

Inputs = InputNodes | InputEdges
COUNTS = (0, 1, 2, 7, 100, 103)
SIZES = (1, 2, 10, 103, 500)


def standard(
    inputs: Inputs, batch_size: int, shuffle: bool, drop_last: bool, seed: int
) -> ScheduleContext:
    """The context of a loader that draws its seeds itself."""
    return ScheduleContext(inputs, batch_size, shuffle, drop_last, seed)


def with_batches(
    inputs: Inputs, batch_size: int, shuffle: bool, drop_last: bool, seed: int
) -> ScheduleContext:
    """The context of a loader with a batch sampler, which has an order of its own."""
    order = SequentialSampler(range(len(inputs)))
    batches = BatchSampler(order, batch_size, drop_last)
    return ScheduleContext(inputs, None, False, False, seed, batches)


def with_recording(
    inputs: Inputs, batch_size: int, shuffle: bool, drop_last: bool, seed: int, epochs: int = 1
) -> ScheduleContext:
    """The context of a loader that replays batches of these inputs."""
    whole, rest = divmod(len(inputs), batch_size)
    count = whole + bool(rest and not drop_last)
    recording: Any = SimpleNamespace(info=SimpleNamespace(batches=count, epochs=epochs))
    return replace(standard(inputs, batch_size, shuffle, drop_last, seed), recording=recording)


def with_parts(
    inputs: Inputs, batch_size: int, shuffle: bool, drop_last: bool, seed: int
) -> ScheduleContext:
    """The context of a loader whose store is partitioned; an epoch has four windows."""
    context = standard(inputs, batch_size, shuffle, drop_last, seed)
    return replace(context, partitioned=Parts.spread(16), megabatch=4)


# Schedules that the standard context does not make, or whose order is not their own.
CONTEXTS: dict[str, Callable[..., ScheduleContext]] = {
    "given": with_batches, "recorded": with_recording, "megabatch": with_parts,
    "marius": with_parts,
}  # fmt: skip
ORDERED_BY_OTHERS = ("given",)
REPLAYING = ("recorded",)
# Windows that are cut for themselves: their number, in the context above.
WINDOWED = {"megabatch": 4, "marius": 7}
OF_NODES = ("megabatch",)


def made(
    kind: type[Schedule],
    inputs: Inputs,
    batch_size: int = 10,
    shuffle: bool = True,
    drop_last: bool = False,
    seed: int = 3,
) -> Schedule:
    """A schedule of that kind."""
    context = CONTEXTS.get(kind.name, standard)
    try:
        return kind.make(context(inputs, batch_size, shuffle, drop_last, seed))
    except Exception as error:
        pytest.fail(
            f"the schedule {kind.name!r} cannot be made from the standard context ({error!r}): "
            "give it one in CONTEXTS of this test"
        )


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


def positions(seeds: Seeds) -> list[Any]:
    """The positions of a batch's seeds, or the recorded batch that it replays."""
    return seeds.input_id.tolist() or [seeds.given() if seeds.given is not None else None]


def order(schedule: Schedule, epoch: int = 0) -> list[Any]:
    """The positions of an epoch, batch after batch."""
    return [at for seeds in batches(schedule.windows(epoch)) for at in positions(seeds)]


# ---- the contract


def each_input_comes_once(kind: type[Schedule]) -> None:
    for count in COUNTS:
        for size in SIZES:
            for shuffle in (False, True):
                schedule = made(kind, InputNodes(count), size, shuffle)
                assert sorted(order(schedule, 4)) == list(range(count)), "not each input once"


def what_is_dropped_is_less_than_a_batch(kind: type[Schedule]) -> None:
    for count in COUNTS:
        for size in SIZES:
            drawn = batches(made(kind, InputNodes(count), size, drop_last=True).windows(0))
            sizes = [len(seeds.node) for seeds in drawn]
            # Each window loses less than a batch, and as much is left out whatever they lose.
            whole = max(count // size - (WINDOWED.get(kind.name, 1) - 1), 0)
            assert sizes == [size] * whole, "other batches than whole ones"
            assert len({at for seeds in drawn for at in seeds.input_id.tolist()}) == whole * size


def no_batch_is_larger_than_planned(kind: type[Schedule]) -> None:
    """Memory is counted for so many seeds."""
    for count in COUNTS:
        for size in SIZES:
            drawn = batches(made(kind, InputNodes(count), size).windows(0))
            assert all(0 < len(seeds.node) <= size for seeds in drawn), "too large a batch"


def its_length_is_the_number_of_batches(kind: type[Schedule]) -> None:
    for count in COUNTS:
        for size in SIZES:
            for drop_last in (False, True):
                schedule = made(kind, InputNodes(count), size, drop_last=drop_last)
                assert len(schedule) == len(batches(schedule.windows(1))), "a wrong length"


def seeds_are_those_of_the_inputs(kind: type[Schedule]) -> None:
    ids, time = torch.randperm(50) + 1000, torch.arange(50)
    for by_position in (False, True):
        inputs = InputNodes(50, ids, by_position, time)
        drawn = batches(made(kind, inputs, 7).windows(0))
        node = np.concatenate([seeds.node for seeds in drawn])
        assert sorted(node.tolist()) == sorted(ids.tolist())
        for seeds in drawn:
            assert seeds.node.dtype == seeds.input_id.dtype == np.int64
            given = seeds.given() if seeds.given is not None else None
            assert given is not None, "PyG's samplers are given nothing"
            assert given.node.tolist() == seeds.node.tolist()
            at = [ids.tolist().index(each) for each in seeds.node.tolist()]
            assert seeds.input_id.tolist() == (at if by_position else seeds.node.tolist())
            assert given.time.tolist() == time[at].tolist()


def edges_are_seeds_too(kind: type[Schedule]) -> None:
    if kind.name in OF_NODES:
        with pytest.raises(ConfigError, match="seed nodes"):
            kind.make(CONTEXTS[kind.name](InputEdges(33, stops, "edges"), 8, True, False, 3))
        return

    def ends(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return at + 100, at + 200, at

    drawn = batches(made(kind, InputEdges(33, ends, "edges"), 8).windows(2))
    assert all(seeds.of_edges for seeds in drawn)
    assert sorted(at for seeds in drawn for at in seeds.input_id.tolist()) == list(range(33))


def stops(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raise AssertionError("these edges are not needed")


def an_order_depends_on_seed_and_epoch(kind: type[Schedule]) -> None:
    """And on nothing else: not on the object, and not on what was drawn before."""
    schedule = made(kind, InputNodes(100))
    orders = [order(schedule, epoch) for epoch in (0, 1, 2, 3)]
    for epoch in (2, 0, 3, 1):
        assert order(schedule, epoch) == orders[epoch], "another order the second time"
        assert order(made(kind, InputNodes(100)), epoch) == orders[epoch]
    if kind.name in ORDERED_BY_OTHERS:
        return
    orders += [order(made(kind, InputNodes(100), seed=seed), 1) for seed in (4, 2**62, -1)]
    assert len({tuple(each) for each in orders}) == 7, "epochs or seeds share an order"


def unshuffled_epochs_are_alike(kind: type[Schedule]) -> None:
    schedule = made(kind, InputNodes(100), shuffle=False)
    assert order(schedule, 0) == order(schedule, 7)


def half_an_epoch_changes_no_other(kind: type[Schedule]) -> None:
    whole = [order(made(kind, InputNodes(100)), epoch) for epoch in (0, 1)]
    schedule = made(kind, InputNodes(100))
    left = schedule.windows(0)
    first = [at for seeds in next(left).batches for at in positions(seeds)]
    next(schedule.windows(1))
    assert order(schedule, 1) == whole[1], "an order changed"
    rest = [at for window in left for seeds in window.batches for at in positions(seeds)]
    assert first + rest == whole[0]


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


def an_order_takes_no_more_memory_than_it_says(kind: type[Schedule]) -> None:
    """As far as Python and numpy account for it."""
    count, size = 1 << 18, 4
    for shuffle in (False, True):
        schedule = made(kind, InputNodes(count), size, shuffle)
        assert type(schedule.order_bytes) is int
        assert schedule.order_bytes >= 0
        tracemalloc.start()
        try:
            next(schedule.windows(0))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= schedule.order_bytes + (1 << 16), "it takes more memory than it says"


CONTRACT = (
    its_length_is_the_number_of_batches,
    an_order_depends_on_seed_and_epoch,
    unshuffled_epochs_are_alike,
    half_an_epoch_changes_no_other,
    an_order_takes_no_more_memory_than_it_says,
)
DRAWING = (
    each_input_comes_once,
    what_is_dropped_is_less_than_a_batch,
    no_batch_is_larger_than_planned,
    seeds_are_those_of_the_inputs,
    edges_are_seeds_too,
    what_is_written_to_a_batch_changes_no_other,
)
ALL = [*plugins.names("schedules"), Dealt]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("schedule", ALL, ids=plugins.name_of)
def test_a_schedule_keeps_its_contract(schedule: Any, check: Callable[[Any], None]) -> None:
    check(plugins.find("schedules", schedule))


@pytest.mark.parametrize("check", DRAWING, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "schedule", [each for each in ALL if each not in REPLAYING], ids=plugins.name_of
)
def test_a_schedule_draws_its_inputs(schedule: Any, check: Callable[[Any], None]) -> None:
    check(plugins.find("schedules", schedule))


# ---- a broken one is found


class Twice(Dealt):
    """Deals the first window again, behind the last."""

    def windows(self, epoch: int) -> Iterator[Window]:
        dealt, end = list(super().windows(epoch)), len(self)
        yield from dealt
        for window in dealt[:1]:
            again = [replace(each, index=each.index + end) for each in window.batches]
            yield replace(window, batches=again, number=len(dealt), first=end)


class Renumbered(Dealt):
    """Numbers batches anew in every window."""

    def windows(self, epoch: int) -> Iterator[Window]:
        for window in super().windows(epoch):
            again = [replace(each, index=at) for at, each in enumerate(window.batches)]
            yield replace(window, batches=again)


class Miscounted(Dealt):
    """Says nothing of its windows."""

    def windows(self, epoch: int) -> Iterator[Window]:
        for number, window in enumerate(super().windows(epoch)):
            yield Window(window.batches, number, first=window.first)


class Unplaced(Dealt):
    """Begins every window at the first batch."""

    def windows(self, epoch: int) -> Iterator[Window]:
        for window in super().windows(epoch):
            yield replace(window, first=0)


class Stateful(Dealt):
    """Has other orders the second time it is asked."""

    asked = 0

    def windows(self, epoch: int) -> Iterator[Window]:
        self.asked += 1
        return super().windows(epoch + self.asked // 2)


class Unsparing(Dealt):
    """Says nothing of the memory that its order takes."""

    order_bytes = 0


class Short(Dealt):
    """Leaves the last window out."""

    def windows(self, epoch: int) -> Iterator[Window]:
        yield from list(super().windows(epoch))[:-1]


class Doubled(Dealt):
    """Makes one batch of two."""

    def __init__(self, context: ScheduleContext, batch_size: int) -> None:
        super().__init__(context, 2 * batch_size)


class Loose(Dealt):
    """Ignores the seed."""

    @classmethod
    def make(cls, context: ScheduleContext) -> Loose:
        return super().make(replace(context, seed=0))


@pytest.mark.parametrize(
    ("schedule", "check", "message"),
    [
        (Twice, each_input_comes_once, "not each input once"),
        (Short, each_input_comes_once, "not each input once"),
        (Renumbered, each_input_comes_once, "wrong numbers"),
        (Miscounted, each_input_comes_once, "a wrong count of a window"),
        (Unplaced, each_input_comes_once, "a wrong number of a window"),
        (Short, its_length_is_the_number_of_batches, "a wrong length"),
        (Doubled, what_is_dropped_is_less_than_a_batch, "other batches than whole ones"),
        (Doubled, no_batch_is_larger_than_planned, "too large a batch"),
        (Stateful, an_order_depends_on_seed_and_epoch, "another order the second time"),
        (Stateful, half_an_epoch_changes_no_other, "an order changed"),
        (Loose, an_order_depends_on_seed_and_epoch, "epochs or seeds share an order"),
        (Unsparing, an_order_takes_no_more_memory_than_it_says, "more memory than it says"),
    ],
)
def test_a_broken_schedule_is_found(
    schedule: type[Schedule], check: Callable[[Any], None], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check(schedule)


def test_one_that_cannot_be_made_says_where_to_help() -> None:
    class Demanding(Dealt):
        name = "demanding"

        @classmethod
        def make(cls, context: ScheduleContext) -> Demanding:
            raise KeyError("partitions")

    with pytest.raises(pytest.fail.Exception, match=r"'demanding' cannot be made .*CONTEXTS"):
        each_input_comes_once(Demanding)
