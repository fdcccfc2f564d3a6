"""The ways in which rows are moved on a GPU; `choose_mover` finds one that works.

zero-copy    a kernel reads the rows in pinned staging and writes them into their slots
copy+kernel  one copy of the stretch of staging that has landed, and a kernel behind it
staged       one such copy, and torch's own kernels behind it: the only way without CuPy

Rows are gathered, and copied out of slots into pinned memory, by the kernel in the first two ways,
by torch in the third. On an H100 the ways into slots differ by 2 % (docs/gpu-results.md), so the
first is preferred: it needs no memory of the GPU for the stretch, and reads no gaps between rows.
"""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices._kernels import MoveKernel, UnreachableHostMemory, find_cupy
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices._staged import Driver
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.io.direct_file import Bytes
from gnndrive.common.records import Int32Array, Int64Array

SPARSE = 4  # a stretch with so many rows for each that is moved is not copied
COPY_OUT_BYTES = 32 << 20  # of rows on their way out of slots, if torch moves them
_OUT_OF_MEMORY = 2  # of both cudaError_t and CUresult
_TRIAL_ROW_BYTES = 16


class Mover(ABC):
    """Queues moves of rows; call it with the GPU and the stream current.

    Attributes:
        way: one of `WAYS`.
        same_address: whether the GPU finds registered memory at its address on the host.
    """

    way: str
    same_address = True

    @abstractmethod
    def scatter(
        self, stream: torch.cuda.Stream, into: torch.Tensor, staging: Bytes, moves: Int32Array
    ) -> None:
        """See `Driver.scatter`."""

    @abstractmethod
    def copy_out(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, into: Bytes, moves: torch.Tensor,
        places: Int32Array,
    ) -> Callable[[], object] | None:  # fmt: skip
        """See `Driver.copy_out`; returns what the host must do after the stream's work, if
        anything.

        Args:
            moves: int32 [2, n], on the GPU: slots and places.
            places: the same places, int32 [n], on the host.
        """

    @abstractmethod
    def pull(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, into: torch.Tensor, moves: torch.Tensor
    ) -> None:
        """See `Driver.pull`; `moves` is on the GPU."""

    @abstractmethod
    def gather(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        """A new tensor `rows[index]`, uint8 [n, row_bytes]; `index` is int32 [n], on the GPU."""


class TorchMover(Mover):
    """The staged way."""

    way = "staged"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def scatter(
        self, stream: torch.cuda.Stream, into: torch.Tensor, staging: Bytes, moves: Int32Array
    ) -> None:
        """See `Driver.scatter`."""
        low, high, in_order = _stretch(moves[0])
        rows = _wide(_there(staging[low:high], self._device))
        if not in_order:
            rows = rows.index_select(0, (_there(moves[0], self._device) - low).long())
        _wide(into).index_copy_(0, _there(moves[1], self._device).long(), rows)

    def copy_out(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, into: Bytes, moves: torch.Tensor,
        places: Int32Array,
    ) -> Callable[[], object]:  # fmt: skip
        """See `Mover.copy_out`: one copy into other pinned memory, from where the host moves the
        rows to their places, because torch has no kernel that writes pinned memory."""
        wide = _wide(rows)
        shape, every = (len(places), wide.shape[1]), np.arange(len(places))
        with allocating():
            landed = torch.empty(shape, dtype=wide.dtype, pin_memory=True)
            picked = torch.empty(shape, dtype=wide.dtype, device=self._device)
        torch.index_select(wide, 0, moves[0], out=picked)
        landed.copy_(picked, non_blocking=True)
        return partial(_spread, landed, every, into, places)

    def pull(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, into: torch.Tensor, moves: torch.Tensor
    ) -> None:
        """See `Mover.pull`: piece by piece, each through the same memory."""
        at_once = max(COPY_OUT_BYTES // max(rows.shape[1], 1), 1)
        with allocating():
            for slots, places in zip(*(part.split(at_once) for part in moves), strict=True):
                _wide(into).index_copy_(0, places.long(), _wide(rows).index_select(0, slots))

    def gather(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        """See `Mover.gather`."""
        return _wide(rows).index_select(0, index).view(torch.uint8)


class KernelMover(Mover):
    """The zero-copy way."""

    way = "zero-copy"

    def __init__(self, kernel: MoveKernel, device: torch.device) -> None:
        self.kernel, self._device = kernel, device
        self.same_address = kernel.same_address

    def scatter(
        self, stream: torch.cuda.Stream, into: torch.Tensor, staging: Bytes, moves: Int32Array
    ) -> None:
        """See `Driver.scatter`."""
        low, high, in_order = _stretch(moves[0])
        places, slots = torch.from_numpy(moves)
        rows = self._rows(staging[low:high], len(slots))
        if in_order:
            self.kernel.move(stream, into, slots, rows, None, len(slots))
        else:
            self.kernel.move(stream, into, slots, rows, places, len(slots), first=low)

    def copy_out(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, into: Bytes, moves: torch.Tensor,
        places: Int32Array,
    ) -> None:  # fmt: skip
        """See `Mover.copy_out`: the kernel writes pinned memory."""
        self.kernel.move(stream, torch.from_numpy(into), moves[1], rows, moves[0], len(places))

    def pull(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, into: torch.Tensor, moves: torch.Tensor
    ) -> None:
        """See `Mover.pull`: the kernel reads another GPU's memory where it is."""
        self.kernel.move(stream, into, moves[1], rows, moves[0], moves.shape[1])

    def gather(
        self, stream: torch.cuda.Stream, rows: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        """See `Mover.gather`."""
        shape = len(index), rows.shape[1]
        out = torch.empty(shape, dtype=torch.uint8, device=self._device)
        self.kernel.move(stream, out, None, rows, index, len(index))
        return out

    def _rows(self, landed: Bytes, count: int) -> torch.Tensor:
        """The rows, of which `count` are moved, where the kernel reads them."""
        return torch.from_numpy(landed)


class CopyMover(KernelMover):
    """The way "copy+kernel"; see `KernelMover`. Few rows among many are read where they are: those
    that come back from the host level."""

    way = "copy+kernel"

    def _rows(self, landed: Bytes, count: int) -> torch.Tensor:
        if len(landed) > SPARSE * count:
            return super()._rows(landed, count)
        return _there(landed, self._device)


def choose_mover(
    driver: Driver, stream: torch.cuda.Stream, device: torch.device, way: str | None,
    options: MoveOptions,
) -> Mover:  # fmt: skip
    """The requested way, after a trial; call it with the GPU and the side stream current.

    Args:
        driver: allocates what the trial needs.
        way: one of `WAYS`; None: zero-copy, or staged without CuPy or where CuPy does not work.

    Raises:
        ConfigError: the requested way does not work; there is too little memory; or the trial has
            made the GPU unusable for this process.
    """
    cupy = find_cupy(way)
    if cupy is None:
        return TorchMover(device)
    try:
        kernel = MoveKernel(cupy, device, options.blocks)
        kernel.compile(_TRIAL_ROW_BYTES)  # a compiler that does not work is found before a launch
        made = (CopyMover if way == CopyMover.way else KernelMover)(kernel, device)
        _try(driver, stream, made)
        return made
    except Exception as error:  # a compiler or a driver may raise anything
        problem = error
    if not _is_usable(stream):
        raise ConfigError(
            f"CuPy's kernel has failed ({problem}), and CUDA refuses all further work of this "
            "process: start again without CuPy, so that torch moves rows"
        ) from problem
    if _lacks_memory(cupy, problem):
        raise ConfigError(
            f"there is too little memory to try CuPy's kernel ({problem}): free some memory of the "
            "GPU and of the host"
        ) from problem
    remedy = "install the cupy package of your CUDA version, with its compiler"
    if isinstance(problem, UnreachableHostMemory):
        remedy = "use a GPU that can, or the staged way"
    failure = f"CuPy's kernel does not work here ({problem})"
    if way is not None:
        raise ConfigError(f"way={way!r}: {failure}: {remedy}") from problem
    warnings.warn(f"{failure}, so torch copies and scatters rows: {remedy}", stacklevel=2)
    return TorchMover(device)


def _try(driver: Driver, stream: torch.cuda.Stream, mover: Mover) -> None:
    """Move two rows out of pinned memory, because CuPy may be installed without what it needs."""
    taken: list[Bytes] = []
    try:
        taken.append(driver.pinned(2 * _TRIAL_ROW_BYTES))
        taken.append(driver.pinned(4 * np.dtype(np.int32).itemsize))
        rows = taken[0].reshape(2, _TRIAL_ROW_BYTES)
        rows[:] = np.arange(rows.size).reshape(rows.shape)
        moves = taken[1].view(np.int32).reshape(2, 2)
        moves[0], moves[1] = (1, 0), (0, 1)
        into = driver.allocate(rows.size).view(rows.shape)
        mover.scatter(stream, into, rows, moves)
        stream.synchronize()
        if not np.array_equal(into.cpu().numpy(), rows[::-1]):
            raise RuntimeError("it moved wrong bytes")
    finally:
        for memory in taken:
            # After a failed launch CUDA may refuse this too; what failed first is to be reported.
            with contextlib.suppress(RuntimeError):
                driver.unpin(memory)


def _lacks_memory(cupy: Any, error: Exception) -> bool:
    """Whether an error says that the host or the GPU lacks memory, which may pass."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    of_cuda = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    if isinstance(error, of_cuda):
        return bool(error.status == _OUT_OF_MEMORY)
    return getattr(error, "error_code", None) == _OUT_OF_MEMORY  # torch.AcceleratorError


def _is_usable(stream: torch.cuda.Stream) -> bool:
    """Whether CUDA still accepts work of this process: after some errors it never does."""
    try:
        stream.synchronize()
    except RuntimeError:
        return False
    return True


# ---- tensors


def _stretch(places: Int32Array) -> tuple[int, int, bool]:
    """The bounds of what has landed, and whether `places` are all places between them, in order."""
    if not len(places):
        return 0, 0, True
    low, high = int(places.min()), int(places.max()) + 1
    in_order = high - low == len(places) and bool((places[1:] > places[:-1]).all())
    return low, high, in_order


def _there(memory: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Begin to copy pinned memory to the GPU."""
    return torch.from_numpy(memory).to(device, non_blocking=True)


@contextlib.contextmanager
def allocating() -> Iterator[None]:
    """Turn the error of a refused allocation into a MemoryError: that of pinned memory is not
    `torch.cuda.OutOfMemoryError`, but another RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise MemoryError(f"no memory to copy rows out of slots ({error})") from error


def _spread(landed: torch.Tensor, every: Int64Array, into: Bytes, places: Int32Array) -> None:
    """Copy row i of `landed` to row `places[i]` of `into`; `every` has each i. Holds no GIL."""
    row_bytes = into.shape[1]
    lib.gd_spread(
        ffi.cast("uint8_t *", landed.data_ptr()), pointer(every), len(every), row_bytes,
        pointer(places), row_bytes, pointer(into.reshape(-1)),
    )  # fmt: skip


def _wide(rows: torch.Tensor) -> torch.Tensor:
    """View uint8 rows as rows of the widest integers that fit."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if rows.shape[1] % dtype.itemsize == 0:
            return rows.view(dtype)
    return rows
