"""Ranks are dealt each batch of an epoch once, plus pads, from any batch on."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.records import Seeds
from gnndrive.sampling.dealing import deal, deal_windows, flat, number_batches, skip, steps_left
from gnndrive.sampling.schedules.base import InputNodes, Window


def windows(total: int, size: int) -> Iterator[Window]:
    """Windows of `size` batches, batch b around node b; each window draws its seeds once."""
    inputs = InputNodes(max(total, 1))
    for first in range(0, total, size):
        together = range(first, min(first + size, total))
        batches = (inputs.seeds(number, np.array([number])) for number in together)
        yield Window(batches, first // size, None, first, len(together))


def dealt(total: int, size: int, *how: Any) -> list[Seeds]:
    return [seeds for _, seeds in deal(windows(total, size), total, *how)]


@settings(max_examples=50)
@given(
    total=st.integers(0, 40), size=st.integers(1, 5), done=st.integers(0, 45),
    world=st.integers(1, 6), drop_last=st.booleans(),
)  # fmt: skip
def test_ranks_get_every_batch_in_turn(total, size, done, world, drop_last):
    ranks = [dealt(total, size, done, rank, world, drop_last) for rank in range(world)]
    steps = steps_left(total, done, world, drop_last)
    turns = [[each[step].number for each in ranks] for step in range(steps)]
    numbers = [number for turn in turns for number in turn]
    left = list(range(done, total))
    assert [len(each) for each in ranks] == [steps] * world
    if drop_last:
        assert numbers == left[: steps * world]
        assert len(left) - len(numbers) in range(world)
    else:
        pads = [number % total for number in range(total, total + len(numbers) - len(left))]
        assert numbers == left + pads
        assert len(pads) < world
    for each in ranks:
        assert [seeds.index for seeds in each] == list(range(steps))
        assert all(seeds.node.tolist() == [seeds.number] for seeds in each)


def test_batches_keep_their_windows_and_are_numbered_by_who_deals_them():
    made = list(windows(7, 3))
    assert [made.index(window) for window, _ in deal(iter(made), 7, 1, 1, 2, False)] == [0, 1, 2]
    found = [*number_batches(windows(7, 3), 2, lambda place: 3 * place + 1)]
    assert [window.number for window, _ in found] == [0, 1, 1, 1, 2]
    assert [(seeds.index, seeds.number) for _, seeds in found] == [
        (place - 2, 3 * place + 1) for place in range(2, 7)
    ]
    left = windows(10, 1)
    assert [seeds.number for _, seeds in deal(left, 10, 0, 0, 4, True)] == [0, 4]
    assert next(iter(next(left).batches)).index == 5


@settings(max_examples=30)
@given(total=st.integers(0, 20), size=st.integers(1, 6), done=st.integers(0, 25))
def test_windows_that_are_done_are_skipped(total, size, done):
    left = list(skip(windows(total, size), done))
    batches = [[seeds.index for seeds in window.batches] for window in left]
    assert [index for each in batches for index in each] == list(range(done, total))
    for window, each in zip(left, batches, strict=True):
        assert (window.first, window.count) == (each[0], len(each))
        assert window.number == each[0] // size


def test_no_seeds_of_a_window_that_is_done_are_drawn():
    def refused() -> Iterator[Seeds]:
        raise AssertionError("these seeds are not needed")
        yield  # a generator, so it raises when it is used

    left = skip(iter([Window(refused(), count=5), *windows(2, 1)]), 6)
    assert [seeds.index for window in left for seeds in window.batches] == [1]


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=9), done=st.integers(0, 45),
    world=st.integers(1, 6), drop_last=st.booleans(), yielded=st.integers(0, 9),
)  # fmt: skip
def test_ranks_draw_from_the_same_windows(sizes, done, world, drop_last, yielded):
    inputs, total = InputNodes(max(sum(sizes), 1)), sum(sizes)
    firsts = np.cumsum([0, *sizes]).tolist()

    def drawn() -> Iterator[Window]:
        for number, (first, count) in enumerate(zip(firsts, sizes, strict=False)):
            batches = (inputs.seeds(at, np.array([at])) for at in range(first, first + count))
            yield Window(batches, number, None, first, count)

    plain, whole = list[list[Seeds]](), list[list[tuple[Window, Seeds]]]()
    for rank in range(world):
        how = total, done, rank, world, drop_last
        plain.append([seeds for _, seeds in deal(drawn(), *how)])
        whole.append(list(flat(deal_windows(drawn(), *how))))
        left = list(skip(deal_windows(drawn(), *how), yielded))
        assert [window.count for window in left] == [len(list(each.batches)) for each in left]
        assert sum(window.count for window in left) == max(len(plain[rank]) - yielded, 0)
    assert [len(each) for each in whole] == [len(each) for each in plain]
    places = []
    for step in range(len(plain[0])):
        for rank in range(world):
            window, seeds = whole[rank][step]
            assert seeds.index == step
            assert window.number == np.searchsorted(firsts, seeds.number, "right") - 1
            places.append(window.number)
            if done + step * world + rank < total:
                assert seeds.number == plain[rank][step].number
            else:
                assert window.number == len(sizes) - 1
    assert places == sorted(places)
