"""How fast is the sampler on one thread, in memory, and how many distinct nodes has a batch, with
neighbour sampling, with LABOR and with dependent batches?

usage: python bench/sampler.py GRAPH_DIR [--batches 10] [--sampling neighbor,labor]
                               [--batch-dependency 1,64]

GRAPH_DIR holds indptr.npy and indices.npy (a store, or its `graph` folder). All samplers get the
same seeds in the same run, in turn. The graph is in memory, with int32 indices if the node ids fit,
as in a store. Times are wall clock of one call, the copy to numpy included.
New nodes are those of a batch that the batch before did not have: a feature buffer that holds one
batch would read them. "of all" are the distinct nodes of all batches, divided by their number: a
buffer that holds everything would read them.
"""

from __future__ import annotations

import argparse
import statistics
import time
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
    parser = _script.parser(__doc__)
    parser.add_argument("graph", type=Path, metavar="GRAPH_DIR")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", type=_script.numbers, default=[10, 10, 10], help="-1 for all")
    parser.add_argument("--replace", action="store_true", help="draw with replacement")
    parser.add_argument("--sampling", type=_script.names, default=[NEIGHBOR])
    parser.add_argument("--batch-dependency", type=_script.numbers, default=[1], help="of labor")
    return parser.parse_args(words)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def samplers_of(options: argparse.Namespace) -> dict[str, Uniform]:
    """The samplers to measure, by the names of their kinds of sampling."""
    kinds = {}
    for name in options.sampling:
        for number in options.batch_dependency:
            if name != LABOR:
                kinds[name] = Sampling(name)
            else:
                kinds[f"{name}, dependency {number}"] = Sampling(name, number)
    return {
        name: Uniform(options.fanout, replace=options.replace, sampling=kind)
        for name, kind in kinds.items()
    }


def measure(
    topology: Mmap, samplers: dict[str, Uniform], order: torch.Tensor, options: argparse.Namespace
) -> dict[str, Found]:
    found = {name: Found(np.zeros(len(order), np.bool_)) for name in samplers}
    for batch in range(options.batches):
        seeds = order[batch * options.batch_size : (batch + 1) * options.batch_size].numpy()
        key = batch_key(0, 0, batch)
        for name, sampler in samplers.items():
            start = time.perf_counter()
            sample = sampler.sample_nodes(seeds, key, topology)
            found[name].add(time.perf_counter() - start, sample.node, len(sample.edge))
    return found


def main(words: list[str] | None = None) -> None:
    options = parse(words)
    torch.set_num_threads(1)
    folder = options.graph / "graph" if (options.graph / "graph").is_dir() else options.graph
    indptr = np.array(np.load(folder / "indptr.npy"), dtype=np.int64)
    stored = np.load(folder / "indices.npy", mmap_mode="r")
    fits = len(indptr) - 1 < 2**31
    topology = Mmap(indptr, np.array(stored, dtype=np.int32 if fits else np.int64))
    samplers = samplers_of(options)
    print(f"{len(indptr) - 1:,} nodes, {len(stored):,} edges in memory, one thread;", end=" ")
    print(f"{options.batches} batches, {options.batch_size} seeds,", end=" ")
    print(f"fanout {options.fanout}, ", end="")
    print(f"replace={options.replace}", flush=True)

    before_mib = resident_mib()
    order = torch.randperm(len(indptr) - 1, generator=torch.Generator().manual_seed(7))
    found = measure(topology, samplers, order, options)
    heads = "".join(f" {each:>11}" for each in ("nodes", "new nodes", "of all", "edges"))
    print(f"{'':24}{heads} {'s, median':>10} {'least':>8}")
    for name, each in found.items():
        print(each.line(name))
    kept = resident_mib() - before_mib - order.numel() * order.element_size() / 2**20
    print(f"kept between batches: about {max(kept, 0.0):.0f} MiB")


if __name__ == "__main__":
    _script.run(main)
