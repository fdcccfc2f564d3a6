"""Everything that docs/gpu-results.md asks for, in one call and within a time.

usage: python bench/gpu_all.py OUT [--seconds 540] [--folder DIR] [--nodes 12] [--rehearse]
           [--only machine,tests,graph,moves,disk,epochs,switches,switch-epochs,strategies]

Parts, one after the other, each a process with a time limit of its own:
machine        the GPU and its libraries, the kernel, the mount that DIR lies on, which engine and
               which limits are allowed here
tests          tests/gpu, while the graph of --nodes million nodes is made in DIR (593 bytes of disk
               a node); nothing is timed meanwhile
moves          h2d and gather of bench/gpu.py, in each way and for each row size; after a crash
               another process measures the ways behind the one that crashed
disk           `gnndrive bench disk`: the disk's two constants
epochs         the loaders of bench/gpu.py in rounds until the time is up: at least one round, with
               fewer batches if the time is short. Each loader has less memory than the features
               take; if one is killed for that, they run with more, and then with no limit
switches       moves with each switch of the device
switch-epochs  an epoch of gnndrive with each switch, as many as there is time for
strategies     bench/gpu_strategies.py with what it prepares, if --only names it: it takes longer
               than all others together

OUT gets results.json, gpu-results.md (docs/gpu-results.md filled in), log.txt, and a JSON file of
each part that has several results: eight files at most. They are written after each part, the last
after each result, so that a kill loses no more than what is under way. A part that fails is named
with its error, and the others go on; the exit status is then 1. --only runs some parts; results of
others that an earlier call has left in OUT stay, and its graph is used. --rehearse runs all of it
on a fake GPU with a small graph, and marks each figure.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import _script
import scale
from _gpu_epochs import killed
from _gpu_page import page
from _gpu_parts import ROOT, Parts, Result
from _gpu_tries import earlier, epochs_of_gnndrive, sets_behind, step_of, ways_behind, working_ways

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.disk.engines import why_not_uring

NAMES = ("machine", "tests", "graph", "moves", "disk", "epochs", "switches", "switch-epochs")
ALL_NAMES = (*NAMES, "strategies")  # the last one only if --only names it
SECONDS = 540.0
SWITCHES = ("gather_stream=on", "portions=8", "blocks=128")
"""Each switch of the device, those first that change epochs most."""
BUDGETS = ("4GiB", "5GiB", "")  # of a loader, less than the features; "": no limit
BEGAN = "GPU_ALL_BEGAN"  # environment: when run.sh began, in seconds of the system's clock
SWITCHES_TRIES = 3
KERNELS = WAYS[:2]  # ways whose kernel `blocks` changes
TEST_S = 45  # after which a test's stacks are printed
MEASURED = ["--buffer", "2GB", "--samplers", "4", "--threads", "4"]
# Seconds: at most for each part, and what later parts need.
MACHINE_S, TESTS_S, SMALL_GRAPH_S, MOVES_S, DISK_S, SWITCHES_S = 60, 200, 60, 90, 45, 90
MOVES_AGAIN_S, EPOCHS_S, RETRY_S, PAGE_S = 45, 150, 70, 10


class Sizes:
    """How much is measured; a rehearsal measures little.

    Attributes:
        million_nodes: of the graph, and of a smaller one if the first takes too long.
        more: options of all scripts.
        epochs: options of its epochs.
        strategies: options of bench/gpu_strategies.py.
        runs, rounds: of moves and of epochs.
    """

    def __init__(self, nodes: float | None, rehearse: bool) -> None:
        self.million_nodes = nodes or (0.003 if rehearse else 12), 0.002 if rehearse else 2
        self.more = ["--rehearse"] if rehearse else []
        self.runs, self.rounds = (2, 2) if rehearse else (5, 3)
        self.epochs, self.strategies = [*MEASURED, "--batches", "20"], list[str]()
        if rehearse:
            few = ["--batch-size", "20", "--fanout", "3,2", "--batches", "3"]
            self.epochs = ["--buffer", "1MB", *few]
            self.strategies = ["--memory", "300MB", "--device-memory", "1MB", "--seconds", "1",
                               "--steps", "sage-256", *few]  # fmt: skip


class All:
    """All parts.

    Args:
        own: the script's options.
        parts: runs them.
    """

    def __init__(self, own: argparse.Namespace, parts: Parts) -> None:
        self._own, self._parts = own, parts
        self._sizes = Sizes(own.nodes, own.rehearse)
        before = parts.results.get("million_nodes")  # of an earlier call
        self._use(own.nodes or before or self._sizes.million_nodes[0])

    def run(self) -> None:
        """Run the parts that were asked for."""
        steps: dict[str, Callable[[], None]] = {
            "machine": self._machine, "tests": self._tests, "graph": self._smaller_graph,
            "moves": self._moves, "disk": self._disk, "epochs": self._epochs,
            "switches": self._switches, "switch-epochs": self._switch_epochs,
            "strategies": self._strategies,
        }  # fmt: skip
        if "graph" in self._own.only:
            self._parts.begin("graph", self._graph())
        for name, step in steps.items():
            if name not in self._own.only:
                continue
            if self._parts.left() < PAGE_S:
                self._parts.skip(name, "not run, because the time was up")
            else:
                step()

    def _use(self, million_nodes: float) -> None:
        self._nodes = self._parts.results["million_nodes"] = million_nodes

    def _ran(self, name: str) -> Result:
        found: Result = self._parts.results["parts"][name]
        return found

    # ---- before anything is timed

    def _machine(self) -> None:
        command = [sys.executable, "bench/_gpu_machine.py", str(self._own.folder)]
        self._parts.run("machine", [*command, *self._sizes.more], MACHINE_S)

    def _tests(self) -> None:
        file = self._own.out / "tests.xml"
        file.unlink(missing_ok=True)
        folder = "tests/fake_gpu" if self._own.rehearse else "tests/gpu"
        command = [sys.executable, "-m", "pytest", "-p", "asyncio", "-rs", "-v", "-v", folder]
        command += ["-o", f"faulthandler_timeout={TEST_S}"]  # shows where a test hangs
        self._parts.run("tests", [*command, f"--junitxml={file}"], self._until_timed())
        self._parts.add("tests", self._ran("tests") | {"result": counts(file)})
        file.unlink(missing_ok=True)  # log.txt has the output

    def _graph(self) -> list[str]:
        return [sys.executable, "bench/scale.py", "--generate-only", "--folder",
                str(self._own.folder), "--sizes", f"{self._nodes:g}"]  # fmt: skip

    def _smaller_graph(self) -> None:
        """Wait for the graph; make a smaller one if it took too long."""
        self._parts.end("graph", self._until_timed())
        if self._ran("graph")["error"]:
            self._use(self._sizes.million_nodes[1])
            self._parts.run("smaller graph", self._graph(), SMALL_GRAPH_S)

    def _until_timed(self) -> float:
        """Seconds until the graph must be there."""
        return max(self._parts.left() - self._own.seconds + TESTS_S, PAGE_S)

    # ---- what is timed

    def _moves(self) -> None:
        """Measure each way; after a crash, which a process does not survive, go on in another."""
        ways, name, limit = list(WAYS), "moves", MOVES_S
        while ways and self._parts.left() > PAGE_S:
            more = ["--parts", "h2d,gather", "--ways", ",".join(ways)]
            found = self._gpu(name, [*more, "--runs", str(self._sizes.runs)], limit, "moves")
            status = self._ran(name)["status"]
            if status == 0 or (not found and status is not None and status > 0):
                return  # all is well, or nothing can be measured
            ways = ways_behind(ways, found)
            name, limit = f"moves, {ways[0] if ways else ''}", MOVES_AGAIN_S

    def _disk(self) -> None:
        command = [sys.executable, "-m", "gnndrive.cli.main", "bench", "disk", "--json"]
        command += ["--ioengine", "threads" if why_not_uring() else "uring", str(self._store())]
        self._parts.run("disk", command, DISK_S)

    def _epochs(self) -> None:
        """Run the loaders with less memory than the features take, then with more."""
        for budget in BUDGETS:
            name = "epochs" if budget == BUDGETS[0] else f"epochs, {budget or 'no limit'}"
            later = SWITCHES_S + PAGE_S
            limit = max(self._parts.left() - later, min(EPOCHS_S, self._parts.left() - PAGE_S))
            more = ["--runs", str(self._sizes.rounds), "--seconds", f"{limit - PAGE_S:.0f}"]
            more += ["--host-budget", budget] if budget else []
            found = self._gpu(name, [*self._of_epochs(), *more], limit, "epochs")
            if not killed(found) or self._parts.left() < later + RETRY_S:
                return

    def _switches(self) -> None:
        """Measure moves with each switch; after a crash go on behind the one that crashed."""
        waiting, number = ["defaults", *SWITCHES], 0
        way = next((way for way in working_ways(self._parts.results) if way in KERNELS), KERNELS[0])
        while waiting and number < SWITCHES_TRIES and self._parts.left() > PAGE_S:
            name = f"switches, {number + 1}" if number else "switches"
            more = ["--parts", "h2d,gather", "--ways", way, "--runs", str(self._sizes.runs)]
            found = self._gpu(name, [*more, *of_switches(waiting)], SWITCHES_S, "switches")
            if not self._ran(name)["error"]:
                return
            waiting, number = sets_behind(waiting, found), number + 1

    def _switch_epochs(self) -> None:
        """Run gnndrive with each switch, on as many batches as before."""
        before = epochs_of_gnndrive(self._parts.results)
        mine = [result for result in before.get("epochs", []) if result["loader"] == "gnndrive"]
        if not mine:
            self._parts.skip("switch-epochs", "not run, because no epoch of gnndrive ended")
            return
        left = self._parts.left() - PAGE_S
        fit = int(left / (max(result["wall_s"] for result in mine) or 1))
        asked = ["defaults", *SWITCHES][:fit]
        if len(asked) < 2:
            self._parts.skip("switch-epochs", "not run, because the time was up")
            return
        more = ["--loaders", "gnndrive", "--runs", "1", *of_switches(asked)]
        more += ["--batches", str(mine[0]["batches"])]
        more += ["--host-budget", before["host_budget"]] if before["host_budget"] else []
        self._gpu("switch-epochs", [*self._of_epochs(), *more], left)

    def _strategies(self) -> None:
        more = [str(self._store()), "--prepare", *self._sizes.strategies]
        left = self._parts.left() - PAGE_S
        self._gpu("strategies", more, left, script="gpu_strategies.py")

    def _of_epochs(self) -> list[str]:
        ways = working_ways(self._parts.results)
        way = ["--way", ways[0]] if ways and ways[0] != WAYS[0] else []
        return ["--parts", "epoch", "--generate", f"{self._nodes:g}", "--folder",
                str(self._own.folder), *self._sizes.epochs, *way]  # fmt: skip

    def _gpu(
        self, name: str, more: Sequence[str], most_s: float, file: str = "", script: str = "gpu.py"
    ) -> Result:
        """Run bench/gpu.py, or another script with a --json."""
        json_name = f"{file or name}.json"
        path = self._own.out / json_name
        path.unlink(missing_ok=True)
        command = [sys.executable, f"bench/{script}", *more, *self._sizes.more, "--json", str(path)]
        return self._parts.run(name, command, most_s, json_name)

    def _store(self) -> Path:
        return scale.store_path(self._own.folder, round(self._nodes * 1e6))


def of_switches(switches: Sequence[str]) -> list[str]:
    """Options of bench/gpu.py for sets of switches."""
    return [word for one in switches for word in ("--switch", one)]


def counts(file: Path) -> Result:
    """How many tests passed, failed and were skipped, and the names and reasons of the latter."""
    try:
        suite = ElementTree.parse(file).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        return {}
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


# ---- the script


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    parser.add_argument("--folder", type=Path, default=ROOT / "graphs", help="of the graph")
    parser.add_argument("--nodes", type=float, help="million nodes; default: 12")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(NAMES))
    parser.add_argument("--rehearse", action="store_true", help="on a fake GPU, in small")
    own = parser.parse_args(given)
    own.out, own.folder = own.out.resolve(), own.folder.resolve()
    if unknown := set(own.only) - set(ALL_NAMES):
        parser.error(f"unknown part {', '.join(unknown)}: choose from {', '.join(ALL_NAMES)}")
    return own


def run(own: argparse.Namespace, make: Callable[..., Parts] = Parts) -> int:
    """Run everything; return the exit status."""
    for folder in (own.out, own.folder):
        folder.mkdir(parents=True, exist_ok=True)
    template = (ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")

    def write_page() -> None:
        try:
            text = page(parts.results, template)
        except Exception:  # the parts still to come matter more
            text = f"results.json has the results; this page failed:\n\n{traceback.format_exc()}"
        (own.out / "gpu-results.md").write_text(text, encoding="utf-8")

    head = earlier(own.out / "results.json", own.rehearse, own.only)
    asked = [name for name in ALL_NAMES if name in own.only or name in head.get("asked", [])]
    if "graph" in own.only:
        head.pop("million_nodes", None)
    head |= {"rehearsal": own.rehearse, "asked": asked}
    parts = make(own.out, own.seconds, head, changed=write_page)
    try:
        All(own, parts).run()
    finally:
        parts.stop()
    failed = [
        name for name, part in parts.results["parts"].items()
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
    # A shell's background commands ignore SIGINT, and so would the parts, which are ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own = parse(sys.argv[1:])
    own.seconds -= late(os.environ, time.time())
    sys.exit(run(own))


if __name__ == "__main__":
    _script.run(main)
