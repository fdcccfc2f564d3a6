"""A block returns to the pool when the last array over it is gone, and not before."""

import errno
import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices.host import HostMemory
from gnndrive.common import array_pool, memory
from gnndrive.common.array_pool import ArrayPool, empty_tensor
from gnndrive.common.memory import return_free_memory
from tests.interrupted import drop_and_interrupt
from tests.soak import product

LARGE = 1 << 20


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_a_block_is_used_again_when_its_array_is_gone():
    pool = ArrayPool()
    array = pool.empty(LARGE, np.uint8)
    first = address(array)
    assert pool.spare_bytes == 0
    del array
    assert pool.spare_bytes >= LARGE
    assert address(pool.empty((LARGE // 8 - 100,), np.int64)) == first


def test_a_view_or_a_tensor_keeps_the_block():
    pool = ArrayPool()
    array = pool.empty((1000, 256), np.float32)
    view, tensor = array[10:20, 3], torch.from_numpy(array)[5]
    view[:], tensor[:] = 1, 2
    del array
    others = [pool.empty((1000, 256), np.float32) for _ in range(3)]
    for other in others:
        other[:] = 3
    assert (view == 1).all()
    assert (tensor == 2).all()
    del view
    assert pool.spare_bytes == 0
    del tensor
    assert pool.spare_bytes > 0


def test_batches_of_similar_size_reuse_blocks():
    pool, sizes = ArrayPool(), np.random.default_rng(0).integers(9 * LARGE, 10 * LARGE, 200)
    live: list[Any] = []
    most = 0
    for size in sizes:
        live = [*live[-1:], pool.empty(int(size), np.uint8)]  # two are alive at once
        most = max(most, pool.spare_bytes + sum(array.nbytes for array in live))
    assert most <= 3 * 12 * LARGE


@product(
    "shape,dtype", [(0,), (4, 0), (3, 2), (600_000, 1)],
    [torch.bfloat16, torch.bool, torch.float64, torch.uint8],
)  # fmt: skip
def test_tensors_of_any_size_and_dtype(shape, dtype):
    tensor = empty_tensor(ArrayPool().empty, shape, dtype)
    assert (tensor.dtype, tensor.shape) == (dtype, shape)
    assert tensor.is_contiguous()
    assert tensor.fill_(1).all()
    with pytest.raises(MemoryError, match="no memory for"):
        empty_tensor(ArrayPool().empty, (1 << 60,), dtype)


def test_closing_frees_spare_blocks_and_later_returns():
    pool = ArrayPool()
    kept, dropped = pool.empty(LARGE, np.uint8), pool.empty(LARGE, np.uint8)
    del dropped
    pool.close()
    assert pool.spare_bytes == 0
    kept[:] = 7
    assert (kept == 7).all()
    del kept
    assert pool.spare_bytes == 0
    assert pool.empty(LARGE, np.uint8).nbytes == LARGE


def test_threads_may_take_and_return_blocks_at_once():
    pool = ArrayPool()

    def work(number):
        for turn in range(100):
            array = pool.empty(LARGE // 2 + 4096 * (turn % 7), np.uint8)
            array[::4096] = number
            assert (array[::4096] == number).all()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [None] * 4


def test_a_reference_is_dead_once_the_block_is_back():
    pool = ArrayPool()
    large, small = pool.empty((1000, 256), np.float32), pool.empty(1000, np.uint8)
    view = torch.from_numpy(large)[1:]
    (reference,) = pool.references([address(large), address(small)])
    del large
    assert reference() is not None
    del view
    assert reference() is None
    assert pool.spare_bytes > 0


def test_a_reference_keeps_no_block_of_a_closed_pool():
    pool = ArrayPool()
    array = pool.empty(LARGE, np.uint8)
    (reference,), block = pool.references([address(array)]), weakref.ref(array.base.base.obj)
    pool.close()
    assert pool.references([address(array)]) == ()
    del array
    assert reference() is None
    assert block() is None


def test_returning_a_block_swallows_no_ctrl_c():
    pool = ArrayPool()
    drop_and_interrupt([pool.empty(LARGE, np.uint8).base])
    assert pool.spare_bytes >= LARGE


def test_a_forked_child_keeps_the_addresses_of_slots_and_not_their_content():
    """The child may free the slots, and must not free what it has mapped since."""
    slots = HostMemory(1, 1 << 20, np.empty)
    memory = np.frombuffer(slots._map, np.uint8)
    memory[:] = 7
    child = os.fork()
    if not child:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            ranges = [line.split(" ", 1)[0].split("-") for line in maps]
        address = memory.ctypes.data
        mapped = any(int(first, 16) <= address < int(last, 16) for first, last in ranges)
        os._exit(0 if mapped and not memory.any() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory.all()


def test_memory_that_cannot_be_wiped_is_not_inherited_and_never_unmapped_in_a_child(monkeypatch):
    advice: list[int] = []

    class Block(mmap.mmap):
        def madvise(self, option, *given):
            if option == array_pool._MADV_WIPEONFORK:
                raise OSError(errno.EINVAL, "an older kernel")
            advice.append(option)

    monkeypatch.setattr(mmap, "mmap", Block)
    block = array_pool.private_map(3 << 20)
    array_pool.keep_from_children(block)
    assert advice == [mmap.MADV_DONTFORK]
    kept: list[mmap.mmap] = []
    monkeypatch.setattr(array_pool, "keep_until_exit", kept.append)
    array_pool._keep_unwiped()
    assert [each for each in kept if isinstance(each, Block)] == [block]


BLOCK_BYTES, BLOCKS = 1 << 16, 1024  # smaller than what glibc maps one by one


def resident_bytes() -> int:
    """The process's memory without mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def test_blocks_below_one_that_is_in_use_are_returned():
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    last = blocks[-1]
    blocks.clear()
    before = resident_bytes()
    return_free_memory()
    assert before - resident_bytes() > BLOCK_BYTES * BLOCKS // 2
    assert last.all()


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    return_free_memory()
    memory.share_one_heap()


def test_a_pool_keeps_no_more_blocks_than_its_limit():
    pool = ArrayPool(blocks_most=2)
    arrays = [pool.empty(LARGE, np.uint8) for _ in range(3)]
    first = address(arrays[0])
    del arrays
    assert pool.spare_bytes < 3 * LARGE
    assert first in {address(pool.empty(LARGE, np.uint8)) for _ in range(2)}
