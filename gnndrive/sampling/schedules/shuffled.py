"""One window for each batch, with seeds in order or shuffled for each epoch (GNNDrive §4.1).

Draws batches as torch's loaders do, but makes the order while the epoch runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.sampling.schedules._order import Order, order_width
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window


class Shuffled(Schedule):
    """Cuts the input nodes or edges into batches."""

    name = "shuffled"

    def __init__(self, context: ScheduleContext) -> None:
        if context.batch_size is None:
            raise ConfigError("the shuffled schedule needs batch_size=: give a number of seeds")
        self._context, self._batch_size = context, context.batch_size

    @classmethod
    def make(cls, context: ScheduleContext) -> Shuffled:
        """See `Schedule.make`."""
        return cls(context)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self._context.inputs), self._batch_size)
        return whole + (rest > 0 and not self._context.drop_last)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`."""
        count = len(self._context.inputs)
        return self._context.shuffle * order_width(count) * count

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield one window for each batch of the epoch."""
        context, count = self._context, len(self._context.inputs)
        order = Order(count, context.seed, epoch) if context.shuffle else None
        for index in range(len(self)):
            start = index * self._batch_size
            stop = min(start + self._batch_size, count)
            chosen = np.arange(start, stop) if order is None else order.next(stop - start)
            yield Window([context.inputs.seeds(index, chosen)], index, first=index)
