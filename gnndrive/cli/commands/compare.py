"""The same batches through gnndrive and through a memory map, each in a process of its own.

The memory-mapped loader is PyG+ as the papers have it: the feature file mapped with MADV_RANDOM,
rows gathered by torch's indexing in the thread that samples. It gets gnndrive's sampler on
memory-mapped indices, and so the very same batches, which a checksum of their node ids shows.
Processes of their own start with cold caches and, where the machine allows it, run under one
memory limit that counts the page cache; what each held at most is its own figure too.

Run as a program, `python -m gnndrive.cli.commands.compare STORE LOADER BATCHES SECONDS BATCH_SIZE
FANOUT BUFFER SPLIT`, it is one such process and prints a JSON object a line.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from gnndrive.cli.commands.malloc import return_large_blocks
from gnndrive.cli.commands.options import parse_fanout
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.commands.train import LoaderOptions
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

LOADERS = ("mapped", "gnndrive")  # in the order that they run


@dataclass(frozen=True, slots=True)
class Timing:
    """What one loader did.

    Attributes:
        seconds: wall time from the first request for a batch to the last batch.
        rows: rows that it gathered.
        batches: their number.
        checksum: of the node ids of all batches, in order.
        peak_bytes: the most memory of its process, mapped pages included.
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


def drop_file(path: str | os.PathLike[str]) -> None:
    """Drop a file from the page cache; needs no rights.

    Pages that some process still maps stay, so this process must not.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # dirty pages are not dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


# ---- the two loaders, each in a process of its own


def node_ids_of_gnndrive(
    store: Store, options: LoaderOptions, seeds: torch.Tensor
) -> Iterator[Int64Array]:
    """Load batches with gnndrive's loader; gives each one's node ids."""
    with options.loader(store, seeds, shuffle=True) as loader:
        for batch in loader:
            yield batch.n_id.numpy()


def node_ids_of_mapped(
    store: Store, options: LoaderOptions, seeds: torch.Tensor
) -> Iterator[Int64Array]:
    """Load the same batches through memory maps; gives each one's node ids."""
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
    """Time one loader and print what it did as JSON, a line a batch and a last one."""
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


# ---- running them


def compare(
    store: Store,
    options: LoaderOptions,
    batches: int,
    seconds: float,
    *,
    split: str = "train",
    limit: Path | None = None,
    bars: Bars,
    label: str = "",
) -> dict[str, Timing]:
    """Time both loaders on the same batches, caches cold for each.

    Args:
        store: what to load from; its files must not be mapped anywhere.
        options: how gnndrive loads; what concerns the batches holds for both.
        batches: how many at most.
        seconds: the mapped loader stops after the batch in which this much time is up; gnndrive
            then gets as many batches.
        split: the seeds.
        limit: a memory cgroup to run each in, from `memory_limit`.
        bars: where progress is shown.
        label: a word in front of it.

    Returns:
        What each of `LOADERS` did.

    Raises:
        GNNDriveError: one failed, or their batches are not the same.
    """
    timings = {}
    for kind in LOADERS:
        drop_cached(store)
        command = [str(store.path), kind, str(batches), str(seconds), str(options.batch_size)]
        command += [",".join(map(str, options.fanout)), str(options.buffer), split]
        timings[kind] = _run(command, limit, partial(bars, f"{label}{kind}"), batches)
        batches, seconds = timings[kind].batches, math.inf
    if len({timing.checksum for timing in timings.values()}) != 1:
        raise GNNDriveError("the two loaders did not give the same batches: please report this")
    return timings


def _run(
    arguments: list[str], limit: Path | None, progress: Callable[[int, int], None], batches: int
) -> Timing:
    command = [sys.executable, "-m", "gnndrive.cli.commands.compare", *arguments]
    if limit is not None:  # from its first allocation on, hence by a shell and not in the process
        enter = f'echo $$ >"{limit}/cgroup.procs" && exec "$@"'
        command = ["/bin/sh", "-c", enter, "sh", *command]
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    last: dict[str, Any] = {}
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        process_group=0,  # Ctrl-C is for this process, which ends the child
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


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path | None]:
    """A memory cgroup that counts the page cache, or None where this process may not make one.

    Args:
        limit_bytes: the most memory of what runs in it.
    """
    group, file = _make_group()
    try:
        if group is not None:
            try:
                (group / file).write_text(str(limit_bytes))
            except OSError:
                _remove(group)
                group = None
        yield group
    finally:
        if group is not None:
            _remove(group)


def _make_group() -> tuple[Path | None, str]:
    root, name = Path("/sys/fs/cgroup"), f"gnndrive-{os.getpid()}-{secrets.token_hex(3)}"
    for parent, file in ((root / "memory", "memory.limit_in_bytes"), (root, "memory.max")):
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / file).exists():
            return group, file
        _remove(group)
    return None, ""


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:  # something still runs in it; it is empty of us and harms nobody
        return


if __name__ == "__main__":
    run_child(sys.argv[1:])
