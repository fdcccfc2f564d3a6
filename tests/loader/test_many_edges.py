"""Graphs with more edges than 31 or 32 bits can count.

The stores' files are mostly holes, so positions, offsets and numbers are as large as in a real
store, and the files take a few pages on disk. Node 0 has nearly all edges; the lists of the other
nodes lie behind its list.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.sampling.graph import mapped
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, StoreInfo, dump, npy_header
from gnndrive.store.types import NodeType, Types
from tests.soak import product

NODES, TAIL = 50, 600
Graph = tuple[Store, np.ndarray, np.ndarray, np.ndarray]
COUNTS = [(1 << 31) + 12_345, (1 << 32) + 12_345]


def hollow(folder: Path, info: ArrayInfo, start: int, values: np.ndarray) -> None:
    """The file of an array that is zero but for `values` from row `start` on."""
    path = folder / info.file
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(npy_header(info))
        file.seek(DATA_OFFSET + start * info.row_bytes)
        file.write(values.astype(info.storage).tobytes())
        file.truncate(info.nbytes)


@pytest.fixture(params=COUNTS, ids=["2^31", "2^32"])
def edges(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def graph(tmp_path: Path, edges: int) -> Graph:
    """The store; index pointers, indices and numbers of the edges behind those of node 0."""
    draw, head = np.random.default_rng(0), edges - TAIL
    ends = np.sort(draw.integers(0, TAIL + 1, NODES - 2))
    indptr = np.concatenate([[0, head], head + ends, [edges]])
    indices = draw.integers(0, NODES, TAIL)
    number = head + draw.permutation(TAIL)
    weight = draw.random(TAIL)
    x = np.arange(NODES * 32, dtype=np.float32).reshape(NODES, 32)
    arrays: dict[str, tuple[str, tuple[int, ...], int, np.ndarray]] = {
        "graph/indptr": ("int64", (NODES + 1,), 0, indptr),
        "graph/indices": ("int32", (edges,), head, indices),
        "graph/edge_id": ("int64", (edges,), head, number),
        "nodes/x": ("float32", x.shape, 0, x),
        "edges/weight": ("float64", (edges,), head, weight),
    }
    folder = tmp_path / "many.gnn"
    folder.mkdir()
    infos = {}
    for name, (dtype, shape, start, values) in arrays.items():
        infos[name] = ArrayInfo(name, dtype, shape, hashlib.sha256(b"").hexdigest())
        hollow(folder, infos[name], start, values)
    info = StoreInfo(Types({None: NodeType(NODES)}, {None: edges}), "a test", infos)
    (folder / "store.json").write_bytes(dump(info))
    return gnndrive.open(folder), indptr, indices, number


@product("topology,disjoint", ["mmap", "direct"], [False, True])
def test_edges_at_positions_that_do_not_fit(graph, edges, topology, disjoint):
    store, indptr, indices, number = graph
    head = edges - TAIL
    by_number = {int(each): place for place, each in enumerate(number)}
    weight = store.array("edges/weight")
    with NeighborLoader(
        store, [-1], torch.arange(1, NODES), batch_size=7, topology=topology, disjoint=disjoint,
        neighbour_cache=0 if topology == "direct" else None, buffer="1MB", io_depth=16,
    ) as loader:  # fmt: skip
        assert loader.plan().topology is not None
        seen = []
        for batch in loader:
            assert torch.equal(batch.x, torch.from_numpy(store.array("nodes/x")[batch.n_id]))
            for (row, col), e_id, each in zip(
                batch.edge_index.T.tolist(), batch.e_id.tolist(), batch.weight.tolist(), strict=True
            ):
                place = by_number[e_id]
                target = int(batch.n_id[col])
                assert int(batch.n_id[row]) == indices[place]
                assert indptr[target] <= head + place < indptr[target + 1]
                assert each == weight[e_id]
                seen.append(e_id)
    assert sorted(seen) == sorted(number.tolist())


def test_sampling_from_a_list_that_is_longer(graph, edges):
    store, indptr, _, _ = graph
    with NeighborLoader(
        store, [100], torch.tensor([0]), topology="mmap", buffer="1MB", seed=1
    ) as loader:
        (batch,) = loader
    # All indices of this list are 0, because it is a hole, so check the positions.
    sample = loader._assembly().sampler().sample_nodes(np.array([0]), 5, mapped(store.edges()))
    assert len(sample.edge) == len(set(sample.edge.tolist())) == 100
    assert int(sample.edge.min()) >= 0
    assert int(sample.edge.max()) < indptr[1]
    assert (sample.edge > 1 << 31).any() or edges < 1 << 32
    assert batch.num_nodes == 1


def test_seed_edges_at_such_positions(graph, edges):
    store, indptr, indices, number = graph
    loader = gnndrive.LinkNeighborLoader(store, [1], batch_size=4, topology="mmap", buffer="1MB")
    place = torch.tensor([0, TAIL // 2, TAIL - 1])
    batch = loader(edges - TAIL + place)
    source, target = batch.n_id[batch.edge_label_index]
    assert source.tolist() == indices[place].tolist()
    pointers = indptr - (edges - TAIL)
    expected = np.searchsorted(pointers, place.numpy(), side="right") - 1
    assert target.tolist() == expected.tolist()
    assert batch.input_id.tolist() == number[place].tolist()


def test_the_plan_counts_the_packed_indices(graph, edges):
    store, *_ = graph
    loader = NeighborLoader(store, [3], topology="resident", buffer="1MB")
    choice = loader.plan().topology
    assert choice is not None
    assert choice.nbytes == -(-edges * 6 // 8) + 8  # six bits tell 50 nodes apart
    assert store.index_pointers.itemsize == (4 if edges < 1 << 32 else 8)
