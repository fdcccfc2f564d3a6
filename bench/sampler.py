"""How fast is the uniform sampler on one thread, in memory, compared with torch-sparse's?

usage: python bench/sampler.py GRAPH_DIR [--batches 10] [--torch-sparse]

GRAPH_DIR holds indptr.npy and indices.npy (a store, its `graph` folder, or what gen_powerlaw.py
writes). Both samplers get the same seeds in the same run, in turn. Both graphs are in memory:
gnndrive's with int32 indices if the node ids fit (as in a store), torch-sparse's with int64, the
only dtype that it takes. Times are wall clock of one call; gnndrive's include the copy to numpy.
"""

from __future__ import annotations

import argparse
import glob
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap

NOT_INSTALLED = (
    "torch-sparse is not installed, so there is nothing to compare with: `pip install wheel` and "
    "`pip install --no-build-isolation torch-sparse` (it compiles for some twelve minutes)"
)
Counts = tuple[int, int]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", type=Path, metavar="GRAPH_DIR")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", default="10,10,10", help="comma-separated, -1 for all")
    parser.add_argument("--replace", action="store_true", help="draw with replacement")
    parser.add_argument("--torch-sparse", action="store_true", help="time torch-sparse's too")
    return parser.parse_args()


def resident_mib() -> float:
    """This process's resident memory now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def torch_sparse_sampler(
    indptr: torch.Tensor, indices: torch.Tensor, fanout: list[int], replace: bool
) -> Callable[[torch.Tensor, int], Counts] | None:
    """torch-sparse's operator as a function of seeds; None: it is not installed."""
    for library in glob.glob(sysconfig.get_paths()["purelib"] + "/torch_sparse/*_cpu.so"):
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    if not hasattr(torch.ops.torch_sparse, "neighbor_sample"):
        return None

    def sample(seeds: torch.Tensor, key: int) -> Counts:
        node, _row, _col, edge = torch.ops.torch_sparse.neighbor_sample(
            indptr, indices, seeds, fanout, replace, True
        )
        return len(node), len(edge)

    return sample


def gnndrive_sampler(
    topology: Mmap, fanout: list[int], replace: bool
) -> Callable[[torch.Tensor, int], Counts]:
    sampler = Uniform(fanout, replace=replace)

    def sample(seeds: torch.Tensor, key: int) -> Counts:
        sampled = sampler.sample_nodes(seeds.numpy(), key, topology)
        return len(sampled.node), len(sampled.edge)

    return sample


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    fanout = [int(number) for number in options.fanout.split(",")]
    folder = options.graph / "graph" if (options.graph / "graph").is_dir() else options.graph
    indptr = np.array(np.load(folder / "indptr.npy"), dtype=np.int64)
    stored = np.load(folder / "indices.npy", mmap_mode="r")
    fits = len(indptr) - 1 < 2**31
    indices = np.array(stored, dtype=np.int32 if fits else np.int64)
    samplers = {"gnndrive": gnndrive_sampler(Mmap(indptr, indices), fanout, options.replace)}
    if options.torch_sparse:
        wide = torch.from_numpy(np.array(stored, dtype=np.int64))
        theirs = torch_sparse_sampler(torch.from_numpy(indptr), wide, fanout, options.replace)
        if theirs is None:
            sys.exit(NOT_INSTALLED)
        samplers["torch-sparse"] = theirs
    print(f"{len(indptr) - 1:,} nodes, {len(indices):,} edges in memory, one thread;", end=" ")
    print(f"{options.batch_size} seeds, fanout {fanout}, replace={options.replace}")

    before_mib = resident_mib()
    order = torch.randperm(len(indptr) - 1, generator=torch.Generator().manual_seed(7))
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for batch in range(options.batches):
        seeds = order[batch * options.batch_size : (batch + 1) * options.batch_size]
        for name, sample in samplers.items():
            start = time.perf_counter()
            nodes, edges = sample(seeds, batch_key(0, 0, batch))
            times[name].append(time.perf_counter() - start)
            print(f"batch {batch}: {name:12} {nodes:9,} nodes {edges:9,} edges", end=" ")
            print(f"{times[name][-1]:.4f} s", flush=True)
    for name, seconds in times.items():
        print(f"{name:12} median {statistics.median(seconds):.4f} s a batch,", end=" ")
        print(f"least {min(seconds):.4f}")
    if len(samplers) == 2:
        ratios = [b / a for a, b in zip(times["gnndrive"], times["torch-sparse"], strict=True)]
        print(f"torch-sparse takes {statistics.median(ratios):.1f} times as long (median)")
    else:
        kept = resident_mib() - before_mib - order.numel() * order.element_size() / 2**20
        print(f"scratch kept between batches: about {max(kept, 0.0):.0f} MiB")


if __name__ == "__main__":
    main()
