"""Everything that docs/gpu-results.md asks for, in three calls within ten minutes each.

usage: python bench/gpu_all.py OUT --only tests
       python bench/gpu_all.py OUT --only strategies
       python bench/gpu_all.py OUT --only rest
           [--seconds 540] [--folder DIR] [--nodes 12] [--rehearse]

Parts, what is least known first, each made of commands with a time limit that leave JSON. --only
takes names of parts, too; without it they all run in this order, as far as the time reaches.
tests:
machine        the GPU and its libraries, the kernel, the mount that DIR lies on, which engine and
               which limits are allowed here; part of each call
tests          tests/gpu; nothing is timed meanwhile
strategies:
graph          one of --nodes million nodes is made in DIR (593 bytes of disk a node), beside tests
               if both are asked for
strategies     bench/gpu_strategies.py with what it prepares, GraphSAGE and GAT, those first that
               have not been measured. A process has less memory than the features take; those that
               fail for that run again without a limit
rest:
timeline       an epoch of gnndrive within torch.profiler: timeline.json.gz, and the share of the
               time without a kernel
light          bench/light.py: small batches that end on the GPU
infer          bench/infer.py: a GraphSAGE over all nodes of a smaller graph, on the GPU
moves          h2d and gather of bench/gpu.py, for each row size; each way in a process of its own,
               because a process does not survive a way that crashes
epochs         the loaders of bench/gpu.py in rounds until the time is up, at least one round. Each
               loader has less memory than the features take; if one is killed for that, they run
               with more, and then with no limit
disk           `gnndrive bench disk`: the disk's two constants
switches       moves with each switch of the device
switch-epochs  an epoch of gnndrive with each switch, as many as there is time for

moves, switches and switch-epochs run if --only names them or if CuPy's kernel is not the one that
docs/gpu-results.md has figures of.
OUT gets results.json, gpu-results.md (docs/gpu-results.md filled in) and log.txt, written after
each command; running.json has what the command under way has measured so far, so that a kill loses
no more than that. A command that fails is named with its error, and the others go on; the exit
status is then 1. --only runs some parts; results of others that an earlier call has left in OUT
stay, and its graph is used. --rehearse runs all of it on a fake GPU with a small graph, and marks
each figure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree

import _script
import scale
from _gpu_machine import kernel
from _script import grouped
from gpu import MEASURE, ROW_BYTES, killed, same_batches, speedups_of_gnndrive

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.common.memory import format_size, parse_size
from gnndrive.disk.engines import why_not_uring

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu-results.md"
FILLED = "## Results"
HOW = "## How to run it"
FAKE = "*(fake GPU)*"
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
MACHINE = {
    "date": "date", "commit": "commit of the bundle", "gpu": "GPU", "torch": "torch",
    "cupy": "CuPy", "python": "Python", "kernel": "kernel", "cores": "cores", "memory": "memory",
    "moved_by": "CuPy's kernel", "mount": "mount of the graph's folder", "disk": "disk",
    "queues": "CUDA's queues", "engine": "engine", "why_threads": "why not io_uring",
    "limits": "memory of a loader",
}  # fmt: skip
SAME_WAY = 0.02  # ratios that differ by less are the same

Result = dict[str, Any]
OF_KERNEL = ("moves", "switches", "switch-epochs")
GROUPS = {
    "tests": ("machine", "tests"), "strategies": ("machine", "graph", "strategies"),
    "rest": ("machine", "graph", "timeline", "light", "infer", "moves", "epochs", "disk",
             "switches", "switch-epochs"),
}  # fmt: skip
NAMES = tuple(dict.fromkeys(name for names in GROUPS.values() for name in names))
STRATEGIES = ("rolling", "marius", "lsm-gnn", "ali+pg", "gnndrive", "ginex", "diskgnn",
              "hierbatching")  # fmt: skip
SECONDS = 540.0
SWITCHES = ("gather_stream=on", "portions=8", "blocks=128")
"""Each switch of the device, those first that change epochs most."""
BUDGETS = ("4GiB", "5GiB", "")  # of a loader, less than the features; "": no limit
BEGAN = "GPU_ALL_BEGAN"  # environment: when run.sh began, in seconds of the system's clock
KERNELS = WAYS[:2]  # ways whose kernel `blocks` changes
TEST_S = 45  # after which a test's stacks are printed
# Seconds: at most for each command, and what later ones need.
MACHINE_S, TESTS_S, SMALL_GRAPH_S, MOVES_S, DISK_S = 60, 240, 60, 45, 45
STRATEGIES_S, TIMELINE_S, LIGHT_S, INFER_S = 400, 70, 70, 90
EPOCHS_S, RETRY_S, SWITCHES_S, LATER_S, PAGE_S = 150, 70, 45, 90, 10
ENDED = ["timeout", "--signal=INT", "--kill-after=7"]
"""Ends a command with all processes that it has started: first as Ctrl-C does, because pytest then
still writes its report."""
TAIL = 3  # lines of each output that an error quotes


class Command(NamedTuple):
    """Arguments to Python, and the seconds that they may take. Behind a comma the name has what
    tells a command from its part's others."""

    name: str
    words: list[str]
    most_s: float


def commands(
    own: argparse.Namespace, results: Result, left: Callable[[], float]
) -> Iterator[list[Command]]:
    """Yield the commands in order, those together that run at the same time. When it goes on, the
    results of those before are in `results`; `left` says how many seconds are left."""
    parts, folder = results["parts"], str(own.folder)
    fake = ["--rehearse"] if own.rehearse else []
    few = ["--batch-size", "20", "--fanout", "3,2", "--batches", "3"]
    measured = ["--buffer", "2GB", "--samplers", "4", "--threads", "4", "--batches", "6"]
    moves_runs, epoch_runs = ("2", "2") if own.rehearse else ("5", "3")

    def found(name: str) -> Result:
        result: Result = parts.get(name, {}).get("result", {})
        return result

    def store() -> str:
        return str(scale.store_path(own.folder, round(results["million_nodes"] * 1e6)))

    def graph(million: float | None = None) -> list[str]:
        size = f"{million or results['million_nodes']:g}"
        return ["bench/scale.py", "--folder", folder, "--sizes", size]

    def gpu(*more: str, script: str = "gpu") -> list[str]:
        return [f"bench/{script}.py", *more, *fake, "--json", str(own.out / "running.json")]

    def moves(way: str, *more: str) -> list[str]:
        return gpu("--parts", "h2d,gather", "--ways", way, "--runs", moves_runs, *more)

    def epochs(budget: str, *more: str) -> list[str]:
        ways = working_ways(results)
        way = ["--way", ways[0]] if ways and ways[0] != WAYS[0] else []
        size = ["--buffer", "1MB", *few] if own.rehearse else measured
        limit = ["--host-budget", budget] if budget else []
        generate = ["--generate", f"{results['million_nodes']:g}", "--folder", folder]
        return gpu("--parts", "epoch", *generate, *size, *way, *more, *limit)

    results["million_nodes"] = (
        own.nodes or results.get("million_nodes") or (0.003 if own.rehearse else 12)
    )
    machine = ["bench/_gpu_machine.py", folder, *fake]
    tests = ["-m", "pytest", "-p", "asyncio", "-rs", "-v", "-v"]
    tests += ["tests/fake_gpu" if own.rehearse else "tests/gpu"]
    tests += ["-o", f"faulthandler_timeout={TEST_S}"]  # shows where a test hangs
    small = ["--memory", "300MB", "--device-memory", "1MB", "--seconds", "1", *few]
    tests += [f"--junitxml={own.out / 'tests.xml'}"]
    until = max(left() - own.seconds + TESTS_S, PAGE_S)
    tests_s = until if "graph" in own.only else left() - PAGE_S
    yield [
        Command("graph", graph(), until), Command("tests", tests, tests_s),
        Command("machine", machine, MACHINE_S),
    ]  # fmt: skip
    if parts.get("graph", {}).get("error"):
        results["million_nodes"] = 0.002 if own.rehearse else 2
        yield [Command("smaller graph", graph(), SMALL_GRAPH_S)]
    words = [store(), "--prepare", "--steps", "sage-256,gat-256", "--most", "60"]
    words += small if own.rehearse else ["--batches", "32", "--seconds", "5"]

    def strategies(names: Iterable[str], *more: str) -> list[str]:
        return gpu(*words, "--strategies", ",".join(names), *more, script="gpu_strategies")

    most_s = min(STRATEGIES_S, left() - PAGE_S)
    yield [Command("strategies", strategies(STRATEGIES, "--host-budget", BUDGETS[1]), most_s)]
    if again := killed_strategies(found("strategies")):
        yield [Command("strategies, no limit", strategies(again), left() - PAGE_S)]
    words = [store(), "--strategies", "gnndrive", "--steps", "sage-256", "--profile",
             str(own.out / "timeline.json.gz")]  # fmt: skip
    words += small if own.rehearse else ["--batches", "16", "--seconds", "5"]
    yield [Command("timeline", gpu(*words, script="gpu_strategies"), TIMELINE_S)]
    words = ["--device", "cuda", "--units", "nodes:64:5,5 types:64:5,5 links:128:5,5"]
    words += ["--rounds", "1", "--batches", "4", "--nodes", "3000"] if own.rehearse else [
        "--rounds", "3", "--batches", "200"]  # fmt: skip
    yield [Command("light", gpu(*words, script="light"), LIGHT_S)]
    million = 0.002 if own.rehearse else 2
    smaller = str(scale.store_path(own.folder, round(million * 1e6)))
    yield [Command("infer, its graph", graph(million), SMALL_GRAPH_S)]
    words = [smaller, "--device", "cuda", "--memory", "1GB", "--memory-limit", "6GiB"]
    yield [Command("infer", gpu(*words, script="infer"), INFER_S)]
    for way in WAYS:
        yield [Command(f"moves, {way}", moves(way), MOVES_S)]
    for budget in BUDGETS:
        name = "epochs" if budget == BUDGETS[0] else f"epochs, {budget or 'no limit'}"
        most_s = max(left() - LATER_S - PAGE_S, min(EPOCHS_S, left() - PAGE_S))
        more = ["--runs", epoch_runs, "--seconds", f"{most_s - PAGE_S:.0f}"]
        yield [Command(name, epochs(budget, *more), most_s)]
        if not killed(found(name)) or left() < LATER_S + PAGE_S + RETRY_S:
            break
    engine = "threads" if why_not_uring() else "uring"
    disk = ["-m", "gnndrive.cli.main", "bench", "disk", "--json", "--ioengine", engine, store()]
    yield [Command("disk", disk, DISK_S)]
    way = next((way for way in working_ways(results) if way in KERNELS), KERNELS[0])
    for one in ("defaults", *SWITCHES):
        yield [Command(f"switches, {one}", moves(way, "--switch", one), SWITCHES_S)]
    before = epochs_of_gnndrive(results)
    mine = [one for one in before.get("epochs", []) if one["loader"] == "gnndrive"]
    seconds = max((one["wall_s"] for one in mine), default=0) or 1
    tried = ["defaults", *SWITCHES][: int((left() - PAGE_S) / seconds)] if mine else []
    if len(tried) > 1:
        more = ["--loaders", "gnndrive", "--runs", "1"]
        more += [word for one in tried for word in ("--switch", one)]
        words = epochs(before["host_budget"], *more)
        yield [Command("switch-epochs", words, left() - PAGE_S)]


# ---- running them


def start(words: Sequence[str], printed: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
        stdout=printed, stderr=errors,
    )  # fmt: skip


class Commands:
    """Runs commands within `seconds`, and keeps their results in a file of the folder `out`.

    Attributes:
        results: `head`, and in `parts` by name: the command, when it began, seconds, exit status,
            the result, and an error or "". `changed` is called after each.
    """

    def __init__(
        self, out: Path, seconds: float, head: Result, changed: Callable[[], None],
        start: Callable[..., Any] = start, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.results: Result = {"parts": {}} | head
        self._out, self._changed, self._start, self._clock = out, changed, start, clock
        self._ends, self._file = clock() + seconds, out / "running.json"

    def left(self) -> float:
        """Seconds that are left for all commands."""
        return self._ends - self._clock()

    def run(self, together: Sequence[Command]) -> None:
        """Run commands at the same time, each at most its seconds and at most until all time is
        used up, the last one first. A result is the JSON that a command has written or printed."""
        running = []
        self._file.unlink(missing_ok=True)
        try:
            for command in together:
                limit = min(command.most_s, self.left())
                printed, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
                words = [*ENDED, f"{limit:.1f}", sys.executable, *command.words]
                began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                child = self._start(words, printed, errors)
                running.append((command, child, printed, errors, limit, self._clock(), began))
            while running:
                command, child, printed, errors, limit, started, began = running[-1]
                status, seconds = child.wait(), self._clock() - started
                running.pop()
                part = {"command": shown(command.words), "began": began, "seconds": seconds}
                texts = [text_of(errors), text_of(printed)]
                ended = None if seconds >= limit and status else status
                self._ended(command.name, part | {"status": ended}, *texts)
        finally:
            for _, child, *_ in running:
                child.terminate()
                child.wait()

    def _ended(self, name: str, part: Result, errors: str, printed: str) -> None:
        status = part["status"]
        text = self._file.read_text() if self._file.exists() else printed
        self._file.unlink(missing_ok=True)
        try:
            result = json.loads(text)
        except ValueError:
            result = None
        part["result"] = result if isinstance(result, dict) else {}
        if status is None:
            part["error"] = f"stopped after {part['seconds']:.0f} s, because the time was up"
        elif status:
            texts = [errors] if part["result"] else [errors, printed]
            last = [line for text in texts for line in text.strip().splitlines()[-TAIL:]]
            part["error"] = f"ended with {status}: {' / '.join(last)}"
        else:
            part["error"] = ""
        if name == "tests":
            part["result"] = counts(self._out / "tests.xml")
        words = part["error"] or "ended well"
        print(f"{name}: {part['seconds']:.0f} s, {words} ({self.left():.0f} s left)", flush=True)
        with (self._out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n== {name}: {part['command']}\n{errors}{printed}\n-- {words}\n")
        self.add(name, part)

    def skip(self, name: str) -> None:
        """Keep why a command was not run."""
        why = "not run, because the time was up"
        print(f"{name}: {why}", flush=True)
        none: Result = {"command": "", "began": "", "seconds": 0.0, "status": None, "result": {}}
        self.add(name, none | {"error": why})

    def add(self, name: str, part: Result) -> None:
        """Keep what is known of a command, and write all results."""
        self.results["parts"][name] = part
        self.results["left_s"] = self.left()
        _script.write(self.results, str(self._out / "results.json"))
        self._changed()


def text_of(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def shown(words: Sequence[str]) -> str:
    return shlex.join(["python3", *(word.removeprefix(f"{ROOT}/") for word in words)])


def counts(file: Path) -> Result:
    """How many tests passed, failed and were skipped, and the names and reasons of the latter."""
    try:
        suite = ElementTree.parse(file).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        return {}
    file.unlink()  # log.txt has the output
    if suite is None:
        return {}
    found: dict[str, Any] = {"failed": [], "skipped": [], "seconds": float(suite.get("time", 0))}
    for case in suite.iter("testcase"):
        name = f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
        for kind, into in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if (why := case.find(kind)) is not None:
                found[into].append([name, (why.get("message") or "").split("\n")[0]])
    found["passed"] = int(suite.get("tests", 0)) - len(found["failed"]) - len(found["skipped"])
    return found


# ---- what is in the results


def step_of(name: str) -> str:
    """The part that a command belongs to."""
    return "graph" if name == "smaller graph" else name.partition(",")[0]


def of_step(results: Result, step: str) -> list[Result]:
    return [ran for name, ran in results["parts"].items() if step_of(name) == step]


def all_of(ran: Iterable[Result], what: str) -> list[Result]:
    """All that commands have measured of something: "moves" or "epochs"."""
    return [each for one in ran for each in one["result"].get(what, [])]


def working_ways(results: Result) -> list[str]:
    """The ways of which all moves were measured, and that failed at nothing; the preferred one
    first."""
    found = {way: results["parts"].get(f"moves, {way}", {}).get("result", {}) for way in WAYS}
    each = len(MEASURE) * len(ROW_BYTES)
    return [
        way for way, result in found.items()
        if len(result.get("moves", [])) == each and not result["failed"]
    ]  # fmt: skip


def epochs_of_gnndrive(results: Result) -> Result:
    """The first result, that with the least memory, in which an epoch of gnndrive ended, or {}."""
    for one in of_step(results, "epochs"):
        if any(each["loader"] == "gnndrive" for each in all_of([one], "epochs")):
            found: Result = one["result"]
            return found
    return {}


def killed_strategies(found: Result) -> list[str]:
    """The strategies whose process was killed, as one is that exceeds its memory limit."""
    named = (line.partition(": ") for line in found.get("failed", []))
    return [name for name, _, why in named if why == f"ended with -{signal.SIGKILL:d}"]


def compared(ran: list[Result], loader: str) -> list[Result]:
    """The command that compares gnndrive with a loader under the least memory; without one, the
    last that has any epochs, or the last."""
    for one in ran:
        if speedups_of_gnndrive(all_of([one], "epochs"), loader):
            return [one]
    return ([one for one in ran if all_of([one], "epochs")] or ran)[-1:]


def why(one: Result) -> str:
    kinds = (one["result"].get(kind, []) for kind in ("failed", "unavailable"))
    lines = [line for lines in kinds for line in lines if isinstance(line, str)]
    return "; ".join(lines) or one["error"] or "no result"


# ---- figures: each is made of the commands of its part; an empty one is not there


def spread(values: Sequence[float], digits: int = 2) -> str:
    return _script.spread(values, digits, "–")


def tests(results: Result, ran: list[Result]) -> str:
    """The counts of tests/gpu, each test that failed, and why others were skipped."""
    if not ran or "passed" not in ran[0]["result"]:
        return ""
    found = ran[0]["result"]
    failed, skipped = found["failed"], found["skipped"]
    words = [f"{found['passed']} passed, {len(failed)} failed, {len(skipped)} skipped"]
    words += [f"{name} failed: {error}" for name, error in failed]
    reasons = Counter(reason for _, reason in skipped)
    words += [f"{count} skipped: {reason}" for reason, count in reasons.items()]
    if ran[0]["status"] is None:
        words.append(f"not all ran: {ran[0]['error']}")
    return "; ".join(words)


def ratios(results: Result, ran: list[Result], kind: str) -> str:
    return "; ".join(
        f"{move['way']}, {move['row_bytes']:,} B: {spread(move['ratio'])}"
        for move in all_of(ran, "moves") if move["part"] == kind
    )  # fmt: skip


def faster_way(results: Result, ran: list[Result]) -> str:
    """The way whose rows reach the feature buffer faster, by the smaller of its ratios; a way that
    failed at any move does not count."""
    if not all_of(ran, "moves"):
        return ""
    ways = working_ways(results)
    rows = [move for move in all_of(ran, "moves") if move["part"] == "h2d" and move["way"] in ways]
    least = {
        way: min(median(move["ratio"]) for move in of_way)
        for way, of_way in grouped(rows, "way").items()
    }
    if len(least) < 2:
        return f"not measured: only {', '.join(least) or 'no way'} could be measured"
    first, second, *_ = sorted(least, key=lambda way: -least[way])
    words = f"{first}: {least[first]:.2f} of the plain copy, {second} {least[second]:.2f}"
    return words + (" (no difference)" if least[first] - least[second] < SAME_WAY else "")


def speedup(results: Result, ran: list[Result], loader: str) -> str:
    epochs = all_of(ran, "epochs")
    if not epochs:
        return ""
    if not same_batches(epochs):
        return "not measured: the loaders did not train on the same batches"
    found, values = ran[0]["result"], speedups_of_gnndrive(epochs, loader)
    if not values:
        return f"not measured: no round in which both loaders ended: {why(ran[0])}"
    rounds = f"{len(values)} rounds of" if len(values) > 1 else "1 round of"
    return (
        f"{spread(values)} times as fast; {rounds} {epochs[0]['batches']} batches; features "
        f"{format_size(found['features_bytes'])}, {found['memory']}{room(found)}"
    )


def room(found: Result) -> str:
    """A warning if a loader's memory may have had room for all features."""
    budget = found.get("host_budget") if found.get("limited") else ""
    if budget and parse_size(budget, "host_budget") < found["features_bytes"]:
        return ""
    return (
        f"; **the features {'fit' if budget else 'may fit'} into the host's memory: this does not "
        "answer the question**"
    )


def idle(results: Result, ran: list[Result]) -> str:
    return "; ".join(
        f"{loader} {spread([one['idle'] for one in runs])}"
        for loader, runs in grouped(all_of(ran, "epochs"), "loader").items()
    )


def strategies(results: Result, ran: list[Result]) -> str:
    return "; ".join(
        f"{each['strategy']}, {kind}: {step['s_a_batch']:.3f} of {step['step_s']:.3f} s, idle "
        f"{step['idle']:.1%}{', no limit' if not each['peak_bytes'] else ''}"
        for each in all_of(ran, "results") for kind, step in each["steps"].items()
    )  # fmt: skip


def timeline(results: Result, ran: list[Result]) -> str:
    profiles = (each.get("profile") for each in all_of(ran, "results"))
    return "; ".join(
        f"{each['no_kernel']:.1%} of {each['batches']} batches, copies {each['copy_s']:.2f} s, "
        f"steps ran in all but {each['idle']:.1%}"
        for each in profiles if each
    )  # fmt: skip


def light(results: Result, ran: list[Result]) -> str:
    return "; ".join(
        f"{line['unit']}, {line['source']}: {line['ms']:.2f} ms, {line['ratio']:.2f}"
        for line in all_of(ran, "lines")
    )


def inference(results: Result, ran: list[Result]) -> str:
    return "".join(
        f"{found['gnndrive']['seconds']:.1f} s, {found['of_reads']:.2f} of its reads; "
        f"{found['memory']}"
        for found in (one["result"] for one in ran) if "gnndrive" in found
    )  # fmt: skip


def disk(results: Result, ran: list[Result]) -> str:
    return "".join(
        f"{found['request_s'] * 1e6:.1f} µs a request, {found['byte_s'] * 1e9:.3f} ns a byte, "
        f"{found['depth']} at once, engine {found['engine']}{on_memory(results)}"
        for found in (one["result"] for one in ran) if found
    )  # fmt: skip


def on_memory(results: Result) -> str:
    """A warning if the graph lies in memory."""
    mounted = results["parts"].get("machine", {}).get("result", {}).get("mount", "").split()
    if any(kind in mounted for kind in MEMORY_FILE_SYSTEMS):
        return "; **the folder is in memory: this is no disk's figure**"
    return ""


def switches(results: Result, ran: list[Result]) -> str:
    """The ratio of each set of switches to a plain copy, less that of the defaults."""
    by_set = grouped(all_of(ran, "moves"), "switches")
    plain = {(move["part"], move["row_bytes"]): median(move["ratio"])
             for move in by_set.pop("defaults", [])}  # fmt: skip
    changes = []
    for name, rows in by_set.items():
        words = [
            f"{move['part']} {move['row_bytes']:,} B "
            f"{median(move['ratio']) - plain[move['part'], move['row_bytes']]:+.2f}"
            for move in rows if (move["part"], move["row_bytes"]) in plain
        ]  # fmt: skip
        changes += [f"{name}: {', '.join(words)}"] if words else []
    return "; ".join(changes)


def switch_epochs(results: Result, ran: list[Result]) -> str:
    epochs = all_of(ran, "epochs")
    return "; ".join(f"{one['switches']}: {one['s_per_batch']:.3f} s" for one in epochs)


class Row(NamedTuple):
    """A question of the page. `answer` makes the figure of all results and of the commands of the
    part `step`, of which with `loader` the one counts that compares gnndrive with that loader."""

    question: str
    wanted: str
    step: str
    answer: Callable[[Result, list[Result]], str]
    loader: str = ""


ROWS = (
    Row("tests/gpu", "green", "tests", tests),
    Row("seconds a batch and of its step, share in which no step ran between CUDA events, each "
        "strategy", "", "strategies", strategies),
    Row("share of an epoch without a kernel, by torch.profiler", "", "timeline", timeline),
    Row("a small batch on the GPU, ratio to PyG's class and `batch.to`", "", "light", light),
    Row("inference of a GraphSAGE on the GPU, beside its reads", "", "infer", inference),
    Row("rows into the feature buffer beside a plain pinned copy of the same bytes, 512 and 3,072 "
        "bytes a row, by each way", "at least 0.9", "moves", partial(ratios, kind="h2d")),
    Row("which way is faster", "", "moves", faster_way),
    Row("gather beside a copy within the GPU's memory, 512 and 3,072 bytes a row, by each way",
        "at least 0.85", "moves", partial(ratios, kind="gather")),
    Row("seconds a batch beside PyG's way, pinned host gather and copy, features larger than the "
        "host's budget", "at least 2 times as fast", "epochs", partial(speedup, loader="pinned"),
        "pinned"),
    Row("seconds a batch beside one copy a row", "", "epochs",
        partial(speedup, loader="row-copies"), "row-copies"),
    Row("GPU idle share of the epoch, each loader", "", "epochs", idle, "pinned"),
    Row("the disk's two constants", "", "disk", disk),
    Row("rows moved with each switch of the device, ratio less that of the defaults", "",
        "switches", switches),
    Row("seconds a batch with each switch of the device", "", "switch-epochs", switch_epochs),
)  # fmt: skip


# ---- the page


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cell(value) for value in line)} |" for line in lines] + [""]


def cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def answer(results: Result, row: Row) -> tuple[str, str, str, str, str]:
    """A question, what is asked for, the figure, when it was measured and by what."""
    ran = of_step(results, row.step)
    if row.loader:
        ran = compared(ran, row.loader)
    figure = row.answer(results, ran)
    if not figure:
        not_run = "not run" if row.step in results["asked"] else "not asked for"
        if row.step in OF_KERNEL and row.step not in results["asked"]:
            not_run = "the kernel is as it was measured before"
        figure = f"not measured: {'; '.join(map(why, ran)) or not_run}"
    elif results["rehearsal"]:
        figure += f" {FAKE}"
    commands = "; ".join(f"`{one['command']}`" for one in ran if one["command"])
    return row.question, row.wanted, figure, ran[0]["began"] if ran else "", commands


def page(results: Result, template: str) -> str:
    found = results["parts"].get("machine", {}).get("result", {})
    mark = f" {FAKE}" if results["rehearsal"] else ""
    head = (
        "**A rehearsal on a fake GPU.** No figure here is a measurement."
        if results["rehearsal"]
        else f"Measured {found.get('date', '')} on {found.get('gpu', 'a machine unknown')}, commit "
        f"{found.get('commit', 'unknown')}."
    )
    title, how = template.splitlines()[0], template[template.index(HOW) :]
    how = how[: how.index(FILLED)].strip()
    lines = [title, "", head + on_memory(results), "", how, "", FILLED, ""]
    heads = ("question", "asked for", "figure", "when", "command")
    lines += table(heads, [answer(results, row) for row in ROWS])
    lines += ["### The machine", ""]
    known = [(words, found[name]) for name, words in MACHINE.items() if found.get(name, "") != ""]
    lines += table(("what", "is"), known or [("everything", "not described")])
    lines += [*moves_table(results, mark), *epochs_table(results, mark)]
    lines += ["### How the parts ended", ""]
    ended = [
        (name, f"{ran['seconds']:.0f}", ran["error"] or "well")
        for name, ran in results["parts"].items()
    ]
    lines += table(("part", "seconds", "ended"), ended)
    return "\n".join(lines)


def moves_table(results: Result, mark: str) -> list[str]:
    rows = [
        (
            move["part"], move["way"], f"{move['row_bytes']:,}", move["switches"],
            spread([value / 1e9 for value in move["bytes_per_s"]], 1) + mark,
            spread([value / 1e9 for value in move["plain_bytes_per_s"]], 1) + mark,
            spread(move["ratio"], 3) + mark,
        )
        for step in ("moves", "switches") for move in all_of(of_step(results, step), "moves")
    ]  # fmt: skip
    heads = ("part", "way", "bytes a row", "switches", "GB/s", "plain copy GB/s", "ratio")
    return ["### Moves", "", *table(heads, rows)] if rows else []


def epochs_table(results: Result, mark: str) -> list[str]:
    rows = [
        (
            name, loader, chosen, len(runs), runs[0]["batches"],
            spread([one["s_per_batch"] for one in runs], 3) + mark,
            spread([one["idle"] for one in runs]) + mark,
            format_size(max(one["peak_bytes"] for one in runs)), runs[0].get("engine", ""),
        )
        for name, ran in results["parts"].items() if "epochs" in name
        for (loader, chosen), runs in grouped(all_of([ran], "epochs"), "loader", "switches").items()
    ]  # fmt: skip
    heads = ("part", "loader", "switches", "rounds", "batches", "s a batch", "GPU idle",
             "peak of host memory", "engine")  # fmt: skip
    return ["### Epochs", "", *table(heads, rows)] if rows else []


# ---- the script


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    parser.add_argument("--folder", type=Path, default=ROOT / "graphs", help="of the graph")
    parser.add_argument("--nodes", type=float, help="million nodes; default: 12")
    parser.add_argument("--only", type=_script.names, default=list(GROUPS))
    parser.add_argument("--rehearse", action="store_true", help="on a fake GPU, in small")
    own = parser.parse_args(given)
    own.out, own.folder = own.out.resolve(), own.folder.resolve()
    _script.check_names(parser, "part", own.only, {*GROUPS, *NAMES})
    known = PAGE.read_text(encoding="utf-8")
    again = NAMES if kernel() not in known else [each for each in NAMES if each not in OF_KERNEL]
    parts = {each for group in own.only for each in GROUPS.get(group, ()) if each in again}
    own.only = [each for each in NAMES if each in parts | {*own.only}]
    return own


def earlier(file: Path, rehearsal: bool, asked: Sequence[str]) -> Result:
    """What an earlier call has left of the parts that are not `asked` for now; {} if nothing.
    Figures of a fake GPU and of a real one do not mix."""
    try:
        found: Result = json.loads(file.read_text(encoding="utf-8"))
        parts = {name: ran for name, ran in found["parts"].items() if step_of(name) not in asked}
        same = found["rehearsal"] == rehearsal
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}
    return found | {"parts": parts} if parts and same else {}


def run(own: argparse.Namespace, make: Callable[..., Commands] = Commands) -> int:
    for folder in (own.out, own.folder):
        folder.mkdir(parents=True, exist_ok=True)
    template = PAGE.read_text(encoding="utf-8")

    def write_page() -> None:
        try:
            text = page(runner.results, template)
        except Exception:  # the parts still to come matter more
            text = f"results.json has the results; this page failed:\n\n{traceback.format_exc()}"
        (own.out / "gpu-results.md").write_text(text, encoding="utf-8")

    head = earlier(own.out / "results.json", own.rehearse, own.only)
    asked = [name for name in NAMES if name in own.only or name in head.get("asked", [])]
    if "graph" in own.only:
        head.pop("million_nodes", None)
    head |= {"rehearsal": own.rehearse, "asked": asked}
    runner = make(own.out, own.seconds, head, write_page)
    for together in commands(own, runner.results, runner.left):
        wanted = [command for command in together if step_of(command.name) in own.only]
        if runner.left() >= PAGE_S:
            runner.run(wanted)
            continue
        for command in wanted:
            runner.skip(command.name)
    failed = [
        name for name, part in runner.results["parts"].items()
        if part["error"] and step_of(name) in own.only
    ]  # fmt: skip
    print((own.out / "gpu-results.md").read_text(encoding="utf-8"))
    print(f"results in {own.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def late(environment: Mapping[str, str], now: float) -> float:
    """Seconds since run.sh began, which count too; 0 without run.sh."""
    began = environment.get(BEGAN, "")
    return max(now - int(began), 0.0) if began.isdecimal() else 0.0


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    # A shell's background commands ignore SIGINT, and so would the commands, which are ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own = parse(sys.argv[1:])
    own.seconds -= late(os.environ, time.time())
    sys.exit(run(own))


if __name__ == "__main__":
    _script.run(main)
