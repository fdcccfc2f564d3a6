"""Batches that are sampled inside windows: each is a piece of the graph and of its window."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnndrive import Store
from gnndrive.loader.megabatches import MegabatchSource
from gnndrive.strategies import STRATEGIES
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    MARIUS,
    NODES,
    PARTS,
    STATIC,
    WINDOWS,
    check,
    inputs_of,
    inside,
    make_graph,
    make_store,
    windows_of,
    with_windows,
)
from tests.soak import product

EPOCHS = 2
SOME = torch.arange(0, NODES, 5)
SIZES = [
    {"megabatch": 1, "static": 0},
    {"megabatch": PARTS, "shuffle": False},
    {"megabatch": None, "buffer": "20KB", "static": 0.04},
    {"megabatch": None, "memory": "80MB", "passes": 2},
]
VARIANTS: list[dict[str, Any]] = [
    *SIZES,
    {"drop_last": True, "batch_size": 40, "passes": 2},
    {"num_neighbors": [], "batch_size": 5000},
    {"replace": True, "input_nodes": SOME},
    {"sampling": "labor", "batch_dependency": 4, "input_nodes": SOME[:3]},
    {"input_nodes": torch.empty(0, dtype=torch.int64), "shuffle": False},
    *(MARIUS | each for each in SIZES),
    MARIUS | {"static": 0.02, "drop_last": True, "batch_size": 40},
    # states that are left out, in any order
    MARIUS | {"input_nodes": SOME[::20], "batch_size": 1, "in_order": False, "megabatch": 3},
]


@pytest.mark.parametrize("arguments", VARIANTS, ids=lambda given: " ".join(map(str, given)))
def test_batches_are_pieces_of_the_graph(make, graph, arguments):
    """All batches of an epoch are kept: none may be in memory that is used again."""
    loader = make(**arguments)
    inputs = range(len(arguments.get("input_nodes", range(NODES))))
    for epoch in range(EPOCHS):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check(batch, graph, window if loader.in_order else None)
            assert batch.batch_size <= loader.batch_size
        found = Counter(number for each in inputs_of(batches) for number in each)
        passes = arguments.get("passes", 1)
        if arguments.get("drop_last"):
            assert all(batch.batch_size == loader.batch_size for batch in batches)
            assert max(found.values()) <= passes
        else:
            assert found == Counter(dict.fromkeys(inputs, passes))


def test_all_edges_inside_a_window_are_there(make: Make, graph: Data) -> None:
    """With every neighbour sampled, the edges to the seeds are those that begin in the window."""
    loader = make(num_neighbors=[-1], static=0.02)
    lost = 0
    for batch, among in with_windows(loader, loader):
        source, target = graph.edge_index
        of_seeds = torch.isin(target, batch.n_id[: batch.batch_size])
        expected = (of_seeds & among[source]).nonzero().reshape(-1)
        assert torch.equal(batch.e_id.sort().values, expected)
        lost += int(of_seeds.sum()) - len(expected)
    assert lost > 0


def test_the_in_edges_of_a_windows_nodes(make: Make, store: Store) -> None:
    """They are counted right. A static node in one of the partitions counts once."""
    for static in (0, 0.01):
        assembly = make(static=static)._assembly()
        schedule, pointers = assembly.schedule(0), store.edges().index_pointers
        source = MegabatchSource(
            assembly.megabatches.windows, pointers, lambda schedule=schedule: schedule.windows(0)
        )
        degrees = np.diff(pointers.astype(np.int64))
        windows = list(source.windows())
        assert len(windows) == WINDOWS
        for window in windows:
            nodes = np.unique(source.graph(window).store_ids)
            assert source.codes_of(window) == degrees[nodes].sum()


def test_unshuffled_epochs_draw_other_neighbours(make: Make) -> None:
    loader = make(shuffle=False)
    first, second = list(loader), list(loader)
    assert inputs_of(first) == inputs_of(second)
    assert any(not torch.equal(a.e_id, b.e_id) for a, b in zip(first, second, strict=True))


def test_each_window_is_loaded_once(make: Make) -> None:
    """Its rows are read once, with its lists, and no batch loads a row itself. Each partition, and
    the static rows, are one read."""
    loader = make(static=0.01, passes=2)
    for epoch in range(1, EPOCHS + 1):
        for _ in loader:
            pass
        stats = loader.stats()
        assert stats["windows"] == epoch * WINDOWS
        assert stats["requests"] <= epoch * (PARTS + 1)
    assert stats["topology"] == "none"
    assert NODES + STATIC <= stats["rows_loaded"] <= EPOCHS * (NODES + STATIC)


def test_input_ids(make: Make, graph: Data) -> None:
    """A node that is given twice is there twice."""
    ids = graph.train_mask.nonzero().reshape(-1)
    by_mask = make(input_nodes=graph.train_mask)
    own = make(input_nodes=ids, input_id=torch.arange(len(ids)) * 7)
    for mask, one, other in zip(by_mask, make(input_nodes=ids), own, strict=True):
        assert torch.equal(mask.input_id, mask.n_id[: mask.batch_size])
        assert torch.equal(ids[one.input_id], mask.input_id)
        assert torch.equal(other.input_id, 7 * one.input_id)
    twice = torch.cat([SOME, SOME.flip(0)])
    found = Counter[int]()
    for batch in make(input_nodes=twice):
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]  # PyG has a seed once in a batch
        assert set(twice[batch.input_id].tolist()) == set(seeds.tolist())
        found.update(batch.input_id.tolist())
    assert found == Counter(range(len(twice)))


@product(
    "dtype_width,device",
    [(torch.bfloat16, 7), (torch.uint8, 777), (torch.float32, 4714), (torch.float64, 1)],
    ["cpu", "simulated-cuda"],
)
def test_rows_of_all_types_and_sizes(make, dtype_width, device, tmp_path):
    count, (dtype, width) = 120, dtype_width
    draw = torch.Generator().manual_seed(8)
    x = (200 * torch.rand(count, width, generator=draw) - 100).to(dtype)
    data = make_graph(x, count, 800)
    loader = make(data=make_store(data, tmp_path), device=device)
    for batch, window in with_windows(loader, loader):
        check(batch, data, window)


# ---- marius: partitions in memory give way one by one


def test_sequential_has_all_seeds_in_memory(make: Make, graph: Data) -> None:
    part = make()._partitioned.part_of(np.arange(NODES))
    nodes = torch.from_numpy(np.flatnonzero(np.isin(part, [2, 7])))
    loader = make(**MARIUS, order="sequential", input_nodes=nodes)
    groups = []
    for epoch in range(4):
        (window,) = windows_of(loader, epoch)
        groups.append(tuple(window.partitions.tolist()))
        batches = list(loader)
        for batch in batches:
            check(batch, graph, inside(loader, window))
        seeds = torch.cat([each.input_id for each in batches])
        assert seeds.sort().values.tolist() == list(range(len(nodes)))
    assert all(len(each) == 4 and {2, 7} < set(each) for each in groups)
    assert len(set(groups)) > 1


def test_a_swap_loads_one_logical_partition(make: Make) -> None:
    """Of the six, two are in memory; a window's rows are read before its batches, and once."""
    loader = make(**MARIUS)
    assert len(list(loader)) == len(loader)
    sizes = np.diff(loader._partitioned.bounds)
    windows = [set(each.partitions.tolist()) for each in windows_of(loader)]
    new = [
        sizes[sorted(after - before)].sum() for before, after in pairwise([set[int](), *windows])
    ]
    stats, plan = loader.stats(), loader.plan()
    assert len(new) == stats["windows"] == 5
    assert sum(new) == stats["rows_loaded"] == NODES
    assert plan.tables[0].slots == np.sort(sizes)[::-1][:6].sum()
    assert "two of 5 windows, each of 4 of 12 partitions, 2 of them in both" in str(plan)


def test_slots_for_what_two_windows_have_in_common(make: Make) -> None:
    """In the memory that two windows of hierbatching with two partitions need, marius has three of
    its own, one of which gives way."""
    slots = make(megabatch=2, static=0).plan().tables[0].slots
    found = make(strategy="marius", megabatch=None, buffer=36 * slots)
    found.plan()
    sizes = found._megabatches[1].windows.sizes
    assert (sizes.one, sizes.two, sizes.windows) == (3, 4, 10)
    assert found._megabatches[1].windows.static == STRATEGIES["marius"].static == 0
