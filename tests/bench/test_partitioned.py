"""bench/partitioned.py partitions a store that is not, and loads epochs with all strategies."""

import json

import partitioned
import pytest

import gnndrive
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
    names = [each["strategy"] for each in found["results"]]
    assert names == ["gnndrive", "hierbatching", "marius"]
    for each in found["results"]:
        assert [epoch["batches"] for epoch in each["epochs"]] == [each["batches_an_epoch"]] * 2
    whole, windows, random = found["results"]
    assert whole["batches_an_epoch"] == NODES // 5 // 25
    assert (windows["parts"], windows["megabatch"], windows["static"]) == (16, 4, NODES // 100)
    assert random["inside"] < 0.2 < 0.4 < windows["inside"] < windows["kept"] < whole["kept"]
    for each in (windows, random):
        for epoch in each["epochs"]:
            assert 0 < epoch["window_wait_s"] < epoch["s"]
            assert epoch["rows"] < whole["epochs"][0]["rows"]
    lines = partitioned.table(found | {"memory": "no limit"}).splitlines()
    assert lines[1].startswith("partitioning for hierbatching: ")
    assert [line.split()[0] for line in lines[3::2]] == ["gnndrive", "hierbatching", "marius"]
    assert " 1.00 × as fast as gnndrive" in lines[3]
    assert "windows of 4 of 16 partitions" in lines[6]
    # epochs end early, and folders are used again
    gnndrive.partition(store, 8, "ldg", overwrite=True)
    words = ("--strategies", "gnndrive,hierbatching", "--rounds", "2", "--batches", "2")
    found = measure(store, *words, "--hand", "buffer=5MB,samplers=1")
    assert not found["partitioning"]
    assert [each["strategy"] for each in found["results"]] == ["gnndrive", "hierbatching"] * 2
    assert [epoch["batches"] for each in found["results"] for epoch in each["epochs"]] == [2] * 8
    assert "of memory=" not in found["results"][0]["plan"]
    assert found["results"][1]["parts"] == 8


def test_options(capsys):
    with pytest.raises(SystemExit):
        partitioned.parse(["a.gnn", "--strategies", "gnndrive,ginex"])
    said = "unknown strategy ginex: choose from gnndrive, hierbatching, marius"
    assert said in capsys.readouterr().err
    assert partitioned.parse(["a.gnn", "--limit", "2GB"]).memory == 2 * 10**9 - partitioned.BESIDE
    assert partitioned.parse(["a.gnn", "--memory", "1GB"]).memory == "1GB"
