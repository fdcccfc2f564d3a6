"""bench/partitioned_accuracy.py: sampling inside communities is nearly as good as from the whole
graph, inside random groups of nodes it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import partitioned_accuracy
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store.generate import planted_communities

RUNS = ["gnndrive", "hierbatching:ldg", "hierbatching:random", "marius:random"]


def measured(tmp_path: Path, *words: str) -> dict[str, Any]:
    folder = tmp_path / "work"
    options = partitioned_accuracy.parse([*words, "--folder", str(folder)])
    found = partitioned_accuracy.measure(options)
    assert not folder.exists()
    return found


def test_communities_keep_the_accuracy_and_random_groups_lose_it(tmp_path: Path):
    words = ["--planted", "2400,24", "--parts", "24", "--megabatch", "3", "--train", "0.3"]
    words += ["--dim", "32", "--epochs", "8", "--seeds", "1", "--batch-size", "40"]
    words += ["--hidden", "32", "--lr", "0.01", "--runs", ",".join(RUNS)]
    found = measured(tmp_path, *words)
    by_run = {each["run"]: each for each in found["results"]}
    full, ldg, random, marius = (by_run[run]["accuracy"] for run in RUNS)
    assert full > 0.85  # over four seeds 0.94 to 0.96
    assert ldg > full - 0.1  # at most 0.06 less
    assert random < full - 0.15  # at least 0.22 less
    assert marius < full - 0.3  # at least 0.46 less
    assert by_run["hierbatching:ldg"]["inside"] > 0.6
    assert by_run["hierbatching:random"]["inside"] < 0.1


def test_a_store_is_tested_and_every_run_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = tmp_path / "small.gnn"
    planted_communities(store, 400, 8, 4, degree=8)
    words = [str(store), "--parts", "8", "--megabatch", "2", "--seeds", "2", "--epochs", "2"]
    words += ["--batch-size", "20", "--hidden", "8", "--fanout", "3,2", "--project", "5"]
    found = measured(tmp_path, *words, "--static", "0")
    assert capsys.readouterr().err.count(" updates, ") == 8
    lines = partitioned_accuracy.table(found).splitlines()
    assert lines[0].startswith("40 of 400 nodes train")
    assert [line.split()[0] for line in lines[1:]] == partitioned_accuracy.RUNS
    assert all(len(each["losses"]) == 2 for each in found["results"])
    assert [each["updates"] for each in found["results"]] == [2, 5, 5, 8] * 2
    assert json.loads(json.dumps(found)) == found
    assert not (store / "partitioned").exists()  # a copy was partitioned


def test_shared_numbers_keep_the_accuracy_with_fewer_nodes(tmp_path: Path):
    words = ["--planted", "1200,12", "--train", "0.3", "--dim", "16", "--epochs", "6"]
    words += ["--seeds", "1", "--batch-size", "40", "--hidden", "16", "--lr", "0.01"]
    found = measured(tmp_path, *words, "--fanout", "5,5", "--runs", "gnndrive,labor,labor:8")
    full, *others = found["results"]
    for each in others:
        assert each["accuracy"] > full["accuracy"] - 0.05
        assert each["nodes_a_batch"] < 0.95 * full["nodes_a_batch"]


def test_what_is_not_clear_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for words in ([], ["a.gnn", "--planted", "100,4"]):
        with pytest.raises(SystemExit):
            partitioned_accuracy.parse(words)
        assert "give a store, or --planted" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="exists: remove it"):
        partitioned_accuracy.parse(["--planted", "100,4", "--folder", str(tmp_path)])
