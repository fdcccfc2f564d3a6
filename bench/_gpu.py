"""What the scripts that measure a GPU share: its device, or a fake one, and a training step."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from epoch import SEED
from torch_geometric.data import Data

import gnndrive
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.base import DeviceContext
from gnndrive.buffer.devices.cuda import Cuda


@contextmanager
def fake_or_real(rehearse: bool) -> Iterator[None]:
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


@contextmanager
def needed(rehearse: bool) -> Iterator[None]:
    """`fake_or_real`, for a script that measures; the script ends with 2 without a GPU."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the memory group is removed
    with fake_or_real(rehearse):
        if not torch.cuda.is_available():
            name, version = sys.argv[0].rpartition("/")[2], torch.__version__
            print(f"bench/{name} needs a CUDA GPU: torch {version} sees none", file=sys.stderr)
            sys.exit(2)
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


class Step:
    """A training step, with `events` before and after it on its stream. `make` takes the numbers
    of features and of classes, and returns the model."""

    def __init__(self, make: Callable[[int, int], torch.nn.Module], store: gnndrive.Store) -> None:
        torch.manual_seed(SEED)
        self._model = make(store.num_features, store.num_classes).to("cuda")
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.003)
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        # One step on a tiny batch, because CUDA's libraries are loaded at first use.
        ids = torch.arange(4, device="cuda")
        x = torch.zeros(4, store.num_features, device="cuda")
        self(Data(x=x, y=ids * 0, edge_index=ids.view(2, 2), n_id=ids, batch_size=2))
        torch.cuda.synchronize()
        self.events.clear()

    def __call__(self, batch: Data) -> None:
        """Queue the step, without waiting for it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._optimizer.zero_grad()
        out = self._model(batch.x.to(torch.float32), batch.edge_index)[: batch.batch_size]
        torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        self._optimizer.step()
        end.record()
        self.events.append((start, end))

    def seconds(self) -> float:
        """Seconds of all steps on the GPU, which have ended."""
        return sum(start.elapsed_time(end) for start, end in self.events) / 1e3
