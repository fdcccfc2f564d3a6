"""bench/partitioned.py partitions a store that is not, and loads epochs with all strategies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import partitioned
import pytest

import gnndrive
from gnndrive.store.generate import planted_communities

NODES = 3000
WORDS = ["--seeds-share", "0.2", "--batch-size", "50", "--fanout", "3,2", "--memory", "60MB"]
WORDS += ["--parts", "16", "--megabatch", "4", "--epochs", "2"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "small.gnn"
    planted_communities(path, NODES, 16, 12)
    return path


def inside(options: Any, group: Any) -> dict[str, Any]:
    """The whole script in this process."""

    def spawn(worker: str, strategy: str, options: Any, group: Any) -> dict[str, Any]:
        given = partitioned.parse([*options.given, "--worker", worker, "--strategy", strategy])
        work = partitioned.work_partition if worker == "partition" else partitioned.work_load
        return json.loads(json.dumps(work(given))) | {"peak_bytes": 1 << 20}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioned, "spawn", spawn)
        return partitioned.measure(options, group)


def test_all_strategies_load_whole_epochs(store: Path):
    found = inside(partitioned.parse([str(store), *WORDS, "--rounds", "2"]), None)
    folders = store / "partitioned"
    assert sorted(path.name for path in folders.iterdir() if path.is_dir()) == ["default", "random"]
    assert [each["strategy"] for each in found["results"]] == [
        "gnndrive", "hierbatching", "marius",
    ] * 2  # fmt: skip
    for each in found["results"]:
        assert [epoch["batches"] for epoch in each["epochs"]] == [each["batches_an_epoch"]] * 2
    whole, windows, random = found["results"][:3]
    assert whole["batches_an_epoch"] == NODES // 5 // 50
    assert (windows["parts"], windows["megabatch"], windows["static"]) == (16, 4, NODES // 100)
    assert random["inside"] < 0.2 < 0.5 < windows["inside"] < windows["kept"] < whole["kept"]
    for each in (windows, random):
        for epoch in each["epochs"]:
            assert 0 < epoch["window_wait_s"] < epoch["s"]
            assert epoch["rows"] < whole["epochs"][0]["rows"]
    lines = partitioned.table(found | {"memory": "no limit"}).splitlines()
    assert lines[1].startswith("partitioning for hierbatching: ")
    assert [line.split()[0] for line in lines[3::2]] == ["gnndrive", "hierbatching", "marius"]
    assert " 1.00 × as fast as gnndrive" in lines[3]
    assert "windows of 4 of 16 partitions" in lines[6]


def test_epochs_end_early_and_folders_are_used_again(store: Path):
    words = [*WORDS, "--strategies", "gnndrive,hierbatching", "--rounds", "1", "--batches", "2"]
    gnndrive.partition(store, 16, "random", name="random", overwrite=True)
    gnndrive.partition(store, 8, "ldg", overwrite=True)
    found = inside(partitioned.parse([str(store), *words, "--hand", "buffer=5MB,samplers=1"]), None)
    assert not found["partitioning"]
    assert [epoch["batches"] for each in found["results"] for epoch in each["epochs"]] == [2] * 4
    assert "of memory=" not in found["results"][0]["plan"]
    assert found["results"][1]["parts"] == 8


def test_a_strategy_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        partitioned.parse(["a.gnn", "--strategies", "gnndrive,ginex"])
    assert "unknown strategy ginex: choose from gnndrive, hierbatching, marius" in (
        capsys.readouterr().err
    )


def test_the_memory_is_the_limit_less_what_python_needs():
    assert partitioned.parse(["a.gnn", "--limit", "2GB"]).memory == 2 * 10**9 - partitioned.BESIDE
    assert partitioned.parse(["a.gnn", "--memory", "1GB"]).memory == "1GB"
