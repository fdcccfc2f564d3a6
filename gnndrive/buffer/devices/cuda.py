"""The CUDA device: the feature buffer in GPU memory (GNNDrive §4.2).

Found as "cuda" by `device="cuda"`. Streams and events are torch's. This file is imported when the
device is named, and CuPy when it is made, so a machine without a GPU needs neither. Rows are moved
in one of two ways: with CuPy one kernel reads pinned staging and writes slots ("zero-copy");
without CuPy, or if asked for, torch copies the stretch of staging that has landed and scatters it
on the device ("staged"). Use `host` if the CPU trains.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices._capture import CaptureMode
from gnndrive.buffer.devices._events import Waiter
from gnndrive.buffer.devices._kernels import MoveKernel, find_cupy
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices._pinned import PinnedMemory
from gnndrive.buffer.devices._staged import Driver, Staged, portion_rows
from gnndrive.buffer.devices.base import DeviceContext
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int32Array

MARGIN = 0.05  # share of the memory that the allocator cannot use, or that other libraries take
_cuda: Any = torch.cuda  # much of it has no types
Event: TypeAlias = tuple[torch.cuda.Stream, Any]
"""A stream, and torch's event on it."""


class TorchDriver(Driver):
    """Streams of one GPU: side, compute, copies, and one for gathers if that is switched on. The
    compute stream is the current one of the thread that makes this object, which is the user's
    thread.

    Every call names the GPU, because a thread begins with GPU 0, and makes the thread's capture
    mode relaxed meanwhile (`_capture.py`).

    Args:
        device: which GPU.
        way: one of `WAYS`; None: zero-copy where CuPy can do it.
        options: how rows are moved.

    Raises:
        ConfigError: there is no such GPU, or the requested way does not work here.
    """

    def __init__(
        self, device: torch.device, way: str | None = None, options: MoveOptions | None = None
    ) -> None:
        self.device = Cuda.check(device)
        options = MoveOptions() if options is None else options
        cupy = find_cupy(way)
        self._capture = CaptureMode()
        self._allocated = False
        with self._on():
            self._compute = torch.cuda.current_stream()
            self._side = _cuda.Stream()
            self._copies = _cuda.Stream()  # or labels would wait for the next batches' rows
            self._gathers = _cuda.Stream() if options.gather_stream else self._compute
            self._pinned = PinnedMemory(self.device, self._side, self._capture, options.huge_pages)
            self._kernel = None if cupy is None else MoveKernel(cupy, self.device, options)
            if self._kernel is not None:
                self._try_kernel(way)
        self.way = "staged" if self._kernel is None else "zero-copy"
        # One for each stream: gathers wait for the user's own work, and scatters must not.
        streams = {self._side, self._gathers}
        self._waiters = {stream: Waiter(self.device, self._capture) for stream in streams}

    @contextlib.contextmanager
    def _on(self, stream: torch.cuda.Stream | None = None) -> Iterator[None]:
        """Work on this GPU, on `stream` if one is given."""
        with self._capture.relaxed(), torch.cuda.device(self.device), _cuda.stream(stream):
            yield

    def _try_kernel(self, way: str | None) -> None:
        """Move one row out of pinned memory, because CuPy may be installed without a compiler."""
        problem: object = "it moved wrong bytes"
        taken: list[npt.NDArray[np.uint8]] = []
        try:
            for nbytes in (16, 8):
                taken.append(self.pinned(nbytes))
            row, moves = taken[0], taken[1].view(np.int32)
            row[:], moves[:] = np.arange(16), 0
            into = self.allocate(16).view(1, 16)
            self.scatter(into, row.reshape(1, 16), moves.reshape(2, 1))[1].synchronize()
            if np.array_equal(into[0].cpu().numpy(), row):
                return
        except Exception as error:  # a compiler or a driver may raise anything
            problem = error
        finally:
            for memory in taken:
                self.unpin(memory)
        if way is not None:
            raise ConfigError(
                f"way={way!r}: CuPy's kernel does not work here ({problem}): install the cupy "
                "package of your CUDA version, with its compiler"
            )
        warnings.warn(
            f"CuPy's kernel does not work here ({problem}), so torch copies and scatters rows: "
            "install the cupy package of your CUDA version, with its compiler",
            stacklevel=2,
        )
        self._kernel = None

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """See `Driver.pinned`."""
        return self._pinned.take(nbytes)

    def unpin(self, memory: npt.NDArray[np.uint8]) -> None:
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
                torch.cuda.empty_cache()  # not every allocator of torch's does it by itself
                try:
                    memory = self._empty(nbytes)
                except torch.cuda.OutOfMemoryError as error:
                    free, total = torch.cuda.mem_get_info(self.device)
                    raise MemoryError(
                        f"{nbytes:,} bytes asked for, {free:,} of {total:,} are free"
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
                torch.cuda.empty_cache()
            self._allocated = False

    def scatter(
        self, into: torch.Tensor, staging: npt.NDArray[np.uint8], moves: Int32Array
    ) -> Event:
        """See `Driver.scatter`."""
        places, slots = torch.from_numpy(moves[0]), torch.from_numpy(moves[1])
        with self._on(self._side):
            if self._kernel is not None:
                source = torch.from_numpy(staging)
                self._kernel.move(self._side, into, slots, source, places, len(places))
            else:
                low, high = int(moves[0].min()), int(moves[0].max()) + 1
                copied = torch.from_numpy(staging[low:high]).to(self.device, non_blocking=True)
                index = (places.to(self.device, non_blocking=True) - low).long()
                rows = _wide(copied).index_select(0, index)
                _wide(into).index_copy_(0, slots.to(self.device, non_blocking=True).long(), rows)
            return self._record(self._side)

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
            if self._kernel is not None:
                out = self._empty(len(alias), rows.shape[1])
                self._kernel.move(self._gathers, out, None, rows, there, len(alias))
            else:
                out = _wide(rows).index_select(0, there).view(torch.uint8)
            gathered = self._record(self._gathers)
            if self._gathers != self._compute:
                self._compute.wait_event(gathered[1])
                out.record_stream(self._compute)
            return out, gathered

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

    def _record(self, stream: torch.cuda.Stream) -> Event:
        event = _cuda.Event(blocking=True)
        event.record(stream)
        return stream, event


def _wide(rows: torch.Tensor) -> torch.Tensor:
    """View uint8 rows as rows of the widest integers that fit."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if rows.shape[1] % dtype.itemsize == 0:
            return rows.view(dtype)
    return rows


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
        if importlib.util.find_spec("cupy") is not None:
            return 0
        return portion_rows(cls.portion_bytes, row_bytes, rows) * (2 * row_bytes + 32)

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
