"""Every strategy on a GPU: seconds a batch, and the share of the time in which the GPU waits.

usage: python bench/gpu_strategies.py STORE [--prepare] [--strategies gnndrive,ginex] [--json FILE]
           [--steps sage-256,gat-256] [--batches 48] [--seconds 6] [--device-memory 2GB]
           [--memory 2500MB] [--host-budget 6GiB] [--profile FILE.json.gz]

--prepare first makes what strategies need and the store lacks: partitions at random, and a pack of
the batches. Then each strategy runs in a process of its own, which loads epoch after epoch of the
same --batches batches of random nodes, and trains on each. After one epoch, or --seconds, each of
--steps is measured in turn on as many batches again:

sage-256    GraphSAGE of three layers, 256 hidden units
gat-256     GAT of three layers, four heads of 64
sage-1024   GraphSAGE of three layers, 1,024 hidden units

`idle` is the share of the time in which no step ran on the GPU: 1 less the steps' seconds, each
between two CUDA events, over the seconds. A step during which the GPU waits for its next kernel
counts as if it ran, so with --profile the last step runs on as many batches again within
torch.profiler: FILE is their timeline for Perfetto, and `profile` has the share of the time without
a kernel. `first` counts from iter() to the first batch. `where` is the
stage whose batches took longest, beside the time that they waited in queues. Some rows of some
batches are compared with the store's: one that differs ends the strategy's run.

`--host-budget` limits each process's memory, page cache and CUDA's own libraries included, with a
cgroup as root. Without a GPU the script says so and exits with 2; --rehearse runs on a fake one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import _script
import torch
from _gpu import Step, needed
from _limits import drop_caches, run_limited, tried_limit
from _script import names, say
from epoch import SEED
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GraphSAGE

import gnndrive
from gnndrive.common.memory import parse_size
from gnndrive.strategies import STRATEGIES

CHECKED_BATCHES, CHECKED_ROWS = 4, 1_000
TOP = 12  # kernels that a summary names
ON_DEVICE = [name for name, each in STRATEGIES.items() if not each.baseline]
WAITING = {
    "sampler_wait", "extracting_queue", "admission", "training_queue", "output_queue", "step",
}  # fmt: skip
STEPS = {
    "sage-256": lambda columns, classes: GraphSAGE(columns, 256, 3, classes),
    "gat-256": lambda columns, classes: GAT(columns, 256, 3, classes, heads=4),
    "sage-1024": lambda columns, classes: GraphSAGE(columns, 1024, 3, classes),
}


# ---- one strategy, in a process of its own


def arguments(own: argparse.Namespace, store: gnndrive.Store) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(SEED)
    nodes = torch.randperm(store.num_nodes, generator=drawn)[: own.batches * own.batch_size]
    return {
        "num_neighbors": own.fanout, "input_nodes": nodes, "batch_size": own.batch_size,
        "shuffle": True, "seed": SEED, "memory": own.memory, "device_memory": own.device_memory,
    }  # fmt: skip


def prepare(own: argparse.Namespace) -> dict[str, float]:
    """Make partitions and a pack, where they are not there; the seconds of each."""
    store, found = gnndrive.open(own.store), {}
    for what, make in (
        ("partitioned", lambda: gnndrive.partition(store, method="random", memory=own.memory)),
        ("packed", lambda: gnndrive.pack(store, **arguments(own, store))),
    ):
        if not Path(own.store, what).exists():
            began = time.perf_counter()
            make()
            found[what] = time.perf_counter() - began
    return found


def work(own: argparse.Namespace, name: str) -> None:
    """Load with a strategy and train; print what is known so far, as a line of JSON, after each
    step."""
    store, strategy = gnndrive.open(own.store), STRATEGIES[name]
    if "superbatch" in strategy.arguments():
        strategy = replace(strategy, superbatch=own.batches)
    given = arguments(own, store) | {"strategy": strategy, "device": "cuda"}
    steps = {kind: Step(STEPS[kind], store) for kind in own.steps}
    found: dict[str, Any] = {"strategy": name, "steps": {}, "where": "", "compared": 0}
    with gnndrive.NeighborLoader(store, **given) as loader:
        began = time.perf_counter()
        batches = endless(loader)
        steps[own.steps[0]](next(batches))
        found["first_s"] = time.perf_counter() - began
        found["warm_up"] = timed(batches, steps[own.steps[0]], own)
        found["compared"] = compare(islice(batches, CHECKED_BATCHES), store)
        found["plan"] = loader.plan().details()
        for kind, step in steps.items():
            step(next(batches))
            found["steps"][kind] = timed(batches, step, own)
            stages = {stage: each["p50_s"] for stage, each in loader.stage_stats().items()}
            working = {stage: s for stage, s in stages.items() if stage not in WAITING}
            found["where"] = max(working, key=lambda stage: working[stage])
            stats = loader.stats().items()
            found["stats"] = {key: each for key, each in stats if not isinstance(each, dict)}
            found |= {"stages": stages, "gpu_bytes": torch.cuda.max_memory_allocated()}
            print(json.dumps(found), flush=True)
        if own.profile:
            found["profile"] = profiled(batches, step, own)
            print(json.dumps(found), flush=True)
        batches.close()


def endless(loader: Any) -> Iterator[Data]:
    while True:
        yield from loader


def timed(batches: Iterator[Data], step: Step, own: argparse.Namespace) -> dict[str, float]:
    torch.cuda.synchronize()
    step.events.clear()
    began, count, nodes = time.perf_counter(), 0, 0
    while count < own.batches and time.perf_counter() - began < own.seconds:
        batch = next(batches)
        step(batch)
        count, nodes = count + 1, nodes + batch.num_nodes
        del batch
        if len(step.events) > 2:  # as far as a training loop that reads its loss now and then
            step.events[-2][1].synchronize()
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - began
    stepped = step.seconds()
    return {
        "batches": count, "nodes_a_batch": nodes / count, "s_a_batch": elapsed / count,
        "step_s": stepped / count, "idle": 1 - stepped / elapsed,
    }  # fmt: skip


def profiled(batches: Iterator[Data], step: Step, own: argparse.Namespace) -> dict[str, Any]:
    """`timed`, with what ran on the GPU meanwhile; writes the timeline."""
    with torch.profiler.profile(activities=torch.profiler.supported_activities()) as made:
        found: dict[str, Any] = timed(batches, step, own)
    made.export_chrome_trace(own.profile)
    with gzip.open(own.profile) as file:
        ran = on_gpu(json.load(file)["traceEvents"])
    elapsed = found["batches"] * found["s_a_batch"]
    return found | ran | {"no_kernel": 1 - ran["kernel_s"] / elapsed}


def on_gpu(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of a timeline of torch.profiler: the seconds in which a kernel ran, or a copy, and those of
    the kernels that took longest, by name."""
    spans, kernels = (
        defaultdict[str, list[tuple[float, float]]](list),
        defaultdict[str, float](float),
    )
    for each in events:
        kind = each.get("cat", "")
        if kind in ("kernel", "gpu_memcpy"):
            spans[kind].append((each["ts"], each["ts"] + each["dur"]))
        if kind == "kernel":
            kernels[each["name"]] += each["dur"] / 1e6
    longest = sorted(kernels.items(), key=lambda each: -each[1])[:TOP]
    return {
        "kernel_s": covered(spans["kernel"]) / 1e6, "copy_s": covered(spans["gpu_memcpy"]) / 1e6,
        "kernels": dict(longest),
    }  # fmt: skip


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans (start, end)."""
    length, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(end - max(start, until), 0.0)
        until = max(until, end)
    return length


def compare(batches: Iterator[Data], store: gnndrive.Store) -> int:
    """Compare rows of batches with the store's, and return how many; one that differs ends it."""
    x, y, compared = store.tensor("x", random=True), store.tensor("y"), 0
    for batch in batches:
        rows = torch.randperm(batch.num_nodes)[:CHECKED_ROWS]
        ids = batch.n_id.cpu()[rows]
        same = torch.equal(batch.x.cpu()[rows], x[ids]) and torch.equal(batch.y.cpu()[rows], y[ids])
        if not same:
            sys.exit("a batch has rows of other nodes than its own")
        compared += len(rows)
    return compared


# ---- all of them


def table(found: dict[str, Any]) -> str:
    made = ", ".join(f"{what} in {s:.0f} s" for what, s in found["prepared"].items())
    lines = [found["machine"], f"{found['memory']}; made: {made or 'nothing'}"]
    heads = f"{'nodes':>8} {'s/batch':>8} {'step s':>7} {'idle':>5} {'first s':>8}"
    lines.append(f"{'strategy':<13} {'step':<10} {heads}  where")
    for result in found["results"]:
        for kind, each in result["steps"].items():
            lines.append(
                f"{result['strategy']:<13} {kind:<10} {each['nodes_a_batch']:8,.0f} "
                f"{each['s_a_batch']:8.3f} {each['step_s']:7.3f} {each['idle']:5.2f} "
                f"{result['first_s']:8.2f}  {result['where']}"
            )
        if profile := result.get("profile"):
            lines.append(
                f"within torch.profiler: {profile['s_a_batch']:.3f} s a batch; no kernel in "
                f"{profile['no_kernel']:.2f} of the time; longest: {', '.join(profile['kernels'])}"
            )
    return "\n".join(lines + [f"failed: {line}" for line in found["failed"]])


def measure(own: argparse.Namespace, given: list[str]) -> dict[str, Any]:
    name = "a fake GPU" if own.rehearse else torch.cuda.get_device_name()
    found: dict[str, Any] = {"machine": f"{name}, torch {torch.__version__}", "results": []}
    found |= {"prepared": prepare(own) if own.prepare else {}, "failed": []}
    limit = nullcontext((None, "no memory limit was requested"))
    if own.host_budget:
        limit = tried_limit(parse_size(own.host_budget, "--host-budget"), False)
    with limit as (group, found["memory"]):
        for strategy in own.strategies:
            drop_caches(own.store, False)
            command = [sys.executable, __file__, *given, "--worker", strategy]
            peak, why = None, ""
            try:
                ended, peak = run_limited(command, group, own.most)
                printed = ended.stdout
                why = f"ended with {ended.returncode}" if ended.returncode else ""
            except subprocess.TimeoutExpired as error:
                printed = (error.stdout or b"").decode()
                why = f"not ended after {own.most:.0f} s"
            found["failed"] += [f"{strategy}: {why}"] if why else []
            for line in printed.splitlines()[-1:]:
                found["results"].append(json.loads(line) | {"peak_bytes": peak})
            say(f"{strategy}: {why or 'ended well'}")
            if own.json:
                _script.write(found, own.json)
    return found


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store", type=Path)
    _script.add_batches(parser, batches=48)
    parser.add_argument("--prepare", action="store_true", help="make partitions and a pack")
    parser.add_argument("--strategies", type=names, default=ON_DEVICE)
    parser.add_argument("--steps", type=names, default=list(STEPS))
    parser.add_argument("--seconds", type=float, default=6, help="of each step, at most")
    parser.add_argument("--most", type=float, default=90, help="seconds of a strategy, at most")
    parser.add_argument("--device-memory", default="2GB")
    parser.add_argument("--memory", default="2500MB")
    parser.add_argument("--host-budget", metavar="SIZE", help="memory limit of each process")
    parser.add_argument("--profile", metavar="FILE", help="timeline of the last strategy")
    parser.add_argument("--rehearse", action="store_true", help="on a fake GPU")
    parser.add_argument("--worker", choices=STRATEGIES, help=argparse.SUPPRESS)
    own = parser.parse_args(given)
    _script.check_names(parser, "strategy", own.strategies, ON_DEVICE)
    _script.check_names(parser, "step", own.steps, STEPS)
    return own


def main() -> None:
    own = parse(sys.argv[1:])
    with needed(own.rehearse):
        if own.worker:
            work(own, own.worker)
            return
        found = measure(own, sys.argv[1:])
    _script.show(table(found), found, own.json)
    if found["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    _script.run(main)
