"""Whole epochs from a partitioned store beside epochs that sample from the whole graph.

usage: python bench/partitioned.py STORE [--strategies gnndrive,hierbatching,marius]
           [--seeds-share 0.01] [--epochs 1] [--batches N] [--rounds 3] [--batch-size 1000]
           [--fanout 10,10,10] [--limit 3GiB] [--memory SIZE] [--partition-memory 1GB]
           [--parts N] [--megabatch N] [--hand ARGUMENT=VALUE,…] [--json FILE]

Strategies take turns, --rounds times, each in a process of its own with cold caches, which are also
dropped before each further epoch. The seeds are --seeds-share of the nodes, drawn once; --batches
ends each epoch early. Each batch's x is touched and dropped; there is no training. All loaders have
memory=--memory (the limit less 550 MB, for Python and torch); gnndrive has the arguments of --hand
instead, if given. hierbatching samples in the partitioned folder "default", marius in "random". A
folder that is missing is made first, and stays.

Samples inside a window are smaller, because edges from outside of it are left out: look at "nodes a
batch" and at "kept", the share of the in-edges that windows of this size are expected to keep,
before you compare seconds. "read" is all that the process has read from disk; "rows" are reads of
rows of x, and "mean" is their mean size. "waiting" is the share of the epoch in which there was no
window to draw batches in.

As root, every process runs under the limit, page cache included; otherwise without one, and the
output says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import _limits
import _script
import torch
from _limits import Cgroup, drop_caches, tried_limit
from _script import grouped, listed
from epoch import SEED, load_epoch

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import format_size, parse_size
from gnndrive.store.partitioned.format import PARTITIONS, partitioned_path

BESIDE = 550_000_000  # of the limit, for Python, torch and their libraries
WHOLE = "gnndrive"
FOLDERS = {"hierbatching": ("default", "auto", None), "marius": ("random", "random", 64)}
"""The name of each strategy's partitioned folder, how it is made, and its partitions."""
COUNTERS = (
    "rows", "edges", "requests", "bytes_read", "rows_loaded", "topology_bytes_read", "windows",
    "window_load_s", "window_wait_s",
)  # fmt: skip


# ---- in a process of its own


def read_bytes() -> int:
    """What this process has read from disk so far, in bytes."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def work_partition(options: argparse.Namespace) -> dict[str, Any]:
    name, method, parts = FOLDERS[options.strategy]
    phases, store = _script.Phases(), gnndrive.open(options.store)
    count = options.parts or (parts and min(parts, store.num_nodes))
    info = gnndrive.partition(
        store, count, method, memory=options.partition_memory, name=name, progress=phases
    )
    return phases.result() | {
        "method": info.settings.method, "parts": info.num_parts, "bytes": info.nbytes,
    }  # fmt: skip


def arguments(options: argparse.Namespace, store: gnndrive.Store) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(SEED)
    count = max(round(options.seeds_share * store.num_nodes), 1)
    given: dict[str, Any] = {
        "num_neighbors": options.fanout, "batch_size": options.batch_size, "shuffle": True,
        "seed": SEED, "memory": options.memory,
    }  # fmt: skip
    if count < store.num_nodes:
        given["input_nodes"] = torch.randperm(store.num_nodes, generator=drawn)[:count]
    if options.strategy != WHOLE:
        strategy, (folder, *_) = options.strategy, FOLDERS[options.strategy]
        given["strategy"] = replace(
            gnndrive.strategies.STRATEGIES[strategy], partitioned=folder,
            megabatch=options.megabatch,
        )  # fmt: skip
    elif options.hand:
        del given["memory"]
        given |= _script.arguments_of(options.hand)
    return given


def known_windows(loader: gnndrive.NeighborLoader) -> dict[str, Any]:
    settings = loader.state_dict()["settings"]
    strategy = loader._strategy
    if strategy.name == WHOLE:
        return {"kept": 1.0}
    info = PARTITIONS.read(partitioned_path(loader.data, FOLDERS[strategy.name][0]))
    kept = info.share_kept(settings["megabatch"], hot=settings["static"] > 0)
    return {
        "kept": kept, "inside": info.share_inside, "parts": info.num_parts,
        "megabatch": settings["megabatch"], "static": settings["static"],
    }  # fmt: skip


def work_load(options: argparse.Namespace) -> dict[str, Any]:
    began, store = time.perf_counter(), gnndrive.open(options.store)
    epochs = []
    with gnndrive.NeighborLoader(store, **placed(arguments(options, store))) as loader:
        plan = loader.plan().details()
        planned_s = time.perf_counter() - began
        for number in range(options.epochs):
            if number:
                drop_caches(Path(options.store), everything=True)
            read = read_bytes()
            epochs.append(load_epoch(loader, COUNTERS, options.batches))
            epochs[-1]["read"] = read_bytes() - read
        known = known_windows(loader) | {"batches_an_epoch": len(loader)}
    return {"epochs": epochs, "plan": plan, "plan_s": planned_s, **known}


# ---- all of them


def spawn(
    worker: str, strategy: str, options: argparse.Namespace, group: Cgroup | None
) -> dict[str, Any]:
    command = [__file__, *options.given, "--worker", worker, "--strategy", strategy]
    return _limits.spawn(strategy, command, group, [options.store])


def measure(options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
    store, made, results = gnndrive.open(options.store), {}, []
    for strategy in options.strategies:
        if strategy in FOLDERS and not partitioned_path(store, FOLDERS[strategy][0]).exists():
            made[strategy] = spawn("partition", strategy, options, group)
    for number in range(options.rounds):
        for strategy in options.strategies:
            result = spawn("load", strategy, options, group)
            results.append(result | {"strategy": strategy, "round": number})
    return {"partitioning": made, "results": results}


def row(strategy: str, runs: list[dict[str, Any]], whole: float | None) -> str:
    epochs = [epoch for run in runs for epoch in run["epochs"]]
    each = [epoch["s"] for epoch in epochs]

    def of(part: str, all_of: str) -> float:
        return float(median(epoch[part] / max(epoch[all_of], 1e-9) for epoch in epochs))

    text = f"{strategy:<12} {median(each):8.2f} s an epoch ({min(each):.2f} to {max(each):.2f})"
    if whole is not None:
        text += f", {whole / median(each):5.2f} × as fast as {WHOLE}"
    text += (
        f", {of('s', 'batches'):.4f} s a batch (CPU {of('cpu_s', 'batches'):.4f}), "
        f"{of('rows', 'batches'):,.0f} nodes a batch, kept {runs[0]['kept']:.3f}\n"
        f"{'':<12} {median(epoch['batches'] for epoch in epochs):,.0f} batches, read "
        f"{format_size(int(median(epoch['read'] for epoch in epochs)))}, rows "
        f"{format_size(int(median(epoch['bytes_read'] for epoch in epochs)))}, mean "
        f"{of('bytes_read', 'requests') / 1024:,.1f} KiB, waiting {of('window_wait_s', 's'):.1%}"
    )
    if "megabatch" in runs[0]:
        text += (
            f", {median(epoch['windows'] for epoch in epochs):,.0f} windows of "
            f"{runs[0]['megabatch']:,} of {runs[0]['parts']:,} partitions"
        )
    return text


def table(found: dict[str, Any]) -> str:
    lines = [found["memory"]]
    for strategy, made in found["partitioning"].items():
        lines.append(
            f"partitioning for {strategy}: {made['s']:.1f} s ({listed(made['phases'])}), "
            f"{made['parts']:,} partitions by {made['method']}, {format_size(made['bytes'])}, peak "
            f"{format_size(made['peak_bytes'])}"
        )
    runs = grouped(found["results"], "strategy")
    whole = [epoch["s"] for run in runs.get(WHOLE, ()) for epoch in run["epochs"]]
    base = median(whole) if whole else None
    lines += [row(strategy, each, base) for strategy, each in runs.items()]
    return "\n".join(lines)


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    _script.add_batches(parser)
    parser.add_argument("--strategies", type=_script.names, default=[WHOLE, *FOLDERS])
    parser.add_argument("--seeds-share", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", default="3GiB")
    parser.add_argument("--memory", help="default: the limit less 550 MB")
    parser.add_argument("--partition-memory", default="1GB")
    parser.add_argument("--parts", type=int, help="default: of hierbatching gnndrive's, else 64")
    parser.add_argument("--megabatch", type=int, help="default: what fits into the memory")
    parser.add_argument("--hand", help="arguments of gnndrive in place of memory=")
    parser.add_argument("--worker", choices=["partition", "load"], help=argparse.SUPPRESS)
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.given = given
    _script.check_names(parser, "strategy", options.strategies, (WHOLE, *FOLDERS))
    options.memory = options.memory or parse_size(options.limit, "--limit") - BESIDE
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    if options.worker:
        work = work_partition if options.worker == "partition" else work_load
        result = work(options)
        json.dump(result | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    with tried_limit(parse_size(options.limit, "--limit")) as (group, memory):
        found = measure(options, group) | {"memory": memory}
    _script.show(table(found), found, options.json)


if __name__ == "__main__":
    _script.run(main)
