"""One window a batch, the seeds shuffled anew for every epoch or left in order (GNNDrive §4.1, and
torch's loaders).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gnndrive.records import Seeds
from gnndrive.schedules.base import Schedule


class Shuffled(Schedule):
    """Cuts the input nodes into batches.

    Args:
        node: input nodes, int64 [n].
        input_id: PyG's `input_id` of each, int64 [n].
        batch_size: seeds a batch.
        shuffle: whether each epoch has its own order.
        drop_last: whether a last smaller batch is left out.
        seed: what the orders depend on, with the epoch's number.
    """

    name = "shuffled"

    def __init__(
        self,
        node: torch.Tensor,
        input_id: torch.Tensor,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
    ) -> None:
        self._node = node
        self._input_id = input_id
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self._node), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def windows(self, epoch: int) -> Iterator[list[Seeds]]:
        """The epoch's batches, one a window."""
        order = None
        if self._shuffle:
            # The epoch is spread over the seed's bits: seed 1, epoch 0 is not seed 0, epoch 1.
            mixed = (self._seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % 2**63
            order = torch.randperm(len(self._node), generator=torch.Generator().manual_seed(mixed))
        for index in range(len(self)):
            chosen: slice | torch.Tensor = slice(
                index * self._batch_size, (index + 1) * self._batch_size
            )
            if order is not None:
                chosen = order[chosen]
            yield [Seeds(index, self._node[chosen].numpy(), self._input_id[chosen].clone().numpy())]
