"""Blocks hold every batch once, in order, never need more rows than there are slots, and say
exactly which rows come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import Store, StoreError
from gnndrive.inference import blocks as blocks_module
from gnndrive.inference import targets as targets_module
from gnndrive.inference.blocks import Block, BlockPlanner
from gnndrive.inference.targets import Targets
from tests.soak import product


def all_blocks(planner: BlockPlanner) -> list[Block]:
    found = []
    while (block := planner.next_block()) is not None:
        found.append(block)
    planner.close()
    return found


def uses(targets: Targets, block: Block) -> list[dict[Any, set[int]]]:
    """By batch, the rows of each type that it needs."""
    found = []
    for batch, indices in block.batches:
        rows: dict[Any, set[int]] = {type: set() for type in targets.sources}
        rows[targets.type] |= set(range(batch.first, batch.last))
        for key, ids in indices.items():
            rows[key[0] if key else None] |= set(ids.tolist())
        found.append(rows)
    return found


@product(
    "limits,type,first",
    [(0, 0), (0, 10_000), (25, 10_000), (10_000, 70)],
    ["paper", "author", "topic"],
    [0, 13],
)
def test_rows_come_and_go_exactly(limits, type, first, hetero_store, monkeypatch):
    spare, edges = limits
    monkeypatch.setattr(targets_module, "BATCH_ENTRIES", 60)
    targets = Targets(hetero_store, type, hetero_store.all_edges(), 13)
    counts = {each: hetero_store[each].num_nodes for each in targets.sources}
    largest = targets.largest()
    slots = {each: min(largest[each] + spare, counts[each]) for each in targets.sources}
    edges_max = targets.largest_edges() + edges
    starts = [batch.first for batch in targets.batches()]
    first = next(each for each in [*starts, 0] if each >= first or each == 0)
    blocks = all_blocks(BlockPlanner(targets, first, counts, slots, edges_max))
    batches = [batch for block in blocks for batch, _ in block.batches]
    assert batches == list(targets.batches(first))
    present: dict[Any, set[int]] = {each: set() for each in targets.sources}
    last: list[dict[Any, set[int]]] = []
    for number, block in enumerate(blocks):
        used = uses(targets, block)
        assert sum(len(ids) for _, of in block.batches for ids in of.values()) <= edges_max
        for each, change in block.changes.items():
            needed = set().union(*(batch[each] for batch in used))
            assert len(needed) <= slots[each]
            misses, leaving = change.misses.tolist(), change.leaving.tolist()
            assert misses == sorted(needed - present[each])
            assert sorted(leaving) == sorted(present[each] - needed)
            left = change.left.tolist()
            assert len(left) == len(last)
            for batch in range(len(last)):  # no batch behind needs a row that has left
                for later in last[batch + 1 :]:
                    assert not later[each] & set(leaving[: left[batch]])
            assert not left or left[-1] == len(leaving)
            present[each] = needed
        last = used
        if number + 1 < len(blocks):  # the first batch of the next one would not have fitted
            more = uses(targets, blocks[number + 1])[0]
            more_edges = sum(len(ids) for _, of in block.batches for ids in of.values())
            more_edges += sum(map(len, blocks[number + 1].batches[0][1].values()))
            assert more_edges > edges_max or any(
                len(present[each] | more[each]) > slots[each] for each in more
            )


def test_batches_respect_their_limits(hetero_store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets_module, "BATCH_ENTRIES", 40)
    targets = Targets(hetero_store, "paper", hetero_store.all_edges(), 5)
    batches = list(targets.batches())
    assert [batch.first for batch in batches[1:]] == [batch.last for batch in batches[:-1]]
    assert (batches[0].first, batches[-1].last) == (0, targets.count)
    assert sum(batch.entries for batch in batches) == targets.entries
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        assert batch.last - batch.first == 1 or batch.entries <= 40
        assert batch.last - batch.first <= 5
        if after and batch.last - batch.first < 5:
            one = next(Targets(hetero_store, "paper", hetero_store.all_edges(), 1).batches(
                batch.last
            ))  # fmt: skip
            assert batch.entries + one.entries > 40
    rest = list(targets.batches(batches[3].first))
    assert rest == batches[3:]


def test_an_index_out_of_range_is_found(tmp_path: Path):
    data = Data(x=torch.randn(50, 4), edge_index=torch.randint(50, (2, 300)))
    store = gnndrive.from_data(data, tmp_path / "bad.gnn")
    indices = np.load(store.indices_path, mmap_mode="r+")
    for bad in (-1, 50):
        indices[250] = bad
        indices.flush()
        with pytest.raises(StoreError, match="names a node outside"):
            gnndrive.infer([lambda x, edge_index: x], store)


def test_the_places_of_a_block_fit_their_numbers(hetero_store, monkeypatch):
    monkeypatch.setattr(targets_module, "BATCH_ENTRIES", 40)
    monkeypatch.setattr(blocks_module, "PLACES_MAX", 90)
    targets = Targets(hetero_store, "paper", hetero_store.all_edges(), 5)
    counts = {each: hetero_store[each].num_nodes for each in targets.sources}
    blocks = all_blocks(BlockPlanner(targets, 0, counts, counts, 10**6))
    entries = [sum(batch.entries for batch, _ in block.batches) for block in blocks]
    assert sum(entries) == targets.entries
    assert max(entries) <= 90
    assert sorted(entries)[len(entries) // 2] > 40
    table = blocks_module._Table(200, 200)
    with pytest.raises(AssertionError, match="32 bits"):
        table.add([np.zeros(91, np.int32)])
