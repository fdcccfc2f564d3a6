"""One window for each batch, with seeds in order or shuffled for each epoch (GNNDrive §4.1).

Draws batches as torch's loaders do, but makes the order while the epoch runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.sampling.schedules._order import Order, order_width
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)


class Shuffled(Schedule):
    """Cuts the input nodes or edges into batches; see `ScheduleContext` for arguments."""

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

    @classmethod
    def make(cls, context: ScheduleContext) -> Shuffled:
        """See `Schedule.make`."""
        if context.batch_size is None:
            raise ConfigError("the shuffled schedule needs batch_size=: give a number of seeds")
        return cls(
            context.inputs, context.batch_size, context.shuffle, context.drop_last, context.seed
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self._inputs), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`."""
        count = len(self._inputs)
        return self._shuffle * order_width(count) * count

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield one window for each batch of the epoch."""
        count = len(self._inputs)
        order = Order(count, self._seed, epoch) if self._shuffle else None
        for index in range(len(self)):
            start = index * self._batch_size
            stop = min(start + self._batch_size, count)
            chosen = np.arange(start, stop) if order is None else order.next(stop - start)
            yield Window([self._inputs.seeds(index, chosen)], index, first=index)
