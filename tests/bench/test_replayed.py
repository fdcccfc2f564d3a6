"""bench/replayed.py trains a GraphSAGE, and equal samples train it to equal accuracies."""

import json

import pytest
import replayed
import torch
from torch_geometric.nn import GraphSAGE

from gnndrive.store.generate import planted_communities


def test_sparse_features_give_what_pyg_gives():
    torch.manual_seed(0)
    model = GraphSAGE(20, 8, 2, 3, dropout=0.5).eval()
    x = torch.bernoulli(torch.full((30, 20), 0.2)).to(torch.uint8)
    edges = torch.randint(25, (2, 60))  # some nodes have no in-neighbour
    out = replayed.forward(model, replayed.sparse(x), edges)
    assert torch.allclose(out, model(x.float(), edges), atol=1e-5)


def test_all_runs_are_reported(tmp_path, capsys):
    store, file = tmp_path / "small.gnn", tmp_path / "found.json"
    splits = {"train": 0.4, "val": 0.2, "test": 0.2}
    planted_communities(store, 300, 8, 4, degree=8, fractions=splits)
    words = [str(store), "--epochs", "2", "--seeds", "2", "--batch-size", "30", "--fanout", "3,2"]
    words += ["--hidden", "8", "--lr", "0.02", "--train", "90", "--dropout", "0"]
    words += ["--recorded", "0,1,2"]
    found = replayed.measure(replayed.parse([*words, "--json", str(file)]))
    lines = replayed.table(found).splitlines()
    assert lines[0].startswith("90 training nodes")
    assert [line.split("  ")[0] for line in lines[1:]] == ["fresh", "1 recorded", "2 recorded"]
    assert capsys.readouterr().err.count("best ") == 6
    assert json.loads(file.read_text())["results"] == found["results"]
    assert not (tmp_path / "small.gnn.replayed").exists()
    fresh, one, both = (run["loss"] for run in found["results"][:3])  # of the first seed
    assert both == pytest.approx(fresh, rel=1e-4)  # two recorded epochs are those drawn anew
    assert one[0] == pytest.approx(fresh[0], rel=1e-4)
    assert one[1] != pytest.approx(fresh[1], rel=1e-4)
    for run in found["results"]:
        assert [len(run[name]) for name in ("val", "test", "loss")] == [2, 2, 2]
        assert run["last"] == run["test"][-1]
        assert run["best"] == run["test"][run["val"].index(max(run["val"]))]
