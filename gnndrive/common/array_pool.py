"""A pool of memory for a batch's large arrays: blocks of memory that later batches use again.

A batch of 800,000 rows takes half a gigabyte, which is allocated and freed every second or two. The
C library's allocator returns such memory late or never (each thread that gathers keeps some tens of
megabytes of holes), and the kernel clears each page again. A block of the pool is a separate memory
mapping, reused when the arrays over it are gone, so a loader holds what its plan counts.

Do not use it for small or long-lived arrays: numpy's own memory serves them as well.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cache
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.forks import keep_until_exit
from gnndrive.common.memory import format_size

SMALL_BYTES = 1 << 18  # smaller arrays use numpy's own memory
_PAGE_BYTES = 4096
_HUGE_BYTES = 2 << 20
_MADV_WIPEONFORK = 18  # Linux; Python's mmap does not name it

_Rows = TypeVar("_Rows", "torch.Tensor", "npt.NDArray[Any]")  # torch is imported when it is used
Allocate: TypeAlias = Callable[[Any, Any], npt.NDArray[Any]]
"""(shape, dtype) → an array of arbitrary content; `numpy.empty` is one."""


def private_map(nbytes: int, huge: bool = False) -> mmap.mmap:
    """Map private memory of at least one page.

    Args:
        huge: whether to use huge pages where the kernel has them. They help memory that is looked
            up at random a few bytes at a time, and memory that long reads land in (a virtual disk
            takes three times as long to fill 64 scattered pages as one stretch). Do not use them
            for rows: a row is longer than such a lookup, and the first touch of a huge page costs
            more (a guest whose host takes back idle memory gets huge pages at half a gigabyte a
            second).
    """
    try:
        block = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(
            f"no memory for {format_size(nbytes)} ({error}): free some, or have loading use less "
            "with memory="
        ) from error
    if huge:
        advise_huge(block)
    return block


def advise_huge(block: mmap.mmap) -> None:
    """Have the kernel use huge pages for `block` if it has them and the block is large enough."""
    if len(block) >= _HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)


def keep_from_children(block: mmap.mmap) -> None:
    """Have forked children find zeros in `block`, into which the disk reads.

    They would share its pages copy-on-write, and what the disk then reads into them could land in
    the child's copy. The addresses stay taken in the child (MADV_DONTFORK would free them), because
    a child that frees `block` would otherwise free whatever was mapped there since. Where
    memory cannot be wiped (before Linux 4.14, in some sandboxes) a child does not get it at all,
    and never unmaps its addresses.
    """
    try:
        block.madvise(_MADV_WIPEONFORK)
    except OSError:
        block.madvise(mmap.MADV_DONTFORK)
        _unwiped.add(block)  # its addresses are free in a child, which must not unmap them


def mapped_bytes(nbytes: int) -> npt.NDArray[np.uint8]:
    """Private memory of at least so many bytes that begins at a page, and that forked children do
    not share."""
    block = private_map(nbytes)
    keep_from_children(block)
    return np.frombuffer(block, np.uint8)


_unwiped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def _keep_unwiped() -> None:
    for block in list(_unwiped):
        keep_until_exit(block)


os.register_at_fork(after_in_child=_keep_unwiped)


class _Loan(weakref.ref[Any]):
    """A weak reference to the array over a block that was given out."""

    __slots__ = ("address", "block")
    address: int
    block: mmap.mmap


class ArrayPool:
    """Gives out arrays over blocks, and takes a block back when the last array over it is gone.

    Thread-safe. A block may come back at any moment in any thread. No Python code runs when it
    does, because an exception in a weak reference's callback is swallowed, and that may be a
    Ctrl-C.

    Args:
        blocks_most: the most blocks at once, in use or spare; further arrays use numpy's memory.
    """

    def __init__(self, blocks_most: int = sys.maxsize) -> None:
        self._lock, self._most = threading.Lock(), blocks_most
        self._spare: list[mmap.mmap] = []
        self._lent: dict[int, _Loan] = {}  # by the block's address
        self._returned: deque[_Loan] = deque()  # not among the spare blocks yet
        self._closed = False

    def empty(self, shape: Any, dtype: Any) -> npt.NDArray[Any]:
        """An array of arbitrary content, as `numpy.empty`; page-aligned if it is large."""
        dtype = np.dtype(dtype)
        count = prod(shape) if isinstance(shape, tuple) else int(shape)
        nbytes = count * dtype.itemsize
        if nbytes < SMALL_BYTES or self._closed:
            return np.empty(shape, dtype)
        block = self._take(_class_bytes(nbytes))
        if block is None:
            return np.empty(shape, dtype)
        # Views keep `whole` alive, and only views of it are given out.
        whole = np.frombuffer(block, np.uint8)
        self._lend(whole, block)
        array: npt.NDArray[Any] = whole[:nbytes].view(dtype).reshape(shape)
        return array

    def references(self, addresses: Iterable[int]) -> tuple[weakref.ref[Any], ...]:
        """Weak references that are dead once the blocks at these addresses are back in the pool;
        addresses outside the pool's blocks are left out."""
        with self._lock:
            lent = [self._lent[each]() for each in addresses if each in self._lent]
        return tuple(weakref.ref(each) for each in lent if each is not None)

    @property
    def spare_bytes(self) -> int:
        """Bytes of blocks that wait for their next use."""
        with self._lock:
            self._collect()
            return sum(map(len, self._spare))

    def trim(self) -> None:
        """Free the spare blocks, because later arrays will have other sizes."""
        with self._lock:
            self._collect()
            self._spare.clear()

    def close(self) -> None:
        """Free the spare blocks now, and each block in use when its arrays are gone."""
        with self._lock:
            self._closed = True
            self._lent.clear()
            self._returned.clear()
            self._spare.clear()

    def _take(self, nbytes: int) -> mmap.mmap | None:
        with self._lock:
            self._collect()
            sizes = sorted((len(block), number) for number, block in enumerate(self._spare))
            for size, number in sizes:
                if nbytes <= size <= 2 * nbytes:
                    return self._spare.pop(number)
            for size, number in reversed(sizes):  # a block that is too small now makes room
                if nbytes <= 2 * size <= 2 * nbytes:
                    del self._spare[number]
                    break
            if len(self._spare) + len(self._lent) >= self._most:
                return None
        return private_map(nbytes)

    def _lend(self, whole: npt.NDArray[Any], block: mmap.mmap) -> None:
        loan = _Loan(whole, self._returned.append)
        loan.block, loan.address = block, whole.ctypes.data
        with self._lock:
            if not self._closed:
                self._lent[loan.address] = loan

    def _collect(self) -> None:
        while self._returned:
            loan = self._returned.popleft()
            if self._lent.get(loan.address) is loan:  # else the pool was closed meanwhile
                del self._lent[loan.address]
                self._spare.append(loan.block)


@cache  # not a constant: the host service imports this module and never loads torch
def _numpy_dtypes() -> dict[torch.dtype, np.dtype[Any]]:
    names = ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
    return {torch.from_numpy(np.empty(0, name)).dtype: np.dtype(name) for name in names}


def empty_tensor(empty: Allocate, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of arbitrary content in memory from `empty`."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    same = _numpy_dtypes().get(dtype)
    if same is not None:  # no view by torch, which releases the GIL and waits to get it back
        return torch.from_numpy(empty(shape, same))
    return torch.from_numpy(empty(nbytes, np.uint8)).view(dtype).view(shape)


def divided(whole: _Rows, parts: Iterable[Sized]) -> Iterator[_Rows]:
    """Rows for as many as each of `parts` has, over the memory of `whole`. Those of a tensor on the
    host have a storage of their own, so that saving them does not save the whole."""
    if isinstance(whole, torch.Tensor) and whole.device.type == "cpu":
        if whole.dtype in _numpy_dtypes():
            yield from map(torch.from_numpy, divided(whole.numpy(), parts))
        else:
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[whole.itemsize]
            yield from (each.view(whole.dtype) for each in divided(whole.view(bits), parts))
        return
    begin = 0
    for part in parts:
        end = begin + len(part)
        yield whole[begin:end]
        begin = end


def _class_bytes(nbytes: int) -> int:
    """`nbytes` rounded up by an eighth at most, so that batches of similar size share blocks."""
    step = max(1 << max(nbytes.bit_length() - 4, 0), _PAGE_BYTES)
    return -(-nbytes // step) * step
