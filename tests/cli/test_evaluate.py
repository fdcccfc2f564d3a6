"""Evaluation by inference: where it reads less, and with the accuracies of the whole graph."""

import errno
import os

import pytest
import torch
from torch_geometric.nn import GraphSAGE

import gnndrive as gd
from gnndrive.cli.commands import evaluate as evaluate_module
from gnndrive.cli.commands import train as train_module
from gnndrive.cli.commands.evaluate import accuracies, is_cheaper
from tests.cli.conftest import CLASSES, DIM, NODES, QUICK, SMALL

ROWS = NODES * DIM * 4


@pytest.mark.parametrize(
    ("count", "fanout", "memory", "on_device", "cheaper"),
    [
        (NODES, (10, 10), ROWS // 2, None, True),
        (20, (10, 10), ROWS // 2, None, False),  # one batch
        (NODES, (10, 10), ROWS, None, False),  # memory holds all rows
        (NODES, (10, 10), None, None, False),
        (NODES, (10, 10), ROWS // 50, None, False),  # too many passes
        (NODES, (10, 10), ROWS // 2, ROWS, False),  # the device holds all rows
        (NODES, (10, 10), ROWS, ROWS // 2, True),  # the host does, once a layer
    ],
)
def test_many_nodes_and_little_memory_make_it_cheaper(
    planted, count, fanout, memory, on_device, cheaper
):
    assert is_cheaper(gd.open(planted), count, fanout, 20, memory, on_device) == cheaper


def test_the_accuracies_are_those_of_the_whole_graph(store):
    """Its rows are no attribute of the store, whatever their name is."""
    store, model = gd.open(store), GraphSAGE(DIM, 8, 2, CLASSES)
    gd.infer(model, store, name="evaluation")
    splits = {name: store.split(name) for name in ("val", "test")}
    found = accuracies(model, store, {**splits, "none": torch.empty(0, dtype=torch.int64)}, "100MB")
    right = store.tensor("evaluation").argmax(-1) == store.tensor("y")
    assert found == {
        name: pytest.approx(float(right[ids].float().mean())) for name, ids in splits.items()
    }
    assert os.listdir(store.path.parent) == ["own.gnn"]
    assert gd.open(store.path).node_names[-1] == "evaluation"


def test_train_uses_it_where_it_is_cheaper(gnndrive, store, monkeypatch):
    store, asked = gd.open(store), []
    monkeypatch.setattr(train_module, "is_cheaper", lambda *given: asked.append(given[1:]) or True)
    words = ("train", store.path, *SMALL, *QUICK)
    done = gnndrive(*words, "--memory", "150MB")
    assert done.code == 0
    assert "by inference over all nodes" in done.err
    assert asked == [(600, (3, 2), 100, 150_000_000, None)]
    assert set(done.json["epochs"][-1]["accuracy"]) == {"val", "test"}
    assert gnndrive(*words, "--buffer", "300KB").code == 0  # its parts are set by hand
    assert len(asked) == 1

    def refused(*given):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(evaluate_module, "TemporaryFolder", refused)
    done = gnndrive(*words, "--memory", "150MB")
    assert done.code == 0, done.err
    assert "evaluated with batches" in done.err
    assert set(done.json["epochs"][-1]["accuracy"]) == {"val", "test"}
    with pytest.raises(gd.StoreError, match=r"Read-only.*writable.*--buffer"):
        accuracies(GraphSAGE(DIM, 8, 2, CLASSES), store, {}, "100MB")
