"""Seconds a batch from disk of several loaders, in one run under one memory limit.

usage: python bench/epoch.py STORE [--loaders pyg+,joint,lru,gnndrive] [--batches 20]
           [--rounds 3] [--memory-limit 3GiB] [--buffer 1GB] [--topology resident]
           [--json FILE]
       python bench/epoch.py --import-raw GRAPH_DIR STORE     (indptr.npy, indices.npy, x.bin,
       y.npy)

pyg+      adjacency and features memory-mapped (strategy="pyg+"); sampling threads beside gathering
          ones, in the fastest of some ways, which are printed
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
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import _limits
import _script
import numpy as np
import torch
from _limits import Cgroup, limited
from _script import grouped, spread

import gnndrive
from gnndrive.cli.commands.loader_options import placed
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.memory import format_size, parse_size
from gnndrive.common.records import DiskCost, EngineSettings, Sample, Seeds
from gnndrive.disk.engines import choose
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.rounds import CombinedFetch
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.schedules.base import InputNodes, ScheduleContext
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
    return meter.result(**reported(stats, REPORTED))


def reported(stats: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The share of rows that were in the feature buffer, and the counters `names`."""
    found = stats["rows_hit"] + stats["rows_waited"]
    hit_rate = found / (found + stats["rows_loaded"])
    return {"hit_rate": hit_rate} | {name: stats[name] for name in names}


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


def load_epoch(
    loader: gnndrive.NeighborLoader, counters: Sequence[str], most: int | None = None
) -> dict[str, Any]:
    """Touch an epoch's batches, or the first `most`, and drop them; returns seconds, CPU seconds,
    of the first batch, the number of batches, and by how much the counters have grown."""
    before, batches, first = loader.stats(), 0, 0.0
    started, cpu = time.perf_counter(), time.process_time()
    for batch in islice(loader, most):
        touch(batch.x)
        batches += 1
        first = first or time.perf_counter() - started
        del batch
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    _script.say(f"epoch of {batches} batches, {seconds:.1f} s")
    after = loader.stats()
    grown = {name: after[name] - before.get(name, 0) for name in counters}
    return grown | {"s": seconds, "cpu_s": cpu_s, "first_s": first, "batches": batches}


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
    inputs = InputNodes(store.num_nodes)
    schedule = Shuffled(ScheduleContext(inputs, options.batch_size, True, False, SEED))
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


MAPPED = "pyg+"


def spawn(
    which: str, options: argparse.Namespace, group: Cgroup | None, script: str = __file__,
    timeout_s: float | None = None, everything: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Run one loader in a separate process; see `_limits.spawn`."""
    command = [script, *options.given, "--worker", which]
    return _limits.spawn(which, command, group, [options.store], timeout_s, everything)


def spawn_beside_disk(
    which: str, options: argparse.Namespace, group: Cgroup | None, script: str = __file__
) -> tuple[dict[str, Any], DiskCost]:
    """`spawn` a loader; return its result, and the cost of reading just before and after it."""
    store = gnndrive.open(options.store)
    return _limits.beside_disk(store, lambda: spawn(which, options, group, script))


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
    adjacency = result["topology_requests"], result["topology_bytes_read"]
    result["adjacency_s"] = cost.seconds(*adjacency) / result["samples"]
    result["floor_parts_s"] = parts
    result["floor_s"] = max(parts.values())
    result["alone_sample_s"] = sample_s(sampling)


def s_a_batch(result: dict[str, Any]) -> float:
    return float(result["elapsed_s"] / result["batches"])


def of_floor(result: dict[str, Any]) -> float:
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


def summary(name: str, rounds: list[dict[str, Any]]) -> str:
    """Describe the seconds per batch of a loader's rounds, and their multiples of the floor."""
    head = f"{name}, {len(rounds)} rounds" if len(rounds) > 1 else name
    seconds, shares = spread([*map(s_a_batch, rounds)]), spread([*map(of_floor, rounds)])
    return f"{head}: {seconds} s a batch, {shares} of its floor"


def sample_s(result: dict[str, Any]) -> float:
    return float(result["sample_s"] / result["samples"])


def measure(options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
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
    rounds = grouped(results, "loader")
    seconds = {name: median(map(s_a_batch, of)) for name, of in rounds.items()}
    first, lines = results[0]["loader"], []
    for name in [name for name in rounds if name in VARIANTS]:
        line = summary(name, rounds[name])
        if name != first:
            line += f", {seconds[first] / seconds[name]:.2f} times as fast as {first}"
        lines.append(line)
    return lines


def import_raw(folder: Path, path: str) -> None:
    indptr = np.load(folder / "indptr.npy")
    nodes, row_bytes = len(indptr) - 1, (folder / "x.bin").stat().st_size // (len(indptr) - 1)
    features = np.memmap(folder / "x.bin", np.float32, "r", shape=(nodes, row_bytes // 4))
    store = gnndrive.write_store(
        path, indptr=indptr, indices=np.load(folder / "indices.npy", mmap_mode="r"),
        nodes={"x": features, "y": np.load(folder / "y.npy")}, made_by=f"{sys.argv[0]}",
    )  # fmt: skip
    print(store)


def add_loader(made: argparse.ArgumentParser, buffer: str | None) -> None:
    """Add the options that `make_loader` passes on, except a gap and a sweep, and the limit."""
    made.add_argument("--memory-limit", default="3GiB")
    made.add_argument("--buffer", default=buffer)
    made.add_argument("--topology", default="resident")
    made.add_argument("--neighbour-cache", help="of --topology direct")
    made.add_argument("--engine", default="auto")
    made.add_argument("--io-depth", type=int, default=128)
    made.add_argument("--samplers", type=int, default=2)
    made.add_argument("--extracting-queue", type=int)
    made.add_argument("--training-queue", type=int)


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    _script.add_batches(parser, batches=20)
    parser.add_argument("--loaders", type=_script.names, default=[MAPPED, "gnndrive"])
    parser.add_argument("--rounds", type=int, default=1, help="of every loader but pyg+, in turn")
    add_loader(parser, buffer="1GB")
    parser.add_argument("--gap", type=int, help="bytes; default: by the disk's constants")
    parser.add_argument("--sweep", type=int, help="batches a pass; default: by the buffer")
    parser.add_argument("--import-raw", metavar="GRAPH_DIR")
    parser.add_argument("--worker", choices=sorted(RUNS), help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.given = given
    _script.check_names(parser, "loader", options.loaders, RUNS)
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    if options.import_raw:
        import_raw(Path(options.import_raw), options.store)
        return
    if options.worker:
        json.dump(RUNS[options.worker](options) | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        found = measure(options, group) | {"memory": memory}
    _script.show(table(found, options), found, options.json)


if __name__ == "__main__":
    _script.run(main)
