"""`gnndrive bench headroom`: its lines, its JSON and users' mistakes."""

import re

import numpy as np
import pytest

from gnndrive.cli.commands import headroom as command
from gnndrive.cli.measure import headroom
from gnndrive.cli.measure.headroom import LINES, Measured, Run
from gnndrive.cli.measure.verdict import FIRST_WORDS
from gnndrive.store import write_store
from gnndrive.store.generate import planted_communities
from tests.cli.conftest import SMALL

BENCH = ("bench", "headroom")
FEW = (*SMALL, "--batches", 3, "--rounds", 1)
STEP = ("--step-ms", 1, "--warm-up", 2)
BUFFER = ("--buffer", "60KB")


def test_the_lines_and_the_verdict(gnndrive, store):
    said = gnndrive(*BENCH, store, *FEW, *BUFFER, "--rounds", 2, "--json").json
    assert (said["kind"], said["store"]) == ("headroom", str(store))
    content = said["headroom"]
    assert [line["free"] for line in content["lines"]] == list(LINES)
    real = content["lines"][0]["seconds_per_batch"]
    for line in content["lines"]:
        assert len(line["rounds"]) == 2
        assert line["times"] == pytest.approx(real / line["seconds_per_batch"])
    assert (content["batches"], content["notes"]) == (3, [])
    assert 2 <= content["warm_up"] <= 34
    assert 0 < content["hit_share"] < 1
    assert content["twice_the_buffer"]["how"] == "measured"
    assert content["verdict"].startswith(FIRST_WORDS)
    head, _, *rows, verdict = gnndrive(*BENCH, store, *FEW, *STEP, *BUFFER).out.splitlines()
    assert "3 batches behind 2, medians of 1 rounds" in head
    assert [row.split("  ")[1] for row in rows] == [command.NAMES[f] for f in (*LINES, "buffer")]
    assert verdict.startswith(FIRST_WORDS)


@pytest.mark.parametrize(
    ("more", "twice"),
    [
        (("--strategy", "ginex", "--topology", "direct", "--sampling", "labor", *BUFFER), True),
        (("--memory", "80MB", "--strategy", "diskgnn"), False),
    ],
)
def test_other_loaders_are_measured(gnndrive, store, more, twice):
    if "diskgnn" in more:
        assert gnndrive("pack", store, *SMALL, *more[:2]).code == 0
    ended = gnndrive(*BENCH, store, *FEW, *STEP, *more, "--json")
    assert ended.code == 0, ended.err
    content = ended.json["headroom"]
    assert (len(content["lines"]), "twice_the_buffer" in content) == (len(LINES), twice)


def test_samples_that_do_not_fit_make_fewer_batches(gnndrive, store, monkeypatch):
    monkeypatch.setattr(headroom, "available_memory", lambda: 4 * 200_000)
    ended = gnndrive(*BENCH, store, *FEW, *STEP, "--batches", 16, *BUFFER, "--json")
    content = ended.json["headroom"]
    assert 1 <= content["batches"] < 16
    assert "the samples that are kept may take 25% of the available memory" in content["notes"][0]
    assert content["twice_the_buffer"]["how"] == "predicted"
    monkeypatch.setattr(headroom, "available_memory", lambda: 1)
    error = gnndrive(*BENCH, store, *FEW, *STEP, *BUFFER).err
    assert "give a smaller --batch-size, --fanout or --warm-up" in error


def test_an_adjacency_without_room_in_the_page_cache_is_said(gnndrive, store, monkeypatch):
    sizes = [1 << 40, 1 << 40]
    monkeypatch.setattr(headroom, "available_memory", lambda: sizes.pop() if sizes else 1 << 20)
    ended = gnndrive(*BENCH, store, *FEW, *STEP, *BUFFER, "--topology", "mmap", "--json")
    assert ended.code == 0, ended.err
    assert "samples are replayed, too" in ended.json["headroom"]["notes"][0]


def test_stores_without_classes_or_training_nodes(gnndrive, tmp_path):
    path = tmp_path / "plain.gnn"
    x = np.ones((3, 4), np.float32)
    write_store(path, indptr=range(4), indices=[1, 2, 0], nodes={"x": x})
    assert "--step-ms" in gnndrive(*BENCH, path, *FEW).refusal
    path = tmp_path / "none.gnn"
    planted_communities(path, 200, 4, 2, degree=4, fractions={"train": 0.0, "val": 0.5})
    error = gnndrive(*BENCH, path, *FEW, "--step-ms", 1).err
    assert re.search("the train split of .* has no nodes", error)


def test_the_median_of_the_rounds_and_the_shares_of_the_real_runs():
    stats = {"rows_hit": 30.0, "rows_waited": 10.0, "rows_loaded": 60.0, "wait_slots_s": 0.5}
    runs = {free: [Run(3.0), Run(1.0), Run(2.0)] for free in LINES}
    runs["nothing"] = [Run(1.0, stats), Run(2.0, stats), Run(2.0, stats)]
    found = Measured(runs, 2, 1, None, []).headroom()
    assert found.seconds == dict.fromkeys(LINES, 2.0)
    assert found.ranges == dict.fromkeys(LINES, (1.0, 3.0)) | {"nothing": (1.0, 2.0)}
    assert found.hit_share == 0.3
    assert found.slots_share == pytest.approx(1.5 / 10)
    del stats["wait_slots_s"]
    assert Measured(runs, 2, 1, None, []).headroom().slots_share is None
