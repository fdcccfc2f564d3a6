"""A file that becomes shorter while a loader runs: an error at a batch's turn, never a crash."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, ReadError, Store, StoreError
from gnndrive.pyg.sampler import NeighborSampler

NODES, EDGES = 6_000, 40_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Every array is several pages long."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NODES, 16, generator=draw),
        y=torch.randint(0, 5, (NODES,), generator=draw),
        year=torch.arange(NODES),
        edge_index=torch.randint(0, NODES, (2, EDGES), generator=draw),
        kind=torch.arange(EDGES),
        time=torch.arange(NODES),
    )
    return gnndrive.from_data(data, tmp_path / "s.gnn")


def nodes(store: Store, **given: Any) -> NeighborLoader:
    return NeighborLoader(store, [4, 4], batch_size=100, seed=0, **given)


LOADERS: dict[str, Callable[[Store], Any]] = {
    "mmap": lambda store: nodes(store, topology="mmap"),
    "resident": lambda store: nodes(store, topology="resident"),
    "direct": lambda store: nodes(store, topology="direct"),
    "temporal": lambda store: nodes(store, topology="mmap", time_attr="time"),
    "induced": lambda store: nodes(store, topology="mmap", subgraph_type="induced"),
    "links": lambda store: LinkNeighborLoader(
        store, [3], batch_size=100, shuffle=True, seed=0, topology="mmap"
    ),
}


def checked(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        assert torch.equal(batch.year, batch.n_id)
        yield batch


MAPPED = {
    "graph/indices.npy": ["mmap", "temporal", "induced", "links"],
    "graph/edge_id.npy": list(LOADERS),
    "nodes/year.npy": list(LOADERS),
    "edges/kind.npy": list(LOADERS),
    "nodes/x.npy": list(LOADERS),
}


@pytest.mark.parametrize(
    ("file", "kind"), [(file, kind) for file, kinds in MAPPED.items() for kind in kinds]
)
def test_in_the_middle_of_an_epoch(store: Store, file: str, kind: str) -> None:
    with LOADERS[kind](store) as loader:
        iterator = iter(loader)
        for _ in range(2):
            assert torch.equal((batch := next(iterator)).year, batch.n_id)
        os.truncate(store.path / file, 4096)
        with pytest.raises(ReadError, match="ENODATA") as caught:
            deque(checked(iterator))
        assert caught.value.path == str(store.path / file)
        assert caught.value.offset >= 4096
        with pytest.raises((ReadError, StoreError), match=file):
            loader(torch.arange(50))


def test_a_batch_before_the_damage_is_delivered(store: Store) -> None:
    """Of seeds without in-edges, the first batches need the first page of years only."""
    data = Data(x=torch.randn(NODES, 4), edge_index=torch.empty(2, 0, dtype=torch.int64))
    data.year = torch.arange(NODES)
    given = gnndrive.from_data(data, store.path.parent / "t.gnn")
    with NeighborLoader(given, [1], batch_size=64, samplers=4) as loader:
        iterator = iter(loader)
        next(iterator)
        os.truncate(given.path / "nodes" / "year.npy", 4096 + 8 * 1024)
        found: list[Any] = []
        with pytest.raises(ReadError):
            found.extend(checked(iterator))
        assert len(found) == 15, "1,024 years are left"


def test_times_that_are_read_at_the_start(store: Store) -> None:
    sampler = NeighborSampler(store, [3], time_attr="time")
    os.truncate(store.path / "nodes" / "time.npy", 4096)
    with pytest.raises((ReadError, StoreError), match=r"time\.npy"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(5), torch.zeros(5)))
