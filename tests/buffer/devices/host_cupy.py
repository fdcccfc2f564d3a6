"""The part of CuPy that the CUDA device uses, with kernels that the host's C compiler builds and
that the host runs, thread by thread; "device" memory is host memory."""

import ctypes
import os
import shlex
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SHIM = """
#define __global__
struct position { unsigned x, y, z; };
static struct position gridDim, blockDim, blockIdx, threadIdx;
typedef struct { unsigned x, y, z, w; } __attribute__((aligned(16))) uint4;
typedef struct { unsigned x, y; } __attribute__((aligned(8))) uint2;
"""
LAUNCH = """
void launch(unsigned blocks, unsigned threads, int backwards, long long into, long long into_row,
    long long from, long long from_row, long long rows, long long units)
{
    const long long count = (long long)blocks * threads;
    gridDim.x = blocks, blockDim.x = threads;
    for (long long one = 0; one < count; one++) {
        const long long thread = backwards ? count - 1 - one : one;
        blockIdx.x = thread / threads, threadIdx.x = thread % threads;
        move_rows((UNIT *)into, (const int *)into_row, (const UNIT *)from, (const int *)from_row,
            rows, units);
    }
}
"""


@cache
def built(code: str, folder: Path) -> Any:
    """The function `launch` of a kernel's source, compiled in `folder`."""
    assert code.count('extern "C"') == 1
    place = folder / f"kernel-{len(list(folder.iterdir()))}.c"
    place.write_text(SHIM + code.replace('extern "C"', "static") + LAUNCH, encoding="utf-8")
    library = place.with_suffix(".so")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    subprocess.run([*compiler, *flags, "-shared", "-fPIC", place, "-o", library], check=True)
    launch = ctypes.CDLL(str(library)).launch
    launch.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_int, *[ctypes.c_longlong] * 6]
    launch.restype = None
    return launch


class CudaError(RuntimeError):
    """An error of CUDA with a status, as CuPy raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA status {status}")
        self.status = status


class DriverError(CudaError):
    """The same, of the driver."""


@dataclass(frozen=True)
class TorchStream:
    """The part of a stream of torch that a launch uses."""

    cuda_stream: int = 5

    def synchronize(self) -> None:
        """Return at once: all work is done in the call that begins it."""


CURRENT: list[int] = []


@dataclass
class Stream:
    """A stream of CuPy's; a context in which it is the current one."""

    pointer: int

    def __enter__(self) -> None:
        CURRENT.append(self.pointer)

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()


def from_external(given: Any) -> Stream:
    """See `cupy.cuda.Stream.from_external`, which CuPy 13 lacks."""
    version, pointer = given.__cuda_stream__()
    assert (version, type(pointer)) == (0, int)
    return Stream(pointer)


def external_stream(version: int, pointer: int, device: int = -1) -> Stream:
    """See `cupy.cuda.ExternalStream`, which warns from CuPy 14 on."""
    if version >= 14:
        warnings.warn("ExternalStream is deprecated", DeprecationWarning, stacklevel=2)
    return Stream(pointer)


class HostCupy:
    """The module in version 13 or 14; builds kernels in `folder`.

    Attributes:
        attributes: what CUDA says of the device.
        made: how often a stream was wrapped.
        launches: each launch's stream, blocks and arguments.
        backwards: run the threads in the opposite order.
        translate: from a host address to the device's.
        fail: called before each launch.
    """

    def __init__(self, folder: Path, version: int = 14) -> None:
        self.folder, self.made, self.backwards = folder, 0, False
        self.launches: list[SimpleNamespace] = []
        self.attributes = {19: 1, 91: 1, 99: 1}
        self.translate: Callable[[int], int] = lambda address: address
        self.fail: Callable[[], None] = lambda: None
        runtime = SimpleNamespace(
            cudaDevAttrCanMapHostMemory=19,
            cudaDevAttrCanUseHostPointerForRegisteredMem=91,
            cudaDevAttrHostRegisterSupported=99,
            deviceGetAttribute=lambda name, device: self.attributes[name],
            pointerGetAttributes=lambda address: SimpleNamespace(
                devicePointer=self.translate(address)
            ),
            CUDARuntimeError=CudaError,
        )
        external = {"from_external": staticmethod(self._counting(from_external))}
        stream = type("Stream", (), external if version >= 14 else {})
        self.cuda = SimpleNamespace(
            Stream=stream, ExternalStream=self._counting(partial(external_stream, version)),
            runtime=runtime, driver=SimpleNamespace(CUDADriverError=DriverError),
        )  # fmt: skip
        self.RawKernel = partial(HostKernel, self)

    def _counting(self, make: Callable[..., Stream]) -> Callable[..., Stream]:
        def counted(*given: Any) -> Stream:
            self.made += 1
            return make(*given)

        return counted


class HostKernel:
    def __init__(self, cupy: HostCupy, code: str, name: str) -> None:
        assert name == "move_rows"
        self.cupy, self.code = cupy, code

    def compile(self) -> None:
        """See `cupy.RawKernel.compile`."""
        built(self.code, self.cupy.folder)

    def __call__(self, grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
        """Run all threads before this returns."""
        self.cupy.fail()
        self.cupy.launches.append(SimpleNamespace(stream=CURRENT[-1], blocks=grid[0], args=args))
        assert all(type(one).__name__ == "int64" for one in args), "8 bytes each"
        backwards = int(self.cupy.backwards)
        built(self.code, self.cupy.folder)(grid[0], block[0], backwards, *map(int, args))
