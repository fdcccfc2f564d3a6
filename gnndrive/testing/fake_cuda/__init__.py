"""GPUs for tests without one: `with fake_cuda(devices=2) as gpus:` replaces torch.cuda.

The CUDA device of gnndrive then runs as it is: torch's tensors on "cuda:1" are host tensors that
know their device and stream, streams and events are kept in virtual time, and every launch, copy
and allocation is logged with its device, stream and thread. A call fails where CUDA's would: memory
that is not there, a device that does not exist, tensors of two devices, an unsafe call while
another thread captures a graph, memory that is registered twice. What a real GPU would do wrong
without an error is found and raised when the context ends (`FakeCuda.problems`): two streams on the
same bytes without an order, a `record_stream` that is missing, memory unmapped before it is
unregistered.

Bytes move at once, so it finds a missing wait by its order and not by a wrong row;
`gnndrive.buffer.devices.simulated_cuda` does the other. Not for measurements: seconds are virtual.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.multiprocessing.reductions

from gnndrive.testing.fake_cuda import tensors
from gnndrive.testing.fake_cuda.cupy import fake_cupy
from gnndrive.testing.fake_cuda.machine import Code, Cudart, Entry, FakeCuda, driver_library
from gnndrive.testing.fake_cuda.memory import Counters, count_down
from gnndrive.testing.fake_cuda.streams import GLOBAL, RELAXED, THREAD_LOCAL, FakeEvent, FakeGraph

__all__ = ["GLOBAL", "RELAXED", "THREAD_LOCAL", "Code", "Entry", "FakeCuda", "fake_cuda"]

DRIVER = "libcuda.so.1"
NAME = "Fake GPU"
_in_use = threading.Lock()


@contextmanager
def fake_cuda(
    devices: int = 2, memory_bytes: int = 1 << 30, races: bool = True, cupy: bool = False
) -> Iterator[FakeCuda]:
    """Replace torch.cuda by GPUs that do not exist, in all threads.

    Args:
        memory_bytes: of each.
        races: whether to look for work on the same bytes without an order.
        cupy: whether there is a CuPy, with the kernels of gnndrive only.

    Yields:
        What the fake GPUs did; see `FakeCuda`.

    Raises:
        AssertionError: at the end, if something was done that a real GPU may get wrong.
    """
    assert _in_use.acquire(blocking=False), "one fake_cuda at a time"
    machine = FakeCuda(devices, memory_bytes, races)
    try:
        with ExitStack() as patched:
            tensors.use_machine(machine)
            for place, name, value in _replacements(machine):
                patched.enter_context(patch.object(place, name, value, create=True))
            overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
            set_overwrites = torch.__future__.set_overwrite_module_params_on_conversion
            set_overwrites(True)
            # A real cupy.cuda that is imported already must not be found in its place.
            modules: Any = {"cupy": fake_cupy(machine) if cupy else None, "cupy.cuda": None}
            before = {name: sys.modules[name] for name in modules if name in sys.modules}
            patched.callback(sys.modules.update, before)
            patched.callback(lambda: [sys.modules.pop(name, None) for name in modules])
            sys.modules.update(modules)  # `patch.dict` would forget what is imported meanwhile
            patched.callback(set_overwrites, overwrites)
            yield machine
            machine.memory.collect()
    finally:
        _in_use.release()
    if machine.problems:
        raise AssertionError("; ".join(dict.fromkeys(machine.problems)))


def _replacements(machine: FakeCuda) -> Iterator[tuple[Any, str, Any]]:
    """(object, name, value) of everything that is replaced."""
    for name, value in {**_devices(machine), **_streams(machine), **_memory(machine)}.items():
        yield torch.cuda, name, value
    for name in tensors.CREATE:
        yield torch, name, tensors.creating(name, getattr(torch, name))
    yield torch.Tensor, "to", tensors.moving(torch.Tensor.to)
    for name in ("cuda", "pin_memory", "is_pinned"):
        yield torch.Tensor, name, getattr(tensors, name)
    for name in ("reduce_tensor", "rebuild_cuda_tensor"):
        yield torch.multiprocessing.reductions, name, getattr(tensors, name)
    yield torch.UntypedStorage, "_release_ipc_counter_cuda", count_down
    yield torch.version, "cuda", "13.0"
    for kind in ("CDLL", "PyDLL"):
        yield ctypes, kind, _loading(getattr(ctypes, kind), driver_library(machine))


def _loading(load: Any, driver: Any) -> Any:
    """ctypes' `load`, which finds the fake driver."""

    def loaded(name: Any, *args: Any, **kwargs: Any) -> Any:
        return driver if name == DRIVER else load(name, *args, **kwargs)

    return loaded


def _devices(machine: FakeCuda) -> dict[str, Any]:
    def properties(device: Any = None) -> Any:
        machine.index_of(device)
        return SimpleNamespace(
            name=NAME, major=9, minor=0, total_memory=machine.memory.nbytes,
            multi_processor_count=132,
        )  # fmt: skip

    def set_device(device: Any) -> None:
        machine.timeline.thread.device = machine.index_of(device)

    def sync_debug(mode: int | str) -> None:
        names = {"default": 0, "warn": 0, "error": 2}
        machine.timeline.sync_debug = names[mode] if isinstance(mode, str) else mode

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: machine.devices,
        "current_device": machine.current_device,
        "set_device": set_device,
        "device": machine.on_device,
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: (9, 0),
        "set_sync_debug_mode": sync_debug,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        # Random numbers are the host's.
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
        "cudart": lambda: Cudart(machine),
    }


def _streams(machine: FakeCuda) -> dict[str, Any]:
    class Graph:
        """`torch.cuda.graph`: captures a stream of its own."""

        default_capture_stream: Any = None

        def __init__(
            self, graph: Any, pool: Any = None, stream: Any = None,
            capture_error_mode: str = "global",
        ) -> None:  # fmt: skip
            self._graph, self._mode = graph, capture_error_mode
            self._current = machine.on_stream(stream or machine.stream())

        def __enter__(self) -> None:
            machine.synchronize()
            machine.memory.empty_cache()
            self._current.__enter__()
            self._graph.capture_begin(capture_error_mode=self._mode)

        def __exit__(self, *raised: object) -> None:
            try:
                self._graph.capture_end()
            finally:
                self._current.__exit__(None, None, None)

    return {
        "Stream": lambda device=None, priority=0, **given: machine.stream(device),
        "Event": lambda enable_timing=False, **given: FakeEvent(machine, enable_timing),
        "CUDAGraph": lambda keep_graph=False: FakeGraph(machine),
        "graph": Graph,
        "stream": machine.on_stream,
        "StreamContext": machine.on_stream,
        "current_stream": machine.current_stream,
        "default_stream": machine.default_stream,
        "set_stream": machine.set_stream,
        "is_current_stream_capturing": lambda: machine.current_stream().graph is not None,
        "synchronize": machine.synchronize,
        "_sleep": machine.sleep,
    }


def _memory(machine: FakeCuda) -> dict[str, Any]:
    def of(device: Any) -> Counters:
        machine.memory.collect()
        return machine.memory.counters[machine.index_of(device)]

    def reset_peaks(device: Any = None) -> None:
        counters = of(device)
        counters.peak_allocated, counters.peak_reserved = counters.allocated, counters.reserved

    def set_fraction(fraction: float, device: Any = None) -> None:
        of(device).fraction = fraction

    return {
        "mem_get_info": machine.mem_get_info,
        "memory_allocated": lambda device=None: of(device).allocated,
        "memory_reserved": lambda device=None: of(device).reserved,
        "max_memory_allocated": lambda device=None: of(device).peak_allocated,
        "max_memory_reserved": lambda device=None: of(device).peak_reserved,
        "reset_peak_memory_stats": reset_peaks,
        "empty_cache": machine.memory.empty_cache,
        "ipc_collect": lambda: None,
        "set_per_process_memory_fraction": set_fraction,
    }
