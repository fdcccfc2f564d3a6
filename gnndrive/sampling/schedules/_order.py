"""`Order`: a random order of an epoch's seeds or recorded batches, made while the epoch runs."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, holding_gil, lib, pointer
from gnndrive.common.records import Int64Array

_AHEAD = 1 << 10  # numbers made at once: a millisecond, most of it for pages touched first


class Order:
    """A random order of the numbers 0 … count − 1; all orders are equally likely.

    The order is made as it is requested, so that the first batch of a loader of 10⁹ nodes does not
    wait for the whole order.
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        # Multiplying spreads the epoch over all bits: seed 1, epoch 0 is not seed 0, epoch 1.
        self._key = (seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % 2**63
        self._count, self._position = count, 0
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
        self._ahead = np.empty(0, np.int64)
        self._address = ffi.cast("void *", ffi.from_buffer(self._swapped))

    def next(self, count: int) -> Int64Array:
        """Return the next `count` numbers of the order, int64 [count]."""
        missing = count - len(self._ahead)
        if missing > 0:
            more = min(max(missing, _AHEAD), self._count - self._position)
            self._ahead = np.concatenate([self._ahead, self._drawn(more)])
        out, self._ahead = self._ahead[:count], self._ahead[count:]
        return out

    def _drawn(self, count: int) -> Int64Array:
        out = np.empty(count, np.int64)
        core = holding_gil if count <= _AHEAD else lib
        core.gd_shuffle(
            self._address, self._width, self._count, self._key, self._position, count, pointer(out)
        )
        self._position += count
        return out


def order_width(count: int) -> int:
    """Return the bytes that an order of `count` numbers keeps for each number."""
    return 4 if count < 1 << 31 else 8
