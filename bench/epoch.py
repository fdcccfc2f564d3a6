"""Seconds a batch from disk of several loaders, in one run under one memory limit.

usage: python bench/epoch.py STORE [--loaders pyg+,naive,joint,lru,gnndrive] [--batches 20]
           [--rounds 3] [--memory-limit 3GiB] [--buffer 1GB] [--topology resident]
           [--json FILE] [--png FILE]
       python bench/epoch.py --import-raw GRAPH_DIR STORE     (indptr.npy, indices.npy, x.bin,
       y.npy)

pyg+      adjacency and features memory-mapped (strategy="pyg+"); sampling threads beside gathering
          ones, in the fastest of some ways, which are printed
naive     a full ring, one request a row, nothing shared between batches
joint     GNNDrive's joint extraction: rows that share a sector or touch, LRU, one batch a sweep
lru       the same with gaps bridged where the disk's constants say that it pays
gnndrive  the defaults: lru's reads with look-ahead and sweeps over several batches

Each loader runs in a separate process, one after the other, with cold caches, on the same batches
(same sampler, same keys; PyG itself has torch-sparse's sampler, which is slower). Each batch's x is
touched and dropped. With --rounds, all loaders but pyg+, which would take most of the time, run so
often in turn, and medians are compared.

The floor is the largest of: the cost of the loader's own requests and bytes at the disk's two
constants (measured as `gnndrive bench disk` does, just before and just after that loader, because a
disk's speed may change within minutes), sampling alone under the same limit, and the CPU seconds of
all its threads divided by the cores. There is no training. The floor counts the features' requests
only; if the adjacency (or an attribute that is not mapped) is read from the same disk too, the
ratio to a floor with those reads is printed beside it.

As root, each process runs under the memory limit (cgroup v1 or v2), page cache included and without
swap, after all caches were dropped. Otherwise there is no limit, the store's own pages are dropped
with posix_fadvise, and the output says so; the page cache then helps the mapped loader.

`--train 10` trains a GraphSAGE of 16 hidden units with trimming on that many batches instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import _script
import numpy as np
from _limits import Cgroup, drop_caches, limited, run_limited
from _loaders import RUNS, VARIANTS

import gnndrive
from gnndrive.cli.measure.calibrate import calibrate, cost_of
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import format_size, parse_size
from gnndrive.common.records import DiskCost

MAPPED = "pyg+"
LOADERS = [MAPPED, "gnndrive"]


def spawn(
    which: str, options: argparse.Namespace, group: Cgroup | None, script: str = __file__,
    timeout_s: float | None = None, everything: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Run one loader in a separate process with cold caches, and return what it prints.

    With a limit all caches are dropped before, or only the store's files if not `everything`.

    Raises:
        SystemExit: it failed.
        subprocess.TimeoutExpired: it had not ended after `timeout_s` and was killed.
    """
    drop_caches(Path(options.store), everything and group is not None)
    command = [sys.executable, script, *options.given, "--worker", which]
    child, peak = run_limited(command, group, timeout_s)
    if child.returncode:
        killed = " (killed: out of memory?)" if child.returncode == -9 else ""
        sys.exit(f"{which} ended with {child.returncode}{killed}")
    result: dict[str, Any] = json.loads(child.stdout)
    if peak is not None:
        result["peak_bytes"] = peak
    return result


def spawn_beside_disk(
    which: str, options: argparse.Namespace, group: Cgroup | None, script: str = __file__
) -> tuple[dict[str, Any], DiskCost]:
    """`spawn` a loader; return its result, and the cost of reading just before and after it."""
    store = gnndrive.open(options.store)
    before = calibrate(store)
    result = spawn(which, options, group, script)
    after = calibrate(store)
    return result, cost_of(before.points + after.points, store, after.depth, after.engine)


def add_floor(result: dict[str, Any], cost: DiskCost, sampling: dict[str, Any]) -> None:
    """Add the floor to a result: seconds a batch that no loader with these reads, this sampler and
    this CPU time can beat. Add also the seconds of a sample when only sampling runs."""
    batches = result["batches"]
    result["request_us"], result["byte_ns"] = cost.request_s * 1e6, cost.byte_s * 1e9
    parts = {
        "reads": cost.seconds(result["requests"], result["bytes_read"]) / batches,
        "sampling": sampling["elapsed_s"] / sampling["batches"],
        "cpu": result["cpu_s"] / batches / (os.cpu_count() or 1),
    }
    adjacency = result.get("topology_requests", 0), result.get("topology_bytes_read", 0)
    result["adjacency_s"] = cost.seconds(*adjacency) / result["samples"]
    result["floor_parts_s"] = parts
    result["floor_s"] = max(parts.values())
    result["alone_sample_s"] = sample_s(sampling)


def s_a_batch(result: dict[str, Any]) -> float:
    """Seconds per batch."""
    return float(result["elapsed_s"] / result["batches"])


def of_floor(result: dict[str, Any]) -> float:
    """Seconds per batch, as a multiple of the floor."""
    return s_a_batch(result) / float(result["floor_s"])


def of_all_reads(result: dict[str, Any]) -> float:
    """Seconds per batch, as a multiple of a floor that includes the adjacency's reads."""
    floor = max(result["floor_s"], result["floor_parts_s"]["reads"] + result["adjacency_s"])
    return s_a_batch(result) / float(floor)


def limits(result: dict[str, Any]) -> str:
    """The part that sets the floor; if the adjacency is read too, `of_all_reads` beside it."""
    limit: str = max(result["floor_parts_s"], key=result["floor_parts_s"].get)
    if not result["adjacency_s"]:
        return limit
    return f"{limit}; {of_all_reads(result):.2f} with the adjacency's reads"


def spread(values: Sequence[float]) -> str:
    """The median, and the range if there are several values."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def in_rounds(results: list[dict[str, Any]], what: str) -> dict[Any, list[dict[str, Any]]]:
    """Group results by their entry `what`."""
    rounds: dict[Any, list[dict[str, Any]]] = {}
    for result in results:
        rounds.setdefault(result[what], []).append(result)
    return rounds


def summary(name: str, rounds: list[dict[str, Any]]) -> str:
    """Describe the seconds per batch of a loader's rounds, and their multiples of the floor."""
    head = f"{name}, {len(rounds)} rounds" if len(rounds) > 1 else name
    seconds, shares = spread([*map(s_a_batch, rounds)]), spread([*map(of_floor, rounds)])
    return f"{head}: {seconds} s a batch, {shares} of its floor"


def sample_s(result: dict[str, Any]) -> float:
    """Seconds per sample."""
    return float(result["sample_s"] / result["samples"])


def measure(options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
    """Run all loaders, one after the other."""
    if options.train:
        return {"results": [spawn("training", options, group)]}
    # The mapped loader has no floor, because the page cache does not report its reads.
    results = [spawn(name, options, group) for name in options.loaders if name == MAPPED]
    own = [name for name in options.loaders if name != MAPPED]
    measured = [spawn_beside_disk(name, options, group) for name in own * options.rounds]
    if measured:
        sampling = spawn("sampling", options, group)
        for result, cost in measured:
            add_floor(result, cost, sampling)
        results += [*(result for result, _ in measured), sampling]
    return {"results": results}


def table(found: dict[str, Any], options: argparse.Namespace) -> str:
    """Format the results, one line per loader."""
    fanout = ",".join(map(str, options.fanout))
    lines = [f"batches of {options.batch_size}, fanout {fanout}; {found['memory']}"]
    lines.append(
        f"{'loader':<9} {'s/batch':>8} {'k rows/s':>9} {'read/wanted':>11} {'hits':>5} "
        f"{'CPU s':>6} {'peak':>8} {'floor':>6} {'of it':>6}"
    )
    for result in found["results"]:
        batches, seconds = result["batches"], result["elapsed_s"]
        line = f"{result['loader']:<9} {seconds / batches:8.2f}"
        line += f" {result['rows'] / seconds / 1e3:9.0f}"
        if "requests" in result:
            line += f" {result['bytes_read'] / result['bytes_wanted']:11.2f}"
            line += f" {result['hit_rate']:5.0%}"
        else:
            line += f" {'':>11} {'':>5}"
        line += f" {result['cpu_s'] / batches:6.2f} {format_size(result['peak_bytes']):>8}"
        if "floor_s" in result:
            line += f" {result['floor_s']:6.2f} {of_floor(result):6.2f}"
            line += f"  ({limits(result)}; a sample {sample_s(result):.3f} s,"
            line += f" {result['alone_sample_s']:.3f} alone; the disk {result['request_us']:.1f} us"
            line += f" a request, {result['byte_ns']:.2f} ns a byte)"
        lines.append(line)
    said = [f"{each['loader']} gathered {each['gathering']}" for each in found["results"]
            if "gathering" in each]  # fmt: skip
    return "\n".join(lines + said + ratios(found["results"]))


def ratios(results: list[dict[str, Any]]) -> list[str]:
    """Compare each variant of gnndrive with the first loader and with its floor, by medians of the
    rounds."""
    rounds = in_rounds(results, "loader")
    seconds = {name: median(map(s_a_batch, of)) for name, of in rounds.items()}
    first, lines = results[0]["loader"], []
    for name in [name for name in rounds if name in VARIANTS]:
        line = summary(name, rounds[name])
        if name != first:
            line += f", {seconds[first] / seconds[name]:.2f} times as fast as {first}"
        lines.append(line)
    return lines


def draw(found: dict[str, Any], path: str) -> None:
    """Draw seconds a batch as bars, and floors as lines across them."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("--png needs matplotlib: pip install matplotlib")
    results = [result for result in found["results"] if result["loader"] != "sampling"]
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for place, result in enumerate(results):
        seconds = result["elapsed_s"] / result["batches"]
        axes.bar(
            place, seconds, 0.6, color="tab:green" if result["loader"] in VARIANTS else "tab:gray"
        )
        axes.text(place, seconds, f"{seconds:.2f}", ha="center", va="bottom")
        if "floor_s" in result:
            axes.hlines(result["floor_s"], place - 0.4, place + 0.4, color="black", linestyle=":")
    axes.set_xticks(range(len(results)), [result["loader"] for result in results])
    axes.set_ylabel("seconds a batch (dotted: floor)")
    axes.set_title(found["memory"], fontsize=9)
    figure.savefig(path, dpi=150)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.import_raw:
        import_raw(Path(options.import_raw), options.store)
        return
    if options.worker:
        result = RUNS[options.worker](options)
        result["peak_bytes"] = peak_memory_bytes()
        json.dump(result, sys.stdout)
        return
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        found = measure(options, group) | {"memory": memory}
    _script.show(table(found, options), found, options.json)
    if options.png:
        draw(found, options.png)


def import_raw(folder: Path, path: str) -> None:
    """Make a store from raw arrays."""
    indptr = np.load(folder / "indptr.npy")
    nodes, row_bytes = len(indptr) - 1, (folder / "x.bin").stat().st_size // (len(indptr) - 1)
    features = np.memmap(folder / "x.bin", np.float32, "r", shape=(nodes, row_bytes // 4))
    store = gnndrive.write_store(
        path, indptr=indptr, indices=np.load(folder / "indices.npy", mmap_mode="r"),
        nodes={"x": features, "y": np.load(folder / "y.npy")}, made_by=f"{sys.argv[0]}",
    )  # fmt: skip
    print(store)


def parse(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--loaders", type=lambda text: text.split(","), default=LOADERS)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1, help="of every loader but pyg+, in turn")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", type=lambda text: [int(n) for n in text.split(",")],
                        default=[10, 10, 10])  # fmt: skip
    parser.add_argument("--memory-limit", default="3GiB")
    parser.add_argument("--buffer", help="default: 1GB, and 450MB with --train")
    parser.add_argument("--topology", default="resident")
    parser.add_argument("--neighbour-cache", help="of --topology direct")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--io-depth", type=int, default=128)
    parser.add_argument("--gap", type=int, help="bytes; default: by the disk's constants")
    parser.add_argument("--sweep", type=int, help="batches a pass; default: by the buffer")
    parser.add_argument("--samplers", type=int, default=2)
    parser.add_argument("--extracting-queue", type=int)
    parser.add_argument("--training-queue", type=int)
    parser.add_argument("--train", type=int, metavar="BATCHES")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")
    parser.add_argument("--import-raw", metavar="GRAPH_DIR")
    parser.add_argument("--worker", choices=sorted(RUNS), help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.given = given
    if unknown := set(options.loaders) - set(RUNS):
        parser.error(f"unknown loader {', '.join(unknown)}: choose from {', '.join(RUNS)}")
    if options.train:
        options.batches = options.train
    options.buffer = options.buffer or ("450MB" if options.train else "1GB")
    return options


if __name__ == "__main__":
    _script.run(main)
