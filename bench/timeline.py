"""What does a timeline cost? The same batches with `trace=` and without it, in turn.

    PYTHONPATH=. python bench/timeline.py STORE [--memory SIZE] [--batches N] [--rounds N]

Each round makes two loaders, one with a timeline and one without; which of them comes first
alternates, because the disk changes by the minute. The time is that from the first batch to the
last one, with a user who adds the rows up. The output is the seconds of each round, the medians and
their ratio, and the size of the file.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import _script

import gnndrive


def seconds(store: gnndrive.Store, trace: Path | None, options: argparse.Namespace) -> float:
    seeds = store.split("train") if "train" in store.split_names else None
    with gnndrive.NeighborLoader(
        store, options.fanout, seeds, batch_size=options.batch_size, shuffle=True,
        seed=1, memory=options.memory, strategy=options.strategy, trace=trace,
    ) as loader:  # fmt: skip
        batches = iter(loader)
        next(batches)
        started = perf_counter()
        for _ in range(options.batches):
            next(batches).x.sum()
        taken = perf_counter() - started
        batches.close()
    return taken


def main() -> None:
    parser = _script.parser(__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--memory", default="3GB")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10, 10])
    parser.add_argument("--strategy", default="gnndrive")
    options = parser.parse_args()
    store = gnndrive.open(options.store)
    off, on = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json.gz"
        seconds(store, None, options)  # fills caches, and finds the sizes of batches
        for number in range(options.rounds):
            for traced in (number % 2 == 0, number % 2 == 1):
                (on if traced else off).append(seconds(store, trace if traced else None, options))
            print(f"round {number + 1}: {off[-1]:.3f} s without, {on[-1]:.3f} s with a timeline")
        size = trace.stat().st_size
    without, traced_s = statistics.median(off), statistics.median(on)
    ratios = [b / a for a, b in zip(off, on, strict=True)]
    print(
        f"medians: {without:.3f} s without, {traced_s:.3f} s with: {traced_s / without:.3f} times"
    )
    print(f"by round: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")
    print(f"the file has {size:,} bytes")


if __name__ == "__main__":
    _script.run(main)
