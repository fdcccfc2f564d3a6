"""A sampler may say where the rows of a batch lie in a table; all else is by node and edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader
from gnndrive.common.array_pool import ArrayPool
from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.records import Sample, Seeds
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.base import Topology
from gnndrive.strategies import STRATEGIES

NODES, EDGES = 120, 900


class Placed(Uniform):
    """Takes the rows of other nodes and edges, and names a table that the store does not have."""

    name = "placed"

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        sample = super().sample(seeds, key, topologies)
        rows = {
            "nodes/x": NODES - 1 - sample.node,
            "edges/edge_attr": np.full(sample.num_edges, 3),
            "nodes/other": np.array([-1]),
        }
        return replace(sample, rows=rows)


@pytest.fixture(scope="module")
def data() -> Data:
    """A graph whose edges are not in CSC order and have rows large enough for the buffer."""
    torch.manual_seed(0)
    return Data(
        x=torch.randn(NODES, 9), y=torch.arange(NODES), edge_attr=torch.randn(EDGES, 20),
        edge_index=torch.randint(NODES, (2, EDGES)),
    )  # fmt: skip


def loader(data: Data, folder: Path, **more: Any) -> NeighborLoader:
    """A loader of the graph whose sampler says where rows lie."""
    store = gnndrive.from_data(data, folder / "graph.gnn")
    strategy = replace(STRATEGIES["gnndrive"], sampler=Placed)
    return NeighborLoader(store, [4, 3], batch_size=16, strategy=strategy, **more)


def test_rows_lie_where_the_sample_says(data, tmp_path):
    count = 0
    for batch in loader(data, tmp_path):
        assert torch.equal(batch.x, data.x[NODES - 1 - batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[3].expand(len(batch.e_id), -1))
        count += batch.batch_size
    assert count == NODES


def test_its_size_is_checked_first():
    """A larger batch than the plan counts is refused, although it says where its rows lie."""
    rows_of = {"nodes/x": np.zeros(4, np.int64), "edges/edge_attr": np.arange(5)}
    collate = SimpleNamespace(tables=[], rows_of=lambda *_: rows_of)
    runtime = SimpleNamespace(array_pool=ArrayPool(), attributes=None, device=None)
    assembly: Any = SimpleNamespace(collate=collate)
    epoch = EpochAssembly(assembly, cast(Any, runtime), 0, 0)
    narrow = np.zeros(5, np.int32)
    given = {"nodes/x": np.arange(4)}
    sample = Sample(np.zeros(4, np.int64), narrow, narrow, narrow, (4,), (), rows=given)
    for nodes in (None, 4):
        epoch._limits = nodes and Bounds({None: nodes}, {None: 9}, {None: nodes})
        found = epoch.rows_of(sample)
        assert found["nodes/x"] is given["nodes/x"]
        assert found["edges/edge_attr"] is rows_of["edges/edge_attr"]
    epoch._limits = Bounds({None: 3}, {None: 9}, {None: 3})
    with pytest.raises(BatchTooLarge):
        epoch.rows_of(sample)
