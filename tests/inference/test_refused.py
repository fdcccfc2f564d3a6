"""What inference cannot do is said before anything is computed, with what would work."""

from __future__ import annotations

import copy
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GCN,
    ChebConv,
    DirGNNConv,
    GATConv,
    GCNConv,
    GPSConv,
    GraphSAGE,
    LayerNorm,
    SAGEConv,
)

import gnndrive
from gnndrive import ConfigError, NeighborLoader, ReadError, Store
from gnndrive.inference import infer
from gnndrive.testing.faults import Faults, Simulated, simulated
from tests.inference.conftest import COLUMNS


class Plain(torch.nn.Module):
    """A model that does not say what its layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = SAGEConv(COLUMNS, 3)


SAGE = GraphSAGE(COLUMNS, 4, 1, 3)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Plain(), {}, "layers=layers"),
        ([], {}, "layers="),
        ([3], {}, "layers="),
        (GraphSAGE(COLUMNS, 4, 2, 3, jk="cat"), {}, "jk="),
        (GraphSAGE(COLUMNS, 4, 2, 3, norm="GraphNorm"), {}, "GraphNorm.*BatchNorm"),
        ([SAGEConv(COLUMNS, 4), LayerNorm(4)], {}, "mode='node'"),
        ([ChebConv(COLUMNS, 4, 2)], {}, "ChebConv.*use GCNConv"),
        ([DirGNNConv(SAGEConv(COLUMNS, 4))], {}, "DirGNNConv needs more"),
        ([GPSConv(COLUMNS, SAGEConv(COLUMNS, COLUMNS), heads=2)], {}, "GPSConv needs more"),
        ([SAGEConv(COLUMNS, 4, flow="target_to_source")], {}, "SAGEConv has flow=.*reverse"),
        (SAGE, {"memory": "1.5XB"}, "memory="),
        (SAGE, {"memory": "100KB"}, "give memory="),
        (SAGE, {"batch_size": 0}, "batch_size"),
        (SAGE, {"name": "x"}, "of its own"),
        (SAGE, {"name": "n_id"}, "another part"),
        (SAGE, {"name": "../h"}, "not a name"),
        (SAGE, {"features": "z"}, "have no 'z'"),
        (SAGE, {"edge_attr": "nothing"}, "no attribute 'nothing'.*weight"),
        (SAGE, {"dtype": "complex64"}, "cannot hold"),
        (SAGE, {"engine": "tape"}, "tape"),
        (SAGE, {"device": "oven"}, "device"),
        ([lambda x, edge_index: x[:1]], {}, "layer 1 returned Tensor of shape"),
        ([lambda x, edge_index: None], {}, "layer 1 returned NoneType"),
        ([lambda x, edge_index: x[:, : 2 + int(x[0, 0] > 0)]], {}, "of one shape"),
    ],
)  # fmt: skip
def test_refused(model: Any, given: dict[str, Any], message: str, store: Store):
    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        infer(model, store, **({"batch_size": 50} | given))
    assert "h" not in gnndrive.open(store.path).node_names


def test_a_module_in_a_closure_is_put_in_eval_mode_and_is_part_of_the_identity(store: Store):
    model = torch.nn.ModuleList([torch.nn.Dropout(0.5), GATConv(COLUMNS, 3)])
    layers = [lambda x, edge_index: model[1](model[0](x), edge_index)]
    infer(layers, store)
    assert model[0].training
    assert model[1].training
    model.eval()
    with torch.no_grad():
        degrees = torch.from_numpy(
            (store.index_pointers[1:] - store.index_pointers[:-1]).astype("i8")
        )
        target = torch.arange(store.num_nodes).repeat_interleave(degrees)
        edges = torch.stack([torch.from_numpy(store.indices.astype("i8")), target])
        wanted = model[1](store.tensor("x"), edges)
    assert torch.allclose(store.tensor("h"), wanted, atol=1e-5)
    with torch.no_grad():
        model[1].bias += 1
    with pytest.raises(ConfigError, match="another model"):
        infer(layers, store)


def test_the_same_weights_in_another_model(store: Store):
    first, second, again = (
        GraphSAGE(COLUMNS, 4, 2, 3, aggr=aggr) for aggr in ("mean", "max", "mean")
    )
    second.load_state_dict(first.state_dict())
    again.load_state_dict(first.state_dict())
    infer(first, store)
    with pytest.raises(ConfigError, match="another model"):
        infer(second, store)
    infer(again.eval(), store)


def test_a_gcn_conv_that_is_given_other_edges(store: Store):
    conv = GCNConv(COLUMNS, 3)
    with pytest.raises(ConfigError, match="edge_index as it is"):
        infer([lambda x, edge_index: conv(x, edge_index.clone())], store)
    assert conv.normalize
    assert not conv._forward_pre_hooks


def test_types_without_rows(hetero: HeteroData, tmp_path: Path):
    data = hetero.clone()
    count = data["venue"].num_nodes
    del data["venue"].x
    data["venue"].num_nodes = count
    store = gnndrive.from_data(data, tmp_path / "types.gnn")
    with pytest.raises(ConfigError, match=r"'venue'.*have no 'x'"):
        infer([lambda x, edge_index: x], store)
    with pytest.raises(ConfigError, match="returned rows of none"):
        infer([lambda x, edge_index: {}], gnndrive.from_data(hetero, tmp_path / "all.gnn"))


def test_a_folder_that_cannot_be_written(store: Store, monkeypatch: pytest.MonkeyPatch):
    def refused(*given: Any, **named: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(ConfigError, match="out="):
            infer(SAGE, store)


def test_a_failing_disk(store: Store):
    class Failing(Simulated):
        """A disk on which every read fails."""

        def __init__(self, settings: Any) -> None:
            super().__init__(simulated(0, Faults(eio=1.0), settings.depth, settings.block_bytes))

    with pytest.raises(ReadError, match="check the disk"):
        infer(SAGE, store, engine=Failing)


def test_loaders_serve_the_rows(data: Data, store: Store, tmp_path: Path):
    model = GCN(COLUMNS, 8, 2, 24)
    infer(model, store)
    for each in (store, gnndrive.open(store.path)):
        with NeighborLoader(each, [3, 2], batch_size=50, memory="100MB") as loader:
            assert "nodes/h" in {table.name for table in loader.plan().tables}
            for batch in loader:
                assert torch.equal(batch.h, store.tensor("h")[batch.n_id])
    infer(model, store, out=tmp_path / "out")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        ".lock", "h.made-by.txt", "h.npy",
    ]  # fmt: skip
    assert data.num_nodes == store.num_nodes


def test_what_is_set_on_the_store_is_not_passed_over(store: Store, hetero_store: Store):
    model = GCN(COLUMNS, 8, 2, 3)
    store.other = store.tensor("x")[:, 0]
    infer(model, store, edge_weight="weight")
    for change in (
        lambda of: setattr(of, "x", of.x * 2),
        lambda of: delattr(of, "x"),
        lambda of: setattr(of, "weight", of.weight * 2),
    ):
        changed = copy.copy(store)
        change(changed)
        with pytest.raises(ConfigError, match=r"was set or deleted.*gnndrive\.open\(.*from_data"):
            infer(model, changed, edge_weight="weight", name="g")
    assert store.node_names[-1] == "h"
    hetero_store["paper"].x = hetero_store["paper"].x * 2
    with pytest.raises(ConfigError, match="'x' of 'paper' was set"):
        infer([lambda x, edge_index: x], hetero_store)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EAGAIN, "another process or thread computes"),
        (errno.ENOLCK, "has no locks.*out="),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "cannot be written to"),
    ],
)
def test_a_lock_that_fails_says_why(store, monkeypatch, code, words):
    def refused(*given: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.raises(ConfigError, match=words):
            infer(SAGE, store)
