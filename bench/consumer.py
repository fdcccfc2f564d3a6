"""Does the ring stay full beside a training loop that burns pure Python and holds the GIL?

usage: python bench/consumer.py STORE [--batches 20] [--runs 3] [--modes idle,wait,thread,loop]
           [--share 1.0] [--memory-limit 3GiB] [--buffer 1GB] [--json FILE]

idle    the consumer takes a batch and drops it
thread  the same, while a second thread runs pure Python all the time and never releases the GIL by
        itself: all Python of the loader, the output queue too, waits for it, up to a switch
        interval (5 ms) each time. The loader alone sets the pace, so this is the harder test.
loop    the training loop itself burns pure Python after each batch, `--share` times as long as a
        batch took in the idle run of the same round: the loader must have the next one ready. With
        a share above 1 the consumer sets the pace, and the ratio does not measure the loader.
wait    the training loop sleeps for as long, which shows what its pace alone costs. Consumer and
        loader have the same pace, and one batch waits between them, so a delay of either costs both

Each mode runs in a separate process, in turn, with cold caches, on the same batches. Other options
of bench/epoch.py are accepted too. Time counts from the start of the epoch, after the loader's
set-up, to the arrival of the last batch. Figures are medians of the runs; ratios (to idle of the
same round) have their range.

Below that the CPU seconds of threads over the elapsed seconds, so 100 % is one core:
loop thread  the pipeline's event loop, where extraction runs: admission, planning, commits
its Python   the same without the time inside the C core's functions, each call of which is timed.
             numpy's copies and the loop's system calls are still included, so this is an upper
             bound of Python's share of extraction
ring         the C thread that keeps the ring full and copies rows (or the threads engine's)
workers      sampling, gathering, collation: C and numpy, little Python
consumer     the thread that takes batches, including what it burns
burner       the second thread of `thread`
rest         the process's CPU time without all these: torch's threads, threads that ended
steps        speed of the burnt Python, relative to its speed without the loader
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _script
import epoch
from _limits import Cgroup, limited
from epoch import Meter, make_loader

import gnndrive
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import parse_size

MODES = ("idle", "wait", "thread", "loop")
STEPS_AT_ONCE = 1000  # of pure Python between two reads of the clock, some 50 us
ALONE_S = 0.3  # how long the burner is timed alone
TICKS_A_SECOND = 100  # of the times in /proc; fixed by Linux for user space
LOOP, BURNER = "gnndrive", "burner"  # names of Python threads, of LoopThread and of Burner
ROLES = {  # prefixes of the names of the other threads
    "gnndrive-worker-": "workers",  # gnndrive/pipeline/workers.py
    "gd-ring": "ring",  # native/ring.c; one more reads the adjacency if topology is "direct"
    "gd-pread": "ring",  # gnndrive/disk/engines/threads.py
}
SHOWN = ("loop thread", "its Python", "ring", "workers", "consumer", "burner", "rest")


# ---- burning ----


class Burner:
    """Pure Python that never waits and never releases the GIL by itself."""

    def __init__(self) -> None:
        self.steps, self.seconds, self._stopped = 0, 0.0, False
        self._value = 1

    def burn(self, seconds: float) -> None:
        """Run for `seconds`, in this thread."""
        started = now = time.perf_counter()
        while now - started < seconds and not self._stopped:
            value = self._value
            for _ in range(STEPS_AT_ONCE):
                value = value * 31 % 65521
            self._value = value
            self.steps += STEPS_AT_ONCE
            now = time.perf_counter()
        self.seconds += now - started

    def start(self) -> threading.Thread:
        """Run in a thread until `stop`."""
        thread = threading.Thread(target=self.burn, args=(1e9,), name=BURNER, daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """End the thread, soon."""
        self._stopped = True

    @property
    def speed(self) -> float:
        """Steps per second; 0 if there were none."""
        return self.steps / self.seconds if self.seconds else 0.0


# ---- who uses the CPU ----


def cpu_by_role(core: TimedCore) -> Counter[str]:
    """CPU seconds so far of this process's live threads, by role.

    Python's threads are found by their native ids, because before 3.14 Python does not tell the
    system their names. C names the ring's thread.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    main, seconds = threading.main_thread().native_id, Counter[str]()
    for task in Path("/proc/self/task").iterdir():
        try:
            stat = (task / "stat").read_text()
        except OSError:  # the thread has just ended
            continue
        head, _, fields = stat.rpartition(")")  # a name may contain a bracket
        tid = int(task.name)
        name = names.get(tid, head.partition("(")[2])
        user, system = map(int, fields.split()[11:13])
        role = "consumer" if tid == main else role_of(name)
        seconds[role] += (user + system) / TICKS_A_SECOND
    seconds["rest"] += time.process_time() - sum(seconds.values())
    seconds["its Python"] = seconds["loop thread"] - core.seconds
    return seconds


class TimedCore:
    """`lib` or `holding_gil` of the package, with a sum of the CPU time of the loop thread's calls,
    to which that of `other` is added."""

    def __init__(self, core: Any, other: TimedCore | None = None) -> None:
        self._core, self._other, self._own_s = core, other, 0.0

    @property
    def seconds(self) -> float:
        """CPU seconds of the calls so far."""
        return self._own_s + (self._other.seconds if self._other else 0.0)

    def __getattr__(self, name: str) -> Any:
        """A function or constant of the core; looked up at its first use."""
        found = getattr(self._core, name)
        self.__dict__[name] = found = self._timed(found) if callable(found) else found
        return found

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if threading.current_thread().name != LOOP:
                return function(*arguments)
            before = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self._own_s += time.thread_time() - before

        return call

    @classmethod
    def install(cls) -> TimedCore:
        """Make all modules of the package call the core through a `TimedCore`."""
        lib, holding_gil = gnndrive.common.ffi.lib, gnndrive.common.ffi.holding_gil
        timed_holding_gil = cls(holding_gil)
        timed = cls(lib, timed_holding_gil)
        for name, module in list(sys.modules.items()):
            if name.startswith("gnndrive."):
                if getattr(module, "lib", None) is lib:
                    module.lib = timed
                if getattr(module, "holding_gil", None) is holding_gil:
                    module.holding_gil = timed_holding_gil
        return timed


def role_of(name: str) -> str:
    exact = {LOOP: "loop thread", BURNER: "burner"}
    if name in exact:
        return exact[name]
    return next((role for prefix, role in ROLES.items() if name.startswith(prefix)), "rest")


def spent(before: Counter[str], after: Counter[str], elapsed_s: float) -> dict[str, float]:
    """Shares of a core that each role used between `before` and `after`. Ends the script if thread
    names have changed: a share of 0 would be wrong."""
    for role in ("loop thread", "ring", "workers"):
        if role not in after:
            sys.exit(f"no thread of this process is the loader's {role}: see ROLES in {__file__}")
    return {role: (after[role] - before[role]) / elapsed_s for role in SHOWN}


# ---- one run, in a separate process ----


def run(options: argparse.Namespace, mode: str, compute_s: float) -> dict[str, Any]:
    core, alone, burner, thread = TimedCore.install(), Burner(), Burner(), None
    if mode in ("thread", "loop"):
        alone.burn(ALONE_S)
    meter = Meter(mode)
    with make_loader(options) as loader:
        batches = iter(loader)  # makes rings and threads, opens the adjacency, begins the epoch
        meter.ready()
        if mode == "thread":
            thread = burner.start()
        before, started = cpu_by_role(core), time.perf_counter()
        first_s = elapsed_s = 0.0
        for batch in batches:
            elapsed_s = time.perf_counter() - started
            first_s = first_s or elapsed_s
            meter.batch(len(batch.n_id))
            if meter.batches == options.batches:
                break
            if mode == "loop":
                burner.burn(compute_s)
            elif mode == "wait":
                time.sleep(compute_s)
            del batch
        threads = spent(before, cpu_by_role(core), elapsed_s)
        if thread is not None:
            burner.stop()
            thread.join()
        stats = loader.stats()
    following = max(meter.batches - 1, 1)
    return meter.result(
        elapsed_s=elapsed_s, rows_per_s=meter.rows / elapsed_s, threads=threads,
        following_s=(elapsed_s - first_s) / following, compute_s=compute_s,
        burn_speed=burner.speed / alone.speed if burner.steps else None,
        engine=stats["engine"], topology=stats["topology"], requests=stats["requests"],
        bytes_read=stats["bytes_read"], peak_bytes=peak_memory_bytes(),
    )  # fmt: skip


# ---- all runs ----


def measure(
    own: argparse.Namespace, options: argparse.Namespace, group: Cgroup | None
) -> list[dict[str, Any]]:
    """Run the modes in turn, round after round; idle first, because the others need its time."""
    given, results = list(options.given), []
    for number in range(own.runs):
        compute_s, idle = 0.0, None
        for mode in own.modes:
            options.given = [*given, "--compute", str(compute_s)]
            result = epoch.spawn(mode, options, group, __file__)
            if idle is None:
                idle, compute_s = result, own.share * result["following_s"]
            beside_idle = result["rows_per_s"] / idle["rows_per_s"]
            results.append(result | {"run": number, "beside_idle": beside_idle})
    return results


def table(found: dict[str, Any], own: argparse.Namespace, options: argparse.Namespace) -> str:
    fanout = ",".join(map(str, options.fanout))
    by_mode = _script.grouped(found["results"], "loader")
    lines = [
        f"{options.batches} batches of {options.batch_size}, fanout {fanout}, {own.runs} runs; "
        f"engine {found['results'][0]['engine']}; {found['memory']}",
        f"{'consumer':<9} {'k rows/s':>9} {'s/batch':>8} {'beside idle':>20} {'steps':>6}",
    ]
    for mode, runs in by_mode.items():
        rows, each = middle(runs, "rows_per_s"), middle(runs, "elapsed_s") / runs[0]["batches"]
        line = f"{mode:<9} {rows / 1e3:9.0f} {each:8.3f}"
        if mode != "idle":
            ratios = [run["beside_idle"] for run in runs]
            spread = f"{min(ratios):.3f}–{max(ratios):.3f}"
            line += f" {statistics.median(ratios):.3f} ({spread}) {middle(runs, 'burn_speed'):6.2f}"
        lines.append(line)
    lines.append("CPU, 100 % is one core:")
    lines.append(f"{'consumer':<9} " + " ".join(f"{role:>12}" for role in SHOWN))
    for mode, runs in by_mode.items():
        shares = (statistics.median(run["threads"][role] for run in runs) for role in SHOWN)
        lines.append(f"{mode:<9} " + " ".join(f"{share:12.1%}" for share in shares))
    return "\n".join(lines)


def middle(runs: list[dict[str, Any]], name: str) -> float:
    """The median of a figure over runs; a missing one counts as 0."""
    return statistics.median(run[name] or 0.0 for run in runs)


def parse(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse this script's options; return them and the options left for bench/epoch.py."""
    parser = _script.parser(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--modes", type=_script.names, default=list(MODES))
    parser.add_argument(
        "--share", type=float, default=1.0, help="of a batch's time, for `loop` and `wait`"
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--compute", type=float, default=0.0, help=argparse.SUPPRESS)
    own, left = parser.parse_known_args(given)
    _script.check_names(parser, "mode", own.modes, MODES)
    if own.runs < 1 or own.share < 0:
        parser.error("--runs must be at least 1, and --share at least 0")
    own.modes = ["idle", *(mode for mode in own.modes if mode != "idle")]
    return own, left


def main() -> None:
    own, left = parse(sys.argv[1:])
    options = epoch.parse(left)
    if own.worker:
        json.dump(run(options, own.worker, own.compute), sys.stdout)
        return
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        found = {"memory": memory, "share": own.share, "results": measure(own, options, group)}
    _script.show(table(found, own, options), found, own.json)


if __name__ == "__main__":
    _script.run(main)
