"""What `gnndrive bench io` and `disk` measure: latencies, raw reads, rows, fio, the line."""

import errno
import json
import os
import re
import statistics
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.cli.measure import calibrate, fio, raw, rows, text
from gnndrive.cli.measure.calibrate import READ_BYTES, ROUNDS, fit, medians, misfit
from gnndrive.cli.measure.fio import FioResult, against, fio_command, in_turn, parse_fio
from gnndrive.cli.measure.latency import Histogram, Latency
from gnndrive.cli.measure.raw import IoOptions, block_count, block_numbers
from gnndrive.common.errors import ConfigError, GNNDriveError, ReadError, StoreError
from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import DiskCost, DiskIdentity, EngineSettings
from gnndrive.disk.block_file import BlockFile
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.store import write_store
from gnndrive.store.calibration import disk_identity, load_calibration, save_calibration

NODES, DIM = 3_000, 128  # rows of 512 bytes, a sector


@pytest.fixture
def store(tmp_path):
    """Every node has four in-neighbours."""
    random = np.random.default_rng(3)
    return write_store(
        tmp_path / "small.gnn",
        indptr=np.arange(NODES + 1) * 4,
        indices=random.integers(0, NODES, 4 * NODES),
        nodes={"x": random.standard_normal((NODES, DIM)).astype(np.float32)},
    )


# ---- histograms


def histogram(*parts):
    """The histogram `lat` of all parts, each counted separately and then merged."""
    latencies = []
    for part in parts:
        latencies.append(ffi.new("gd_latency *"))
        for ns in part:
            lib.gd_histogram_add(ffi.addressof(latencies[-1].lat), ns)
    return sum(map(Latency.of, latencies), Latency()).lat


def test_small_times_are_exact():
    counted = histogram(range(1, 101))
    assert [counted.percentile_ns(p) for p in (1, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert counted.stddev_ns == pytest.approx(statistics.stdev(range(1, 101)))
    shares = histogram([10, 20, 30, 5000])
    assert [shares.share_below(ns) for ns in (9, 20, 1000, 10**6)] == [0, 0.5, 0.75, 1]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**10), min_size=2, max_size=200))
def test_figures_are_right_to_a_buckets_width(times):
    counted = histogram(times[::2], times[1::2])
    assert counted.count == len(times)
    assert (counted.min_ns, counted.max_ns) == (min(times), max(times))
    assert counted.mean_ns == pytest.approx(statistics.fmean(times))
    for percent in (1, 50, 90, 99, 100):
        exact = sorted(times)[max(1, int(np.ceil(len(times) * percent / 100))) - 1]
        assert counted.percentile_ns(percent) == pytest.approx(exact, rel=0.016, abs=1)
    spread = statistics.stdev(times)
    assert counted.stddev_ns == pytest.approx(spread, rel=0.05, abs=0.02 * max(times))


def test_buckets_cover_all_times_in_order():
    middles = [lib.gd_bucket_ns(bucket) for bucket in range(lib.GD_LATENCY_BUCKETS)]
    assert middles == sorted(set(middles))
    assert middles[:130] == [*range(128), 129, 131]
    assert (histogram(middles).buckets == 1).all()
    beyond = histogram([-5, 2**62])
    assert beyond.buckets[0] == beyond.buckets[-1] == 1
    empty = histogram([])
    assert empty.count == empty.mean_ns == empty.stddev_ns == empty.percentile_ns(99) == 0
    assert (Histogram().share_below(10), histogram([], [7], []).min_ns) == (0, 7)


# ---- raw reads, a fixed number of them instead of a clock


@pytest.mark.parametrize(
    ("rw", "ioengine", "numjobs"), [("read", "uring", 3), ("randread", "threads", 1)]
)
def test_a_fixed_number_of_reads(blocks, rw, ioengine, numjobs):
    blocks.chmod(0o400)
    given = {"rw": rw, "numjobs": numjobs, "ioengine": ioengine, "iodepth": 8}
    driven = raw.run(IoOptions(str(blocks), reads=2_000, **given))
    assert driven.rows == driven.requests == 2_000 * numjobs
    assert (driven.nbytes, driven.retries) == (4096 * driven.requests, 0)
    latency = driven.latency
    assert latency.lat.count == latency.clat.count == driven.requests
    assert latency.slat.count == (driven.requests if ioengine == "uring" else 0)


def test_without_runtime_or_reads_the_size_is_read_once(blocks):
    options = IoOptions(str(blocks), bs=512, iodepth=4, size=65536, direct=False, slat=False)
    driven = raw.run(options)
    assert (driven.nbytes, driven.latency.slat.count, driven.latency.lat.count) == (65536, 0, 128)
    assert raw.run(replace(options, size=None)).requests == (64 * 4096 + 100) // 512
    timed = raw.run(IoOptions(str(blocks), iodepth=4, runtime_s=1e-9))
    assert timed.rows == timed.requests


def test_the_numbers_of_the_blocks():
    options = IoOptions("x", rw="read", iodepth=4)
    given = list(block_numbers(options, 100, 5000, 0))
    assert [len(part) for part in given] == [4096, 904]
    assert (np.concatenate(given) == np.arange(5000) % 100).all()
    draw = replace(options, rw="randread")
    drawn = [
        np.concatenate(list(block_numbers(draw, 100, 5000, job))).tolist() for job in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == set(range(100))
    endless = block_numbers(options, 7, None, 0)
    assert [next(endless)[-1] for _ in range(2)] == [4095 % 7, 8191 % 7]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"runtime_s": 0.0}, "runtime must be more than 0"),
        ({"bs": 1 << 20}, "not one block of bs=1,048,576"),
        ({"bs": 1000}, r"bs=1000 is no multiple of the \d+ bytes"),
        ({"iodepth": 10**6}, "depth may be 1 to 4096"),
    ],
)
def test_options_that_cannot_work_are_refused(blocks, change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        raw.run(replace(IoOptions(str(blocks), reads=1), **change))


@pytest.mark.parametrize(
    ("path", "said"),
    [("/gone", "gone cannot be read"), ("/", "cannot be read"), ("/dev/zero", "no file or block")],
)
def test_a_file_that_cannot_be_read_is_refused(path, said):
    with pytest.raises(ConfigError, match=said):
        block_count(IoOptions(path))


def test_a_failed_read_is_an_error(blocks, monkeypatch):
    """It reads beyond the end of the file, as if the file was cut after its size was read."""
    real = raw.block_count
    monkeypatch.setattr(raw, "block_count", lambda options: 2 * real(options))
    options = IoOptions(str(blocks), rw="read", iodepth=4, reads=128)
    with pytest.raises(ReadError, match="at byte 26") as caught:
        raw.run(options)
    assert caught.value.errno == errno.ENODATA


# ---- rows of batches


def test_batches_are_a_share_of_all_rows(store):
    drawn, again = (list(map(bytes, rows.wanted_rows(NODES, 0.05))) for _ in range(2))
    assert (drawn, len(set(drawn))) == (again, 3)
    for part in rows.wanted_rows(NODES, 0.05):
        assert 80 <= len(part) <= 220
        assert (np.diff(part) > 0).all()
    assert (next(rows.wanted_rows(NODES, 1.0)) == np.arange(NODES)).all()
    result = rows.run(store, 1e-9)
    assert (result.driven.rows, result.predicted_s) == (0, None)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_rows_that_cannot_be_drawn_are_refused(store, share):
    with pytest.raises(ConfigError):
        rows.run(store, share)


def test_bridging_saves_requests(store):
    count = sum(len(part) for part in rows.wanted_rows(NODES, 0.05))
    bridged = rows.run(store, iodepth=8, ioengine="threads")
    assert bridged.driven.rows == count > bridged.driven.requests
    assert (bridged.gap_bytes, bridged.predicted_s) == (8192, None)
    assert bridged.rows_per_s == count / bridged.driven.runtime_s


def test_the_stores_calibration_predicts_the_time(store):
    disk = disk_identity(store.path)
    save_calibration(store, DiskCost(1e-5, 1e-9, 8, "uring", "2026-01-01", disk, ()))
    result = rows.run(store, iodepth=8)
    driven = result.driven
    assert result.gap_bytes == 9728  # 10,000, in whole sectors
    assert result.predicted_s == pytest.approx(driven.requests * 1e-5 + driven.nbytes * 1e-9)
    assert "of its speed" in text.rows_report(result)
    other = DiskIdentity("0:0", "", "", "")
    save_calibration(store, DiskCost(1e-5, 1e-9, 8, "uring", "2026-01-01", other, ()))
    assert rows.run(store, iodepth=8).predicted_s is None


# ---- fio


# The output of fio 3.33 with --output-format=json, shortened to the entries that are read.
READ = {
    "io_bytes": 99337728, "bw_bytes": 49644041, "bw": 48480, "iops": 96961.01949, "runtime": 2001,
    "clat_ns": {"min": 495000, "mean": 1316590.0, "percentile": {"99.000000": 5341184}},
    "lat_ns": {"min": 542000, "max": 6427000, "mean": 1320020.5, "stddev": 1.0, "N": 1},
}  # fmt: skip
JOB = {"jobname": "gnndrive", "error": 0, "read": READ, "usr_cpu": 1.35, "sys_cpu": 34.25}
CANNED = "fio: this platform does not support process shared mutexes\n" + json.dumps(
    {"fio version": "fio-3.33", "timestamp": 1763713200, "jobs": [JOB]}, indent=2
)


def test_fios_json_is_parsed():
    read = (READ["iops"], READ["bw_bytes"], JOB["usr_cpu"], JOB["sys_cpu"])
    assert parse_fio(CANNED) == FioResult("fio-3.33", *read, 1320020.5, 5341184.0)


@pytest.mark.parametrize(
    "said", ["", "fio: bad option", "{", '{"jobs": []}', CANNED.replace("iops", "iopz")]
)
def test_output_that_is_no_report_is_an_error(said):
    with pytest.raises(GNNDriveError, match="by hand"):
        parse_fio(said)


def test_fios_command_line():
    command = fio_command("/bin/fio", IoOptions("/a:b", bs=512, iodepth=32, runtime_s=1.5))
    assert command[0] == "/bin/fio"
    assert set(command) >= {
        "--readonly", "--norandommap", "--filename=/a\\:b", "--rw=randread", "--bs=512",
        "--iodepth=32", "--numjobs=1", "--direct=1", "--ioengine=io_uring", "--runtime=1500ms",
        "--time_based=1", "--output-format=json",
    }  # fmt: skip
    assert not re.search("batch|size|slat", " ".join(command))
    options = IoOptions(
        "f", ioengine="threads", iodepth=64, numjobs=2, size=4096, slat=False, reads=7,
    )  # fmt: skip
    command = fio_command("fio", options)
    assert set(command) >= {
        "--ioengine=psync", "--numjobs=32", "--iodepth=1", "--size=4096", "--disable_slat=1",
        "--number_ios=7",
    }  # fmt: skip
    assert not re.search("runtime|time_based", " ".join(command))


def test_fio_is_run_and_its_failure_is_an_error(monkeypatch):
    ended = iter([(1, "", "fio: file not found\nmore"), (0, CANNED, "")])
    monkeypatch.setattr(fio.shutil, "which", lambda name: "/bin/fio")
    monkeypatch.setattr(
        fio.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], *next(ended))
    )
    with pytest.raises(GNNDriveError, match=r"code 1 and printed: fio: file not found$"):
        fio.run_fio(IoOptions("f"))
    assert fio.run_fio(IoOptions("f")).version == "fio-3.33"


def test_runs_alternate_and_ratios_compare_those_of_each_pair():
    order = []
    both = in_turn(lambda: order.append("ours"), lambda: order.append("fio"), 3)
    assert (order, list(map(len, both))) == (["ours", "fio", "fio", "ours", "ours", "fio"], [3, 3])
    ours = [90.0, 200.0, 110.0]
    theirs = [FioResult("fio-3.33", iops, 0, 0, 0, 0, 0) for iops in (100.0, 200.0, 100.0)]
    compared, said = against("IOPS", ours, theirs)
    assert compared["ratio"] == {"median": 1.0, "least": 0.9, "most": 1.1}
    assert "run 1: 90 IOPS beside fio-3.33's 100 IOPS: 0.900" in said
    assert "ratio 1.000 (0.900 to 1.100)" in said


def test_gnndrives_report_has_the_form_of_fios(blocks):
    options = IoOptions(str(blocks), iodepth=4, reads=500)
    driven = raw.run(options)
    said = json.dumps(text.io_json(options, driven))
    read = parse_fio(said)
    assert read.iops == pytest.approx(500 / driven.runtime_s)
    assert read.bw_bytes == pytest.approx(read.iops * 4096, rel=1e-3)
    assert read.clat_ns_p99 > 0
    (job,) = json.loads(said)["jobs"]
    assert job["read"]["total_ios"] == job["read"]["lat_ns"]["N"] == 500
    assert job["read"]["io_bytes"] == 500 * 4096
    shares = [*job["latency_ns"].values(), *job["latency_us"].values(), *job["latency_ms"].values()]
    assert sum(shares) == pytest.approx(100)
    said = text.io_report(options, driven)
    for part in ("rw=randread, bs=4096", "  read: IOPS=", "slat (", "clat (", " lat (",
                 "clat percentiles (", "99.99th=[", "  cpu          : usr="):  # fmt: skip
        assert part in said
    plain = text.io_report(options, raw.run(IoOptions(str(blocks), reads=50, slat=False)))
    assert ("slat (" in plain, "lat percentiles (" in plain) == (False, True)


# ---- the calibration


@settings(max_examples=20)
@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7))
def test_points_on_a_line_give_the_line(request_s, byte_s):
    points = [(size, request_s + size * byte_s) for size in READ_BYTES]
    assert fit(points) == pytest.approx((request_s, byte_s), rel=1e-6)


def test_the_line_is_fitted_to_medians_and_neither_constant_is_negative():
    line = [(size, 1e-5 + size * 1e-9) for size in READ_BYTES]
    outlier = [(size, t * 50) for size, t in line]
    assert fit(line * 2 + outlier) == pytest.approx((1e-5, 1e-9))
    assert medians([(2, 5.0), (1, 1.0), (2, 7.0), (2, 90.0)]) == [(1, 1.0), (2, 7.0)]
    assert fit([(512, 2e-5), (4096, 1.5e-5), (65536, 1e-5)])[1] == 0
    request_s, byte_s = fit([(512, 1e-9), (4096, 1e-5), (65536, 1e-3)])
    assert request_s == 0 < byte_s
    disk = DiskIdentity("8:1", "", "", "ext4")
    points = ((512, 1e-5), (4096, 2e-5))
    assert misfit(DiskCost(1e-5, 0.0, 1, "", "", disk, points)) == pytest.approx(0.5)
    assert misfit(DiskCost(1e-5, 0.0, 1, "", "", disk, ())) == 0


def test_the_line_reaches_the_loaders_largest_read():
    """On a disk that is saturated at 64 KiB, the cost of a byte lies between its two slopes."""
    assert READ_BYTES[-1] == block_bytes(row_bytes=512)
    dear = [(size, 5e-6 + max(size * 1e-10, size * 2e-10 - 6e-6)) for size in READ_BYTES]
    assert 1.2e-10 < fit(dear)[1] < 2e-10


def test_a_calibration_is_measured_and_saved(store, monkeypatch):
    asked, real = [], calibrate.run
    monkeypatch.setattr(calibrate, "run", lambda given: asked.append(given) or real(given))
    assert load_calibration(store) is None
    cost = calibrate.calibrate(store, depth=4, ioengine="threads", reads=10)
    assert load_calibration(store) == cost
    assert (cost.depth, cost.engine, cost.disk) == (4, "threads", disk_identity(store.path))
    assert [size for size, _ in cost.points] == list(READ_BYTES) * ROUNDS
    assert cost.request_s + cost.byte_s > 0
    assert {each.inflight_bytes for each in asked} == {EngineSettings().inflight_bytes}
    assert cost.write_byte_s is not None
    store.verify()  # which ignores disk.json


def test_on_a_full_disk_only_writing_is_not_measured(store, monkeypatch):
    def full(self, blocks):
        raise StoreError("full")

    monkeypatch.setattr(BlockFile, "grow", full)
    with pytest.warns(
        RuntimeWarning, match=r"2\.62 MB are not free .* free some, then run gnndrive"
    ):
        cost = calibrate.calibrate(store, depth=4, ioengine="threads", reads=10)
    assert load_calibration(store) == cost
    assert cost.write_byte_s is None


def test_a_store_too_small_to_measure_is_refused(tmp_path):
    x = np.empty((0, DIM), np.float32)
    tiny = write_store(tmp_path / "tiny.gnn", indptr=[0], indices=[], nodes={"x": x})
    with pytest.raises(ConfigError, match="needs no calibration"):
        calibrate.calibrate(tiny, reads=1)


def test_a_read_only_folder_is_refused_before_measuring(store, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(calibrate, "run", None)
    with pytest.raises(StoreError, match="make the store's folder writable"):
        calibrate.calibrate(store)
