"""Ranks get windows of their own, and as many batches each; `loader/ranks` has real processes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import NeighborLoader
from gnndrive.common.errors import ConfigError
from tests.loader.batches import assert_same
from tests.loader.ranks.conftest import AsRank
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import NODES, PARTS, check, windows_of, with_windows
from tests.soak import product

VARIANTS: dict[str, dict[str, Any]] = {
    "a window each": {"megabatch": 4},
    "in order": {"megabatch": 2, "shuffle": False},
    "passes": {"megabatch": 2, "passes": 2},
    "whole batches": {"megabatch": 2, "drop_last": True, "batch_size": 10},
    "few seeds": {"megabatch": 1, "input_nodes": torch.arange(7)},
    "some nodes": {"megabatch": 2, "input_nodes": torch.arange(100), "batch_size": 9},
}


@product("variant,world", list(VARIANTS), [3, 2])
def test_ranks_have_windows_of_their_own(make, graph, as_rank, variant, world):
    arguments = VARIANTS[variant]
    loaders, inputs = list[NeighborLoader](), range(len(arguments.get("input_nodes", range(NODES))))
    for rank in range(world):
        as_rank(rank, world)
        loaders.append(make(ranks=True, **arguments))
        len(loaders[rank])  # chooses the windows as this rank
    for epoch in range(2):
        found, groups, lengths = Counter[int](), list[tuple[int, ...]](), set[int]()
        for rank, loader in enumerate(loaders):
            as_rank(rank, world)
            batches = list(loader)
            assert len(batches) == len(loader) or loader.epoch > 1, "len() is the first epoch's"
            lengths.add(len(batches))
            groups += [tuple(each.partitions.tolist()) for each in windows_of(loader, epoch)]
            for batch, window in with_windows(batches, loader, epoch):
                check(batch, graph, window)
                found.update(batch.input_id.tolist())
        assert len(lengths) == 1, "ranks that have no more batches wait for the others for ever"
        if len(inputs) >= 10:
            assert len(groups) == len(set(groups)), "two ranks load a window"
        if not arguments.get("drop_last"):
            assert set(found) == set(inputs)
            assert min(found.values()) >= arguments.get("passes", 1)
        else:
            assert max(found.values()) == 1


def test_draws_of_ranks_differ(make: Make, graph: Data, as_rank: AsRank) -> None:
    """Of a seed that two ranks have, because there are fewer windows with seeds than ranks."""
    drawn = []
    for rank in range(2):
        as_rank(rank, 2)
        nodes = graph.edge_index[1].mode().values.reshape(1)  # it has the most neighbours
        drawn.append([batch.e_id.tolist() for batch in
                      make(ranks=True, input_nodes=nodes, passes=9)])  # fmt: skip
    assert len(drawn[0]) == len(drawn[1]) == 9
    assert drawn[0] != drawn[1]


@product("done,world", [0, 1, 4], [2, 3])
def test_as_many_ranks_go_on(make: Make, as_rank: AsRank, world: int, done: int) -> None:
    states = []
    for rank in range(world):
        as_rank(rank, world)
        whole, saving = list(make(ranks=True, megabatch=2)), make(ranks=True, megabatch=2)
        begun = list(islice(saving, done))
        states.append(json.loads(json.dumps(saving.state_dict())))
        assert states[-1] == states[0], "it is the same on all ranks"
        resumed = make(ranks=True, megabatch=None)
        resumed.load_state_dict(states[0])
        rest = list(resumed)
        for one, other in zip([*begun, *rest], whole, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 1), (1, 2)])
def test_another_number_of_ranks_is_refused(make, as_rank, before, after):
    """In the middle of an epoch; after it, any number begins the next one."""
    as_rank(0, before)
    saving = make(ranks=True, megabatch=2)
    iterator = iter(saving)
    next(iterator)
    middle = saving.state_dict()
    list(iterator)
    end = saving.state_dict()
    as_rank(0, after)
    resumed = make(ranks=True, megabatch=2)
    with pytest.raises(ConfigError, match=f"dealt to {before} ranks and are dealt to {after} now"):
        resumed.load_state_dict(middle)
    resumed.load_state_dict(end)
    assert resumed.epoch == 1
    assert list(resumed)


@pytest.mark.parametrize(
    ("world", "arguments", "said"),
    [
        (3, {"megabatch": 6}, r"has 2 windows for 3 ranks.* a smaller megabatch= than"),
        (PARTS + 1, {}, r"12 windows for 13 ranks.* partition the store into m"),
        # The memory that each finds, and the seconds that it measures, may differ.
        (2, {"buffer": "200KB"}, r"as large on all of them: give megabatch=\d+, which"),
        (2, {"megabatch": 2, "passes": "auto"}, "have to yield as many batches: give a number"),
    ],
)
def test_what_ranks_cannot_have_is_refused(make, as_rank, world, arguments, said):
    as_rank(0, world)
    with pytest.raises(ConfigError, match=said):
        len(make(ranks=True, **{"megabatch": None, **arguments}))


def test_a_host_service_has_no_windows(make, as_rank, monkeypatch):
    """host_service="auto" goes without one."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    as_rank(0, 2, group=object())
    with pytest.raises(ConfigError, match="with strategy='hierbatching' each rank has windows of"):
        make(ranks=True, host_service=True).plan()
    plan = make(ranks=True, host_service="auto", megabatch=2, memory="100MB").plan()
    assert plan.ranks == 2
    assert not plan.shared
    assert {line.what: line.copies for line in plan.lines}["window graphs"] == 2


def test_a_user_who_deals(make: Make, as_rank: AsRank) -> None:
    """Each rank has input nodes of its own, and all windows."""
    for rank in range(2):
        as_rank(rank, 2, "user")
        loader = make(input_nodes=torch.arange(rank, NODES, 2))
        assert sum(len(batch.input_id) for batch in loader) == NODES // 2
