"""A layer that uses more of the graph than a batch has is refused before a row is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GraphSAGE, HeteroConv, MessagePassing, SAGEConv
from torch_geometric.utils import add_self_loops, degree, scatter

import gnndrive
from gnndrive import ConfigError, Store
from gnndrive.inference import infer
from gnndrive.inference.layers import Layers
from tests.inference.conftest import COLUMNS, NODES

BATCH = 50
Layer = Callable[[Any, Any], Any]


class TutorialGCN(MessagePassing):
    """The conv of PyG's tutorial, which counts degrees in the edges that it is given."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = torch.nn.Linear(COLUMNS, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        source, target = edge_index
        root = degree(target, x.size(0)).pow(-0.5)
        norm = root[source] * root[target]
        out: torch.Tensor = self.propagate(edge_index, x=self.lin(x), norm=norm)
        return out

    def message(self, x_j: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return norm.view(-1, 1) * x_j


def centred(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def two_hops(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    source, target = edge_index
    once = scatter(x[source], target, dim_size=len(x))
    return scatter(once[source], target, dim_size=len(x))


class IntoOneBuffer(torch.nn.Module):
    """Returns the same memory each time."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "out"):
            self.out = torch.empty(NODES * 20, COLUMNS)
        return self.out[: len(x)].copy_(x - x.mean(0))


def halved_in_place(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x.mul_(0.5) - x.mean(0)


@pytest.mark.parametrize(
    "layer",
    [TutorialGCN(), centred, two_hops, IntoOneBuffer(), halved_in_place],
)
def test_it_is_refused(layer: Layer, store: Store):
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=r"layer 1 computes other rows.*edge_weight="):
        infer([layer], store, batch_size=BATCH)
    assert "h" not in gnndrive.open(store.path).node_names


def of_sources(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """Of the ends of in-edges, whatever is asked for is there."""
    source, target = edge_index
    joined = torch.cat([x[source], x[target]], dim=1)
    return scatter(joined.relu(), target, dim_size=len(x), reduce="max")


def degrees_of_targets(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """A target's own in-degree is that of the whole graph."""
    return x * degree(edge_index[1], len(x)).view(-1, 1)


def doubled_in_place(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    "layer",
    [of_sources, doubled_in_place, degrees_of_targets, SAGEConv(COLUMNS, 4), GCNConv(COLUMNS, 4),
     GATConv(COLUMNS, 4), SAGEConv(COLUMNS, 4, aggr="median")],
)  # fmt: skip
def test_what_inference_can_do_is_not_refused(layer: Layer, store: Store, data: Data):
    infer([layer], store, batch_size=BATCH)
    edges = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    with torch.inference_mode():
        wanted = layer(data.x.clone(), edges)
    assert torch.allclose(
        store.tensor("h"), wanted, atol=1e-3
    )  # test_equal.py compares more closely


def test_batches_without_edges_to_others(tmp_path: Path):
    ends = torch.arange(200)
    graph = Data(x=torch.randn(200, 3), edge_index=torch.stack([ends, ends ^ 1]))
    store = gnndrive.from_data(graph, tmp_path / "pairs.gnn")
    with pytest.raises(ConfigError, match="layer 1 computes other rows"):
        infer([centred], store, batch_size=BATCH)


def test_models_that_may_leave_out_nodes_are_known():
    """On a GPU such a model is not tried. A compiled model has the methods of the one inside."""
    model: Any = GraphSAGE(8, 8, 2, 4)
    compiled: Any = torch.nn.Module()
    compiled.num_layers, compiled.inference_per_layer = 2, model.inference_per_layer
    assert not Layers(model, None).may_leave_out
    assert not Layers(compiled, None).may_leave_out
    assert Layers(LeavesOut(), None).may_leave_out


def test_padding_that_is_read_is_said(store: Store):
    with pytest.warns(UserWarning, match=r"LSTMAggregation pads.*mean"):
        infer([SAGEConv(COLUMNS, 4, aggr="lstm")], store, batch_size=BATCH)
    assert "h" in store.node_names


def test_what_is_added_has_rows_that_there_are(tmp_path: Path):
    graph = Data(x=torch.arange(200), edge_index=torch.randint(0, 200, (2, 900)), num_nodes=200)
    store = gnndrive.from_data(graph, tmp_path / "ids.gnn")
    embedding = torch.nn.Embedding(200, 3)
    infer([lambda x, edge_index: embedding(x.long())], store, batch_size=BATCH)
    assert torch.equal(store.tensor("h"), embedding.weight)
    with pytest.raises(ConfigError, match="layer 1 computes other rows"):
        infer([lambda x, edge_index: x - x.sum()], store, name="w", batch_size=BATCH)


class LeavesOut(torch.nn.Module):
    """A model that gives its conv the targets alone, which takes no edges into other nodes."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv((COLUMNS, COLUMNS), 3)

    def inference_per_layer(self, layer: int, x: Any, edge_index: Any, batch_size: int) -> Any:
        return self.conv((x, x[:batch_size]), edge_index)


def test_targets_alone(store: Store, data: Data):
    model = LeavesOut()
    infer(model, store, batch_size=BATCH)
    with torch.inference_mode():
        wanted = model.conv((data.x, data.x), data.edge_index)
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)


def test_a_layer_that_draws_is_not_refused(store: Store):
    infer([lambda x, edge_index: x + torch.rand_like(x)], store, batch_size=BATCH)
    assert "h" in store.node_names


@pytest.mark.filterwarnings("ignore:There exist node types")  # venues have no in-edges
def test_several_types(hetero_store: Store, hetero: HeteroData):
    right = HeteroConv({key: SAGEConv((-1, -1), 4) for key in hetero.edge_types})
    with torch.no_grad():  # it makes the parameters
        right(hetero.x_dict, hetero.edge_index_dict)

    def wrong(x: Any, edge_index: Any) -> Any:
        made = right(x, edge_index)
        return made | {"paper": made["paper"] - x["author"].mean()}

    infer([right], hetero_store, batch_size=BATCH)
    with pytest.raises(ConfigError, match="layer 1 computes other rows"):
        infer([wrong], hetero_store, name="w", batch_size=BATCH)


def test_weights_go_with_the_edges(store: Store, data: Data):
    conv = GCNConv(COLUMNS, 4)
    infer([conv], store, batch_size=BATCH, edge_weight="weight")
    with torch.inference_mode():
        wanted = conv(data.x, data.edge_index, data.weight)
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)
