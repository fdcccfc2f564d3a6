"""A schedule that deals the inputs out like cards, in windows of two batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext, Window
from tests.second.use import used

WINDOW_BATCHES = 2


class Dealt(Schedule):
    """Batch b of n gets every n-th input from the b-th on, so that sizes differ by one at most."""

    name = "dealt"

    def __init__(self, context: ScheduleContext, batch_size: int) -> None:
        self._context, self._batch_size = context, batch_size

    @classmethod
    def make(cls, context: ScheduleContext) -> Self:
        if context.batch_size is None:
            raise ConfigError("the dealt schedule needs batch_size=: give a number of seeds")
        return cls(context, context.batch_size)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._context.inputs), self._batch_size)
        return whole + (rest > 0 and not self._context.drop_last)

    @property
    def order_bytes(self) -> int:
        return 8 * len(self._context.inputs) * self._context.shuffle

    def windows(self, epoch: int) -> Iterator[Window]:
        inputs, hands = self._context.inputs, len(self)
        count = min(len(inputs), hands * self._batch_size)
        order = None
        if self._context.shuffle:
            draw = np.random.default_rng([self._context.seed % (1 << 64), epoch])
            order = draw.permutation(len(inputs))[:count]
        for number, first in enumerate(range(0, hands, WINDOW_BATCHES)):
            together = range(first, min(first + WINDOW_BATCHES, hands))
            used["schedules"] += 1
            positions = [
                np.arange(hand, count, hands) if order is None else order[hand::hands]
                for hand in together
            ]
            batches = [inputs.seeds(hand, at) for hand, at in zip(together, positions, strict=True)]
            yield Window(batches, number, None, first, len(batches))
