"""The loaders that bench/epoch.py compares; each is one function that runs in a separate process
and returns its figures.

All of them draw the same batches with the same sampler and keys, touch each batch's x and drop it.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import _script
import torch

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.common.records import EngineSettings, Sample, Seeds
from gnndrive.disk.engines import choose
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.rounds import CombinedFetch
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.sampling.schedules.shuffled import Shuffled
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.calibration import checked_gap

SEED = 7
VARIANTS: dict[str, dict[str, Any]] = {
    "joint": {"gap": 0, "policy": "lru", "sweep": 1},
    "lru": {"policy": "lru", "sweep": 1},
    "gnndrive": {},
}
"""Arguments of gnndrive's variants: the paper's joint extraction, one batch a sweep, defaults."""
REPORTED = (
    "requests", "bytes_read", "bytes_wanted", "topology", "topology_requests",
    "topology_bytes_read", "buffer_bytes", "engine",
)  # fmt: skip
"""The counters of gnndrive's loaders that the result reports."""


class Meter:
    """Counts batches, prints progress to standard error, and measures time, CPU and memory."""

    def __init__(self, name: str) -> None:
        self.name, self.batches, self.rows = name, 0, 0
        self.samples, self.sample_s = 0, 0.0
        self.set_up_s = self.first_s = 0.0
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def ready(self) -> None:
        """Note the end of the set-up before the first batch; `elapsed_s` includes the set-up."""
        self.set_up_s = time.perf_counter() - self._started

    def batch(self, rows: int) -> None:
        """Count a batch that was touched and is dropped next."""
        self.batches, self.rows = self.batches + 1, self.rows + rows
        seconds = time.perf_counter() - self._started
        self.first_s = self.first_s or seconds
        _script.say(f"{self.name}: batch {self.batches}, {rows} nodes, {seconds:.1f} s")

    def result(self, **more: Any) -> dict[str, Any]:
        """The measured figures, and `more`."""
        return {
            "loader": self.name, "batches": self.batches, "rows": self.rows,
            "elapsed_s": time.perf_counter() - self._started,
            "cpu_s": time.process_time() - self._cpu, "first_s": self.first_s,
            "samples": self.samples, "sample_s": self.sample_s, "set_up_s": self.set_up_s,
        } | more  # fmt: skip


def run_mapped(options: argparse.Namespace) -> dict[str, Any]:
    """Run PyG+, with its own numbers of threads; the result says which were tried."""
    meter = Meter("pyg+")
    loader = gnndrive.NeighborLoader(
        gnndrive.open(options.store), options.fanout, batch_size=options.batch_size, shuffle=True,
        seed=SEED, strategy="pyg+",
    )  # fmt: skip
    return meter.result(gathering=run_batches(loader, options, meter)["gathering"])


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    return run_loader(options, **VARIANTS[options.worker])


def run_loader(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Run a loader with the arguments `more`; the result has the name `options.worker`."""
    meter, loader = Meter(options.worker), make_loader(options, **more)
    stats = run_batches(loader, options, meter)
    meter.samples, meter.sample_s = stats["samples"], stats["sample_s"]
    found = stats["rows_hit"] + stats["rows_waited"]
    return meter.result(
        hit_rate=found / (found + stats["rows_loaded"]),
        **{name: stats[name] for name in REPORTED},
    )  # fmt: skip


def run_batches(
    loader: gnndrive.NeighborLoader, options: argparse.Namespace, meter: Meter
) -> dict[str, Any]:
    with loader:
        batches = iter(loader)
        meter.ready()
        for batch in batches:
            touch(batch.x)
            meter.batch(len(batch.n_id))
            if meter.batches == options.batches:
                break
        return loader.stats()


def run_sampling(options: argparse.Namespace) -> dict[str, Any]:
    """Run sampling alone, with the threads and the topology of gnndrive's loaders."""
    store, meter = gnndrive.open(options.store), Meter("sampling")
    with opened(store, options) as graph:
        meter.ready()
        for sample in samples(store, options, graph, meter, options.samplers):
            meter.batch(len(sample.node))
    return meter.result()


PASSED_ON = (
    "buffer", "engine", "topology", "neighbour_cache", "samplers", "extracting_queue",
    "training_queue", "io_depth", "gap", "sweep",
)  # fmt: skip


def make_loader(options: argparse.Namespace, **more: Any) -> gnndrive.NeighborLoader:
    given = {
        name: getattr(options, name) for name in PASSED_ON if getattr(options, name) is not None
    }
    return gnndrive.NeighborLoader(
        gnndrive.open(options.store), options.fanout, batch_size=options.batch_size, seed=SEED,
        **placed({"shuffle": True} | given | more),
    )  # fmt: skip


@contextmanager
def opened(store: gnndrive.Store, options: argparse.Namespace) -> Iterator[Topology]:
    """Open the graph as gnndrive's loader does, with a ring if the topology reads on demand."""
    choice = make_loader(options).plan().topology
    gap = checked_gap(options.gap, store, SWEEP_BLOCK_BYTES)
    adjacency = Adjacency([store.edges()], choice, gap)
    try:
        adjacency.start(choose(options.engine), EngineSettings())
        yield adjacency.topologies[0]
    finally:
        adjacency.close()


def seeds_of(store: gnndrive.Store, options: argparse.Namespace) -> Iterator[Seeds]:
    schedule = Shuffled(InputNodes(store.num_nodes), options.batch_size, True, False, SEED)
    for window in islice(schedule.windows(0), options.batches):
        yield from window.batches


def samples(
    store: gnndrive.Store, options: argparse.Namespace, graph: Topology, meter: Meter,
    ahead: int, then: Callable[[Sample], Any] = lambda sample: sample,
) -> Iterator[Any]:  # fmt: skip
    """Yield what `then` makes of the samples that gnndrive's loader draws.

    `ahead` threads make as many ahead of the caller. If the topology reads the graph on demand,
    samples share a combined fetch in each hop, as in the loader.
    """
    sampler = Uniform(options.fanout)

    def draw(seeds: Any, graph: Topology) -> Any:
        before = time.perf_counter()
        sample = sampler.sample_nodes(seeds.node, batch_key(SEED, 0, seeds.index), graph)
        meter.samples += 1
        meter.sample_s += time.perf_counter() - before
        return then(sample)

    batches = seeds_of(store, options)
    together = ahead if graph.fetches else 1
    with ThreadPoolExecutor(ahead) as threads:
        waiting: deque[Future[Any]] = deque()
        while drawn := list(islice(batches, together)):
            round: CombinedFetch[Any] = CombinedFetch()
            members = [round.join() for _ in drawn]
            for seeds, member in zip(drawn, members, strict=True):
                waiting.append(threads.submit(draw, seeds, graph.in_group(round)))
                waiting[-1].add_done_callback(member.leave)
            while len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def touch(rows: torch.Tensor) -> None:
    """Read a byte of every page of `rows`."""
    rows.view(torch.uint8).flatten()[::4096].sum()


RUNS = {
    "pyg+": run_mapped,
    **dict.fromkeys(VARIANTS, run_gnndrive),
    "sampling": run_sampling,
}
