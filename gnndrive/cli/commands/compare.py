"""Load the same batches with gnndrive and through a memory map, each in a separate process.

The memory-mapped loader is PyG+ (`strategies/pyg_plus.py`), which gives the same batches; a
checksum of their node ids proves that. Each process starts with cold caches and, where the machine
allows it, runs under one memory limit that counts the page cache. Each process reports its own peak
memory. `bench_strategies.py` compares all strategies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.commands.loading import Loaded, Loading
from gnndrive.cli.commands.loading_process import LoadingFailed, drop_cached, run_loading
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.measure.memory_limit import Cgroup
from gnndrive.common.errors import GNNDriveError
from gnndrive.store.reader import Store
from gnndrive.strategies.pyg_plus import PyGPlus

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
        given = Loading(
            str(store.path), PyGPlus.name if kind == "mapped" else kind, options.hops,
            options.batch_size, batches, seconds=None if math.isinf(seconds) else seconds,
            split=split, seed=options.seed,
            arguments={} if kind == "mapped" else _arguments(options),
        )  # fmt: skip
        drop_cached([store.path])
        try:
            loaded = run_loading(given, limit, partial(bars, f"{label}{kind}"))
        except LoadingFailed as error:
            raise GNNDriveError(f"the {kind} loader failed: {error}") from None
        timings[kind] = _timing(loaded)
        batches, seconds = timings[kind].batches, math.inf
    if len({timing.checksum for timing in timings.values()}) != 1:
        raise GNNDriveError("the two loaders did not give the same batches: please report this")
    return timings


def _arguments(options: LoaderOptions) -> dict[str, object]:
    """What gnndrive's loader gets beside what defines the batches."""
    return {"buffer": options.buffer, "samplers": options.tuned.samplers}


def _timing(loaded: Loaded) -> Timing:
    return Timing(
        loaded.seconds, loaded.nodes, loaded.batches, loaded.checksums[-1], loaded.peak_bytes
    )
