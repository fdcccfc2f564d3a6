"""`strategy="marius"`: partitions in memory give way one by one, for seed nodes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ConfigError
from gnndrive.strategies import STRATEGIES
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    NODES,
    PARTS,
    check,
    inputs_of,
    inside,
    windows_of,
    with_windows,
)

MARIUS: dict[str, Any] = {"strategy": "marius", "megabatch": 4}
EPOCHS = 2
VARIANTS: dict[str, dict[str, Any]] = {
    "six logical partitions": {},
    "as many as the store has": {"megabatch": 3},
    "one in memory": {"megabatch": 1},
    "all in memory": {"megabatch": PARTS},
    "the largest that fits": {"megabatch": None, "buffer": "20KB"},
    "everything fits": {"megabatch": None},
    "a memory limit": {"megabatch": None, "memory": "80MB"},
    "static nodes": {"static": 0.02},
    "in order": {"shuffle": False},
    "twice": {"passes": 2},
    "few seeds": {"input_nodes": torch.arange(0, NODES, 200), "batch_size": 2},
    "states that are left out, in any order": {
        "input_nodes": torch.arange(0, NODES, 100),
        "batch_size": 1,
        "in_order": False,
        "samplers": 4,
        "megabatch": 3,
    },
    "whole batches": {"drop_last": True, "batch_size": 17},
    "batches in any order": {"in_order": False},
}


def entering(loader: NeighborLoader, epoch: int = 0) -> list[int]:
    """How many nodes the partitions have that come into memory with each window of an epoch."""
    assert loader._partitioned is not None
    sizes = np.diff(loader._partitioned.bounds)
    windows = [set(each.partitions.tolist()) for each in windows_of(loader, epoch)]
    new = [after - before for before, after in pairwise([set[int](), *windows])]
    return [int(sizes[sorted(each)].sum()) for each in new]


def of_partitions(loader: NeighborLoader, partitions: list[int]) -> torch.Tensor:
    """The nodes of some partitions."""
    assert loader._partitioned is not None
    part = loader._partitioned.part_of(np.arange(NODES))
    return torch.from_numpy(np.flatnonzero(np.isin(part, partitions)))


@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
def test_batches_are_pieces_of_the_graph(
    make: Make, graph: Data, arguments: dict[str, Any]
) -> None:
    loader = make(**{**MARIUS, **arguments})
    inputs = range(len(arguments.get("input_nodes", range(NODES))))
    for epoch in range(EPOCHS):
        batches = list(loader)
        assert len(batches) == len(loader)
        if loader.in_order:
            for batch, window in with_windows(batches, loader, epoch):
                check(batch, graph, inside(loader, window))
        for batch in batches:
            check(batch, graph)
        found = Counter(number for each in inputs_of(batches) for number in each)
        if arguments.get("drop_last"):
            assert max(found.values()) == 1
        else:
            assert found == Counter(dict.fromkeys(inputs, arguments.get("passes", 1)))


def test_sequential_has_all_seeds_in_memory(make: Make, graph: Data) -> None:
    nodes = of_partitions(make(), [2, 7])
    loader = make(**MARIUS, order="sequential", input_nodes=nodes)
    groups = []
    for epoch in range(4):
        (window,) = windows_of(loader, epoch)
        assert window.partitions is not None
        groups.append(window.partitions.tolist())
        batches = list(loader)
        for batch in batches:
            check(batch, graph, inside(loader, window))
        seeds = torch.cat([each.input_id for each in batches])
        assert seeds.sort().values.tolist() == list(range(len(nodes)))
    assert all(len(each) == 4 and {2, 7} < set(each) for each in groups)
    assert len(set(map(tuple, groups))) > 1


def test_a_swap_loads_one_logical_partition(make: Make) -> None:
    """Of the six, two are in memory; a window's rows are read before its batches, and once."""
    loader = make(**MARIUS)
    for _ in loader:
        pass
    stats, new = loader.stats(), entering(loader)
    assert len(new) == stats["windows"] == 5
    assert sum(new) == stats["rows_loaded"] == NODES
    plan = loader.plan()
    sizes = np.sort(np.diff(loader._partitioned.bounds))[::-1]
    assert plan.tables[0].slots == sizes[:6].sum()
    assert "0 static ones and two of 5 windows, each of 4 of 12 partitions, 2 of them in both" in (
        str(plan)
    )


def test_slots_for_what_two_windows_have_in_common(make: Make) -> None:
    """In the memory that two windows of hierbatching with two partitions need, marius has three of
    its own, one of which gives way."""
    slots = make(megabatch=2, static=0).plan().tables[0].slots
    found = make(strategy="marius", megabatch=None, buffer=36 * slots)
    found.plan()
    assert found._megabatches is not None
    sizes = found._megabatches[1].windows.sizes
    assert (sizes.one, sizes.two, sizes.windows) == (3, 4, 10)


@pytest.mark.parametrize("arguments", [{}, {"static": 0.02, "passes": 2}], ids=["", "static"])
@pytest.mark.parametrize("done", [1, 8, 15, 29, 30])
def test_an_epoch_goes_on_in_the_middle_of_a_state(
    make: Make, arguments: dict[str, Any], done: int
) -> None:
    whole = make(**MARIUS, **arguments)
    expected = [list(whole), list(whole)]
    first = make(**MARIUS, **arguments)
    iterator = iter(first)
    for _ in range(done):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    other = make(**MARIUS, **arguments)
    assert len(other) == len(whole)
    other.load_state_dict(state)
    for one, same in zip(other, expected[0][done:], strict=True):
        assert_same(one, same)
    for one, same in zip(other, expected[1], strict=True):
        assert_same(one, same)


def test_a_state_of_other_windows_is_refused(make: Make) -> None:
    loader = make(**MARIUS)
    next(iter(loader))
    state = loader.state_dict()
    for name, value in (("megabatch", 6), ("static", 0.01), ("passes", 2), ("order", "dispersed")):
        other = make(**{**MARIUS, name: value})
        len(other)
        with pytest.raises(ConfigError, match=f"other settings: .*{name}"):
            other.load_state_dict(state)


def test_the_share_of_static_nodes_is_the_strategys(make: Make) -> None:
    found = {}
    for name in ("hierbatching", "marius"):
        loader = make(strategy=name)
        loader.plan()
        assert loader._megabatches is not None
        found[name] = loader._megabatches[1].windows.static
    assert found == {"hierbatching": 9, "marius": 0}
    assert STRATEGIES["marius"].static == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "comet"}, "'comet' is not an order for seed nodes: give 'dispersed' or"),
        ({"order": "best"}, "order='best' is not an order"),
        ({"order": "sequential"}, "needs all 12 partitions .* give order='dispersed'"),
        ({"strategy": "hierbatching", "order": "beta"}, "order='beta': .* leave order= out, or"),
        ({"strategy": "gnndrive", "megabatch": None, "order": "beta"}, "leave it out, or give"),
        ({"disjoint": True}, "leave disjoint= out, or give strategy='gnndrive'"),
        ({"subgraph_type": "induced"}, "leave subgraph_type='induced' out"),
        ({"transform_sampler_output": dict}, "leave transform_sampler_output= out"),
        ({"sampler": range(9), "shuffle": False}, "leave sampler= and batch_sampler= out"),
    ],
)
def test_what_cannot_work_is_refused(make: Make, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iter(make(**{**MARIUS, **arguments}))


def test_sequential_in_too_little_memory(make: Make, store: Store) -> None:
    """The smallest windows have all partitions with seeds."""
    nodes = of_partitions(make(), [0, 1, 2, 3, 4])
    sequential = {"strategy": "marius", "order": "sequential", "input_nodes": nodes}
    with pytest.raises(ConfigError, match="windows of 5 of 12 partitions, which need"):
        make(**sequential, megabatch=None, buffer="9KB").plan()
    loader = make(**sequential, megabatch=None, buffer="22KB")
    assert 5 <= len(windows_of(loader)[0].partitions) < PARTS
