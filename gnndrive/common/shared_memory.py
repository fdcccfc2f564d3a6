"""`SharedMemory`: memory that one process makes and other processes of the host map.

The maker creates a memfd, sends its descriptor over a Unix socket (SCM_RIGHTS), and the receivers
map it. There is no name in a file system, so a container's limit for /dev/shm does not count, and
the kernel frees the memory when the last process that maps it or has its descriptor has ended,
however it ended. The kernel's seals hold the maker to its word: the memory cannot become shorter,
which would end a reader with SIGBUS, and a receiver cannot map it for writing.

Do not use it for memory of one process: `private_map` gets huge pages on more systems.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import advise_huge
from gnndrive.common.errors import ConfigError
from gnndrive.common.limits import named_limit
from gnndrive.common.memory import available_memory, format_size

ALIGNED = 64  # bytes; a line of the processor's cache
_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; Python's fcntl does not name it
# Else a mapping keeps a copy of the descriptor, for a `resize` that nothing here needs.
_WITHOUT_FD: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_UNSHARED = "with host_service=False each rank has its own memory"


class SharedMemory:
    """Memory that several processes map; made by `create` or `attach`.

    A forked child has the memory as well, unless `keep_from_children` is called for `map`.

    Attributes:
        nbytes: how much.
        map: the mapping; arrays that are made of it keep it mapped after `close`.
    """

    def __init__(self, map: mmap.mmap, fd: int | None) -> None:
        self._fd = fd
        self.nbytes, self.map = len(map), map

    @classmethod
    def create(
        cls,
        nbytes: int,
        name: str,
        huge: bool = False,
        written_by_all: bool = False,
        sparse: bool = False,
    ) -> SharedMemory:
        """Make zeroed memory, whose pages are allocated when they are first touched.

        Args:
            name: what it is for; /proc/PID/maps shows it as "memfd:gnndrive-NAME".
            huge: whether to use huge pages where the kernel has them for shared memory; see
                `private_map`.
            written_by_all: whether receivers may map it for writing.
            sparse: whether only a part of it will ever be touched.

        Raises:
            MemoryError: it is not sparse, and less memory is available. The kernel would not refuse
                it, but end processes when they touch it.
        """
        nbytes = max(nbytes, 1)
        if not sparse and nbytes > (available := available_memory()):
            raise MemoryError(
                f"no memory for {format_size(nbytes)} ({format_size(available)} are available): "
                "free some, or have loading use less with memory="
            )
        fd = _memfd(name)
        try:
            os.ftruncate(fd, nbytes)
            with named_limit():  # Python's mapping has a copy of the descriptor
                made = cls(_map(fd, nbytes, True, huge), fd)
            if not written_by_all:  # after it is mapped, because later maps are refused
                with contextlib.suppress(OSError):  # an older kernel
                    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            os.close(fd)
            raise _refused(error) from error
        except BaseException:
            os.close(fd)
            raise
        return made

    @classmethod
    def attach(
        cls, fd: int, nbytes: int, huge: bool = False, writable: bool = False
    ) -> SharedMemory:
        """Map `nbytes` of memory that another process made, and close its descriptor, also if this
        fails: the memory is smaller, may become smaller, or cannot be mapped in this way."""
        try:
            with named_limit():
                _check(fd, nbytes)
                return cls(_map(fd, nbytes, writable, huge), None)
        except ConfigError:
            raise
        except (OSError, ValueError, OverflowError) as error:
            raise _unusable(str(error)) from error
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, uint8 [nbytes], until `close`; read-only if the mapping is."""
        return np.frombuffer(self.map, np.uint8)

    @property
    def fd(self) -> int:
        """The descriptor to send; valid until `close`."""
        if self._fd is None:
            raise ValueError("only the maker of shared memory has its descriptor, until `close`")
        return self._fd

    def close(self) -> None:
        """Close the descriptor, and unmap the memory once no array is left that was made of `map`.
        Idempotent. Other processes keep theirs."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        with contextlib.suppress(BufferError):  # an array still has it: unmapped with that
            self.map.close()


def _memfd(name: str) -> int:
    try:
        with named_limit():
            return os.memfd_create(f"gnndrive-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _refused(error) from error


def _map(fd: int, nbytes: int, writable: bool, huge: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapping = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=protection, **_WITHOUT_FD)
    if huge:
        advise_huge(mapping)
    return mapping


def _check(fd: int, nbytes: int) -> None:
    """Check that `fd` is memory of at least `nbytes` bytes that cannot become smaller."""
    if nbytes < 1:
        raise ValueError(f"{nbytes} bytes are asked for")
    if (size := os.fstat(fd).st_size) < nbytes:
        raise ValueError(f"it has {size:,} bytes instead of {nbytes:,}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("it is not sealed against becoming smaller")


def _refused(error: OSError) -> ConfigError:
    if error.errno in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        remedy = f"allow memfd_create in the container's seccomp profile; or {_UNSHARED}"
    else:
        remedy = f"free some memory; or {_UNSHARED}"
    return ConfigError(f"the system refuses to make shared memory ({error}): {remedy}")


def _unusable(why: str) -> ConfigError:
    return ConfigError(
        f"shared memory of another process cannot be used ({why}): end all processes of this run "
        f"and start them again with the same version of gnndrive; {_UNSHARED}"
    )


# ---- several arrays in it


@dataclass(frozen=True, slots=True)
class SharedArray:
    """Where an array of one dimension lies; `dataclasses.asdict` makes it fit for JSON.

    Attributes:
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
    """Arrays in shared memory, in the process that fills them; it sends the descriptors of their
    memories and a `SharedArray` for each.

    Several arrays share one memory, because a message carries 253 descriptors at most, and each
    takes one of the process's open files. Arrays of which a receiver frees some earlier than others
    belong in memories of their own (`reserve`).

    Attributes:
        memories: the memories, in the order in which their descriptors are to be sent.
    """

    def __init__(self, name: str) -> None:
        self._name, self._used = name, 0
        self.memories: list[SharedMemory] = []

    def reserve(self, sizes: Iterable[int]) -> None:
        """Make a memory for the arrays of these bytes that `allocate` makes next; none if they are
        empty."""
        nbytes = sum(map(_aligned, sizes))
        if nbytes or not self.memories:
            self.memories.append(SharedMemory.create(nbytes, self._name, huge=True))
            self._used = 0

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed bytes in the last memory, uint8 [nbytes]; in a new one if they do not fit."""
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
        """The description of an array of one dimension that `allocate` or `empty` made."""
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
