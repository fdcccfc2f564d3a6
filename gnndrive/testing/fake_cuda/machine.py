"""`FakeCuda`: the fake GPUs of one `fake_cuda` context, and what they logged."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from gnndrive.common.io.direct_file import Bytes
from gnndrive.testing.fake_cuda.memory import (
    Block,
    DeviceMemory,
    Exported,
    HostMemory,
    OutOfMemory,
)
from gnndrive.testing.fake_cuda.streams import (
    ERRORS,
    UNSUPPORTED,
    FakeStream,
    Timeline,
    cuda_error,
)

LOGGED_MAX = 200_000
CLOCK_HZ = 2e9


@dataclass(frozen=True)
class Entry:
    """One call that reached CUDA.

    Attributes:
        kind: "launch", "copy", "allocate", "record", "wait", "call" or "register".
        what: the operation, the direction of a copy, or CUDA's function.
        device: the device that it was for.
        current: the thread's current device then.
        nbytes: bytes that it was about.
    """

    kind: str
    what: str
    device: int
    current: int
    stream: Any
    thread: str
    nbytes: int


class FakeCuda:
    """GPUs that do not exist; see `fake_cuda`.

    Attributes:
        timeline: virtual time, captures, state of threads.
        memory: the devices' memory.
        host: pinned and registered host memory.
        log: the latest calls.
        contexts: devices on which something was done, each of which costs some hundred megabytes on
            a real GPU.
        problems: what a real GPU might get wrong without an error; `fake_cuda` raises for them.
        p2p: whether a kernel may use another device's memory.
        ipc: whether memory of other processes can be opened.
    """

    def __init__(self, devices: int, memory_bytes: int, races: bool) -> None:
        self.timeline = Timeline()
        self.memory = DeviceMemory(self.timeline, devices, memory_bytes, races)
        self.problems = self.memory.problems
        self.host = HostMemory(self.problems)
        self.devices = devices
        self.p2p, self.ipc = False, True
        self.log: deque[Entry] = deque(maxlen=LOGGED_MAX)
        self.contexts: set[int] = set()
        self._streams: list[FakeStream] = []
        self._defaults = [self.stream(device, default=True) for device in range(devices)]

    # ---- what happened

    def entries(self, kind: str, what: str | None = None) -> list[Entry]:
        """The logged calls of a kind."""
        return [each for each in list(self.log) if each.kind == kind and what in (None, each.what)]

    def call(
        self, kind: str, what: str, device: int, stream: FakeStream | None = None, nbytes: int = 0
    ) -> None:
        """Log a call, which makes a context on the device."""
        current, thread = self.timeline.thread.device, threading.current_thread().name
        self.contexts.add(device)
        self.log.append(Entry(kind, what, device, current, stream, thread, nbytes))

    def unsafe(self, what: str, device: int) -> None:
        """Log a call that may not be made during a capture, and refuse it if there is one."""
        self.call("call", what, device)
        self.timeline.check_capture(what)

    # ---- devices and streams

    def index_of(self, device: Any = None) -> int:
        """The number of a device given as torch's functions take it."""
        if device is None:
            return self.timeline.thread.device
        index = device if isinstance(device, int) else torch.device(device).index
        index = self.timeline.thread.device if index is None else int(index)
        return self.check_device(index)

    def check_device(self, index: int) -> int:
        """`index`; a RuntimeError if there is no such device."""
        if not 0 <= index < self.devices:
            raise cuda_error(101)
        return index

    def current_device(self) -> int:
        """The calling thread's current device."""
        return self.timeline.thread.device

    @contextmanager
    def on_device(self, device: Any) -> Iterator[None]:
        """In the place of `torch.cuda.device`."""
        thread, index = self.timeline.thread, self.index_of(device)
        before, thread.device = thread.device, index
        try:
            yield
        finally:
            thread.device = before

    @contextmanager
    def on_stream(self, stream: FakeStream | None) -> Iterator[None]:
        """In the place of `torch.cuda.stream`: makes a stream current, and its device too."""
        thread = self.timeline.thread
        before = thread.device, dict(thread.streams)
        self.set_stream(stream)
        try:
            yield
        finally:
            thread.device, thread.streams = before

    def current_stream(self, device: Any = None) -> FakeStream:
        """The calling thread's current stream of a device."""
        index = self.index_of(device)
        return self.timeline.thread.streams.get(index, self._defaults[index])

    def default_stream(self, device: Any = None) -> FakeStream:
        """The default stream of a device."""
        return self._defaults[self.index_of(device)]

    def set_stream(self, stream: FakeStream | None) -> None:
        """Make a stream current, and its device too."""
        if stream is not None:
            self.timeline.thread.device = stream.device.index
            self.timeline.thread.streams[stream.device.index] = stream

    def stream(self, device: Any = None, default: bool = False) -> FakeStream:
        """A new stream."""
        made = FakeStream(self, self.index_of(device), default)
        self._streams.append(made)
        return made

    def all_streams(self) -> Iterator[FakeStream]:
        """Every stream."""
        return iter(list(self._streams))

    def synchronize(self, device: Any = None) -> None:
        """Wait for all work of a device."""
        index = self.index_of(device)
        self.unsafe("cudaDeviceSynchronize", index)
        for stream in self.all_streams():
            if stream.device.index == index:
                self.timeline.reached(stream.clock, stream.time)

    def sleep(self, cycles: int) -> None:
        """`torch.cuda._sleep`: keep the current stream busy."""
        self.launch("sleep", self.current_stream(), [], [], cycles / CLOCK_HZ, 0)

    # ---- work

    def launch(
        self, what: str, stream: FakeStream, reads: Sequence[tuple[Block, Any]],
        writes: Sequence[tuple[Block, Any]], seconds: float, nbytes: int, kind: str = "launch",
        across: bool = False,
    ) -> None:  # fmt: skip
        """Count work that was carried out as begun on `stream`; raises the thread's last error.

        Args:
            reads, writes: blocks, each with the offsets of the rows used or None.
            across: whether it may use several devices.
        """
        thread = self.timeline.thread
        self.call(kind, what, stream.device.index, stream, nbytes)
        if thread.last_error:
            code, thread.last_error = thread.last_error, 0
            raise cuda_error(code)
        with self.timeline.lock:
            self.timeline.merge(stream.clock, self.timeline.host)
            stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
            stream.time = max(stream.time, self.timeline.now) + seconds
            for blocks, writing in ((reads, False), (writes, True)):
                for block, rows in blocks:
                    if block.device != stream.device.index and not (across or self.p2p):
                        raise cuda_error(700)
                    self.memory.use(block, stream, writing, rows)

    def allocate(self, nbytes: int, device: int) -> Bytes:
        """Memory of a device for the thread's current stream."""
        self.check_device(device)
        stream = self.current_stream(device)
        self.call("allocate", "cudaMalloc", device, stream, nbytes)
        with self.timeline.lock:
            try:
                return self.memory.allocate(nbytes, stream)
            except OutOfMemory:
                free = self.memory.free_bytes(device)
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {nbytes} bytes. GPU {device} has a "
                    f"total capacity of {self.memory.nbytes} bytes of which {free} bytes is free."
                ) from None

    def open(self, exported: Exported, device: int, counter: tuple[bytes, int]) -> Bytes:
        """Memory of another process, for the thread's current stream of a device."""
        self.call("call", "cudaIpcOpenMemHandle", device)
        if not self.ipc:
            raise cuda_error(1)
        if exported.path.startswith(f"/proc/{os.getpid()}/".encode()):
            raise cuda_error(201)
        return self.memory.open(exported, self.current_stream(device), counter)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned copy; in a context that there is, as torch's allocator."""
        device = min(self.contexts, default=self.current_device())
        self.unsafe("cudaEventQuery of pinned memory", device)
        with self.timeline.lock:
            return self.host.pin(tensor, lambda: self.unsafe("cudaHostAlloc", device))

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes."""
        index = self.index_of(device)
        self.unsafe("cudaMemGetInfo", index)
        return self.memory.free_bytes(index), self.memory.nbytes


class Code(int):
    """`torch.cuda.cudart().cudaError`."""


class Cudart:
    """In the place of `torch.cuda.cudart()`: returns codes, and leaves errors behind."""

    def __init__(self, machine: FakeCuda) -> None:
        self._machine = machine

    def _call(self, what: str, nbytes: int, carry_out: Callable[[], int]) -> Code:
        """Log a call, and carry it out unless a capture forbids it."""
        timeline = self._machine.timeline
        self._machine.call("register", what, self._machine.current_device(), None, nbytes)
        try:
            timeline.check_capture(what)
        except RuntimeError:
            code = UNSUPPORTED
        else:
            code = carry_out()
        timeline.thread.last_error = code or timeline.thread.last_error
        return Code(code)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> Code:
        """Pin host memory."""
        register = partial(self._machine.host.register, address, nbytes)
        return self._call("cudaHostRegister", nbytes, register)

    def cudaHostUnregister(self, address: int) -> Code:
        """Unpin host memory."""
        unregister = partial(self._machine.host.unregister, address)
        return self._call("cudaHostUnregister", 0, unregister)

    def cudaGetErrorString(self, code: Code) -> str:
        """What an error is called."""
        if not isinstance(code, Code):
            raise TypeError("cudaGetErrorString(): incompatible function arguments")
        return ERRORS[code]

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Free and total bytes."""
        return self._machine.mem_get_info(device)


def driver_library(machine: FakeCuda) -> SimpleNamespace:
    """In the place of libcuda.so.1, of which it has the function that gnndrive calls."""

    def exchange(mode: Any) -> int:
        thread = machine.timeline.thread
        place = mode._obj if hasattr(mode, "_obj") else mode.contents
        assert isinstance(place, ctypes.c_int)
        thread.mode, place.value = place.value, thread.mode
        return 0

    return SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
