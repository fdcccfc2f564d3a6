"""Which policy loads the fewest rows, with how much knowledge of later batches? And what it costs.

usage: python bench/policies.py STORE [--buffers 820MB,1.5GB,2GB] [--window 1,8,64,all]
           [--policies lru,belady,static] [--batches 100] [--skip 0] [--in-flight N]
           [--sweep 1|auto] [--fanout 10,10,10] [--batch-size 1000] [--scale 1] [--no-classes]
           [--gap BYTES] [--request-us US --byte-ns NS] [--json FILE] [--png FILE]
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
1.11 --generate-only): --batch-size 10 --batches 1200 --scale 100 --buffers 4GB,8GB,16GB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import _loaders
import _policies_epochs as epochs
import _policies_optimum as optimum
import _script
from _policies_trace import PlannedCounts, Trace, counts_of, out_degrees

import gnndrive
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import parse_size, size_or_none
from gnndrive.common.plugins import find
from gnndrive.common.records import DiskCost, DiskIdentity
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.pipeline.extract import SWEEP_MAX
from gnndrive.plan.costs import BYTE_S, REQUEST_S
from gnndrive.plan.replay import Counts, Run, replay
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.row_classes import row_classes

OPTIMUM, PINNED = "optimum", "pinned"
ASSUMED = DiskCost(REQUEST_S, BYTE_S, 128, "assumed", "", DiskIdentity("", "", "", ""), ())


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
    """Sample the batches that the loader would draw."""
    meter = _loaders.Meter("sampling")

    def rows() -> Iterator[Any]:
        for sample in _loaders.samples(store, options, graph, meter, options.samplers):
            meter.batch(len(sample.node))
            yield sample.node

    with _loaders.opened(store, options) as graph:
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
            note(f"{name}, window {window}, {slots:,} slots", started)
    started = time.perf_counter()
    loads = optimum.belady(trace, slots, options.in_flight)
    yield OPTIMUM, None, counts_of(trace, layout, loads)
    note(f"{OPTIMUM}, {slots:,} slots", started)
    yield PINNED, None, counts_of(trace, layout, optimum.pinned(trace, degrees(store), slots))


def note(what: str, started: float) -> None:
    """Print progress to standard error."""
    print(f"{what}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


@cache
def degrees(store: gnndrive.Store) -> Any:
    """The out-degree of each node."""
    return out_degrees(store)


def table(found: dict[str, Any], options: argparse.Namespace) -> str:
    """Format the figures of a batch, one line a run."""
    fanout = ",".join(map(str, options.fanout))
    sweep = options.sweep or f"up to {SWEEP_MAX}"
    lines = [
        f"{options.batches} batches of {options.batch_size}, fanout {fanout}, "
        f"{found['batch_rows']:,.0f} of {found['rows']:,} rows each; the first {options.skip} left "
        f"out; in flight: {options.in_flight}, batches a sweep: {sweep}",
        f"{found['request_us']:.2f} us a request, {found['byte_ns']:.3f} ns a byte, "
        f"gap {found['gap']:,}",
    ]
    for buffer in dict.fromkeys(result["buffer"] for result in found["results"]):
        results = [result for result in found["results"] if result["buffer"] == buffer]
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
    """Format the figures of one run."""
    batches = result["batches"]
    line = f"{result['policy']:<8} {result['window'] or '':>6} {100 * result['hit_rate']:7.2f}"
    line += f" {result['loads'] / batches:9,.0f} {result['requests'] / batches:9,.0f}"
    line += f" {result['nbytes'] / batches / 1e6:8,.1f} {result['io_s'] / batches:7.4f}"
    return f"{line} {result['loads'] / max(fewest, 1):6.3f}"


def draw(found: dict[str, Any], path: str) -> None:
    """Draw hits by buffer, a line for each policy and window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("--png needs matplotlib: pip install matplotlib")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for result in found["results"]:
        lines.setdefault((result["policy"], result["window"]), []).append(result)
    names = list(dict.fromkeys(name for name, _ in lines))
    windows = list(dict.fromkeys(window for _, window in lines if window))
    for (name, window), results in lines.items():
        style: dict[str, Any] = {"color": f"C{names.index(name)}", "marker": "o"}
        if window is None:
            style = {"color": "black" if name == OPTIMUM else "gray", "linestyle": ":"}
        elif len(windows) > 1:
            style["marker"] = "osD^v<>"[windows.index(window) % 7]
        ordered = sorted(results, key=lambda result: result["buffer_bytes"])
        axes.plot(
            [result["buffer_bytes"] / 1e9 for result in ordered],
            [100 * result["hit_rate"] for result in ordered],
            label=name if window is None else f"{name}, {window}", **style,
        )  # fmt: skip
    axes.set_xlabel("buffer, GB")
    axes.set_ylabel("hits, % of the rows that batches need")
    axes.grid(alpha=0.3)
    figure.legend(title="policy, window", loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=150)


# ---- both forms


def names_of(text: str) -> list[str]:
    """Comma-separated names."""
    return text.split(",")


def windows_of(text: str) -> list[int]:
    """Comma-separated windows; 0 stands for all."""
    words = text.split(",")
    if not all(word == "all" or (word.isdigit() and int(word)) for word in words):
        raise argparse.ArgumentTypeError(f'{text}: give numbers from 1 on, or "all"')
    return [0 if word == "all" else int(word) for word in words]


def parse(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s STORE [options]",
    )  # fmt: skip
    parser.add_argument("store")
    parser.add_argument("--buffers", type=names_of, default=["820MB", "1.5GB", "2GB"])
    parser.add_argument("--window", type=windows_of, default=[1, 8, 64, 0])
    parser.add_argument("--policies", type=names_of, default=["lru", "belady", "static"])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--in-flight", type=int)
    parser.add_argument("--sweep", type=lambda text: None if text == "auto" else int(text),
                        help="default: 1, and auto with --epochs")  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", type=lambda text: [int(n) for n in text.split(",")],
                        default=[10, 10, 10])  # fmt: skip
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--no-classes", action="store_true", help="all rows have class 0")
    parser.add_argument("--gap", help="bytes; default: by the disk's constants")
    parser.add_argument("--request-us", type=float)
    parser.add_argument("--byte-ns", type=float)
    parser.add_argument("--epochs", type=names_of, metavar="STRATEGIES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-limit", default="3GiB")
    parser.add_argument("--buffer", help="of --epochs")
    parser.add_argument("--topology", default="resident")
    parser.add_argument("--samplers", type=int, default=2)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.set_defaults(neighbour_cache=None, io_depth=128, extracting_queue=None,
                        training_queue=None)  # fmt: skip
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
        result = epochs.work(options)
        json.dump(result | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    if options.epochs:
        found = epochs.measure(options, __file__)
        _script.show(epochs.table(found, options), found, options.json)
        return
    found = measure(options)
    _script.show(table(found, options), found, options.json)
    if options.png:
        draw(found, options.png)


if __name__ == "__main__":
    _script.run(main)
