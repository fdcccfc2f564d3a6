"""`gnndrive bench io`, `disk` and `headroom`: their lines and JSON."""

import json
import re

import numpy as np
import pytest

from gnndrive.cli.commands import headroom as command
from gnndrive.cli.measure import calibrate, fio, headroom
from gnndrive.cli.measure.fio import FioResult
from gnndrive.cli.measure.headroom import LINES, Measured, Run
from gnndrive.cli.measure.verdict import FIRST_WORDS
from gnndrive.store import write_store
from gnndrive.store.generate import planted_communities
from tests.cli.conftest import NODES, SMALL


def test_io_as_text_and_as_json(gnndrive, blocks):
    options = ("--filename", blocks, "--bs", "4k", "--iodepth", 8, "--size", "128k")
    ended = gnndrive("bench", "io", *options)
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"read: IOPS=.*\(131 KB/", ended.out)
    said = gnndrive(
        "bench", "io", f"--filename={blocks}", "--bs=512", "--direct=0", "--numjobs=2",
        "--ioengine=threads", "--rw=read", "--output_format=json",
    ).json  # fmt: skip
    (job,) = said["jobs"]
    assert (job["read"]["total_ios"], job["job options"]["rw"]) == (2 * 512, "read")


def test_rows_of_a_store(gnndrive, planted):
    words = ("bench", "io", "--rows", planted)
    assert "rows/s" in gnndrive(*words).out
    said = gnndrive(*words, "--share", 1, "--output-format", "json").json
    assert said["rows"] == 3 * NODES


def test_runs_beside_fio(gnndrive, blocks, planted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fio.shutil, "which", lambda name: None)
        said = gnndrive("bench", "io", "--filename", blocks, "--against-fio").refusal
        assert "apt install fio" in said
    asked, ended = [], FioResult("fio-3.33", 1000.0, 512_000.0, 1, 2, 3, 4)
    monkeypatch.setattr(fio, "require_fio", lambda: "/bin/fio")
    monkeypatch.setattr(fio, "run_fio", lambda given: asked.append(given) or ended)
    options = ("--against-fio", "--runs", 2)
    said = gnndrive("bench", "io", "--filename", blocks, "--size", "64k", *options)
    assert "median of 2 in turn" in said.out
    assert [one.filename for one in asked] == [str(blocks)] * 2
    words = ("--rows", planted, "--share", 1, *options, "--output-format", "json")
    compared = gnndrive("bench", "io", *words).json["against fio"]
    assert [run["fio"]["iops"] for run in compared["runs"]] == [1000.0, 1000.0]
    assert compared["ratio"]["median"] == pytest.approx(compared["ours"]["median"] / 1000)
    assert (asked[-1].bs, asked[-1].runtime_s) == (512, 3.0)


def test_disk_calibrates_and_info_shows_it(gnndrive, tmp_path, monkeypatch):
    for name in ("measure_points", "measure_writes"):  # a few reads of each size, not some seconds
        real = getattr(calibrate, name)
        monkeypatch.setattr(calibrate, name, lambda *given, real=real: real(*given[:-1], 20))
    store = tmp_path / "own.gnn"
    planted_communities(store, 2_000, 16, 4, degree=8, fractions={"train": 0.5})
    assert f"not calibrated: run gnndrive bench disk {store}" in gnndrive("info", store).out
    assert gnndrive("info", store, "--json").json["disk"] is None
    ended = gnndrive("bench", "disk", store, "--iodepth", 4)
    assert ended.err.splitlines()[-1] == "reading: 100 %"
    assert ("disk.json" in ended.out, "by the two figures" in ended.out) == (True, True)
    after = gnndrive("info", store, "--json").json
    assert {"format": 1, **after["disk"]} == json.loads((store / "disk.json").read_text())
    assert 0 <= after["gap_bytes"] <= 65536
    assert re.search(r"µs a request .* written, uring", gnndrive("info", store).out)
    assert gnndrive("bench", "disk", store, "--json").json["depth"] == 128


# ---- headroom


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


GINEX = ("--strategy", "ginex", "--tuning", "topology=direct", "--sampling", "labor", *BUFFER)
DISKGNN = ("--memory", "80MB", "--strategy", "diskgnn")


@pytest.mark.parametrize(("more", "twice"), [(GINEX, True), (DISKGNN, False)])
def test_other_loaders_are_measured(gnndrive, store, more, twice):
    if more is DISKGNN:
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
    ended = gnndrive(*BENCH, store, *FEW, *STEP, *BUFFER, "--tuning", "topology=mmap", "--json")
    assert ended.code == 0, ended.err
    assert "samples are replayed, too" in ended.json["headroom"]["notes"][0]


def test_stores_that_cannot_be_trained_on(gnndrive, tmp_path):
    path = tmp_path / "none.gnn"
    planted_communities(path, 200, 4, 2, degree=4, fractions={"train": 0.0, "val": 0.5})
    error = gnndrive(*BENCH, path, *FEW, "--step-ms", 1).err
    assert re.search("the train split of .* has no nodes", error)
    path, ring = tmp_path / "ring.gnn", {"indptr": range(4), "indices": [1, 2, 0]}
    write_store(path, **ring, nodes={"x": np.ones((3, 4), np.float32)})
    assert "--step-ms" in gnndrive(*BENCH, path, *FEW).refusal
    nodes = {"x": np.full((3, 4), np.nan, np.float32), "y": [0, 1, 0]}
    with pytest.warns(UserWarning, match="hold nan"):
        write_store(path, **ring, nodes=nodes, if_exists="replace")
    refusal = gnndrive(*BENCH, path, *FEW).refusal
    assert re.search(r"loss of a training step is nan: 3 of its 3 rows of x", refusal)


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
