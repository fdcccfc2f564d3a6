"""Load the same batches with gnndrive and through a memory map, each in a separate process.

The memory-mapped loader is PyG+ as the papers describe it: it maps the feature file with
MADV_RANDOM, and the sampling thread gathers rows with torch's indexing. It uses gnndrive's sampler
on memory-mapped indices, so it gives the same batches; a checksum of their node ids proves that.
Each process starts with cold caches and, where the machine allows it, runs under one memory limit
that counts the page cache. Each process reports its own peak memory.

Run as a program, `python -m gnndrive.cli.commands.compare STORE LOADER BATCHES SECONDS BATCH_SIZE
FANOUT BUFFER SPLIT`, this module is one such process and prints one JSON object a line.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.commands.malloc import return_large_blocks
from gnndrive.cli.commands.options import parse_fanout
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.measure.memory_limit import Cgroup, Run
from gnndrive.cli.measure.page_cache import drop_file
from gnndrive.cli.report import peak_memory_bytes
from gnndrive.common.errors import GNNDriveError
from gnndrive.common.records import Int64Array
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.sampling.schedules.shuffled import Shuffled
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

LOADERS = ("mapped", "gnndrive")  # in the order in which they run


@dataclass(frozen=True, slots=True)
class Timing:
    """The result of one loader.

    Attributes:
        seconds: wall time from the first request for a batch to the last batch.
        rows: rows that it gathered.
        batches: batches that it gave.
        checksum: CRC-32 of the node ids of all batches, in order.
        peak_bytes: the peak memory of its process, mapped pages included.
    """

    seconds: float
    rows: int
    batches: int
    checksum: int
    peak_bytes: int

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


def drop_cached(store: Store) -> None:
    """Drop the store's features and indices from the page cache; see `drop_file`."""
    for name in ("nodes/x", "nodes/y", "graph/indices"):
        if name in store.info.arrays:
            drop_file(store.table(name).path)


# ---- the two loaders, each in a separate process


def node_ids_of_gnndrive(
    store: Store, options: LoaderOptions, seeds: torch.Tensor
) -> Iterator[Int64Array]:
    """Load batches with gnndrive's loader; yield each batch's node ids, int64 [nodes]."""
    with options.loader(store, seeds, shuffle=True) as loader:
        for batch in loader:
            yield batch.n_id.numpy()


def node_ids_of_mapped(
    store: Store, options: LoaderOptions, seeds: torch.Tensor
) -> Iterator[Int64Array]:
    """Load the same batches through memory maps; yield each batch's node ids, int64 [nodes]."""
    sampler = Uniform(options.fanout)
    topology = mapped(store.edges())
    tables = [store.tensor(name, random=True) for name in store.node_names]
    inputs = InputNodes(len(seeds), seeds)
    schedule = Shuffled(inputs, options.batch_size, True, False, options.seed)
    for window in schedule.windows(0):
        for batch in window.batches:
            key = batch_key(options.seed, 0, batch.index)
            sample = sampler.sample_nodes(batch.node, key, topology)
            nodes = torch.from_numpy(sample.node)
            _ = [table[nodes] for table in tables]
            yield sample.node


def run_child(arguments: Sequence[str]) -> None:
    """Time one loader; print a line of JSON for each batch and a last line with the result."""
    path, kind, batches, seconds_max, batch_size, fanout, buffer, split = arguments
    return_large_blocks()
    options = LoaderOptions(
        fanout=parse_fanout(fanout),
        batch_size=int(batch_size),
        buffer=buffer,
    )
    store = open_store(path)
    load = {"gnndrive": node_ids_of_gnndrive, "mapped": node_ids_of_mapped}[kind]
    rows = done = checksum = 0
    started = perf_counter()
    seconds = 0.0
    for node in islice(load(store, options, store.split(split)), int(batches)):
        seconds = perf_counter() - started
        rows, done, checksum = rows + len(node), done + 1, zlib.crc32(node.tobytes(), checksum)
        print(json.dumps({"done": done}), flush=True)
        if seconds > float(seconds_max):
            break
    result = Timing(seconds, rows, done, checksum, peak_memory_bytes())
    print(json.dumps(asdict(result)), flush=True)


# ---- running the loaders


def compare(
    store: Store,
    options: LoaderOptions,
    batches: int,
    seconds: float,
    *,
    split: str = "train",
    limit: Cgroup | None = None,
    bars: Bars,
    label: str = "",
) -> dict[str, Timing]:
    """Time both loaders on the same batches, each with cold caches.

    Args:
        store: the store to load from; no process may map its files.
        options: how gnndrive loads; the options that define the batches apply to both loaders.
        batches: the most batches.
        seconds: the mapped loader stops after the batch in which this time is over; gnndrive then
            loads as many batches.
        split: the split whose nodes are the seeds.
        limit: a memory limit for each loader's process.
        bars: where progress is shown.
        label: a word in front of the progress.

    Returns:
        The result of each of `LOADERS`, by name.

    Raises:
        GNNDriveError: a loader failed, or the batches differ.
    """
    timings = {}
    for kind in LOADERS:
        drop_cached(store)
        command = [str(store.path), kind, str(batches), str(seconds), str(options.batch_size)]
        command += [",".join(map(str, options.fanout)), str(options.buffer), split]
        with nullcontext() if limit is None else limit.run() as run:
            timings[kind] = _run(command, run, partial(bars, f"{label}{kind}"), batches)
        batches, seconds = timings[kind].batches, math.inf
    if len({timing.checksum for timing in timings.values()}) != 1:
        raise GNNDriveError("the two loaders did not give the same batches: please report this")
    return timings


def _run(
    arguments: list[str], limited: Run | None, progress: Callable[[int, int], None], batches: int
) -> Timing:
    command = [sys.executable, "-m", "gnndrive.cli.commands.compare", *arguments]
    if limited is not None:
        command = limited.command(command)
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    last: dict[str, Any] = {}
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        process_group=0,  # Ctrl-C reaches only this process, which ends the child
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            last = json.loads(line)
            if "done" in last:
                progress(last["done"], batches)
        code = child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if code or "seconds" not in last:
        killed = " (killed, perhaps by the memory limit)" if code == -9 else ""
        raise GNNDriveError(f"the {arguments[1]} loader's process ended with {code}{killed}")
    return Timing(**last)


if __name__ == "__main__":
    run_child(sys.argv[1:])
