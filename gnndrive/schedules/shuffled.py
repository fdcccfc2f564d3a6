"""One window a batch, the seeds shuffled anew for every epoch or left in order (GNNDrive §4.1, and
torch's loaders).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from gnndrive.records import Seeds
from gnndrive.schedules.base import InputEdges, InputNodes, Schedule


class Shuffled(Schedule):
    """Cuts the input nodes into batches.

    Args:
        inputs: the input nodes.
        batch_size: seeds a batch.
        shuffle: whether each epoch has its own order.
        drop_last: whether a last smaller batch is left out.
        seed: what the orders depend on, with the epoch's number.
    """

    name = "shuffled"

    def __init__(
        self,
        inputs: InputNodes | InputEdges,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
    ) -> None:
        self._inputs = inputs
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self._inputs), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def windows(self, epoch: int) -> Iterator[list[Seeds]]:
        """The epoch's batches, one a window."""
        count, order = len(self._inputs), None
        if self._shuffle:
            # The epoch is spread over the seed's bits: seed 1, epoch 0 is not seed 0, epoch 1.
            mixed = (self._seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % 2**63
            draw = torch.Generator().manual_seed(mixed)
            order = torch.randperm(count, generator=draw, dtype=order_dtype(count)).numpy()
        for index in range(len(self)):
            start = index * self._batch_size
            stop = min(start + self._batch_size, count)
            chosen = np.arange(start, stop) if order is None else order[start:stop]
            yield [self._inputs.seeds(index, chosen)]


def order_dtype(count: int) -> torch.dtype:
    """What holds the order of so many input nodes."""
    return torch.int32 if count < 1 << 31 else torch.int64
