"""bench/gpu_all.py, which `run.sh --all` runs: its parts in time, its page, and a rehearsal."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import epoch
import gpu
import gpu_all
import gpu_strategies
import infer
import pytest

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.common.memory import parse_size
from tests.bench.test_scripts import DISK
from tests.project_files import ROOT

PAGE = (ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")
TESTS_XML = """<testsuites><testsuite name="pytest" errors="0" tests="4" time="2.5">
<testcase classname="tests.gpu.test_loader" name="test_a" time="0.1" />
<testcase classname="tests.gpu.test_loader" name="test_b"><skipped message="no CuPy" /></testcase>
<testcase classname="tests.gpu.test_loader" name="test_c"><skipped message="no CuPy" /></testcase>
<testcase classname="tests.gpu.test_io" name="test_d"><failure message="wrong&#10;x" /></testcase>
</testsuite></testsuites>"""
SECONDS = {"pinned": 6.0, "row-copies": 9.0, "gnndrive": 3.0}
RATIO = {"zero-copy": 0.95, "copy+kernel": 0.8, "staged": 0.6}
STEPS = {"sage-256": {"s_a_batch": 0.5, "step_s": 0.2, "idle": 0.6}}
PROFILE = {"no_kernel": 0.65, "batches": 16, "copy_s": 0.01, "idle": 0.6}
RESULTS = [{"strategy": "rolling", "steps": STEPS, "peak_bytes": 1, "profile": PROFILE}]
OTHERS: dict[str, dict[str, Any]] = {
    "bench/gpu_strategies.py": {"results": RESULTS, "failed": []},
    "bench/light.py": {"lines": [{"unit": "nodes:64", "source": "hits", "ms": 1.5, "ratio": 0.5}]},
    "bench/infer.py": {"gnndrive": {"seconds": 9.0}, "of_reads": 1.2, "memory": "a limit"},
}


class Fake:
    """Starts fakes of all parts on a virtual clock; notes when each command was started."""

    def __init__(self) -> None:
        self.now, self.commands, self.stopped = 0.0, list[tuple[float, list[str]]](), 0
        self.seconds: dict[str, float] = {}  # by a word of the command; 1 by default
        self.statuses: dict[str, int] = {}  # by a word of the command
        self.budget_kills = ""  # the host budget under which pinned dies, by `dies`
        self.dies = "ended with -9 (killed: out of memory?)"
        self.crashes_at = ""  # a set of switches or a way at which bench/gpu.py crashes
        self.moves_kept = 0  # of that one, measured before
        self.killed_at = ""  # a word of the command at which the script itself is stopped
        self.failed: list[str] = []  # strategies, if they have a limit

    def clock(self) -> float:
        return self.now

    def start(self, words: list[str], printed: IO[bytes], errors: IO[bytes]) -> FakeChild:
        *ended, limit = words[: len(gpu_all.ENDED) + 1]
        assert (ended, words[len(ended) + 1]) == (gpu_all.ENDED, sys.executable)
        command = words[len(ended) + 1 :]
        self.commands.append((self.now, command))
        return FakeChild(self, command, float(limit), printed, errors)

    def began(self, word: str) -> list[float]:
        """When commands with this word were started."""
        return [time for time, command in self.commands if word in command]


class FakeChild:
    """A process that ends after some virtual seconds and leaves results as the real one does."""

    def __init__(
        self, fake: Fake, command: list[str], limit: float, printed: IO[bytes], errors: IO[bytes]
    ) -> None:
        self._fake, self._command, self._printed, self._errors = fake, command, printed, errors
        self._given = dict(itertools.pairwise(command))
        self._ends, self._limit = fake.now + self._of(fake.seconds, 1.0), fake.now + limit

    def _of(self, table: dict[str, Any], default: Any) -> Any:
        return next((value for word, value in table.items() if word in self._command), default)

    def wait(self) -> int:
        fake = self._fake
        if fake.killed_at in self._command:
            fake.killed_at = "it has been"
            raise SystemExit(143)
        for word in self._command:
            if word.startswith("--junitxml="):
                Path(word.partition("=")[2]).write_text(TESTS_XML)
        if self._ends > self._limit:
            fake.now = max(fake.now, self._limit)
            return 124
        fake.now = max(fake.now, self._ends)
        printed, errors = self._output()
        self._printed.write(printed.encode())
        self._errors.write(errors.encode())
        if "bench/gpu.py" in self._command:
            Path(self._given["--json"]).write_text(json.dumps(self._measured()))
        for script in OTHERS.keys() & {*self._command}:
            failed = fake.failed if "--host-budget" in self._command else []
            Path(self._given["--json"]).write_text(json.dumps(OTHERS[script] | {"failed": failed}))
        asked = [*self._switches(), *self._given.get("--ways", "").split(",")]
        return -11 if fake.crashes_at and fake.crashes_at in asked else self._of(fake.statuses, 0)

    def _switches(self) -> list[str]:
        pairs = itertools.pairwise(self._command)
        return [word for before, word in pairs if before == "--switch"] or ["defaults"]

    def _measured(self) -> dict[str, Any]:
        fake, given, switches = self._fake, self._given, self._switches()
        found: dict[str, Any] = {"moves": [], "epochs": [], "failed": [], "unavailable": []}
        found |= {"memory": "a limit", "features_bytes": 6 * 10**9, "limited": True}
        if "--generate" in given:
            found["features_bytes"] = int(float(given["--generate"]) * 512e6)
        budget = found["host_budget"] = given.get("--host-budget", "")
        crash = fake.crashes_at
        if given["--parts"] == "epoch":
            loaders = given.get("--loaders", ",".join(SECONDS)).split(",")
            if budget and budget == fake.budget_kills:
                found["failed"] = [f"epoch, pinned, defaults: pinned {fake.dies}"]
                loaders = [name for name in loaders if name != "pinned"]
            ran = switches[: switches.index(crash)] if crash in switches else switches
            found["epochs"] = [
                {"loader": name, "switches": one, "run": turn, "batches": 8, "idle": 0.25,
                 "s_per_batch": SECONDS[name], "wall_s": 10.0, "peak_bytes": 10**9,
                 "checksum": 1}
                for name in loaders for one in ran for turn in range(2)
            ]  # fmt: skip
            return found
        for one in switches:
            for way in given["--ways"].split(","):
                ratio = RATIO[way] - (0.05 if "blocks" in one else 0)
                moves = [
                    {"part": kind, "way": way, "row_bytes": nbytes, "switches": one,
                     "bytes_per_s": [ratio * 5e10] * 3, "plain_bytes_per_s": [5e10] * 3,
                     "ratio": [ratio] * 3}
                    for kind in ("h2d", "gather") for nbytes in (512, 3072)
                ]  # fmt: skip
                if crash and crash in (one, way):
                    found["moves"] += moves[: fake.moves_kept]
                    return found
                found["moves"] += moves
        return found

    def terminate(self) -> None:
        self._fake.stopped += 1

    def _output(self) -> tuple[str, str]:
        if "disk" in self._command:
            disk = {"request_s": 1e-5, "byte_s": 5e-10, "depth": 128, "engine": "uring"}
            return json.dumps(disk), "a warning"
        if "bench/_gpu_machine.py" in self._command:
            return json.dumps({"gpu": "an H200", "commit": "abc", "date": "today",
                               "mount": "/ /dev/vda ext4 rw"}), ""  # fmt: skip
        return "some text", "one line\nthe last line\n"


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def new_kernel(monkeypatch):
    monkeypatch.setattr(gpu_all, "kernel", lambda: "one that was not measured")


@pytest.fixture
def run(fake, tmp_path, new_kernel):
    """Runs --all with fakes and returns its results; the page is in "page"."""

    def make(*given: Any) -> gpu_all.Commands:
        return gpu_all.Commands(*given, start=fake.start, clock=fake.clock)

    def run_all(*more: str) -> dict[str, Any]:
        fake.now = 0.0
        words = [str(tmp_path / "out"), "--folder", str(tmp_path / "graphs"), *more]
        own = gpu_all.parse(words)
        found: dict[str, Any] = {"status": gpu_all.run(own, make)}
        found |= json.loads((own.out / "results.json").read_text())
        return found | {"page": (own.out / "gpu-results.md").read_text()}

    return run_all


def row(page: str, question: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| {question}"))


PYGS_WAY = "seconds a batch beside PyG's way"


def test_nothing_is_timed_while_the_graph_is_made_and_every_row_is_filled_in(fake, run, tmp_path):
    fake.seconds = {"pytest": 90.0, "h2d,gather": 12.0, "epoch": 100.0, "12": 120.0}
    found = run()
    page = found["page"]
    assert (found["status"], list(found["parts"])) == (0, [
        "machine", "tests", "graph", "strategies", "timeline", "light", "infer, its graph", "infer",
        *(f"moves, {way}" for way in WAYS), "epochs", "disk",
        *(f"switches, {one}" for one in ("defaults", *gpu_all.SWITCHES)), "switch-epochs",
    ])  # fmt: skip
    assert fake.began("bench/scale.py")[0] == 0.0
    (tests,) = fake.began("pytest")
    assert tests < 120.0 <= min(fake.began("bench/gpu.py") + fake.began("disk"))
    assert fake.now < gpu_all.SECONDS
    assert len(list((tmp_path / "out").iterdir())) <= 8
    for each in gpu_all.ROWS:
        assert f"\n| {each.question} | {each.wanted} |" in PAGE
    for question, says in {
        "tests/gpu": "1 passed, 1 failed, 2 skipped; test_io::test_d failed: wrong; "
        "2 skipped: no CuPy",
        "rows into the feature": "zero-copy, 512 B: 0.95 (0.95–0.95)",
        "which way is faster": "zero-copy: 0.95 of the plain copy, copy+kernel 0.80",
        "seconds a batch and of its step": "rolling, sage-256: 0.500 of 0.200 s, idle 60.0%",
        "share of an epoch without a kernel": "65.0% of 16 batches",
        "a small batch": "nodes:64, hits: 1.50 ms, 0.50",
        "inference": "9.0 s, 1.20 of its reads; a limit",
        "gather beside": "staged, 3,072 B: 0.60 (0.60–0.60)",
        PYGS_WAY: "2.00 (2.00–2.00) times as fast; 2 rounds of 8 batches",
        "seconds a batch beside one copy a row": "3.00 (3.00–3.00) times as fast",
        "GPU idle share": "gnndrive 0.25 (0.25–0.25)",
        "the disk's two constants": "10.0 µs a request, 0.500 ns a byte, 128 at once, engine uring",
        "rows moved with each switch": "blocks=128: h2d 512 B -0.05",
        "seconds a batch with each switch": "gather_stream=on: 3.000 s",
    }.items():
        assert says in row(page, question)
    assert ("not measured" in page, "fake" in page.partition("## Results")[2]) == (False, False)
    assert gpu_all.page(found, page) == page  # may be filled again


def test_a_part_that_fails_or_hangs_is_named_and_the_others_run(fake, run):
    """Of a graph that takes too long a smaller one takes the place."""
    fake.statuses = {"disk": 1}
    fake.seconds = {"12": 10_000.0, "h2d,gather": 10_000.0}
    found = run()
    parts, page = found["parts"], found["page"]
    assert (found["status"], parts["smaller graph"]["error"]) == (1, "")
    assert "the time was up" in parts["graph"]["error"]
    assert "--generate 2" in parts["epochs"]["command"]
    assert parts["disk"]["error"] == "ended with 1: a warning"
    assert "not measured: stopped after 45 s, because the time was up" in page
    assert "fit into the host's memory: this does not answer the question" in row(page, PYGS_WAY)
    before, fake.seconds, fake.statuses = len(fake.commands), {}, {}
    found = run("--only", "switches,switch-epochs")
    assert (found["status"], len(fake.commands)) == (0, before + 5)  # of this call's parts
    assert "--generate 2" in found["parts"]["switch-epochs"]["command"]
    assert found["parts"]["disk"]["error"]
    assert "2.00 (2.00–2.00) times as fast" in row(found["page"], PYGS_WAY)


def test_all_ends_in_time_if_every_part_hangs(fake, run):
    fake.seconds = {"python": 10_000.0, sys.executable: 10_000.0}
    found = run()
    assert fake.now <= gpu_all.SECONDS
    assert all(part["error"] for part in found["parts"].values())
    page = found["page"].partition("### ")[0]
    assert all("| not measured: " in row(page, each.question) for each in gpu_all.ROWS[1:])
    assert "not all ran: stopped after" in row(page, "tests/gpu")


@pytest.mark.parametrize("memory", [True, False])
def test_an_epoch_that_lacks_memory_is_run_again_with_more(fake, run, memory):
    fake.budget_kills = "4GiB"
    fake.dies = fake.dies if memory else "had not ended when the time was up"
    found = run()
    tries = [name for name in found["parts"] if name.startswith("epochs")]
    assert tries == ["epochs", "epochs, 5GiB"][: 1 + memory]
    line = row(found["page"], PYGS_WAY)
    assert ("--host-budget 5GiB" if memory else "not measured: no round in which both") in line
    assert "--host-budget 4GiB" in row(found["page"], "seconds a batch beside one copy a row")
    *less, none = gpu_all.BUDGETS
    assert max(parse_size(budget, "budget") for budget in less) < found["million_nodes"] * 1e6 * 512
    assert none == ""


def test_tests_alone_have_all_the_time(fake, run):
    fake.seconds = {"pytest": gpu_all.TESTS_S + 200.0}
    assert run("--only", "tests")["parts"]["tests"]["error"] == ""
    assert "because the time was up" in run("--only", "tests,graph")["parts"]["tests"]["error"]


def test_strategies_that_lack_memory_run_again_without_a_limit(fake, run):
    fake.failed = ["rolling: ended with -9", "ginex: ended with 1", "marius: not ended after 60 s"]
    parts = run("--only", "strategies")["parts"]
    assert list(parts) == ["machine", "graph", "strategies", "strategies, no limit"]
    (words,) = [command for _, command in fake.commands if "--host-budget" in command]
    assert ",".join(gpu_all.STRATEGIES) in words
    again = parts["strategies, no limit"]["command"]
    assert ("--strategies rolling " in again, "--host-budget" in again) == (True, False)


def test_a_kernel_that_was_measured_is_not_measured_again(tmp_path):
    def only(*words: str) -> list[str]:
        return gpu_all.parse([str(tmp_path), *words]).only

    everything = [name for name in gpu_all.NAMES if name not in gpu_all.OF_KERNEL]
    assert only() == only("--only", "tests,strategies,rest") == everything
    assert only("--only", "tests,switches") == ["machine", "tests", "switches"]


def test_a_timeline_says_when_a_kernel_ran():
    spans = [("kernel", 0, 4), ("kernel", 2, 4), ("kernel", 9, 1), ("gpu_memcpy", 3, 2)]
    events = [{"cat": kind, "name": f"{at}", "ts": at, "dur": us} for kind, at, us in spans]
    found = gpu_strategies.on_gpu([*events, {"ph": "M", "name": "process_name"}])
    assert found == {
        "kernel_s": pytest.approx(7e-6), "copy_s": pytest.approx(2e-6),
        "kernels": {"0": 4e-6, "2": 4e-6, "9": 1e-6},
    }  # fmt: skip


@pytest.mark.parametrize("kept", [0, 3])
def test_what_is_behind_a_crash_is_measured_in_another_process(fake, run, kept):
    fake.crashes_at, fake.moves_kept = "zero-copy", kept
    found = run()
    parts = found["parts"]
    assert parts["moves, zero-copy"]["error"].startswith("ended with -11")
    assert not parts["moves, copy+kernel"]["error"]
    assert "copy+kernel: 0.80 of the plain copy, staged 0.60" in row(found["page"], "which way")
    for name in ("epochs", "switch-epochs"):
        assert "--way copy+kernel" in parts[name]["command"]
    fake.crashes_at, fake.moves_kept = gpu_all.SWITCHES[1], kept
    found = run("--only", "switches")
    line = row(found["page"], "rows moved with each switch")
    measured = [one for one in gpu_all.SWITCHES if f"{one}: h2d" in line]
    assert measured == [one for one in gpu_all.SWITCHES if kept or one != fake.crashes_at]


def test_each_switch_of_the_device_is_measured():
    names = {word.partition("=")[0] for one in gpu_all.SWITCHES for word in one.split()}
    assert names == {field.name for field in dataclasses.fields(MoveOptions)}
    assert MoveOptions() not in [MoveOptions.parse(one.split()) for one in gpu_all.SWITCHES]


def test_a_stop_ends_what_runs_and_keeps_the_results(fake, run, tmp_path):
    fake.killed_at, before = "bench/light.py", ["machine", "tests", "graph"]
    before += ["strategies", "timeline"]
    with pytest.raises(SystemExit):
        run()
    out = tmp_path / "out"
    found = json.loads((out / "results.json").read_text())
    assert (fake.stopped, list(found["parts"])) == (1, before)
    assert "1 passed, 1 failed, 2 skipped" in (out / "gpu-results.md").read_text()


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


def commands_in(out: Path) -> gpu_all.Commands:
    out.mkdir()
    return gpu_all.Commands(out, 60.0, {}, lambda: None)


def test_a_process_may_write_its_report_when_it_is_stopped(tmp_path):
    """It is asked as by Ctrl-C, and all that it has started too."""
    commands = commands_in(tmp_path / "out")
    code = """
import subprocess, time
subprocess.Popen(["sleep", "600"])
try: time.sleep(600)
except KeyboardInterrupt: print('{"report": 1}', flush=True)
"""
    commands.run([gpu_all.Command("moves", ["-c", code], 2.0)])
    part = commands.results["parts"]["moves"]
    assert (part["result"], part["status"]) == ({"report": 1}, None)
    assert part["error"].endswith("because the time was up")


def test_what_runs_is_stopped_with_its_children(tmp_path, monkeypatch):
    number = tmp_path / "number"
    os.mkfifo(number)
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(number)!r}, "w").write(str(child.pid))
child.wait()
"""
    found = []

    class Stopped(subprocess.Popen):
        def wait(self, timeout=None):
            if not found:
                found.append(os.pidfd_open(int(number.read_text())))
                raise SystemExit(143)
            return super().wait(timeout)

    monkeypatch.setattr(gpu_all.subprocess, "Popen", Stopped)
    with pytest.raises(SystemExit):
        commands_in(tmp_path / "out").run([gpu_all.Command("moves", ["-c", code], 60.0)])
    assert select.select(found, [], [], 60)[0]  # it has ended
    os.close(found[0])


# ---- the rehearsal


class InProcess:
    """Runs a command in this process when it is waited for; tests and disk leave given results."""

    def __init__(self, words: list[str], printed: IO[bytes], errors: IO[bytes]) -> None:
        self._command, self._printed, self._errors = (
            words[len(gpu_all.ENDED) + 1 :],
            printed,
            errors,
        )

    def wait(self) -> int:
        if "pytest" in self._command or "disk" in self._command:
            return FakeChild(Fake(), self._command, 60.0, self._printed, self._errors).wait()
        script = importlib.import_module(Path(self._command[1]).stem)
        printed, before = io.StringIO(), sys.argv
        sys.argv = self._command[1:]
        try:
            with contextlib.redirect_stdout(printed):
                script.main()
        except SystemExit as ended:
            self._errors.write(str(ended.code).encode())
            return ended.code if isinstance(ended.code, int) else 1
        finally:
            sys.argv = before
            self._printed.write(printed.getvalue().encode())
        return 0


def test_a_rehearsal_fills_every_table_and_marks_its_figures(tmp_path, monkeypatch):
    def run_worker(name, options, *_):
        _, worker = gpu.parse([*options.given, "--worker", name])
        return gpu.RUNS[name](worker) | {"peak_bytes": 1}

    def make(*given):
        return gpu_all.Commands(*given, start=InProcess, clock=lambda: 0.0)

    monkeypatch.setattr(epoch, "spawn", run_worker)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(gpu_all, "SWITCHES", gpu_all.SWITCHES[:2])  # the others take as long each
    monkeypatch.setattr(gpu, "tried_limit", lambda *_: contextlib.nullcontext((None, "no limit")))
    words = [str(tmp_path / "out"), "--rehearse", "--folder", str(tmp_path / "graphs")]
    parts = ["machine", "tests", "graph", "epochs", "disk", *gpu_all.OF_KERNEL]
    status = gpu_all.run(gpu_all.parse([*words, "--only", ",".join(parts)]), make)
    results = json.loads((tmp_path / "out" / "results.json").read_text())["parts"]
    assert status == 0, {name: part["error"] for name, part in results.items()}
    page = (tmp_path / "out" / "gpu-results.md").read_text()
    for each in gpu_all.ROWS:
        assert ("not measured" in row(page, each.question)) is (each.step not in parts)
    for question in ("rows into", "gather", PYGS_WAY, "GPU idle"):
        assert gpu_all.FAKE in row(page, question)
    moves = gpu_all.all_of((results[f"moves, {way}"] for way in WAYS), "moves")
    assert {(move["part"], move["way"], move["row_bytes"]) for move in moves} == set(
        itertools.product(("h2d", "gather"), WAYS, gpu.ROW_BYTES)
    )
    epochs = results["epochs"]["result"]["epochs"]
    assert {(one["loader"], one["run"]) for one in epochs} == set(
        itertools.product(gpu.RUNS, range(2))
    )
    epochs = results["switch-epochs"]["result"]["epochs"]
    assert {one["switches"] for one in epochs} == {"defaults", *gpu_all.SWITCHES}


def test_a_rehearsal_measures_every_strategy_a_timeline_small_batches_and_inference(
    tmp_path, monkeypatch
):
    def run_worker(command, *_):
        worker, printed = gpu_strategies.parse(command[2:]), io.StringIO()
        with contextlib.redirect_stdout(printed):
            gpu_strategies.work(worker, worker.worker)
        return subprocess.CompletedProcess(command, 0, printed.getvalue()), 1

    def make(*given):
        return gpu_all.Commands(*given, start=InProcess, clock=lambda: 0.0)

    def run_infer(name, options, *_):
        with infer.fake_or_real(options.rehearse):
            return infer.RUNS[name](options)

    monkeypatch.setattr(gpu_strategies, "run_limited", run_worker)
    monkeypatch.setattr(epoch, "spawn", run_infer)
    monkeypatch.setattr(infer, "beside_disk", lambda store, call: (call(), DISK))
    for script in (infer, gpu_strategies):
        name = "limited" if script is infer else "tried_limit"
        monkeypatch.setattr(script, name, lambda *_: contextlib.nullcontext((None, "no limit")))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = [str(tmp_path / "out"), "--rehearse", "--folder", str(tmp_path / "graphs")]
    asked = "graph,strategies,timeline,light,infer"
    status = gpu_all.run(gpu_all.parse([*words, "--only", asked]), make)
    parts = json.loads((tmp_path / "out" / "results.json").read_text())["parts"]
    assert status == 0, {name: part["error"] for name, part in parts.items()}
    page = (tmp_path / "out" / "gpu-results.md").read_text()
    for each in gpu_all.ROWS:
        assert ("not measured" in row(page, each.question)) is (each.step not in asked)
    assert (tmp_path / "out" / "timeline.json.gz").stat().st_size > 0
    found = parts["strategies"]["result"]
    assert found["prepared"].keys() == {"partitioned", "packed"}
    assert [each["strategy"] for each in found["results"]] == list(gpu_all.STRATEGIES)
    assert {*gpu_all.STRATEGIES} == {*gpu_strategies.ON_DEVICE}
    for each in found["results"]:
        assert each["compared"] > 0
        assert 0 < each["steps"]["sage-256"]["batches"] <= 3
