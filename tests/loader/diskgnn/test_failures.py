"""Reads that fail: the error comes at its batch's turn, and the loader can be used again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.common.errors import ReadError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.testing.faults import NOISE, Faults
from tests.loader.batches import assert_same, simulate
from tests.loader.diskgnn.conftest import ARGUMENTS, BATCHES, EPOCHS
from tests.loader.diskgnn.packs import check_rows, least_buffer, make_pack, pack_folder
from tests.soak import product
from tests.store.packed.graphs import make_graph

ROW_BYTES = 80


@pytest.fixture(scope="module")
def graph() -> Data:
    """One table only, because a simulated fault strikes all files."""
    made = make_graph()
    del made.edge_attr
    return made


@pytest.fixture(scope="module")
def store(graph: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = gnndrive.from_data(graph, tmp_path_factory.mktemp("failing") / "graph.gnn")
    make_pack(made, ARGUMENTS, epochs=EPOCHS)
    return made


@pytest.fixture
def tight(store: Store) -> int:
    """The bytes of a buffer with one place and hardly any hot rows."""
    return least_buffer(store, ARGUMENTS)


def first_of(loader: NeighborLoader, number: int) -> int:
    """Where the chunk of a recorded batch begins in the file of rows, in bytes."""
    recording = loader._assembly().recording
    assert recording is not None
    _, first = recording.places["nodes/x"].starts(recording.index[number])
    return DATA_OFFSET + first * ROW_BYTES


def test_noise_changes_nothing(replay, tight, seeds, monkeypatch):
    for seed in seeds(2):
        simulate(monkeypatch, seed, NOISE)
        noisy, plain = replay(engine="simulated", buffer=tight), replay()
        for one, other in zip(noisy, plain, strict=True):
            assert_same(one, other)


@product("bad,device,seed", [0, 3, 7], ["cpu", "simulated-cuda"], [*range(4)])
def test_eio_comes_at_its_turn(replay, store, graph, tight, bad, seed, device, monkeypatch):
    """Earlier batches are delivered; the other recording is whole."""
    at = first_of(replay(), bad) + 10 * ROW_BYTES  # no other batch has a row in this sector
    faults = Faults(eio_offsets=((at, at + 1),), short=0.2, delay_turns_max=seed)
    simulate(monkeypatch, seed, faults)
    loader = replay(engine="simulated", buffer=tight, device=device)
    for _ in range(2):
        loader.set_epoch(0)
        delivered = []
        with pytest.raises(ReadError) as caught:  # noqa: PT012
            for batch in loader:
                check_rows(batch, graph)
                delivered.append(batch)
        assert len(delivered) == bad
        assert caught.value.errno == errno.EIO
        assert Path(caught.value.path) == pack_folder(store) / "rows" / "nodes" / "x.npy"
        assert abs(caught.value.offset - at) < 70_000
    assert len(list(loader)) == BATCHES


def test_a_hot_row_that_cannot_be_read(replay, monkeypatch):
    """The first batch of each epoch has the error, because all wait for the hot rows."""
    at = DATA_OFFSET
    simulate(monkeypatch, 0, Faults(eio_offsets=((at, at + 1),)))
    loader = replay(engine="simulated", buffer="1MB")
    for _ in range(3):
        with pytest.raises(ReadError):
            next(iter(loader))
