"""bench/partitioned_accuracy.py: what is drawn inside communities, inside random groups of nodes,
and with shared numbers."""

import json

import partitioned_accuracy
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store.generate import planted_communities


def measured(tmp_path, *words):
    folder = tmp_path / "work"
    options = partitioned_accuracy.parse([*words, "--folder", str(folder)])
    found = partitioned_accuracy.measure(options)
    assert not folder.exists()
    return found


def test_edges_that_are_kept_and_accuracies(tmp_path):
    words = ["--planted", "1200,12", "--parts", "12", "--megabatch", "2", "--train", "0.3"]
    words += ["--dim", "16", "--epochs", "5", "--seeds", "1", "--batch-size", "40"]
    words += ["--hidden", "16", "--lr", "0.01", "--fanout", "5,5", "--runs"]
    found = measured(tmp_path, *words, "gnndrive,hierbatching:ldg,marius:random,labor:8")
    full, ldg, marius, labor = found["results"]
    assert full["accuracy"] > 0.5  # by chance 0.08
    assert labor["accuracy"] > full["accuracy"] - 0.1
    assert marius["accuracy"] < full["accuracy"] - 0.1
    assert labor["nodes_a_batch"] < 0.95 * full["nodes_a_batch"]
    assert ldg["inside"] > 0.6
    assert marius["inside"] < 0.2
    assert marius["nodes_a_batch"] < ldg["nodes_a_batch"] < full["nodes_a_batch"]


def test_a_store_is_tested_and_every_run_reported(tmp_path, capsys):
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


def test_what_is_not_clear_is_refused(tmp_path, capsys):
    for words in ([], ["a.gnn", "--planted", "100,4"]):
        with pytest.raises(SystemExit):
            partitioned_accuracy.parse(words)
        assert "give a store, or --planted" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="exists: remove it"):
        partitioned_accuracy.parse(["--planted", "100,4", "--folder", str(tmp_path)])
