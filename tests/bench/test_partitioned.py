"""bench/partitioned.py, partitioned_accuracy.py and replayed.py on tiny stores."""

import json

import partitioned
import partitioned_accuracy
import pytest
import replayed
import torch
from torch_geometric.nn import GraphSAGE

from gnndrive.common.errors import ConfigError
from gnndrive.store.generate import planted_communities

NODES = 1000
WORDS = ["--seeds-share", "0.2", "--batch-size", "25", "--fanout", "3,2", "--memory", "60MB"]
WORDS += ["--parts", "16", "--megabatch", "4", "--epochs", "2"]


@pytest.fixture
def measure(monkeypatch):
    """The whole script in this process."""

    def spawn(worker, strategy, options, group):
        given = partitioned.parse([*options.given, "--worker", worker, "--strategy", strategy])
        work = partitioned.work_partition if worker == "partition" else partitioned.work_load
        return json.loads(json.dumps(work(given))) | {"peak_bytes": 1 << 20}

    monkeypatch.setattr(partitioned, "spawn", spawn)
    return lambda *words: partitioned.measure(partitioned.parse([*map(str, words), *WORDS]), None)


def test_all_strategies_load_epochs(measure, tmp_path):
    store = tmp_path / "small.gnn"
    planted_communities(store, NODES, 16, 12)
    found = measure(store, "--rounds", "1")
    folders = store / "partitioned"
    assert sorted(path.name for path in folders.iterdir() if path.is_dir()) == ["default", "random"]
    assert [each["strategy"] for each in found["results"]] == ["gnndrive", "hierbatching", "marius"]
    for each in found["results"]:
        assert [epoch["batches"] for epoch in each["epochs"]] == [each["batches_an_epoch"]] * 2
    whole, windows, random = found["results"]
    assert whole["batches_an_epoch"] == NODES // 5 // 25
    assert (windows["parts"], windows["megabatch"], windows["static"]) == (16, 4, NODES // 100)
    assert random["inside"] < 0.2 < 0.4 < windows["inside"] < windows["kept"] < whole["kept"]
    for epoch in windows["epochs"] + random["epochs"]:
        assert 0 < epoch["window_wait_s"] < epoch["s"]
        assert epoch["rows"] < whole["epochs"][0]["rows"]
    lines = partitioned.table(found | {"memory": "no limit"}).splitlines()
    assert lines[1].startswith("partitioning for hierbatching: ")
    assert " 1.00 × as fast as gnndrive" in lines[3]


def test_options(capsys):
    with pytest.raises(SystemExit):
        partitioned.parse(["a.gnn", "--strategies", "gnndrive,ginex"])
    said = "unknown strategy ginex: choose from gnndrive, hierbatching, marius"
    assert said in capsys.readouterr().err
    assert partitioned.parse(["a.gnn", "--limit", "2GB"]).memory == 2 * 10**9 - partitioned.BESIDE
    assert partitioned.parse(["a.gnn", "--memory", "1GB"]).memory == "1GB"


# ---- what is drawn inside communities, inside random groups of nodes, and with shared numbers


def test_edges_that_are_kept_and_accuracies(tmp_path):
    words = ["--planted", "1200,12", "--parts", "12", "--megabatch", "2", "--train", "0.3"]
    words += ["--dim", "16", "--epochs", "5", "--seeds", "1", "--batch-size", "40"]
    words += ["--hidden", "16", "--lr", "0.01", "--fanout", "5,5", "--runs"]
    runs = ["gnndrive", "hierbatching:ldg", "marius:random", "labor:8"]
    folder = tmp_path / "work"
    given = [*words, ",".join(runs), "--folder", str(folder)]
    found = partitioned_accuracy.measure(partitioned_accuracy.parse(given))
    assert not folder.exists()
    full, ldg, marius, labor = found["results"]
    assert full["accuracy"] > 0.5  # by chance 0.08
    assert labor["accuracy"] > full["accuracy"] - 0.1 > marius["accuracy"]
    assert labor["nodes_a_batch"] < 0.95 * full["nodes_a_batch"]
    assert marius["inside"] < 0.2 < 0.6 < ldg["inside"]
    assert marius["nodes_a_batch"] < ldg["nodes_a_batch"] < full["nodes_a_batch"]
    lines = partitioned_accuracy.table(found).splitlines()
    assert [line.split()[0] for line in lines[1:]] == runs


def test_what_is_not_clear_is_refused(tmp_path, capsys):
    for words in ([], ["a.gnn", "--planted", "100,4"]):
        with pytest.raises(SystemExit):
            partitioned_accuracy.parse(words)
        assert "give a store, or --planted" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="exists: remove it"):
        partitioned_accuracy.parse(["--planted", "100,4", "--folder", str(tmp_path)])


# ---- equal samples train to equal accuracies


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
