"""Which policy loads the fewest rows, with how much knowledge of later batches? And what it costs.

usage: python bench/policies.py STORE [--buffers 820MB,1.5GB,2GB] [--window 1,8,64,all]
           [--policies lru,belady,static] [--batches 100] [--skip 0] [--in-flight N]
           [--sweep 1|auto] [--fanout 10,10,10] [--batch-size 1000] [--scale 1] [--no-classes]
           [--gap BYTES] [--request-us US --byte-ns NS] [--json FILE]
       python bench/policies.py STORE --epochs gnndrive,ginex:phases=apart [--rounds 3]
           [--batches 100] [--buffer 820MB] [--memory-limit 3GiB] [--sweep 4] …

The first form samples --batches batches once and admits them, for each policy, window and buffer,
to a real slot table, which has no memory and reads nothing. The loader's read planner says what
requests and bytes the missing rows take, and the disk's two constants (of `gnndrive bench disk`,
or given) what these cost. All figures are of a batch; hits are of the rows that batches need.

window    what is known when a batch is admitted. 1: nothing of later batches, so that only the
          classes of rows count. 2 to 8: the batches behind it, so many, announced as the loader
          announces its queued samples. More, or "all": superbatches of so many, sampled before the
          first of them is admitted; codes of next uses come with the rows. Policies that do not
          look ahead run once, as window 1.
sweep     the most batches that are admitted and read together; auto: up to eight, as many as fit.
          A sweep does not reach into the next superbatch, or beyond the window.
in-flight batches that hold slots while a sweep is admitted, with its own, as in a loader whose
          last batch waits to be gathered; one more than the sweep has, unless it is given.
skip      batches at the start, where the buffer is cold, that the figures leave out.
scale     divides --buffers, for a graph that is so many times smaller than the one that is meant.
optimum   the fewest loads with one batch a sweep and all batches known, by a second implementation
          in numpy. "of it": loads, as a multiple.
pinned    as many rows as there are slots, those of the highest out-degree, which never leave;
          batches have memory beside them.

The second form runs whole strategies in turn, on the same batches, each in a process of its own
with cold caches, as root under the memory limit (see bench/epoch.py). An argument of the loader
follows a strategy's name and a colon.

A sparse graph, papers100M's shape at a hundredth (`powerlaw_1.11m.gnn`: bench/scale.py --sizes
1.11): --batch-size 10 --batches 1200 --scale 100 --buffers 4GB,8GB,16GB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from statistics import median
from typing import Any

import _script
import epoch
import numpy as np
import numpy.typing as npt
import torch
from _limits import Cgroup, limited
from _script import grouped, names, say

import gnndrive
from gnndrive.cli.commands.strategy_runs import parse_choice
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import format_size, parse_size, size_or_none
from gnndrive.common.plugins import find
from gnndrive.common.records import DiskCost, DiskIdentity, Int64Array, Landing
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES, Layout
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.pipeline.extract import SWEEP_MAX
from gnndrive.plan.costs import BYTE_S, REQUEST_S
from gnndrive.plan.replay import Counts, Run, replay
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.format import index_dtype
from gnndrive.store.row_classes import out_degrees, row_classes

OPTIMUM, PINNED = "optimum", "pinned"
ASSUMED = DiskCost(REQUEST_S, BYTE_S, 128, "assumed", "", DiskIdentity("", "", "", ""), ())
NOWHERE = np.zeros(1, np.uint8)  # where planned reads would land

Array = npt.NDArray[Any]

# ---- the rows of sampled batches, and how planned reads are counted


class Trace:
    """The ids of each batch, in order, of a table of so many rows."""

    def __init__(self, rows: int, batches: Iterable[Array]) -> None:
        self.rows, dtype = rows, index_dtype(rows)
        self._batches: list[Array] = [np.array(ids, dtype) for ids in batches]

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Int64Array:
        """The ids of a batch, int64 [n]."""
        return self.compact(index).astype(np.int64)

    def compact(self, index: int) -> Array:
        """The ids as they are kept, int32 or int64 [n]."""
        return self._batches[index]

    def size(self, first: int, last: int) -> int:
        """How many the batches [first, last) have together."""
        return sum(map(len, self._batches[first:last]))


@dataclass
class PlannedCounts(Counts):
    """Counts for each sweep what reading takes, too, as a layout plans it."""

    requests: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    layout: InitVar[Layout] = field(kw_only=True)

    def __post_init__(self, layout: Layout) -> None:
        self._layout = layout

    def read(self, rows: Int64Array) -> None:
        """See `Counts.read`."""
        if not len(rows):
            return
        super().read(rows)
        places = np.arange(len(rows), dtype=np.int32)
        landing = Landing(NOWHERE.ctypes.data, 1 << 30, direct=False, owner=NOWHERE)
        job = self._layout.locate(rows, places, landing)
        self.requests[-1] += job.requests
        self.nbytes[-1] += job.nbytes


def counts_of(trace: Trace, layout: Layout, missing: Iterable[Int64Array]) -> Counts:
    """The counts of a run that reads the rows `missing` of each batch, one batch a sweep."""
    counts = PlannedCounts(layout=layout)
    for index, rows in enumerate(missing):
        counts.begin(1, trace.size(index, index + 1))
        counts.read(rows)
    return counts


# ---- what is compared with: computed with numpy alone, without a slot table, codes and the C core


def belady(trace: Trace, slots: int, in_flight: int) -> Iterator[Int64Array]:
    """Yield the rows that each batch loads if the row that is needed last always leaves first.

    No choice of what leaves loads fewer rows, as long as the rows of `in_flight` batches cannot
    leave: those of the batch that is admitted and of the ones just before it. If these do not fit,
    the rows before it may leave too, so that the loads are a lower bound.
    """
    next_uses, resident = following(trace), np.zeros(trace.rows, np.bool_)
    next_use = np.full(trace.rows, len(trace), next_uses[0].dtype)  # of resident rows
    count = 0
    for index in range(len(trace)):
        ids = trace.compact(index)
        missing = np.unique(ids[~resident[ids]])
        surplus = count + len(missing) - slots
        if surplus > 0:
            movable = resident.copy()
            movable[ids] = False
            kept = movable.copy()
            for before in range(max(index - in_flight + 1, 0), index):
                kept[trace.compact(before)] = False
            rows = np.flatnonzero(kept)
            if len(rows) < surplus:
                rows = np.flatnonzero(movable)
            place = len(rows) - surplus
            leaving = rows[np.argpartition(next_use[rows], place)[place:]]
            resident[leaving] = False
            count -= len(leaving)
        resident[missing] = True
        count += len(missing)
        next_use[ids] = next_uses[index]
        yield missing.astype(np.int64)


def following(trace: Trace) -> list[Array]:
    """Of each batch the index of the batch that needs each row next; the number of batches: none
    does."""
    none = len(trace)
    nearest = np.full(trace.rows, none, np.min_scalar_type(none))
    found: list[Array] = []
    for index in reversed(range(none)):
        ids = trace.compact(index)
        found.append(nearest[ids])
        nearest[ids] = index
    return found[::-1]


def pinned(trace: Trace, scores: Array, slots: int) -> Iterator[Int64Array]:
    """Yield the rows that each batch loads if the `slots` rows of the highest scores are in memory
    from the start and no other row stays. (The rows of batches in flight lie beside them.)"""
    resident = np.zeros(trace.rows, np.bool_)
    resident[np.argsort(-scores, kind="stable")[:slots]] = True
    for index in range(len(trace)):
        ids = trace.compact(index)
        yield np.unique(ids[~resident[ids]]).astype(np.int64)


# ---- the simulation


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Sample the batches, then admit them in each way."""
    store = gnndrive.open(options.store)
    cost, gap = disk_of(options, store)
    trace = drawn(options, store)
    layout = TableLayout(store.table("x"), SWEEP_BLOCK_BYTES, gap)
    row_bytes, results = layout.file.row_bytes, []
    for text in options.buffers:
        nbytes = parse_size(text, "--buffers")
        slots = min(int(nbytes / options.scale) // row_bytes, trace.rows)
        for policy, window, counts in runs(options, store, trace, layout, slots):
            sums = counts.between(options.skip, len(trace))
            io_s = cost.seconds(sums["requests"], sums["nbytes"])
            results.append(sums | {
                "policy": policy, "window": window, "buffer": text, "buffer_bytes": nbytes,
                "slots": slots, "io_s": io_s, "hit_rate": 1 - sums["loads"] / sums["wanted"],
                "sweeps": counts.sweeps(),
            })  # fmt: skip
    layout.close()
    return {
        "rows": trace.rows, "batch_rows": trace.size(0, len(trace)) / len(trace), "gap": gap,
        "request_us": cost.request_s * 1e6, "byte_ns": cost.byte_s * 1e9, "results": results,
    }  # fmt: skip


def disk_of(options: argparse.Namespace, store: gnndrive.Store) -> tuple[DiskCost, int]:
    """What reads cost, and the widest gap in bytes that is read over."""
    measured = load_calibration(store)
    cost = measured or ASSUMED
    if options.request_us is not None:
        measured = cost = replace(cost, request_s=options.request_us / 1e6)
    if options.byte_ns is not None:
        measured = cost = replace(cost, byte_s=options.byte_ns / 1e9)
    if options.gap is not None:
        return cost, size_or_none(options.gap, "--gap")
    return cost, gap_bytes(measured, SWEEP_BLOCK_BYTES)


def drawn(options: argparse.Namespace, store: gnndrive.Store) -> Trace:
    meter = epoch.Meter("sampling")

    def rows() -> Iterator[Any]:
        for sample in epoch.samples(store, options, graph, meter, options.samplers):
            meter.batch(len(sample.node))
            yield sample.node

    with epoch.opened(store, options) as graph:
        return Trace(store.num_nodes, rows())


def runs(
    options: argparse.Namespace, store: gnndrive.Store, trace: Trace, layout: TableLayout,
    slots: int,
) -> Iterator[tuple[str, int | None, Counts]]:  # fmt: skip
    """Yield (policy, window, counts) of each run with so many slots, the comparisons last."""
    for name in options.policies:
        policy = find("policies", name)
        score = None if options.no_classes else policy.score
        classes = None if score is None else row_classes(store, None, score)
        windows = [min(each or len(trace), len(trace)) for each in options.window]
        for window in dict.fromkeys(windows) if policy.looks_ahead else [1]:
            started = time.perf_counter()
            run = Run(name, window, slots, options.sweep or SWEEP_MAX, options.in_flight)
            counts = PlannedCounts(layout=layout)
            yield name, window, replay(run, trace, store, classes, counts)
            say(f"{name}, window {window}, {slots:,} slots: {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    loads = belady(trace, slots, options.in_flight)
    yield OPTIMUM, None, counts_of(trace, layout, loads)
    say(f"{OPTIMUM}, {slots:,} slots: {time.perf_counter() - started:.1f} s")
    degrees = out_degrees(store)[None].astype(np.int64)
    yield PINNED, None, counts_of(trace, layout, pinned(trace, degrees, slots))


def table(found: dict[str, Any], options: argparse.Namespace) -> str:
    fanout = ",".join(map(str, options.fanout))
    sweep = options.sweep or f"up to {SWEEP_MAX}"
    lines = [
        f"{options.batches} batches of {options.batch_size}, fanout {fanout}, "
        f"{found['batch_rows']:,.0f} of {found['rows']:,} rows each; the first {options.skip} left "
        f"out; in flight: {options.in_flight}, batches a sweep: {sweep}",
        f"{found['request_us']:.2f} us a request, {found['byte_ns']:.3f} ns a byte, "
        f"gap {found['gap']:,}",
    ]
    for buffer, results in grouped(found["results"], "buffer").items():
        scaled = f" / {options.scale:g}" if options.scale != 1 else ""
        lines.append(f"\nbuffer {buffer}{scaled}, {results[0]['slots']:,} slots")
        lines.append(
            f"{'policy':<8} {'window':>6} {'hits %':>7} {'rows':>9} {'requests':>9} {'MB':>8} "
            f"{'I/O s':>7} {'of it':>6}"
        )
        (fewest,) = (result["loads"] for result in results if result["policy"] == OPTIMUM)
        lines += [line_of(result, fewest) for result in results]
    return "\n".join(lines)


def line_of(result: dict[str, Any], fewest: int) -> str:
    batches = result["batches"]
    line = f"{result['policy']:<8} {result['window'] or '':>6} {100 * result['hit_rate']:7.2f}"
    line += f" {result['loads'] / batches:9,.0f} {result['requests'] / batches:9,.0f}"
    line += f" {result['nbytes'] / batches / 1e6:8,.1f} {result['io_s'] / batches:7.4f}"
    return f"{line} {result['loads'] / max(fewest, 1):6.3f}"


# ---- epochs of whole strategies


def arguments_of(text: str) -> dict[str, Any]:
    """The loader's arguments that a text such as "ginex:phases=apart:samplers=2" names."""
    choice = parse_choice(text, "--epochs")
    return {"strategy": choice.strategy, **choice.arguments}


def loader_arguments(text: str, options: argparse.Namespace) -> dict[str, Any]:
    """All arguments of a strategy's loader, for an epoch of the first --batches batches."""
    store = gnndrive.open(options.store)
    seeds = [torch.from_numpy(each.node) for each in epoch.seeds_of(store, options)]
    return {"input_nodes": torch.cat(seeds), "shuffle": False} | arguments_of(text)


def check(options: argparse.Namespace) -> None:
    """Make a loader of each strategy, which starts nothing, so that a wrong argument ends this
    script before the first epoch."""
    for text in options.epochs:
        try:
            epoch.make_loader(options, **loader_arguments(text, options))
        except TypeError as error:
            sys.exit(f"--epochs {text}: {error}")


def work(options: argparse.Namespace) -> dict[str, Any]:
    return epoch.run_loader(options, **loader_arguments(options.worker, options))


def measure_epochs(options: argparse.Namespace) -> dict[str, Any]:
    """Run all strategies in turn, each in a process of its own with cold caches.

    Each loads the batches that the simulation replays, and its epoch ends with them, so that a
    strategy that samples ahead samples no more than these.
    """
    check(options)
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        turns = options.epochs * options.rounds
        results = [measured(text, options, group) for text in turns]
    return {"memory": memory, "results": results}


def measured(text: str, options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
    """Run one strategy, and add the seconds that its reads take at the disk's two constants."""
    result, cost = epoch.spawn_beside_disk(text, options, group, __file__)
    reads_s = cost.seconds(result["requests"], result["bytes_read"])
    return result | {
        "request_us": cost.request_s * 1e6, "byte_ns": cost.byte_s * 1e9, "reads_s": reads_s,
    }  # fmt: skip


def table_of_epochs(found: dict[str, Any], options: argparse.Namespace) -> str:
    """Format the epochs: one line for each strategy, of medians."""
    rounds = grouped(found["results"], "loader")
    width = max(map(len, ["strategy", *rounds]))
    lines = [
        f"{options.batches} batches a strategy, in turn, rounds: {options.rounds}; "
        f"{found['memory']}",
        f"{'strategy':<{width}} {'hits %':>7} {'requests':>9} {'MB':>8} {'reads s':>8} "
        f"{'peak':>8}  s a batch",
    ]
    for text, results in rounds.items():
        hits = 100 * median(result["hit_rate"] for result in results)
        line = f"{text:<{width}} {hits:7.1f} {a_batch(results, 'requests'):9,.0f}"
        line += f" {a_batch(results, 'bytes_read') / 1e6:8,.1f} {a_batch(results, 'reads_s'):8.3f}"
        line += f" {format_size(max(result['peak_bytes'] for result in results)):>8}"
        lines.append(f"{line}  {_script.spread([*map(epoch.s_a_batch, results)])}")
    return "\n".join(lines)


def a_batch(results: list[dict[str, Any]], name: str) -> float:
    return float(median(result[name] / result["batches"] for result in results))


# ---- both forms


def windows_of(text: str) -> list[int]:
    """Comma-separated windows; 0 stands for all."""
    words = text.split(",")
    if not all(word == "all" or (word.isdigit() and int(word)) for word in words):
        raise argparse.ArgumentTypeError(f'{text}: give numbers from 1 on, or "all"')
    return [0 if word == "all" else int(word) for word in words]


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    _script.add_batches(parser, batches=100)
    parser.add_argument("--buffers", type=names, default=["820MB", "1.5GB", "2GB"])
    parser.add_argument("--window", type=windows_of, default=[1, 8, 64, 0])
    parser.add_argument("--policies", type=names, default=["lru", "belady", "static"])
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--in-flight", type=int)
    parser.add_argument("--sweep", type=lambda text: None if text == "auto" else int(text),
                        help="default: 1, and auto with --epochs")  # fmt: skip
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--no-classes", action="store_true", help="all rows have class 0")
    parser.add_argument("--gap", help="bytes; default: by the disk's constants")
    parser.add_argument("--request-us", type=float)
    parser.add_argument("--byte-ns", type=float)
    parser.add_argument("--epochs", type=names, metavar="STRATEGIES")
    parser.add_argument("--rounds", type=int, default=3)
    epoch.add_loader(parser, buffer=None)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.given = given
    if "--sweep" not in {word.split("=")[0] for word in given} and not options.epochs:
        options.sweep = 1
    if not 0 <= options.skip < options.batches:
        parser.error("--skip must leave a batch")
    if options.in_flight is None:
        options.in_flight = (options.sweep or SWEEP_MAX) + 1
    if options.in_flight < 1 or (options.sweep is not None and options.sweep < 1):
        parser.error("--in-flight and --sweep begin at 1")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    if options.worker:
        result = work(options)
        json.dump(result | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    if options.epochs:
        found = measure_epochs(options)
        _script.show(table_of_epochs(found, options), found, options.json)
        return
    found = measure(options)
    _script.show(table(found, options), found, options.json)


if __name__ == "__main__":
    _script.run(main)
