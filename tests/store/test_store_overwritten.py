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
    return gnndrive.from_data(graph(number), path, overwrite=True)


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A store of graph 0, at whose path graph 1 lies now."""
    old = write(0, tmp_path / "s.gnn")
    write(1, old.path)
    return old


USES: dict[str, Callable[[Store], Any]] = {
    "array": lambda store: store.indices,
    "index pointers": lambda store: store.index_pointers,
    "tensor": lambda store: store.nodes().tensor("x"),
    "split": lambda store: store.split("train"),
    "verify": lambda store: store.verify(),
    "rows": lambda store: RowReader(store).read([("nodes/x", torch.arange(3).numpy())]),
    "pickle": lambda store: pickle.loads(pickle.dumps(store)),
    "call": lambda store: NeighborLoader(store, [3], batch_size=4)(torch.arange(3)),
    "labels": lambda store: NeighborLoader(store, [3], batch_size=4)._collate._labels["nodes/y"]
    .read(),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_every_use_of_an_overwritten_store_is_refused(old: Store, use: str) -> None:
    with pytest.raises(StoreError, match="overwritten"):
        USES[use](old)


@pytest.mark.parametrize("topology", ["resident", "mmap", "direct"])
def test_a_loader_over_an_overwritten_store_is_refused(old: Store, topology: str) -> None:
    loader = NeighborLoader(old, [3], batch_size=4, topology=topology)
    for _ in range(2):
        with pytest.raises(StoreError, match="open it again"):
            next(iter(loader))


@pytest.mark.parametrize("topology", ["resident", "mmap", "direct"])
def test_a_running_loader_never_mixes(tmp_path: Path, topology: str) -> None:
    store = write(0, tmp_path / "s.gnn")
    data = graph(0)
    for taken in range(3):
        loader = NeighborLoader(store, [3], batch_size=4, topology=topology, seed=0)
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
        loader.close()
        store = write(0, store.path)


def test_a_copy_of_the_same_store_is_the_same(tmp_path: Path) -> None:
    store = write(0, tmp_path / "s.gnn")
    shutil.copytree(store.path, tmp_path / "copy")
    shutil.rmtree(store.path)
    os.rename(tmp_path / "copy", store.path)
    assert not store.nodes().tensor("x").any()
    assert len(list(NeighborLoader(store, [3], batch_size=20))) == 3
    assert pickle.loads(pickle.dumps(store)).identity == store.identity


def test_a_file_beside_store_json_does_not_count(tmp_path: Path) -> None:
    store = write(0, tmp_path / "s.gnn")
    (store.path / "more.json").write_text("{}")
    assert not store.nodes().tensor("x").any()


def test_a_removed_store_is_refused(tmp_path: Path) -> None:
    store = write(0, tmp_path / "s.gnn")
    shutil.rmtree(store.path)
    with pytest.raises(StoreError, match="overwritten or removed"):
        next(iter(NeighborLoader(store, [3], batch_size=4)))


def test_overwriting_while_a_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening starts again; what it returns is of one store."""
    path = write(0, tmp_path / "s.gnn").path
    monkeypatch.setattr(reader, "open_checked", overwriting(reader.open_checked, path))
    opened = gnndrive.open(path)
    monkeypatch.undo()
    assert opened.nodes().tensor("x").unique().tolist() == [1]
    assert np.array_equal(opened.indptr, opened.index_pointers)


def overwriting(function: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """`function`, before whose third call the store is overwritten."""
    calls = []

    def wrapped(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            write(1, path)
        return function(*arguments)

    return wrapped


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_split_never_mixes_two_stores(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write(0, tmp_path / "s.gnn")
    assert store.indptr[-1] == len(store.indices) == len(store.edge_id)  # mapped from here on
    link = derived_writer._link_or_copy

    def late(source: Path, file: Path) -> None:
        link(source, file)
        if source.name == "x.npy":
            write(1, store.path)

    if when == "before":
        write(1, store.path)
    else:
        monkeypatch.setattr(derived_writer, "_link_or_copy", late)
    with pytest.raises(StoreError, match="overwritten"):
        gnndrive.split_links(store, tmp_path / "links.gnn")
    assert [each.name for each in tmp_path.iterdir()] == ["s.gnn"]


def test_a_split_of_a_store_that_was_removed_says_so(tmp_path: Path) -> None:
    store = write(0, tmp_path / "s.gnn")
    assert store.indptr[-1] == len(store.indices) == len(store.edge_id)
    shutil.rmtree(store.path)
    with pytest.raises(StoreError, match="overwritten or removed"):
        gnndrive.split_links(store, tmp_path / "links.gnn")
