"""Blocks hold every batch once, in order, never need more rows than there are slots, and say
exactly which rows come and go; and a pass over them ends with no read under way."""

import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import gnndrive
from gnndrive import StoreError
from gnndrive.inference import blocks as blocks_module
from gnndrive.inference import targets as targets_module
from gnndrive.inference.blocks import Block, BlockPlanner
from gnndrive.inference.degrees import NODE_BYTES, Normaliser
from gnndrive.inference.infer import infer
from gnndrive.inference.row_cache import RowReads
from gnndrive.inference.targets import Targets
from tests.inference.conftest import least_memory
from tests.soak import product


def all_blocks(planner: BlockPlanner) -> list[Block]:
    found = list(iter(planner.next_block, None))
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


def test_batches_and_blocks_respect_their_limits(hetero_store, monkeypatch):
    """Also that of the numbers of a block's places."""
    monkeypatch.setattr(targets_module, "BATCH_ENTRIES", 40)
    monkeypatch.setattr(blocks_module, "PLACES_MAX", 90)
    single = Targets(hetero_store, "paper", hetero_store.all_edges(), 1)
    targets = Targets(hetero_store, "paper", hetero_store.all_edges(), 5)
    batches = list(targets.batches())
    assert [batch.first for batch in batches[1:]] == [batch.last for batch in batches[:-1]]
    assert (batches[0].first, batches[-1].last) == (0, targets.count)
    for batch in batches:
        nodes = batch.last - batch.first
        assert nodes <= 5
        assert nodes == 1 or batch.entries <= 40
        if nodes < 5 and batch is not batches[-1]:
            assert batch.entries + next(single.batches(batch.last)).entries > 40
    counts = {each: hetero_store[each].num_nodes for each in targets.sources}
    blocks = all_blocks(BlockPlanner(targets, 0, counts, counts, 10**6))
    entries = [sum(batch.entries for batch, _ in block.batches) for block in blocks]
    assert sum(entries) == sum(batch.entries for batch in batches) == targets.entries
    assert max(entries) <= 90
    assert sorted(entries)[len(entries) // 2] > 40


def test_an_index_out_of_range_is_found(tmp_path: Path):
    data = Data(x=torch.randn(50, 4), edge_index=torch.randint(50, (2, 300)))
    store = gnndrive.from_data(data, tmp_path / "bad.gnn")
    indices = np.load(store.indices_path, mmap_mode="r+")
    for bad in (-1, 50):
        indices[250] = bad
        indices.flush()
        with pytest.raises(StoreError, match="names a node outside"):
            infer([lambda x, edge_index: x], store)


def test_the_memory_of_counting_degrees(tmp_path: Path):
    """It is within the bytes a node that `memory=` counts for it."""
    count = 1_000_000
    edges = torch.randint(count - 1000, count, (2, 5000))
    data = Data(x=torch.zeros(count, 1), edge_index=edges)
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    normaliser = Normaliser([GCNConv(1, 1)], store.all_edges(), None)
    assert store.index_pointers[-1] == 5000  # read at the first use, and counted apart
    for loops in (False, True):
        tracemalloc.start()
        try:
            root = normaliser._count(None, loops, 1.0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak <= NODE_BYTES * count
        counted = edges[:, edges[0] != edges[1]] if loops else edges
        degree = torch.bincount(counted[1], minlength=count).double() + loops
        assert torch.equal(root, torch.where(degree == 0, 0, degree**-0.5).float())


class Waited:
    """An outcome that records whether it was waited for."""

    def __init__(self, outcome: Any) -> None:
        self._outcome, self.waited = outcome, False

    def __getattr__(self, name: str) -> Any:
        self.waited = self.waited or name in ("result", "wait")
        return getattr(self._outcome, name)


@pytest.mark.parametrize("raises", [False, True])
def test_files_are_closed_when_nothing_is_being_read(raises, hetero_store, monkeypatch):
    start, close, reads = RowReads.start, RowReads.close_files, list[Waited]()
    left_open = list[int]()

    def started(self: RowReads, *given: Any) -> Any:
        reads.append(Waited(start(self, *given)))
        return reads[-1]

    def closed(self: RowReads) -> None:
        left_open.append(sum(not each.waited for each in reads))
        close(self)

    def only_authors(x: Any, edge_index: Any) -> Any:
        if raises and len(reads) > 4:
            raise ZeroDivisionError
        return {"author": x["author"]}

    monkeypatch.setattr(RowReads, "start", started)
    monkeypatch.setattr(RowReads, "close_files", closed)
    run = partial(infer, [only_authors], hetero_store, batch_size=4)
    memory = least_memory(run) + 3000  # a few slots are free for the next block's rows
    if raises:
        with pytest.raises(ZeroDivisionError):
            run(memory=memory)
    else:
        run(memory=memory)
    assert len(reads) > 4
    assert left_open
    assert not any(left_open)
