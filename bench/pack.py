"""Packing, and epochs from a pack beside epochs whose batches are drawn, in one run.

usage: python bench/pack.py STORE [--batches 100] [--epochs 3] [--rounds 3] [--memory-limit 3GiB]
           [--loaders pyg+,gnndrive,diskgnn,rolling] [--segments 8] [--orders sets]
           [--memory 2600MB] [--packing-memory SIZE] [--out FOLDER] [--json FILE]
           [--hand buffer=820MB,topology=resident,samplers=1]

The first --batches batches of the train split, or of random nodes without one, are packed once for
each order and segment size, if diskgnn is to run. Then all loaders run in turn, --rounds times,
each in a process of its own with cold caches. An epoch whose files were not read before is cold:
the first of each process; the others are warm. Each batch's x is touched and dropped; there is no
training. gnndrive runs with the arguments of --hand, which were found by hand for P10M in 3 GiB;
diskgnn with memory=--memory, for which it was packed, and rolling with the same. pyg+ (adjacency
and features memory-mapped, the fastest numbers of threads) loads 12 batches only. "first" is the
time of the first batch.

The floor of an epoch is the larger of its reads at the disk's two constants, measured just before
and just after the process, and the CPU seconds of all threads divided by the cores. "read/cold" is
the bytes read in warm epochs for each byte of rows that were not in memory.

As root, every process runs under the memory limit, page cache included; otherwise without one, and
the output says so. The packs are removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import _limits
import _script
import torch
from _limits import Cgroup, limited
from _script import Phases, listed, names
from epoch import SEED, load_epoch

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import format_size, parse_size
from gnndrive.common.records import DiskCost

BESIDE = 550_000_000  # of the limit, for Python, torch and their libraries
LOADERS = DRAWS, REPLAYS, ROLLS, MAPPED = "gnndrive", "diskgnn", "rolling", "pyg+"
MAPPED_BATCHES = 12
COUNTERS = ("requests", "bytes_read", "bytes_wanted", "bytes_written", "rows_loaded")


# ---- in a process of its own


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    store, count = gnndrive.open(options.store), options.batches * options.batch_size
    if "train" in store.split_names:
        seeds = store.split("train")[:count]
    else:
        drawn = torch.Generator().manual_seed(SEED)
        seeds = torch.randperm(store.num_nodes, generator=drawn)[:count]
    return {
        "num_neighbors": options.fanout, "input_nodes": seeds, "batch_size": options.batch_size,
        "shuffle": True, "seed": SEED,
    }  # fmt: skip


def work_pack(options: argparse.Namespace) -> dict[str, Any]:
    """Pack, and return the seconds of each phase and the bytes."""
    phases = Phases()
    info = gnndrive.pack(
        options.store, **arguments(options), memory=options.memory, order=options.order,
        segment=options.segment, out=options.pack, packing_memory=options.packing_memory,
        progress=phases,
    )  # fmt: skip
    return phases.result() | {
        "segment": info.segment, "predicted_bytes": info.predicted_bytes,
        "actual_bytes": info.actual_bytes,
    }  # fmt: skip


def work_load(options: argparse.Namespace) -> dict[str, Any]:
    given = _script.arguments_of(options.hand)
    if options.worker == REPLAYS:
        replays = gnndrive.strategies.DiskGNN(packed=options.pack)
        given = {"memory": options.memory, "strategy": replays}
    elif options.worker == ROLLS:
        given = {"memory": options.memory, "strategy": ROLLS}
    elif options.worker == MAPPED:
        given = {"strategy": MAPPED}
    most = MAPPED_BATCHES if options.worker == MAPPED else None
    store = gnndrive.open(options.store)
    with gnndrive.NeighborLoader(store, **arguments(options), **placed(given)) as loader:
        epochs = [load_epoch(loader, COUNTERS, most) for _ in range(options.epochs)]
        plan = loader.plan().details()
    return {"epochs": epochs, "plan": plan, "row_bytes": store.table("x").row_bytes}


# ---- all of them


def spawn(worker: str, options: argparse.Namespace, group: Cgroup | None, **more: Any) -> Any:
    extra = [str(part) for name, value in more.items() if value is not None
             for part in (f"--{name}", value)]  # fmt: skip
    command = [__file__, *options.given, "--worker", worker, *extra]
    folders = [folder for folder in (options.store, more.get("pack")) if folder is not None]
    return _limits.spawn(worker, command, group, folders)


def add_floors(result: dict[str, Any], cost: DiskCost) -> None:
    """Add to each epoch what no loader with these reads and this CPU time can beat, in seconds."""
    result["request_us"], result["byte_ns"] = cost.request_s * 1e6, cost.byte_s * 1e9
    for epoch in result["epochs"]:
        reads = cost.seconds(epoch["requests"], epoch["bytes_read"])
        cpu = epoch["cpu_s"] / (os.cpu_count() or 1)
        epoch["floor_s"], epoch["limit"] = max((reads, "reads"), (cpu, "CPU"))


def measure(options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
    packs, results = [], []
    store, folder = gnndrive.open(options.store), Path(options.out)
    folder.mkdir(exist_ok=True)
    for order, segment in product(options.orders, options.segments * (REPLAYS in options.loaders)):
        path = folder / f"{order}-{segment}"
        for old in (path, *folder.glob(f".{path.name}.*.packing")):
            shutil.rmtree(old, ignore_errors=True)
        made = spawn("pack", options, group, order=order, segment=segment, pack=path)
        packs.append(made | {"order": order, "segment": segment, "path": str(path)})
    for number in range(options.rounds):
        for name in options.loaders:
            for pack in packs if name == REPLAYS else [None]:
                run = partial(spawn, name, options, group, pack=pack and pack["path"])
                result, cost = _limits.beside_disk(store, run)
                add_floors(result, cost)
                label = f"{name} {pack['order']} {pack['segment']}" if pack else name
                results.append(result | {"loader": label, "round": number})
    for pack in packs:
        shutil.rmtree(pack["path"])
    with contextlib.suppress(OSError):  # packs of the user's are there
        folder.rmdir()
    return {"packs": packs, "results": results}


def epochs_of(found: dict[str, Any], label: str, warm: bool) -> list[dict[str, Any]]:
    """The warm epochs of a loader in all rounds, or the cold ones."""
    runs = [each for each in found["results"] if each["loader"] == label]
    return [epoch for run in runs for epoch in (run["epochs"][1:] if warm else run["epochs"][:1])]


def seconds_of(epochs: list[dict[str, Any]]) -> float:
    return median(epoch["s"] / epoch["batches"] for epoch in epochs)


def table(found: dict[str, Any]) -> str:
    lines = [found["memory"]]
    for pack in found["packs"]:
        predicted = pack["predicted_bytes"] / pack["actual_bytes"] - 1
        lines.append(
            f"pack {pack['order']} {pack['segment']}: {pack['s']:.1f} s "
            f"({listed(pack['phases'])}), "
            f"{format_size(pack['actual_bytes'])}, predicted {predicted:+.1%}, "
            f"peak {format_size(pack.get('peak_bytes', 0))}"
        )
    labels = list(dict.fromkeys(each["loader"] for each in found["results"]))
    for label in labels:
        for warm in (False, True):
            epochs = epochs_of(found, label, warm)
            if not epochs:
                continue
            each = [epoch["s"] / epoch["batches"] for epoch in epochs]
            floor = median(epoch["s"] / epoch["floor_s"] for epoch in epochs)
            row_bytes = found["results"][0]["row_bytes"]
            cold = sum(epoch["rows_loaded"] for epoch in epochs) * row_bytes
            lines.append(
                f"{label}, {'warm' if warm else 'cold'}: {median(each):.3f} s a batch "
                f"({min(each):.3f} to {max(each):.3f}), {floor:.2f} of its floor "
                f"({epochs[0]['limit']}), read/cold "
                f"{sum(epoch['bytes_read'] for epoch in epochs) / max(cold, 1):.2f}, "
                f"CPU {median(epoch['cpu_s'] / epoch['batches'] for epoch in epochs):.3f} s, first "
                f"{median(epoch['first_s'] for epoch in epochs):.1f} s"
            )
    return "\n".join(lines + comparisons(found, labels))


def comparisons(found: dict[str, Any], labels: list[str]) -> list[str]:
    """How much faster a warm epoch from a pack is, and what packing costs in drawn epochs; and what
    rolling takes of the time of drawn ones, and of their first batch."""
    lines = []
    for warm in (False, True):
        own, drawn = epochs_of(found, ROLLS, warm), epochs_of(found, DRAWS, warm)
        mapped = epochs_of(found, MAPPED, warm)
        if own and mapped:
            times = seconds_of(mapped) / seconds_of(own)
            lines.append(
                f"{ROLLS}, {'warm' if warm else 'cold'}: {times:.1f} times {MAPPED}'s speed"
            )
        if own and drawn:
            share = seconds_of(own) / seconds_of(drawn)
            first = [median(each["first_s"] for each in epochs) for epochs in (own, drawn)]
            lines.append(
                f"{ROLLS}, {'warm' if warm else 'cold'}: {share:.2f} of {DRAWS}'s time, the first "
                f"batch {first[0] / first[1]:.2f}"
            )
    for label in labels:
        own, drawn = epochs_of(found, label, True), epochs_of(found, DRAWS, True)
        if not label.startswith(REPLAYS) or not own or not drawn:
            continue
        pack = next(p for p in found["packs"] if label == f"{REPLAYS} {p['order']} {p['segment']}")
        epoch = median(each["s"] for each in drawn)
        lines.append(
            f"{label}: a warm epoch is {seconds_of(drawn) / seconds_of(own):.1f} times as fast as "
            f"{DRAWS}'s, and packing takes {pack['s'] / epoch:.2f} of one of those"
        )
    return lines


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    _script.add_batches(parser, batches=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-limit", default="3GiB")
    parser.add_argument("--memory", help="of a loader that replays; default: the limit less 550 MB")
    parser.add_argument("--packing-memory")
    parser.add_argument("--loaders", type=names, default=[DRAWS, REPLAYS])
    parser.add_argument("--segments", type=names, default=["8"])
    parser.add_argument("--orders", type=names, default=["sets"])
    parser.add_argument("--hand", default="buffer=820MB,topology=resident,samplers=1")
    parser.add_argument("--out", help="folder for the packs; default: STORE.packs")
    parser.add_argument("--worker", choices=["pack", *LOADERS], help=argparse.SUPPRESS)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    parser.add_argument("--segment", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pack", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.given = given
    _script.check_names(parser, "loader", options.loaders, LOADERS)
    limit = parse_size(options.memory_limit, "--memory-limit")
    options.memory = options.memory or limit - BESIDE
    options.out = options.out or f"{Path(options.store)}.packs"
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    if options.worker:
        result = work_pack(options) if options.worker == "pack" else work_load(options)
        json.dump(result | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        found = measure(options, group) | {"memory": memory}
    _script.show(table(found), found, options.json)


if __name__ == "__main__":
    _script.run(main)
