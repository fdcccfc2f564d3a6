"""ImbalancedSampler: classes are equally likely on a store, and draws are PyG's."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler as PyGImbalancedSampler

import gnndrive
from gnndrive import ConfigError, ImbalancedSampler, NeighborLoader, Store
from gnndrive.loader import imbalanced_sampler

NODES = 1000
RARE = torch.arange(NODES) % 10 == 0


@pytest.fixture
def data() -> Data:
    return Data(
        x=torch.randn(NODES, 2),
        y=torch.where(RARE, 0, 2),
        edge_index=torch.randint(NODES, (2, 2000)),
    )


@pytest.fixture
def store(data: Data, tmp_path: Path) -> Store:
    return gnndrive.from_data(data, tmp_path / "s")


@pytest.mark.parametrize("nodes", [None, torch.arange(500), RARE | (torch.arange(NODES) < 300)])
def test_draws_are_pygs(store, data, nodes):
    torch.manual_seed(1)
    expected = list(PyGImbalancedSampler(data, nodes))
    torch.manual_seed(1)
    assert list(ImbalancedSampler(store, nodes)) == expected
    assert list(ImbalancedSampler(store, nodes, num_samples=7)) != expected[:7]
    torch.manual_seed(1)
    assert list(ImbalancedSampler(data, nodes)) == expected


def test_a_loader_sees_every_class_equally_often(store):
    torch.manual_seed(0)
    nodes = torch.arange(NODES).flip(0)[:800]
    sampler = ImbalancedSampler(store, input_nodes=nodes)
    with NeighborLoader(store, [2], nodes, batch_size=100, sampler=sampler) as loader:
        seen = torch.cat([batch.y[: batch.batch_size] for batch in loader]).bincount()
    assert seen[1] == 0
    assert 330 < seen[0] < 470
    assert seen.sum() == 800


def test_more_nodes_than_torch_draws_among(store, monkeypatch):
    monkeypatch.setattr(imbalanced_sampler, "_MULTINOMIAL_MAX", 900)
    monkeypatch.setattr(imbalanced_sampler, "_STEP", 7000)
    drawn = torch.tensor(list(ImbalancedSampler(store, num_samples=20_000)))
    times = drawn.bincount(minlength=NODES)
    assert abs(int(times[RARE].sum()) - 10_000) < 500
    assert times[RARE].min() > 50
    assert times[~RARE].max() < 50
    assert times.min() > 0


def test_types(tmp_path):
    data = HeteroData()
    data["paper"].y, data["paper"].num_nodes = torch.tensor([0, 1, 1, 1]), 4
    data["author"].num_nodes = 3
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 3]])
    store = gnndrive.from_data(data, tmp_path / "s")
    assert len(ImbalancedSampler(store, "paper")) == 4
    assert set(ImbalancedSampler(store, ("paper", [3, 2]))) <= {0, 1}
    with pytest.raises(ConfigError, match="has no labels y"):
        ImbalancedSampler(store, "author")


def test_labels_that_were_set_are_those_that_count(store):
    mine = copy.copy(store)
    mine.y = torch.where(torch.arange(NODES) < 5, 0, 1)
    drawn = torch.tensor(list(ImbalancedSampler(mine)))
    assert 300 < int((drawn < 5).sum()) < 700
    for change in (lambda: setattr(mine, "y", [1, 2]), lambda: delattr(mine, "y")):
        change()
        with pytest.raises(ConfigError, match="has no labels y"):
            ImbalancedSampler(mine)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.rand(NODES), "one class for each node"),
        (torch.zeros(NODES, 2, dtype=torch.long), "one class for each node"),
        (torch.arange(NODES) - 5, "5 of the 1000 input nodes have no label"),
    ],
)
def test_labels_that_are_no_classes_are_refused(data, tmp_path, y, words):
    data.y = y
    with pytest.raises(ConfigError, match=words):
        ImbalancedSampler(gnndrive.from_data(data, tmp_path / "y"))
