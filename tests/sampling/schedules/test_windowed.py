"""Windows of partitions: what `Megabatch` and `Marius` share. Windows are cut into as many batches
as an epoch has, however the seeds lie in them."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.records import Seeds
from gnndrive.sampling.dealing import skip
from gnndrive.sampling.schedules._parts import InputParts
from gnndrive.sampling.schedules._windowed import cut, epoch_length, least
from gnndrive.sampling.schedules.base import InputNodes, ScheduleContext
from gnndrive.sampling.schedules.marius import Marius
from gnndrive.sampling.schedules.megabatch import Megabatch
from tests.sampling.schedules.parts import Parts, batches, edges_between, parts_of
from tests.soak import product

NODES = 120


# ---- whole epochs


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
    """The partitions that the seeds of a batch lie in."""
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
    schedule = kind.make(made)
    tracemalloc.start()
    try:
        for window in islice(schedule.windows(0), 2):
            next(iter(window.batches))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= schedule.order_bytes + (1 << 16)


# ---- cutting


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


# ---- the inputs by partition


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


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_without_seeds_has_no_batches(drop_last):
    made = ScheduleContext(
        InputNodes(0), 10, drop_last=drop_last, partitioned=Parts.spread(8), megabatch=4
    )
    for kind in (Megabatch, Marius):
        assert list(kind.make(made).windows(0)) == []
    assert epoch_length(0, 10, 4, drop_last) == 0
    assert cut(np.empty(0, np.int64), 10, 0, drop_last) == []
