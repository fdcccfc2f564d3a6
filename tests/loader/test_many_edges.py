"""Graphs with more edges than 31 or 32 bits can count; their files are mostly holes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, StoreInfo, dump, npy_header
from gnndrive.store.types import NodeType, Types
from tests.soak import product

NODES, TAIL = 50, 600
Graph = tuple[Store, np.ndarray, np.ndarray, np.ndarray]
COUNTS = [(1 << 31) + 12_345, (1 << 32) + 12_345]


@pytest.fixture(params=COUNTS, ids=["2^31", "2^32"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Graph:
    """The store; index pointers, indices and numbers of the edges behind those of node 0."""
    edges = int(request.param)
    draw, head = np.random.default_rng(0), edges - TAIL
    ends = np.sort(draw.integers(0, TAIL + 1, NODES - 2))
    indptr = np.concatenate([[0, head], head + ends, [edges]])
    indices = draw.integers(0, NODES, TAIL)
    number = head + draw.permutation(TAIL)
    x = np.arange(NODES * 32, dtype=np.float32).reshape(NODES, 32)
    arrays: dict[str, tuple[str, tuple[int, ...], int, np.ndarray]] = {
        "graph/indptr": ("int64", (NODES + 1,), 0, indptr),
        "graph/indices": ("int32", (edges,), head, indices),
        "graph/edge_id": ("int64", (edges,), head, number),
        "nodes/x": ("float32", x.shape, 0, x),
        "edges/weight": ("float64", (edges,), head, draw.random(TAIL)),
    }
    folder, infos = tmp_path / "many.gnn", {}
    for name, (dtype, shape, start, values) in arrays.items():  # zero but for values, from start on
        infos[name] = info = ArrayInfo(name, dtype, shape, hashlib.sha256(b"").hexdigest())
        (folder / info.file).parent.mkdir(parents=True, exist_ok=True)
        with (folder / info.file).open("wb") as file:
            file.write(npy_header(info))
            file.seek(DATA_OFFSET + start * info.row_bytes)
            file.write(values.astype(info.storage).tobytes())
            file.truncate(info.nbytes)
    info = StoreInfo(Types({None: NodeType(NODES)}, {None: edges}), "a test", infos)
    (folder / "store.json").write_bytes(dump(info))
    return gnndrive.open(folder), indptr, indices, number


@product("topology,disjoint", ["mmap", "direct"], [False, True])
def test_edges_at_positions_that_do_not_fit(graph, topology, disjoint):
    store, indptr, indices, number = graph
    head = store.num_edges - TAIL
    by_number = {int(each): place for place, each in enumerate(number)}
    weight, x = store.array("edges/weight"), store.array("nodes/x")
    with NeighborLoader(
        store, [-1], torch.arange(1, NODES), batch_size=7, disjoint=disjoint, buffer="1MB",
        tuning=gnndrive.Tuning(
            topology=topology, neighbour_cache=0 if topology == "direct" else None, io_depth=16
        ),
    ) as loader:  # fmt: skip
        seen = []
        for batch in loader:
            assert torch.equal(batch.x, torch.from_numpy(x[batch.n_id]))
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


def test_seed_edges_at_such_positions(graph):
    store, indptr, indices, number = graph
    loader = gnndrive.LinkNeighborLoader(
        store, [1], batch_size=4, tuning=gnndrive.Tuning(topology="mmap"), buffer="1MB"
    )
    place = torch.tensor([0, TAIL // 2, TAIL - 1])
    head = store.num_edges - TAIL
    batch = loader(head + place)
    source, target = batch.n_id[batch.edge_label_index]
    assert source.tolist() == indices[place].tolist()
    expected = np.searchsorted(indptr - head, place.numpy(), side="right") - 1
    assert target.tolist() == expected.tolist()
    assert batch.input_id.tolist() == number[place].tolist()
