"""split_links: the invariants of PyG's RandomLinkSplit, on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

import gnndrive
from gnndrive import Store, open_links, split_links
from gnndrive.store.importers import to_undirected
from tests.store.link_split.graphs import (
    NODES,
    check_against_pyg,
    distinct,
    graph,
    halves,
    halves_count,
    of,
    pairs,
)


@pytest.mark.parametrize("disjoint", [0.0, 0.3])
@pytest.mark.parametrize("undirected", [False, True])
def test_the_parts_are_as_in_pyg(
    data: Data, tmp_path: Path, undirected: bool, disjoint: float
) -> None:
    if undirected:
        ends = to_undirected(*data.edge_index.numpy(), NODES)
        data = graph(torch.from_numpy(np.stack(ends)))
    store = gnndrive.from_data(data, tmp_path / "s.gnn")
    before = {file: file.read_bytes() for file in store.path.rglob("*.*") if file.is_file()}
    arguments: Any = {"is_undirected": undirected, "disjoint_train_ratio": disjoint}
    parts = split_links(store, **arguments)
    assert parts.train.path == tmp_path / "s-links.gnn"
    check_against_pyg(parts, RandomLinkSplit(**arguments)(data), undirected)
    whole = pairs(data.edge_index)
    messages = [pairs(of(part)) for part in parts]
    labelled = [halves(part)[0] for part in parts]
    empty = [halves(part)[1] for part in parts]
    # Messages grow from part to part, and no part's messages hold what a later part predicts.
    assert messages[0] <= messages[1] <= messages[2] <= whole
    assert not labelled[1] & messages[1]
    assert not labelled[2] & messages[2]
    assert not labelled[0] & labelled[1]
    assert not (labelled[0] | labelled[1]) & labelled[2]
    assert (messages[0] == messages[1]) == (disjoint == 0)
    assert bool(labelled[0] & messages[0]) == (disjoint == 0)
    assert labelled[1] <= messages[2]
    back = {(v, u) for u, v in labelled[2]}
    if undirected:
        assert all(u <= v for each in labelled for u, v in each)
        assert all({(v, u) for u, v in each} == each for each in messages)
        assert not back & messages[2]
        assert messages[2] | labelled[2] | back == whole
    else:
        assert messages[2] | labelled[2] == whole
    # Pairs without an edge: none is an edge anywhere, a loop, or in two parts.
    assert not any(each & whole for each in empty)
    assert all(u != v for each in empty for u, v in each)
    assert len(set.union(*empty)) == sum(map(len, empty))
    assert before == {file: file.read_bytes() for file in before}


def test_edges_keep_their_attributes_and_order(store: Store) -> None:
    for part in split_links(store, disjoint_train_ratio=0.5):
        part.verify()
        source, target = of(part)
        code = part.tensor("edges/code")
        assert torch.equal(code[:, 1], torch.from_numpy(source * NODES + target).int())
        weight = part.tensor("edges/weight").long()
        assert torch.equal(
            store.edge_index[:, weight], torch.from_numpy(np.stack([source, target]))
        )
        assert (weight.diff() > 0).all()
        assert torch.equal(part.tensor("edges/half"), store.tensor("edges/half")[weight])
        assert torch.equal(part.tensor("x"), store.tensor("x"))
        assert torch.equal(part.split("train"), store.split("train"))
        assert part.num_classes == store.num_classes == 3


def test_nodes_are_shared_and_stores_independent(store: Store, data: Data) -> None:
    train, _, test = split_links(store)
    inode = os.stat(store.path / "nodes/x.npy").st_ino
    assert {os.stat(part.path / "nodes/x.npy").st_ino for part in (train, test)} == {inode}
    gnndrive.from_data(Data(edge_index=torch.zeros(2, 1).long(), num_nodes=2), store.path,
                       overwrite=True)  # fmt: skip
    train.verify()
    assert torch.equal(open_links(train.path).test.tensor("x"), data.x)


def test_without_links_of_the_file_system_files_are_copied(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    train = split_links(store).train
    assert os.stat(train.path / "nodes/x.npy").st_nlink == 1
    train.verify()


def test_edges_without_numbers(tmp_path: Path) -> None:
    indptr = np.arange(0, 401, 4)
    store = gnndrive.write_store(
        tmp_path / "s", indptr=indptr, indices=np.random.default_rng(0).integers(0, 100, 400),
        nodes={}, edges={"row": np.arange(400)},
    )  # fmt: skip
    for part in split_links(store, tmp_path / "p"):
        assert part.edge_id is None
        row = part.tensor("edges/row")
        assert np.array_equal(of(part), of(store)[:, row])


def test_copies_of_an_edge_stay_together(tmp_path: Path) -> None:
    one = distinct(NODES, 300)
    store = gnndrive.from_data(
        Data(edge_index=torch.cat([one, one, one], 1), num_nodes=NODES), tmp_path / "s"
    )
    train, val, test = split_links(store, num_val=100, num_test=150)
    assert (98 <= halves_count(val) <= 100, 147 <= halves_count(test) <= 150) == (True, True)
    assert not pairs(of(test)) & halves(test)[0]
    assert not pairs(of(train)) & halves(val)[0]
