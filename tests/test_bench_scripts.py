"""The benchmarks still run: their workers, their graph and their tables, on tiny stores, in this
process. The tests do not look at the measured times.
"""

import argparse
import importlib
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive.common.errors import StoreError
from gnndrive.common.ffi import lib
from gnndrive.common.records import DiskCost
from gnndrive.store import writer as store_writer
from tests.soak import product

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.append(str(BENCH))

import _loaders  # noqa: E402
import _powerlaw  # noqa: E402
import consumer  # noqa: E402
import epoch  # noqa: E402
import infer  # noqa: E402
import miss_ratio  # noqa: E402
import sampler  # noqa: E402
import scale  # noqa: E402
import standby  # noqa: E402

NODES = 3000
SMALL = ["--batches", "3", "--batch-size", "20", "--fanout", "3,2", "--buffer", "1MB"]
DISK = DiskCost(1e-5, 5e-10, 128, "uring", "2024-01-01", {}, ((4096, 1.2e-5), (65536, 4e-5)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = scale.store_path(tmp_path_factory.mktemp("bench"), NODES)
    _powerlaw.write_powerlaw(path, NODES)
    return path


def options(store: Path, *more: str) -> argparse.Namespace:
    return epoch.parse([str(store), *SMALL, *more])


# ---- the graph ----


def test_the_power_law_graph_is_whole_and_skewed(store):
    made = gnndrive.open(store)
    made.verify()
    assert (made.num_nodes, made.num_edges) == (NODES, _powerlaw.DEGREE * NODES)
    assert made.info.nbytes == _powerlaw.store_bytes(NODES)
    in_degree, out_degree = np.diff(made.indptr), np.bincount(made.indices, minlength=NODES)
    for degree, power in ((in_degree, 1.6), (out_degree, 2.2)):
        tenth = np.sort(degree)[-NODES // 10 :].sum() / made.num_edges
        assert tenth == pytest.approx(0.1 ** (1 / power), abs=0.03)
    assert np.corrcoef(in_degree, out_degree)[0, 1] > 0.5  # one permutation for both


def test_counts_do_not_depend_on_chunks(monkeypatch):
    ranks = np.arange(500, dtype=np.int32)[::-1].copy()
    whole = _powerlaw.index_pointers(ranks, 8000, None)
    monkeypatch.setattr(_powerlaw, "COUNTED_AT_ONCE", 999)
    assert np.array_equal(_powerlaw.index_pointers(ranks, 8000, None), whole)
    assert whole[-1] == 8000


def test_an_interrupted_graph_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(what, done, total):
        if what == "nodes/x":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _powerlaw.write_powerlaw(tmp_path / "graph.gnn", NODES, interrupt)
    monkeypatch.setattr(store_writer, "_free_bytes", lambda folder: 1000)
    with pytest.raises(StoreError, match="too full"):
        _powerlaw.write_powerlaw(tmp_path / "graph.gnn", NODES)
    assert not list(tmp_path.iterdir())


# ---- bench/epoch.py's workers ----


@pytest.mark.parametrize("topology", ["resident", "mmap", "direct"])
def test_all_loaders_draw_the_same_batches(store, topology):
    given = options(store, "--topology", topology)
    ended = {name: _loaders.RUNS[name](given) for name in ("pyg+", "sampling")}
    given.worker = "gnndrive"
    ended["gnndrive"] = _loaders.run_gnndrive(given)
    assert {result["batches"] for result in ended.values()} == {3}
    assert len({result["rows"] for result in ended.values()}) == 1
    assert ended["gnndrive"]["topology"] == topology


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run workers in this process, and do not measure the disk."""

    def spawn(which: str, given: argparse.Namespace, *_: Any) -> dict[str, Any]:
        given.worker = which
        return _loaders.RUNS[which](given) | {"peak_bytes": 1}

    monkeypatch.setattr(epoch, "spawn", spawn)
    monkeypatch.setattr(epoch, "calibrate", lambda store: DISK)


@pytest.mark.usefixtures("in_process")
def test_the_disk_is_measured_with_each_loader(store):
    more = ("--loaders", "pyg+,naive,gnndrive", "--topology", "resident", "--rounds", "2")
    given = options(store, *more)
    found = epoch.measure(given, None)
    mapped, *measured, sampling = found["results"]
    assert [result["loader"] for result in (mapped, sampling)] == ["pyg+", "sampling"]
    assert [result["loader"] for result in measured] == ["naive", "gnndrive"] * 2
    for result in measured:
        reads = result["requests"] * result["request_us"] + result["bytes_read"] * (
            result["byte_ns"] / 1e3
        )
        assert result["floor_parts_s"]["reads"] == pytest.approx(reads / 1e6 / 3)
    assert "floor_s" not in mapped
    text = epoch.table(found | {"memory": "enough"}, given)
    spread = r"[\d.]+ \([\d.]+ to [\d.]+\)"
    assert re.search(
        rf"gnndrive, 2 rounds: {spread} s a batch, {spread} of its floor, [\d.]+ times as fast as "
        r"pyg\+$", text, re.MULTILINE,
    )  # fmt: skip
    assert text.count("us a request") == 4
    assert "adjacency" not in text


def test_the_floor_with_the_adjacencys_reads_is_reported():
    sampling = {"elapsed_s": 0.1, "batches": 2, "sample_s": 0.1, "samples": 2}
    result = {
        "batches": 2, "elapsed_s": 6.0, "cpu_s": 0.1, "samples": 4, "requests": 200_000,
        "bytes_read": 0, "topology_requests": 200_000, "topology_bytes_read": 10**9,
    }  # fmt: skip
    epoch.add_floor(result, DISK, sampling)
    assert result["floor_s"] == pytest.approx(1.0)  # a batch; the adjacency: 2.5 for four samples
    assert (epoch.of_floor(result), epoch.of_all_reads(result)) == pytest.approx((3.0, 3 / 1.625))
    assert epoch.limits(result) == "reads; 1.85 with the adjacency's reads"
    assert epoch.limits(result | {"adjacency_s": 0.0}) == "reads"


# ---- bench/scale.py ----


@pytest.mark.usefixtures("in_process")
def test_scale_measures_one_size(store):
    result = scale.measure(NODES, options(store, "--topology", "resident"), None)
    assert result["tables"]["index pointers"] == 4 * (NODES + 1)
    assert result["tables"]["indices"] == 12 * _powerlaw.DEGREE * NODES // 8 + 8
    assert result["beyond_bytes"] == result["private_bytes"] - sum(result["tables"].values())
    text = scale.table({"memory": "enough", "results": [result]}, options(store))
    assert text.splitlines()[-1].split()[:2] == ["0.003", "M"]


@pytest.mark.usefixtures("in_process")
def test_scale_prints_the_medians_of_its_rounds(store, monkeypatch, capsys):
    seconds = iter([3.0, 1.0, 2.0])

    def measure(nodes, *_):
        return measured(nodes) | {"elapsed_s": next(seconds)}

    monkeypatch.setattr(scale, "measure", measure)
    monkeypatch.setattr(scale, "limited", lambda _: nullcontext((None, "enough")))
    size, folder = f"{NODES / 1e6:g}", str(store.parent)
    monkeypatch.setattr("sys.argv", ["scale.py", "--sizes", size, "--folder", folder,
                                     "--rounds", "3"])  # fmt: skip
    scale.main()
    *_, last = capsys.readouterr().out.splitlines()
    assert last == (
        f"{size} M, 3 rounds: 1.00 (0.50 to 1.50) s a batch, 2.00 (1.00 to 3.00) of its floor, "
        "1.33 (0.67 to 2.00) with the adjacency's reads"
    )


def measured(nodes: int) -> dict[str, Any]:
    """A result of two batches; reads take 0.5 s a batch for features, 0.25 s for the adjacency."""
    numbers = dict.fromkeys(("set_up_s", "first_s", "hit_rate"), 0.0)
    sizes = dict.fromkeys(("rows", "requests", "peak_bytes", "private_bytes", "tables_bytes",
                           "beyond_bytes"), 0)  # fmt: skip
    floor = {"floor_parts_s": {"reads": 0.5}, "floor_s": 0.5, "adjacency_s": 0.25}
    return numbers | sizes | floor | {"nodes": nodes, "batches": 2}


def test_scale_counts_the_touched_pages_of_an_order():
    assert scale.touched(4 << 20, 0) == 0
    assert scale.touched(4 << 20, 512) == pytest.approx(0.3935 * (4 << 20), rel=1e-3)
    assert scale.touched(4 << 20, 10**6) == pytest.approx(4 << 20, abs=1)


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
    own, left = scale.parse(["--sizes", "0.5,2", "--batches", "3", "--topology", "mmap"])
    assert own.sizes == [500_000, 2_000_000]
    given = epoch.parse(["there.gnn", *left])
    assert (given.topology, given.batches) == ("mmap", 3)


# ---- bench/sampler.py ----


def test_the_sampler_prints_the_nodes_of_each_sampling(store, capsys):
    words = [str(store), "--batches", "6", "--batch-size", "20", "--fanout", "5,5"]
    sampler.main([*words, "--sampling", "neighbor,labor", "--batch-dependency", "1,64"])
    _, _, *rows, _ = capsys.readouterr().out.splitlines()
    found = {row[:24].strip(): row[24:].split() for row in rows}
    assert list(found) == ["neighbor", "labor, dependency 1", "labor, dependency 64"]
    nodes, new, of_all = (
        [int(each[at].replace(",", "")) for each in found.values()] for at in range(3)
    )
    assert nodes[0] > nodes[1] > 0
    assert new[1] > new[2]
    assert of_all[1] > of_all[2]


# ---- bench/consumer.py ----


@product("mode,engine", consumer.MODES, ["auto", "threads"])
def test_consumer_finds_the_loaders_threads(store, mode, engine, monkeypatch):
    monkeypatch.setattr(consumer, "ALONE_S", 1e-4)
    monkeypatch.setattr(consumer.TimedCore, "install", lambda: consumer.TimedCore(lib))
    result = consumer.run(options(store, "--engine", engine), mode, 1e-4)
    assert (result["batches"], set(result["threads"])) == (3, set(consumer.SHOWN))
    assert (result["burn_speed"] is None) is (mode in ("idle", "wait"))
    with pytest.raises(SystemExit, match="loop thread"):
        consumer.spent(consumer.Counter(), consumer.Counter(), 1.0)


def test_consumer_compares_modes_with_idle(store, monkeypatch):
    speeds = {"idle": 100.0, "thread": 95.0, "loop": 90.0}
    asked = []

    def spawn(mode, given, *_):
        asked.append((mode, given.given[-1]))
        return {
            "loader": mode, "batches": 3, "rows_per_s": speeds[mode], "elapsed_s": 1.0,
            "following_s": 0.5, "burn_speed": 0.8, "engine": "uring",
            "threads": dict.fromkeys(consumer.SHOWN, 0.1),
        }  # fmt: skip

    monkeypatch.setattr(epoch, "spawn", spawn)
    own, left = consumer.parse([str(store), "--runs", "2", "--modes", "loop,thread", *SMALL])
    given = epoch.parse(left)
    results = consumer.measure(own, given, None)
    assert asked == 2 * [("idle", "0.0"), ("loop", "0.5"), ("thread", "0.5")]
    text = consumer.table({"memory": "enough", "results": results}, own, given)
    assert "0.950 (0.950–0.950)" in text
    assert "0.900 (0.900–0.900)" in text


# ---- bench/standby.py ----


def test_standby_measures_each_kind_of_keys(capsys):
    standby.main(["--rows", "2000", "--slots", "1000", "--batch", "400", "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()[2:]
    counts = {line[:12].strip(): len(line[12:].split()) for line in lines}
    assert counts == {"linked list": 1, "LRU": 3, "look-ahead": 3, "random": 3}


# ---- all of them ----


@pytest.mark.parametrize("script", sorted(path.stem for path in BENCH.glob("*.py")))
def test_every_script_can_be_imported(script):
    assert importlib.import_module(script).__doc__


# ---- inference ----


def test_infer_compares_with_its_reads_and_a_mapped_loop(store, tmp_path, monkeypatch):
    words = [str(store), "--layers", "2", "--memory", "100MB", "--work", str(tmp_path / "work")]
    given = infer.parse([*words, "--mapped-batches", "1", "--mapped-warm-up", "0"])

    def spawn(which, options, group, script):
        assert Path(script).name == "infer.py"
        return infer.RUNS[which](options)

    monkeypatch.setattr(infer.epoch, "spawn", spawn)
    monkeypatch.setattr(infer, "limited", lambda limit: nullcontext((None, "no limit")))
    monkeypatch.setattr(infer, "calibrate", lambda store: DISK)
    monkeypatch.setattr(infer, "cost_of", lambda *given: DISK)
    result = infer.measure(given)
    assert not (tmp_path / "work").exists()
    ours = result["gnndrive"]
    rows, edges = NODES * _powerlaw.COLUMNS * 4, NODES * _powerlaw.DEGREE * 4
    assert 2 * (rows * 0.9 + edges) < ours["bytes_read"] < 2 * (rows + edges) + (1 << 20)
    assert ours["bytes_written"] == 2 * rows
    assert result["mapped"]["share"] == pytest.approx(0.5)
    text = infer.table(result, given)
    assert "2 layers" in text
    assert "of it" in text


# ---- the miss-ratio curve ----


def test_predicted_hits_stand_beside_those_of_loaders(store):
    words = [str(store), "--memory", "35.5MB", "--batch-size", "20", "--fanout", "3,2"]
    words += ["--batches", "20", "--warm-up", "40", "--buffers", "0.5,1.5"]
    found = miss_ratio.measure(miss_ratio.parse(words))
    assert len(found["results"]) == 2
    for each in found["results"]:
        assert 0 < each["predicted"] < 1
        assert abs(each["predicted"] - each["measured"]) < 0.2
    assert "predicted %" in miss_ratio.table(found)
