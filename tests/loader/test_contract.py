"""What a batch holds, to the last byte: the contract of PyTorch Geometric's NeighborLoader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.common.array_pool import ArrayPool
from gnndrive.common.errors import BatchTooLarge
from gnndrive.common.records import Sample, Seeds
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.base import Topology
from gnndrive.strategies import STRATEGIES
from gnndrive.testing.faults import NOISE
from tests.loader.batches import assert_same, check, simulate
from tests.loader.conftest import NODES, NODES_WITH_EDGES
from tests.soak import product

# ---- what a batch holds


FIELDS = "x y edge_index edge_attr train_mask n_id e_id input_id batch_size"


def test_batches_are_pieces_of_the_graph(make, data):
    seen = []
    for batch in make(shuffle=True):
        check(batch, data)
        assert type(batch) is Data
        assert len(batch.num_sampled_nodes) == 3
        assert len(batch.num_sampled_edges) == 2
        assert all(isinstance(count, int) for count in batch.num_sampled_nodes)
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert len(batch.e_id.unique()) == len(batch.e_id)
        for name in ("edge_index", "n_id", "e_id", "input_id"):
            assert batch[name].dtype == torch.int64, name
        assert isinstance(batch.batch_size, int)
        assert set(batch.keys()) == {*FIELDS.split(), "num_sampled_nodes", "num_sampled_edges"}
        seen.append(batch.n_id[: batch.batch_size])
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(NODES))


def test_each_hop_follows_the_last(make, data):
    (batch,) = make((3, 2, 2), input_nodes=[1, 2, 3])
    hop = np.repeat(np.arange(4), batch.num_sampled_nodes)
    edge_hop = np.repeat(np.arange(3), batch.num_sampled_edges)
    source, target = batch.edge_index.numpy()
    assert (hop[target] == edge_hop).all(), "an edge of hop h + 1 points at a node of hop h"
    assert (hop[source] <= edge_hop + 1).all()
    for fanout, number in zip((3, 2, 2), range(3), strict=True):
        _, counts = np.unique(target[edge_hop == number], return_counts=True)
        assert (counts <= fanout).all()


def test_input_id_of_a_mask_is_global(make, data):
    batches = list(make(input_nodes=data.train_mask, batch_size=10))
    input_id = torch.cat([batch.input_id for batch in batches])
    assert torch.equal(input_id, data.train_mask.nonzero().view(-1))
    for batch in batches:
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])


@pytest.mark.parametrize("kind", [torch.tensor, list, np.array, tuple])
def test_input_id_of_an_index_is_its_position(make, kind):
    nodes = [30, 399, 0, 12]
    (batch,) = make(input_nodes=kind(nodes))
    assert batch.input_id.tolist() == [0, 1, 2, 3]
    assert batch.n_id[:4].tolist() == nodes


def test_a_seed_given_twice_is_there_twice(make, data):
    (batch,) = make(input_nodes=[5, 6, 5])
    assert batch.n_id[:3].tolist() == [5, 6, 5]
    assert torch.equal(batch.x, data.x[batch.n_id])


def test_no_input_nodes_no_batches(make):
    loader = make(input_nodes=torch.empty(0, dtype=torch.int64))
    assert len(loader) == 0
    assert list(loader) == []
    assert list(make(input_nodes=torch.zeros(NODES, dtype=torch.bool))) == []


# ---- graphs


def test_nodes_without_neighbours(make, data):
    nodes = torch.arange(NODES_WITH_EDGES, NODES)
    (batch,) = make(input_nodes=nodes, batch_size=32)
    assert torch.equal(batch.n_id, nodes)
    assert batch.edge_index.shape == (2, 0)
    assert batch.num_sampled_nodes == [20, 0, 0]
    assert batch.num_sampled_edges == [0, 0]
    check(batch, data)


def test_all_neighbours(make, data):
    for batch in make([-1], batch_size=20, buffer="80KB"):
        check(batch, data)
        expected = torch.isin(data.edge_index[1], batch.n_id[: batch.batch_size])
        assert torch.equal(batch.e_id.sort().values, expected.nonzero().view(-1))


def test_self_loops_and_duplicate_edges(make, tmp_path):
    edges = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 2, 1]])
    data = Data(x=torch.arange(6.0).view(3, 2), y=torch.arange(3), edge_index=edges)
    (batch,) = make([-1, -1], data=gnndrive.from_data(data, tmp_path / "s.gnn"), input_nodes=[0])
    check(batch, data)
    assert sorted(batch.e_id.tolist()) == [0, 1, 2, 3, 5]


def test_a_graph_without_edges(make, tmp_path):
    nothing = torch.empty(2, 0, dtype=torch.int64)
    data = Data(x=torch.rand(5, 2), y=torch.arange(5), edge_index=nothing)
    (batch,) = make(data=gnndrive.from_data(data, tmp_path / "s.gnn"))
    check(batch, data)
    assert batch.num_sampled_edges == [0, 0]


def test_with_replacement_the_fanout_is_filled(make, data):
    (batch,) = make([9], input_nodes=range(30), batch_size=30, replace=True, buffer="80KB")
    check(batch, data)
    assert torch.equal(torch.bincount(batch.edge_index[1])[:30], torch.full((30,), 9))


def test_x_of_more_dimensions_and_no_y(make, tmp_path, data):
    cube = Data(x=torch.rand(NODES, 3, 4, 2), edge_index=data.edge_index)
    for batch in make(data=gnndrive.from_data(cube, tmp_path / "cube.gnn")):
        assert torch.equal(batch.x, cube.x[batch.n_id])
        assert "y" not in batch
        assert "edge_attr" not in batch
    flat = Data(x=torch.arange(NODES, dtype=torch.int32), edge_index=data.edge_index)
    for batch in make(data=gnndrive.from_data(flat, tmp_path / "flat.gnn")):
        assert torch.equal(batch.x, batch.n_id.int())


def test_a_batch_is_the_users_own(make, data):
    loader = make(seed=1)
    for batch in loader:
        batch.x.zero_(), batch.y.zero_(), batch.edge_attr.zero_(), batch.n_id.zero_()
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


# ---- one batch by hand


def test_calling_the_loader_gives_one_batch(make, data):
    loader = make(input_nodes=data.train_mask)
    nodes = data.train_mask.nonzero().view(-1)
    batch = loader(np.array([4, 2, 9]))
    check(batch, data)
    assert torch.equal(batch.n_id[:3], nodes[[4, 2, 9]])
    assert torch.equal(batch.input_id, nodes[[4, 2, 9]])
    assert loader.stats() == {}, "no pipeline was started"


def test_collate_fn_and_filter_fn_make_up_a_call(make, data):
    loader = make(seed=3, transform=lambda batch: batch.to_dict())
    out = loader.filter_fn(loader.collate_fn([1, 2, 3]))
    assert isinstance(out, dict)
    assert_same(Data.from_dict(out), Data.from_dict(loader(torch.tensor([1, 2, 3]))))


def test_a_transform_is_applied_to_each_batch(make, data):
    def transform(batch: Data) -> tuple[int, Data]:
        batch.total = batch.x.sum()
        return batch.batch_size, batch

    for size, batch in make(transform=transform):
        assert size == batch.batch_size
        assert torch.equal(batch.total, batch.x.sum())


DIMS = [1, 3, 32, 100, 127, 128, 129, 768, 4714]
DTYPES = [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]
ENGINES = ["uring", "threads", "simulated"]
COUNT, IN_NEIGHBOURS = 240, 4
BATCH_SIZE = 6  # with 3 neighbours of each seed a batch has at most 24 rows
ROWS_IN_BUFFER = 30


@product("dim,dtype,engine", DIMS, DTYPES, ENGINES, ids=str)
def test_every_row_equals_direct_indexing(make, dim, dtype, engine, tmp_path, monkeypatch):
    draw, row_bytes = torch.Generator().manual_seed(dim), dim * dtype.itemsize
    x = torch.randint(0, 256, (COUNT, row_bytes), dtype=torch.uint8, generator=draw).view(dtype)
    store = gnndrive.write_store(
        tmp_path / "rows.gnn", indptr=np.arange(COUNT + 1) * IN_NEIGHBOURS, nodes={"x": x},
        indices=np.random.default_rng(0).integers(0, COUNT, COUNT * IN_NEIGHBOURS),
    )  # fmt: skip
    simulate(monkeypatch, seed=dim, faults=NOISE)
    loader = make(
        [3], data=store, batch_size=BATCH_SIZE, shuffle=True, seed=1, engine=engine, extractors=4,
        buffer=ROWS_IN_BUFFER * row_bytes,
    )  # fmt: skip
    batches = 0
    for batch in loader:
        batches += 1
        assert batch.x.dtype == x.dtype
        assert batch.x.shape == (len(batch.n_id), x.size(1))
        assert torch.equal(batch.x.view(torch.uint8), x[batch.n_id].view(torch.uint8))
    stats = loader.stats()
    assert batches == COUNT // BATCH_SIZE
    assert stats["engine"] == engine
    assert stats["evictions"] > COUNT - ROWS_IN_BUFFER, "the buffer was to be far too small"


PLACES, EDGES = 120, 900


class Placed(Uniform):
    """Takes the rows of other nodes and edges, and names a table that the store does not have."""

    name = "placed"

    def sample(self, seeds: Seeds, key: int, topologies: Sequence[Topology]) -> Sample:
        sample = super().sample(seeds, key, topologies)
        rows = {
            "nodes/x": PLACES - 1 - sample.node,
            "edges/edge_attr": np.full(sample.num_edges, 3),
            "nodes/other": np.array([-1]),
        }
        return replace(sample, rows=rows)


def test_rows_lie_where_the_sample_says(make, tmp_path):
    torch.manual_seed(0)
    placed = Data(
        x=torch.randn(PLACES, 9), y=torch.arange(PLACES), edge_attr=torch.randn(EDGES, 20),
        edge_index=torch.randint(PLACES, (2, EDGES)),
    )  # fmt: skip
    store = gnndrive.from_data(placed, tmp_path / "graph.gnn")
    strategy, count = replace(STRATEGIES["gnndrive"], sampler=Placed), 0
    for batch in make(data=store, strategy=strategy, buffer=None):
        assert torch.equal(batch.x, placed.x[PLACES - 1 - batch.n_id])
        assert torch.equal(batch.y, placed.y[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], placed.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, placed.edge_attr[3].expand(len(batch.e_id), -1))
        count += batch.batch_size
    assert count == PLACES


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
