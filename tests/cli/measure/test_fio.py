"""fio's command line, fio's JSON parsed, and gnndrive's JSON parsed by the same parser."""

import json
import subprocess

import pytest

from gnndrive.cli.measure import fio, raw, text
from gnndrive.cli.measure.fio import FioResult, fio_command, in_turn, parse_fio, spread
from gnndrive.cli.measure.raw import IoOptions
from gnndrive.common.errors import GNNDriveError

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
    assert parse_fio(CANNED) == FioResult(
        version="fio-3.33",
        iops=96961.01949,
        bw_bytes=49644041.0,
        usr_cpu=1.35,
        sys_cpu=34.25,
        lat_ns_mean=1320020.5,
        clat_ns_p99=5341184.0,
    )


@pytest.mark.parametrize(
    "said", ["", "fio: bad option", "{", '{"jobs": []}', CANNED.replace("iops", "iopz")]
)
def test_output_that_is_no_report_is_an_error(said):
    with pytest.raises(GNNDriveError, match="by hand"):
        parse_fio(said)


def test_fios_command_line():
    command = fio_command("/bin/fio", IoOptions("/a:b", bs=512, iodepth=32, runtime_s=1.5))
    assert command[0] == "/bin/fio"
    for word in (
        "--readonly", "--norandommap", "--filename=/a\\:b", "--rw=randread", "--bs=512",
        "--iodepth=32", "--numjobs=1", "--direct=1", "--ioengine=io_uring", "--runtime=1500ms",
        "--time_based=1", "--output-format=json",
    ):  # fmt: skip
        assert word in command
    assert not [word for word in command if "batch" in word or "size" in word or "slat" in word]
    options = IoOptions(
        "f", ioengine="threads", iodepth=64, numjobs=2, size=4096, slat=False, submit_batch=4,
        complete_min=2, reads=7,
    )  # fmt: skip
    command = fio_command("fio", options)
    for word in (
        "--ioengine=psync", "--numjobs=32", "--iodepth=1", "--size=4096", "--disable_slat=1",
        "--iodepth_batch_submit=4", "--iodepth_batch_complete_min=2", "--number_ios=7",
    ):  # fmt: skip
        assert word in command
    assert not [word for word in command if "runtime" in word or "time_based" in word]


def test_fio_is_run_and_its_failure_is_an_error(monkeypatch):
    monkeypatch.setattr(fio.shutil, "which", lambda name: "/bin/fio")

    def ended(code, out, err):
        done = subprocess.CompletedProcess([], code, out, err)
        monkeypatch.setattr(fio.subprocess, "run", lambda *_, **__: done)

    ended(1, "", "fio: file not found\nmore")
    with pytest.raises(GNNDriveError, match=r"code 1 and printed: fio: file not found$"):
        fio.run_fio(IoOptions("f"))
    ended(0, CANNED, "")
    assert fio.run_fio(IoOptions("f")).version == "fio-3.33"


def test_runs_alternate_and_ratios_compare_those_of_each_pair():
    order = []
    both = in_turn(lambda: order.append("ours"), lambda: order.append("fio"), 3)
    assert (order, list(map(len, both))) == (["ours", "fio", "fio", "ours", "ours", "fio"], [3, 3])
    ours = [90.0, 200.0, 110.0]
    theirs = [FioResult("fio-3.33", iops, 0, 0, 0, 0, 0) for iops in (100.0, 200.0, 100.0)]
    compared = text.ratios("IOPS", ours, theirs)
    assert compared["ratio"] == spread([0.9, 1.0, 1.1])
    said = text.against_report(compared, ours, theirs)
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
    for part in ("rw=randread, bs=4.0KiB", "  read: IOPS=", "slat (", "clat (", " lat (",
                 "clat percentiles (", "99.99th=[", "  cpu          : usr="):  # fmt: skip
        assert part in said
    plain = text.io_report(options, raw.run(IoOptions(str(blocks), reads=50, slat=False)))
    assert ("slat (" in plain, "lat percentiles (" in plain) == (False, True)
    counts = {5: "5", 950: "950", 9521: "9521", 94_613: "94.6k", 1_234_567: "1235k"}
    assert {count: text.kilo(count) for count in counts} == counts
