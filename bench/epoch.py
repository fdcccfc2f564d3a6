"""How much faster is a batch from disk with gnndrive than with memory-mapped arrays (PyG+)?

usage: python bench/epoch.py STORE [--batches 20] [--memory-limit 3GiB] [--buffer 1GB] [--json]
       python bench/epoch.py --import-raw GRAPH_DIR STORE     (indptr.npy, indices.npy, x.bin,
       y.npy)

Both loaders run in a process of their own, one after the other, on the same store and the same
sampled batches (same sampler, same keys; it stands in for torch-sparse's, which PyG+ would use and
which is slower). Each batch's x is touched and dropped. PyG+ is: adjacency and features
memory-mapped with MADV_RANDOM, sample, then gather, in one thread.

As root on cgroup v1 each process runs under the memory limit, page cache counted, after dropping
all caches. Otherwise there is no limit, the store's own pages are dropped with posix_fadvise, and
the output says so; the page cache then helps the mapped loader.

`--train 10` trains a GraphSAGE of 16 hidden units with trimming on that many batches instead.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

import gnndrive
from gnndrive.records import TableFile
from gnndrive.report.text import peak_memory_bytes
from gnndrive.samplers.base import batch_key
from gnndrive.samplers.uniform import Uniform
from gnndrive.schedules.base import InputNodes
from gnndrive.schedules.shuffled import Shuffled
from gnndrive.sizes import format_size, parse_size
from gnndrive.store.disk import DEFAULT_GAP_BYTES
from gnndrive.topologies.mmap import Mmap

SEED = 7


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    """Iterate the loader, touching each batch's x."""
    store = gnndrive.open(options.store)
    loader = make_loader(store, options)
    rows, started = 0, time.perf_counter()
    with loader:
        for index, batch in enumerate(loader):
            touch(batch.x)
            rows += len(batch.n_id)
            note("gnndrive", index, len(batch.n_id), started)
            if index + 1 == options.batches:
                break
        elapsed = time.perf_counter() - started
        stats = loader.stats()
    return {"loader": "gnndrive", "rows": rows, "elapsed_s": elapsed, "stats": stats}


def run_mapped(options: argparse.Namespace) -> dict[str, Any]:
    """PyG+: sample on mapped indices, gather from mapped rows."""
    store = gnndrive.open(options.store)
    features = mapped_random(store.table("x"))
    topology = Mmap(store.indptr, store.indices, str(store.indices_path))
    sampler = Uniform(options.fanout)
    inputs = InputNodes(store.num_nodes)
    schedule = Shuffled(inputs, options.batch_size, True, False, SEED)
    rows, sample_s, started = 0, 0.0, time.perf_counter()
    for index, window in enumerate(schedule.windows(0)):
        before = time.perf_counter()
        sample = sampler.sample(window[0].node, batch_key(SEED, 0, index), topology)
        sample_s += time.perf_counter() - before
        touch(features[torch.from_numpy(sample.node)])
        rows += len(sample.node)
        note("PyG+", index, len(sample.node), started)
        if index + 1 == options.batches:
            break
    elapsed = time.perf_counter() - started
    return {"loader": "PyG+", "rows": rows, "elapsed_s": elapsed, "sample_s": sample_s}


class TrimmedSAGE(torch.nn.Module):
    """GraphSAGE that computes, layer by layer, only the nodes that later layers need.

    `trim_to_layer` drops what a layer need not read; giving the convolution its targets apart also
    drops what it need not write, which is nine tenths of the first layer's memory.
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
    """Train a small trimmed GraphSAGE; what counts is that it is not killed."""
    store = gnndrive.open(options.store)
    torch.manual_seed(SEED)
    model = TrimmedSAGE(store.num_features, 16, store.num_classes, len(options.fanout))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loader = make_loader(store, options)
    rows, started = 0, time.perf_counter()
    with loader:
        for index, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            rows += len(batch.n_id)
            note(f"loss {loss.item():.3f}", index, len(batch.n_id), started)
            if index + 1 == options.batches:
                break
    elapsed = time.perf_counter() - started
    return {"loader": "training", "rows": rows, "elapsed_s": elapsed}


def make_loader(store: gnndrive.Store, options: argparse.Namespace) -> gnndrive.NeighborLoader:
    """The loader that is measured."""
    return gnndrive.NeighborLoader(
        store, options.fanout, batch_size=options.batch_size, shuffle=True, seed=SEED,
        buffer=options.buffer, engine=options.engine, gap=options.gap,
        policy=options.policy, sweep=options.sweep,
    )  # fmt: skip


RUNS = {"gnndrive": run_gnndrive, "pyg+": run_mapped, "training": run_training}


def touch(rows: torch.Tensor) -> None:
    """Read something of every page of `rows`."""
    rows.view(torch.uint8).flatten()[::4096].sum()


def mapped_random(table: TableFile) -> torch.Tensor:
    """The rows as a mapped tensor without read-ahead (`Mmap` does the same for the indices)."""
    with open(table.path, "rb") as file:
        rows = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    rows.madvise(mmap.MADV_RANDOM)
    dtype = getattr(torch, table.dtype)
    values = torch.frombuffer(rows, dtype=torch.uint8, offset=table.data_offset).view(dtype)
    return values.view(table.row_count, *table.row_shape)


def note(who: str, index: int, nodes: int, started: float) -> None:
    """A line of progress on standard error."""
    seconds = time.perf_counter() - started
    print(f"{who}: batch {index}, {nodes} nodes, {seconds:.1f} s", file=sys.stderr, flush=True)


class Cgroup:
    """A cgroup v1 memory group for child processes; None of it without root."""

    def __init__(self, limit: int) -> None:
        self.folder = Path("/sys/fs/cgroup/memory") / f"gnndrive{os.getpid()}"
        self.folder.mkdir()
        (self.folder / "memory.limit_in_bytes").write_text(str(limit))

    def enter(self) -> None:
        """Put the calling process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """The most bytes charged so far; starts anew."""
        file = self.folder / "memory.max_usage_in_bytes"
        peak = int(file.read_text())
        file.write_text("0")
        return peak

    def close(self) -> None:
        """Remove the group."""
        self.folder.rmdir()


def may_limit() -> bool:
    """Whether memory can be limited and caches dropped here."""
    return os.geteuid() == 0 and os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK)


def drop_caches(store: Path, everything: bool) -> None:
    """Make the store's files cold."""
    os.sync()
    if everything:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return
    for path in store.rglob("*.npy"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def spawn(which: str, options: argparse.Namespace, group: Cgroup | None) -> dict[str, Any]:
    """Run one loader in a process of its own, cold, and return what it prints."""
    drop_caches(Path(options.store), group is not None)
    command = [
        sys.executable, __file__, options.store, "--worker", which,
        "--batches", str(options.batches), "--batch-size", str(options.batch_size),
        "--fanout", ",".join(map(str, options.fanout)), "--buffer", options.buffer,
        "--engine", options.engine, "--gap", str(options.gap),
        "--policy", options.policy, "--sweep", str(options.sweep),
    ]  # fmt: skip
    enter = None if group is None else group.enter
    child = subprocess.run(command, preexec_fn=enter, stdout=subprocess.PIPE, check=False)
    if child.returncode:
        killed = " (killed: out of memory?)" if child.returncode == -9 else ""
        sys.exit(f"{which} ended with {child.returncode}{killed}")
    result: dict[str, Any] = json.loads(child.stdout)
    if group is not None:
        result["peak_bytes"] = group.peak()
    return result


def main() -> None:
    options = parse()
    if options.import_raw:
        import_raw(Path(options.import_raw), options.store)
        return
    if options.worker:
        result = RUNS[options.worker](options)
        result["peak_bytes"] = peak_memory_bytes()
        json.dump(result, sys.stdout)
        return
    limit = parse_size(options.memory_limit, "--memory-limit")
    group = Cgroup(limit) if may_limit() else None
    try:
        names = ["training"] if options.train else ["pyg+", "gnndrive"]
        results = [spawn(name, options, group) for name in names]
    finally:
        if group is not None:
            group.close()
    report(results, options, f"{format_size(limit)} cgroup, all caches dropped" if group else None)


def report(results: list[dict[str, Any]], options: argparse.Namespace, how: str | None) -> None:
    """Print a table, or JSON."""
    how = how or "no memory limit (not root), the store's pages dropped"
    if options.json:
        json.dump({"memory": how, "results": results}, sys.stdout, indent=2)
        return
    fanout = ",".join(map(str, options.fanout))
    print(f"{options.batches} batches of {options.batch_size}, fanout {fanout}; {how}")
    for result in results:
        batches = options.batches
        line = f"{result['loader']:<9} {result['elapsed_s'] / batches:7.2f} s a batch"
        line += f"  {result['rows'] / result['elapsed_s'] / 1e3:7.0f} k rows/s"
        line += f"  peak {format_size(result['peak_bytes'])}"
        if "sample_s" in result:
            line += f"  (sampling {result['sample_s'] / batches:.2f} s of it)"
        if stats := result.get("stats"):
            found = stats["rows_hit"] + stats["rows_waited"]
            line += f"  hit rate {found / (found + stats['rows_loaded']):.0%}, {stats['engine']}"
        print(line)
    if len(results) == 2:
        ratio = results[0]["elapsed_s"] / results[1]["elapsed_s"]
        print(f"gnndrive is {ratio:.2f} times as fast")


def import_raw(folder: Path, path: str) -> None:
    """Turn raw arrays into a store."""
    indptr = np.load(folder / "indptr.npy")
    nodes, row_bytes = len(indptr) - 1, (folder / "x.bin").stat().st_size // (len(indptr) - 1)
    features = np.memmap(folder / "x.bin", np.float32, "r", shape=(nodes, row_bytes // 4))
    store = gnndrive.write_store(
        path, indptr=indptr, indices=np.load(folder / "indices.npy", mmap_mode="r"),
        nodes={"x": features, "y": np.load(folder / "y.npy")}, made_by=f"{sys.argv[0]}",
    )  # fmt: skip
    print(store)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", type=lambda text: [int(n) for n in text.split(",")],
                        default=[10, 10, 10])  # fmt: skip
    parser.add_argument("--memory-limit", default="3GiB")
    parser.add_argument("--buffer", help="default: 1GB, and 450MB with --train")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--gap", type=int, default=DEFAULT_GAP_BYTES, help="0: as in the paper")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--sweep", type=lambda text: text if text == "auto" else int(text),
                        default="auto")  # fmt: skip
    parser.add_argument("--train", type=int, metavar="BATCHES")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--import-raw", metavar="GRAPH_DIR")
    parser.add_argument("--worker", choices=sorted(RUNS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        options.batches = options.train
    options.buffer = options.buffer or ("450MB" if options.train else "1GB")
    return options


if __name__ == "__main__":
    main()
