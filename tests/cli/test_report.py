"""`gnndrive report`: the page of real runs, and files that cannot be read or written."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.report.html.conftest import Shown, pictures
from tests.cli.report.html.samples import headroom_run, train_run

QUICK = ("--epochs", "1", "--fanout", "4,3", "--batch-size", "50", "--hidden", "8", "--json")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(train_run()))
    return path


def test_the_page_of_a_training_and_a_plan(
    gnndrive: Command, planted: Path, tmp_path: Path
) -> None:
    train, plan, out = tmp_path / "train.json", tmp_path / "plan.json", tmp_path / "a.html"
    train.write_text(gnndrive("train", planted, "--memory", "60MB", *QUICK).out)
    plan.write_text(gnndrive("plan", planted, "--memory", "60MB", *QUICK[2:6], "--json").out)
    ended = gnndrive("report", train, plan, "-o", out)
    assert (ended.code, ended.out, ended.err) == (0, f"{out}\n", "")
    content = out.read_text()
    shown = Shown(content).text.replace("\xa0", " ")
    for text in (
        "Run 1, train.json: Training on", "Run 2, plan.json: A plan on", str(planted), "hits",
        f"gnndrive train {planted} --memory 60MB", "val accuracy", "for reads in flight",
        "a batch, from 8 batches drawn from the store", "of the 60 MB given",
    ):  # fmt: skip
        assert text in shown
    assert len(pictures(content)) >= 2 * 3
    assert stat.S_IMODE(out.stat().st_mode) == 0o644


def test_a_page_replaces_an_older_one(
    gnndrive: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gnndrive("report", run).out == "report.html\n"
    first = Path("report.html").read_text()
    run.write_text(json.dumps(headroom_run()))
    assert gnndrive("report", run).code == 0
    assert "Where time can be gained" in Path("report.html").read_text() != first


def test_a_run_is_not_replaced_by_its_page(gnndrive: Command, run: Path, tmp_path: Path) -> None:
    link = tmp_path / "report.html"
    link.hardlink_to(run)
    for out in (run, link):
        ended = gnndrive("report", run, "-o", out)
        assert (ended.code, "is one of the runs: give another name" in ended.err) == (2, True)
    assert json.loads(run.read_text()) == train_run()


def test_a_page_that_cannot_be_written_is_named(
    gnndrive: Command, run: Path, tmp_path: Path
) -> None:
    ended = gnndrive("report", run, "-o", tmp_path)
    assert (ended.code, "is no file: give a file's name" in ended.err) == (2, True)
    ended = gnndrive("report", run, "-o", tmp_path / "no" / "a.html")
    assert (ended.code, "No such file or directory): give a file in" in ended.err) == (2, True)
    ended = gnndrive("report", tmp_path / "none.json")
    assert (ended.code, "none.json cannot be read" in ended.err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


def test_a_full_disk_leaves_the_older_page(
    gnndrive: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.html"
    out.write_text("older")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    ended = gnndrive("report", run, "-o", out)
    assert (ended.code, ended.out) == (2, "")
    assert "a.html cannot be written (No space left on device): give a file" in ended.err
    assert out.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "run.json"]


def test_a_file_is_asked_for(gnndrive: Command) -> None:
    assert gnndrive("report").code == 2
