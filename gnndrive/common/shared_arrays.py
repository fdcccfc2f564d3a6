"""`SharedArrays`: arrays in memory that processes share, and how a message describes them.

One process fills them, and sends the descriptors of their memories and a `SharedArray` for each.
Several arrays share one memory, because a message carries 253 descriptors at most, and each takes
one of the process's open files. Arrays of which a receiver frees some earlier than others belong in
memories of their own (`reserve`).

When not to use it: for one array, `SharedMemory` alone does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.shared_memory import SharedMemory

ALIGNED = 64  # bytes; a line of the processor's cache


@dataclass(frozen=True, slots=True)
class SharedArray:
    """Where an array of one dimension lies; `dataclasses.asdict` makes it fit for JSON.

    Attributes:
        name: what it is.
        dtype: the name of its numpy dtype.
        count: the number of its values.
        bits: bits of one number, if its bytes hold packed numbers; else 0.
        memory: the place of its memory among the descriptors that are sent.
        offset: where it starts there, in bytes.
    """

    name: str
    dtype: str
    count: int
    bits: int
    memory: int
    offset: int


class SharedArrays:
    """Arrays in shared memory, in the process that fills them.

    Args:
        name: what the memory is for; see `SharedMemory.create`.

    Attributes:
        memories: the memories, in the order in which their descriptors are to be sent.
    """

    def __init__(self, name: str) -> None:
        self._name, self._used = name, 0
        self.memories: list[SharedMemory] = []

    def reserve(self, sizes: Iterable[int]) -> None:
        """Make a memory for the arrays that `allocate` makes next; none if they are empty.

        Args:
            sizes: their bytes.

        Raises:
            MemoryError, ConfigError: see `SharedMemory.create`.
        """
        nbytes = sum(map(_aligned, sizes))
        if nbytes or not self.memories:
            self.memories.append(SharedMemory.create(nbytes, self._name, huge=True))
            self._used = 0

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed bytes in the last memory, uint8 [nbytes]; in a new one if they do not fit.

        Raises:
            MemoryError, ConfigError: see `SharedMemory.create`.
        """
        if not self.memories or self._used + nbytes > self.memories[-1].nbytes:
            self.reserve([nbytes])
        start = self._used
        self._used += _aligned(nbytes)
        return self.memories[-1].array[start : start + nbytes]

    def empty(self, shape: Any, dtype: Any) -> npt.NDArray[Any]:
        """`allocate` with the arguments of `numpy.empty`."""
        dtype = np.dtype(dtype)
        count = prod(shape) if isinstance(shape, tuple) else int(shape)
        array: npt.NDArray[Any] = self.allocate(count * dtype.itemsize).view(dtype).reshape(shape)
        return array

    def describe(self, name: str, array: npt.NDArray[Any], bits: int = 0) -> SharedArray:
        """The description of an array that `allocate` or `empty` made.

        Args:
            name, bits: see `SharedArray`.
            array: the array, of one dimension.

        Raises:
            ValueError: it is in none of the memories.
        """
        address = array.ctypes.data
        for place, memory in enumerate(self.memories):
            offset = address - memory.array.ctypes.data
            if 0 <= offset <= memory.nbytes - array.nbytes:
                return SharedArray(name, array.dtype.name, len(array), bits, place, offset)
        raise ValueError(f"{name} is not in memory that was allocated here")

    def close(self) -> None:
        """Close the memories; receivers keep theirs. Idempotent."""
        for memory in self.memories:
            memory.close()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED
