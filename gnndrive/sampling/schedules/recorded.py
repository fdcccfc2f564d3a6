"""The recorded schedule: the batches of a pack, in an order of each epoch's own (DiskGNN §3).

Epoch e replays recording e modulo the number of recordings. The first time that a recording is
replayed, its batches come in the order in which they were recorded, which is the order that the
pack's seed gives; later their order depends on the loader's seed and the epoch. Without shuffle=,
they always come as they were recorded.

Seeds are known only when a batch is read, so the schedule's `Seeds` name the batch, and the sampler
`recorded` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array, Seeds
from gnndrive.sampling.schedules._order import Order, order_width
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window
from gnndrive.store.packed.recording import Recording

_NOT_READ: Int64Array = np.empty(0, np.int64)


class Recorded(Schedule):
    """Replays the batches of a pack, one window for each."""

    name = "recorded"

    def __init__(self, recording: Recording, shuffle: bool, seed: int) -> None:
        self._recording, self._shuffle, self._seed = recording, shuffle, seed

    @classmethod
    def make(cls, context: ScheduleContext) -> Recorded:
        """See `Schedule.make`."""
        if context.recording is None:
            raise ConfigError(
                "the recorded schedule replays a pack: pack the store first (gnndrive pack)"
            )
        return cls(context.recording, context.shuffle, context.seed)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._recording.info.batches

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`."""
        count = len(self)
        return self._shuffle * (8 + order_width(count)) * count

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield one window for each batch of the epoch."""
        info = self._recording.info
        first = epoch % info.epochs * info.batches
        drawn = self._shuffle and epoch >= info.epochs
        order = Order(len(self), self._seed, epoch).next(len(self)) if drawn else range(len(self))
        for index, number in enumerate(order):
            given = partial(int, first + number)
            yield Window([Seeds(index, _NOT_READ, _NOT_READ, given)], index, first=index)
