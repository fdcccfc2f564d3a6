"""Mega-batches: an epoch's windows are random groups of partitions."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Seeds
from gnndrive.loader.epoch_state import VERSION
from gnndrive.sampling.dealing import skip
from gnndrive.sampling.schedules._windowed import epoch_length
from gnndrive.sampling.schedules.base import InputNodes, ScheduleContext, Window
from gnndrive.sampling.schedules.megabatch import Megabatch
from tests.sampling.schedules.parts import Parts
from tests.sampling.schedules.test_conformance import batches

NODES = 200


def context(partitioned: Parts, megabatch: int, size: int = 7, count: int = 100) -> ScheduleContext:
    return ScheduleContext(
        InputNodes(count), size, True, seed=3, partitioned=partitioned, megabatch=megabatch
    )


@st.composite
def contexts(draw: st.DrawFn, world_max: int = 1) -> ScheduleContext:
    """Contexts of nodes that lie anywhere, all in one partition too."""
    count = draw(st.integers(1, 12))
    used = draw(st.integers(1, count))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    partitioned = Parts(count, random.integers(0, used, NODES).astype(np.int32))
    megabatch = draw(st.integers(1, count))
    seeds = draw(st.integers(0, 60))
    node = torch.from_numpy(random.permutation(NODES)[:seeds])
    world = draw(st.integers(1, min(world_max, -(-count // megabatch))))
    return ScheduleContext(
        InputNodes(seeds, node), draw(st.integers(1, 20)), draw(st.booleans()),
        draw(st.booleans()), draw(st.integers(0, 5)), partitioned=partitioned,
        megabatch=megabatch, passes=draw(st.integers(1, 3)), world=world,
    )  # fmt: skip


def parts_of(window: Window) -> list[int]:
    """The partitions of a window."""
    assert window.partitions is not None
    assert window.partitions.dtype == np.int32
    found: list[int] = window.partitions.tolist()
    return found


@dataclass
class Epoch:
    """What one rank loads in an epoch, checked against what holds for every rank.

    Attributes:
        windows: its windows.
        own: the batches of each.
        found: how often each input came.
    """

    windows: list[Window]
    own: list[list[Seeds]]
    found: Counter[int]


def drawn(made: ScheduleContext, epoch: int = 1) -> Epoch:
    """Draw an epoch of one rank."""
    schedule = Megabatch.make(made)
    windows = [replace(each, batches=list(each.batches)) for each in schedule.windows(epoch)]
    assert len(batches(iter(windows))) == schedule.length(epoch)
    own = [list(window.batches) for window in windows]
    partitioned, size = made.partitioned, made.batch_size
    assert isinstance(partitioned, Parts)
    assert size is not None
    for window, each in zip(windows, own, strict=True):
        inside = set(parts_of(window))
        assert parts_of(window) == sorted(inside)
        assert len(inside) <= (made.megabatch or 0)
        assert all(inside >= set(partitioned.part_of(seeds.node).tolist()) for seeds in each)
        sizes = [len(seeds.node) for seeds in each]
        if made.drop_last:
            assert set(sizes) == {size}
        else:
            assert 1 <= min(sizes) <= max(sizes) <= min(min(sizes) + 1, size)
        per_pass = window.count // made.passes
        for turn in range(made.passes):
            chosen = each[turn * per_pass : (turn + 1) * per_pass]
            ids = [at for seeds in chosen for at in seeds.input_id.tolist()]
            if not made.shuffle and len(set(ids)) == len(ids):
                assert ids == sorted(ids)
    found = Counter(at for each in own for seeds in each for at in seeds.input_id.tolist())
    return Epoch(windows, own, found)


@given(made=contexts(), epoch=st.integers(0, 3))
def test_an_epoch(made: ScheduleContext, epoch: int) -> None:
    count, passes = len(made.inputs), made.passes
    partitioned, most, size = made.partitioned, made.megabatch, made.batch_size
    assert partitioned is not None
    assert most is not None
    assert size is not None
    groups = -(-partitioned.num_parts // most)
    length = passes * epoch_length(count, size, groups, made.drop_last)
    found = drawn(made, epoch)
    assert len(Megabatch.make(made)) == sum(window.count for window in found.windows) == length
    loaded = [part for each in found.windows for part in parts_of(each)]
    assert len(set(loaded)) == len(loaded)
    if made.drop_last:
        assert all(times <= passes for times in found.found.values())
    else:
        assert found.found == Counter(dict.fromkeys(range(count), passes))


@given(made=contexts(world_max=5), epoch=st.integers(0, 3))
def test_ranks_load_windows_of_their_own(made: ScheduleContext, epoch: int) -> None:
    ranks = [drawn(replace(made, rank=rank), epoch) for rank in range(made.world)]
    lengths = {sum(window.count for window in each.windows) for each in ranks}
    assert len(lengths) == 1, "ranks have different numbers of batches"
    length, passes = lengths.pop(), made.passes
    several = [tuple(parts_of(window)) for each in ranks for window in each.windows]
    # Two ranks load the same window only if there are fewer with seeds than ranks.
    assert len(set(several)) == len(several) or len(set(several)) < made.world
    for each in ranks:
        times = each.found.values()
        if made.drop_last:
            assert max(times, default=passes) <= passes
            continue
        # Inputs are repeated only where there are fewer of them than batches.
        assert min(times, default=passes) >= passes
        assert max(times, default=passes) == passes or length > passes * len(each.found)
    if not made.drop_last:
        together = {at for each in ranks for at in each.found}
        assert together == set(range(len(made.inputs)))


@given(made=contexts(world_max=3), done=st.integers(0, 80))
def test_an_epoch_goes_on_anywhere(made: ScheduleContext, done: int) -> None:
    schedule = Megabatch.make(made)
    whole = [each.node.tolist() for each in batches(schedule.windows(2))]
    left = [
        each.node.tolist() for window in skip(schedule.windows(2), done) for each in window.batches
    ]
    assert left == whole[done:]


def test_windows_do_not_depend_on_what_was_drawn() -> None:
    made = replace(context(Parts.spread(16), 3), passes=2)
    schedule = Megabatch.make(made)
    whole = [[each.node.tolist() for each in window.batches] for window in schedule.windows(1)]
    held = list(schedule.windows(1))
    for window, expected in reversed(list(zip(held, whole, strict=True))):
        some = [each.node.tolist() for each in islice(window.batches, 3)]
        assert some == expected[:3]


def test_each_pass_and_each_epoch_has_another_order() -> None:
    made = replace(context(Parts.spread(16), 16), passes=3)
    schedule = Megabatch.make(made)
    orders = set()
    for epoch in range(3):
        (window,) = schedule.windows(epoch)
        ids = [at for each in window.batches for at in each.input_id.tolist()]
        orders |= {tuple(ids[at : at + 100]) for at in range(0, 300, 100)}
    assert len(orders) == 9
    assert {tuple(sorted(each)) for each in orders} == {tuple(range(100))}


def test_each_window_has_an_order_of_its_own() -> None:
    """Also windows of as many seeds."""
    partitioned = Parts(2, np.arange(NODES, dtype=np.int32) // 50 % 2)
    windows = Megabatch.make(context(partitioned, 1)).windows(0)
    first, second = ([at % 50 for each in window.batches for at in each.node] for window in windows)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_an_epoch_equals_that_of_the_version_before() -> None:
    """If it changes, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is restored
    from a saved state would continue in another order."""
    partitioned = Parts(4, np.arange(NODES, dtype=np.int32) % 4)
    schedule = Megabatch.make(context(partitioned, 2, 3, 8))
    found = [
        (parts_of(each), [seeds.node.tolist() for seeds in each.batches])
        for each in schedule.windows(1)
    ]
    assert (VERSION, found) == (3, [([1, 3], [[3, 1], [5, 7]]), ([0, 2], [[4, 6], [2, 0]])])


def test_groups_are_drawn_anew_in_each_epoch() -> None:
    schedule = Megabatch.make(context(Parts.spread(16), 4))
    found = [
        frozenset(tuple(parts_of(each)) for each in schedule.windows(epoch)) for epoch in (0, 1, 2)
    ]
    assert len(set(found)) == 3
    assert all({part for group in each for part in group} == set(range(16)) for each in found)


def test_unshuffled_groups_come_in_order() -> None:
    schedule = Megabatch.make(replace(context(Parts.spread(10), 4), shuffle=False))
    found = [parts_of(each) for each in schedule.windows(5)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_a_group_without_seeds_is_not_loaded() -> None:
    partitioned = Parts(8, np.arange(NODES, dtype=np.int32) % 3)
    schedule = Megabatch.make(replace(context(partitioned, 2), shuffle=False))
    found = [(each.number, parts_of(each)) for each in schedule.windows(0)]
    assert found == [(0, [0, 1]), (1, [2, 3])]


def test_inputs_by_mask_and_with_times_keep_them() -> None:
    ids, time = torch.arange(50, 110), torch.arange(60) * 2
    made = replace(
        context(Parts.spread(16), 3), inputs=InputNodes(60, ids, by_position=False, time=time)
    )
    for seeds in batches(Megabatch.make(made).windows(0)):
        assert seeds.input_id.tolist() == seeds.node.tolist()
        assert seeds.given is not None
        assert seeds.given().time.tolist() == [2 * (node - 50) for node in seeds.node.tolist()]


def test_a_length_is_known_without_looking_at_the_seeds() -> None:
    partitioned = Parts.spread(16)
    assert len(Megabatch.make(context(partitioned, 4))) == 15 + 3
    assert not partitioned.asked


def test_partitions_of_seeds_are_found_once_for_all_epochs() -> None:
    made = context(Parts.spread(16), 4)
    for seed in range(3):
        for epoch in range(3):
            list(Megabatch.make(replace(made, seed=seed)).windows(epoch))
    assert isinstance(made.partitioned, Parts)
    assert sum(made.partitioned.asked) == 100


@pytest.mark.parametrize("used", [1, 1000, 1 << 16])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_order_takes_no_more_memory_than_it_says(used: int, shuffle: bool) -> None:
    """With many partitions, and if all seeds lie in one of them."""
    part = np.arange(1 << 18, dtype=np.int32) % used
    made = replace(context(Parts(1 << 16, part), 5000, 4, 1 << 18), shuffle=shuffle)
    schedule = Megabatch.make(made)
    tracemalloc.start()
    try:
        for window in islice(schedule.windows(0), 2):
            next(iter(window.batches))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= schedule.order_bytes + (1 << 16)


def test_the_orders_of_all_seeds_are_counted() -> None:
    """The inputs by partition, and the orders of windows."""
    count = 1 << 26
    assert Megabatch.make(context(Parts.spread(16), 4, 7, count)).order_bytes >= 2 * 4 * count


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"megabatch": 0}, r"megabatch=0: give the number .* from 1 to 16"),
        ({"megabatch": 17}, r"megabatch=17: give the number .* from 1 to 16"),
        ({"order": "dispersed"}, r"order='dispersed': .* leave order= out, or .*\"marius\""),
        ({"partitioned": None}, "'megabatch' needs a partitioned store.*gnndrive partition"),
        ({"batch_size": None}, "'megabatch' needs batch_size="),
        ({"passes": 0}, "passes=0"),
        ({"world": 5}, r"4 windows for 5 ranks.* smaller megabatch= than 4"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], message: str) -> None:
    made = replace(context(Parts.spread(16), 4), **wrong)
    with pytest.raises(ConfigError, match=message):
        Megabatch.make(made)


@given(made=contexts())
def test_the_sizes_of_windows(made: ScheduleContext) -> None:
    schedule = Megabatch.make(made)
    sizes = schedule.window_sizes
    windows = [parts_of(each) for each in schedule.windows(1)]
    assert max(map(len, windows), default=0) <= sizes.one <= (made.megabatch or 0)
    assert all(len({*one, *other}) <= sizes.two for one, other in pairwise(windows))
    assert len(windows) <= sizes.windows
    for fewer in range(1, (made.megabatch or 0) + 1):
        others = Megabatch.make(replace(made, megabatch=fewer)).window_sizes
        assert (others == sizes) == (fewer >= sizes.megabatch)
    fewest = Megabatch.make(replace(made, megabatch=None)).window_sizes
    assert (fewest.one, fewest.megabatch) == (1, 1)


def test_as_many_ranks_as_windows() -> None:
    made = replace(context(Parts.spread(16), 4), world=4)
    assert [len(drawn(replace(made, rank=rank)).windows) for rank in range(4)] == [1] * 4
