"""`gnndrive bench headroom`: its lines, its JSON, users' mistakes; and the verdict of a training
run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.cli.commands import headroom as command
from gnndrive.cli.measure import headroom
from gnndrive.cli.measure.headroom import LINES, Measured, Run
from gnndrive.cli.measure.verdict import FIRST_WORDS
from gnndrive.store.generate import planted_communities

from .conftest import Command

FEW = ("--batch-size", 100, "--fanout", "3,2", "--batches", 3, "--rounds", 1)
SMALL = ("--buffer", "60KB")


def test_the_lines_and_the_verdict_as_json(gnndrive: Command, store: Path):
    ended = gnndrive("bench", "headroom", store, *FEW, *SMALL, "--rounds", 2, "--json")
    assert ended.code == 0, ended.err
    said = ended.json
    assert (said["kind"], said["store"]) == ("headroom", str(store))
    content = said["headroom"]
    assert [line["free"] for line in content["lines"]] == list(LINES)
    for line in content["lines"]:
        assert len(line["rounds"]) == 2
        assert line["seconds_per_batch"] > 0
        real = content["lines"][0]["seconds_per_batch"]
        assert line["times"] == pytest.approx(real / line["seconds_per_batch"])
    assert content["batches"] == 3
    assert 2 <= content["warm_up"] <= 34
    assert 0 < content["hit_share"] < 1
    assert content["twice_the_buffer"]["how"] == "measured"
    assert len(content["twice_the_buffer"]["rounds"]) == 2
    assert content["verdict"].startswith(FIRST_WORDS)
    assert content["notes"] == []


def test_the_same_as_text(gnndrive: Command, store: Path):
    ended = gnndrive("bench", "headroom", store, *FEW, *SMALL, "--step-ms", 1, "--warm-up", 2)
    assert ended.code == 0, ended.err
    head, _, *rows, verdict = ended.out.splitlines()
    assert "3 batches behind 2, medians of 1 rounds" in head
    assert [row.split("  ")[1] for row in rows] == [command.NAMES[f] for f in (*LINES, "buffer")]
    assert verdict.startswith(FIRST_WORDS)
    assert "round 1/1: the disk: " in ended.err


@pytest.mark.parametrize(
    "more",
    [
        ("--strategy", "ginex", *SMALL),
        ("--topology", "direct", *SMALL),
        ("--sampling", "labor", *SMALL),
        ("--memory", "64MB"),
        ("--strategy", "auto", *SMALL),
        (),
    ],
)
def test_other_loaders_are_measured(gnndrive: Command, store: Path, more: tuple[str, ...]):
    ended = gnndrive(
        "bench", "headroom", store, *FEW, "--step-ms", 1, "--warm-up", 2, *more, "--json"
    )
    assert ended.code == 0, ended.err
    whole = SMALL[0] not in more
    assert ("twice_the_buffer" in ended.json["headroom"]) != whole


def test_packs_are_replayed_without_a_disk(gnndrive: Command, store: Path):
    loader = ("--batch-size", 100, "--fanout", "3,2", "--memory", "80MB")
    packed = gnndrive("pack", store, *loader)
    assert packed.code == 0, packed.err
    ended = gnndrive(
        "bench", "headroom", store, *loader, "--strategy", "diskgnn", "--batches", 3, "--rounds", 1,
        "--step-ms", 1, "--warm-up", 2, "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert len(ended.json["headroom"]["lines"]) == len(LINES)


def test_samples_that_do_not_fit_make_fewer_batches(
    gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(headroom, "available_memory", lambda: 4 * 200_000)
    options = ("--step-ms", 1, "--warm-up", 2, "--batches", 16, *SMALL, "--json")
    ended = gnndrive("bench", "headroom", store, *FEW, *options)
    assert ended.code == 0, ended.err
    content = ended.json["headroom"]
    assert 1 <= content["batches"] < 16
    assert "the samples that are kept may take 25% of the available memory" in content["notes"][0]
    assert content["twice_the_buffer"]["how"] == "predicted"


def test_no_room_for_any_sample(gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(headroom, "available_memory", lambda: 1)
    ended = gnndrive("bench", "headroom", store, *FEW, "--step-ms", 1, "--warm-up", 5, *SMALL)
    assert ended.code == 2
    assert "give a smaller --batch-size, --fanout or --warm-up" in ended.err


def test_an_adjacency_without_room_in_the_page_cache_is_said(
    gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch
):
    sizes = [1 << 40, 1 << 40]
    monkeypatch.setattr(headroom, "available_memory", lambda: sizes.pop() if sizes else 1 << 20)
    ended = gnndrive(
        "bench", "headroom", store, *FEW, "--step-ms", 1, *SMALL, "--topology", "mmap", "--json"
    )
    assert ended.code == 0, ended.err
    assert "samples are replayed, too" in ended.json["headroom"]["notes"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--step-ms", 1, "--model", "gcn"), "leave out --model and --hidden"),
        (("--step-ms", 1, "--hidden", 8), "leave out --model and --hidden"),
        (("--fanout", "a"), "give a whole number for each hop"),
        (("--strategy", "diskgnn"), "gnndrive pack"),
        (("--buffer", "1KB"), 'give it at least buffer="'),
        (("--engine", "simulator"), "no engine is called 'simulator'"),
    ],
)
def test_mistakes_are_named(gnndrive: Command, store: Path, words: tuple, message: str):
    ended = gnndrive("bench", "headroom", store, *words)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.parametrize("option", [("--batches", 0), ("--rounds", 0), ("--step-ms", -1)])
def test_numbers_out_of_range_are_refused(gnndrive: Command, store: Path, option: tuple):
    assert gnndrive("bench", "headroom", store, *option).code == 2


def test_a_store_without_classes_needs_the_steps_time(gnndrive: Command, tmp_path: Path):
    path = tmp_path / "plain.gnn"
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n2,0\n")
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    made = gnndrive(
        "import", path, "--edges", tmp_path / "edges.csv", "--features", tmp_path / "x.npy"
    )
    assert made.code == 0, made.err
    refused = gnndrive("bench", "headroom", path, *FEW)
    assert refused.code == 2
    assert "--step-ms" in refused.err
    ended = gnndrive("bench", "headroom", path, *FEW, "--step-ms", 0, "--json")
    assert ended.code == 0, ended.err


def test_a_train_split_without_nodes_is_refused(gnndrive: Command, tmp_path: Path):
    path = tmp_path / "none.gnn"
    planted_communities(path, 200, 4, 2, degree=4, fractions={"train": 0.0, "val": 0.5})
    ended = gnndrive("bench", "headroom", path, *FEW, "--step-ms", 1)
    assert ended.code == 2
    assert re.search("the train split of .* has no nodes", ended.err)


def test_the_median_of_the_rounds_and_the_shares_of_the_real_runs(store: Path):
    stats = {"rows_hit": 30.0, "rows_waited": 10.0, "rows_loaded": 60.0, "wait_slots_s": 0.5}
    runs = {free: [Run(3.0), Run(1.0), Run(2.0)] for free in LINES}
    runs["nothing"] = [Run(1.0, stats), Run(2.0, stats), Run(2.0, stats)]
    no_plan: Any = None
    found = Measured(runs, 2, 1, no_plan, []).headroom()
    assert found.seconds == dict.fromkeys(LINES, 2.0)
    assert found.ranges == dict.fromkeys(LINES, (1.0, 3.0)) | {"nothing": (1.0, 2.0)}
    assert found.hit_share == 0.3
    assert found.slots_share == pytest.approx(1.5 / 10)
    del stats["wait_slots_s"]
    assert Measured(runs, 2, 1, no_plan, []).headroom().slots_share is None


# ---- the end of a training


def test_a_training_run_ends_with_its_verdict(gnndrive: Command, store: Path):
    options = ("--epochs", 1, "--batch-size", 200, "--fanout", "3,2")
    ended = gnndrive("train", store, *options)
    assert ended.code == 0, ended.err
    name, _, verdict = ended.out.splitlines()[-1].partition(":")
    assert name.strip() == "verdict"
    assert verdict.strip().startswith(FIRST_WORDS)
    said = gnndrive("train", store, *options, "--json").json
    assert said["verdict"].startswith(FIRST_WORDS)
