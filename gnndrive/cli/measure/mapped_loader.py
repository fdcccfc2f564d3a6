"""Load batches through a memory map: PyG+ as the papers describe it (Ginex §2, GNNDrive §2).

Adjacency and features are mapped with MADV_RANDOM. One thread samples, gathers rows with torch's
indexing, and reads nothing ahead; what stays in memory is the page cache's choice. The sampler is
gnndrive's, so the batches are those of `NeighborLoader` with the same seed. (PyG+ would use
torch-sparse's sampler, which is slower.)

When not to use it: to train; it is there to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from gnndrive.common.records import Sample
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.sampling.schedules.shuffled import Shuffled
from gnndrive.store.reader import Store

PYG_PLUS = "pyg+"


def mapped_batches(
    store: Store, fanout: Sequence[int], seeds: torch.Tensor | None, batch_size: int, seed: int
) -> Iterator[Sample]:
    """Load shuffled batches, epoch after epoch without end.

    Args:
        store: the store, which is homogeneous.
        fanout: neighbours to sample, a number for each hop.
        seeds: the seeds' node ids, int64 [n], at least one; None: all nodes.
        batch_size: seeds in a batch.
        seed: the same seed gives the same batches.

    Yields:
        The sample of each batch, when its rows were gathered.
    """
    sampler, topology = Uniform(tuple(fanout)), mapped(store.edges())
    tables = [store.tensor(name, random=True) for name in store.node_names]
    inputs = InputNodes(store.num_nodes if seeds is None else len(seeds), seeds)
    schedule = Shuffled(inputs, batch_size, True, False, seed)
    for epoch in count():
        for window in schedule.windows(epoch):
            for batch in window.batches:
                key = batch_key(seed, epoch, batch.index)
                sample = sampler.sample_nodes(batch.node, key, topology)
                nodes = torch.from_numpy(sample.node)
                _ = [table[nodes] for table in tables]
                yield sample
