"""One window a batch, the seeds shuffled anew for every epoch or left in order (GNNDrive §4.1, and
torch's loaders).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

import numpy as np

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, holding_gil, lib, pointer
from gnndrive.common.records import Int64Array
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)

_QUICK_SEEDS = 1 << 10  # drawn in a millisecond, most of it for pages that are come to


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

    @classmethod
    def make(cls, context: ScheduleContext) -> Shuffled:
        """See `Schedule.make`.

        Raises:
            ConfigError: the context has no batch size.
        """
        if context.batch_size is None:
            raise ConfigError("the shuffled schedule needs batch_size=: give a number of seeds")
        return cls(
            context.inputs, context.batch_size, context.shuffle, context.drop_last, context.seed
        )

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self._inputs), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    @property
    def order_bytes(self) -> int:
        """See `Schedule.order_bytes`."""
        count = len(self._inputs)
        return self._shuffle * order_width(count) * count

    def windows(self, epoch: int) -> Iterator[Window]:
        """The epoch's batches, one a window."""
        count = len(self._inputs)
        # The epoch is spread over the seed's bits: seed 1, epoch 0 is not seed 0, epoch 1.
        mixed = (self._seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % 2**63
        order = _Order(count, mixed) if self._shuffle else None
        for index in range(len(self)):
            start = index * self._batch_size
            stop = min(start + self._batch_size, count)
            chosen = np.arange(start, stop) if order is None else order.next(stop - start)
            yield Window([self._inputs.seeds(index, chosen)])


class _Order:
    """The numbers 0 … count − 1 in an order of their own, each equally likely, made as it is
    wanted: a loader of 10⁹ nodes need not wait for an order of all of them.

    Raises:
        ConfigError: there is no memory for so many.
    """

    def __init__(self, count: int, key: int) -> None:
        self._count, self._key, self._at = count, key, 0
        self._width = order_width(count)
        try:
            self._moved = private_map(self._width * count)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for the order of {count:,} input nodes or edges ({error}): give fewer, "
                "or shuffle=False"
            ) from error
        with contextlib.suppress(OSError):  # a huge page for each number would be all at once
            self._moved.madvise(mmap.MADV_NOHUGEPAGE)
        self._address = ffi.cast("void *", ffi.from_buffer(self._moved))

    def next(self, count: int) -> Int64Array:
        """The next so many, int64 [count]."""
        out = np.empty(count, np.int64)
        core = holding_gil if count <= _QUICK_SEEDS else lib
        core.gd_shuffle(
            self._address, self._width, self._count, self._key, self._at, count, pointer(out)
        )
        self._at += count
        return out


def order_width(count: int) -> int:
    """Bytes a number of what keeps an order of so many input nodes."""
    return 4 if count < 1 << 31 else 8
