"""`gnndrive report`: the page of real runs, and files that cannot be read or written."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import QUICK, SMALL
from tests.cli.report.html.conftest import Shown
from tests.cli.report.html.samples import headroom_run, train_run


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(train_run()))
    return path


def test_the_page_of_a_training_and_a_plan(gnndrive, planted, tmp_path):
    train, plan, out = tmp_path / "train.json", tmp_path / "plan.json", tmp_path / "a.html"
    words = (planted, *SMALL, "--memory", "60MB")
    train.write_text(gnndrive("train", *words, *QUICK).out)
    plan.write_text(gnndrive("plan", *words, "--json").out)
    ended = gnndrive("report", train, plan, "-o", out)
    assert (ended.code, ended.out, ended.err) == (0, f"{out}\n", "")
    shown = Shown(out.read_text()).text.replace("\xa0", " ")
    for text in (
        "Run 1, train.json: Training on", "Run 2, plan.json: A plan on", str(planted), "hits",
        f"gnndrive train {planted} --fanout 3,2", "val accuracy", "for reads in flight",
        "a batch, from 8 batches drawn from the store", "of the 60 MB given",
    ):  # fmt: skip
        assert text in shown
    assert stat.S_IMODE(out.stat().st_mode) == 0o644


def test_a_page_replaces_an_older_one_but_no_run(gnndrive, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gnndrive("report", run).out == "report.html\n"
    run.write_text(json.dumps(headroom_run()))
    assert gnndrive("report", run).code == 0
    out = Path("report.html")
    assert "Where time can be gained" in out.read_text()
    out.unlink()
    out.hardlink_to(run)
    for each in (run, out):
        assert (
            "is one of the runs: give another name" in gnndrive("report", run, "-o", each).refusal
        )
    assert json.loads(run.read_text()) == headroom_run()


def test_a_page_that_cannot_be_written_is_named(gnndrive, run, tmp_path, monkeypatch):
    assert "is no file: give a file's name" in gnndrive("report", run, "-o", tmp_path).refusal
    assert "none.json cannot be read" in gnndrive("report", tmp_path / "none.json").refusal
    out = tmp_path / "a.html"
    out.write_text("older")

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    error = gnndrive("report", run, "-o", out).refusal
    assert "a.html cannot be written (No space left on device): give a file" in error
    assert out.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "run.json"]
