"""One window for each batch, with seeds in order or shuffled for each epoch (GNNDrive §4.1).

Draws batches as torch's loaders do, but makes the order while the epoch runs.
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

_HOLDING_GIL_SEEDS_MAX = 1 << 10  # take a millisecond, most of it for pages touched first


class Shuffled(Schedule):
    """Cuts the input nodes into batches.

    Args:
        inputs: the input nodes or edges.
        batch_size: seeds in a batch.
        shuffle: whether each epoch has its own order.
        drop_last: whether to leave out a last, smaller batch.
        seed: determines each order, together with the epoch's number.
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
        # Multiplying spreads the epoch over all bits: seed 1, epoch 0 is not seed 0, epoch 1.
        mixed = (self._seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % 2**63
        order = _Order(count, mixed) if self._shuffle else None
        for index in range(len(self)):
            start = index * self._batch_size
            stop = min(start + self._batch_size, count)
            chosen = np.arange(start, stop) if order is None else order.next(stop - start)
            yield Window([self._inputs.seeds(index, chosen)])


class _Order:
    """A random order of the numbers 0 … count − 1; all orders are equally likely.

    The order is made as it is requested, so that the first batch of a loader of 10⁹ nodes does not
    wait for the whole order.

    Raises:
        ConfigError: there is not enough memory for `count` numbers.
    """

    def __init__(self, count: int, key: int) -> None:
        self._count, self._key, self._position = count, key, 0
        self._width = order_width(count)
        try:
            self._swapped = private_map(self._width * count)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for the order of {count:,} input nodes or edges ({error}): give fewer, "
                "or shuffle=False"
            ) from error
        # Numbers are touched at random: with huge pages the first ones would take all the memory.
        with contextlib.suppress(OSError):
            self._swapped.madvise(mmap.MADV_NOHUGEPAGE)
        self._address = ffi.cast("void *", ffi.from_buffer(self._swapped))

    def next(self, count: int) -> Int64Array:
        """Return the next `count` numbers of the order, int64 [count]."""
        out = np.empty(count, np.int64)
        core = holding_gil if count <= _HOLDING_GIL_SEEDS_MAX else lib
        core.gd_shuffle(
            self._address, self._width, self._count, self._key, self._position, count, pointer(out)
        )
        self._position += count
        return out


def order_width(count: int) -> int:
    """Return the bytes that an order of `count` numbers keeps for each number."""
    return 4 if count < 1 << 31 else 8
