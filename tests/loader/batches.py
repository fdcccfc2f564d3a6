"""Helpers of the loader's tests: they check a batch, compare two batches, and simulate a disk."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda
from gnndrive.common.records import EngineSettings


def check(batch: Data, data: Data) -> None:
    """Raise AssertionError unless `batch` is a sampled piece of `data` as PyG would have it."""
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.y, data.y[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert sum(batch.num_sampled_nodes) == batch.num_nodes
    assert sum(batch.num_sampled_edges) == batch.num_edges
    assert batch.batch_size == batch.num_sampled_nodes[0] == len(batch.input_id)


def assert_same(one: Data, other: Data) -> None:
    """Raise AssertionError unless both have the same fields with the same content."""
    left, right = one.to_dict(), other.to_dict()
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[name].dtype, name
            assert torch.equal(value, right[name]), name
        else:
            assert value == right[name], name


def simulate(monkeypatch: pytest.MonkeyPatch, seed: int = 0, faults: Any = None) -> None:
    """Have loaders with engine="simulated" use `seed` and `faults`."""

    def settings(depth: int, block_bytes: int) -> EngineSettings:
        return EngineSettings(depth, block_bytes, seed, faults)

    monkeypatch.setattr("gnndrive.loader.assembly.EngineSettings", settings)


def stage(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Have loaders make simulated devices with other delays and, by `seed % 3`, less staging."""
    made = SimulatedCuda.__init__
    monkeypatch.setattr(SimulatedCuda, "__init__", lambda self: made(self, seed))
