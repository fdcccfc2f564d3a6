"""The GPU that bench/gpu.py measures, with its switches: the real one, or a fake.

On the fake (`--rehearse`) all but the speed can be tried without a GPU; its figures say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.base import DeviceContext
from gnndrive.buffer.devices.cuda import Cuda, TorchDriver


@contextmanager
def gpu(rehearse: bool) -> Iterator[None]:
    """A context in which there is a GPU, if `rehearse` or if the machine has one."""
    if not rehearse:
        yield
        return
    from gnndrive.testing.fake_cuda import fake_cuda

    with fake_cuda(devices=1, cupy=True):
        empty = torch.empty

        def pinned(*shape: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
            made = empty(*shape, **named)
            return made.pin_memory() if pin_memory else made

        with mock.patch.object(torch, "empty", pinned):  # the fake's lacks `pin_memory`
            yield


def parse_switches(text: str) -> MoveOptions:
    """Options from "defaults", or from switches with blanks between them."""
    return MoveOptions.parse([] if text == "defaults" else text.split())


def switched(way: str | None, switches: MoveOptions) -> type[Cuda]:
    """The CUDA device of a loader, with a way and switches of the command line."""

    class Switched(Cuda):
        options = switches
        portions = switches.portions

        @classmethod
        def make(cls, context: DeviceContext) -> Cuda:
            return cls(context.where, way, switches)

    return Switched


def make_driver(way: str, options: MoveOptions) -> TorchDriver:
    """The current GPU's driver."""
    return TorchDriver(torch.device("cuda"), way, options)
