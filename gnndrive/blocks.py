"""Blocks: memory for a batch's large arrays, which comes back for the next batch.

A batch of 800,000 rows is half a gigabyte, made and dropped every second or two. The C library's
allocator gives such memory back late or never (each thread that gathers keeps some tens of
megabytes of holes), and the kernel clears each page anew. Blocks are mappings of their own, reused
when the arrays over them are gone, so what a loader holds is what its plan counts.

Not for small or lasting arrays: numpy's own are as good.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

SMALL_BYTES = 1 << 18  # below, numpy's own memory
_PAGE_BYTES = 4096
_HUGE_BYTES = 2 << 20

Allocate: TypeAlias = Callable[[Any, Any], npt.NDArray[Any]]
"""(shape, dtype) → an array of arbitrary content; `numpy.empty` is one."""


def private_map(nbytes: int, huge: bool = False) -> mmap.mmap:
    """Private memory of at least one page.

    Args:
        nbytes: how much.
        huge: in huge pages where there are any: for what is looked up at random in bits of a few
            bytes, and for what long reads land in (a virtual disk takes three times as long to fill
            64 scattered pages as one stretch). Not for rows: they are longer, and huge pages are
            dearer when they are touched first: a guest whose host takes back what lies idle gets
            them at half a gigabyte a second.

    Raises:
        MemoryError: there is none.
    """
    try:
        block = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"no memory for {nbytes:,} bytes ({error})") from error
    if huge and nbytes >= _HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


class Blocks:
    """Gives out arrays over blocks, and takes a block back when the last array over it is gone.

    Thread-safe; a block may come back in any thread, in the middle of anything.
    """

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._closed = False

    def empty(self, shape: Any, dtype: Any) -> npt.NDArray[Any]:
        """An array of arbitrary content, page-aligned if it is large.

        Args:
            shape: an int or a tuple.
            dtype: anything that numpy takes.

        Raises:
            MemoryError: there is no memory.
        """
        dtype = np.dtype(dtype)
        count = prod(shape) if isinstance(shape, tuple) else int(shape)
        nbytes = count * dtype.itemsize
        if nbytes < SMALL_BYTES or self._closed:
            return np.empty(shape, dtype)
        block = self._take(_class_bytes(nbytes))
        whole = np.frombuffer(block, np.uint8)
        # Views keep `whole` alive, and only views of it are given out.
        weakref.finalize(whole, self._give, block).atexit = False
        array: npt.NDArray[Any] = whole[:nbytes].view(dtype).reshape(shape)
        return array

    @property
    def spare_bytes(self) -> int:
        """Bytes of blocks that wait for their next use."""
        return sum(map(len, list(self._spare)))

    def close(self) -> None:
        """Free what is spare now, and what is still in use as soon as it is not."""
        self._closed = True
        self._spare.clear()

    def _take(self, nbytes: int) -> mmap.mmap:
        with self._lock:
            spare = sorted(self._spare, key=len)
            for block in spare:
                if nbytes <= len(block) <= 2 * nbytes and self._remove(block):
                    return block
            for block in reversed(spare):  # one that was outgrown makes room
                if nbytes <= 2 * len(block) <= 2 * nbytes and self._remove(block):
                    break
        return private_map(nbytes)

    def _remove(self, block: mmap.mmap) -> bool:
        """Whether it was still there: `_give` takes no lock."""
        try:
            self._spare.remove(block)
        except ValueError:
            return False
        return True

    def _give(self, block: mmap.mmap) -> None:
        # No lock: a garbage collection may call this in a thread that holds it. Appending to a list
        # is one step.
        if not self._closed:
            self._spare.append(block)


def empty_tensor(empty: Allocate, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of arbitrary content in memory from `empty`."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(empty(nbytes, np.uint8)).view(dtype).view(shape)


def _class_bytes(nbytes: int) -> int:
    """`nbytes` rounded up by an eighth at most, so that batches of about one size share blocks."""
    step = max(1 << max(nbytes.bit_length() - 4, 0), _PAGE_BYTES)
    return -(-nbytes // step) * step
