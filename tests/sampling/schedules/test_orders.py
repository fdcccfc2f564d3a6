"""Orders of partitions: what they swap, and which partitions meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from gnndrive.sampling.schedules._orders import Draws, beta, beta_swaps, dispersed

Make = Callable[[int, int, Draws], Iterator[list[int]]]
SIZES = [(count, resident) for count in range(1, 40) for resident in range(1, count + 1)]
OF_PAIRS = [(count, resident) for count, resident in SIZES if resident > 1]


def states(make: Make, count: int, resident: int, seed: int = 5) -> list[set[int]]:
    """The states of an order, each of so many partitions, which differ in one."""
    found = list(map(set, make(count, resident, Draws(seed))))
    assert all(len(each) == resident for each in found)
    assert set().union(*found) == set(range(count))
    assert all(len(before - after) == 1 for before, after in pairwise(found))
    return found


def test_beta_swaps_as_often_as_its_formula_says() -> None:
    for count, resident in OF_PAIRS:
        swaps = len(states(beta, count, resident)) - 1
        assert swaps == beta_swaps(count, resident), (count, resident)
        pairs_missing = count * (count - 1) - resident * (resident - 1)
        assert swaps >= -(-pairs_missing // (2 * (resident - 1))), "fewer than can be"


@pytest.mark.parametrize(("count", "resident", "swaps"), [(32, 8, 78), (6, 3, 7), (1, 1, 0)])
def test_swaps_that_were_counted_by_hand(count: int, resident: int, swaps: int) -> None:
    assert beta_swaps(count, resident) == swaps == len(states(beta, count, resident)) - 1


def test_any_two_partitions_meet() -> None:
    for count, resident in OF_PAIRS:
        met = np.zeros((count, count), bool)
        for state in states(beta, count, resident):
            met[np.ix_(list(state), list(state))] = True
        assert met.all(), (count, resident)


def test_dispersed_reads_each_partition_once() -> None:
    for count, resident in SIZES:
        found = states(dispersed, count, resident)
        assert len(found) == count - resident + 1
        read = Counter(found[0])
        for before, after in pairwise(found):
            read.update(after - before)
        assert set(read.values()) == {1}, (count, resident)


@pytest.mark.parametrize("make", [beta, dispersed])
def test_an_order_depends_on_its_key(make: Make) -> None:
    orders = [list(make(9, 3, Draws(key))) for key in (0, 1, 2, 0)]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_any_partition_in_memory_may_give_way() -> None:
    """Each of three is expected 400 times in 1,200; 5 standard deviations are 82."""
    gone: Counter[int] = Counter()
    for key in range(1200):
        before, after = list(dispersed(4, 3, Draws(key)))
        gone[next(at for at in range(3) if before[at] != after[at])] += 1
    assert all(abs(times - 400) < 82 for times in gone.values())
    assert set(gone) == {0, 1, 2}


def test_draws() -> None:
    draws = Draws(7)
    assert len({draws.key() for _ in range(100)}) == 100
    assert sorted(draws.permutation(50)) == list(range(50))
    assert draws.permutation(50) != draws.permutation(50)
    counts = np.array([1, 2, 3, 1000] * 200)
    drawn = draws.each_below(counts)
    assert ((drawn >= 0) & (drawn < counts)).all()
    assert set(drawn[1::4]) == {0, 1}
    assert set(drawn[2::4]) == {0, 1, 2}
    assert len(set(drawn[3::4])) > 150
    assert {draws.below(3) for _ in range(100)} == {0, 1, 2}


def test_draws_are_those_of_the_version_before() -> None:
    """If these change, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is restored
    from a saved state would continue in another order."""
    draws = Draws(3)
    assert draws.permutation(6) == [5, 1, 2, 4, 0, 3]
    assert draws.each_below(np.array([10, 10, 10, 10])).tolist() == [6, 9, 5, 8]
