"""Memory of the fake GPUs: torch's caching allocator, pinned memory, registered memory.

A GPU's memory is host memory. A block that is freed is kept for its stream and is given out again
as torch does it: at once to the stream that it was allocated on, after the streams of
`record_stream` have ended. What each stream did to a block is kept, so that two streams which use
the same bytes without an order between them are found (`problems`), whatever the bytes are.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gnndrive.common.io.direct_file import Bytes, whole_pages
from gnndrive.common.records import Int64Array
from gnndrive.testing.fake_cuda.streams import FakeStream, Timeline

ROUND_BYTES = 512  # as torch's allocator rounds
ALIGNED_BYTES = 4096
POISON, POISONED_BYTES_MAX = 0xEE, 16 << 20
MS_ASYNC = 1
COUNTER = struct.Struct("Q")
F_OFD_SETLK = 37  # a lock of the open file, not of the process
_libc = ctypes.CDLL(None)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True)
class Access:
    """What a stream did to a block.

    Attributes:
        count: how many pieces of work the stream had then.
        rows: offsets of the rows that it used, in bytes; None: all bytes.
    """

    stream: FakeStream
    count: int
    writes: bool
    rows: Int64Array | None

    def meets(self, other: Access) -> bool:
        """Whether both use the same bytes and one writes."""
        if not (self.writes or other.writes):
            return False
        if self.rows is None or other.rows is None:
            return True
        return bool(np.isin(self.rows, other.rows).any())


@dataclass(frozen=True)
class Exported:
    """Memory of a fake GPU, which is a part of a file that a process has open.

    Attributes:
        path: of the file, in any process.
        counter: where in the file torch counts those who have it open.
    """

    path: bytes
    begin: int
    nbytes: int
    counter: int


class Lent(weakref.ref[Any]):
    """A reference to an array over the memory of `block`. What it calls at the array's end has to
    be in C: Python drops a Ctrl-C that comes in a function of its own there."""

    __slots__ = ("block",)
    block: Any


@dataclass(eq=False)
class Block:
    """Memory of a device.

    Attributes:
        memory: uint8 [bytes].
        stream: on which it was allocated.
        recorded: the streams of `record_stream`.
        accesses: what was done to it and is not known to have ended.
        ready_at: virtual time at which it may be given out again.
        counter: of memory that was exported; see `Exported`.
        lent: the array over it.
    """

    memory: Bytes
    device: int
    stream: FakeStream
    recorded: set[FakeStream] = field(default_factory=set)
    accesses: list[Access] = field(default_factory=list)
    ready_at: float = 0.0
    counter: int | None = None
    lent: Lent | None = None

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.memory.ctypes.data)


@dataclass
class Counters:
    """Bytes of one device, as `torch.cuda.memory_…` names them."""

    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    fraction: float = 1.0


class OutOfMemory(Exception):
    """The device has no memory for an allocation, nor after its cached blocks were freed."""


class DeviceMemory:
    """The memory of all devices.

    Attributes:
        nbytes: of each.
        races: whether to look for accesses without an order.
        taken: bytes of each device that other processes use.
        problems: what was found.
        trims_itself: whether a failed allocation is tried again without cached blocks, as torch's
            default allocator does it.
    """

    def __init__(self, timeline: Timeline, devices: int, nbytes: int, races: bool) -> None:
        self.nbytes, self._timeline, self.races = nbytes, timeline, races
        self.counters = [Counters() for _ in range(devices)]
        self.taken = [0] * devices
        self.problems: list[str] = []
        self.trims_itself = True
        self._blocks: dict[int, Block] = {}  # in use, by address
        self._places: dict[int, int] = {}  # in the file, by address
        self._cached: list[Block] = []
        self._file, self._file_bytes = os.memfd_create("fake GPUs"), 0
        weakref.finalize(self, os.close, self._file)

    def free_bytes(self, device: int) -> int:
        """What cudaMemGetInfo calls free."""
        self.collect()
        return self.nbytes - self.taken[device] - self.counters[device].reserved

    def allocate(self, nbytes: int, stream: FakeStream) -> Bytes:
        """An array over a block, which is freed when the array is gone."""
        self.collect()
        device = stream.device.index
        size = max(-(-nbytes // ROUND_BYTES), 1) * ROUND_BYTES
        block = self._cached_block(size, stream)
        if block is None:
            block = Block(self._new(size, stream), device, stream)
        counters = self.counters[device]
        counters.allocated += len(block.memory)
        counters.peak_allocated = max(counters.peak_allocated, counters.allocated)
        if len(block.memory) <= POISONED_BYTES_MAX:
            block.memory[:] = POISON
        self._blocks[block.address] = block
        array = block.memory[:size]
        block.lent = Lent(array, self._timeline.returned.append)
        block.lent.block = block
        return array

    def _cached_block(self, size: int, stream: FakeStream) -> Block | None:
        for block in self._cached:
            fits = size <= len(block.memory) <= 2 * size
            if fits and block.stream is stream and block.ready_at <= self._timeline.now:
                self._cached.remove(block)
                block.recorded.clear()
                block.accesses = [each for each in block.accesses if each.stream is stream]
                return block
        return None

    def _new(self, size: int, stream: FakeStream) -> Bytes:
        if stream.graph is None:  # in a capture of this stream, torch relaxes the mode itself
            self._timeline.check_capture("cudaMalloc")
        device = stream.device.index
        counters = self.counters[device]
        for attempt in range(2):
            within = counters.reserved + size <= counters.fraction * self.nbytes
            if within and size <= self.free_bytes(device):
                break
            if attempt or not self.trims_itself:
                raise OutOfMemory
            self.empty_cache()
        counters.reserved += size
        counters.peak_reserved = max(counters.peak_reserved, counters.reserved)
        begin = self._extend(size)  # so that another process can open it
        made = np.frombuffer(mmap.mmap(self._file, size, offset=begin), np.uint8)
        self._places[int(made.ctypes.data)] = begin
        return made

    def _extend(self, nbytes: int) -> int:
        """Where so many more bytes of the file begin."""
        begin, self._file_bytes = self._file_bytes, self._file_bytes + whole_pages(nbytes)
        os.ftruncate(self._file, self._file_bytes)
        return begin

    def export(self, address: int) -> Exported:
        """Where another process finds the block at this address."""
        block = self._blocks[address]
        with self._timeline.lock:
            block.counter = counter = self._extend(COUNTER.size)
        os.pwrite(self._file, COUNTER.pack(1), counter)
        path = os.fsencode(f"/proc/{os.getpid()}/fd/{self._file}")
        return Exported(path, self._places[address], len(block.memory), counter)

    def open(self, exported: Exported, stream: FakeStream, counter: tuple[bytes, int]) -> Bytes:
        """An array over memory of another process, as a block of the stream's device; `counter`:
        see `count_down`, which is called at its end."""
        file = os.open(exported.path, os.O_RDWR)
        _lock(file, fcntl.F_RDLCK, exported.begin, exported.nbytes)
        made = np.frombuffer(mmap.mmap(file, exported.nbytes, offset=exported.begin), np.uint8)
        block = Block(made, stream.device.index, stream)
        self._blocks[block.address] = block
        array = made[:]

        def shut() -> None:
            del self._blocks[block.address]
            os.close(file)
            count_down(*counter)

        weakref.finalize(array, shut)
        return array

    def collect(self) -> None:
        """Put blocks that were freed into the cache."""
        with self._timeline.lock:
            self._timeline.note_freed()
            while self._timeline.freed:
                block, clock, host = self._timeline.freed.popleft()
                del self._blocks[block.address]
                self.counters[block.device].allocated -= len(block.memory)
                for each in block.accesses:
                    known = max(clock.get(each.stream.number, 0), host.get(each.stream.number, 0))
                    own = each.stream is block.stream or each.stream in block.recorded
                    if self.races and not own and known < each.count:
                        self.problems.append(
                            f"{len(block.memory)} bytes of {block.stream} were freed while "
                            f"{each.stream} may use them: record_stream is missing"
                        )
                if block.counter is not None:
                    counter, block.counter = block.counter, None
                    if any(os.pread(self._file, COUNTER.size, counter)):
                        self.problems.append(
                            f"torch will never free {len(block.memory)} bytes, because it does not "
                            "count 0 processes that have them open"
                        )
                block.ready_at = max((each.time for each in block.recorded), default=0.0)
                self._cached.append(block)

    def empty_cache(self) -> None:
        """Give cached blocks back, after the streams of their `record_stream`."""
        self.collect()
        with self._timeline.lock:
            while self._cached:
                self._timeline.check_capture("cudaFree")
                block = self._cached.pop()
                self._timeline.reached({}, block.ready_at)
                self.counters[block.device].reserved -= len(block.memory)
                self._give_back(block)

    def _give_back(self, block: Block) -> None:
        """As cudaFree; no other process may have it open."""
        begin, nbytes = self._places.pop(block.address), len(block.memory)
        try:
            _lock(self._file, fcntl.F_WRLCK, begin, nbytes)
        except OSError:
            self.problems.append(f"{nbytes} bytes were freed that another process has open")

    def find(self, address: int) -> Block | None:
        """The block in use that has this address, or None."""
        self.collect()
        block = self._blocks.get(address)
        if block is not None:
            return block
        blocks = dict(self._blocks)  # other threads make and free blocks meanwhile
        before = max((each for each in blocks if each <= address), default=None)
        if before is None or address >= before + len(blocks[before].memory):
            return None
        return blocks[before]

    def use(self, block: Block, stream: FakeStream, writes: bool, rows: Int64Array | None) -> None:
        """Note that the stream's latest work uses the block; an AssertionError if another stream
        uses the same bytes, and neither waits for the other."""
        if not self.races:
            return
        access = Access(stream, stream.clock[stream.number], writes, rows)
        host, kept = self._timeline.host, []
        for each in block.accesses:
            if host.get(each.stream.number, 0) >= each.count:
                continue
            own = each.stream is stream
            ordered = own or stream.clock.get(each.stream.number, 0) >= each.count
            if not ordered and access.meets(each):
                problem = (
                    f"{stream} {'writes' if writes else 'reads'} {len(block.memory)} bytes that "
                    f"{each.stream} {'writes' if each.writes else 'reads'}: neither waits for the "
                    "other"
                )
                self.problems.append(problem)
                raise AssertionError(problem)
            if not (own and rows is None and writes >= each.writes):
                kept.append(each)
        block.accesses = [*kept, access]


class HostMemory:
    """Pinned host memory of torch's allocator, and memory registered with cudaHostRegister.

    Attributes:
        pinned_bytes: of torch's allocator, in use and cached: it rounds up to powers of two.
        registered: bytes by address.
        registered_bytes_max: how much can be registered.
    """

    def __init__(self, problems: list[str]) -> None:
        self.pinned_bytes = 0
        self.registered: dict[int, int] = {}
        self.registered_bytes_max = 1 << 40
        self._problems = problems
        self._cached: dict[int, list[Bytes]] = {}
        self._pinned: dict[int, Lent] = {}
        self._returned: deque[Lent] = deque()

    def pin(self, tensor: torch.Tensor, made: Any) -> torch.Tensor:
        """A copy of a host tensor in pinned memory; `made()` is called if the cache has none."""
        nbytes = tensor.numel() * tensor.itemsize
        size = 1 << max(nbytes - 1, 1).bit_length()
        self._collect()
        cached = self._cached.setdefault(size, [])
        if cached:
            memory = cached.pop()
        else:
            made()
            memory = aligned(size)
            self.pinned_bytes += size
        array = memory[:]
        address = int(array.ctypes.data)
        self._pinned[address] = lent = Lent(array, self._returned.append)
        lent.block = memory
        out = torch.from_numpy(array)[:nbytes].view(tensor.dtype).view(tensor.shape)
        return out.copy_(tensor.detach())

    def _collect(self) -> None:
        while self._returned:
            memory = self._returned.popleft().block
            self._pinned.pop(int(memory.ctypes.data), None)
            self._cached[len(memory)].append(memory)

    def is_pinned(self, address: int) -> bool:
        """Whether CUDA can copy from there asynchronously."""
        return self.are_pinned(np.array([address]), 1)

    def are_pinned(self, addresses: Int64Array, nbytes: int) -> bool:
        """Whether the first and the last of so many bytes at each address are pinned."""
        ends, found = addresses + nbytes - 1, [np.zeros((2, len(addresses)), np.bool_)]
        self._collect()
        pinned = [(start, len(each.block)) for start, each in self._pinned.copy().items()]
        for start, size in [*pinned, *self.registered.copy().items()]:  # others may add some
            found.append(np.array([(start <= n) & (n < start + size) for n in (addresses, ends)]))
        return bool(np.any(found, 0).all())

    def register(self, address: int, nbytes: int) -> int:
        """See cudaHostRegister; a code."""
        if nbytes <= 0 or not is_mapped(address, nbytes):
            return 1
        for start, size in self.registered.copy().items():
            if start < address + nbytes and address < start + size:
                return 712
        if sum(self.registered.copy().values()) + nbytes > self.registered_bytes_max:
            return 2
        self.registered[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        """See cudaHostUnregister; a code."""
        nbytes = self.registered.pop(address, None)
        if nbytes is None:
            return 713
        if not is_mapped(address, nbytes):
            self._problems.append(f"{nbytes} registered bytes were unmapped before unregistered")
        return 0


def count_down(path: bytes, counter: int) -> None:
    """As torch, which ignores that there is no such file, and can count below 0."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return
    (count,) = COUNTER.unpack(os.pread(file, COUNTER.size, counter))
    os.pwrite(file, COUNTER.pack((count - 1) % (1 << 64)), counter)
    os.close(file)


def _lock(file: int, kind: int, begin: int, nbytes: int) -> None:
    """Lock a part of an open file; OSError: another lock forbids it."""
    fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hh4xqqi4x", kind, os.SEEK_SET, begin, nbytes, 0))


def aligned(nbytes: int) -> Bytes:
    """Host memory that begins at a page."""
    whole = np.empty(nbytes + ALIGNED_BYTES, np.uint8)
    start = -int(whole.ctypes.data) % ALIGNED_BYTES
    return whole[start : start + nbytes]


def is_mapped(address: int, nbytes: int) -> bool:
    """Whether the whole range is mapped memory of this process."""
    start = address - address % mmap.PAGESIZE
    # MS_ASYNC does nothing, but fails if a page is not mapped.
    return bool(_libc.msync(start, address + nbytes - start, MS_ASYNC) == 0)
