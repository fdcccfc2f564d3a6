"""Helpers of the loader's tests: they check a batch, compare two batches, and simulate a disk."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler

import gnndrive
from gnndrive import Store
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


def assert_all_same(one: Iterable[Data], other: Iterable[Data]) -> None:
    """Raise AssertionError unless both have the same batches in the same order."""
    for left, right in zip(one, other, strict=True):
        assert_same(left, right)


def bits(rows: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, so that NaNs compare."""
    return rows.contiguous().view(torch.uint8) if rows.numel() else rows


class NoSampler(NeighborSampler):  # type: ignore[misc]
    """A sampler of a user's, which needs no graph."""

    def __init__(self) -> None: ...


def simulate(monkeypatch: pytest.MonkeyPatch, seed: int = 0, faults: Any = None) -> None:
    """Have loaders with engine="simulated" use `seed` and `faults`."""

    def settings(depth: int, block_bytes: int) -> EngineSettings:
        return EngineSettings(depth, block_bytes, seed, faults)

    monkeypatch.setattr("gnndrive.loader.assembly.EngineSettings", settings)


def stage(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Have loaders make simulated devices with other delays and, by `seed % 3`, less staging."""
    made = SimulatedCuda.__init__
    monkeypatch.setattr(SimulatedCuda, "__init__", lambda self: made(self, seed))


def skewed_store(path: Path, nodes: int, edges: int, columns: int, seed: int) -> Store:
    """A store of random edges and float32 rows; a tenth of the nodes have nearly half of the
    out-edges."""
    draw = torch.Generator().manual_seed(seed)
    source = (nodes * torch.rand(edges, generator=draw) ** 3).long()
    edge_index = torch.stack([source, torch.randint(nodes, (edges,), generator=draw)])
    x = torch.randn(nodes, columns, generator=draw)
    return gnndrive.from_data(Data(x=x, edge_index=edge_index), path)
