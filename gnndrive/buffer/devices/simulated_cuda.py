"""A simulated CUDA device for tests: streams are queues that a seed carries out, without a GPU.

It implements the same `Driver` as cuda.py. A copy's bytes are not there before its turn, memory has
arbitrary content until then, and either stream may be ahead of the other, so code that does not
wait for an event gets a wrong row. Not for measurements: everything happens in host memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch

from gnndrive.buffer.devices._host_slots import HostSlots
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices._staged import Driver, Staged
from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.array_pool import private_map
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.records import Int32Array

POISON = 0xEE
TURN_OPERATIONS_MAX = 2
SIDE, COMPUTE = range(2)


class Event:
    """Fires when the work before it on its stream was carried out, and wakes its waiters."""

    def __init__(self) -> None:
        self.fired = False
        self.waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []


Operation: TypeAlias = Callable[[], None] | Event
"""An entry of a stream: work to carry out, or an event that the stream waits for."""


class SimulatedDriver(Driver):
    """Two streams, whose turns are drawn from the seed; thread-safe.

    Attributes:
        memory_bytes: the size of the device's memory.
        pinned_bytes: bytes that are pinned now.
    """

    memory_bytes = 1 << 30

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self.reads_pinned = seed % 2 == 0
        self._streams: tuple[deque[Operation], deque[Operation]] = (deque(), deque())
        # With some seeds the compute stream is slow, as behind much work of the user's own.
        self._compute_share = (0.5, 0.05)[seed // 3 % 2]
        self._lock = threading.RLock()
        self._scheduled = False
        self.pinned_bytes = 0

    def pinned(self, nbytes: int) -> Bytes:
        """Host memory, aligned to a page."""
        memory = np.frombuffer(private_map(nbytes), np.uint8)
        memory[:] = POISON
        self.pinned_bytes += nbytes
        return memory[:nbytes]

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Host memory in the place of device memory."""
        if nbytes > self.memory_bytes:
            raise MemoryError(f"{nbytes:,} bytes asked for, {self.memory_bytes:,} there")
        return torch.full((nbytes,), POISON, dtype=torch.uint8)

    def scatter(self, into: torch.Tensor, staging: Bytes, moves: Int32Array) -> Event:
        """See `Driver.scatter`."""

        def move() -> None:  # reads places, slots and rows in its turn
            places, slots = (torch.from_numpy(part.astype(np.int64)) for part in moves)
            into[slots] = torch.from_numpy(staging)[places]

        return self._begin(SIDE, move)

    def copy_out(self, rows: torch.Tensor, into: Bytes, moves: Int32Array) -> Event:
        """See `Driver.copy_out`."""
        slots, places = (torch.from_numpy(part.astype(np.int64)) for part in moves)

        def move() -> None:  # reads rows in its turn
            torch.from_numpy(into)[places] = rows[slots]

        return self._begin(SIDE, move)

    def pull(self, rows: torch.Tensor, into: torch.Tensor, moves: Int32Array) -> Event:
        """See `Driver.pull`."""
        slots, places = (torch.from_numpy(part.astype(np.int64)) for part in moves)

        def move() -> None:  # reads rows in its turn
            into[places] = rows[slots]

        return self._begin(SIDE, move)

    def gather(self, rows: torch.Tensor, alias: Int32Array) -> tuple[torch.Tensor, Event]:
        """See `Driver.gather`."""
        index = torch.from_numpy(alias.astype(np.int64))
        out = torch.full((len(alias), rows.shape[1]), POISON, dtype=torch.uint8)

        def pick() -> None:
            out[:] = rows[index]

        return out, self._begin(COMPUTE, pick)

    def empty(self, rows: int, row_bytes: int) -> torch.Tensor:
        """See `Driver.empty`."""
        return torch.full((rows, row_bytes), POISON, dtype=torch.uint8)

    def fill(self, into: torch.Tensor, piece: Bytes) -> Event:
        """See `Driver.fill`."""

        def move() -> None:  # reads the piece in its turn
            into.copy_(torch.from_numpy(piece))

        event = self._begin(SIDE, move)
        with self._lock:
            self._streams[COMPUTE].append(event)
        return event

    def finish(self, event: Event) -> None:
        """See `Driver.finish`."""
        with self._lock:
            while not event.fired:
                self._step(SIDE)

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Driver.copy`."""
        sources = [tensor.clone() for tensor in tensors]
        copies = [_poison(tensor) for tensor in tensors]

        def move() -> None:
            for out, source in zip(copies, sources, strict=True):
                out.copy_(source)

        event = self._begin(SIDE, move)
        with self._lock:
            self._streams[COMPUTE].append(event)
        return copies

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """See `Driver.computing`; torch works at once here, so what it reads must have been
        carried out."""
        self.finish_compute()
        yield

    async def wait(self, event: Event) -> None:
        """See `Driver.wait`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if event.fired:
                return
            waiter: asyncio.Future[None] = loop.create_future()
            event.waiters.append((loop, waiter))
            self._schedule(loop)
        await waiter

    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Driver.hand_over`: carry out the compute stream, so that the bytes are there."""
        self.finish_compute()

    def finish_compute(self) -> None:
        """Carry out all work on the compute stream, and what it waits for."""
        with self._lock:
            while self._streams[COMPUTE]:
                if not self._step(COMPUTE):
                    self._step(SIDE)

    def unpin(self, memory: Bytes) -> None:
        """See `Driver.unpin`."""
        self.finish_side()
        self.pinned_bytes -= memory.nbytes
        memory[:] = POISON

    def synchronize(self) -> None:
        """See `Driver.synchronize`."""
        self.finish_compute()
        self.finish_side()

    def finish_side(self) -> None:
        """Carry out all work on the side stream."""
        with self._lock:
            while self._streams[SIDE]:
                self._step(SIDE)

    @property
    def busy(self) -> bool:
        """Whether any work is under way."""
        return any(self._streams)

    def _begin(self, stream: int, work: Callable[[], None]) -> Event:
        event = Event()

        def fire() -> None:
            work()
            event.fired = True
            for loop, waiter in event.waiters:
                loop.call_soon_threadsafe(_set, waiter)

        with self._lock:
            self._streams[stream].append(fire)
        return event

    def _step(self, stream: int) -> bool:
        """Carry out the stream's next work; False if there is none or it waits for an event."""
        queue = self._streams[stream]
        while queue and isinstance(queue[0], Event) and queue[0].fired:
            queue.popleft()
        if not queue or isinstance(queue[0], Event):
            return False
        operation = queue.popleft()
        assert not isinstance(operation, Event)
        operation()
        return True

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled and self.busy:
            self._scheduled = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._scheduled = False
            for _ in range(self._random.randint(0, TURN_OPERATIONS_MAX)):
                self._step(COMPUTE if self._random.random() < self._compute_share else SIDE)
            self._schedule(loop)


def _poison(like: torch.Tensor) -> torch.Tensor:
    """A tensor like `like` whose content is that of unwritten memory."""
    if not like.numel():
        return torch.empty_like(like)
    memory = torch.full((like.numel() * like.itemsize,), POISON, dtype=torch.uint8)
    return memory.view(like.dtype).view(like.shape)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SimulatedCuda(Staged):
    """The device; with some seeds it has so little staging that fetches wait for it.

    Args:
        seed: the streams' turns are drawn from it.
    """

    name = "simulated-cuda"
    driver: SimulatedDriver

    def shut_slots(self, opened: list[torch.Tensor]) -> None:
        """See `Device.shut_slots`."""
        self.driver.finish_side()
        opened.clear()

    @classmethod
    def host_slots(cls) -> type[Device]:
        """See `Device.host_slots`."""
        return SimulatedHostSlots

    @classmethod
    def free_bytes(cls, where: torch.device | None) -> int | None:
        """See `Device.free_bytes`."""
        return SimulatedDriver.memory_bytes

    def watch(self) -> Callable[[], int]:
        """See `Device.watch`."""
        return lambda: self.driver.memory_bytes

    @classmethod
    def make(cls, context: DeviceContext) -> SimulatedCuda:
        """See `Device.make`."""
        return cls()

    def __init__(self, seed: int = 0) -> None:
        self.driver = SimulatedDriver(seed)
        portions, self.portion_bytes = ((4, 32 << 20), (2, 1024), (3, 256))[seed % 3]
        self.options = MoveOptions(portions=portions)


class SimulatedHostSlots(HostSlots, SimulatedCuda):
    """The device beside slots in host memory; with every second seed it reads them itself."""

    name = "simulated-host-slots"
