"""Evaluation by inference: where it reads less, and with the accuracies of the whole graph."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

import gnndrive as gd
from gnndrive.cli.commands import evaluate as evaluate_module
from gnndrive.cli.commands import train as train_module
from gnndrive.cli.commands.evaluate import accuracies, is_cheaper
from gnndrive.store.generate import planted_communities
from tests.cli.conftest import CLASSES, DIM, FRACTIONS, NODES, Command


@pytest.fixture
def own(tmp_path: Path) -> gd.Store:
    """A store that the test may add to."""
    path = tmp_path / "own.gnn"
    planted_communities(path, NODES, DIM, CLASSES, degree=8, fractions=FRACTIONS)
    return gd.open(path)


def test_many_nodes_and_little_memory_make_it_cheaper(planted: Path):
    store = gd.open(planted)
    rows = NODES * DIM * 4
    assert is_cheaper(store, NODES, (10, 10), 20, rows // 2)
    assert not is_cheaper(store, 20, (10, 10), 20, rows // 2)  # one batch
    assert not is_cheaper(store, NODES, (10, 10), 20, rows)  # memory holds all rows
    assert not is_cheaper(store, NODES, (10, 10), 20, None)
    assert not is_cheaper(store, NODES, (10, 10), 20, rows // 50)  # too many passes
    assert is_cheaper(store, NODES, (-1, -1), 20, rows // 2)
    assert not is_cheaper(store, 0, (10, 10), 20, rows // 2)


def test_the_rows_of_batches_may_be_on_a_device(planted: Path):
    store = gd.open(planted)
    rows = NODES * DIM * 4
    assert not is_cheaper(store, NODES, (10, 10), 20, rows // 2, rows)  # the device holds all rows
    assert is_cheaper(store, NODES, (10, 10), 20, rows, rows // 2)  # the host does, once a layer
    assert is_cheaper(store, NODES, (10, 10), 20, rows // 2, rows // 2)


def test_the_accuracies_are_those_of_the_whole_graph(own: gd.Store):
    model = GraphSAGE(DIM, 8, 2, CLASSES)
    splits = {name: own.split(name) for name in ("val", "test")}
    found = accuracies(model, own, {**splits, "none": torch.empty(0, dtype=torch.int64)}, "100MB")
    gd.infer(model, own)
    right = own.tensor("h").argmax(-1) == own.tensor("y")
    assert found == {
        name: pytest.approx(float(right[ids].float().mean())) for name, ids in splits.items()
    }
    assert os.listdir(own.path.parent) == ["own.gnn"]
    assert own.node_names[-1] == "h"


def test_train_uses_it_where_it_is_cheaper(
    gnndrive: Command, own: gd.Store, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []

    def cheaper(*given: Any) -> bool:
        asked.append(given[1:])
        return True

    monkeypatch.setattr(train_module, "is_cheaper", cheaper)
    words = ("train", own.path, "--epochs", "2", "--hidden", "8", "--batch-size", "200", "--json")
    done = gnndrive(*words, "--memory", "150MB")
    assert done.code == 0
    assert "by inference over all nodes" in done.err
    assert asked == [(600, (10, 10), 200, 150_000_000, None)]
    assert set(done.json["epochs"][-1]["accuracy"]) == {"val", "test"}
    assert np.isfinite(done.json["epochs"][-1]["loss"])
    assert gnndrive(*words, "--buffer", "300KB").code == 0  # its parts are set by hand
    assert len(asked) == 1


def test_an_attribute_of_any_name_survives_it(own: gd.Store):
    model = GraphSAGE(DIM, 8, 2, CLASSES)
    gd.infer(model, own, name="evaluation")
    accuracies(model, own, {"val": own.split("val")}, "100MB")
    assert "evaluation" in gd.open(own.path).node_names


def test_two_evaluations_at_once(own: gd.Store, monkeypatch: pytest.MonkeyPatch):
    model, whole = GraphSAGE(DIM, 8, 2, CLASSES), evaluate_module.infer
    splits, other = {"val": own.split("val")}, []

    def within(*given: Any, **named: Any) -> None:
        whole(*given, **named)
        monkeypatch.setattr(evaluate_module, "infer", whole)
        other.append(accuracies(GraphSAGE(DIM, 8, 2, CLASSES), own, splits, "100MB"))

    wanted = accuracies(model, own, splits, "100MB")
    monkeypatch.setattr(evaluate_module, "infer", within)
    assert accuracies(model, own, splits, "100MB") == wanted
    assert len(other) == 1


def test_a_folder_that_cannot_be_written(
    gnndrive: Command, own: gd.Store, monkeypatch: pytest.MonkeyPatch
):
    def refused(*given: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(train_module, "is_cheaper", lambda *given: True)
    monkeypatch.setattr(evaluate_module, "TemporaryFolder", refused)
    words = ("train", own.path, "--epochs", "1", "--hidden", "8", "--batch-size", "200", "--json")
    done = gnndrive(*words, "--memory", "150MB")
    assert done.code == 0, done.err
    assert "evaluated with batches" in done.err
    assert set(done.json["epochs"][-1]["accuracy"]) == {"val", "test"}
    with pytest.raises(gd.StoreError, match=r"Read-only.*writable.*--buffer"):
        accuracies(GraphSAGE(DIM, 8, 2, CLASSES), own, {}, "100MB")
