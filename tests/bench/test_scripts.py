"""The scripts of bench/ still run, on tiny stores, in this process; times are not looked at."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import _limits
import consumer
import epoch
import headroom_checks
import infer
import miss_ratio
import numpy as np
import pytest
import sampler
import scale
import standby
import tables

import gnndrive
from gnndrive.cli.measure.memory_limit import V2, Cgroup
from gnndrive.cli.measure.verdict import FIRST_WORDS
from gnndrive.common.ffi import lib
from gnndrive.common.records import DiskCost
from gnndrive.store.generate import planted_communities
from tests.cli.measure.fake_groups import FakeKernel
from tests.cli.measure.fake_groups import tables as fake_tables
from tests.project_files import ROOT
from tests.soak import product

NODES = 3000
SMALL = ["--batches", "3", "--batch-size", "20", "--fanout", "3,2", "--buffer", "1MB"]
DISK = DiskCost(1e-5, 5e-10, 128, "uring", "2024-01-01", {}, ((4096, 1.2e-5), (65536, 4e-5)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = scale.store_path(tmp_path_factory.mktemp("bench"), NODES)
    scale.write_powerlaw(path, NODES)
    return path


def options(store: Path, *more: str) -> argparse.Namespace:
    return epoch.parse([str(store), *SMALL, *more])


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run workers in this process, and do not measure the disk."""

    def spawn(which: str, given: argparse.Namespace, *_: Any) -> dict[str, Any]:
        given.worker = which
        return epoch.RUNS[which](given) | {"peak_bytes": 1}

    monkeypatch.setattr(epoch, "spawn", spawn)
    monkeypatch.setattr(_limits, "calibrate", lambda store: DISK)


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "bench").glob("*.py")))
def test_every_script_can_be_imported(script):
    assert importlib.import_module(script).__doc__


# ---- the graph


def test_the_power_law_graph_is_whole_and_skewed(store, monkeypatch):
    made = gnndrive.open(store)
    made.verify()
    assert (made.num_nodes, made.num_edges) == (NODES, scale.DEGREE * NODES)
    assert made.info.nbytes == scale.store_bytes(NODES)
    in_degree, out_degree = np.diff(made.indptr), np.bincount(made.indices, minlength=NODES)
    for degree, power in ((in_degree, 1.6), (out_degree, 2.2)):
        tenth = np.sort(degree)[-NODES // 10 :].sum() / made.num_edges
        assert tenth == pytest.approx(0.1 ** (1 / power), abs=0.03)
    assert np.corrcoef(in_degree, out_degree)[0, 1] > 0.5  # one permutation for both
    ranks = np.arange(500, dtype=np.int32)[::-1].copy()
    whole = scale.index_pointers(ranks, 8000, None)
    monkeypatch.setattr(scale, "COUNTED_AT_ONCE", 999)
    assert np.array_equal(scale.index_pointers(ranks, 8000, None), whole)
    assert whole[-1] == 8000


# ---- bench/epoch.py


@pytest.mark.parametrize("topology", ["resident", "mmap", "direct"])
def test_all_loaders_draw_the_same_batches(store, topology):
    given = options(store, "--topology", topology)
    given.worker = "gnndrive"
    ended = [epoch.RUNS[name](given) for name in ("pyg+", "sampling")]
    ended.append(epoch.run_gnndrive(given))
    assert [result["batches"] for result in ended] == [3] * 3
    assert len({result["rows"] for result in ended}) == 1
    assert ended[-1]["topology"] == topology


@pytest.mark.usefixtures("in_process")
def test_the_disk_is_measured_with_each_loader(store):
    more = ("--loaders", "pyg+,joint,gnndrive", "--topology", "resident", "--rounds", "2")
    given = options(store, *more)
    found = epoch.measure(given, None)
    mapped, *measured, sampling = found["results"]
    assert [result["loader"] for result in (mapped, sampling)] == ["pyg+", "sampling"]
    assert [result["loader"] for result in measured] == ["joint", "gnndrive"] * 2
    for result in measured:
        byte_us = result["byte_ns"] / 1e3
        reads = result["requests"] * result["request_us"] + result["bytes_read"] * byte_us
        assert result["floor_parts_s"]["reads"] == pytest.approx(reads / 1e6 / 3)
    assert "floor_s" not in mapped
    text = epoch.table(found | {"memory": "enough"}, given)
    spread = r"[\d.]+ \([\d.]+ to [\d.]+\)"
    assert re.search(
        rf"gnndrive, 2 rounds: {spread} s a batch, {spread} of its floor, [\d.]+ times as fast as "
        r"pyg\+$", text, re.MULTILINE,
    )  # fmt: skip
    assert (text.count("us a request"), "adjacency" in text) == (4, False)


def test_the_floor_with_the_adjacencys_reads_is_reported():
    sampling = {"elapsed_s": 0.1, "batches": 2, "sample_s": 0.1, "samples": 2}
    result = {
        "batches": 2, "elapsed_s": 6.0, "cpu_s": 0.1, "samples": 4, "requests": 200_000,
        "bytes_read": 0, "topology_requests": 200_000, "topology_bytes_read": 10**9,
    }  # fmt: skip
    epoch.add_floor(result, DISK, sampling)
    # a batch: 1 s; the adjacency: 2.5 s for four samples
    found = (result["floor_s"], epoch.of_floor(result), epoch.of_all_reads(result))
    assert found == pytest.approx((1.0, 3.0, 3 / 1.625))
    assert epoch.limits(result) == "reads; 1.85 with the adjacency's reads"


# ---- bench/scale.py


@pytest.mark.filterwarnings("ignore:nodes/y")  # ten nodes cannot have all classes
def test_scale_makes_missing_graphs_and_refuses_others(store, tmp_path):
    scale.make_missing(store.parent, [NODES, 10])
    assert gnndrive.open(scale.store_path(store.parent, 10)).num_nodes == 10
    scale.store_path(store.parent, 10).rename(scale.store_path(store.parent, 20))
    with pytest.raises(SystemExit, match="another graph"):
        scale.make_missing(store.parent, [20])
    with pytest.raises(SystemExit, match=r"powerlaw_1e\+06m\.gnn take .* free"):
        scale.make_missing(tmp_path, [10**12])
    assert not list(tmp_path.iterdir())


# ---- bench/consumer.py


@product("mode,engine", consumer.MODES, ["auto", "threads"])
def test_consumer_finds_the_loaders_threads(store, mode, engine, monkeypatch):
    monkeypatch.setattr(consumer, "ALONE_S", 1e-4)
    monkeypatch.setattr(consumer.TimedCore, "install", lambda: consumer.TimedCore(lib))
    result = consumer.run(options(store, "--engine", engine), mode, 1e-4)
    assert (result["batches"], set(result["threads"])) == (3, set(consumer.SHOWN))
    assert (result["burn_speed"] is None) is (mode in ("idle", "wait"))
    with pytest.raises(SystemExit, match="loop thread"):
        consumer.spent(consumer.Counter(), consumer.Counter(), 1.0)


# ---- bench/sampler.py, standby.py, infer.py, miss_ratio.py


def test_the_sampler_prints_the_nodes_of_each_sampling(store, capsys):
    words = [str(store), "--batches", "6", "--batch-size", "20", "--fanout", "5,5"]
    sampler.main([*words, "--sampling", "neighbor,labor", "--batch-dependency", "1,64"])
    _, _, *rows, _ = capsys.readouterr().out.splitlines()
    found = {row[:24].strip(): row[24:].replace(",", "").split() for row in rows}
    assert list(found) == ["neighbor", "labor, dependency 1", "labor, dependency 64"]
    nodes, new, of_all = ([int(each[at]) for each in found.values()] for at in range(3))
    assert (nodes[0] > nodes[1] > 0, new[1] > new[2], of_all[1] > of_all[2]) == (True, True, True)


def test_standby_measures_each_kind_of_keys(capsys):
    standby.main(["--rows", "2000", "--slots", "1000", "--batch", "400", "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()[2:]
    counts = {line[:12].strip(): len(line[12:].split()) for line in lines}
    assert counts == {"linked list": 1, "LRU": 3, "look-ahead": 3, "random": 3}


def test_infer_compares_with_its_reads_and_a_mapped_loop(store, tmp_path, monkeypatch):
    words = [str(store), "--layers", "2", "--memory", "100MB", "--work", str(tmp_path / "work")]
    given = infer.parse([*words, "--mapped-batches", "1", "--mapped-warm-up", "0"])
    monkeypatch.setattr(
        infer.epoch, "spawn", lambda which, options, group, script: infer.RUNS[which](options)
    )
    monkeypatch.setattr(infer, "limited", lambda limit: nullcontext((None, "no limit")))
    monkeypatch.setattr(_limits, "calibrate", lambda store: DISK)
    monkeypatch.setattr(_limits, "cost_of", lambda *given: DISK)
    result = infer.measure(given)
    assert not (tmp_path / "work").exists()
    ours = result["gnndrive"]
    rows, edges = NODES * scale.COLUMNS * 4, NODES * scale.DEGREE * 4
    assert 2 * (rows * 0.9 + edges) < ours["bytes_read"] < 2 * (rows + edges) + (1 << 20)
    assert ours["bytes_written"] == 2 * rows
    assert result["mapped"]["share"] == pytest.approx(0.5)
    assert "2 layers" in infer.table(result, given)


def test_predicted_hits_stand_beside_those_of_loaders(store):
    words = [str(store), "--memory", "35.5MB", "--batch-size", "20", "--fanout", "3,2"]
    words += ["--batches", "20", "--warm-up", "40", "--buffers", "0.5,1.5"]
    found = miss_ratio.measure(miss_ratio.parse(words))
    assert len(found["results"]) == 2
    for each in found["results"]:
        assert 0 < each["predicted"] < 1
        assert abs(each["predicted"] - each["measured"]) < 0.2
    assert "predicted %" in miss_ratio.table(found)


# ---- bench/headroom_checks.py


@pytest.mark.parametrize(("wrong", "code"), [(None, 0), ("step", 1)])
def test_a_wrong_verdict_is_the_exit_code(tmp_path, monkeypatch, capsys, wrong, code):
    order = headroom_checks.checks(512, 1000, 100)
    words = [check.words for check in order.values()]
    assert len(set(words)) == len(order) == 4
    assert all(any(first.startswith(word) for first in FIRST_WORDS) for word in words)
    assert str(125 * 512) in order["buffer"].options
    assert str(1000 * 512) in order["sampler"].options

    def run(check, own):
        named = next(name for name, made in order.items() if made.words == check.words)
        said = "something else" if named == wrong else f"{check.words}: so it is"
        return {"headroom": {"lines": [], "verdict": said}}

    store = tmp_path / "small.gnn"
    planted_communities(store, 200, 16, 4, degree=8, fractions={"train": 0.4})
    monkeypatch.setattr(headroom_checks, "run", run)
    monkeypatch.setattr(sys, "argv", ["headroom_checks.py", str(store), "--checks", "step,buffer"])
    with pytest.raises(SystemExit) as ended:
        headroom_checks.main()
    assert ended.value.code == code
    out = capsys.readouterr().out
    assert ("WRONG" in out, out.count("right")) == (wrong is not None, 2 - code)


# ---- limits and page caches


LIMIT = 2_000_000_000


def test_each_run_has_its_own_group_and_peak(tmp_path):
    (tmp_path / "groups").mkdir()
    fake = FakeKernel(tmp_path / "groups", V2, is_root=True)
    group = Cgroup(LIMIT, fake_tables(tmp_path / "proc", fake, "/"), fake)
    fake.made.clear()
    command = [sys.executable, "-S", "-c", "print('ran')"]
    for _ in range(2):
        ended, peak = _limits.run_limited(command, group)
        assert (ended.returncode, ended.stdout, peak) == (0, "ran\n", 4096)
    assert len(set(fake.made)) == 2
    ended, peak = _limits.run_limited(command, None)
    assert (ended.stdout, peak) == ("ran\n", None)
    with pytest.raises(subprocess.TimeoutExpired):
        _limits.run_limited(["cat", "/dev/zero"], group, timeout_s=1e-3)
    assert not [path for path in fake.top.iterdir() if path.is_dir()]
    group.close()


@pytest.mark.parametrize(("peak", "reported", "every"), [(4096, 4096, True), (None, 77, False)])
def test_a_worker_has_a_limit_and_dropped_files(tmp_path, monkeypatch, peak, reported, every):
    """Without a known peak that of the process is reported: samples of memory would miss it."""

    def run(command, given, timeout_s):
        assert given == "a group"
        return subprocess.CompletedProcess(command, 0, json.dumps({"peak_bytes": 77})), peak

    dropped = []
    monkeypatch.setattr(_limits, "run_limited", run)
    monkeypatch.setattr(_limits, "drop_caches", lambda folder, every: dropped.append(every))
    options = argparse.Namespace(store=str(tmp_path), given=[])
    found = epoch.spawn("gnndrive", options, "a group", everything=every)
    assert (found, dropped) == ({"peak_bytes": reported}, [every])


@pytest.mark.parametrize(
    ("status", "said"), [(-9, "so much"), (0, "accepted, but not enforced"), (None, "20 s")]
)
def test_a_limit_that_is_not_enforced_counts_as_none(monkeypatch, status, said):
    """gVisor accepts limits of groups and does not enforce them."""

    group = Mock()

    def run(command, given, seconds):
        assert given is group
        if status is None:
            raise subprocess.TimeoutExpired(command, seconds)
        return subprocess.CompletedProcess(command, status), None

    monkeypatch.setattr(_limits, "Cgroup", lambda _: group)
    monkeypatch.setattr(_limits, "run_limited", run)
    words = nullcontext((group, "so much"))
    monkeypatch.setattr(_limits, "memory_limit", lambda _: words)
    with _limits.tried_limit(LIMIT) as (limit, text):
        assert limit is (group if status == -9 else None)
        assert said in text


# ---- bench/tables.py


def test_tables_are_imported_and_sorted(tmp_path):
    tables.make(tmp_path, users=50, items=20, orders=60)
    for worker in ("import", "sort"):
        given = argparse.Namespace(folder=str(tmp_path), memory="100MB", worker=worker)
        assert tables.work(given)["resident_bytes"] > 0
    store = gnndrive.open(tmp_path / "tables.gnn")
    assert (store["user"].num_features, store["buys"].num_edges) == (64, 60)
