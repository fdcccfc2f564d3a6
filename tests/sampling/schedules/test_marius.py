"""MariusGNN's orders as windows: what is in memory, and which seeds come then."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Seeds
from gnndrive.sampling.dealing import skip
from gnndrive.sampling.schedules._orders import beta_swaps
from gnndrive.sampling.schedules._windowed import epoch_length
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    ScheduleContext,
    WindowSizes,
)
from gnndrive.sampling.schedules.marius import Marius
from tests.sampling.schedules.parts import Parts, edges_between
from tests.sampling.schedules.test_conformance import batches
from tests.sampling.schedules.test_megabatch import parts_of

NODES = 120


def between(count: int, random: np.random.Generator) -> InputEdges:
    """So many random edges."""
    source, target = random.integers(0, NODES, (2, count))
    return edges_between(source, target)


def of_nodes(parts: int, most: int, count: int = 100, **more: Any) -> ScheduleContext:
    given = {"partitioned": Parts.spread(parts), "megabatch": most, **more}
    return ScheduleContext(InputNodes(count), 7, True, **given)


def of_edges(parts: int, most: int, count: int = 100, **more: Any) -> ScheduleContext:
    edges = between(count, np.random.default_rng(4))
    return replace(of_nodes(parts, most, **more), inputs=edges)


@st.composite
def contexts(draw: st.DrawFn) -> ScheduleContext:
    """Contexts that can work, of nodes and of edges that lie anywhere."""
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    order = draw(st.sampled_from(["dispersed", "sequential", "comet", "beta"]))
    count = draw(st.integers(1, 12))
    most = draw(st.integers(min(count, 2), count))
    used = draw(st.integers(1, most if order == "sequential" else count))
    part = random.permutation(count)[random.integers(0, used, NODES)].astype(np.int32)
    seeds, world = draw(st.integers(0, 60)), draw(st.integers(1, 3))
    inputs = InputNodes(seeds) if order in ("dispersed", "sequential") else between(seeds, random)
    made = ScheduleContext(
        inputs, draw(st.integers(1, 20)), draw(st.booleans()), draw(st.booleans()),
        draw(st.integers(0, 5)), partitioned=Parts(count, part), megabatch=most,
        passes=draw(st.integers(1, 2)), order=order,
    )  # fmt: skip
    if order in ("dispersed", "comet") and draw(st.booleans()):
        # Two logical partitions have to fit.
        made = replace(made, logical=draw(st.integers(min(-(-2 * count // most), count), count)))
        if -(-count // (made.logical or 1)) * 2 > most:
            made = replace(made, logical=None)
    fits = order != "sequential" and world <= Marius.make(made)._windows_max
    return replace(made, world=world) if fits else made


def partitions_of(made: ScheduleContext, seeds: Seeds) -> set[int]:
    """The partitions that the seeds of a batch lie in."""
    assert isinstance(made.partitioned, Parts)
    if not seeds.of_edges:
        return set(made.partitioned.part_of(seeds.node).tolist())
    assert seeds.given is not None
    given = seeds.given()
    ends = np.concatenate([given.row.numpy(), given.col.numpy()])
    return set(made.partitioned.part_of(ends).tolist())


@given(made=contexts(), epoch=st.integers(0, 3))
def test_an_epoch(made: ScheduleContext, epoch: int) -> None:
    together, lengths = Counter[int](), set()
    for rank in range(made.world):
        schedule = Marius.make(replace(made, rank=rank))
        windows = [replace(each, batches=list(each.batches)) for each in schedule.windows(epoch)]
        drawn = batches(iter(windows))
        lengths.add(len(drawn))
        assert len(drawn) == schedule.length(epoch)
        for window in windows:
            partitions = parts_of(window)
            assert partitions == sorted(set(partitions))
            assert len(partitions) <= (made.megabatch or 0)
            for seeds in window.batches:
                assert partitions_of(made, seeds) <= set(partitions)
        sizes = {len(seeds.node) for seeds in drawn}
        if made.drop_last:
            assert sizes <= {made.batch_size}
        else:
            assert sizes <= set(range(1, (made.batch_size or 0) + 1))
        together.update(at for seeds in drawn for at in seeds.input_id.tolist())
    assert len(lengths) == 1
    if made.drop_last:
        assert made.world > 1 or max(together.values(), default=0) <= made.passes
    elif made.world == 1:
        assert together == Counter(dict.fromkeys(range(len(made.inputs)), made.passes))
        assert len(Marius.make(made)) == lengths.pop()
    else:
        assert set(together) == set(range(len(made.inputs)))
        assert min(together.values(), default=made.passes) >= made.passes


@given(made=contexts(), done=st.integers(0, 80))
def test_an_epoch_goes_on_anywhere(made: ScheduleContext, done: int) -> None:
    schedule = Marius.make(made)
    whole = [each.input_id.tolist() for each in batches(schedule.windows(2))]
    left = skip(schedule.windows(2), done)
    assert [
        each.input_id.tolist() for window in left for each in window.batches
    ] == whole[done:]  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        of_nodes(20, 7), of_nodes(20, 7, logical=20), of_nodes(9, 1), of_edges(20, 7, 3000),
        of_edges(20, 7, 3000, logical=10), of_edges(20, 7, 3000, order="beta"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("world", [1, 3])
def test_one_logical_partition_gives_way_to_another(made: ScheduleContext, world: int) -> None:
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
        (64, 64, "dispersed", None, (1, 1, 1)),
        (64, 1, "dispersed", None, (64, 1, 64)),
        (5, 4, "dispersed", 3, (3, 2, 2)),
        (1, 1, "dispersed", None, (1, 1, 1)),
        (64, 16, "comet", None, (8, 2, 28)),
        (32, 8, "comet", 32, (32, 8, 79)),
        (32, 8, "beta", None, (32, 8, 79)),
        (1, 1, "beta", None, (1, 1, 1)),
    ],
)
def test_logical_partitions(
    parts: int,
    most: int,
    order: str | None,
    logical: int | None,
    expected: tuple[int, int, int],
) -> None:
    make = of_edges if order in ("comet", "beta") else of_nodes
    schedule = Marius.make(make(parts, most, order=order, logical=logical))
    assert (schedule._logical, schedule._resident, schedule._windows_max) == expected
    assert schedule._sizes.sum() == parts
    assert len(schedule) == epoch_length(100, 7, expected[2], False)
    partitioned = schedule._partitioned
    assert isinstance(partitioned, Parts)
    assert not partitioned.asked


ORDERS = ("dispersed", "sequential", "comet", "beta")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [1, 2, 5, 8, 20])
def test_the_sizes_of_windows(order: str, parts: int) -> None:
    """Of as many seeds, hardly a state has none and is left out."""
    make, before = of_edges if order in ("comet", "beta") else of_nodes, WindowSizes()
    least = {"sequential": parts, "dispersed": 1}.get(order, min(2, parts))
    fewest = Marius.make(make(parts, 1, 3000, order=order, megabatch=None)).window_sizes
    assert fewest.megabatch == fewest.one == least
    for most in range(least, parts + 1):
        schedule = Marius.make(make(parts, most, 3000, order=order))
        sizes, windows = schedule.window_sizes, [parts_of(each) for each in schedule.windows(0)]
        together = [len({*one, *other}) for one, other in pairwise(windows)]
        assert max(map(len, windows)) <= sizes.one <= sizes.megabatch <= most
        assert sizes.two <= parts
        assert sum(each > sizes.two for each in together) <= sizes.windows - len(windows) < 5
        if order in ("dispersed", "beta") and parts % schedule._logical == 0 and len(windows) > 1:
            assert [len(each) for each in windows] == [sizes.one] * len(windows)
            assert len({*windows[0], *windows[1]}) == sizes.two < 2 * sizes.one or sizes.one == 1
        named = Marius.make(make(parts, sizes.megabatch, 3000, order=order)).window_sizes
        assert named == sizes, "megabatch= of these sizes gives other ones"
        # A larger number never needs less memory, so that the largest that fits can be searched.
        assert before.one <= sizes.one
        assert before.two <= sizes.two
        assert before.windows >= sizes.windows or before == WindowSizes()
        before = sizes


def test_dispersed_has_each_partition_in_memory_once() -> None:
    schedule = Marius.make(of_nodes(20, 7, logical=20))
    for epoch in range(5):
        windows = [set(parts_of(each)) for each in schedule.windows(epoch)]
        for part in range(20):
            has = [part in each for each in windows]
            assert sum(before != after for before, after in pairwise([False, *has, False])) == 2


def test_a_seed_is_in_any_state_that_has_its_partition() -> None:
    """Each place is as likely; 5 standard deviations of a count are allowed. The seed has a
    partition of its own, so that the other states of it have none."""
    part, nodes = 2, np.arange(NODES, dtype=np.int32)
    partitioned = Parts(6, np.where(nodes == 0, 2, np.array([0, 1, 3, 4, 5])[nodes % 5]))
    made = of_nodes(6, 3, logical=6, count=NODES)
    schedule = Marius.make(replace(made, partitioned=partitioned))
    found: dict[int, list[int]] = defaultdict(list)
    for epoch in range(800):
        windows = list(schedule.windows(epoch))
        assert len(windows) == 4
        having = [each for each in windows if part in parts_of(each)]
        has_seed = [any(0 in seeds.input_id for seeds in each.batches) for each in having]
        found[len(having)].append(has_seed.index(True))
    assert set(found) == {1, 2, 3, 4}
    for states, places in found.items():
        expected = len(places) / states
        for place in range(states):
            assert abs(places.count(place) - expected) <= 5 * np.sqrt(expected)


def test_a_partitions_seeds_are_spread_evenly_and_anew() -> None:
    schedule = Marius.make(of_nodes(6, 3, logical=6, count=6000))
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


def test_sequential_has_all_seeds_in_memory() -> None:
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
def test_edges_between_two_partitions_come_together(order: str) -> None:
    made = of_edges(8, 4, 2000, order=order)
    partitioned = made.partitioned
    assert isinstance(partitioned, Parts)
    places: dict[tuple[int, int], set[int]] = defaultdict(set)
    for epoch in range(30):
        numbers: dict[tuple[int, int], set[int]] = defaultdict(set)
        for window in Marius.make(made).windows(epoch):
            for seeds in window.batches:
                assert seeds.given is not None
                given = seeds.given()
                ends = (
                    partitioned.part_of(each.numpy()).tolist() for each in (given.row, given.col)
                )
                for bucket in zip(*ends, strict=True):
                    numbers[bucket].add(window.number)
        assert len(numbers) == 64
        assert all(len(each) == 1 for each in numbers.values())
        for bucket, own in numbers.items():
            places[bucket] |= own
    # Over the epochs, they come in many states.
    assert min(map(len, places.values())) > 5
    assert {number for own in places.values() for number in own} == set(
        range(beta_swaps(8, 4) + 1 if order == "beta" else beta_swaps(4, 2) + 1)
    )


def test_edges_come_in_any_state_that_has_both_partitions() -> None:
    """Of the three states of two partitions out of three, two have partition 0; each is as likely,
    and 5 standard deviations in 900 epochs are 75."""
    ends = np.array([(source, target) for source in range(3) for target in range(3)]).T.copy()
    made = replace(
        of_edges(3, 2, order="beta"), inputs=edges_between(*ends),
        partitioned=Parts(3, np.arange(3, dtype=np.int32)),
    )  # fmt: skip
    first = 0
    for epoch in range(900):
        windows = [each for each in Marius.make(made).windows(epoch) if 0 in parts_of(each)]
        has_loop = [any(0 in seeds.input_id for seeds in each.batches) for each in windows]
        assert sorted(has_loop) == [False, True]
        first += has_loop[0]
    assert abs(first - 450) < 75


def test_unshuffled_epochs_have_the_states_of_the_first() -> None:
    for made in (of_nodes(20, 7), of_edges(20, 7)):
        shuffled, unshuffled = Marius.make(made), Marius.make(replace(made, shuffle=False))
        first = [parts_of(each) for each in shuffled.windows(0)]
        assert [parts_of(each) for each in unshuffled.windows(3)] == first
        assert [parts_of(each) for each in shuffled.windows(3)] != first


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("used", [1, 64])
@pytest.mark.parametrize(
    ("order", "parts", "most", "logical"),
    [
        ("dispersed", 64, 16, None), ("dispersed", 2000, 300, 500), ("sequential", 64, 64, None),
        ("comet", 64, 16, None), ("beta", 64, 16, None), ("comet", 1000, 500, 100),
    ],
)  # fmt: skip
def test_the_order_takes_no_more_memory_than_it_says(
    order: str, parts: int, most: int, logical: int | None, used: int, shuffle: bool
) -> None:
    """Also if all seeds lie in one partition."""
    count = 1 << 18
    random = np.random.default_rng(0)
    part = (random.integers(0, parts, count) % (used if used == 1 else parts)).astype(np.int32)
    inputs: InputNodes | InputEdges = InputNodes(count)
    if order in ("comet", "beta"):
        source, target = random.integers(0, count, (2, count))
        inputs = edges_between(source, target)
    schedule = Marius.make(
        ScheduleContext(
            inputs, 4, shuffle, partitioned=Parts(parts, part), megabatch=most, order=order,
            logical=logical,
        )
    )  # fmt: skip
    tracemalloc.start()
    try:
        for window in islice(schedule.windows(0), 2):
            next(iter(window.batches))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= schedule.order_bytes + (1 << 16)


def test_the_orders_of_all_seeds_are_counted() -> None:
    """The inputs by partition, an epoch's order of each partition, and the orders of windows."""
    count = 1 << 26
    assert Marius.make(of_nodes(64, 16, count)).order_bytes >= 3 * 4 * count
    assert Marius.make(of_nodes(64, 16, count, order="sequential")).order_bytes >= 2 * 4 * count


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (of_nodes(16, 4, order="comet"), "'comet' is not .* seed nodes: give 'dispersed' or"),
        (of_edges(16, 4, order="dispersed"), "'dispersed' is not .* seed edges: give 'comet' or"),
        (of_nodes(16, 4, order="best"), "order='best' is not an order"),
        (of_nodes(16, 17), r"megabatch=17: give the number .* from 1 to 16"),
        (of_nodes(16, 4, logical=0), "logical=0: give the number .* from 1 to 16"),
        (of_nodes(16, 4, logical=17), "logical=17: give the number .* from 1 to 16"),
        (of_nodes(16, 4, logical=3), "megabatch=4: .*'dispersed' needs 1 of 3 .* megabatch=6 or"),
        (of_edges(16, 4, logical=7), "megabatch=4: .*'comet' needs 2 of 7 .* megabatch=6 or more,"),
        (of_edges(16, 1), "megabatch=1: .*'comet' needs 2 of 16 .*: give megabatch=2 or more"),
        (of_edges(16, 1, order="beta"), "'beta' needs 2 of 16 .*: give megabatch=2 or more$"),
        (of_edges(16, 4, order="beta", logical=8), "logical=8: .*joins no partitions.*'comet'"),
        (of_edges(5000, 4), "5,000 partitions, .* 4,096: partition it into fewer"),
        (of_nodes(16, 4, order="sequential", world=2), "which 2 ranks cannot share.*'dispersed'"),
        (of_nodes(16, 4, world=8), "7 windows for 8 ranks"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(made: ScheduleContext, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Marius.make(made)
