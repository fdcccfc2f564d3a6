"""A training step on a GPU, whose time is known, for bench/gpu.py and bench/gpu_strategies.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _loaders import SEED
from torch_geometric.data import Data

import gnndrive


class Step:
    """A training step, with an event before and after it on its stream.

    Args:
        make: takes the numbers of features and of classes, and returns the model.
        store: the graph.

    Attributes:
        events: before and after each step.
    """

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
