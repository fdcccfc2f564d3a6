"""One layer over all targets of one type: read rows, call the layer, write its rows.

Three things go on at the same time: the layer computes the batches of a block, in the caller's
thread; the disk brings the rows of the next block (row_cache.py); and a thread plans the block
after that, for which it reads the adjacency (blocks.py). A fourth thread writes (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from gnndrive.common.records import EdgeKey, NodeKey, TableFile
from gnndrive.common.threads import submit
from gnndrive.inference.blocks import BlockPlanner
from gnndrive.inference.memory import RowPlan
from gnndrive.inference.row_cache import RowCache, RowReads
from gnndrive.inference.subgraphs import OneHop, SubgraphMaker
from gnndrive.inference.targets import TargetBatch, Targets

PLANNED_AT = 3
"""A block is planned in the last quarter of the computation of the block two before it. Earlier,
its plan would keep the thread that copies rows from the disk off the processor."""

Compute = Callable[[OneHop], "torch.Tensor | None"]
"""compute(batch): the targets' new rows, [targets, *row] on the host; None: there are none."""
Deliver = Callable[[TargetBatch, torch.Tensor], None]
"""deliver(batch, rows): take the rows of a batch; batches come in order."""


def run_pass(
    targets: Targets, first: int, files: Mapping[NodeKey, TableFile], plan: RowPlan,
    reads: RowReads, thread: ThreadPoolExecutor, compute: Compute, deliver: Deliver,
) -> None:  # fmt: skip
    """Compute the targets from `first` on, which must be the first of a batch. `files` has the rows
    that the layer reads, of each of the targets' sources; `thread`, one thread, plans blocks.
    ConfigError: the layer does not return rows."""
    rows = {type: file.row_count for type, file in files.items()}
    planner = BlockPlanner(targets, first, rows, plan.slots, plan.edges_max)
    caches: dict[NodeKey, RowCache] = {}
    try:
        for type, count in plan.slots.items():
            caches[type] = RowCache(reads, files[type], count)
        pointers: dict[EdgeKey, Any] = {
            key: view.index_pointers for key, view in targets.edges.items()
        }
        maker = SubgraphMaker(targets.type, caches, plan.largest, pointers)
        _run_blocks(planner, caches, maker, thread, compute, deliver)
    finally:
        for cache in caches.values():
            cache.drain()
        reads.close_files()
        submit(thread, planner.close).result()  # after what it still plans


def _run_blocks(
    planner: BlockPlanner, caches: Mapping[NodeKey, RowCache], maker: SubgraphMaker,
    thread: ThreadPoolExecutor, compute: Compute, deliver: Deliver,
) -> None:  # fmt: skip
    block, ahead = planner.next_block(), submit(thread, planner.next_block)
    if block is None:
        return
    for type, cache in caches.items():
        cache.expect(block.changes[type])
    while block is not None:
        for cache in caches.values():
            cache.settle()
        following = ahead.result()
        if following is not None:
            for type, cache in caches.items():
                cache.expect(following.changes[type])
        for number, (batch, indices) in enumerate(block.batches):
            if following is not None and number == len(block.batches) * PLANNED_AT // 4:
                ahead = submit(thread, planner.next_block)
            made = compute(maker.make(batch, indices))
            if made is None:
                return
            deliver(batch, made)
            if following is not None:
                for type, cache in caches.items():
                    change = following.changes[type]
                    start = int(change.left[number - 1]) if number else 0
                    cache.leave(change.leaving[start : int(change.left[number])])
        block = following
