"""Seeds from the user's batch sampler, one window for each batch.

`schedules.choose` uses it if the loader has `batch_sampler=`, whatever the strategy's schedule is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized

import torch

from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)


class Given(Schedule):
    """Turns a batch sampler's positions into seeds; iterates over it once for each epoch.

    The user's thread draws the first batch and all that a resumed epoch skips; the loop thread
    draws the others.
    """

    name = "given"

    def __init__(self, inputs: InputNodes | InputEdges, batches: Iterable[list[int]]) -> None:
        self._inputs = inputs
        self._batches = batches

    @classmethod
    def make(cls, context: ScheduleContext) -> Given:
        """See `Schedule.make`; the context must have a batch sampler."""
        assert context.batch_sampler is not None
        return cls(context.inputs, context.batch_sampler)

    def __len__(self) -> int:
        """Return the number of batches in an epoch, if the batch sampler has a length."""
        if not isinstance(self._batches, Sized):
            raise TypeError(f"{type(self._batches).__name__} has no len()")
        return len(self._batches)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`; torch's samplers keep eight bytes for each input."""
        return 8 * len(self._inputs)

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield one window for each batch, in the order of the batch sampler."""
        for index, positions in enumerate(self._batches):
            chosen = torch.as_tensor(positions, dtype=torch.int64).reshape(-1)
            yield Window([self._inputs.seeds(index, chosen.numpy())], index, first=index)
