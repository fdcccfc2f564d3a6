"""How fast is the sampler on one thread, in memory, and how many distinct nodes has a batch, with
neighbour sampling, with LABOR and with dependent batches? How fast is torch-sparse's?

usage: python bench/sampler.py GRAPH_DIR [--batches 10] [--sampling neighbor,labor]
                               [--batch-dependency 1,64] [--torch-sparse]

GRAPH_DIR holds indptr.npy and indices.npy (a store, its `graph` folder, or what gen_powerlaw.py
writes). All samplers get the same seeds in the same run, in turn. Both graphs are in memory:
gnndrive's with int32 indices if the node ids fit (as in a store), torch-sparse's with int64, the
only dtype that it takes. Times are wall clock of one call; gnndrive's include the copy to numpy.
New nodes are those of a batch that the batch before did not have: a feature buffer that holds one
batch would read them. "of all" are the distinct nodes of all batches, divided by their number: a
buffer that holds everything would read them.
"""

from __future__ import annotations

import argparse
import glob
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import _script
import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.records import Int64Array
from gnndrive.sampling.labor import LABOR, NEIGHBOR, Sampling
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap

NOT_INSTALLED = (
    "torch-sparse is not installed, so there is nothing to compare with: `pip install wheel` and "
    "`pip install --no-build-isolation torch-sparse` (it compiles for some twelve minutes)"
)
THEIRS = "torch-sparse"
Sampler = Callable[[torch.Tensor, int], tuple[Int64Array, int]]


@dataclass
class Found:
    """What was found of one sampler, for each batch; `seen` says which nodes any batch had."""

    seen: npt.NDArray[np.bool_]
    seconds: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    before: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, seconds: float, node: Int64Array, edges: int) -> None:
        """Note a batch."""
        if self.nodes:
            had = np.zeros(len(self.seen), np.bool_)
            had[self.before] = True
            self.new.append(len(node) - int(np.count_nonzero(had[node])))
        self.before = node
        self.seen[node] = True
        self.seconds.append(seconds)
        self.nodes.append(len(node))
        self.edges.append(edges)

    def line(self, name: str) -> str:
        """The means and the median time."""
        new = f"{statistics.mean(self.new):11,.0f}" if self.new else f"{'-':>11}"
        return (
            f"{name:24} {statistics.mean(self.nodes):11,.0f} {new} "
            f"{np.count_nonzero(self.seen) / len(self.nodes):11,.0f} "
            f"{statistics.mean(self.edges):11,.0f} {statistics.median(self.seconds):10.4f} "
            f"{min(self.seconds):8.4f}"
        )


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("?", maxsplit=1)[0])
    parser.add_argument("graph", type=Path, metavar="GRAPH_DIR")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", default="10,10,10", help="comma-separated, -1 for all")
    parser.add_argument("--replace", action="store_true", help="draw with replacement")
    parser.add_argument("--sampling", default=NEIGHBOR, help="comma-separated: neighbor, labor")
    parser.add_argument("--batch-dependency", default="1", help="of labor, comma-separated")
    parser.add_argument("--torch-sparse", action="store_true", help="time torch-sparse's too")
    return parser.parse_args(words)


def resident_mib() -> float:
    """This process's resident memory now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def torch_sparse_sampler(
    indptr: torch.Tensor, indices: torch.Tensor, fanout: list[int], replace: bool
) -> Sampler | None:
    """torch-sparse's operator as a function of seeds; None: it is not installed."""
    for library in glob.glob(sysconfig.get_paths()["purelib"] + "/torch_sparse/*_cpu.so"):
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    if not hasattr(torch.ops.torch_sparse, "neighbor_sample"):
        return None

    def sample(seeds: torch.Tensor, key: int) -> tuple[Int64Array, int]:
        node, _row, _col, edge = torch.ops.torch_sparse.neighbor_sample(
            indptr, indices, seeds, fanout, replace, True
        )
        return node.numpy(), len(edge)

    return sample


def gnndrive_sampler(
    topology: Mmap, fanout: list[int], replace: bool, sampling: Sampling
) -> Sampler:
    """gnndrive's sampler as a function of seeds."""
    sampler = Uniform(fanout, replace=replace, sampling=sampling)

    def sample(seeds: torch.Tensor, key: int) -> tuple[Int64Array, int]:
        sampled = sampler.sample_nodes(seeds.numpy(), key, topology)
        return sampled.node, len(sampled.edge)

    return sample


def samplings(options: argparse.Namespace) -> dict[str, Sampling]:
    """The kinds of sampling to measure, by name."""
    found = {}
    for name in options.sampling.split(","):
        for number in map(int, options.batch_dependency.split(",")):
            if name != LABOR:
                found[name] = Sampling(name)
            else:
                found[f"{name}, dependency {number}"] = Sampling(name, number)
    return found


def measure(
    samplers: dict[str, Sampler], order: torch.Tensor, options: argparse.Namespace
) -> dict[str, Found]:
    """Have all samplers sample the batches, in turn."""
    found = {name: Found(np.zeros(len(order), np.bool_)) for name in samplers}
    for batch in range(options.batches):
        seeds = order[batch * options.batch_size : (batch + 1) * options.batch_size]
        key = batch_key(0, 0, batch)
        for name, sample in samplers.items():
            start = time.perf_counter()
            node, edges = sample(seeds, key)
            found[name].add(time.perf_counter() - start, node, edges)
    return found


def main(words: list[str] | None = None) -> None:
    """Sample, and print what was found."""
    options = parse(words)
    torch.set_num_threads(1)
    fanout = [int(number) for number in options.fanout.split(",")]
    folder = options.graph / "graph" if (options.graph / "graph").is_dir() else options.graph
    indptr = np.array(np.load(folder / "indptr.npy"), dtype=np.int64)
    stored = np.load(folder / "indices.npy", mmap_mode="r")
    fits = len(indptr) - 1 < 2**31
    topology = Mmap(indptr, np.array(stored, dtype=np.int32 if fits else np.int64))
    samplers = {
        name: gnndrive_sampler(topology, fanout, options.replace, sampling)
        for name, sampling in samplings(options).items()
    }
    ours = next(iter(samplers))
    if options.torch_sparse:
        wide = torch.from_numpy(np.array(stored, dtype=np.int64))
        theirs = torch_sparse_sampler(torch.from_numpy(indptr), wide, fanout, options.replace)
        if theirs is None:
            sys.exit(NOT_INSTALLED)
        samplers[THEIRS] = theirs
    print(f"{len(indptr) - 1:,} nodes, {len(stored):,} edges in memory, one thread;", end=" ")
    print(f"{options.batches} batches, {options.batch_size} seeds, fanout {fanout}, ", end="")
    print(f"replace={options.replace}", flush=True)

    before_mib = resident_mib()
    order = torch.randperm(len(indptr) - 1, generator=torch.Generator().manual_seed(7))
    found = measure(samplers, order, options)
    heads = "".join(f" {each:>11}" for each in ("nodes", "new nodes", "of all", "edges"))
    print(f"{'':24}{heads} {'s, median':>10} {'least':>8}")
    for name, each in found.items():
        print(each.line(name))
    if options.torch_sparse:
        pairs = zip(found[ours].seconds, found[THEIRS].seconds, strict=True)
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{THEIRS} takes {ratio:.1f} times as long as {ours} (median)")
    else:
        kept = resident_mib() - before_mib - order.numel() * order.element_size() / 2**20
        print(f"kept between batches: about {max(kept, 0.0):.0f} MiB")


if __name__ == "__main__":
    _script.run(main)
