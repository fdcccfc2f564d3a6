"""`memory=` beside arguments set by hand, each in a cgroup of that much and 0.45 GB.

usage: python bench/memory.py STORE [--memory 3GB,4GB,6GB] [--grid] [--batches 40] [--warm-up 8]
           [--rounds 3] [--batch-size 1000] [--fanout 10,10,10] [--json FILE]
           [--strategy ali+pg] [--caches 0,0.1,0.2,0.4]

Without --grid only `memory=` is run. With it, it competes with topology="resident" and "direct",
each with samplers 1, 2 and 4, the default queues, and the largest `buffer=` that is not killed:
from 0.75 of the memory down, in steps of a twentieth of it. The best four of these by a first look
at a few batches, each with the largest buffer that lasts for all batches, run in turn with
`memory=`, round after round, and medians of the rounds are compared.

With --caches, `memory=` competes with itself and a neighbour cache of these shares of the memory,
as the Ginex paper divides memory between its two caches; the feature buffer has what is left.

A batch's x is touched and dropped; seconds a batch leave out the first --warm-up batches. "in use"
is the peak of the process's own memory during the epoch beyond what it was before the loader was
made, seen after each batch; it is what `memory=` promises. Python, torch and their page cache have
the 0.45 GB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import _limits
import _script
from _limits import Cgroup
from _script import grouped
from epoch import SEED, touch

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.cli.measure.memory_limit import CannotLimit
from gnndrive.common.memory import format_size, parse_size

BESIDE = 450_000_000  # for Python, torch and their libraries
TOPOLOGIES, SAMPLERS = ("resident", "direct"), (1, 2, 4)
BUFFERS = [0.75 - 0.05 * step for step in range(13)]  # of the memory
PROBE_BATCHES, PROBE_WARM_UP, BEST = 14, 6, 4


def private_bytes() -> int:
    """This process's resident memory without mapped files, which the page cache cannot free."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def work(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: load batches with the given arguments."""
    given, fanout = json.loads(options.worker), options.fanout
    store, before, peak = gnndrive.open(options.store), private_bytes(), 0
    loader = gnndrive.NeighborLoader(
        store, fanout, batch_size=options.batch_size, shuffle=True, seed=SEED, **placed(given)
    )
    started, count = time.perf_counter(), 0
    with loader:
        for batch in loader:
            touch(batch.x)
            count += 1
            peak = max(peak, private_bytes())
            if count == options.warm_up:
                started = time.perf_counter()
            if count == options.batches:
                break
        seconds = (time.perf_counter() - started) / max(count - options.warm_up, 1)
        plan, stats = loader.plan(), loader.stats()
    return {
        "given": given, "s": seconds, "batches": count, "in_use": peak - before,
        "planned": plan.total_bytes, "slots": plan.slots, "topology": stats["topology"],
        "read": stats["bytes_read"] / max(count, 1),
    }  # fmt: skip


def spawn(
    given: dict[str, Any], options: argparse.Namespace, group: Cgroup, batches: int, warm_up: int
) -> dict[str, Any] | None:
    """Run one loader with cold caches; None: it was killed."""
    command = [
        __file__, options.store, "--worker", json.dumps(given),
        "--batches", str(batches), "--warm-up", str(warm_up),
        "--batch-size", str(options.batch_size), "--fanout", ",".join(map(str, options.fanout)),
    ]  # fmt: skip
    try:
        return _limits.spawn(str(given), command, group, [options.store])
    except _limits.Failed as failed:
        if failed.killed:
            return None
        raise


def by_hand(memory: int, options: argparse.Namespace, group: Cgroup) -> list[dict[str, Any]]:
    """The best arguments of the grid by a few batches, each with a buffer that lasts."""
    probed: list[tuple[float, dict[str, Any]]] = []
    for topology, samplers in product(TOPOLOGIES, SAMPLERS):
        given = {"topology": topology, "samplers": samplers}
        if found := largest_buffer(given, memory, BUFFERS, options, group, probe=True):
            probed.append(found)
    best = sorted(probed, key=lambda each: each[0])[:BEST]
    lasting = [
        largest_buffer(
            given, memory, [each for each in BUFFERS if each * memory <= given["buffer"] + 1],
            options, group, probe=False,
        )
        for _, given in best
    ]  # fmt: skip
    return [found[1] for found in lasting if found is not None]


def largest_buffer(
    given: dict[str, Any], memory: int, shares: list[float], options: argparse.Namespace,
    group: Cgroup, *, probe: bool,
) -> tuple[float, dict[str, Any]] | None:  # fmt: skip
    """Seconds a batch, and the arguments, with the first buffer of `shares` that is not killed."""
    batches = (PROBE_BATCHES, PROBE_WARM_UP) if probe else (options.batches, options.warm_up)
    for share in shares:
        tried = given | {"buffer": int(share * memory)}
        result = spawn(tried, options, group, *batches)
        say(memory, tried, result)
        if result is not None:
            return result["s"], tried
    return None


def say(memory: int, given: dict[str, Any], result: dict[str, Any] | None) -> None:
    seconds = "killed" if result is None else f"{result['s']:.2f} s"
    _script.say(f"{format_size(memory)} {given}: {seconds}")


def own_of(memory: int, options: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {"memory": memory}
    return given | ({"strategy": options.strategy} if options.strategy else {})


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for memory in options.memory:
        try:
            group = Cgroup(memory + BESIDE)
        except CannotLimit as error:
            sys.exit(f"the memory of the loaders' processes cannot be limited: {error}")
        try:
            own: dict[str, Any] = own_of(memory, options)
            direct = own | {"topology": "direct"}
            competitors = [own]
            competitors += [
                direct | {"neighbour_cache": int(share * memory)} for share in options.caches
            ]
            if options.grid:
                competitors += by_hand(memory, options, group)
            for _ in range(options.rounds):
                for given in competitors:
                    result = spawn(given, options, group, options.batches, options.warm_up)
                    record = {"limit": memory, "given": given, "killed": result is None}
                    found.append(record | (result or {}))
                    say(memory, given, result)
        finally:
            group.close()
    return found


def table(found: list[dict[str, Any]], options: argparse.Namespace) -> str:
    lines = []
    for memory, of_memory in grouped(found, "limit").items():
        rounds: dict[str, list[dict[str, Any]]] = {}
        for each in of_memory:
            rounds.setdefault(json.dumps(each["given"]), []).append(each)
        alive = {name: of for name, of in rounds.items() if not any(e["killed"] for e in of)}
        seconds = {name: median(each["s"] for each in of) for name, of in alive.items()}
        own = json.dumps(own_of(memory, options))
        others = [value for name, value in seconds.items() if name != own]
        lines.append(f"{format_size(memory)} and {format_size(BESIDE)}")
        for name, of in sorted(rounds.items(), key=lambda item: seconds.get(item[0], 1e9)):
            if name not in seconds:
                lines.append(f"  killed      {name}")
                continue
            spread = f"{min(e['s'] for e in of):.2f} to {max(e['s'] for e in of):.2f}"
            in_use = format_size(max(each["in_use"] for each in of))
            lines.append(
                f"  {seconds[name]:.2f} s ({spread}), {in_use} in use, {of[0]['topology']}, "
                f"{of[0]['slots']:,} slots  {name}"
            )
        if own in seconds and others:
            lines.append(f"  memory= takes {seconds[own] / min(others):.2f} of the best by hand")
    return "\n".join(lines)


def main() -> None:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    _script.add_batches(parser, batches=40)
    parser.add_argument(
        "--memory", type=lambda text: [parse_size(each, "--memory") for each in text.split(",")],
        default="3GB,4GB,6GB",
    )  # fmt: skip
    parser.add_argument("--grid", action="store_true", help="compare with arguments set by hand")
    parser.add_argument("--strategy", help="of `memory=` and --caches; default: gnndrive")
    parser.add_argument(
        "--caches", type=lambda text: [float(each) for each in text.split(",")], default=[],
        help="shares of the memory for the neighbour cache",
    )  # fmt: skip
    parser.add_argument("--warm-up", type=int, default=8, help="batches that are not timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        json.dump(work(options), sys.stdout)
        return
    found = measure(options)
    _script.show(table(found, options), {"results": found}, options.json)


if __name__ == "__main__":
    _script.run(main)
