"""A store that was overwritten behind an older Store object: old data or StoreError, never both."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import NeighborLoader, Store, StoreError
from gnndrive.disk.row_reader import RowReader
from gnndrive.store import derived_writer, reader

NODES = 60


def graph(number: int) -> Data:
    """Graphs of the same size, whose rows, labels, years and edges all tell their number."""
    draw = torch.Generator().manual_seed(number)
    return Data(
        x=torch.full((NODES, 4), float(number)),
        y=torch.full((NODES,), number),
        year=torch.full((NODES,), number),
        edge_index=torch.randint(0, NODES, (2, 400), generator=draw),
        train_mask=torch.arange(NODES) % 5 == number,
    )


def write(number: int, path: Path) -> Store:
    return gnndrive.from_data(graph(number), path, if_exists="replace")


@pytest.fixture
def store(tmp_path):
    return write(0, tmp_path / "s.gnn")


USES: dict[str, Callable[[Store], Any]] = {
    "array": lambda store: store.indices,
    "index pointers": lambda store: store.index_pointers,
    "tensor": lambda store: store.nodes().tensor("x"),
    "split": lambda store: store.split("train"),
    "verify": lambda store: store.verify(),
    "rows": lambda store: RowReader(store).read([("nodes/x", torch.arange(3).numpy())]),
    "pickle": lambda store: pickle.loads(pickle.dumps(store)),
    "call": lambda store: NeighborLoader(store, [3], batch_size=4)(torch.arange(3)),
    "resident": lambda store: next(iter(NeighborLoader(store, [3], batch_size=4))),
    "labels": lambda store: NeighborLoader(store, [3], batch_size=4)._collate._labels["nodes/y"]
    .read(),
}  # fmt: skip


def test_every_use_of_an_overwritten_store_is_refused(store):
    write(1, store.path)
    for use in USES.values():
        with pytest.raises(StoreError, match="overwritten"):
            use(store)


@pytest.mark.parametrize(("topology", "taken"), [("resident", 2), ("mmap", 0), ("direct", 1)])
def test_a_running_loader_never_mixes(store, topology, taken):
    data = graph(0)
    with NeighborLoader(
        store, [3], batch_size=4, tuning=gnndrive.Tuning(topology=topology), seed=0
    ) as loader:
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(taken)]
        write(1, store.path)
        try:
            batches += list(iterator)
        except StoreError as error:
            assert "overwritten" in str(error)  # noqa: PT017 - either is right
        for batch in batches:
            assert not batch.x.any()
            assert not batch.y.any()
            assert not batch.year.any()
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_a_copy_of_the_same_store_is_the_same(store, tmp_path):
    shutil.copytree(store.path, tmp_path / "copy")
    shutil.rmtree(store.path)
    os.rename(tmp_path / "copy", store.path)
    (store.path / "more.json").write_text("{}")
    assert not store.nodes().tensor("x").any()
    assert len(list(NeighborLoader(store, [3], batch_size=20))) == 3
    assert pickle.loads(pickle.dumps(store)).identity == store.identity


def test_overwriting_while_a_store_is_opened(store, monkeypatch):
    """Opening starts again; what it returns is of one store."""
    calls, open_checked = [], reader.open_checked

    def overwriting(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            write(1, store.path)
        return open_checked(*arguments)

    monkeypatch.setattr(reader, "open_checked", overwriting)
    opened = gnndrive.open(store.path)
    monkeypatch.undo()
    assert opened.nodes().tensor("x").unique().tolist() == [1]
    assert np.array_equal(opened.indptr, opened.index_pointers)


@pytest.mark.parametrize("when", ["before", "meanwhile", "removed"])
def test_a_split_never_mixes_two_stores(store, tmp_path, when, monkeypatch):
    assert store.indptr[-1] == len(store.indices) == len(store.edge_id)  # mapped from here on
    link = derived_writer._link_or_copy

    def late(source: Path, file: Path) -> None:
        link(source, file)
        if source.name == "x.npy":
            write(1, store.path)

    if when == "before":
        write(1, store.path)
    elif when == "removed":
        shutil.rmtree(store.path)
    else:
        monkeypatch.setattr(derived_writer, "_link_or_copy", late)
    with pytest.raises(StoreError, match="overwritten or removed"):
        gnndrive.split_links(store, tmp_path / "links.gnn")
    assert os.listdir(tmp_path) == ([] if when == "removed" else ["s.gnn"])
