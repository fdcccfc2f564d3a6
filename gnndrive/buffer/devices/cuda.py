"""The CUDA device: the feature buffer in GPU memory (GNNDrive §4.2).

Found as "cuda" by `device="cuda"`. Streams and events are torch's. This file is imported when the
device is named, and CuPy when it is made, so a machine without a GPU needs neither. Rows are moved
in one of two ways: with CuPy one kernel reads pinned staging and writes slots ("zero-copy");
without CuPy, or if asked for, torch copies the stretch of staging that has landed and scatters it
on the device ("staged"). Use `host` if the CPU trains.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices._events import Waiter
from gnndrive.buffer.devices._kernels import MoveKernel, find_cupy
from gnndrive.buffer.devices._staged import Driver, Staged
from gnndrive.buffer.devices.base import DeviceContext
from gnndrive.common.array_pool import keep_from_children, private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.records import Int32Array

MARGIN = 0.05  # share of the memory that the allocator cannot use, or that other libraries take
_cuda: Any = torch.cuda  # much of it has no types
Event: TypeAlias = tuple[torch.cuda.Stream, Any]
"""A stream, and torch's event on it."""
_HOST_REGISTER_PORTABLE_MAPPED = 3


class TorchDriver(Driver):
    """Three streams of one GPU: side, compute and copies. The compute stream is the current one of
    the thread that makes this object, which is the user's thread.

    Args:
        device: which GPU.
        way: one of `WAYS`; None: zero-copy where CuPy can do it.

    Raises:
        ConfigError: there is no such GPU, or the requested way does not work here.
    """

    def __init__(self, device: torch.device, way: str | None = None) -> None:
        Cuda.check(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        cupy = find_cupy(way)
        self._registered: dict[int, npt.NDArray[np.uint8]] = {}
        with torch.cuda.device(self.device):
            self._compute = torch.cuda.current_stream()
            self._side = _cuda.Stream()
            self._copies = _cuda.Stream()  # or labels would wait for the next batches' rows
        self._kernel = None if cupy is None else MoveKernel(cupy, self.device)
        if self._kernel is not None:
            self._try_kernel(way)
        self.way = "staged" if self._kernel is None else "zero-copy"
        # One for each stream: gathers wait for the user's own work, and scatters must not.
        streams = {self._side, self._compute}
        self._waiters = {stream: Waiter(self.device) for stream in streams}

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
        """See `Driver.pinned`: a private mapping, because O_DIRECT needs aligned memory."""
        mapping = private_map(nbytes)
        keep_from_children(mapping)
        memory = np.frombuffer(mapping, np.uint8)
        address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
        with torch.cuda.device(self.device):
            cudart = _cuda.cudart()
            code = cudart.cudaHostRegister(address, memory.nbytes, _HOST_REGISTER_PORTABLE_MAPPED)
            if int(code):
                _forget_error(self.device)
                what = cudart.cudaGetErrorString(code)
                raise MemoryError(f"cudaHostRegister of {nbytes:,} bytes: {what}")
        self._registered[address] = memory
        return memory[:nbytes]

    def unpin(self, memory: npt.NDArray[np.uint8]) -> None:
        """See `Driver.unpin`."""
        self._side.synchronize()
        self._unregister(int(ffi.cast("uintptr_t", ffi.from_buffer(memory))))

    def _unregister(self, address: int) -> None:
        if self._registered.pop(address, None) is not None:
            with torch.cuda.device(self.device):
                _cuda.cudart().cudaHostUnregister(address)  # an error would have no remedy

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See `Driver.allocate`."""
        # From the side stream's memory, because that stream writes it first: a block that the
        # user's own work has freed on the host may still be in use on the device.
        try:
            with torch.cuda.stream(self._side):
                return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.device)
            raise MemoryError(
                f"{nbytes:,} bytes asked for, {free:,} of {total:,} are free"
            ) from error

    def scatter(
        self, into: torch.Tensor, staging: npt.NDArray[np.uint8], moves: Int32Array
    ) -> Event:
        """See `Driver.scatter`."""
        places, slots = torch.from_numpy(moves[0]), torch.from_numpy(moves[1])
        with torch.cuda.device(self.device), torch.cuda.stream(self._side):
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
        """See `Driver.gather`."""
        index = torch.from_numpy(alias).pin_memory()
        with torch.cuda.device(self.device), torch.cuda.stream(self._compute):
            there = index.to(self.device, non_blocking=True)
            if self._kernel is not None:
                shape = len(alias), rows.shape[1]
                out = torch.empty(shape, dtype=torch.uint8, device=self.device)
                self._kernel.move(self._compute, out, None, rows, there, len(alias))
            else:
                out = _wide(rows).index_select(0, there).view(torch.uint8)
            return out, self._record(self._compute)

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Driver.copy`."""
        pinned = [tensor.pin_memory() for tensor in tensors]
        with torch.cuda.device(self.device), torch.cuda.stream(self._copies):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in pinned]
            self._compute.wait_event(self._record(self._copies)[1])
        for tensor in copies:
            tensor.record_stream(self._compute)
        return copies

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """See `Driver.computing`."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._compute):
            yield

    async def wait(self, event: Event) -> None:
        """See `Driver.wait`."""
        stream, fired = event
        await self._waiters[stream].wait(fired)

    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Driver.hand_over`."""
        current = torch.cuda.current_stream(self.device)
        if current == self._compute:
            return
        current.wait_stream(self._compute)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(current)

    def synchronize(self) -> None:
        """See `Driver.synchronize`."""
        for stream in (self._side, self._copies, self._compute):
            stream.synchronize()

    def close(self) -> None:
        """See `Driver.close`."""
        try:
            super().close()
        finally:
            for waiter in self._waiters.values():
                waiter.close()
            for address in list(self._registered):
                self._unregister(address)

    def _record(self, stream: torch.cuda.Stream) -> Event:
        event = _cuda.Event(blocking=True)
        event.record(stream)
        return stream, event


def _forget_error(device: torch.device) -> None:
    """Clear CUDA's error of a call that has failed: the thread's next launch would raise it, so
    launch a kernel and ignore its error."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)


def _wide(rows: torch.Tensor) -> torch.Tensor:
    """View uint8 rows as rows of the widest integers that fit."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if rows.shape[1] % dtype.itemsize == 0:
            return rows.view(dtype)
    return rows


class Cuda(Staged):
    """One GPU.

    Args:
        where: which GPU; None: the current one.
        way: see `TorchDriver`.
    """

    name = "cuda"
    driver: TorchDriver

    def __init__(self, where: torch.device | None = None, way: str | None = None) -> None:
        self.driver = TorchDriver(where or torch.device("cuda"), way)

    @classmethod
    def make(cls, context: DeviceContext) -> Cuda:
        """See `Device.make`."""
        return cls(context.where)

    @classmethod
    def check(cls, where: torch.device | None) -> None:
        """See `Device.check`."""
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device={str(where)!r}: this torch ({torch.__version__}) sees no GPU; use 'cpu', "
                "or a torch with CUDA on a machine with a driver"
            )
        count = torch.cuda.device_count()
        if where is not None and where.index is not None and where.index >= count:
            raise ConfigError(
                f"device={str(where)!r}: there are {count} GPUs; use 'cuda:0' to 'cuda:{count - 1}'"
            )

    @classmethod
    def free_bytes(cls, where: torch.device | None) -> int | None:
        """See `Device.free_bytes`; memory that torch keeps for later tensors counts as free."""
        free, _ = torch.cuda.mem_get_info(where)
        kept = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        return int(free) + int(kept)

    def watch(self) -> Callable[[], int]:
        """See `Device.watch`; resets torch's peak memory counter."""
        torch.cuda.reset_peak_memory_stats(self.driver.device)
        return self._spare_bytes

    def _spare_bytes(self) -> int:
        """The bytes that are free now, less what training takes beyond now at its peak."""
        where = self.driver.device
        now, peak = torch.cuda.memory_allocated(where), torch.cuda.max_memory_allocated(where)
        _, total = torch.cuda.mem_get_info(where)
        free = self.free_bytes(where) or 0
        return max(free - (int(peak) - int(now)) - int(MARGIN * total), 0)
