"""Does a larger graph take more time than its disk reads need, and more memory than its tables?

usage: python bench/scale.py [--sizes 1,10,50] [--folder DIR] [--batches 20] [--rounds 3]
           [--memory-limit 3GiB] [--buffer 1GB] [--topology direct] [--json FILE]

The script loads batches from power-law graphs of --sizes million nodes (fractions too), all of one
degree, one after the other with the same memory, each in a separate process with cold caches. Each
size has its own floor, as in bench/epoch.py, whose other options are accepted too (`--batch-size`,
`--fanout`, `--engine`, `--samplers`, …). The disk is measured before and after each size. With
--rounds, all sizes run so often in turn, and medians are printed at the end, because a disk's speed
changes within minutes.

Graphs that are missing in DIR are made first and stay there: 16 edges a node, 128 × float32 rows;
593 bytes of disk a node, so 29.6 GB for 50 M nodes, some minutes and 1.6 GB of memory.

set-up    seconds before the first batch: opening the store, the neighbour cache; not in s/batch
first     seconds from there to the first batch; included in s/batch. Cold code is read from disk
          too, a second or two for every graph, so small graphs need more batches
peak      the peak of the bytes charged to the limit, page cache included (no limit: resident)
private   the peak of the process's private memory without mapped files, sampled at each batch
tables    the part of private that grows with the nodes, by the loader's plan: mapping table, index
          pointers, labels, look-ahead, the touched pages of the order of the input nodes; and the
          indices, if they are resident
beyond    private less tables, which should not grow. It is less for a graph that fits whole into
          the feature buffer. It includes a neighbour cache's address table: 0.2 bytes a node
"""

from __future__ import annotations

import argparse
import math
import mmap
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import _script
import epoch
from _limits import Cgroup, limited
from _powerlaw import made_by, store_bytes, write_powerlaw
from _script import grouped, say, spread

import gnndrive
from gnndrive.cli.commands.progress import Bars
from gnndrive.common.memory import format_size, parse_size

PER_NODE = ("mapping table", "index pointers", "labels", "look-ahead", "input nodes")


def store_path(folder: Path, nodes: int) -> Path:
    """The path of the graph with so many nodes."""
    return folder / f"powerlaw_{nodes / 1e6:g}m.gnn"


def make_missing(folder: Path, sizes: list[int]) -> None:
    """Make the missing graphs, if the disk has room for all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {nodes: store_path(folder, nodes) for nodes in sizes}
    missing = {nodes: path for nodes, path in paths.items() if not path.exists()}
    needed, free = sum(map(store_bytes, missing)), shutil.disk_usage(folder).free
    if needed > free:
        names = ", ".join(path.name for path in missing.values())
        sys.exit(
            f"{names} take {format_size(needed)} and {folder} has {format_size(free)} free: free "
            f"{format_size(needed - free)}, or give another --folder or fewer --sizes"
        )
    for nodes, path in missing.items():
        say(f"making {path}, {format_size(store_bytes(nodes))}")
        with Bars() as bars:
            write_powerlaw(path, nodes, bars)
    for nodes, path in paths.items():
        if (found := gnndrive.open(path).info.made_by) != made_by(nodes):
            sys.exit(f"{path} is another graph ({found}): move it away, or give another --folder")


def measure(nodes: int, options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
    """Measure one size: run the loader, and sampling alone for its floor."""
    result, cost = epoch.spawn_beside_disk("gnndrive", options, group)
    result = per_batch(result)
    sampling = per_batch(epoch.spawn("sampling", options, group))
    epoch.add_floor(result, cost, sampling)
    plan = result["plan"]
    tables = {name: plan[name] for name in PER_NODE}
    drawn = (result["samples"] + options.samplers) * options.batch_size
    tables["input nodes"] = touched(tables["input nodes"], drawn)
    if result["topology"] == "resident":
        tables["indices"] = plan["topology"]
    tables_bytes = sum(tables.values())
    return result | {
        "nodes": nodes,
        "tables": tables,
        "tables_bytes": tables_bytes,
        "beyond_bytes": result["private_bytes"] - tables_bytes,
    }


def touched(nbytes: int, seeds: int) -> int:
    """Bytes of an order of seeds in pages that so many draws have touched, each a random page."""
    pages = max(nbytes / mmap.PAGESIZE, 1)
    return int(nbytes * -math.expm1(-seeds / pages))


def per_batch(result: dict[str, Any]) -> dict[str, Any]:
    """The result without the set-up in its times, so that s/batch does not depend on --batches."""
    elapsed = result["elapsed_s"] - result["set_up_s"]
    return result | {"elapsed_s": elapsed, "cpu_s": result["cpu_s"] - result["set_up_cpu_s"]}


def table(found: dict[str, Any], options: argparse.Namespace) -> str:
    """Format the results, one line per size."""
    fanout = ",".join(map(str, options.fanout))
    lines = [
        f"batches of {options.batch_size}, fanout {fanout}; {found['memory']}",
        f"{'nodes':>8} {'s/batch':>8} {'k rows/s':>9} {'hits':>5} {'reads':>8} {'floor':>6} "
        f"{'of it':>6} {'set-up':>7} {'first':>6} {'peak':>8} {'private':>8} {'tables':>8} "
        f"{'beyond':>8}",
    ]
    for result in found["results"]:
        batches, seconds = result["batches"], result["elapsed_s"]
        line = f"{result['nodes'] / 1e6:>6g} M {seconds / batches:8.3f}"
        line += f" {result['rows'] / seconds / 1e3:9.0f} {result['hit_rate']:5.0%}"
        line += f" {result['requests'] / batches:8,.0f} {result['floor_s']:6.3f}"
        line += f" {epoch.of_floor(result):6.2f} {result['set_up_s']:7.2f}"
        line += f" {result['first_s'] - result['set_up_s']:6.2f}"
        for name in ("peak", "private", "tables", "beyond"):
            line += f" {format_size(result[f'{name}_bytes']):>8}"
        lines.append(f"{line}  ({epoch.limits(result)})")
    return "\n".join(lines + medians(found["results"]))


def medians(results: list[dict[str, Any]]) -> list[str]:
    """Describe the rounds of each size, one line per size, if there were several rounds."""
    rounds, lines = grouped(results, "nodes"), []
    for nodes, of in rounds.items():
        line = epoch.summary(f"{nodes / 1e6:g} M", of)
        if any(result["adjacency_s"] for result in of):
            shares = spread([*map(epoch.of_all_reads, of)])
            line += f", {shares} with the adjacency's reads"
        lines.append(line)
    return lines if len(results) > len(rounds) else []


def parse(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse this script's options; return them and the options left for bench/epoch.py."""
    parser = _script.parser(__doc__)
    parser.add_argument("--sizes", type=node_counts, default="1,10,50", help="million nodes")
    parser.add_argument("--folder", type=Path, default=Path("."), help="folder of the graphs")
    parser.add_argument("--generate-only", action="store_true", help="make the graphs, and stop")
    parser.add_argument("--topology", default="direct")
    parser.add_argument("--json", metavar="FILE")
    own, left = parser.parse_known_args(given)
    return own, [*left, "--topology", own.topology]


def node_counts(text: str) -> list[int]:
    """Parse comma-separated millions of nodes to numbers of nodes."""
    nodes = [round(float(million) * 1e6) for million in text.split(",")]
    if min(nodes) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give millions of nodes above 0")
    return nodes


def main() -> None:
    own, left = parse(sys.argv[1:])
    runs = {nodes: epoch.parse([str(store_path(own.folder, nodes)), *left]) for nodes in own.sizes}
    options = runs[own.sizes[0]]
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that an unfinished graph is removed
    make_missing(own.folder, own.sizes)
    if own.generate_only:
        return
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        turns = list(runs.items()) * options.rounds
        results = [measure(nodes, of_size, group) for nodes, of_size in turns]
    found = {"memory": memory, "results": results}
    _script.show(table(found, options), found, own.json)


if __name__ == "__main__":
    _script.run(main)
