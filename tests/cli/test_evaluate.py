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
from gnndrive.store.generate import planted_communities
from tests.cli.conftest import CLASSES, DIM, FRACTIONS, NODES, QUICK, SMALL

ROWS = NODES * DIM * 4


@pytest.fixture
def own(tmp_path):
    """A store that the test may add to."""
    path = tmp_path / "own.gnn"
    planted_communities(path, NODES, DIM, CLASSES, degree=8, fractions=FRACTIONS)
    return gd.open(path)


@pytest.mark.parametrize(
    ("count", "fanout", "memory", "on_device", "cheaper"),
    [
        (NODES, (10, 10), ROWS // 2, None, True),
        (NODES, (-1, -1), ROWS // 2, None, True),
        (20, (10, 10), ROWS // 2, None, False),  # one batch
        (0, (10, 10), ROWS // 2, None, False),
        (NODES, (10, 10), ROWS, None, False),  # memory holds all rows
        (NODES, (10, 10), None, None, False),
        (NODES, (10, 10), ROWS // 50, None, False),  # too many passes
        (NODES, (10, 10), ROWS // 2, ROWS, False),  # the device holds all rows
        (NODES, (10, 10), ROWS, ROWS // 2, True),  # the host does, once a layer
        (NODES, (10, 10), ROWS // 2, ROWS // 2, True),
    ],
)
def test_many_nodes_and_little_memory_make_it_cheaper(
    planted, count, fanout, memory, on_device, cheaper
):
    assert is_cheaper(gd.open(planted), count, fanout, 20, memory, on_device) == cheaper


def test_the_accuracies_are_those_of_the_whole_graph(own):
    """Its rows are no attribute of the store, whatever their name is."""
    model = GraphSAGE(DIM, 8, 2, CLASSES)
    gd.infer(model, own, name="evaluation")
    splits = {name: own.split(name) for name in ("val", "test")}
    found = accuracies(model, own, {**splits, "none": torch.empty(0, dtype=torch.int64)}, "100MB")
    right = own.tensor("evaluation").argmax(-1) == own.tensor("y")
    assert found == {
        name: pytest.approx(float(right[ids].float().mean())) for name, ids in splits.items()
    }
    assert os.listdir(own.path.parent) == ["own.gnn"]
    assert gd.open(own.path).node_names[-1] == "evaluation"


def test_two_evaluations_at_once(own, monkeypatch):
    model, whole = GraphSAGE(DIM, 8, 2, CLASSES), evaluate_module.infer
    splits, other = {"val": own.split("val")}, []

    def within(*given, **named):
        whole(*given, **named)
        monkeypatch.setattr(evaluate_module, "infer", whole)
        other.append(accuracies(GraphSAGE(DIM, 8, 2, CLASSES), own, splits, "100MB"))

    wanted = accuracies(model, own, splits, "100MB")
    monkeypatch.setattr(evaluate_module, "infer", within)
    assert accuracies(model, own, splits, "100MB") == wanted
    assert len(other) == 1


def test_train_uses_it_where_it_is_cheaper(gnndrive, own, monkeypatch):
    asked = []
    monkeypatch.setattr(train_module, "is_cheaper", lambda *given: asked.append(given[1:]) or True)
    words = ("train", own.path, *SMALL, *QUICK)
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
        accuracies(GraphSAGE(DIM, 8, 2, CLASSES), own, {}, "100MB")
