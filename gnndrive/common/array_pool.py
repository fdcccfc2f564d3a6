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
from collections import deque
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

SMALL_BYTES = 1 << 18  # below, numpy's own memory
_PAGE_BYTES = 4096
_HUGE_BYTES = 2 << 20

_NUMPY_DTYPES = {
    torch.from_numpy(np.empty(0, name)).dtype: np.dtype(name)
    for name in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
}

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


class _Loan(weakref.ref[Any]):
    """Refers to the array over a block that is given out."""

    __slots__ = ("address", "block")
    address: int
    block: mmap.mmap


class ArrayPool:
    """Gives out arrays over blocks, and takes a block back when the last array over it is gone.

    Thread-safe. A block comes back in any thread, in the middle of anything, mostly in the user's;
    no Python runs there, for what a weak reference calls would swallow a Ctrl-C.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []
        self._lent: dict[int, _Loan] = {}  # by the block's address
        self._back: deque[_Loan] = deque()  # not among the spare ones yet
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
        # Views keep `whole` alive, and only views of it are given out.
        whole = np.frombuffer(block, np.uint8)
        self._lend(whole, block)
        array: npt.NDArray[Any] = whole[:nbytes].view(dtype).reshape(shape)
        return array

    def references(self, addresses: Iterable[int]) -> tuple[weakref.ref[Any], ...]:
        """To what is gone when the blocks at these addresses are back; none to other memory."""
        with self._lock:
            lent = [self._lent[each]() for each in addresses if each in self._lent]
        return tuple(weakref.ref(each) for each in lent if each is not None)

    @property
    def spare_bytes(self) -> int:
        """Bytes of blocks that wait for their next use."""
        with self._lock:
            self._collect()
            return sum(map(len, self._spare))

    def close(self) -> None:
        """Free what is spare now, and what is still in use as soon as it is not."""
        with self._lock:
            self._closed = True
            self._lent.clear()
            self._back.clear()
            self._spare.clear()

    def _take(self, nbytes: int) -> mmap.mmap:
        with self._lock:
            self._collect()
            sizes = sorted((len(block), number) for number, block in enumerate(self._spare))
            for size, number in sizes:
                if nbytes <= size <= 2 * nbytes:
                    return self._spare.pop(number)
            for size, number in reversed(sizes):  # one that was outgrown makes room
                if nbytes <= 2 * size <= 2 * nbytes:
                    del self._spare[number]
                    break
        return private_map(nbytes)

    def _lend(self, whole: npt.NDArray[Any], block: mmap.mmap) -> None:
        loan = _Loan(whole, self._back.append)
        loan.block, loan.address = block, whole.ctypes.data
        with self._lock:
            if not self._closed:
                self._lent[loan.address] = loan

    def _collect(self) -> None:
        """What has come back is spare from now on."""
        while self._back:
            loan = self._back.popleft()
            if self._lent.get(loan.address) is loan:  # else it came while they were closed
                del self._lent[loan.address]
                self._spare.append(loan.block)


def empty_tensor(empty: Allocate, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of arbitrary content in memory from `empty`."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    if dtype in _NUMPY_DTYPES:  # each of torch's views lets the GIL go, and waits to have it back
        return torch.from_numpy(empty(shape, _NUMPY_DTYPES[dtype]))
    return torch.from_numpy(empty(nbytes, np.uint8)).view(dtype).view(shape)


def _class_bytes(nbytes: int) -> int:
    """`nbytes` rounded up by an eighth at most, so that batches of about one size share blocks."""
    step = max(1 << max(nbytes.bit_length() - 4, 0), _PAGE_BYTES)
    return -(-nbytes // step) * step
