"""Training on replayed batches is training on the same batches from memory, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from tests.loader.diskgnn.conftest import ARGUMENTS, Replay
from tests.loader.diskgnn.packs import least_buffer

EPOCHS, CLASSES = 4, 7


class SAGE(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(20, 16), SAGEConv(16, CLASSES)])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Scores of all nodes [nodes, classes]."""
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Sums are added in one order."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def train(epochs: Iterable[Iterable[Data]]) -> list[float]:
    """The loss of each batch."""
    torch.manual_seed(0)
    model, losses = SAGE(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in epochs:
        for batch in epoch:
            optimizer.zero_grad()
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(scores, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def from_memory(batches: Iterable[Data], graph: Data) -> Iterator[Data]:
    """The recorded samples with rows taken from the graph in memory."""
    for batch in batches:
        made: Any = Data(x=graph.x[batch.n_id], edge_index=graph.edge_index[:, batch.e_id])
        local = torch.full((graph.num_nodes,), -1)
        local[batch.n_id] = torch.arange(len(batch.n_id))
        made.edge_index = local[made.edge_index]
        made.y, made.batch_size = graph.y[batch.n_id], batch.batch_size
        yield made


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_losses_are_equal_bit_for_bit(replay: Replay, graph: Data, engine: str) -> None:
    """With a buffer that is far too small, and with one that holds all hot rows."""
    recorded = replay(buffer="4MB")
    epochs = [list(from_memory(recorded, graph)) for _ in range(EPOCHS)]
    expected = train(epochs)
    assert len(set(expected)) > len(expected) // 2
    small = least_buffer(recorded.data, ARGUMENTS)
    for buffer in (small, "4MB"):
        loader = replay(engine=engine, buffer=buffer)
        assert train(loader for _ in range(EPOCHS)) == expected
