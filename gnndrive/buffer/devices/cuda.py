"""The CUDA device: the feature buffer in GPU memory (GNNDrive §4.2).

Found as "cuda" by `device="cuda"`. Streams and events are torch's. This file is imported when the
device is named, and CuPy when it is made, so a machine without a GPU needs neither. Rows are moved
in one of three ways, which `_movers.py` has: with CuPy one kernel reads pinned staging and writes
slots ("zero-copy"); without CuPy torch copies the stretch of staging that has landed and scatters
it on the device ("staged"). Use `host` if the CPU trains.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
import torch.multiprocessing.reductions

from gnndrive.buffer.devices._host_slots import HostSlots
from gnndrive.buffer.devices._movers import (
    COPY_OUT_BYTES,
    TorchMover,
    allocating,
    choose_mover,
)
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices._staged import PINNED_ROUNDING, Driver, Staged, portion_rows
from gnndrive.buffer.devices.base import Device, DeviceContext
from gnndrive.common.array_pool import mapped_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.forks import ProcessGuard
from gnndrive.common.io.direct_file import Bytes, whole_pages
from gnndrive.common.limits import named_limit
from gnndrive.common.memory import format_size
from gnndrive.common.records import Int32Array

MARGIN = 0.05  # share of the memory that the allocator cannot use, or that other libraries take
PROBE_BYTES = 64
NO_COUNTER = b"/gnndrive_no_counter"  # torch ignores that no shared memory has the name
DEVICE = 6  # which of `rebuild_cuda_tensor`'s arguments says the GPU
_cuda: Any = torch.cuda  # much of it has no types
_reductions: Any = torch.multiprocessing.reductions
_PORTABLE_MAPPED = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_DRIVER = "libcuda.so.1"
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
PIECE_BYTES = 256 << 20  # of memory that a thread registers


class CaptureMode:
    """Keeps a user's `torch.cuda.graph` working while a loader works in other threads.

    In its default mode "global" a capture forbids unsafe calls in every thread of the process: a
    query of an event, an allocation, the registering of host memory. One such call fails, and the
    capture with it. A thread whose own mode is relaxed may make them. `TorchDriver` makes each of
    its calls in that mode, and gives the thread its own mode back, because the thread may be the
    user's.

    It cannot help a capture of a stream that the loader works on: take a batch before the capture,
    copy it into the graph's own tensors, and make the loader while another stream is current.

    Torch and CuPy have no function for it, so the driver's own library is called; where there is
    none (ROCm), nothing happens.
    """

    def __init__(self) -> None:
        self._exchange: Any = None
        with contextlib.suppress(OSError, AttributeError):
            # PyDLL keeps the GIL: the call takes nanoseconds, and getting it back may take 5 ms.
            self._exchange = ctypes.PyDLL(_DRIVER).cuThreadExchangeStreamCaptureMode

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """A context in which the thread may make any call during captures of other threads."""
        mode = ctypes.c_int(_RELAXED)
        exchanged = self._exchange is not None and self._exchange(ctypes.byref(mode)) == 0
        try:
            yield
        finally:
            if exchanged:
                self._exchange(ctypes.byref(mode))


class LandedEvent:
    """An event of torch after which a `Waiter`'s thread has work to do, `finish`, once: it has
    fired when that is done."""

    def __init__(self, event: Any, finish: Callable[[], object]) -> None:
        self._event, self._finish = event, finish
        self._done = False

    def query(self) -> bool:
        """Whether the work is done."""
        return self._done

    def synchronize(self) -> None:
        """In the waiter's thread: wait for the event, and do the work unless it is done."""
        self._event.synchronize()
        if not self._done:
            self._finish()
            self._done, self._finish = True, int


class Waiter:
    """A thread that waits for one stream's events, in their order, without the GIL.

    The GPU is made current before every call of CUDA, because a thread begins with GPU 0, and a
    call could create a context there, which takes some hundred megabytes.
    """

    def __init__(self, device: torch.device, capture: CaptureMode) -> None:
        self._device, self._capture = device, capture
        self._events: SimpleQueue[tuple[Any, Callable[[BaseException | None], None]] | None]
        self._events = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gnndrive-events", daemon=True)
        with named_limit():
            self._thread.start()

    async def wait(self, event: Any) -> None:
        """Return once the torch event has fired; raises CUDA's error, or that of the work of a
        `LandedEvent`."""
        with self._capture.relaxed(), torch.cuda.device(self._device):
            if event.query():
                return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def report(error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, waiter, error)

        self._events.put((event, report))
        await waiter

    def _run(self) -> None:
        with self._capture.relaxed(), torch.cuda.device(self._device):
            while (item := self._events.get()) is not None:
                event, report = item
                try:
                    event.synchronize()
                except BaseException as error:  # of CUDA, or of the work on the host
                    report(error)
                else:
                    report(None)
                del item, event, report

    def close(self) -> None:
        """Wait for all events given to `wait`, and end the thread."""
        self._events.put(None)
        self._thread.join()


def _settle(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class PinnedMemory:
    """Host memory that a GPU reads: mapped by gnndrive, because O_DIRECT needs aligned memory, and
    registered with CUDA. A mapping is unmapped only after it was unregistered, also when this
    object is collected without `close`.

    Args:
        stream: the stream whose work uses it.
    """

    def __init__(
        self, device: torch.device, stream: torch.cuda.Stream, capture: CaptureMode
    ) -> None:
        self._device, self._capture = device, capture
        self._registered: dict[int, Bytes] = {}
        self._pinning: dict[int, Pinning] = {}
        guard = ProcessGuard()
        self.close = weakref.finalize(
            self, _unregister_all, self._registered, device, stream, capture, guard
        )

    def take(self, nbytes: int) -> Bytes:
        """Registered memory, uint8 [nbytes], aligned to a page; a MemoryError if there is not that
        much, or if CUDA refuses to register it."""
        memory = mapped_bytes(nbytes)
        try:
            self._register(memory)
        except MemoryError:
            del memory  # or the error's traceback would keep it
            raise
        return memory[:nbytes]

    def take_later(self, nbytes: int, piece_bytes: int) -> tuple[Bytes, Callable[[int], object]]:
        """See `Driver.pinned_later`; pieces have so many bytes, a multiple of a page."""
        memory = mapped_bytes(nbytes)
        pinning = Pinning(memory, piece_bytes, self._register)
        self._pinning[memory.ctypes.data] = pinning
        return memory[:nbytes], pinning.wait

    def _register(self, memory: Bytes) -> None:
        address, nbytes = memory.ctypes.data, memory.nbytes
        with self._capture.relaxed(), torch.cuda.device(self._device):
            cudart = _cuda.cudart()
            code = cudart.cudaHostRegister(address, nbytes, _PORTABLE_MAPPED)
            if int(code):
                _forget_error(self._device)
                del memory
                what = cudart.cudaGetErrorString(code)
                raise MemoryError(f"cudaHostRegister of {nbytes:,} bytes: {what}")
        self._registered[address] = memory

    def give(self, memory: Bytes) -> None:
        """Unregister memory of `take` or `take_later`, which no stream uses any more."""
        begin = memory.ctypes.data
        if pinning := self._pinning.pop(begin, None):
            pinning.close()
        for address in list(self._registered):
            if begin <= address < begin + max(memory.nbytes, 1):
                _unregister(self._registered, address, self._device, self._capture)


class Pinning:
    """Registers memory in a thread, piece after piece: a use of a part waits for that part alone.

    The kernel clears every page first, which takes seconds a gigabyte in some guests. The thread
    has it done before it calls CUDA, which may hold locks meanwhile that other threads' work needs.
    What the memory holds stays as it is, because the disk may write it already.
    """

    def __init__(
        self, memory: Bytes, piece_bytes: int, register: Callable[[Bytes], object]
    ) -> None:
        self._memory, self._piece_bytes, self._register = memory, piece_bytes, register
        self._ready, self._error, self._stopped = 0, "", False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="gnndrive-pinning", daemon=True)
        with named_limit():
            self._thread.start()

    def _run(self) -> None:
        populate, error = ctypes.CDLL(None).madvise, ""
        for begin in range(0, len(self._memory), self._piece_bytes):
            piece = self._memory[begin : begin + self._piece_bytes]
            populate(  # before Linux 5.14 CUDA has it done
                ctypes.c_void_p(piece.ctypes.data), ctypes.c_size_t(len(piece)), _POPULATE_WRITE
            )  # fmt: skip
            try:
                self._register(piece)
            except Exception as failed:
                error = str(failed)
            with self._changed:
                self._ready, self._error = begin + len(piece), error
                self._changed.notify_all()
                if error or self._stopped:
                    return

    def wait(self, nbytes: int) -> None:
        """Wait until the first so many bytes are registered; a MemoryError if that failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._ready >= nbytes)
            if self._error:
                raise MemoryError(self._error)

    def close(self) -> None:
        """End the thread, after the piece that it registers."""
        with self._changed:
            self._stopped = True
        self._thread.join()


def _unregister(
    registered: dict[int, Bytes], address: int, device: torch.device, capture: CaptureMode
) -> None:
    """Unregister one piece of memory, and only then let go of its mapping."""
    if address not in registered:
        return
    with capture.relaxed(), torch.cuda.device(device):
        if int(_cuda.cudart().cudaHostUnregister(address)):  # it would have no remedy
            _forget_error(device)
    del registered[address]


def _unregister_all(
    registered: dict[int, Bytes], device: torch.device, stream: torch.cuda.Stream,
    capture: CaptureMode, guard: ProcessGuard,
) -> None:  # fmt: skip
    """Unregister everything after the stream's work. Does nothing in a forked child, where CUDA
    does not work."""
    if guard.forked or not registered:
        return
    with contextlib.suppress(RuntimeError), capture.relaxed():
        stream.synchronize()
    for address in list(registered):
        _unregister(registered, address, device, capture)


def _forget_error(device: torch.device) -> None:
    """Clear CUDA's error of a call that has failed: the thread's next launch would raise it, so
    launch a kernel and ignore its error."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)


Event: TypeAlias = tuple[torch.cuda.Stream, Any]
"""A stream, and torch's event on it."""


class TorchDriver(Driver):
    """Streams of one GPU: side, compute, copies, and one for gathers if that is switched on. The
    compute stream is the current one of the thread that makes this object, which is the user's
    thread.

    Every call names the GPU, because a thread begins with GPU 0, and makes the thread's capture
    mode relaxed meanwhile (`CaptureMode`).

    Args:
        way: one of `WAYS`; None: zero-copy where CuPy can do it.

    Raises:
        ConfigError: there is no such GPU, or the requested way does not work here.
    """

    def __init__(
        self, device: torch.device, way: str | None = None, options: MoveOptions | None = None
    ) -> None:
        self.device = Cuda.check(device)
        options = MoveOptions() if options is None else options
        self._capture = CaptureMode()
        self._allocated = False
        self._probe: torch.Tensor | None = None  # once slots are exported
        with self._on():
            self._compute = torch.cuda.current_stream()
            self._side = _new_stream()
            self._copies = _new_stream()  # or labels would wait for the next batches' rows
            self._gathers = _new_stream() if options.gather_stream else self._compute
            self._pinned = PinnedMemory(self.device, self._side, self._capture)
        with self._on(self._side):
            self._mover = choose_mover(self, self._side, self.device, way, options)
        self.way = self._mover.way
        if self.way == TorchMover.way:
            self.copy_out_bytes_max, self.reads_pinned = COPY_OUT_BYTES, False
        # One for each stream: gathers wait for the user's own work, and scatters must not.
        streams = {self._side, self._gathers}
        self._waiters = {stream: Waiter(self.device, self._capture) for stream in streams}

    @contextlib.contextmanager
    def _on(self, stream: torch.cuda.Stream | None = None) -> Iterator[None]:
        """Work on this GPU, on `stream` if one is given."""
        with self._capture.relaxed(), torch.cuda.device(self.device), _cuda.stream(stream):
            yield

    def pinned(self, nbytes: int) -> Bytes:
        """See `Driver.pinned`."""
        return self._pinned.take(nbytes)

    def pinned_later(self, nbytes: int) -> tuple[Bytes, Callable[[int], object]]:
        """See `Driver.pinned_later`."""
        # Two pieces need not lie behind each other where the GPU has addresses of its own for them.
        piece_bytes = PIECE_BYTES if self._mover.same_address else whole_pages(max(nbytes, 1))
        return self._pinned.take_later(nbytes, piece_bytes)

    def unpin(self, memory: Bytes) -> None:
        """See `Driver.unpin`."""
        with self._on():
            self._side.synchronize()
            self._pinned.give(memory)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See `Driver.allocate`."""
        # From the side stream's memory, because that stream writes it first: a block that the
        # user's own work has freed on the host may still be in use on the device.
        with self._on(self._side):
            try:
                memory = self._empty(nbytes)
            except torch.cuda.OutOfMemoryError:
                self._empty_cache()  # not every allocator of torch's does it by itself
                try:
                    memory = self._empty(nbytes)
                except torch.cuda.OutOfMemoryError as error:
                    free, total = torch.cuda.mem_get_info(self.device)
                    raise MemoryError(
                        f"{format_size(nbytes)} asked for, {format_size(free)} of "
                        f"{format_size(total)} are free"
                    ) from error
        self._allocated = True
        return memory

    def _empty(self, *shape: int) -> torch.Tensor:
        """Memory of the current stream, uint8."""
        return torch.empty(shape, dtype=torch.uint8, device=self.device)

    def give_back(self) -> None:
        """See `Driver.give_back`."""
        if self._allocated:
            with self._on():
                self._empty_cache()
            self._allocated = False

    def _empty_cache(self) -> None:
        """Give back what torch has cached; during a capture it stays, and older torches raise."""
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()

    def scatter(self, into: torch.Tensor, staging: Bytes, moves: Int32Array) -> Event:
        """See `Driver.scatter`."""
        with self._on(self._side):
            self._mover.scatter(self._side, into, staging, moves)
            return self._record(self._side)

    def copy_out(self, rows: torch.Tensor, into: Bytes, moves: Int32Array) -> Event:
        """See `Driver.copy_out`."""
        with self._on(self._side):
            places, there = moves[1].copy(), self._there(moves)
            finish = self._mover.copy_out(self._side, rows, into, there, places)
            stream, event = self._record(self._side)
            return stream, event if finish is None else LandedEvent(event, finish)

    def _there(self, moves: Int32Array) -> torch.Tensor:
        """Begin to copy them to the GPU."""
        with allocating():
            pinned = torch.from_numpy(moves).pin_memory()
            there = torch.empty(moves.shape, dtype=pinned.dtype, device=self.device)
        return there.copy_(pinned, non_blocking=True)

    def rows(self, count: int, row_bytes: int) -> torch.Tensor:
        """See `Driver.rows`; of the side stream's memory, which writes it first."""
        made = super().rows(count, row_bytes)
        made.record_stream(self._compute)
        return made

    def pull(self, rows: torch.Tensor, into: torch.Tensor, moves: Int32Array) -> Event:
        """See `Driver.pull`."""
        with self._on(self._side):
            self._mover.pull(self._side, rows, into, self._there(moves))
            return self._record(self._side)

    def put(self, rows: torch.Tensor, into: torch.Tensor, places: Int32Array) -> None:
        """See `Driver.put`. The side stream may still use the memory for what had it before, if
        nothing was pulled into it."""
        with self._on():
            self._compute.wait_event(self._record(self._side)[1])
        super().put(rows, into, places)

    def export(self, memory: Sequence[torch.Tensor]) -> Any:
        """See `Device.export_slots`; torch can do it with memory of cudaMalloc, not of others."""
        with self._on(self._side):
            said = secrets.token_bytes(PROBE_BYTES)
            self._probe = torch.frombuffer(bytearray(said), dtype=torch.uint8).to(self.device)
            exported = []
            for each in (*memory, self._probe):
                *given, counter, offset, event, _ = _reductions.reduce_tensor(each)[1]
                # Torch would keep the memory for each process that dies with it; see `Link`. It
                # keeps it, too, if others count down from 0, so these are given no counter.
                torch.UntypedStorage._release_ipc_counter_cuda(counter, offset)
                exported.append((*given, NO_COUNTER, 0, event, False))
            self._side.synchronize()  # instead of the event, which is this GPU's
        return said, exported

    def open(self, exported: Any) -> list[torch.Tensor]:
        """See `Device.open_slots`. It is opened for this GPU, as NCCL does it, not for the one that
        has it, where a context of this process would take some hundred megabytes."""
        said, memory = exported
        opened: list[torch.Tensor] = []
        try:
            with self._on(self._side):
                for each in memory:
                    given = *each[:DEVICE], self.device.index, *each[DEVICE + 1 :]
                    opened.append(_reductions.rebuild_cuda_tensor(*given))
                if opened[-1].clone().cpu().numpy().tobytes() != said:
                    raise RuntimeError("the GPU reads other bytes than are there")
                opened.pop()
        except BaseException:
            self.shut(opened)
            raise
        return opened

    def shut(self, opened: list[torch.Tensor]) -> None:
        """See `Device.shut_slots`."""
        with self._on(self._side), contextlib.suppress(RuntimeError):  # of work that has failed
            self._side.synchronize()
        with self._on(self._side):  # torch waits for the current stream
            opened.clear()

    def gather(self, rows: torch.Tensor, alias: Int32Array) -> tuple[torch.Tensor, Event]:
        """See `Driver.gather`. The alias is copied on the copies stream, so the stream that gathers
        does not wait for the bus behind training."""
        with self._on(self._copies):
            index = torch.from_numpy(alias).pin_memory()
            there = index.to(self.device, non_blocking=True)
            arrived = self._record(self._copies)[1]
        with self._on(self._gathers):
            self._gathers.wait_event(arrived)
            there.record_stream(self._gathers)
            out = self._mover.gather(self._gathers, rows, there)
            gathered = self._record(self._gathers)
            if self._gathers != self._compute:
                self._compute.wait_event(gathered[1])
                out.record_stream(self._compute)
            return out, gathered

    def empty(self, rows: int, row_bytes: int) -> torch.Tensor:
        """See `Driver.empty`."""
        with self._on(self._copies):
            out = self._empty(rows, row_bytes)
            out.record_stream(self._compute)
        return out

    def fill(self, into: torch.Tensor, piece: Bytes) -> Event:
        """See `Driver.fill`."""
        with self._on(self._copies):
            into.copy_(torch.from_numpy(piece), non_blocking=True)
            copied = self._record(self._copies)
            self._compute.wait_event(copied[1])
        return copied

    def finish(self, event: Event) -> None:
        """See `Driver.finish`."""
        with self._on():
            event[1].synchronize()

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Driver.copy`."""
        with self._on(self._copies):
            pinned = [tensor.pin_memory() for tensor in tensors]
            copies = [tensor.to(self.device, non_blocking=True) for tensor in pinned]
            self._compute.wait_event(self._record(self._copies)[1])
            for tensor in copies:
                tensor.record_stream(self._compute)
        return copies

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """See `Driver.computing`."""
        with self._on(self._compute):
            yield

    async def wait(self, event: Event) -> None:
        """See `Driver.wait`."""
        stream, fired = event
        await self._waiters[stream].wait(fired)

    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Driver.hand_over`.

        Raises:
            ConfigError: the current stream captures a graph, which cannot wait for the loader.
        """
        current = torch.cuda.current_stream(self.device)
        if current == self._compute:
            return
        with self._on(current):
            if torch.cuda.is_current_stream_capturing():
                raise ConfigError(
                    "a batch was asked for while the current stream captures a CUDA graph: take it "
                    "before the capture, and copy it into the graph's own tensors"
                )
            current.wait_stream(self._compute)
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(current)

    def synchronize(self) -> None:
        """See `Driver.synchronize`."""
        with self._on():
            for stream in (self._side, self._copies, self._gathers, self._compute):
                stream.synchronize()

    def close(self) -> None:
        """See `Driver.close`."""
        try:
            super().close()
        finally:
            for waiter in self._waiters.values():
                waiter.close()
            self._pinned.close()
            self.give_back()
            if self._probe is not None:
                self._probe = None
                _cuda.ipc_collect()  # removes torch's file in /dev/shm

    def _record(self, stream: torch.cuda.Stream) -> Event:
        event = _cuda.Event(blocking=True)
        event.record(stream)
        return stream, event


def _has_cupy() -> bool:
    return importlib.util.find_spec("cupy") is not None


def _new_stream() -> torch.cuda.Stream:
    """A stream of the current GPU that is neither the current one nor the one on which
    `torch.cuda.graph` captures: torch deals out 32 streams, over and over."""
    others = torch.cuda.current_stream(), torch.cuda.graph.default_capture_stream
    stream = _cuda.Stream()
    while stream in others:
        stream = _cuda.Stream()
    return stream  # type: ignore[no-any-return]


class Cuda(Staged):
    """One GPU.

    A program may capture CUDA graphs while a loader works (`torch.cuda.graph`, in any error mode),
    with two exceptions, because CUDA has no way around them: a batch cannot be taken within the
    capture, and the stream that was current when the first iteration began cannot be captured.

    Args:
        where: which GPU; None: the current one.
        way: see `TorchDriver`.
        options: how rows are moved; None: those of the class, which the plan counts with.
    """

    name = "cuda"
    pulls = True
    driver: TorchDriver

    def __init__(
        self,
        where: torch.device | None = None,
        way: str | None = None,
        options: MoveOptions | None = None,
    ) -> None:
        if options is not None:
            self.options = options
        self.driver = TorchDriver(where or torch.device("cuda"), way, self.options)

    @classmethod
    def make(cls, context: DeviceContext) -> Cuda:
        """See `Device.make`."""
        return cls(context.where)

    @classmethod
    def check(cls, where: torch.device | None) -> torch.device:
        """See `Device.check`; without a number it is the calling thread's current GPU."""
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device={str(where)!r}: this torch ({torch.__version__}) sees no GPU; use 'cpu', "
                "or a torch with CUDA on a machine with a driver"
            )
        if where is None or where.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        count = torch.cuda.device_count()
        if where.index >= count:
            raise ConfigError(
                f"device={str(where)!r}: there are {count} GPUs; use 'cuda:0' to 'cuda:{count - 1}'"
            )
        return where

    def export_slots(self, slots: Sequence[torch.Tensor]) -> Any:
        """See `Device.export_slots`."""
        return self.driver.export(slots)

    def open_slots(self, exported: Any) -> list[torch.Tensor]:
        """See `Device.open_slots`."""
        return self.driver.open(exported)

    def shut_slots(self, opened: list[torch.Tensor]) -> None:
        """See `Device.shut_slots`."""
        self.driver.shut(opened)

    @classmethod
    def host_slots(cls) -> type[Device]:
        """See `Device.host_slots`."""
        return CudaHostSlots

    @classmethod
    def free_bytes(cls, where: torch.device | None) -> int | None:
        """See `Device.free_bytes`. Memory that torch keeps for later tensors does not count as
        free, because training will take it again."""
        with CaptureMode().relaxed():
            return int(torch.cuda.mem_get_info(where)[0])

    @classmethod
    def scratch_bytes(cls, row_bytes: int, rows: int) -> int:
        """See `Device.scratch_bytes`: without CuPy a stretch of staging is copied to the device,
        and its rows are put in order there."""
        if _has_cupy():
            return 0
        return portion_rows(cls.portion_bytes, row_bytes, rows) * (2 * row_bytes + 32)

    @classmethod
    def copy_out_bytes(cls) -> int:
        """See `Device.copy_out_bytes`: without CuPy rows land in pinned memory of torch's first."""
        return 0 if _has_cupy() else PINNED_ROUNDING * COPY_OUT_BYTES

    @classmethod
    def copy_out_scratch_bytes(cls) -> int:
        """See `Device.copy_out_scratch_bytes`: without CuPy they are gathered first; the same for
        `pull`."""
        return 0 if _has_cupy() else COPY_OUT_BYTES

    def watch(self) -> Callable[[], int]:
        """See `Device.watch`; resets torch's peak memory counter."""
        torch.cuda.reset_peak_memory_stats(self.driver.device)
        return self._spare_bytes

    def _spare_bytes(self) -> int:
        """The bytes that are free or cached, less what training takes beyond now at its peak, which
        is at least what torch has cached: the user may have reset the peak."""
        where = self.driver.device
        now, peak = torch.cuda.memory_allocated(where), torch.cuda.max_memory_allocated(where)
        cached = torch.cuda.memory_reserved(where) - now
        needed = max(peak - now, cached)
        with CaptureMode().relaxed():
            free, total = torch.cuda.mem_get_info(where)
        return max(int(free + cached - needed - MARGIN * total), 0)


class CudaHostSlots(HostSlots, Cuda):
    """One GPU beside slots in host memory; with CuPy it reads them itself, on a stream of its own:
    a gather takes as long as the bus takes for a batch, and training would wait for it."""

    name = "cuda-host-slots"
    pulls = False
    options = MoveOptions(gather_stream=True)

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        """See `Device.pinned_bytes`."""
        return 0 if _has_cupy() else super().pinned_bytes(row_bytes, rows)
