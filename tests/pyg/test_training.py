"""Models learn the same from a store as from PyG's own loaders in memory: they reach the same
metric on graphs of known structure, with the same seeds, first weights and epochs.

With all neighbours, each batch is the same to the last edge, and so is each loss. With a few
neighbours, which the loaders draw by different random numbers, the metric must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader as PyGLinkNeighborLoader
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, NeighborSampler

CLASSES, PAPERS, AUTHORS = 4, 400, 160
WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
NODES, EDGES = 300, 2400
STORE = {"buffer": "40KB", "io_depth": 16, "seed": 3}


def drawn_near(
    own: torch.Tensor, classes: torch.Tensor, share: float, draw: torch.Generator
) -> torch.Tensor:
    """Draw a node for each class of `own`; with probability `share`, the node has that class."""
    any_one = torch.randint(0, len(classes), own.shape, generator=draw)
    members = [(classes == each).nonzero().view(-1) for each in range(CLASSES)]
    same = torch.stack(
        [members[each][int(torch.randint(len(members[each]), (), generator=draw))] for each in own]
    )
    return torch.where(torch.rand(own.shape, generator=draw) < share, same, any_one)


# ---- node classification, several types


def papers() -> HeteroData:
    """Papers whose features hint at their class, and authors who write mostly about one class."""
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    y = torch.randint(0, CLASSES, (PAPERS,), generator=draw)
    kind = torch.arange(AUTHORS) % CLASSES
    hints = torch.nn.functional.one_hot(y, CLASSES) * 0.8
    data["paper"].x = torch.randn(PAPERS, CLASSES, generator=draw) + hints
    data["paper"].y = y
    data["paper"].train_mask = torch.arange(PAPERS) < 250
    data["author"].x = torch.randn(AUTHORS, 6, generator=draw)
    paper = torch.arange(PAPERS).repeat(6)
    author = drawn_near(y[paper], kind, 0.85, draw)
    data[WRITES].edge_index = torch.stack([author, paper])
    data[WRITTEN].edge_index = torch.stack([paper, author])
    return data


class PaperGNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = {"paper": CLASSES, "author": 6}
        self.embed = torch.nn.ModuleDict(
            {name: torch.nn.Linear(width, 16) for name, width in widths.items()}
        )
        self.layers = torch.nn.ModuleList(
            HeteroConv({WRITES: SAGEConv(16, 16), WRITTEN: SAGEConv(16, 16)}) for _ in range(2)
        )
        self.head = torch.nn.Linear(16, CLASSES)

    def forward(self, batch: HeteroData) -> torch.Tensor:
        x = {name: layer(batch[name].x) for name, layer in self.embed.items()}
        for layer in self.layers:
            x = {name: rows.relu() for name, rows in layer(x, batch.edge_index_dict).items()}
        size = batch["paper"].batch_size
        return self.head(x["paper"][:size])


def classify(train: Any, test: Any, epochs: int) -> tuple[list[float], float]:
    """Train; return the losses, and the accuracy on the papers of `test`."""
    torch.manual_seed(7)
    model = PaperGNN()
    steps = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(epochs):
        for batch in train:
            y = batch["paper"].y[: batch["paper"].batch_size]
            loss = torch.nn.functional.cross_entropy(model(batch), y)
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses.append(loss.item())
    right = count = 0
    with torch.no_grad():
        for batch in test:
            y = batch["paper"].y[: batch["paper"].batch_size]
            right += int((model(batch).argmax(dim=1) == y).sum())
            count += len(y)
    return losses, right / count


@pytest.mark.parametrize("fanout", [[-1, -1], [4, 4]])
def test_node_classification_of_several_types(tmp_path: Path, fanout: list[int]) -> None:
    data = papers()
    store = gnndrive.from_data(data, tmp_path / "papers.gnn")
    mask = data["paper"].train_mask

    def in_memory(seeds: Any) -> Any:
        sampler = NeighborSampler(data, fanout)
        return PyGNeighborLoader(
            data, fanout, input_nodes=("paper", seeds), batch_size=50, neighbor_sampler=sampler
        )

    expected, accuracy = classify(in_memory(mask), in_memory(~mask), 10)
    with (
        NeighborLoader(store, fanout, ("paper", mask), batch_size=50, **STORE) as train,
        NeighborLoader(store, fanout, ("paper", ~mask), batch_size=50, **STORE) as test,
    ):
        losses, from_store = classify(train, test, 10)
    assert accuracy > 0.75  # with the papers' features alone, a model stays below 0.5
    if fanout[0] < 0:
        assert losses == pytest.approx(expected, abs=1e-3)
        assert from_store == pytest.approx(accuracy, abs=0.01)
    else:
        assert losses != pytest.approx(expected, abs=1e-3)
        assert from_store == pytest.approx(accuracy, abs=0.06)


# ---- link prediction


def communities() -> Data:
    """Nodes of four communities with most links inside; features hint at the community."""
    draw = torch.Generator().manual_seed(0)
    kind = torch.arange(NODES) % CLASSES
    source = torch.randint(0, NODES, (EDGES,), generator=draw)
    target = drawn_near(kind[source], kind, 0.9, draw)
    hints = torch.nn.functional.one_hot(kind, CLASSES)
    return Data(
        x=torch.randn(NODES, CLASSES, generator=draw) + hints,
        edge_index=torch.stack([source, target]),
    )


class LinkGNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(CLASSES, 16), SAGEConv(16, 16)

    def forward(self, batch: Data) -> torch.Tensor:
        x = self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)
        source, target = batch.edge_label_index
        return (x[source] * x[target]).sum(dim=1)


def area(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of pairs of an edge and a non-edge with the higher score for the edge (ROC AUC)."""
    edge, none = scores[labels > 0], scores[labels == 0]
    return float((edge[:, None] > none[None]).float().mean())


def predict(train: Any, test: Any, epochs: int) -> tuple[list[float], float]:
    """Train; return the losses, and the area under the ROC curve on the edges of `test`."""
    torch.manual_seed(7)
    model = LinkGNN()
    steps = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(epochs):
        for batch in train:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model(batch), batch.edge_label.float()
            )
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses.append(loss.item())
    with torch.no_grad():
        found = [(model(batch), batch.edge_label) for batch in test]
    scores, labels = (torch.cat(each) for each in zip(*found, strict=True))
    return losses, area(scores, labels)


@pytest.mark.parametrize("given", [True, False], ids=["negatives given", "negatives drawn"])
def test_link_prediction(tmp_path: Path, given: bool) -> None:
    whole = communities()
    known, held = whole.edge_index[:, :2000], whole.edge_index[:, 2000:]
    data = Data(x=whole.x, edge_index=known)
    store = gnndrive.from_data(data, tmp_path / "communities.gnn")
    fanout = [-1, -1] if given else [6, 6]

    def arguments(edges: torch.Tensor, drawn: bool) -> dict[str, Any]:
        if drawn:
            return {"edge_label_index": edges, "neg_sampling": "binary", "batch_size": 200}
        draw = torch.Generator().manual_seed(1)
        none = torch.randint(0, NODES, edges.shape, generator=draw)
        order = torch.randperm(2 * edges.shape[1], generator=draw)
        label = torch.cat([torch.ones(edges.shape[1]), torch.zeros(none.shape[1])])
        return {
            "edge_label_index": torch.cat([edges, none], dim=1)[:, order],
            "edge_label": label[order], "batch_size": 400,
        }  # fmt: skip

    def in_memory(edges: torch.Tensor, drawn: bool) -> Any:
        sampler = NeighborSampler(data, fanout)
        return PyGLinkNeighborLoader(
            data, fanout, neighbor_sampler=sampler, **arguments(edges, drawn)
        )

    expected, in_pyg = predict(in_memory(known, not given), in_memory(held, False), 8)
    with (
        LinkNeighborLoader(store, fanout, **arguments(known, not given), **STORE) as train,
        LinkNeighborLoader(store, fanout, **arguments(held, False), **STORE) as test,
    ):
        losses, from_store = predict(train, test, 8)
    assert in_pyg > 0.8
    if given:
        assert losses == pytest.approx(expected, abs=1e-3)
        assert from_store == pytest.approx(in_pyg, abs=0.01)
    else:
        assert losses != pytest.approx(expected, abs=1e-3)
        assert from_store == pytest.approx(in_pyg, abs=0.05)
