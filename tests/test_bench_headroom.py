"""bench/headroom_checks.py: its set-ups, its exit code, and how it finds the disk to make slow."""

import os
import subprocess
import sys

import pytest

from gnndrive.cli.main import main
from gnndrive.cli.measure.verdict import FIRST_WORDS
from gnndrive.common.errors import ConfigError
from gnndrive.store.generate import planted_communities
from tests.project_files import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import headroom_checks


def test_each_set_up_has_first_words_of_its_own():
    made = headroom_checks.checks(512, 1000, 100)
    words = [check.words for check in made.values()]
    assert len(set(words)) == len(made) == 4
    assert all(any(first.startswith(word) for first in FIRST_WORDS) for word in words)
    assert str(125 * 512) in made["buffer"].options
    assert str(1000 * 512) in made["sampler"].options


@pytest.mark.parametrize(("wrong", "code"), [(None, 0), ("step", 1)])
def test_a_wrong_verdict_is_the_exit_code(tmp_path, monkeypatch, capsys, wrong, code):
    def run(check, own):
        named = next(name for name, made in order.items() if made.words == check.words)
        said = "something else" if named == wrong else f"{check.words}: so it is"
        return {"headroom": {"lines": [], "verdict": said}}

    store = tmp_path / "small.gnn"
    planted_communities(store, 200, 16, 4, degree=8, fractions={"train": 0.4})
    order = headroom_checks.checks(1, 1, 1)
    monkeypatch.setattr(headroom_checks, "run", run)
    monkeypatch.setattr(sys, "argv", ["headroom_checks.py", str(store), "--checks", "step,buffer"])
    with pytest.raises(SystemExit) as ended:
        headroom_checks.main()
    assert ended.value.code == code
    out = capsys.readouterr().out
    assert ("WRONG" in out) == (wrong is not None)
    assert out.count("right") == 2 - code


def test_one_set_up_runs_through_the_command(tmp_path, monkeypatch, capsys):
    def run(command, **_):
        assert command[:3] == [sys.executable, "-m", "gnndrive.cli.main"]
        code = main(command[3:])
        return subprocess.CompletedProcess(command, code, capsys.readouterr().out)

    store = tmp_path / "small.gnn"
    planted_communities(store, 500, 16, 4, degree=8, fractions={"train": 0.4})
    monkeypatch.setattr(headroom_checks.subprocess, "run", run)
    words = ("--fanout", "3,2", "--batch-size", "20", "--step-ms", "0")
    own = headroom_checks.parse([str(store), "--batches", "2", "--rounds", "1"])
    check = headroom_checks.Check("you wait", words, busy=True)
    assert headroom_checks.run(check, own)["kind"] == "headroom"
    with pytest.raises(ConfigError, match="ended with 2"):
        headroom_checks.run(headroom_checks.Check("", ("--fanout", "x")), own)


def test_the_limit_is_that_of_the_whole_disk(tmp_path, monkeypatch):
    number = tmp_path.stat().st_dev
    part = tmp_path / "disk" / "part"
    part.mkdir(parents=True)
    (part / "partition").touch()
    (part / "dev").write_text("8:1\n")
    (tmp_path / "disk" / "dev").write_text("8:0\n")
    devices = tmp_path / "devices"
    devices.mkdir()
    monkeypatch.setattr(headroom_checks, "BLOCK_DEVICES", devices)
    monkeypatch.setattr(headroom_checks, "BLKIO", tmp_path / "none")
    with pytest.raises(ConfigError, match="--checks"), headroom_checks.slow_disk(tmp_path, 1000):
        pass
    with pytest.raises(ConfigError, match="on no disk that can be made slow"):
        headroom_checks.device_of(tmp_path)
    (devices / f"{os.major(number)}:{os.minor(number)}").symlink_to(part)
    assert headroom_checks.device_of(tmp_path) == "8:0"


def test_unknown_checks_are_refused(capsys):
    with pytest.raises(SystemExit):
        headroom_checks.parse(["graph.gnn", "--checks", "gpu"])
    assert "choose from disk, sampler, step, buffer" in capsys.readouterr().err
