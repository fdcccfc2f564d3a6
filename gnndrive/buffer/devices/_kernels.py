"""The kernel that moves rows, compiled and launched by CuPy; without CuPy there is none.

`TorchDriver` (cuda.py) uses it in the zero-copy way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError

WAYS = ("zero-copy", "staged")
_UNITS = ((16, "uint4"), (8, "uint2"), (4, "unsigned int"), (2, "unsigned short"))
_THREADS, _WARP, _BLOCKS_MAX = 256, 32, 1 << 16
# One warp for each row of `units` units: in a row of 512 bytes each lane makes one access.
_MOVE_ROWS = """
extern "C" __global__ void move_rows(
    UNIT *into, const int *into_row, const UNIT *from, const int *from_row,
    const long long rows, const long long units)
{
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (; row < rows; row += warps) {
        const UNIT *source = from + (long long)from_row[row] * units;
        UNIT *target = into + (into_row ? (long long)into_row[row] : row) * units;
        for (long long unit = threadIdx.x % 32; unit < units; unit += 32)
            target[unit] = source[unit];
    }
}
"""


class MoveKernel:
    """Moves rows between memory that one GPU can read and write.

    Args:
        cupy: the CuPy module.
        device: which GPU.
    """

    def __init__(self, cupy: Any, device: torch.device) -> None:
        self._cupy, self._device = cupy, device
        self._kernels: dict[str, Any] = {}

    def move(
        self,
        stream: torch.cuda.Stream,
        into: torch.Tensor,
        into_row: torch.Tensor | None,
        source: torch.Tensor,
        source_row: torch.Tensor,
        rows: int,
    ) -> None:
        """On `stream`: copy row `source_row[i]` of `source` to row `into_row[i]` of `into`.

        Args:
            stream: a stream of the GPU.
            into: uint8 [n, row_bytes].
            into_row: int32 [rows]; None: row `i`.
            source: uint8 [m, row_bytes].
            source_row: int32 [rows].
            rows: how many.
        """
        if not rows:
            return
        width = int(into.shape[1])
        unit, name = _unit(width)
        if name not in self._kernels:
            self._kernels[name] = self._cupy.RawKernel(_code(name), "move_rows")
        blocks = min(-(-rows * _WARP // _THREADS), _BLOCKS_MAX)
        arguments = (
            into.data_ptr(), 0 if into_row is None else into_row.data_ptr(),
            source.data_ptr(), source_row.data_ptr(), rows, width // unit,
        )  # fmt: skip
        with self._cupy.cuda.ExternalStream(stream.cuda_stream, self._device.index):
            self._kernels[name]((blocks,), (_THREADS,), tuple(map(np.int64, arguments)))


def find_cupy(way: str | None) -> Any:
    """The CuPy module for the zero-copy way, or None for the staged way."""
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
            "way='zero-copy' needs CuPy: install the cupy package of your CUDA version"
        ) from None
    return cupy


def _code(unit: str) -> str:
    """The kernel's source for rows made of the C type `unit`."""
    return _MOVE_ROWS.replace("UNIT", unit)


def _unit(width: int) -> tuple[int, str]:
    """The widest unit, as (bytes, C type), of which `width` bytes are a multiple."""
    return next(((unit, name) for unit, name in _UNITS if width % unit == 0), (1, "unsigned char"))
