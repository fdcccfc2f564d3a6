"""The ways in which rows are moved on a GPU, run on the host; which way is chosen if CuPy fails."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices import _movers
from gnndrive.buffer.devices._kernels import WAYS, MoveKernel
from gnndrive.buffer.devices._movers import CopyMover, KernelMover, Mover, TorchMover, choose_mover
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.simulated_cuda import SimulatedDriver
from gnndrive.common.errors import ConfigError
from tests.buffer.devices.host_cupy import CudaError, DriverError, HostCupy, TorchStream
from tests.buffer.devices.moving import some_rows
from tests.soak import product

HOST = torch.device("cpu", 0)
STREAM: Any = TorchStream()
PLACES, SLOTS = 70, 50


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each copy to the "device", which is made, although the device is the host."""
    sizes = []

    def there(memory: np.ndarray, device: torch.device) -> torch.Tensor:
        sizes.append(memory.nbytes)
        return torch.from_numpy(memory).clone()

    monkeypatch.setattr(_movers, "_there", there)
    return sizes


def check_scatter(cupy: HostCupy, way: str, places: Sequence[int], slots: Sequence[int]) -> None:
    """Scatter rows of 16 bytes with a mover that was not tried."""
    staging, expected = some_rows(PLACES, 16), some_rows(SLOTS, 16, seed=1)
    into, moves = torch.from_numpy(expected.copy()), np.stack([places, slots]).astype(np.int32)
    expected[slots] = staging[places]
    kernel = MoveKernel(cupy, HOST)
    movers = TorchMover(HOST), KernelMover(kernel, HOST), CopyMover(kernel, HOST)
    mover = {each.way: each for each in movers}[way]
    mover.scatter(STREAM, into, staging, moves)
    assert np.array_equal(into.numpy(), expected), way


def test_only_what_the_kernel_does_not_read_in_host_memory_is_copied(cupy, copied):
    """The stretch that has landed, and the lists; no list of places that are in order."""
    for way, places, expected in (
        ("zero-copy", [5, 4, 7], []),
        ("copy+kernel", [5, 4, 7], [4 * 16]),
        ("copy+kernel", [5, 6, 7], [3 * 16]),
        ("copy+kernel", [5, 1, 30], []),
        ("staged", [5, 4, 7], [4 * 16, 12, 12]),
        ("staged", [5, 6, 7], [3 * 16, 12]),
    ):
        copied.clear()
        check_scatter(cupy, way, places, [3, 1, 2])
        assert copied == expected, (way, places)


def test_places_in_order_need_no_list(cupy):
    for places, listed in (([5, 6, 7], False), ([5, 7, 8], True), ([6, 5, 7], True), ([9], False)):
        for way in ("zero-copy", "copy+kernel"):
            check_scatter(cupy, way, places, range(len(places)))
            assert bool(cupy.launches[-1].args[3]) is listed, (places, way)


# ---- which way is chosen


class Chooser:
    """Chooses as the CUDA device does."""

    def __init__(self, cupy: Any = None) -> None:
        self.cupy, self.stream, self.driver = cupy, STREAM, SimulatedDriver()

    def __call__(self, way: str | None = None) -> Mover:
        return choose_mover(self.driver, self.stream, HOST, way, MoveOptions())


@pytest.fixture
def chooser(cupy: HostCupy, monkeypatch: pytest.MonkeyPatch) -> Chooser:
    find = _movers.find_cupy
    monkeypatch.setattr(
        _movers, "find_cupy", lambda way: cupy if way in (None, *WAYS[:2]) else find(way)
    )
    return Chooser(cupy)


def test_a_way_is_tried_before_it_is_used(chooser):
    for way, expected in ((None, "zero-copy"), *((way, way) for way in WAYS)):
        assert chooser(way).way == expected
    assert len(chooser.cupy.launches) == 3, "one for each trial, none for torch's own way"
    assert chooser.driver.pinned_bytes == 0


def test_without_cupy_torch_moves_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    choose = Chooser()
    assert choose().way == "staged"
    for way in WAYS[:2]:
        with pytest.raises(ConfigError, match="needs CuPy: install"):
            choose(way)


@pytest.mark.parametrize(
    "problem",
    ["no compiler", "an invalid argument", "wrong bytes", "unreachable", "no address on the GPU"],
)
def test_cupy_that_does_not_work_is_done_without(chooser, monkeypatch, problem):
    """Nothing is launched, because a launch that reads host memory which is out of reach would make
    the GPU unusable for the process."""
    says = problem
    if problem == "no compiler":
        monkeypatch.setattr(chooser.cupy, "RawKernel", Mock(side_effect=OSError(problem)))
    elif problem == "an invalid argument":
        chooser.cupy.fail, says = Mock(side_effect=DriverError(1)), "status 1"
    elif problem == "unreachable":
        chooser.cupy.attributes[99], says = 0, "cannot read registered host memory"
    elif problem == "no address on the GPU":
        chooser.cupy.attributes[91], chooser.cupy.translate = 0, lambda address: 0
    else:
        monkeypatch.setattr(MoveKernel, "move", lambda *given, **more: None)
    with pytest.warns(UserWarning, match=f"{says}.*so torch copies and scatters"):
        assert chooser().way == "staged"
    with pytest.raises(ConfigError, match=f"way='copy.kernel': CuPy's kernel does not.*{says}"):
        chooser("copy+kernel")
    assert chooser.driver.pinned_bytes == 0
    assert not chooser.cupy.launches


@product("where,way", ["pinned", "allocate", "launch", "load", "torch"], [None, "zero-copy"])
def test_too_little_memory_does_not_mean_that_cupy_does_not_work(chooser, monkeypatch, way, where):
    if where in ("pinned", "allocate"):
        monkeypatch.setattr(chooser.driver, where, Mock(side_effect=MemoryError("none is left")))
    else:
        error = {"launch": CudaError(2), "load": DriverError(2), "torch": torch.OutOfMemoryError()}
        chooser.cupy.fail = Mock(side_effect=error[where])
    with pytest.raises(ConfigError, match="too little memory to try CuPy's kernel"):
        chooser(way)
    monkeypatch.undo()
    assert chooser.driver.pinned_bytes == 0


@pytest.mark.parametrize(
    ("way", "what", "error", "says"),
    [
        (None, "unpin", RuntimeError("too"), r"illegal memory access.*start again without CuPy"),
        ("copy+kernel", "unpin", RuntimeError("too"), "illegal memory access.*start again"),
        (None, "pinned", MemoryError("an illegal access"), "CUDA refuses all further work"),
    ],
)
def test_a_gpu_that_a_launch_has_broken_is_not_used_in_another_way(
    chooser, monkeypatch, way, what, error, says
):
    """Also where it refuses memory."""
    broken = RuntimeError("an illegal memory access was encountered")
    chooser.stream = Mock(cuda_stream=5, synchronize=Mock(side_effect=broken))
    monkeypatch.setattr(chooser.driver, what, Mock(side_effect=error))
    with pytest.raises(ConfigError, match=says):
        chooser(way)


def test_every_switch_can_be_given_as_text():
    for field in dataclasses.fields(MoveOptions):
        value = not field.default if isinstance(field.default, bool) else 8
        made = MoveOptions(**{field.name: value})
        assert made != MoveOptions()
        assert MoveOptions.parse(str(made).split()) == made
    assert MoveOptions.parse(["gather-stream"]).gather_stream is True
    assert MoveOptions.parse(["gather_stream=off"]) == MoveOptions.parse([]) == MoveOptions()


@pytest.mark.parametrize(
    ("switch", "says"),
    [
        ("block=1", "choose from blocks, gather_stream"),
        ("blocks=many", "give a number"),
        ("blocks=-1", "at least 1, or 0"),
        ("portions=0", "at least 1"),
        ("gather_stream=maybe", "on or off"),
    ],
)
def test_a_wrong_switch_says_what_is_right(switch, says):
    with pytest.raises(ConfigError, match=says):
        MoveOptions.parse([switch])
