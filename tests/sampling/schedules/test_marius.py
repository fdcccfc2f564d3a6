"""MariusGNN's orders of partitions, and their states as windows: what is in memory, and which seeds
come then."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.sampling.schedules._orders import Draws, beta, beta_swaps, dispersed
from gnndrive.sampling.schedules._windowed import epoch_length
from gnndrive.sampling.schedules.base import InputNodes, ScheduleContext, WindowSizes
from gnndrive.sampling.schedules.marius import Marius
from tests.sampling.schedules.parts import Parts, edges_between, parts_of
from tests.soak import product

NODES = 120


# ---- orders of partitions

Make = Callable[[int, int, Draws], Iterator[list[int]]]
SIZES = [(count, resident) for count in range(1, 20) for resident in range(1, count + 1)]


def states(make: Make, count: int, resident: int, seed: int) -> list[set[int]]:
    """The states of an order, each of so many partitions, which differ in one."""
    found = list(map(set, make(count, resident, Draws(seed))))
    assert all(len(each) == resident for each in found)
    assert set().union(*found) == set(range(count))
    assert all(len(before - after) == 1 for before, after in pairwise(found))
    return found


def test_beta_has_any_two_partitions_meet_and_swaps_as_its_formula_says(seeds):
    for seed in seeds(1):
        for count, resident in ((c, r) for c, r in [*SIZES, (32, 8)] if r > 1):
            found = states(beta, count, resident, seed)
            assert len(found) - 1 == beta_swaps(count, resident), (count, resident)
            pairs_missing = count * (count - 1) - resident * (resident - 1)
            assert len(found) - 1 >= -(-pairs_missing // (2 * (resident - 1))), "fewer than can be"
            met = np.zeros((count, count), bool)
            for state in found:
                met[np.ix_(list(state), list(state))] = True
            assert met.all(), (count, resident)
    # Counted by hand.
    assert (beta_swaps(32, 8), beta_swaps(6, 3), beta_swaps(1, 1)) == (78, 7, 0)


def test_dispersed_reads_each_partition_once(seeds):
    for seed in seeds(1):
        for count, resident in SIZES:
            found = states(dispersed, count, resident, seed)
            assert len(found) == count - resident + 1
            read = Counter(found[0])
            for before, after in pairwise(found):
                read.update(after - before)
            assert set(read.values()) == {1}, (count, resident)


def test_any_partition_in_memory_may_give_way():
    """Each of three is expected 200 times in 600; 5 standard deviations are 58."""
    gone: Counter[int] = Counter()
    for key in range(600):
        before, after = list(dispersed(4, 3, Draws(key)))
        gone[next(at for at in range(3) if before[at] != after[at])] += 1
    assert all(abs(gone[at] - 200) < 58 for at in range(3))


def test_draws():
    draws = Draws(7)
    assert len({draws.key() for _ in range(100)}) == 100
    assert draws.permutation(50) != draws.permutation(50)
    drawn = draws.each_below(np.array([1, 2, 3, 1000] * 200))
    assert [{*drawn[at::4]} for at in range(3)] == [{0}, {0, 1}, {0, 1, 2}]
    assert len(set(drawn[3::4])) > 150
    assert {draws.below(3) for _ in range(100)} == {0, 1, 2}
    # If these change, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is restored
    # from a saved state would continue in another order.
    draws = Draws(3)
    assert draws.permutation(6) == [5, 1, 2, 4, 0, 3]
    assert draws.each_below(np.array([10, 10, 10, 10])).tolist() == [6, 9, 5, 8]


# ---- states as windows


def of_nodes(parts: int, most: int | None, count: int = 100, **more: Any) -> ScheduleContext:
    given = {"partitioned": Parts.spread(parts), "megabatch": most, **more}
    return ScheduleContext(InputNodes(count), 7, True, **given)


def of_edges(parts: int, most: int | None, count: int = 100, **more: Any) -> ScheduleContext:
    ends = np.random.default_rng(4).integers(0, NODES, (2, count))
    return replace(of_nodes(parts, most, **more), inputs=edges_between(*ends))


def of_order(order: str, *how: Any, **more: Any) -> ScheduleContext:
    make = of_edges if order in ("comet", "beta") else of_nodes
    return make(*how, order=order, **more)


@product(
    "made,world",
    [
        of_nodes(20, 7), of_nodes(20, 7, logical=20), of_nodes(9, 1), of_edges(20, 7, 3000),
        of_edges(20, 7, 3000, logical=10), of_edges(20, 7, 3000, order="beta"),
    ],
    [3, 1, 3],
)  # fmt: skip
def test_one_logical_partition_gives_way_to_another(made, world):
    """On every rank."""
    schedule = Marius.make(made)
    most = int(schedule._sizes[0])
    windows = 0
    for rank in range(world):
        found = list(Marius.make(replace(made, world=world, rank=rank)).windows(0))
        windows += len(found)
        for before, after in pairwise(set(parts_of(each)) for each in found):
            assert 1 <= len(before - after) <= most
            assert 1 <= len(after - before) <= most
    assert windows == schedule._windows_max


@pytest.mark.parametrize(
    ("parts", "most", "order", "logical", "expected"),
    [
        (64, 16, None, None, (8, 2, 7)),
        (64, 16, "dispersed", 64, (64, 16, 49)),
        (64, 15, "dispersed", None, (10, 2, 9)),
        (64, 1, "dispersed", None, (64, 1, 64)),
        (5, 4, "dispersed", 3, (3, 2, 2)),
        (1, 1, "dispersed", None, (1, 1, 1)),
        (64, 16, "comet", None, (8, 2, 28)),
        (32, 8, "comet", 32, (32, 8, 79)),
        (32, 8, "beta", None, (32, 8, 79)),
        (1, 1, "beta", None, (1, 1, 1)),
    ],
)
def test_logical_partitions(parts, most, order, logical, expected):
    schedule = Marius.make(of_order(order, parts, most, logical=logical))
    assert (schedule._logical, schedule._resident, schedule._windows_max) == expected
    assert schedule._sizes.sum() == parts
    assert len(schedule) == epoch_length(100, 7, expected[2], False)
    assert not schedule._partitioned.asked


@product("order,parts", ["dispersed", "sequential", "comet", "beta"], [1, 2, 5, 8, 20, 5, 20, 6])
def test_the_sizes_of_windows(order, parts):
    """Of as many seeds, hardly a state has none and is left out."""
    before = WindowSizes()
    least = {"sequential": parts, "dispersed": 1}.get(order, min(2, parts))
    fewest = Marius.make(of_order(order, parts, None, 3000)).window_sizes
    assert fewest.megabatch == fewest.one == least
    for most in range(least, parts + 1):
        schedule = Marius.make(of_order(order, parts, most, 3000))
        sizes, windows = schedule.window_sizes, [parts_of(each) for each in schedule.windows(0)]
        together = [len({*one, *other}) for one, other in pairwise(windows)]
        assert max(map(len, windows)) <= sizes.one <= sizes.megabatch <= most
        assert sizes.two <= parts
        assert sum(each > sizes.two for each in together) <= sizes.windows - len(windows) < 5
        if order in ("dispersed", "beta") and parts % schedule._logical == 0 and len(windows) > 1:
            assert [len(each) for each in windows] == [sizes.one] * len(windows)
            assert len({*windows[0], *windows[1]}) == sizes.two < 2 * sizes.one or sizes.one == 1
        named = Marius.make(of_order(order, parts, sizes.megabatch, 3000)).window_sizes
        assert named == sizes, "megabatch= of these sizes gives other ones"
        # A larger number never needs less memory, so that the largest that fits can be searched.
        assert before.one <= sizes.one
        assert before.two <= sizes.two
        assert before.windows >= sizes.windows or before == WindowSizes()
        before = sizes


def test_a_seed_is_in_any_state_that_has_its_partition(seeds):
    """Each place is as likely; 5 standard deviations of a count are allowed. The seed has a
    partition of its own, so that the other states of it have none."""
    part, nodes = 2, np.arange(NODES, dtype=np.int32)
    partitioned = Parts(6, np.where(nodes == 0, 2, np.array([0, 1, 3, 4, 5])[nodes % 5]))
    made = of_nodes(6, 3, logical=6, count=NODES)
    schedule = Marius.make(replace(made, partitioned=partitioned))
    found: dict[int, list[int]] = defaultdict(list)
    for epoch in seeds(200):
        windows = list(schedule.windows(epoch))
        assert len(windows) == 4
        having = [each for each in windows if part in parts_of(each)]
        has_seed = [any(0 in batch.input_id for batch in each.batches) for each in having]
        found[len(having)].append(has_seed.index(True))
    assert set(found) == {1, 2, 3, 4}
    for states, places in found.items():
        expected = len(places) / states
        for place in range(states):
            assert abs(places.count(place) - expected) <= 5 * np.sqrt(expected)


def test_a_partitions_seeds_are_spread_evenly_and_anew():
    schedule = Marius.make(of_nodes(6, 3, logical=6, count=1200))
    shares: dict[tuple[int, int], list[frozenset[int]]] = defaultdict(list)
    for epoch in range(8):
        for window in schedule.windows(epoch):
            node = np.concatenate([seeds.node for seeds in window.batches])
            part = Parts.spread(6).part_of(node)
            for own in parts_of(window):
                shares[epoch, own].append(frozenset(node[part == own].tolist()))
    several = [each for each in shares.values() if len(each) > 1]
    assert len(several) > 20
    for each in several:
        sizes = list(map(len, each))
        assert max(sizes) - min(sizes) <= 1
    assert len({share for each in several for share in each}) == sum(map(len, several))


def test_sequential_has_all_seeds_in_memory():
    partitioned = Parts(10, np.arange(NODES, dtype=np.int32) // 40)
    made = replace(of_nodes(10, 5, 80, order="sequential"), partitioned=partitioned)
    others = set()
    for epoch in range(20):
        (window,) = Marius.make(made).windows(epoch)
        assert len(parts_of(window)) == 5
        assert parts_of(window)[:2] == [0, 1]
        assert window.count == len(Marius.make(made)) == 12
        others |= set(parts_of(window)[2:])
    assert others == set(range(2, 10))
    with pytest.raises(ConfigError, match=r"all 2 partitions .* megabatch=1: .*--train-first"):
        Marius.make(replace(made, megabatch=1)).windows(0)


@pytest.mark.parametrize("order", ["comet", "beta"])
def test_edges_between_two_partitions_come_together(order):
    made = of_edges(8, 4, 700, order=order)
    places: dict[tuple[int, int], set[int]] = defaultdict(set)
    for epoch in range(10):
        numbers: dict[tuple[int, int], set[int]] = defaultdict(set)
        for window in Marius.make(made).windows(epoch):
            for seeds in window.batches:
                given = seeds.given()
                ends = (made.partitioned.part_of(each.numpy()) for each in (given.row, given.col))
                for bucket in zip(*(each.tolist() for each in ends), strict=True):
                    numbers[bucket].add(window.number)
        assert len(numbers) == 64
        assert all(len(each) == 1 for each in numbers.values())
        for bucket, own in numbers.items():
            places[bucket] |= own
    # Over the epochs, they come in many states.
    assert min(map(len, places.values())) > 2
    assert {number for own in places.values() for number in own} == set(
        range(beta_swaps(8, 4) + 1 if order == "beta" else beta_swaps(4, 2) + 1)
    )


def test_edges_come_in_any_state_that_has_both_partitions(seeds):
    """Of the three states of two partitions out of three, two have partition 0; each is as likely,
    and 5 standard deviations in 150 epochs are 31."""
    ends = np.array([(source, target) for source in range(3) for target in range(3)]).T.copy()
    made = replace(
        of_edges(3, 2, order="beta"), inputs=edges_between(*ends),
        partitioned=Parts(3, np.arange(3, dtype=np.int32)),
    )  # fmt: skip
    first = 0
    for epoch in seeds(150):
        windows = [each for each in Marius.make(made).windows(epoch) if 0 in parts_of(each)]
        has_loop = [any(0 in batch.input_id for batch in each.batches) for each in windows]
        assert sorted(has_loop) == [False, True]
        first += has_loop[0]
    assert abs(first - 75) < 31


def test_unshuffled_epochs_have_the_states_of_the_first():
    for made in (of_nodes(20, 7), of_edges(20, 7)):
        shuffled, unshuffled = Marius.make(made), Marius.make(replace(made, shuffle=False))
        first = [parts_of(each) for each in shuffled.windows(0)]
        assert [parts_of(each) for each in unshuffled.windows(3)] == first
        assert [parts_of(each) for each in shuffled.windows(3)] != first


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (of_nodes(16, 4, order="comet"), "'comet' is not .* seed nodes: give 'dispersed' or"),
        (of_edges(16, 4, order="dispersed"), "'dispersed' is not .* seed edges: give 'comet' or"),
        (of_nodes(16, 17), r"megabatch=17: give the number .* from 1 to 16"),
        (of_nodes(16, 4, logical=17), "logical=17: give the number .* from 1 to 16"),
        (of_nodes(16, 4, logical=3), "megabatch=4: .*'dispersed' needs 1 of 3 .* megabatch=6 or"),
        (of_edges(16, 4, logical=7), "megabatch=4: .*'comet' needs 2 of 7 .* megabatch=6 or more,"),
        (of_edges(16, 1, order="beta"), "'beta' needs 2 of 16 .*: give megabatch=2 or more$"),
        (of_edges(16, 4, order="beta", logical=8), "logical=8: .*joins no partitions.*'comet'"),
        (of_edges(5000, 4), "5,000 partitions, .* 4,096: partition it into fewer"),
        (of_nodes(16, 4, order="sequential", world=2), "which 2 ranks cannot share.*'dispersed'"),
        (of_nodes(16, 4, world=8), "7 windows for 8 ranks"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(made, message):
    with pytest.raises(ConfigError, match=message):
        Marius.make(made)
