"""Batches that are sampled inside windows: each is a piece of the graph and of its window."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnndrive import Store
from gnndrive.loader.megabatches import MegabatchSource
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    NODES,
    PARTS,
    STATIC,
    WINDOWS,
    check,
    inputs_of,
    make_graph,
    make_store,
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
MARIUS = {"strategy": "marius", "megabatch": 4}
VARIANTS: list[dict[str, Any]] = [
    *SIZES,
    {"drop_last": True, "batch_size": 40, "passes": 2},
    {"num_neighbors": [], "batch_size": 5000},
    {"replace": True, "input_nodes": SOME},
    {"sampling": "labor", "batch_dependency": 4, "input_nodes": SOME[:3]},
    MARIUS,
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
        found = Counter(number for each in inputs_of(batches) for number in each)
        passes = arguments.get("passes", 1)
        if arguments.get("drop_last"):
            assert all(batch.batch_size == loader.batch_size for batch in batches)
            assert max(found.values()) <= passes
        else:
            assert found == Counter(dict.fromkeys(inputs, passes))
        assert max(len(each) for each in inputs_of(batches)) <= loader.batch_size


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


def test_a_mask_ids_and_input_ids(make: Make, graph: Data, store: Store) -> None:
    mask = graph.train_mask
    ids = mask.nonzero().reshape(-1)
    for batch in make(input_nodes=mask):
        check(batch, graph)
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])
        assert mask[batch.input_id].all()
    by_ids, by_split = make(input_nodes=ids), make(input_nodes=store.split("train"))
    own = make(input_nodes=ids, input_id=torch.arange(len(ids)) * 7)
    for one, split, other in zip(by_ids, by_split, own, strict=True):
        assert torch.equal(ids[one.input_id], one.n_id[: one.batch_size])
        assert torch.equal(other.input_id, 7 * one.input_id)
        assert torch.equal(other.n_id, one.n_id)
        assert torch.equal(split.n_id, one.n_id)


def test_nodes_given_twice_and_none(make: Make, graph: Data) -> None:
    twice = torch.cat([SOME, SOME.flip(0)])
    found = Counter[int]()
    for batch in make(input_nodes=twice):
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]  # PyG has a seed once in a batch
        assert set(twice[batch.input_id].tolist()) == set(seeds.tolist())
        assert torch.equal(batch.x, graph.x[batch.n_id])
        found.update(batch.input_id.tolist())
    assert found == Counter(range(len(twice)))
    nothing = make(input_nodes=torch.empty(0, dtype=torch.int64), shuffle=False)
    assert len(nothing) == 0 == len(list(nothing))


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


def test_a_transform_sees_whole_batches(make: Make, graph: Data) -> None:
    def transform(batch: Data) -> Data:
        check(batch, graph)
        batch.x = batch.x * 2
        return batch

    plain = list(make())
    for device in ("cpu", "simulated-cuda"):
        for one, other in zip(make(transform=transform, device=device), plain, strict=True):
            assert torch.equal(one.x, 2 * other.x)
        for batch in make(feature_dtype=torch.float16, device=device):
            assert torch.equal(batch.x, graph.x[batch.n_id].half())


def test_two_loaders_at_once(make: Make) -> None:
    """They share the partitions' files and nothing else."""
    for one, other in zip(make(), make(), strict=True):
        assert_same(one, other)


def test_leaving_in_the_middle_and_beginning_again(make: Make) -> None:
    alone, loader = make(), make()
    for count in (1, 5, 12):
        for one, other in zip(list(alone)[:count], loader, strict=False):
            assert_same(one, other)
