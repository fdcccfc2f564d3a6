"""`gnndrive bench io` and `disk`: options, reports and users' mistakes."""

import json
import re

import pytest

from gnndrive.cli.measure import calibrate, fio
from gnndrive.cli.measure.fio import FioResult
from gnndrive.store.generate import planted_communities


@pytest.fixture
def blocks(tmp_path):
    path = tmp_path / "blocks.bin"
    path.write_bytes(bytes(1 << 18))
    return path


def test_io_as_text_and_as_json(gnndrive, blocks):
    options = ("--filename", blocks, "--bs", "4k", "--iodepth", 8, "--size", "128k")
    ended = gnndrive("bench", "io", *options)
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"read: IOPS=.*\(128\.0KiB/", ended.out)
    said = gnndrive("bench", "io", *options, "--rw=read", "--output-format=json").json
    assert said["jobs"][0]["read"]["total_ios"] == 32
    assert said["jobs"][0]["job options"]["rw"] == "read"


def test_options_with_fios_spelling(gnndrive, blocks):
    ended = gnndrive(
        "bench", "io", f"--filename={blocks}", "--bs=512", "--direct=0", "--numjobs=2",
        "--ioengine=threads", "--iodepth_batch_submit=2", "--iodepth_batch_complete_min=2",
        "--disable-slat", "--output-format=json",
    )  # fmt: skip
    assert ended.json["jobs"][0]["read"]["total_ios"] == 2 * 512


def test_rows_of_a_store(gnndrive, planted):
    ended = gnndrive("bench", "io", "--rows", planted, "--share", 0.1, "--batches", 2)
    assert ended.code == 0
    assert "rows/s" in ended.out
    said = gnndrive(
        "bench", "io", "--rows", planted, "--batch-size", 20, "--fanout", "3,2", "--separate",
        "--output-format", "json",
    ).json  # fmt: skip
    assert said["rows"] == said["requests"] > 0


def test_runs_beside_fio(gnndrive, blocks, planted, monkeypatch):
    options = ("--against-fio", "--runs", 2)
    with monkeypatch.context() as patch:
        patch.setattr(fio.shutil, "which", lambda name: None)
        said = gnndrive("bench", "io", "--filename", blocks, "--against-fio").refusal
        assert "apt install fio" in said
    asked = []

    def run_fio(given):
        asked.append(given)
        return FioResult("fio-3.33", 1000.0, 512_000.0, 1, 2, 3, 4)

    monkeypatch.setattr(fio, "require_fio", lambda: "/bin/fio")
    monkeypatch.setattr(fio, "run_fio", run_fio)
    said = gnndrive("bench", "io", "--filename", blocks, "--size", "64k", *options)
    assert "median of 2 in turn" in said.out
    assert [one.filename for one in asked] == [str(blocks)] * 2
    words = ("--rows", planted, "--share", 1, *options, "--output-format", "json")
    compared = gnndrive("bench", "io", *words).json["against fio"]
    assert [run["fio"]["iops"] for run in compared["runs"]] == [1000.0, 1000.0]
    assert compared["ratio"]["median"] == pytest.approx(compared["ours"]["median"] / 1000)
    assert asked[-1].filename.endswith("x.npy")
    assert (asked[-1].bs, asked[-1].runtime_s) == (512, 3.0)


def test_disk_calibrates_and_info_shows_it(gnndrive, tmp_path, monkeypatch):
    real = calibrate.measure_points
    monkeypatch.setattr(  # a few reads of each size instead of reading for a few seconds
        calibrate, "measure_points", lambda *given: real(*given[:-1], 20)
    )
    store = tmp_path / "own.gnn"
    planted_communities(store, 2_000, 16, 4, degree=8, fractions={"train": 0.5})
    before = gnndrive("info", store)
    assert f"not calibrated: run gnndrive bench disk {store}" in before.out
    assert "8,192 bytes" in before.out
    assert gnndrive("info", store, "--json").json["disk"] is None
    ended = gnndrive("bench", "disk", store, "--iodepth", 4)
    assert ended.code == 0
    assert "disk.json" in ended.out
    assert "the line says" in ended.out
    after = gnndrive("info", store, "--json").json
    assert {"format": 1, **after["disk"]} == json.loads((store / "disk.json").read_text())
    assert 0 <= after["gap_bytes"] <= 65536
    assert "µs a request" in gnndrive("info", store).out
    assert gnndrive("bench", "disk", store, "--json").json["depth"] == 128


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "--filename FILE"),
        (("--filename", "BLOCKS", "--rows", "x"), "--filename FILE"),
        (("--filename", "BLOCKS", "--share", "0.5"), "--rows STORE"),
        (("--filename", "BLOCKS", "--bs", "4ki"), "write 512, 4k, 1m or 2g"),
        (("--filename", "BLOCKS", "--bs", "0"), "write 512, 4k, 1m or 2g"),
        (("--filename", "gone"), "cannot be read"),
        (("--rows", "gone"), "is not a store"),
    ],
)
def test_a_users_mistake_is_one_line(gnndrive, blocks, words, complaint):
    words = (blocks if word == "BLOCKS" else word for word in words)
    error = gnndrive("bench", "io", *words).refusal
    assert complaint in error
    assert len(error.splitlines()) == 1
