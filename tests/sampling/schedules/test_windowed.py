"""Windows of partitions: what `Megabatch` and `Marius` share, and the order and states of each."""

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Seeds
from gnndrive.loader.epoch_state import VERSION
from gnndrive.sampling.dealing import skip
from gnndrive.sampling.schedules._parts import InputParts
from gnndrive.sampling.schedules._windowed import cut, epoch_length, least
from gnndrive.sampling.schedules.base import InputNodes, ScheduleContext, WindowSizes
from gnndrive.sampling.schedules.marius import Draws, Marius, beta, beta_swaps, dispersed
from gnndrive.sampling.schedules.megabatch import Megabatch
from tests.sampling.schedules.test_conformance import (
    Parts,
    assert_memory,
    batches,
    edges_between,
    parts_of,
)
from tests.soak import product

NODES = 120


def made_from(data: Any, order: str | None) -> tuple[Any, ScheduleContext]:
    """A schedule and a context that works for it, of seeds that lie anywhere."""
    draw = data.draw
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    count = draw(st.integers(1, 12))
    most = draw(st.integers(1 if order is None else min(count, 2), count))
    used = draw(st.integers(1, most if order == "sequential" else count))
    part = random.permutation(count)[random.integers(0, used, NODES)].astype(np.int32)
    seeds, world = draw(st.integers(0, 60)), draw(st.integers(1, 4))
    inputs: Any = InputNodes(seeds, torch.from_numpy(random.permutation(NODES)[:seeds]))
    if order in ("comet", "beta"):
        inputs = edges_between(*random.integers(0, NODES, (2, seeds)))
    made = ScheduleContext(
        inputs, draw(st.integers(1, 20)), draw(st.booleans()), draw(st.booleans()),
        draw(st.integers(0, 5)), partitioned=Parts(count, part), megabatch=most,
        passes=draw(st.integers(1, 3)), order=order,
    )  # fmt: skip
    if order in ("dispersed", "comet") and draw(st.booleans()):
        # Two logical partitions have to fit.
        made = replace(made, logical=draw(st.integers(min(-(-2 * count // most), count), count)))
        if -(-count // (made.logical or 1)) * 2 > most:
            made = replace(made, logical=None)
    kind: Any = Megabatch if order is None else Marius
    fits = order != "sequential" and world <= kind.make(made)._windows_max
    return kind, replace(made, world=world) if fits else made


def partitions_of(partitioned: Any, seeds: Seeds) -> set[int]:
    if not seeds.of_edges:
        return set(partitioned.part_of(seeds.node).tolist())
    assert seeds.given is not None
    given = seeds.given()
    ends = np.concatenate([given.row.numpy(), given.col.numpy()])
    return set(partitioned.part_of(ends).tolist())


@pytest.mark.parametrize("order", [None, "dispersed", "sequential", "comet", "beta"])
@settings(max_examples=20)
@given(data=st.data(), epoch=st.integers(0, 3), done=st.integers(0, 80))
def test_an_epoch(order: str | None, data: Any, epoch: int, done: int) -> None:
    """Of `Megabatch`, which names no order, and `Marius`."""
    kind, made = made_from(data, order)
    together, lengths, loaded, windows_of_ranks = Counter[int](), set(), [], 0
    size, passes, most = made.batch_size or 0, made.passes, made.megabatch or 0
    for rank in range(made.world):
        schedule = kind.make(replace(made, rank=rank))
        windows = [replace(each, batches=list(each.batches)) for each in schedule.windows(epoch)]
        drawn = batches(iter(windows))
        lengths.add(len(drawn))
        assert len(drawn) == schedule.length(epoch)
        sizes = schedule.window_sizes
        assert len(windows) <= sizes.windows
        for window in windows:
            partitions, own = parts_of(window), list(window.batches)
            assert partitions == sorted(set(partitions))
            assert len(partitions) <= sizes.one <= most
            assert all(partitions_of(made.partitioned, each) <= set(partitions) for each in own)
            counts = [len(seeds.node) for seeds in own]
            if made.drop_last:
                assert set(counts) == {size}
            else:
                assert 1 <= min(counts) <= max(counts) <= min(min(counts) + 1, size)
            per_pass = window.count // passes
            for turn in range(passes):
                chosen = own[turn * per_pass : (turn + 1) * per_pass]
                ids = [at for seeds in chosen for at in seeds.input_id.tolist()]
                if not made.shuffle and len(set(ids)) == len(ids):
                    assert ids == sorted(ids)
        found = Counter(at for seeds in drawn for at in seeds.input_id.tolist())
        together += found
        windows_of_ranks += len(windows)
        loaded += [tuple(parts_of(window)) for window in windows]
        if kind is Megabatch and not made.drop_last:
            # Inputs are repeated only where there are fewer of them than batches.
            assert min(found.values(), default=passes) >= passes
            assert max(found.values(), default=passes) == passes or len(drawn) > passes * len(found)
        # An epoch that is skipped in part goes on as if it were whole.
        left = skip(schedule.windows(epoch), done)
        rest = [seeds.input_id.tolist() for window in left for seeds in window.batches]
        assert rest == [seeds.input_id.tolist() for seeds in drawn[done:]]
    assert len(lengths) == 1, "ranks have different numbers of batches"
    if kind is Megabatch:
        # Two ranks load the same window only if there are fewer with seeds than ranks.
        assert len(set(loaded)) == len(loaded) or len(set(loaded)) < made.world
        assert len({part for each in set(loaded) for part in each}) == sum(map(len, set(loaded)))
        assert all(len({*one, *two}) <= sizes.two for one, two in pairwise(loaded))
    if made.drop_last:
        assert made.world > 1 or max(together.values(), default=0) <= passes
    elif made.world == 1:
        assert together == Counter(dict.fromkeys(range(len(made.inputs)), passes))
    else:
        assert set(together) == set(range(len(made.inputs)))
        assert min(together.values(), default=passes) >= passes
    if made.world == 1:
        windows_max = kind.make(made)._windows_max
        length = passes * epoch_length(len(made.inputs), size, windows_max, made.drop_last)
        assert len(kind.make(made)) == lengths.pop() == length


@product(
    "order,parts_most_logical,used,shuffle",
    [None, "dispersed", "sequential", "comet", "beta"],
    [(64, 16, None), (64, 64, None), (1000, 500, 100), (64, 16, None)],
    [1, 0],
    [False, True, True],
)
def test_the_order_takes_no_more_memory_than_it_says(order, parts_most_logical, used, shuffle):
    """Also if all seeds lie in one partition, and with many partitions."""
    parts, most, logical = parts_most_logical
    if order is None:
        parts, most = 1024 * parts, 78 * parts
    elif order == "sequential":
        most = parts
    count, random = 1 << 18, np.random.default_rng(0)
    part = (random.integers(0, parts, count) % (used or parts)).astype(np.int32)
    inputs: Any = InputNodes(count)
    if order in ("comet", "beta"):
        inputs = edges_between(*random.integers(0, NODES, (2, count)))
    made = ScheduleContext(
        inputs, 4, shuffle, partitioned=Parts(parts, part), megabatch=most, order=order,
        logical=None if order in (None, "beta") else logical,
    )  # fmt: skip
    kind: Any = Megabatch if order is None else Marius
    assert_memory(kind.make(made))


WINDOWS = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@settings(max_examples=50)
@given(
    seeds=WINDOWS, batch_size=st.integers(1, 70), empty=st.integers(0, 5), more=st.integers(0, 40),
    share=st.floats(0, 1),
)  # fmt: skip
def test_windows_are_cut_as_evenly_as_their_batches_allow(
    seeds: list[int], batch_size: int, empty: int, more: int, share: float
) -> None:
    total, each, windows = sum(seeds), np.array(seeds), len(seeds) + empty
    needed, whole = least(each, batch_size, False).tolist(), least(each, batch_size, True).tolist()
    assert sum(needed) <= epoch_length(total, batch_size, windows, drop_last=False) <= total
    assert sum(whole) >= epoch_length(total, batch_size, windows, True)
    # No window could give up a batch and leave the largest batches smaller.
    counts = cut(each, batch_size, sum(needed) + more, drop_last=False)
    assert sum(counts) == sum(needed) + more
    largest = max(size / count for size, count in zip(seeds, counts, strict=True))
    for size, count, own in zip(seeds, counts, needed, strict=True):
        assert count >= own
        assert count == own or size / (count - 1) >= largest
        # Nor are there empty batches while other windows have batches of several seeds.
        assert count <= size or largest <= 1
    # Dropping takes batches of the windows that have most.
    counts = cut(each, batch_size, round(share * sum(whole)), drop_last=True)
    assert sum(counts) == round(share * sum(whole))
    for own, count in zip(whole, counts, strict=True):
        assert 0 <= count <= own
        assert count == own or max(counts) <= count + 1


def brute_force(keys: list[int]) -> list[tuple[int, list[int]]]:
    return [(key, [at for at, own in enumerate(keys) if own == key]) for key in sorted(set(keys))]


def as_list(parts: InputParts) -> list[tuple[int, list[int]]]:
    cut_at = np.split(parts.positions, parts.bounds[1:-1]) if len(parts.keys) else []
    return [(key, at.tolist()) for key, at in zip(parts.keys.tolist(), cut_at, strict=True)]


@settings(max_examples=30)
@given(
    ends=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60),
    count=st.integers(1, 9),
)
def test_inputs_are_found_by_their_partitions(ends: list[tuple[int, int]], count: int) -> None:
    """Edges by those of both ends."""
    partitioned = Parts.spread(count, 30)
    part = partitioned.part
    source, target = np.array(ends, np.int64).reshape(-1, 2).T.copy()
    found = InputNodes(len(source), torch.from_numpy(source)).parts(partitioned)
    assert as_list(found) == brute_force(part[source].tolist())
    assert found.positions.dtype == np.int32
    assert as_list(InputNodes(30).parts(partitioned)) == brute_force(part.tolist())
    found = edges_between(source, target).parts(partitioned)
    assert as_list(found) == brute_force((part[source] * count + part[target]).tolist())


def test_partitions_are_found_once_for_a_loader():
    """By threads that ask at the same time too, and by parts; a copy of the inputs in another
    process finds them again, because that takes less than to send them; so do those of another
    partitioned store."""
    node, partitioned = np.random.default_rng(1).permutation(200_000), Parts.spread(50, 200_000)
    inputs = InputNodes(len(node), torch.from_numpy(node))
    with ThreadPoolExecutor(8) as threads:
        found, *others = threads.map(inputs.parts, [partitioned] * 8)
    assert (sum(partitioned.asked), len(partitioned.asked)) == (200_000, 4)
    assert all(each is found for each in others)
    part = partitioned.part[node]
    assert found.positions.tolist() == np.argsort(part, kind="stable").tolist()
    assert np.diff(found.bounds).tolist() == np.bincount(part).tolist()
    inputs, partitioned = InputNodes(1000), Parts.spread(8)
    found = inputs.parts(partitioned)
    assert len(pickle.dumps(inputs)) < 1000
    assert as_list(pickle.loads(pickle.dumps(inputs)).parts(partitioned)) == as_list(found)
    assert sum(partitioned.asked) == 2000
    assert inputs.parts(Parts.spread(2)).keys.tolist() == [0, 1]


# ---- mega-batches: random groups of partitions


def of_nodes(parts: int, most: int | None, count: int = 100, **more: Any) -> ScheduleContext:
    given = {"partitioned": Parts.spread(parts), "megabatch": most, **more}
    return ScheduleContext(InputNodes(count), 7, True, **given)


def test_an_epoch_equals_that_of_the_version_before():
    """If it changes, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is restored
    from a saved state would continue in another order."""
    partitioned = Parts(4, np.arange(200, dtype=np.int32) % 4)
    made = of_nodes(4, 2, 8, partitioned=partitioned)
    schedule = Megabatch.make(replace(made, batch_size=3, seed=3))
    found = [
        (parts_of(each), [seeds.node.tolist() for seeds in each.batches])
        for each in schedule.windows(1)
    ]
    assert (VERSION, found) == (3, [([1, 3], [[3, 1], [5, 7]]), ([0, 2], [[4, 6], [2, 0]])])


def test_groups_and_orders_are_drawn_anew_in_each_epoch_and_pass_or_come_in_order():
    groups, orders = set(), set()
    for epoch in range(3):
        windows = Megabatch.make(of_nodes(16, 4)).windows(epoch)
        groups.add(frozenset(tuple(parts_of(each)) for each in windows))
        (window,) = Megabatch.make(of_nodes(16, 16, passes=3)).windows(epoch)
        ids = [at for each in window.batches for at in each.input_id.tolist()]
        orders |= {tuple(ids[at : at + 100]) for at in range(0, 300, 100)}
    assert (len(groups), len(orders)) == (3, 9)
    assert all({part for group in each for part in group} == set(range(16)) for each in groups)
    assert {tuple(sorted(each)) for each in orders} == {tuple(range(100))}
    schedule = Megabatch.make(replace(of_nodes(10, 4), shuffle=False))
    assert [parts_of(each) for each in schedule.windows(5)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    partitioned = Parts(8, np.arange(200, dtype=np.int32) % 3)
    schedule = Megabatch.make(replace(of_nodes(8, 2, partitioned=partitioned), shuffle=False))
    found = [(each.number, parts_of(each)) for each in schedule.windows(0)]
    assert found == [(0, [0, 1]), (1, [2, 3])]


def test_the_sizes_of_mega_batches():
    for count in (1, 5, 12):
        made = of_nodes(count, count)
        for most in range(1, count + 1):
            sizes = Megabatch.make(replace(made, megabatch=most)).window_sizes
            for fewer in range(1, most + 1):
                others = Megabatch.make(replace(made, megabatch=fewer)).window_sizes
                assert (others == sizes) == (fewer >= sizes.megabatch)
        fewest = Megabatch.make(replace(made, megabatch=None)).window_sizes
        assert (fewest.one, fewest.megabatch) == (1, 1)


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


def test_beta_has_any_two_partitions_meet_and_dispersed_reads_each_once(seeds):
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


def test_draws_are_those_of_the_version_before():
    # If these change, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is restored
    # from a saved state would continue in another order.
    draws = Draws(3)
    assert draws.permutation(6) == [5, 1, 2, 4, 0, 3]
    assert draws.each_below(np.array([10, 10, 10, 10])).tolist() == [6, 9, 5, 8]


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


def test_logical_partitions():
    for parts, most, order, logical, *expected in (
        (64, 16, None, None, 8, 2, 7), (64, 16, "dispersed", 64, 64, 16, 49),
        (64, 15, "dispersed", None, 10, 2, 9), (64, 1, "dispersed", None, 64, 1, 64),
        (5, 4, "dispersed", 3, 3, 2, 2), (1, 1, "dispersed", None, 1, 1, 1),
        (64, 16, "comet", None, 8, 2, 28), (32, 8, "comet", 32, 32, 8, 79),
        (32, 8, "beta", None, 32, 8, 79), (1, 1, "beta", None, 1, 1, 1),
    ):  # fmt: skip
        schedule = Marius.make(of_order(order, parts, most, logical=logical))
        assert [schedule._logical, schedule._resident, schedule._windows_max] == expected
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


def test_unshuffled_epochs_have_the_states_of_the_first():
    for made in (of_nodes(20, 7), of_edges(20, 7)):
        shuffled, unshuffled = Marius.make(made), Marius.make(replace(made, shuffle=False))
        first = [parts_of(each) for each in shuffled.windows(0)]
        assert [parts_of(each) for each in unshuffled.windows(3)] == first
        assert [parts_of(each) for each in shuffled.windows(3)] != first


@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        (Marius, of_nodes(16, 4, order="comet"), "'comet' is not .* nodes: give 'dispersed' or"),
        (Marius, of_edges(16, 4, order="dispersed"), "'dispersed' is not .* edges: give 'comet'"),
        (Marius, of_nodes(16, 17), r"megabatch=17: give the number .* from 1 to 16"),
        (Marius, of_nodes(16, 4, logical=17), "logical=17: give the number .* from 1 to 16"),
        (Marius, of_nodes(16, 4, logical=3), "'dispersed' needs 1 of 3 .* megabatch=6 or"),
        (Marius, of_edges(16, 4, logical=7), "'comet' needs 2 of 7 .* megabatch=6 or more,"),
        (Marius, of_edges(16, 1, order="beta"), "'beta' needs 2 of 16 .*: give megabatch=2"),
        (Marius, of_edges(16, 4, order="beta", logical=8), "joins no partitions.*'comet'"),
        (Marius, of_edges(5000, 4), "5,000 partitions, .* 4,096: partition it into fewer"),
        (Marius, of_nodes(16, 4, order="sequential", world=2), "per_rank=True need.*'dispersed'"),
        (Marius, of_nodes(16, 4, world=8), "7 windows for 8 ranks"),
        (Megabatch, of_nodes(16, 0), r"megabatch=0: give the number .* from 1 to 16"),
        (Megabatch, of_nodes(16, 17), r"megabatch=17: give the number .* from 1 to 16"),
        (Megabatch, of_nodes(16, 4, order="dispersed"), "leave order= out, or .*marius"),
        (Megabatch, of_nodes(16, 4, partitioned=None), "a partitioned store.*gnndrive partition"),
        (Megabatch, replace(of_nodes(16, 4), batch_size=None), "'megabatch' needs batch_size="),
        (Megabatch, of_nodes(16, 4, passes=0), "passes=0"),
        (Megabatch, of_nodes(16, 4, world=5), r"4 windows for 5 ranks.* smaller megabatch= than 4"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(kind, made, message):
    with pytest.raises(ConfigError, match=message):
        kind.make(made)
