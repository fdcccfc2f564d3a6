"""Host memory that a GPU reads: mapped by gnndrive, because O_DIRECT needs aligned memory, and
registered with CUDA.

`TorchDriver` (cuda.py) makes one `PinnedMemory`. A mapping is unmapped only after it was
unregistered, also when its owner is collected without `close`.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices._capture import CaptureMode
from gnndrive.common.array_pool import keep_from_children, private_map
from gnndrive.common.ffi import ffi
from gnndrive.common.forks import ProcessGuard

_cuda: Any = torch.cuda  # much of it has no types
_PORTABLE_MAPPED = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped


class PinnedMemory:
    """Maps and registers host memory.

    Args:
        device: a GPU whose context registers it.
        stream: the stream whose work uses it.
    """

    def __init__(
        self, device: torch.device, stream: torch.cuda.Stream, capture: CaptureMode
    ) -> None:
        self._device, self._capture = device, capture
        self._registered: dict[int, npt.NDArray[np.uint8]] = {}
        guard = ProcessGuard()
        self.close = weakref.finalize(
            self, _unregister_all, self._registered, device, stream, capture, guard
        )

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Registered memory, uint8 [nbytes], aligned to a page.

        Raises:
            MemoryError: there is not that much, or CUDA refuses to register it.
        """
        mapping = private_map(nbytes)
        keep_from_children(mapping)
        memory = np.frombuffer(mapping, np.uint8)
        address = _address(memory)
        with self._capture.relaxed(), torch.cuda.device(self._device):
            cudart = _cuda.cudart()
            code = cudart.cudaHostRegister(address, memory.nbytes, _PORTABLE_MAPPED)
            if int(code):
                _forget_error(self._device)
                del memory
                with contextlib.suppress(BufferError):  # another array still refers to it
                    mapping.close()
                what = cudart.cudaGetErrorString(code)
                raise MemoryError(f"cudaHostRegister of {nbytes:,} bytes: {what}")
        self._registered[address] = memory
        return memory[:nbytes]

    def give(self, memory: npt.NDArray[np.uint8]) -> None:
        """Unregister memory of `take`, which no stream uses any more."""
        _unregister(self._registered, _address(memory), self._device, self._capture)


def _address(memory: npt.NDArray[np.uint8]) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def _unregister(
    registered: dict[int, npt.NDArray[np.uint8]], address: int, device: torch.device,
    capture: CaptureMode,
) -> None:  # fmt: skip
    """Unregister one piece of memory, and only then let go of its mapping."""
    if address not in registered:
        return
    with capture.relaxed(), torch.cuda.device(device):
        if int(_cuda.cudart().cudaHostUnregister(address)):  # it would have no remedy
            _forget_error(device)
    del registered[address]


def _unregister_all(
    registered: dict[int, npt.NDArray[np.uint8]], device: torch.device, stream: torch.cuda.Stream,
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
