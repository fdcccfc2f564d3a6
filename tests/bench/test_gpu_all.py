"""`run.sh --all` of the GPU bundle: the order and the times of its parts, on a virtual clock."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _gpu_page
import _gpu_parts
import gpu_all
import pytest

from gnndrive.buffer.devices._options import MoveOptions
from tests.bench.fake_parts import Fake, row


def test_nothing_is_timed_while_the_graph_is_made(fake: Fake, run: Callable[..., dict[str, Any]]):
    fake.seconds = {"pytest": 90.0, "bench/scale.py": 120.0, "h2d,gather": 40.0, "--seconds": 200.0}
    found = run()
    assert found["status"] == 0, found
    assert list(found["parts"]) == [
        "machine", "tests", "graph", "moves", "disk", "epochs", "switches", "switch-epochs",
    ]  # fmt: skip
    assert fake.began("bench/scale.py") == [0.0]
    (tests,) = fake.began("pytest")
    assert tests < 120.0 <= min(fake.began("bench/gpu.py") + fake.began("disk"))
    assert fake.now < gpu_all.SECONDS


def test_a_graph_that_takes_too_long_is_replaced_by_a_smaller_one(
    fake: Fake, run: Callable[..., dict[str, Any]]
):
    fake.seconds = {"12": 10_000.0}
    found = run()
    assert found["status"] == 1
    assert "the time was up" in found["parts"]["graph"]["error"]
    assert found["parts"]["smaller graph"]["error"] == ""
    assert "--generate 2" in found["parts"]["epochs"]["command"]
    assert "powerlaw_2m.gnn" in found["parts"]["disk"]["command"]


def test_a_part_that_fails_or_hangs_is_named_and_the_others_run(
    fake: Fake, run: Callable[..., dict[str, Any]]
):
    fake.statuses = {"disk": 1}
    fake.seconds = {"h2d,gather": 10_000.0}
    found = run()
    assert found["status"] == 1
    assert found["parts"]["disk"]["error"] == "ended with 1: a warning"
    assert found["parts"]["moves"]["error"].startswith("stopped after 90 s")
    assert found["parts"]["epochs"]["result"]["epochs"]
    assert "| moves | 90 | stopped after 90 s" in found["page"]
    assert "not measured: stopped after 90 s, because the time was up" in found["page"]
    assert "2.00 (2.00–2.00) times as fast" in found["page"]


def test_all_ends_in_time_if_every_part_hangs(fake: Fake, run: Callable[..., dict[str, Any]]):
    fake.seconds = {"python": 10_000.0, sys.executable: 10_000.0}
    found = run()
    assert fake.now <= gpu_all.SECONDS
    assert all(part["error"] for part in found["parts"].values())
    page = found["page"].partition("### ")[0]
    for question in _gpu_page.ROWS:
        assert "| not measured: " in row(page, question)


def test_an_epoch_that_lacks_memory_is_run_again_with_more(
    fake: Fake, run: Callable[..., dict[str, Any]]
):
    fake.budget_kills = "4GiB"
    found = run()
    assert [name for name in found["parts"] if name.startswith("epochs")] == [
        "epochs", "epochs, 6GiB",
    ]  # fmt: skip
    assert "--host-budget 6GiB" in found["parts"]["switch-epochs"]["command"]
    assert "--host-budget 6GiB" in row(found["page"], "seconds a batch beside PyG's way")


def test_the_time_of_epochs_leaves_some_for_the_switches(
    fake: Fake, run: Callable[..., dict[str, Any]]
):
    fake.seconds = {"epoch": 1.0}
    found = run()
    given = found["parts"]["epochs"]["command"].split()
    asked = float(given[given.index("--seconds") + 1])
    assert 300 < asked < gpu_all.SECONDS - gpu_all.SWITCHES_S
    assert "--seconds" not in found["parts"]["switch-epochs"]["command"]


def test_a_switch_that_crashes_does_not_stop_the_others(
    fake: Fake, run: Callable[..., dict[str, Any]]
):
    fake.crashes_at = gpu_all.SWITCHES[2]
    found = run("--only", "switches")
    assert set(found["parts"]) == {"switches", "switches, 2"}
    assert f"--switch {gpu_all.SWITCHES[2]}" not in found["parts"]["switches, 2"]["command"]
    line = row(found["page"], "rows moved with each switch")
    assert all((f"{one}: h2d" in line) is (one != fake.crashes_at) for one in gpu_all.SWITCHES)
    assert found["page"].count("not asked for") == len(_gpu_page.ROWS) - 1


def test_each_switch_of_the_device_is_measured():
    names = {word.partition("=")[0] for one in gpu_all.SWITCHES for word in one.split()}
    assert names == {field.name for field in dataclasses.fields(MoveOptions)}
    for one in gpu_all.SWITCHES:
        assert MoveOptions.parse(one.split()) != MoveOptions()


def test_a_stop_ends_what_runs_and_keeps_the_results(
    fake: Fake, run: Callable[..., dict[str, Any]], tmp_path: Path
):
    fake.killed_at = "h2d,gather"
    with pytest.raises(SystemExit):
        run()
    assert fake.stopped == 1
    out = tmp_path / "out"
    found = json.loads((out / "results.json").read_text())
    assert list(found["parts"]) == ["machine", "tests", "graph"]
    assert "1 passed, 1 failed, 2 skipped" in (out / "gpu-results.md").read_text()


def test_a_process_is_stopped_with_its_children(tmp_path: Path):
    number = tmp_path / "number"
    os.mkfifo(number)
    child = _gpu_parts.Process(["sh", "-c", f"sleep 600 & echo $! >{number}; echo begun; wait"])
    grandchild = os.pidfd_open(int(number.read_text()))
    assert child.wait(0) is None
    assert select.select([grandchild], [], [], 60)[0]  # it has ended
    os.close(grandchild)
    assert child.output()[1] == ""


def test_a_part_that_ends_leaves_its_status_and_output(tmp_path: Path):
    parts = _gpu_parts.Parts(tmp_path, 60, {})
    good = parts.run("good", [sys.executable, "-c", "print('{\"a\": 1}')"], 50)
    parts.run("bad", [sys.executable, "-c", "import sys; sys.exit('no such GPU')"], 50)
    found = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert (good, found["good"]["error"]) == ({"a": 1}, "")
    assert found["bad"]["error"] == "ended with 1: no such GPU"
    assert "no such GPU" in (tmp_path / "log.txt").read_text()
