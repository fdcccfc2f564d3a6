"""Mega-batches: an epoch's windows are random groups of partitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.loader.epoch_state import VERSION
from gnndrive.sampling.schedules.base import InputNodes, ScheduleContext
from gnndrive.sampling.schedules.megabatch import Megabatch
from tests.sampling.schedules.parts import Parts, parts_of

NODES = 200


def context(partitioned: Parts, megabatch: int, size: int = 7, count: int = 100) -> ScheduleContext:
    return ScheduleContext(
        InputNodes(count), size, True, seed=3, partitioned=partitioned, megabatch=megabatch
    )


def test_each_pass_and_each_epoch_has_another_order():
    schedule = Megabatch.make(replace(context(Parts.spread(16), 16), passes=3))
    orders = set()
    for epoch in range(3):
        (window,) = schedule.windows(epoch)
        ids = [at for each in window.batches for at in each.input_id.tolist()]
        orders |= {tuple(ids[at : at + 100]) for at in range(0, 300, 100)}
    assert len(orders) == 9
    assert {tuple(sorted(each)) for each in orders} == {tuple(range(100))}


def test_an_epoch_equals_that_of_the_version_before():
    """If it changes, raise `gnndrive.loader.epoch_state.VERSION`: else a loader that is restored
    from a saved state would continue in another order."""
    partitioned = Parts(4, np.arange(NODES, dtype=np.int32) % 4)
    schedule = Megabatch.make(context(partitioned, 2, 3, 8))
    found = [
        (parts_of(each), [seeds.node.tolist() for seeds in each.batches])
        for each in schedule.windows(1)
    ]
    assert (VERSION, found) == (3, [([1, 3], [[3, 1], [5, 7]]), ([0, 2], [[4, 6], [2, 0]])])


def test_groups_are_drawn_anew_in_each_epoch_or_come_in_order():
    schedule = Megabatch.make(context(Parts.spread(16), 4))
    found = [
        frozenset(tuple(parts_of(each)) for each in schedule.windows(epoch)) for epoch in (0, 1, 2)
    ]
    assert len(set(found)) == 3
    assert all({part for group in each for part in group} == set(range(16)) for each in found)
    schedule = Megabatch.make(replace(context(Parts.spread(10), 4), shuffle=False))
    assert [parts_of(each) for each in schedule.windows(5)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_a_group_without_seeds_is_not_loaded():
    partitioned = Parts(8, np.arange(NODES, dtype=np.int32) % 3)
    schedule = Megabatch.make(replace(context(partitioned, 2), shuffle=False))
    found = [(each.number, parts_of(each)) for each in schedule.windows(0)]
    assert found == [(0, [0, 1]), (1, [2, 3])]


def test_the_sizes_of_windows():
    for count in (1, 5, 12):
        made = context(Parts.spread(count), count)
        for most in range(1, count + 1):
            sizes = Megabatch.make(replace(made, megabatch=most)).window_sizes
            for fewer in range(1, most + 1):
                others = Megabatch.make(replace(made, megabatch=fewer)).window_sizes
                assert (others == sizes) == (fewer >= sizes.megabatch)
        fewest = Megabatch.make(replace(made, megabatch=None)).window_sizes
        assert (fewest.one, fewest.megabatch) == (1, 1)


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
def test_what_cannot_work_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Megabatch.make(replace(context(Parts.spread(16), 4), **wrong))
