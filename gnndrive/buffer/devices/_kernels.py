"""The kernel that moves rows, compiled and launched by CuPy; without CuPy there is none.

The ways of `_movers.py` that need CuPy use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError

WAYS = ("zero-copy", "copy+kernel", "staged")
NAME = "move_rows"
UNITS = {16: "uint4", 8: "uint2", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}
LOADS = 4
"""Rows of which each lane of a warp reads one unit before it writes the first. On an H100 a gather
of rows of 512 bytes is 1.1 times as fast with four as with one, and of 3,072 bytes 0.5 % slower.
Without __restrict__ it would lose another 1 % there, and so would scatters (docs/gpu-results.md).
"""
_THREADS, _WARP, _BLOCKS_MAX = 256, 32, 1 << 16
# One warp moves LOADS rows of `units` units at a time: in a row of 512 bytes each lane has one unit
# of each row, and reads all of them before it writes the first, so that their latencies overlap.
# The last rows, fewer than LOADS, are moved one by one.
_MOVE_ROWS = """
extern "C" __global__ void move_rows(
    UNIT *__restrict__ into, const int *__restrict__ into_row,
    const UNIT *__restrict__ from, const int *__restrict__ from_row,
    const long long rows, const long long units)
{
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (; row + (LOADS - 1) * warps < rows; row += LOADS * warps) {
        const UNIT *source[LOADS];
        UNIT *target[LOADS];
        #pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const long long one = row + k * warps;
            source[k] = from + (from_row ? (long long)from_row[one] : one) * units;
            target[k] = into + (into_row ? (long long)into_row[one] : one) * units;
        }
        for (long long unit = threadIdx.x % 32; unit < units; unit += 32) {
            UNIT held[LOADS];
            #pragma unroll
            for (int k = 0; k < LOADS; k++)
                held[k] = source[k][unit];
            #pragma unroll
            for (int k = 0; k < LOADS; k++)
                target[k][unit] = held[k];
        }
    }
    for (; row < rows; row += warps) {
        const UNIT *source = from + (from_row ? (long long)from_row[row] : row) * units;
        UNIT *target = into + (into_row ? (long long)into_row[row] : row) * units;
        for (long long unit = threadIdx.x % 32; unit < units; unit += 32)
            target[unit] = source[unit];
    }
}
"""


class UnreachableHostMemory(RuntimeError):
    """The GPU cannot read registered host memory."""


class MoveKernel:
    """Moves rows between memory that one GPU can read and write; call it with that GPU current.

    Raises:
        UnreachableHostMemory: the GPU cannot read registered host memory.
    """

    def __init__(self, cupy: Any, device: torch.device, blocks: int = 0) -> None:
        self._cupy, self._device, self._blocks = cupy, device, blocks
        self._kernels: dict[int, Any] = {}
        self._streams: dict[torch.cuda.Stream, Any] = {}
        self.same_address = _host_pointers_are_valid(cupy.cuda.runtime, device.index)

    def compile(self, unit: int) -> Any:
        """Compile the kernel for units of so many bytes; compiled once."""
        if unit not in self._kernels:
            kernel = self._cupy.RawKernel(code(unit), NAME)
            kernel.compile()
            self._kernels[unit] = kernel
        return self._kernels[unit]

    def move(
        self,
        stream: torch.cuda.Stream,
        into: torch.Tensor,
        into_row: torch.Tensor | None,
        source: torch.Tensor,
        source_row: torch.Tensor | None,
        rows: int,
        first: int = 0,
    ) -> None:
        """On `stream`: copy row `source_row[i]` of the source to row `into_row[i]` of `into`.

        Args:
            stream: a stream of the GPU.
            into: uint8 [n, row_bytes], on the GPU or in registered host memory. It overlaps
                neither `source` nor the lists, and nothing else writes what the kernel reads while
                it runs: __restrict__ promises that.
            into_row: int32 [rows], on the GPU or in registered host memory; None: row `i`.
            source: uint8 [m, row_bytes], on the GPU or in registered host memory.
            source_row: int32 [rows], as `into_row`.
            first: number of the source's first row: `source` has the rows from there on.
        """
        width = int(into.shape[1])
        if not rows or not width:
            return
        base = self._address(source) - first * width
        unit = unit_of(width, self._address(into), base)
        kernel = self.compile(unit)
        across = not (source.is_cuda and into.is_cuda)
        most = (self._blocks if across else 0) or _BLOCKS_MAX
        warps = -(-rows // LOADS)
        blocks = min(-(-warps * _WARP // _THREADS), most)
        arguments = (
            self._address(into), self._address(into_row),
            base, self._address(source_row), rows, width // unit,
        )  # fmt: skip
        with self._external(stream):
            kernel((blocks,), (_THREADS,), tuple(map(np.int64, arguments)))

    def _external(self, stream: torch.cuda.Stream) -> Any:
        """CuPy's object for a stream of torch, the same for each launch."""
        if stream not in self._streams:
            cuda = self._cupy.cuda
            self._streams[stream] = (
                cuda.Stream.from_external(_Protocol(stream))
                if hasattr(cuda.Stream, "from_external")
                else cuda.ExternalStream(stream.cuda_stream, self._device.index)  # CuPy 13
            )
        return self._streams[stream]

    def _address(self, tensor: torch.Tensor | None) -> int:
        """Where the GPU finds a tensor; 0 for None."""
        if tensor is None:
            return 0
        address = tensor.data_ptr()
        if tensor.is_cuda or self.same_address:
            return address
        there = int(self._cupy.cuda.runtime.pointerGetAttributes(address).devicePointer)
        if not there:
            raise UnreachableHostMemory("host memory has no address on the GPU")
        return there


class _Protocol:
    """A stream of torch, in the form of CUDA's stream protocol, which torch's lacks."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream  # keeps it alive

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self._stream.cuda_stream)


def find_cupy(way: str | None) -> Any:
    """The CuPy module for the ways that need it, or None for the staged way."""
    if way not in (None, *WAYS):
        raise ConfigError(f"way={way!r}: choose one of {', '.join(WAYS)}")
    if way == "staged":
        return None
    try:
        import cupy
    except ImportError:
        if way is None:
            return None
        raise ConfigError(
            f"way={way!r} needs CuPy: install the cupy package of your CUDA version"
        ) from None
    return cupy


def code(unit: int) -> str:
    """The kernel's source for units of `unit` bytes."""
    defines = {"UNIT": UNITS[unit], "LOADS": LOADS}
    return "".join(f"#define {name} {value}\n" for name, value in defines.items()) + _MOVE_ROWS


def unit_of(width: int, *addresses: int) -> int:
    """Bytes of the widest unit of which the width and all addresses are multiples."""
    return next(unit for unit in UNITS if not any(n % unit for n in (width, *addresses)))


def _host_pointers_are_valid(runtime: Any, device: int) -> bool:
    """Whether kernels find registered host memory at its address on the host.

    Raises:
        UnreachableHostMemory: kernels cannot read it at all.
    """
    for name in ("cudaDevAttrCanMapHostMemory", "cudaDevAttrHostRegisterSupported"):
        if not runtime.deviceGetAttribute(getattr(runtime, name), device):
            raise UnreachableHostMemory(f"the GPU cannot read registered host memory ({name} is 0)")
    same = runtime.cudaDevAttrCanUseHostPointerForRegisteredMem
    return bool(runtime.deviceGetAttribute(same, device))
