"""The batches of a batch sampler that the user gave, one window a batch, drawn as they are
needed."""

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
    """Turns a batch sampler's positions into seeds.

    Args:
        inputs: the input nodes.
        batches: yields lists of positions in `inputs`; iterated anew for each epoch, in the
            pipeline's thread.
    """

    name = "given"

    def __init__(self, inputs: InputNodes | InputEdges, batches: Iterable[list[int]]) -> None:
        self._inputs = inputs
        self._batches = batches

    @classmethod
    def make(cls, context: ScheduleContext) -> Given:
        """See `Schedule.make`; the context has a batch sampler."""
        assert context.batch_sampler is not None
        return cls(context.inputs, context.batch_sampler)

    def __len__(self) -> int:
        """Batches in an epoch, where the batch sampler knows it.

        Raises:
            TypeError: it does not.
        """
        if not isinstance(self._batches, Sized):
            raise TypeError(f"{type(self._batches).__name__} has no len()")
        return len(self._batches)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`: torch's samplers keep eight bytes an input."""
        return 8 * len(self._inputs)

    def windows(self, epoch: int) -> Iterator[Window]:
        """The batches in the sampler's order."""
        for index, positions in enumerate(self._batches):
            chosen = torch.as_tensor(positions, dtype=torch.int64).reshape(-1)
            yield Window([self._inputs.seeds(index, chosen.numpy())])
