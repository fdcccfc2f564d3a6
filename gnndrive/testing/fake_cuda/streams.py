"""Streams, events and graphs of the fake GPUs, in virtual time and with vector clocks.

Work is carried out when it is begun, but it *ends* in virtual time: each piece of work takes its
stream some seconds, and the clock stands still until a host thread waits for a stream or an event.
So an event may be unfired as long as a test needs it, without any thread that waits.

What is ordered before what is known from vector clocks, as in torch's CUDA sanitizer: each stream
knows how much of each other stream's work comes before its next work.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

Clock: TypeAlias = dict[int, int]
"""For each stream's number: how many pieces of its work came before."""

QUERY_S = 1e-6  # virtual seconds that a query takes, so that polling ends
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
MODES = {"global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}
UNSUPPORTED, INVALIDATED, ISOLATION, CAPTURED_EVENT = 900, 901, 905, 907
ERRORS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    101: "invalid device ordinal",
    201: "invalid device context",
    700: "an illegal memory access was encountered",
    400: "invalid resource handle",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    UNSUPPORTED: "operation not permitted when stream is capturing",
    INVALIDATED: "operation failed due to a previous error during capture",
    ISOLATION: "dependency created on uncaptured work in another stream",
    CAPTURED_EVENT: "operation not permitted on an event last recorded in a capturing stream",
}


def cuda_error(code: int, detail: str = "") -> RuntimeError:
    """The exception that torch raises for one of CUDA's error codes."""
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    error = kind(f"CUDA error: {ERRORS[code]}{detail and f' ({detail})'}")
    error.code = code  # type: ignore[attr-defined]
    return error


@dataclass
class Thread(threading.local):
    """What CUDA and torch keep for each host thread.

    Attributes:
        streams: the current stream of each device; missing: its default stream.
        mode: the thread's stream capture mode.
        last_error: the code that the next launch raises.
    """

    device: int = 0
    streams: dict[int, FakeStream] = field(default_factory=dict)
    mode: int = GLOBAL
    last_error: int = 0


class Timeline:
    """The virtual time, and which work the host threads know to have ended.

    Attributes:
        lock: guards all state of the fake.
        now: virtual seconds.
        host: work that some host thread has waited for.
        thread: state of the calling thread.
        graphs: captures under way.
        sync_debug: as of `torch.cuda.set_sync_debug_mode`: 0, 1 or 2.
        numbers: of new streams.
        returned: references to memory that was freed; see `Lent`.
        freed: its blocks, each with what its stream and the host threads knew then.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.now = 0.0
        self.host: Clock = {}
        self.thread = Thread()
        self.graphs: list[FakeGraph] = []
        self.sync_debug = 0
        self.numbers = itertools.count(1)
        self.returned: deque[Any] = deque()
        self.freed: deque[tuple[Any, Clock, Clock]] = deque()

    def merge(self, into: Clock, other: Clock) -> None:
        """Let `into` know what `other` knows."""
        self.note_freed()
        for stream, count in other.items():
            if into.get(stream, 0) < count:
                into[stream] = count

    def note_freed(self) -> None:
        """Note what is known now, as it was when memory was freed."""
        while self.returned:
            block = self.returned.popleft().block
            block.lent = None  # no cycle
            self.freed.append((block, dict(block.stream.clock), dict(self.host)))

    def check_capture(self, what: str) -> None:
        """Refuse a call that is unsafe during a capture, by the rules of
        cudaThreadExchangeStreamCaptureMode; the capture is then invalid."""
        mode = self.thread.mode
        for graph in list(self.graphs):
            own = graph.thread == threading.get_ident() and graph.mode != RELAXED
            if mode != RELAXED and (own or mode == graph.mode == GLOBAL):
                graph.broken = f"{what} in {threading.current_thread().name}"
                raise cuda_error(UNSUPPORTED)

    def reached(self, clock: Clock, time: float) -> None:
        """A host thread has waited for work that ends at `time`."""
        with self.lock:
            self.now = max(self.now, time)
            self.merge(self.host, clock)

    def has_ended(self, clock: Clock, time: float) -> bool:
        """Whether work that ends at `time` has ended, as a query finds out."""
        with self.lock:
            self.now += QUERY_S
            if time > self.now:
                return False
            self.merge(self.host, clock)
            return True


class FakeStream:
    """In the place of `torch.cuda.Stream`.

    Attributes:
        cuda_stream: its handle; 0 for a device's default stream.
        number: its number among all streams.
        clock: which work comes before its next work.
        time: when its last work ends.
        graph: the capture under way on it, or None.
    """

    def __init__(self, machine: Any, device: int, default: bool = False) -> None:
        self._machine = machine
        self.device = torch.device("cuda", device)
        self.number = next(machine.timeline.numbers)
        self.cuda_stream = 0 if default else 0x7F00_0000_0000 + 16 * self.number
        self.clock: Clock = {}
        self.time = 0.0
        self.graph: FakeGraph | None = None

    device_index = property(lambda self: self.device.index)

    def wait_event(self, event: FakeEvent) -> None:
        """Let later work here come after the event."""
        self._machine.call("wait", "event", self.device.index, self)
        if event.clock is None:
            return
        with self._machine.timeline.lock:
            if self.graph is not event.graph:
                if event.graph is None:
                    assert self.graph is not None
                    self.graph.broken = "it waits for work outside of it"
                    raise cuda_error(ISOLATION)
                self.graph = event.graph
            self._machine.timeline.merge(self.clock, event.clock)
            self.time = max(self.time, event.time)

    def wait_stream(self, stream: FakeStream) -> None:
        """Let later work here come after all work that was begun on `stream`."""
        self.wait_event(stream.record_event())

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        """Record an event here."""
        event = FakeEvent(self._machine) if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work has ended."""
        self._machine.unsafe("cudaStreamQuery", self.device.index)
        return bool(self._machine.timeline.has_ended(self.clock, self.time))

    def synchronize(self) -> None:
        """Wait until all work has ended, unless torch's debug mode refuses that."""
        if self._machine.timeline.sync_debug:
            raise RuntimeError("called a synchronizing CUDA operation")
        self._machine.unsafe("cudaStreamSynchronize", self.device.index)
        self._machine.timeline.reached(self.clock, self.time)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __repr__(self) -> str:
        return f"<stream {self.number} of {self.device}>"


class FakeEvent:
    """In the place of `torch.cuda.Event`.

    Attributes:
        clock: work that came before it; None: not recorded.
        time: when that work ends.
        graph: the capture in which it was recorded last, or None.
    """

    def __init__(self, machine: Any, enable_timing: bool = False) -> None:
        self._machine, self._timing = machine, enable_timing
        self._device: torch.device | None = None
        self.clock: Clock | None = None
        self.time = 0.0
        self.graph: FakeGraph | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        """Fire after the work that was begun on `stream`."""
        stream = self._machine.current_stream() if stream is None else stream
        if self._device not in (None, stream.device):
            raise RuntimeError(
                f"Event device {self._device} does not match recording stream's device "
                f"{stream.device}."
            )
        self._machine.call("record", "event", stream.device.index, stream)
        with self._machine.timeline.lock:
            self._machine.timeline.merge(stream.clock, self._machine.timeline.host)
            self._device, self.clock, self.graph = stream.device, dict(stream.clock), stream.graph
            self.time = max(stream.time, self._machine.timeline.now)

    def wait(self, stream: FakeStream | None = None) -> None:
        """Let `stream` wait for this event."""
        (self._machine.current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Whether it has fired. Works on the thread's current device, as torch's does."""
        if self.clock is None:
            return True
        self._use("cudaEventQuery")
        return bool(self._machine.timeline.has_ended(self.clock, self.time))

    def synchronize(self) -> None:
        """Wait until it has fired. Works on the thread's current device, as torch's does."""
        if self.clock is not None:
            self._use("cudaEventSynchronize")
            self._machine.timeline.reached(self.clock, self.time)

    def _use(self, what: str) -> None:
        if self.graph is not None:
            self.graph.broken = what
            raise cuda_error(CAPTURED_EVENT)
        self._machine.unsafe(what, self._machine.timeline.thread.device)

    def elapsed_time(self, end: FakeEvent) -> float:
        """Virtual milliseconds between two events."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return (end.time - self.time) * 1e3


class FakeGraph:
    """In the place of `torch.cuda.CUDAGraph`. What is captured is carried out at once.

    Attributes:
        mode: the capture's error mode.
        thread: the thread that captures.
        broken: why the capture is invalid, or None.
    """

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self.mode, self.thread = GLOBAL, 0
        self.broken: str | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin to capture the current stream."""
        stream = self._machine.current_stream()
        if stream.cuda_stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.mode, self.thread = MODES[capture_error_mode], threading.get_ident()
        self.broken, stream.graph = None, self
        self._machine.timeline.graphs.append(self)

    def capture_end(self) -> None:
        """End the capture; a RuntimeError if it is invalid."""
        for stream in self._machine.all_streams():
            if stream.graph is self:
                stream.graph = None
        self._machine.timeline.graphs.remove(self)
        if self.broken is not None:
            raise cuda_error(INVALIDATED, self.broken)

    def pool(self) -> tuple[int, int]:
        """The id of its memory, of which the fake has none apart."""
        return 0, 1

    def replay(self) -> None:
        """Do nothing."""
