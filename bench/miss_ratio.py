"""Is the miss-ratio curve right? Hits that `compare` predicts, beside hits of loaders that run.

usage: python bench/miss_ratio.py STORE [--memory 3GB] [--buffers 0.6,1.3,1.8] [--batches 24]
           [--warm-up 24] [--strategy gnndrive] [--fanout 10,10,10] [--batch-size 1000]
           [--json FILE]

The curve is that of a loader with --memory. Then a loader runs with other buffers, at the points of
the curve that are nearest to so many times the first one's, and --warm-up batches are left out.
They have the first one's samplers, queues and topology.
Between two points hits may fall: where one more batch fits into a sweep, fewer rows of others stay.
All figures are of a batch. There is no training and no memory limit.
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from typing import Any

import _script

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.common.memory import format_size


def measure(options: argparse.Namespace) -> dict[str, Any]:
    store = gnndrive.open(options.store)
    given: dict[str, Any] = {
        "batch_size": options.batch_size, "shuffle": True, "seed": 1, "strategy": options.strategy,
    }  # fmt: skip
    with gnndrive.NeighborLoader(store, options.fanout, memory=options.memory, **given) as loader:
        found, plan = loader.compare(), loader.plan()
        assembly = loader._assembly()
        stages = assembly.scheme.planner(assembly.request()).stages
    if found is None or found.curve is None:
        sys.exit(f"with --memory {options.memory} all rows fit: give less")
    given |= {
        "samplers": stages.samplers, "extracting_queue": stages.extracting_queue,
        "training_queue": stages.training_queue, "topology": plan.topology.name,
    }  # fmt: skip
    points = [each for each in found.curve.points if each.hit_share < 1]
    results = []
    for share in options.buffers:
        wanted = share * plan.buffer_bytes
        point = min(points, key=lambda each: abs(each.nbytes - wanted))
        measured = run(store, options, given | {"buffer": point.nbytes})
        results.append(
            {"buffer_bytes": point.nbytes, "predicted": point.hit_share, "measured": measured}
        )
    return {"memory": options.memory, "buffer_bytes": plan.buffer_bytes, "results": results}


def run(store: gnndrive.Store, options: argparse.Namespace, given: dict[str, Any]) -> float:
    with gnndrive.NeighborLoader(store, options.fanout, **placed(given)) as loader:
        batches = iter(loader)
        for _ in islice(batches, options.warm_up):
            pass
        before = loader.stats()
        for _ in islice(batches, options.batches):
            pass
        after = loader.stats()
    hits, waits, loads = (
        float(after[name]) - float(before[name])
        for name in ("rows_hit", "rows_waited", "rows_loaded")
    )
    return 1 - loads / (hits + waits + loads)


def table(found: dict[str, Any]) -> str:
    lines = [f"{'buffer':>10} {'predicted %':>12} {'measured %':>11} {'points':>7}"]
    for each in found["results"]:
        predicted, measured = 100 * each["predicted"], 100 * each["measured"]
        lines.append(
            f"{format_size(each['buffer_bytes']):>10} {predicted:12.1f} {measured:11.1f} "
            f"{predicted - measured:+7.1f}"
        )
    return "\n".join(lines)


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    _script.add_batches(parser, batches=24)
    parser.add_argument("--memory", default="3GB")
    parser.add_argument("--buffers", type=lambda text: [float(n) for n in text.split(",")],
                        default=[0.6, 1.3, 1.8])  # fmt: skip
    parser.add_argument("--warm-up", type=int, default=24)
    parser.add_argument("--strategy", default="gnndrive")
    return parser.parse_args(given)


def main() -> None:
    options = parse(sys.argv[1:])
    found = measure(options)
    _script.show(table(found), found, options.json)


if __name__ == "__main__":
    _script.run(main)
