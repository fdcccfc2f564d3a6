"""Shared memory: what receivers may do with it, and what they can rely on."""

import errno
import fcntl
import gc
import mmap
import os
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common import shared_memory
from gnndrive.common.errors import ConfigError
from gnndrive.common.limits import LimitError
from gnndrive.common.shared_memory import ALIGNED, SharedArray, SharedArrays, SharedMemory

NBYTES = 3 << 20


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory.create(NBYTES, "test")
    yield made
    made.close()


def received_fd(fd: int) -> int:
    """The descriptor that a receiver gets for `fd`."""
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [fd])
        _, (received,), _, _ = socket.recv_fds(other, 1, 1)
    return received


def open_files() -> int:
    """The number of open files that something still uses; a memory that is mapped may be one."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_receiver_sees_what_the_maker_writes_later_and_cannot_write(memory):
    """So does a forked child."""
    received = SharedMemory.attach(received_fd(memory.fd), NBYTES)
    assert (received.nbytes, received.array.any()) == (NBYTES, False)
    memory.array[-1] = 7
    array = received.array
    child = os.fork()
    if not child:
        os._exit(int(array[-1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == array[-1] == 7
    assert not received.array.flags.writeable
    with pytest.raises(ConfigError, match=r"Operation not permitted.*host_service=False"):
        SharedMemory.attach(received_fd(memory.fd), NBYTES, writable=True)
    with pytest.raises(PermissionError):
        os.pwrite(memory.fd, b"x", 0)
    received.close()


def test_both_sides_may_write_if_the_maker_says_so():
    memory = SharedMemory.create(NBYTES, "test", written_by_all=True)
    received = SharedMemory.attach(received_fd(memory.fd), NBYTES, writable=True)
    received.array[3] = 9
    assert memory.array[3] == 9
    memory.close()
    received.close()


def test_no_process_can_change_the_size(memory):
    for size in (0, NBYTES - 1, NBYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_kernel_that_cannot_refuse_writers_is_used_all_the_same(monkeypatch):
    monkeypatch.setattr(shared_memory, "_SEAL_FUTURE_WRITE", 1 << 20)
    memory = SharedMemory.create(NBYTES, "test")
    SharedMemory.attach(received_fd(memory.fd), NBYTES).close()
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 0)
    memory.close()


def test_arrays_keep_the_memory_after_close(memory):
    received = SharedMemory.attach(received_fd(memory.fd), NBYTES)
    theirs, ours = received.array[5:], memory.array[5:]
    ours[:] = 8
    received.close()
    memory.close()
    memory.close()
    assert theirs.min() == ours.min() == 8
    for closed in (received, memory):
        with pytest.raises(ValueError, match="descriptor"):
            _ = closed.fd


def test_nothing_is_left_open():
    before = open_files()
    for _ in range(3):
        memory = SharedMemory.create(NBYTES, "test", huge=True)
        received = SharedMemory.attach(received_fd(memory.fd), NBYTES, huge=True)
        with pytest.raises(ConfigError):
            SharedMemory.attach(received_fd(memory.fd), NBYTES + 1)
        memory.close()
        received.close()
    assert open_files() == before


@pytest.mark.parametrize(
    ("nbytes", "why"),
    [
        (NBYTES + 1, "has 3,145,728 bytes instead of 3,145,729"), (0, "0 bytes"),
        (-1, "bytes"), (1 << 70, "bytes"), (-1 << 70, "bytes"),
    ],
)  # fmt: skip
def test_memory_of_another_size_is_refused(memory, nbytes, why):
    with pytest.raises(ConfigError, match=why):
        SharedMemory.attach(received_fd(memory.fd), nbytes)


def test_memory_that_may_become_smaller_is_refused():
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, NBYTES)
    with pytest.raises(ConfigError, match="not sealed against becoming smaller"):
        SharedMemory.attach(fd, NBYTES)


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/maps", "/", __file__])
def test_what_is_no_memory_is_refused(path):
    fd, before = os.open(path, os.O_RDONLY), open_files()
    with pytest.raises(ConfigError, match="cannot be used"):
        SharedMemory.attach(fd, 1)
    assert open_files() == before - 1


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 70])
def test_more_than_is_available_is_refused(nbytes):
    with pytest.raises(MemoryError, match=r"no memory for .* are available.*memory="):
        SharedMemory.create(nbytes, "test")
    arrays = SharedArrays("test")
    with pytest.raises(MemoryError, match="memory="):
        arrays.reserve([nbytes])
    assert arrays.memories == []


@pytest.mark.parametrize(
    ("owner", "name", "code", "kind", "said"),
    [
        (os, "memfd_create", errno.ENOSYS, ConfigError, "seccomp"),
        (os, "memfd_create", errno.EPERM, ConfigError, "seccomp"),
        (os, "memfd_create", errno.ENOMEM, ConfigError, "free some memory"),
        (os, "memfd_create", errno.EMFILE, ConfigError, "ulimit -n"),
        (os, "ftruncate", errno.ENOMEM, ConfigError, "host_service=False"),
        (mmap, "mmap", errno.ENOMEM, ConfigError, "host_service=False"),
        (mmap, "mmap", errno.EMFILE, LimitError, "ulimit -n"),
    ],
)
def test_a_refused_memory_leaves_no_descriptor(monkeypatch, owner, name, code, kind, said):
    monkeypatch.setattr(owner, name, Mock(side_effect=OSError(code, os.strerror(code))))
    before = open_files()
    with pytest.raises(kind, match=said):
        SharedMemory.create(NBYTES, "test")
    assert open_files() == before


def received(arrays: SharedArrays, described: SharedArray) -> np.ndarray:
    """An array as a receiver has it."""
    memory = arrays.memories[described.memory]
    attached = SharedMemory.attach(os.dup(memory.fd), memory.nbytes).array
    dtype = np.dtype(described.dtype)
    end = described.offset + described.count * dtype.itemsize
    return attached[described.offset : end].view(dtype)


@settings(max_examples=20)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["u1", "i2", "u4", "i8"]), st.integers(0, 90))),
        max_size=4,
    ),
    st.integers(-70, 70),
)
def test_each_array_is_where_its_description_says(groups, error):
    """Also if the sizes that were reserved are wrong."""
    arrays, made = SharedArrays("test"), []
    for group in groups:
        sizes = [np.dtype(dtype).itemsize * count for dtype, count in group]
        arrays.reserve([max(sum(sizes) + error, 0)] if error else sizes)
        for dtype, count in group:
            array = arrays.empty((count,), dtype)
            assert not array.any()
            array[:] = len(made) + 1
            made.append((arrays.describe("a", array), array))
    if not error:
        assert len(arrays.memories) <= max(len(groups), 1)
    for described, array in made:
        assert described.offset % ALIGNED == 0
        if described.count:
            assert np.array_equal(received(arrays, described), array)
    arrays.close()


def test_an_array_of_another_memory_is_refused():
    arrays = SharedArrays("test")
    arrays.allocate(100)
    with pytest.raises(ValueError, match="x is not in memory that was allocated here"):
        arrays.describe("x", np.zeros(100, np.uint8))
    arrays.close()
