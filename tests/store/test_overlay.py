"""What is set on a store counts wherever the store is asked: splits, classes, names."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, Store

NODES, EDGES = 60, 400


@pytest.fixture
def data() -> Data:
    return Data(
        x=torch.randn(NODES, 3),
        y=torch.arange(NODES) % 4,
        train_mask=torch.arange(NODES) % 2 == 0,
        val_mask=torch.arange(NODES) % 2 == 1,
        edge_index=torch.randint(NODES, (2, EDGES)),
    )


@pytest.fixture
def store(data: Data, tmp_path: Path) -> Store:
    return gnndrive.from_data(data, tmp_path / "data.gnn")


def test_a_mask_that_was_set_is_the_split(store: Store, data: Data, tmp_path: Path) -> None:
    mine = gnndrive.open(store.path)
    mine.train_mask = torch.arange(NODES) < 7
    assert mine.split("train").tolist() == list(range(7))
    mine.pred_mask = torch.arange(NODES) == 9
    assert mine.split("pred").tolist() == [9]
    assert mine.split_names == ("train", "val", "pred")
    assert torch.equal(mine.split("val"), torch.nonzero(data.val_mask).view(-1))
    assert torch.equal(store.split("train"), torch.nonzero(data.train_mask).view(-1))
    mine.train_mask = torch.ones(NODES, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"train_mask was set to torch.bool \[60, 2\].*one truth"):
        mine.split("train")
    with gnndrive.StoreWriter(tmp_path / "valid", num_nodes=2, num_edges=0) as writer:
        writer.write("graph/indptr", np.zeros(3, np.int64))
        writer.write("graph/indices", np.zeros(0, np.int32))
        writer.split("valid", np.array([1]))
    named = gnndrive.open(tmp_path / "valid")
    named.val_mask = torch.tensor([True, False])
    assert named.split("valid").tolist() == named.split("val").tolist() == [0]
    assert named.valid_mask.tolist() == [False, True]


def test_classes_are_those_of_the_y_that_was_set(store: Store, tmp_path: Path) -> None:
    mine = gnndrive.open(store.path)
    for y, count in (
        (torch.arange(NODES) % 9, 9),
        (torch.rand(NODES), 0),
        (torch.zeros(NODES, 5), 5),
        (np.arange(NODES) % 3, 3),
        ([1, 2], 0),
    ):
        mine.y = y
        assert mine.num_classes == mine.nodes().num_classes == count
        assert f"num_classes={count})" in repr(mine)
    del mine.y
    assert mine.num_classes == 0
    assert store.num_classes == 4
    types = HeteroData()
    types["paper"].y, types["paper"].num_nodes = torch.arange(5) % 2, 5
    paper = gnndrive.from_data(types, tmp_path / "types.gnn")["paper"]
    assert paper.num_classes == 2
    paper.y = torch.arange(paper.num_nodes)
    assert paper.num_classes == paper.num_nodes


@pytest.mark.parametrize("name", ["path", "info", "overlay", "table", "split"])
def test_a_stores_own_names_are_not_set(store: Store, name: str) -> None:
    for change in (lambda: setattr(store, name, 3), lambda: store.__setitem__(name, 3)):
        with pytest.raises(ConfigError, match=rf"{name}' cannot be set.*choose another name"):
            change()
    assert pickle.loads(pickle.dumps(store)).keys() == store.keys()
    assert store.path.name == "data.gnn"


def test_an_import_warns_of_a_stores_own_names(data: Data, tmp_path: Path) -> None:
    data.table, data.path = torch.arange(NODES), torch.arange(EDGES)
    with pytest.warns(UserWarning, match=r"of these names: path, table\. "):
        store = gnndrive.from_data(data, tmp_path / "named.gnn")
    assert torch.equal(store["table"], data.table)
    assert torch.equal(store["path"], data.path)
    types = HeteroData()
    types["paper"].num_nodes, types["paper"].names, types["paper"].path = 5, *torch.ones(2, 5)
    with pytest.warns(UserWarning, match=r"of these names: names\. "):
        store = gnndrive.from_data(types, tmp_path / "types.gnn")
    assert torch.equal(store["paper"].path, torch.ones(5))


def test_an_import_of_other_names_does_not_warn(data: Data, tmp_path: Path) -> None:
    data.paths = torch.arange(NODES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gnndrive.from_data(data, tmp_path / "named.gnn")
