"""How near is inference over all nodes to what its reads cost, and how far is a memory-mapped loop?

usage: python bench/infer.py STORE [--layers 3] [--memory 2.7GB] [--memory-limit 3GiB]
           [--mapped-batches 4] [--mapped-warm-up 6] [--work DIR] [--json FILE] [--device cuda]

The layers compute nothing: each returns the rows that it is given. So the script measures reading,
planning, gathering and writing. Both sides run in a process of their own with cold caches, in the
same memory limit.

gnndrive   `gnndrive.infer` of all layers; hidden states in DIR (STORE.hidden, if not given):
           two times the features' size, removed at the end. The disk is measured just before and
           after. `reads` is what its reads of rows and of the adjacency take at the disk's two
           constants, seconds per request and per byte; writes, a row for each node and layer, are
           not in it
mapped     the same batches: the in-neighbours of consecutive targets from a mapped array,
           numbered as PyG does, their rows taken from a mapped tensor without read-ahead (with it,
           a batch takes minutes), the targets' rows written to a mapped array. --mapped-batches of
           one layer are timed, after --mapped-warm-up that fill the page cache, from the middle of
           the graph; its time for all layers is extrapolated by targets and in-edges

With --device the layers are those of a GraphSAGE of 256 hidden units, computed there, and `mapped`
is left out. --rehearse: on a fake GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import _script
import epoch
import numpy as np
import torch
from _gpu import fake_or_real
from _limits import beside_disk, limited
from _script import say
from torch_geometric.nn.models import GraphSAGE

import gnndrive
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.io.direct_file import STRETCH_BYTES
from gnndrive.common.memory import format_size, parse_size
from gnndrive.inference.layers import Layers
from gnndrive.inference.outcome import Outcome
from gnndrive.inference.run import Run, RunSettings
from gnndrive.inference.targets import BATCH_TARGETS, Targets

HIDDEN = 256


def unchanged(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """A layer that computes nothing."""
    return x


def layers_of(options: argparse.Namespace, store: gnndrive.Store) -> tuple[Layers, int]:
    """What is computed, and the bytes that its layers write."""
    rows, row_bytes = store.num_nodes, store.table("x").row_bytes
    if options.device is None:
        unchanged_layers = Layers([unchanged] * options.layers, None)
        return unchanged_layers, options.layers * rows * row_bytes
    model = GraphSAGE(store.num_features, HIDDEN, options.layers, store.num_classes)
    values = (options.layers - 1) * HIDDEN + store.num_classes
    return Layers(model.to(options.device), None), 4 * rows * values


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    store = gnndrive.open(options.store)
    settings = RunSettings(
        parse_size(options.memory, "--memory"), None, "x", {}, None, BATCH_TARGETS, "auto", 128
    )
    layers, written = layers_of(options, store)
    out = options.work / "gnndrive"
    outcome, last = Outcome(store, "h", out, "bench"), [0.0]

    def progress(what: str, done: int, total: int) -> None:
        if time.perf_counter() - last[0] > 10:
            last[0] = time.perf_counter()
            say(f"{what}: {done / total:.0%}")

    run = Run(store, layers, settings, outcome, progress)
    cpu, started = time.process_time(), time.perf_counter()
    run.run()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    width = store.edges().indices_file.row_bytes
    adjacency = options.layers * store.num_edges * width
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "requests": run.stats["requests"] + -(-adjacency // STRETCH_BYTES),
        "bytes_read": run.stats["bytes"] + adjacency,
        "bytes_written": written,
        "resident_bytes": peak_memory_bytes(),
    }


def run_mapped(options: argparse.Namespace) -> dict[str, Any]:
    store = gnndrive.open(options.store)
    targets = Targets(store, None, store.all_edges(), BATCH_TARGETS)
    x, indices = store.tensor("x", random=True), store.indices
    options.work.mkdir(parents=True, exist_ok=True)
    made = np.lib.format.open_memmap(options.work / "mapped.npy", "w+", np.float32, tuple(x.shape))
    place = np.empty(store.num_nodes, np.int32)
    batches = list(targets.batches())
    middle = len(batches) // 2
    taken = batches[middle : middle + options.mapped_warm_up + options.mapped_batches]
    started, entries = time.perf_counter(), 0
    for number, batch in enumerate(taken):
        if number == min(options.mapped_warm_up, len(taken) - 1):
            started, entries = time.perf_counter(), 0
        first, last = batch.edges[None]
        ids = np.concatenate([np.arange(batch.first, batch.last), indices[first:last]])
        order = np.arange(len(ids), dtype=np.int32)
        place[ids[::-1]] = order[::-1]
        nodes = ids[place[ids] == order]
        rows = unchanged(x[torch.from_numpy(nodes)], torch.empty(2, 0))
        made[batch.first : batch.last] = rows[: batch.last - batch.first].numpy()
        entries += batch.entries
        seconds = time.perf_counter() - started
        say(f"mapped: batch {number + 1}, {seconds:.1f} s")
    whole = options.layers * (store.num_nodes + store.num_edges)
    return {
        "seconds": seconds * whole / entries, "measured_s": seconds, "share": entries / whole,
        "resident_bytes": peak_memory_bytes(),
    }  # fmt: skip


RUNS = {"gnndrive": run_gnndrive, "mapped": run_mapped}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    store = gnndrive.open(options.store)

    def run(name: str) -> dict[str, Any]:
        try:
            return epoch.spawn(name, options, group, __file__)
        finally:
            shutil.rmtree(options.work, ignore_errors=True)

    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        ours, cost = beside_disk(store, lambda: run("gnndrive"))
        reads_s = cost.seconds(ours["requests"], ours["bytes_read"])
        say(f"gnndrive: {ours['seconds']:.1f} s, its reads {reads_s:.1f} s")
        found = {
            "memory": memory, "request_us": cost.request_s * 1e6, "byte_ns": cost.byte_s * 1e9,
            "gnndrive": ours, "reads_s": reads_s, "of_reads": ours["seconds"] / reads_s,
        }  # fmt: skip
        if options.device is None:
            found["mapped"] = mapped = run("mapped")
            found["times_mapped"] = mapped["seconds"] / ours["seconds"]
    return found


def table(result: dict[str, Any], options: argparse.Namespace) -> str:
    ours, mapped = result["gnndrive"], result.get("mapped")
    computed = "without compute" if mapped else f"of {HIDDEN} units on {options.device}"
    lines = [
        f"{options.layers} layers {computed}, memory={options.memory}; {result['memory']}",
        f"disk: {result['request_us']:.2f} us a request, {result['byte_ns']:.3f} ns a byte",
        f"gnndrive  {ours['seconds']:8.1f} s, {ours['cpu_s']:.1f} s of CPU; "
        f"{format_size(ours['bytes_read'])} in {ours['requests']:,} reads, "
        f"{format_size(ours['bytes_written'])} written",
        f"reads     {result['reads_s']:8.1f} s at the disk's constants: gnndrive takes "
        f"{result['of_reads']:.2f} of it",
    ]
    if mapped:
        lines.append(
            f"mapped    {mapped['seconds']:8.1f} s, extrapolated from {mapped['measured_s']:.1f} s "
            f"for {mapped['share']:.2%} of it: {result['times_mapped']:.1f} times as long"
        )
    for name in (each for each in RUNS if each in result):
        peak = result[name].get("peak_bytes", result[name]["resident_bytes"])
        lines.append(f"peak of {name}: {format_size(peak)}")
    return "\n".join(lines)


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--memory", default="2.7GB")
    parser.add_argument("--memory-limit", default="3GiB")
    parser.add_argument("--mapped-batches", type=int, default=4)
    parser.add_argument("--mapped-warm-up", type=int, default=6)
    parser.add_argument("--work", type=Path, help="folder of the hidden states")
    parser.add_argument("--device", help="where a GraphSAGE is computed, such as cuda")
    parser.add_argument("--rehearse", action="store_true", help="on a fake GPU")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.given = given
    options.work = options.work or Path(f"{options.store}.hidden")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    if options.worker:
        with fake_or_real(options.rehearse):
            print(json.dumps(RUNS[options.worker](options)))
        return
    result = measure(options)
    _script.show(table(result, options), result, options.json)


if __name__ == "__main__":
    _script.run(main)
