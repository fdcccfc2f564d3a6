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
    said = gnndrive(
        "bench", "io", f"--filename={blocks}", "--bs=512", "--direct=0", "--numjobs=2",
        "--ioengine=threads", "--iodepth_batch_submit=2", "--iodepth_batch_complete_min=2",
        "--disable-slat", "--rw=read", "--output-format=json",
    ).json  # fmt: skip
    (job,) = said["jobs"]
    assert (job["read"]["total_ios"], job["job options"]["rw"]) == (2 * 512, "read")


def test_rows_of_a_store(gnndrive, planted):
    words = ("bench", "io", "--rows", planted)
    assert "rows/s" in gnndrive(*words, "--share", 0.1, "--batches", 2).out
    words = (*words, "--batch-size", 20, "--fanout", "3,2", "--separate")
    said = gnndrive(*words, "--output-format", "json").json
    assert said["rows"] == said["requests"] > 0


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
    real = calibrate.measure_points
    monkeypatch.setattr(  # a few reads of each size instead of reading for a few seconds
        calibrate, "measure_points", lambda *given: real(*given[:-1], 20)
    )
    store = tmp_path / "own.gnn"
    planted_communities(store, 2_000, 16, 4, degree=8, fractions={"train": 0.5})
    assert f"not calibrated: run gnndrive bench disk {store}" in gnndrive("info", store).out
    assert gnndrive("info", store, "--json").json["disk"] is None
    ended = gnndrive("bench", "disk", store, "--iodepth", 4)
    assert ("disk.json" in ended.out, "the line says" in ended.out) == (True, True)
    after = gnndrive("info", store, "--json").json
    assert {"format": 1, **after["disk"]} == json.loads((store / "disk.json").read_text())
    assert 0 <= after["gap_bytes"] <= 65536
    assert "µs a request" in gnndrive("info", store).out
    assert gnndrive("bench", "disk", store, "--json").json["depth"] == 128
