"""Superbatches whose batches come several times, in another order each time (`Repeated`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

from gnndrive.common.records import Seeds
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules._order import Order
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window


class Repeated(Schedule):
    """Repeats the batches of another schedule, `context.superbatch` of them at a time,
    `context.passes` times in all; one window for each batch. Seeds that come again are the same,
    and keep their index."""

    name = "repeated"

    def __init__(self, schedule: Schedule, context: ScheduleContext) -> None:
        assert context.superbatch is not None
        self._schedule, self._seed = schedule, context.seed
        self._size, self._passes = context.superbatch, context.passes

    @classmethod
    def make(cls, context: ScheduleContext) -> Repeated:
        """Not used: see `schedules.choose`."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of batches in an epoch, in all passes."""
        return self._passes * len(self._schedule)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`."""
        return self._schedule.order_bytes

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield one window for each batch of the epoch."""
        windows = self._schedule.windows(epoch)
        batches = (seeds for window in windows for seeds in window.batches)
        key = batch_key(self._seed, epoch, 1)
        for place, seeds in enumerate(repeated(batches, self._size, self._passes, key)):
            yield Window([seeds], place, first=place)


def repeated(batches: Iterator[Seeds], size: int, passes: int, key: int) -> Iterator[Seeds]:
    """Yield each `size` batches, or the last ones, so many times; `key` determines their order in
    all passes but the first, which has that of `batches`."""
    for superbatch in count():
        drawn: list[Seeds] = []
        for seeds in islice(batches, size):
            drawn.append(seeds)
            yield replace(seeds, again=passes - 1)
        if not drawn:
            return
        for turn in range(1, passes):
            order = Order(len(drawn), batch_key(key, superbatch, turn), 0)
            for at in order.next(len(drawn)).tolist():
                yield replace(drawn[at], again=passes - 1 - turn)
