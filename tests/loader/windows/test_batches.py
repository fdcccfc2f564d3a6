"""Batches that are sampled inside windows: each is a piece of the graph and of its window."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive import Store
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
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

EPOCHS = 3
SOME = torch.arange(0, NODES, 5)
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one partition": {"megabatch": 1},
    "five partitions": {"megabatch": 5},
    "all partitions": {"megabatch": PARTS},
    "the largest that fits": {"megabatch": None, "buffer": "20KB"},
    "everything fits": {"megabatch": None},
    "no static nodes": {"static": 0},
    "all static nodes": {"static": 0.04},
    "in order": {"shuffle": False},
    "twice": {"passes": 2},
    "three hops": {"num_neighbors": [3, 2, 2]},
    "all neighbours": {"num_neighbors": [-1, 2]},
    "no hops": {"num_neighbors": []},
    "with replacement": {"replace": True},
    "shared numbers": {"sampling": "labor", "batch_dependency": 4},
    "some nodes": {"input_nodes": SOME},
    "few seeds": {"input_nodes": SOME[:3]},
    "whole batches": {"drop_last": True, "batch_size": 17},
    "whole batches, twice": {"drop_last": True, "batch_size": 17, "passes": 2},
    "one seed": {"batch_size": 1, "input_nodes": SOME},
    "large batches": {"batch_size": 5000},
    "few places": {"samplers": 1, "extracting_queue": 1, "training_queue": 1, "extractors": 1},
    "many places": {"samplers": 6, "extracting_queue": 9, "training_queue": 9},
    "threads": {"engine": "threads"},
    "a memory limit": {"memory": "80MB", "megabatch": None},
}


@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
def test_batches_are_pieces_of_the_graph(
    make: Make, graph: Data, arguments: dict[str, Any]
) -> None:
    """All batches of an epoch are kept: none may be in memory that is used again."""
    loader = make(**arguments)
    inputs = range(len(arguments.get("input_nodes", range(NODES))))
    for epoch in range(EPOCHS):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check(batch, graph, inside(loader, window))
        found = Counter(number for each in inputs_of(batches) for number in each)
        passes = arguments.get("passes", 1)
        if arguments.get("drop_last"):
            assert all(batch.batch_size == loader.batch_size for batch in batches)
            assert max(found.values()) <= passes
        else:
            assert found == Counter(dict.fromkeys(inputs, passes))
        assert max(len(each) for each in inputs_of(batches)) <= loader.batch_size


@pytest.mark.parametrize("static", [0, 0.02])
def test_all_edges_inside_a_window_are_there(make: Make, graph: Data, static: float) -> None:
    """With every neighbour sampled, the edges to the seeds are those that begin in the window."""
    loader = make(num_neighbors=[-1], static=static)
    lost = 0
    for batch, window in with_windows(loader, loader):
        among = inside(loader, window)
        source, target = graph.edge_index
        of_seeds = torch.isin(target, batch.n_id[: batch.batch_size])
        expected = (of_seeds & among[source]).nonzero().reshape(-1)
        assert torch.equal(batch.e_id.sort().values, expected)
        lost += int(of_seeds.sum()) - len(expected)
    assert lost > 0


def test_epochs_have_other_windows(make: Make) -> None:
    loader, ordered = make(), make(shuffle=False)
    epochs = [list(loader) for _ in range(EPOCHS)]
    assert len({str(inputs_of(each)) for each in epochs}) == EPOCHS
    groups = [
        {tuple(each.partitions) for each in windows_of(loader, epoch)} for epoch in range(EPOCHS)
    ]
    assert all(len(each) == WINDOWS for each in groups)
    assert groups[0] != groups[1] != groups[2]
    first, second = list(ordered), list(ordered)
    assert inputs_of(first) == inputs_of(second)
    assert any(not torch.equal(a.e_id, b.e_id) for a, b in zip(first, second, strict=True))


def test_passes_draw_anew(make: Make) -> None:
    loader = make(passes=3)
    batches = list(loader)
    for window in windows_of(loader):
        size, seen = window.count // 3, set[str]()
        first = list[int]()
        for turn in range(3):
            begin = window.first + turn * size
            seeds = inputs_of(batches[begin : begin + size])
            seen.add(str(seeds))
            found = sorted(number for each in seeds for number in each)
            assert found == (first if turn else found)
            first = found
        assert len(seen) == 3, "two passes have the same batches"


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


# ---- inputs


def test_a_mask_ids_and_input_ids(make: Make, graph: Data, store: Store) -> None:
    mask = graph.train_mask
    ids = mask.nonzero().reshape(-1)
    by_mask = make(input_nodes=mask)
    for batch in by_mask:
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


def test_nodes_given_twice(make: Make, graph: Data) -> None:
    twice = torch.cat([SOME, SOME.flip(0)])
    loader = make(input_nodes=twice)
    found = Counter[int]()
    for batch in loader:
        # PyG keeps a seed once among the nodes of a batch.
        assert set(twice[batch.input_id].tolist()) == set(batch.n_id[: batch.num_sampled_nodes[0]]
                                                          .tolist())  # fmt: skip
        assert torch.equal(batch.x, graph.x[batch.n_id])
        found.update(batch.input_id.tolist())
    assert found == Counter(range(len(twice)))


def test_no_inputs(make: Make) -> None:
    loader = make(input_nodes=torch.empty(0, dtype=torch.int64), shuffle=False)
    assert len(loader) == 0
    assert list(loader) == []


# ---- rows


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        (torch.float32, 9),
        (torch.float16, 7),
        (torch.bfloat16, 6),
        (torch.int8, 5),
        (torch.uint8, 777),
        (torch.float32, 4714),  # 18,856 bytes
        (torch.float64, 1),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
def test_rows_of_all_types_and_sizes(
    make: Make, dtype: torch.dtype, width: int, device: str, tmp_path: Path
) -> None:
    count = 240
    draw = torch.Generator().manual_seed(8)
    x = (200 * torch.rand(count, width, generator=draw) - 100).to(dtype)
    data = make_graph(x, count, 1500)
    loader = make(data=make_store(data, tmp_path), device=device)
    for epoch in range(2):
        batches = list(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check(batch, data, inside(loader, window))
        assert len({number for each in inputs_of(batches) for number in each}) == count


def test_features_of_another_dtype(make: Make, graph: Data) -> None:
    for batch in make(feature_dtype=torch.float16):
        assert torch.equal(batch.x, graph.x[batch.n_id].half())


# ---- uses


def test_transforms_see_whole_batches(make: Make, graph: Data) -> None:
    def transform(batch: Data) -> Data:
        check(batch, graph)
        batch.x = batch.x * 2
        return batch

    for one, other in zip(make(transform=transform), make(), strict=True):
        assert torch.equal(one.x, 2 * other.x)


def test_two_loaders_at_once(make: Make) -> None:
    """They share the partitions' files and nothing else."""
    expected = list(make())
    for batches in zip(make(), make(), expected, strict=True):
        assert_same(batches[0], batches[2])
        assert_same(batches[1], batches[2])


def test_two_iterators_at_once(make: Make, graph: Data) -> None:
    """The second one has slots for one window, so its batches load some rows themselves."""
    alone = make()
    epochs = [list(alone) for _ in range(2)]
    loader = make()
    for at, (one, other) in enumerate(zip(loader, loader, strict=True)):
        assert_same(one, epochs[0][at])
        assert_same(other, epochs[1][at])
        check(other, graph)


def test_async_for(make: Make) -> None:
    async def collect(loader: Any) -> list[Data]:
        return [batch async for batch in loader]

    loader, plain = make(), make()
    for _ in range(2):
        for one, other in zip(asyncio.run(collect(loader)), plain, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
def test_batches_in_any_order(make: Make, graph: Data, device: str) -> None:
    loader, plain = make(in_order=False, samplers=4, device=device), make()
    for _ in range(EPOCHS):
        batches = list(loader)
        for batch in batches:
            check(batch, graph)
        assert sorted(inputs_of(batches)) == sorted(inputs_of(plain))


def test_num_workers_is_the_number_of_samplers(make: Make) -> None:
    loader = make(num_workers=3)
    for one, other in zip(loader, make(), strict=True):
        assert_same(one, other)
    assert loader._runtime is not None
    assert loader._runtime.settings.stages.samplers == 3


def test_leaving_in_the_middle_and_beginning_again(make: Make) -> None:
    alone = make()
    epochs = [list(alone) for _ in range(6)]
    loader = make()
    for number in range(6):
        iterator = iter(loader)
        for at in range((1, 5, 12, 19)[number % 4]):
            assert_same(next(iterator), epochs[number][at])
        del iterator
