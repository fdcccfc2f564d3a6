"""ImbalancedSampler: classes are equally likely on a store, and draws are PyG's."""

import copy
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler as PyGImbalancedSampler

import gnndrive
from gnndrive import ConfigError, ImbalancedSampler, Store
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
    drawn = []
    for kind, given in (
        (PyGImbalancedSampler, data), (ImbalancedSampler, store), (ImbalancedSampler, data),
    ):  # fmt: skip
        torch.manual_seed(1)
        drawn.append(list(kind(given, nodes)))
    assert drawn[0] == drawn[1] == drawn[2]
    assert list(ImbalancedSampler(store, nodes, num_samples=7)) != drawn[0][:7]


def test_more_nodes_than_torch_draws_among(store, monkeypatch):
    monkeypatch.setattr(imbalanced_sampler, "_MULTINOMIAL_MAX", 900)
    monkeypatch.setattr(imbalanced_sampler, "_STEP", 7000)
    drawn = torch.tensor(list(ImbalancedSampler(store, num_samples=20_000)))
    times = drawn.bincount(minlength=NODES)
    assert abs(int(times[RARE].sum()) - 10_000) < 500
    assert times[RARE].min() > 50
    assert times[~RARE].max() < 50
    assert times.min() > 0


def test_labels_that_were_set_are_those_that_count(store, tmp_path):
    mine = copy.copy(store)
    mine.y = torch.where(torch.arange(NODES) < 5, 0, 1)
    drawn = torch.tensor(list(ImbalancedSampler(mine)))
    assert 300 < int((drawn < 5).sum()) < 700
    data = HeteroData()
    data["paper"].y, data["paper"].num_nodes = torch.tensor([0, 1, 1, 1]), 4
    data["author"].num_nodes = 3
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 3]])
    types = gnndrive.from_data(data, tmp_path / "types")
    assert len(ImbalancedSampler(types, "paper")) == 4
    assert set(ImbalancedSampler(types, ("paper", [3, 2]))) <= {0, 1}
    del mine.y
    for given in ((types, "author"), (mine,)):
        with pytest.raises(ConfigError, match="has no labels y"):
            ImbalancedSampler(*given)


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
