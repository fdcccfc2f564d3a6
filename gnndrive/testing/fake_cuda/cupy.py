"""The part of CuPy that gnndrive uses, on the fake GPUs: streams and gnndrive's own kernels.

A kernel is not compiled. Its parameters are read from its source by their names, and its work is
done with numpy: row `from_row[i]` of `from` goes to row `into_row[i]` of `into`.
"""

from __future__ import annotations

import ctypes
import re
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from gnndrive.common.io.direct_file import Bytes
from gnndrive.testing.fake_cuda.machine import FakeCuda
from gnndrive.testing.fake_cuda.memory import Block
from gnndrive.testing.fake_cuda.streams import FakeStream, cuda_error
from gnndrive.testing.fake_cuda.tensors import DEVICE_BYTES_PER_S, HOST_BYTES_PER_S, LAUNCH_S

VERSION = "14.2.0"
UNIT_BYTES = {"uint4": 16, "uint2": 8, "unsigned int": 4, "unsigned short": 2, "unsigned char": 1}
_PARAMETER = re.compile(r"(?:const\s+)?([\w ]+?)\s*\*?\s*(?:__restrict__\s+)?(\w+)\s*$")

ATTRIBUTES = {
    "cudaDevAttrCanMapHostMemory": 19,
    "cudaDevAttrCanUseHostPointerForRegisteredMem": 91,
    "cudaDevAttrHostRegisterSupported": 99,
}


class CudaError(RuntimeError):
    """What CuPy raises for an error of CUDA."""


def fake_cupy(machine: FakeCuda) -> ModuleType:
    """A module to stand for CuPy."""
    module: Any = ModuleType("cupy")
    module.__spec__ = ModuleSpec("cupy", None)
    module.__version__ = VERSION
    state = threading.local()

    class Stream:
        """A stream of another library; a context in which kernels are launched on it."""

        def __init__(self, pointer: int, device_id: int = -1) -> None:
            device = machine.current_device() if device_id < 0 else device_id
            self.ptr, self.device_id = pointer, device
            self.fake = _stream(machine, pointer, device)

        @classmethod
        def from_external(cls, stream: Any) -> Stream:
            """The stream of an object with `__cuda_stream__`."""
            return cls(stream.__cuda_stream__()[1])

        def __enter__(self) -> Stream:
            state.streams = [*getattr(state, "streams", []), self.fake]
            return self

        def __exit__(self, *raised: object) -> None:
            state.streams = state.streams[:-1]

    class RawKernel:
        """One of gnndrive's kernels."""

        def __init__(self, code: str, name: str, options: Any = (), **given: Any) -> None:
            self._name = name
            signature = re.search(rf"\b{name}\s*\((.*?)\)", _expanded(code), re.DOTALL)
            assert signature is not None, "no such kernel in the source"
            found = [_PARAMETER.search(part) for part in signature[1].split(",")]
            self._kinds = {each[2]: each[1].strip() for each in found if each is not None}

        def compile(self, *given: Any, **named: Any) -> None:
            """Nothing to do."""

        def __call__(self, grid: Any, block: Any, args: Any, **given: Any) -> None:
            assert len(args) == len(self._kinds), "another number of arguments"
            assert grid[0] > 0, "an empty grid"
            streams = getattr(state, "streams", None) or [machine.default_stream()]
            values = dict(zip(self._kinds, map(int, args), strict=True))
            _move(machine, streams[-1], self._name, values, UNIT_BYTES[self._kinds["into"]])

    module.RawKernel = RawKernel
    module.cuda = SimpleNamespace(
        Stream=Stream, ExternalStream=Stream, runtime=_runtime(machine),
        driver=SimpleNamespace(CUDADriverError=CudaError),
    )  # fmt: skip
    return module  # type: ignore[no-any-return]


def _runtime(machine: FakeCuda) -> SimpleNamespace:
    def memcpy_async(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """One copy from pinned memory to the device."""
        block = _block(machine, target)
        assert block is not None, "the target is host memory"
        _bytes_at(target, nbytes)[:] = _bytes_at(source, nbytes)
        on = _stream(machine, stream, machine.current_device())
        time = LAUNCH_S + nbytes / HOST_BYTES_PER_S
        machine.launch("memcpyAsync", on, [], [(block, None)], time, nbytes)

    return SimpleNamespace(
        memcpyAsync=memcpy_async,
        memcpyHostToDevice=1,
        deviceGetAttribute=lambda attribute, device: 1,
        CUDARuntimeError=CudaError,
        **ATTRIBUTES,
    )


def _expanded(code: str) -> str:
    """A source without its macros."""
    for macro, value in re.findall(r"^#define (\w+) *(.*)$", code, re.MULTILINE):
        code = re.sub(rf"\b{macro}\b", value, code)
    return code


def _stream(machine: FakeCuda, pointer: int, device: int) -> FakeStream:
    for stream in machine.all_streams():
        if stream.cuda_stream == pointer and stream.device.index == device:
            return stream
    raise cuda_error(400)


def _bytes_at(address: int, nbytes: int) -> Bytes:
    whole = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
    return np.frombuffer(memoryview(whole).cast("B"), np.uint8)[:nbytes]


def _block(machine: FakeCuda, address: int) -> Block | None:
    """The device's block at an address; None: it is pinned host memory."""
    block = machine.memory.find(address)
    if block is None and not machine.host.is_pinned(address):
        raise cuda_error(700)
    return block


def _move(
    machine: FakeCuda, stream: FakeStream, name: str, values: dict[str, int], unit: int
) -> None:
    if machine.current_device() != stream.device.index:
        raise cuda_error(400)
    rows, row_bytes = values["rows"], values["units"] * unit
    sides: dict[str, Any] = {}
    used: dict[str, list[tuple[Block, Any]]] = {"from": [], "into": []}
    for side in ("from", "into"):
        places = np.arange(rows, dtype=np.int64)
        if address := values.get(f"{side}_row", 0):
            places = _bytes_at(address, 4 * rows).view(np.int32).astype(np.int64)
            if (block := _block(machine, address)) is not None:
                used["from"].append((block, None))
        # The kernel may be given where row 0 would be, before the memory that it reads.
        first = int(places.min())
        memory, places = values[side] + first * row_bytes, places - first
        count = int(places.max()) + 1
        if (block := _block(machine, memory)) is not None:
            used[side].append((block, memory - block.address + places * row_bytes))
            if memory + count * row_bytes > block.address + len(block.memory):
                raise cuda_error(700)
        elif not machine.host.are_pinned(memory + places * row_bytes, row_bytes):
            raise cuda_error(700)
        sides[side] = _bytes_at(memory, count * row_bytes).reshape(count, row_bytes), places
    (source, source_rows), (into, into_rows) = sides["from"], sides["into"]
    into[into_rows] = source[source_rows]
    on_device = 1 + bool(values.get("from_row")) + bool(values.get("into_row"))
    on_host = not used["into"] or len(used["from"]) < on_device
    rate = HOST_BYTES_PER_S if on_host else DEVICE_BYTES_PER_S
    nbytes = rows * row_bytes
    machine.launch(name, stream, used["from"], used["into"], LAUNCH_S + nbytes / rate, nbytes)
