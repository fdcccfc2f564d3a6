"""The loaders that bench/epoch.py compares; each is one function that runs in a separate process
and returns its figures.

All of them draw the same batches with the same sampler and keys, touch each batch's x and drop it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.cli.measure.drive import QUEUED, drive
from gnndrive.common.array_pool import private_map
from gnndrive.common.ffi import ffi
from gnndrive.common.records import EngineSettings, Landing, Sample, Seeds
from gnndrive.disk.engines import choose
from gnndrive.disk.layouts.base import BLOCK_BYTES, SWEEP_BLOCK_BYTES
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.rounds import CombinedFetch
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.sampling.schedules.shuffled import Shuffled
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.calibration import checked_gap

SEED = 7
AHEAD = 4  # samples that are drawn ahead for the naive ring
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
        self.set_up: dict[str, float] = {"set_up_s": 0.0, "set_up_cpu_s": 0.0}
        self.first_s = 0.0
        self.private_bytes = 0  # peak of the process's private memory, sampled at each batch
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def ready(self) -> None:
        """Note the end of the set-up before the first batch; `elapsed_s` includes the set-up."""
        self.set_up = {
            "set_up_s": time.perf_counter() - self._started,
            "set_up_cpu_s": time.process_time() - self._cpu,
        }

    def batch(self, rows: int) -> None:
        """Count a batch that was touched and is dropped next."""
        self.batches, self.rows = self.batches + 1, self.rows + rows
        self.private_bytes = max(self.private_bytes, private_bytes())
        seconds = time.perf_counter() - self._started
        self.first_s = self.first_s or seconds
        note = f"{self.name}: batch {self.batches}, {rows} nodes, {seconds:.1f} s"
        print(note, file=sys.stderr, flush=True)

    def result(self, **more: Any) -> dict[str, Any]:
        """The measured figures, and `more`."""
        return {
            "loader": self.name, "batches": self.batches, "rows": self.rows,
            "elapsed_s": time.perf_counter() - self._started,
            "cpu_s": time.process_time() - self._cpu, "first_s": self.first_s,
            "samples": self.samples, "sample_s": self.sample_s, "private_bytes": self.private_bytes,
        } | self.set_up | more  # fmt: skip


def private_bytes() -> int:
    """This process's resident memory without mapped files, which the page cache cannot free."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def run_mapped(options: argparse.Namespace) -> dict[str, Any]:
    """Run PyG+, with its own numbers of threads; the result says which were tried."""
    meter = Meter("pyg+")
    loader = gnndrive.NeighborLoader(
        gnndrive.open(options.store), options.fanout, batch_size=options.batch_size, shuffle=True,
        seed=SEED, strategy="pyg+",
    )  # fmt: skip
    return meter.result(gathering=run_batches(loader, options, meter)["gathering"])


def run_naive(options: argparse.Namespace) -> dict[str, Any]:
    """Run the naive ring: one request a row, no rows shared between batches, sampling in parallel.

    Rows land where they would be used, so nothing is gathered or touched, which favours the ring.
    """
    store, meter = gnndrive.open(options.store), Meter("naive")
    file = store.table("x")
    table = TableLayout(file, BLOCK_BYTES, 0, separate=True)
    with opened(store, options) as graph:
        drawn = samples(store, options, graph, meter, AHEAD)
        settings = EngineSettings(options.io_depth, BLOCK_BYTES)
        driven = drive([naive_reads(table, drawn, meter)], "uring", settings)
    table.close()
    return meter.result(
        requests=driven.requests, bytes_read=driven.nbytes,
        bytes_wanted=meter.rows * file.row_bytes, hit_rate=0.0,
    )  # fmt: skip


def naive_reads(table: TableLayout, drawn: Iterator[Sample], meter: Meter) -> Iterator[ReadJob]:
    """A plan for each batch, into memory that is used again when its batch has landed."""
    stride, parts = table.file.row_bytes, QUEUED + 1
    memory: list[Any] = [None] * parts
    for number, sample in enumerate(drawn):
        rows = len(sample.node)
        part = number % parts
        if memory[part] is None or len(memory[part]) < rows * stride:
            memory[part] = private_map(rows * stride * 9 // 8)
        owner = ffi.from_buffer("uint8_t[]", memory[part])
        landing = Landing(int(ffi.cast("uintptr_t", owner)), stride, direct=True, owner=owner)
        slots = torch.arange(rows, dtype=torch.int32).numpy()
        yield table.locate(sample.node, slots, landing)
        meter.batch(rows)


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    """Run one of gnndrive's variants, with its arguments of `VARIANTS`."""
    return run_loader(options, **VARIANTS[options.worker])


def run_loader(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Run a loader with the arguments `more`; the result has the name `options.worker`."""
    meter, loader = Meter(options.worker), make_loader(options, **more)
    plan = {line.what: line.nbytes for line in loader.plan().lines}
    stats = run_batches(loader, options, meter)
    meter.samples, meter.sample_s = stats["samples"], stats["sample_s"]
    found = stats["rows_hit"] + stats["rows_waited"]
    return meter.result(
        hit_rate=found / (found + stats["rows_loaded"]),
        **{name: stats[name] for name in REPORTED}, plan=plan,
    )  # fmt: skip


def run_batches(
    loader: gnndrive.NeighborLoader, options: argparse.Namespace, meter: Meter
) -> dict[str, Any]:
    """Touch batches and drop them; returns the loader's counters."""
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


class TrimmedSAGE(torch.nn.Module):
    """GraphSAGE that computes in each layer only the nodes that later layers need.

    `trim_to_layer` drops the rows that a layer need not read. The convolution also gets its target
    nodes as a separate tensor, so that it does not write rows that later layers do not read: nine
    tenths of the first layer's memory.
    """

    def __init__(self, features: int, hidden: int, classes: int, layers: int) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (layers - 1), classes]
        self.convs = torch.nn.ModuleList(map(SAGEConv, sizes[:-1], sizes[1:]))

    def forward(self, batch: Data) -> torch.Tensor:
        """Logits of the seeds, [batch_size, classes]."""
        x, kept, edge_index = batch.x, batch.n_id, batch.edge_index
        nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
        for layer, conv in enumerate(self.convs):
            kept, edge_index, _ = trim_to_layer(layer, nodes, edges, kept, edge_index)
            targets = len(kept) - nodes[-1 - layer]
            x = conv((x, x[:targets]), edge_index)
            if layer + 1 < len(self.convs):
                x = x.relu()
        return x[: batch.batch_size]


def run_training(options: argparse.Namespace) -> dict[str, Any]:
    """Train a small trimmed GraphSAGE, to show that the memory limit does not kill it."""
    store = gnndrive.open(options.store)
    torch.manual_seed(SEED)
    model = TrimmedSAGE(store.num_features, 16, store.num_classes, len(options.fanout))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    meter = Meter("training")
    with make_loader(options) as loader:
        for batch in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            meter.batch(len(batch.n_id))
            if meter.batches == options.batches:
                break
    return meter.result()


PASSED_ON = (
    "buffer", "engine", "topology", "neighbour_cache", "samplers", "extracting_queue",
    "training_queue", "io_depth", "gap", "sweep",
)  # fmt: skip


def make_loader(options: argparse.Namespace, **more: Any) -> gnndrive.NeighborLoader:
    """Make the loader that is measured."""
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
    """Yield the seeds of the first `options.batches` batches of the epoch."""
    schedule = Shuffled(InputNodes(store.num_nodes), options.batch_size, True, False, SEED)
    for window in islice(schedule.windows(0), options.batches):
        yield from window.batches


def samples(
    store: gnndrive.Store, options: argparse.Namespace, graph: Topology, meter: Meter,
    ahead: int = 0,
) -> Iterator[Sample]:  # fmt: skip
    """Yield the samples that gnndrive's loader draws.

    `ahead` threads draw samples ahead of the caller. If the topology reads the graph on demand,
    samples share a combined fetch in each hop, as in the loader.
    """
    sampler = Uniform(options.fanout)

    def draw(seeds: Any, graph: Topology) -> Sample:
        before = time.perf_counter()
        sample = sampler.sample_nodes(seeds.node, batch_key(SEED, 0, seeds.index), graph)
        meter.samples += 1
        meter.sample_s += time.perf_counter() - before
        return sample

    batches = seeds_of(store, options)
    if not ahead:
        yield from (draw(seeds, graph) for seeds in batches)
        return
    together = ahead if graph.fetches else 1
    with ThreadPoolExecutor(ahead) as threads:
        waiting: deque[Future[Sample]] = deque()
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
    "naive": run_naive,
    **dict.fromkeys(VARIANTS, run_gnndrive),
    "sampling": run_sampling,
    "training": run_training,
}
