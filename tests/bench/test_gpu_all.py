"""`run.sh --all` of the GPU bundle: the order and the times of its parts, on a virtual clock."""

import dataclasses
import json
import os
import select
import signal
import sys

import _gpu_page
import _gpu_parts
import _gpu_tries
import gpu_all
import pytest

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.common.memory import parse_size
from tests.bench.fake_parts import row
from tests.project_files import ROOT


def test_nothing_is_timed_while_the_graph_is_made(fake, run):
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


def test_a_part_that_fails_or_hangs_is_named_and_the_others_run(fake, run):
    """Of a graph that takes too long a smaller one takes the place."""
    fake.statuses = {"disk": 1}
    fake.seconds = {"12": 10_000.0, "h2d,gather": 10_000.0}
    found = run()
    parts, page = found["parts"], found["page"]
    assert found["status"] == 1
    assert "the time was up" in parts["graph"]["error"]
    assert parts["smaller graph"]["error"] == ""
    assert "--generate 2" in parts["epochs"]["command"]
    assert "powerlaw_2m.gnn" in parts["disk"]["command"]
    assert parts["disk"]["error"] == "ended with 1: a warning"
    assert parts["moves"]["error"].startswith("stopped after 90 s")
    assert parts["epochs"]["result"]["epochs"]
    assert "| moves | 90 | stopped after 90 s" in page
    assert "not measured: stopped after 90 s, because the time was up" in page
    assert "2.00 (2.00–2.00) times as fast" in page


def test_all_ends_in_time_if_every_part_hangs(fake, run):
    fake.seconds = {"python": 10_000.0, sys.executable: 10_000.0}
    found = run()
    assert fake.now <= gpu_all.SECONDS
    assert all(part["error"] for part in found["parts"].values())
    page = found["page"].partition("### ")[0]
    for question in _gpu_page.ROWS:
        assert "| not measured: " in row(page, question)


def test_an_epoch_that_lacks_memory_is_run_again_with_more(fake, run):
    fake.budget_kills = "4GiB"
    found = run()
    assert [name for name in found["parts"] if name.startswith("epochs")] == [
        "epochs", "epochs, 5GiB",
    ]  # fmt: skip
    assert "--host-budget 4GiB" in found["parts"]["switch-epochs"]["command"]
    assert "--host-budget 5GiB" in row(found["page"], "seconds a batch beside PyG's way")
    assert "--host-budget 4GiB" in row(found["page"], "seconds a batch beside one copy a row")


def test_a_loader_that_fails_otherwise_is_not_run_with_more_memory(fake, run):
    fake.budget_kills, fake.dies = "4GiB", "had not ended when the time was up"
    found = run()
    assert [name for name in found["parts"] if name.startswith("epochs")] == ["epochs"]
    line = row(found["page"], "seconds a batch beside PyG's way")
    assert "not measured: no round in which both loaders ended" in line
    assert "had not ended" in line
    nodes = gpu_all.Sizes(None, rehearse=False).million_nodes[0] * 1e6
    for budget in gpu_all.BUDGETS[:-1]:  # each is less than the features
        assert parse_size(budget, "budget") < nodes * 512
    assert gpu_all.BUDGETS[-1] == ""


# ---- after a crash ----


@pytest.mark.parametrize("kept", [0, 3])
def test_ways_behind_one_that_crashes_are_measured_in_another_process(fake, run, kept):
    fake.crashes_at, fake.moves_kept = "zero-copy", kept
    found = run()
    parts = found["parts"]
    assert [name for name in parts if name.startswith("moves")] == ["moves", "moves, copy+kernel"]
    assert "--ways copy+kernel,staged" in parts["moves, copy+kernel"]["command"]
    assert "copy+kernel: 0.80 of the plain copy, staged 0.60" in row(found["page"], "which way")
    line = row(found["page"], "gather beside")
    assert "staged, 512 B: 0.60" in line
    assert "--ways copy+kernel,staged" in line
    for name in ("epochs", "switch-epochs"):
        assert "--way copy+kernel" in parts[name]["command"]
    assert "--ways copy+kernel --runs" in parts["switches"]["command"]


def test_ways_that_hang_are_tried_once_each(fake, run):
    fake.seconds = {"zero-copy,copy+kernel,staged": 1e4, "copy+kernel,staged": 1e4}
    found = run("--only", "moves")
    assert [(name, part["seconds"]) for name, part in found["parts"].items()] == [
        ("moves", 90.0), ("moves, copy+kernel", 45.0), ("moves, staged", 1.0),
    ]  # fmt: skip


def test_a_way_that_is_unavailable_is_not_taken_for_the_one_that_failed():
    moves = [{"way": "copy+kernel"}] * 4
    found = {"moves": moves, "unavailable": ["zero-copy: needs CuPy"], "failed": []}
    assert _gpu_tries.ways_behind(WAYS, found) == []
    found["failed"] = ["end, copy+kernel, defaults: illegal access"]
    found["unavailable"] += ["staged: illegal access"]  # because of that
    assert _gpu_tries.ways_behind(WAYS, found) == ["staged"]


def test_the_time_of_epochs_leaves_some_for_the_switches(fake, run):
    fake.seconds = {"epoch": 1.0}
    found = run()
    given = found["parts"]["epochs"]["command"].split()
    asked = float(given[given.index("--seconds") + 1])
    assert 300 < asked < gpu_all.SECONDS - gpu_all.SWITCHES_S
    assert "--seconds" not in found["parts"]["switch-epochs"]["command"]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_switch_that_crashes_does_not_stop_the_others(fake, run, kept):
    fake.crashes_at, fake.moves_kept = gpu_all.SWITCHES[1], kept
    found = run("--only", "switches")
    assert list(found["parts"]) == ["switches", "switches, 2"]
    assert f"--switch {gpu_all.SWITCHES[2]}" in found["parts"]["switches, 2"]["command"]
    assert f"--switch {gpu_all.SWITCHES[1]}" not in found["parts"]["switches, 2"]["command"]
    line = row(found["page"], "rows moved with each switch")
    measured = [one for one in gpu_all.SWITCHES if f"{one}: h2d" in line]
    assert measured == [one for one in gpu_all.SWITCHES if kept or one != fake.crashes_at]
    assert found["page"].count("not asked for") == len(_gpu_page.ROWS) - 1


def test_each_switch_of_the_device_is_measured():
    names = {word.partition("=")[0] for one in gpu_all.SWITCHES for word in one.split()}
    assert names == {field.name for field in dataclasses.fields(MoveOptions)}
    for one in gpu_all.SWITCHES:
        assert MoveOptions.parse(one.split()) != MoveOptions()


def test_a_stop_ends_what_runs_and_keeps_the_results(fake, run, tmp_path):
    fake.killed_at = "h2d,gather"
    with pytest.raises(SystemExit):
        run()
    assert fake.stopped == 1
    out = tmp_path / "out"
    found = json.loads((out / "results.json").read_text())
    assert list(found["parts"]) == ["machine", "tests", "graph"]
    assert "1 passed, 1 failed, 2 skipped" in (out / "gpu-results.md").read_text()


# ---- some parts again ----


def test_parts_that_are_run_again_keep_the_others(fake, run):
    fake.seconds, fake.statuses = {"12": 10_000.0}, {"disk": 1}
    assert run()["status"] == 1
    fake.seconds, fake.statuses = {}, {}
    fake.now = 0.0
    before = len(fake.commands)
    found = run("--only", "switches,switch-epochs")
    assert found["status"] == 0  # of this call's parts
    assert len(fake.commands) == before + 2
    assert "--generate 2" in found["parts"]["switch-epochs"]["command"]  # the smaller graph
    assert found["parts"]["disk"]["error"]
    assert "times as fast" in row(found["page"], "seconds a batch beside PyG's way")
    assert "gather_stream=on: 3.000 s" in row(found["page"], "seconds a batch with each switch")
    assert "an H200" in found["page"]


def test_what_is_not_kept_from_an_earlier_call(fake, run):
    """Figures of a fake GPU, and parts of a crash if their step is run again."""
    run("--rehearse")
    assert list(run("--only", "moves")["parts"]) == ["moves"]
    fake.crashes_at = "zero-copy"
    run()
    fake.crashes_at = ""
    names = [name for name in run("--only", "moves")["parts"] if name.startswith("moves")]
    assert names == ["moves"]


def test_a_page_that_fails_does_not_stop_the_parts(run, monkeypatch):
    monkeypatch.setattr(gpu_all, "page", lambda *_: {}["no such key"])
    found = run()
    assert found["status"] == 0
    assert "KeyError: 'no such key'" in found["page"]
    assert "results.json has the results" in found["page"]


# ---- times and processes ----


def test_the_time_begins_with_the_shell_script(monkeypatch, tmp_path):
    seconds = []
    monkeypatch.setattr(gpu_all, "run", lambda own: seconds.append(own.seconds) or 0)
    monkeypatch.setattr(gpu_all.signal, "signal", lambda *_: None)
    monkeypatch.setattr(gpu_all.time, "time", lambda: 1020.5)
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", str(tmp_path), "--seconds", "300"])
    for began in ("1000", "2000", ""):
        monkeypatch.setenv(gpu_all.BEGAN, began)
        with pytest.raises(SystemExit):
            gpu_all.main()
    assert seconds == [279.5, 300.0, 300.0]
    text = (ROOT / ".ci" / "gpu-bundle" / "run.sh").read_text(encoding="utf-8")
    assert f"{gpu_all.BEGAN}=$(date +%s)\n" in text.partition("cd ")[0]


def test_a_test_that_hangs_is_named(fake, run):
    fake.seconds = {"pytest": 10_000.0}
    fake.reports_when_stopped = True
    found = run()
    assert "-v -v tests/gpu" in found["parts"]["tests"]["command"]
    assert "faulthandler_timeout=45" in found["parts"]["tests"]["command"]
    line = row(found["page"], "tests/gpu")
    assert "1 passed, 1 failed, 2 skipped" in line
    assert "not all ran: stopped after" in line


def test_a_process_may_write_its_report_when_it_is_stopped(tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    commands = f"trap 'echo report; exit' INT; >{ready}; read x <{ready}"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as main does
    try:
        child = _gpu_parts.Process(["sh", "-c", commands])
    finally:
        signal.signal(signal.SIGINT, before)
    ready.read_text()
    assert child.wait(0) is None
    assert child.output()[0] == "report\n"


def test_a_process_is_stopped_with_its_children(tmp_path, monkeypatch):
    *asked, last = _gpu_parts.STOPS  # those that are asked may take seconds
    monkeypatch.setattr(_gpu_parts, "STOPS", [*((number, 0) for number, _ in asked), last])
    number = tmp_path / "number"
    os.mkfifo(number)
    child = _gpu_parts.Process(["sh", "-c", f"sleep 600 & echo $! >{number}; echo begun; wait"])
    grandchild = os.pidfd_open(int(number.read_text()))
    assert child.wait(0) is None
    assert select.select([grandchild], [], [], 60)[0]  # it has ended
    os.close(grandchild)
    assert child.output()[1] == ""


def test_a_part_that_ends_leaves_its_status_and_output(tmp_path):
    parts = _gpu_parts.Parts(tmp_path, 60, {})
    good = parts.run("good", [sys.executable, "-c", "print('{\"a\": 1}')"], 50)
    parts.run("bad", [sys.executable, "-c", "import sys; sys.exit('no such GPU')"], 50)
    found = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert (good, found["good"]["error"]) == ({"a": 1}, "")
    assert found["bad"]["error"] == "ended with 1: no such GPU"
    assert "no such GPU" in (tmp_path / "log.txt").read_text()
