"""What inference from disk computes is what PyG computes in memory."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    GATConv,
    GCNConv,
    GraphSAGE,
    HeteroConv,
    LGConv,
    SAGEConv,
)

import gnndrive
from gnndrive import NeighborLoader, Store
from gnndrive.inference import run as run_module
from gnndrive.inference.blocks import BlockPlanner
from gnndrive.inference.infer import infer
from tests.inference.conftest import COLUMNS, least_memory
from tests.loader.hetero.graph import CITES, HOSTS, WRITES, WRITTEN

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
MODELS: dict[str, Any] = {
    "sage": partial(GraphSAGE, dropout=0.5),
    "sage last": partial(GraphSAGE, jk="last", norm="BatchNorm"),
    "gcn": partial(GCN, dropout=0.5),
    "gcn improved": partial(GCN, improved=True),
    "gcn without loops": partial(GCN, add_self_loops=False),
    "gcn cached": partial(GCN, cached=True),
    "gat": partial(GAT, heads=2, dropout=0.5),
    "gin": GIN,
    "pna": partial(
        PNA, aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([1, 2, 3])
    ),
}


def in_memory(model: Any, data: Data) -> torch.Tensor:
    """PyG's own inference, with all nodes in one batch."""
    model.eval()
    loader = NeighborLoader(data, [-1], batch_size=data.num_nodes)
    rows: torch.Tensor = model.inference(loader)
    with torch.no_grad():
        assert torch.allclose(model(data.x, data.edge_index), rows, **CLOSE)
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_models_of_pyg(name: str, data: Data, store: Store):
    torch.manual_seed(1)
    model = MODELS[name](COLUMNS, 16, 3, 5).train()
    assert infer(model, store, batch_size=53, memory="80MB") is store
    assert model.training
    assert store.tensor("h").shape == (data.num_nodes, 5)
    assert torch.allclose(store.tensor("h"), in_memory(model, data), **CLOSE)
    store.verify()


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_the_least_memory_works_and_takes_many_blocks(name, tmp_path, monkeypatch):
    torch.manual_seed(1)
    data = Data(x=torch.randn(600, COLUMNS), edge_index=torch.randint(600, (2, 1800)))
    store = gnndrive.from_data(data, tmp_path / "even.gnn")
    model = MODELS[name](COLUMNS, 16, 2, 5)
    passes, planned = list[int](), BlockPlanner.next_block
    monkeypatch.setattr(
        BlockPlanner, "next_block", lambda self: (passes.append(1), planned(self))[1]
    )
    few = partial(infer, model, store, batch_size=8, io_depth=2)
    few(memory=least_memory(few))
    assert len(passes) > 40
    assert torch.allclose(store.tensor("h"), in_memory(model, data), **CLOSE)


def test_functions_as_layers_and_several_dtypes(data: Data, store: Store, tmp_path: Path):
    first, second = SAGEConv(COLUMNS, 12).eval(), GATConv(12, 4).eval()
    layers = [lambda x, edge_index: first(x, edge_index).relu(), second]
    with torch.no_grad():
        wanted = second(first(data.x, data.edge_index).relu(), data.edge_index)
        infer(layers, store, out=tmp_path / "out")
        infer(layers, store, dtype="bfloat16")
    found = torch.from_numpy(np.load(tmp_path / "out" / "h.npy"))
    assert torch.allclose(found, wanted, **CLOSE)
    assert store.tensor("h").dtype == torch.bfloat16
    assert torch.allclose(store.tensor("h").float(), wanted, rtol=0.05, atol=0.05)


def test_half_and_scaled_integer_features_become_the_models_dtype(data: Data, tmp_path: Path):
    model = GraphSAGE(COLUMNS, 8, 1, 3)
    scale = torch.rand(data.num_nodes)
    half = Data(x=data.x.half(), edge_index=data.edge_index)
    whole = Data(
        x=(data.x * 9).to(torch.int8), edge_index=data.edge_index, x_scale=scale
    )  # fmt: skip
    for given, rows in ((half, half.x.float()), (whole, whole.x.float() * scale[:, None])):
        store = gnndrive.from_data(given, tmp_path / f"{given.x.dtype}.gnn")
        infer(model, store)
        wanted = in_memory(model, Data(x=rows, edge_index=data.edge_index))
        assert torch.allclose(store.tensor("h"), wanted, **CLOSE)


@pytest.mark.parametrize("name", ["gcn improved", "gcn without loops"])
def test_edge_weights(name: str, data: Data, store: Store):
    model = MODELS[name](COLUMNS, 8, 2, 3)
    infer(model, store, edge_weight="weight", batch_size=53)
    with torch.no_grad():
        wanted = model.eval()(data.x, data.edge_index, edge_weight=data.weight)
    assert torch.allclose(store.tensor("h"), wanted, **CLOSE)


def test_edge_attributes(data: Data, store: Store):
    model, conv = GAT(COLUMNS, 8, 2, 4, edge_dim=3), GATConv(COLUMNS, 4, edge_dim=3)
    infer(model, store, edge_attr="edge_attr", batch_size=53)
    infer([conv], store, name="g", edge_attr="edge_attr")
    with torch.no_grad():
        wanted = model.eval()(data.x, data.edge_index, edge_attr=data.edge_attr)
        assert torch.allclose(store.tensor("h"), wanted, **CLOSE)
        wanted = conv.eval()(data.x, data.edge_index, data.edge_attr)
        assert torch.allclose(store.tensor("g"), wanted, **CLOSE)


def test_light_gcn_and_a_second_model_on_the_first_ones_rows(data: Data, store: Store):
    conv, model = LGConv(), GraphSAGE(COLUMNS, 8, 1, 3)
    infer([conv], store, batch_size=31)
    wanted = conv(data.x, data.edge_index)
    assert torch.allclose(store.tensor("h"), wanted, **CLOSE)
    infer(model, store, name="g", features="h")
    found = in_memory(model, Data(x=wanted, edge_index=data.edge_index))
    assert torch.allclose(store.tensor("g"), found, **CLOSE)


# ---- several types


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_several_types(hetero: HeteroData, hetero_store: Store, tmp_path: Path):
    torch.manual_seed(2)
    columns = {each: hetero[each].x.size(1) for each in hetero.node_types}
    of_types = {
        CITES: GCNConv(columns["paper"], 6),
        WRITES: SAGEConv((columns["author"], columns["paper"]), 6),
        WRITTEN: GATConv((columns["paper"], columns["author"]), 6, add_self_loops=False),
        HOSTS: SAGEConv((columns["venue"], columns["paper"]), 6),
    }
    first = HeteroConv(of_types, aggr="sum")
    second = HeteroConv({CITES: SAGEConv(6, 4), WRITES: SAGEConv(6, 4)})
    first.eval(), second.eval()
    with torch.no_grad():
        middle = first(hetero.x_dict, hetero.edge_index_dict)
        ends = {key: hetero.edge_index_dict[key] for key in (CITES, WRITES)}
        wanted = second(middle, ends)
    few = partial(infer, [first, second], hetero_store, batch_size=8, io_depth=2)
    few(memory=least_memory(few))
    assert set(wanted) == {"paper"}
    assert torch.allclose(hetero_store["paper"].tensor("h"), wanted["paper"], **CLOSE)
    assert "h" not in hetero_store["author"]
    hetero_store.verify()
    infer([first], hetero_store, out=tmp_path / "out", batch_size=17)
    for type in ("paper", "author"):
        rows = torch.from_numpy(np.load(tmp_path / "out" / type / "h.npy"))
        assert torch.allclose(rows, middle[type], **CLOSE)
    assert not (tmp_path / "out" / "venue").exists()


def test_memory_that_holds_all_rows_reads_each_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    runs: list[Any] = []
    ended = run_module.Run.run
    monkeypatch.setattr(run_module.Run, "run", lambda self: (runs.append(self), ended(self)))
    infer([lambda x, edge_index: x], store, memory="300MB", batch_size=50)
    (run,) = runs
    needed = store.num_nodes * COLUMNS * 4
    assert needed <= run.stats["bytes"] < needed + 2 * 16 * 4096
    assert torch.equal(store.tensor("h"), store.tensor("x"))
