"""`load`: load some batches in one way, and time them; what each process of a comparison does.

Run as a program, `python -m gnndrive.cli.commands.loading JSON`, this module is such a process.
JSON has the attributes of a `Loading`. It prints one JSON object a line: the number of batches
after each batch, and at the end the attributes of `Loaded`, or "failed" with the reason.
`run_loading` starts it, with cold files and perhaps under a limit.

Some batches warm up: the feature buffer or the page cache fills, and the first batch waits for
everything. Then others are timed, from the last batch of the warm-up to the last batch, while the
loader works on batches behind it, as in the middle of an epoch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from pathlib import Path
from time import perf_counter
from typing import Any

from gnndrive.cli.commands.loader_options import placed
from gnndrive.cli.measure.memory_limit import Cgroup
from gnndrive.cli.measure.page_cache import drop_file
from gnndrive.cli.report import peak_memory_bytes
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

NOTHING = "nothing"
"""In place of a strategy: opens the store and loads nothing, to see what memory that takes."""

_SUMS = {
    "rows_loaded": ("rows_loaded",), "rows_found": ("rows_hit", "rows_waited"),
    "requests": ("requests", "topology_requests"),
    "bytes_read": ("bytes_read", "topology_bytes_read"),
    "samples": ("samples",), "evictions": ("evictions",),
    "windows": ("windows",), "window_load_s": ("window_load_s",),
}  # fmt: skip
"""Counters of a `Loaded`, and those of `NeighborLoader.stats` that each is the sum of."""
FACTS = ("engine", "topology", "gathering")


@dataclass(frozen=True, slots=True)
class Loading:
    """What one process loads.

    Attributes:
        loader: a strategy, as `strategy=` takes it, or `NOTHING`.
        fanout, batch_size, seed: as for `NeighborLoader`; batches are shuffled.
        batches, warm_up: how many batches are timed, and how many come before these.
        seconds: the warm-up ends with the batch in which it has taken so long, and so does the
            timed part; None: neither ends early.
        split: the split whose nodes are the seeds; None: all nodes.
        arguments: further arguments of `NeighborLoader`.
    """

    store: str
    loader: str
    fanout: tuple[int, ...]
    batch_size: int
    batches: int
    warm_up: int = 0
    seconds: float | None = None
    split: str | None = None
    seed: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one process has measured; counts are of the timed batches.

    Attributes:
        seconds: wall time of the timed batches.
        batches, warm_up: how many were timed, and how many came before.
        first_s: seconds from making the loader to its first batch.
        checksums: CRC-32 of the node ids of all batches so far, after each batch, the warm-up
            included.
        peak_bytes: the peak memory of the process, mapped pages included.
        counters: by the names of `_SUMS`.
        evictions_before: rows that had left the feature buffer when the timing began.
        holds_all: whether the feature buffer has room for all rows.
        levels: what the loader's plan says of its pack, windows or superbatches.
        facts: how it loads in words, by the names in `FACTS`.
    """

    seconds: float = 0.0
    batches: int = 0
    warm_up: int = 0
    first_s: float = 0.0
    nodes: int = 0
    edges: int = 0
    checksums: tuple[int, ...] = ()
    peak_bytes: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    evictions_before: int = 0
    holds_all: bool = False
    levels: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def loader_of(given: Loading, store: Store) -> NeighborLoader:
    """The loader of what a process loads."""
    seeds = None if given.split is None else store.split(given.split)
    if (store.num_nodes if seeds is None else len(seeds)) == 0:
        raise ConfigError(f"{store.path} has no nodes to begin with: give another --split")
    return NeighborLoader(
        store, list(given.fanout), seeds, batch_size=given.batch_size, shuffle=True,
        seed=given.seed, strategy=given.loader, **placed(given.arguments),
    )  # fmt: skip


def load(given: Loading) -> Loaded:
    """Load and time batches; print a line of JSON after each."""
    store = open_store(given.store)
    if given.loader == NOTHING:
        return Loaded(peak_bytes=peak_memory_bytes())
    started = perf_counter()
    with loader_of(given, store) as loader:
        return _timed(given, loader, started)


def _timed(given: Loading, loader: NeighborLoader, started: float) -> Loaded:
    limit = float("inf") if given.seconds is None else given.seconds
    begun = None if given.warm_up else started
    before: dict[str, float] = {}
    first = now = started
    nodes = edges = warm_up = batches = checksum = 0
    checksums: list[int] = []
    for batch in chain.from_iterable(repeat(loader)):  # epoch after epoch
        now = perf_counter()
        checksum = zlib.crc32(batch.n_id.cpu().numpy().tobytes(), checksum)
        checksums.append(checksum)
        print(json.dumps({"done": len(checksums)}), flush=True)
        if len(checksums) == 1:
            first = now
        if begun is not None:
            nodes, edges = nodes + len(batch.n_id), edges + batch.edge_index.shape[1]
            batches += 1
            if batches == given.batches or now - begun >= limit:
                break
        elif len(checksums) == given.warm_up or now - started >= limit:
            warm_up, before = len(checksums), _counters(loader.stats())
            begun = perf_counter()
    assert begun is not None, "epochs have no end"
    stats, plan = loader.stats(), loader.plan()
    counted = {name: value - before.get(name, 0) for name, value in _counters(stats).items()}
    evictions = int(before.get("evictions", 0))
    facts = {name: str(stats[name]) for name in FACTS if name in stats}
    return Loaded(
        now - begun, batches, warm_up, first - started, nodes, edges, tuple(checksums),
        peak_memory_bytes(), counted, evictions, plan.holds_everything, plan.levels, facts,
    )  # fmt: skip


def _counters(stats: dict[str, Any]) -> dict[str, float]:
    """The counters of a loader's stats by the names of `Loaded.counters`."""
    return {name: sum(stats.get(one, 0) for one in names) for name, names in _SUMS.items()}


# ---- the process


class LoadingFailed(GNNDriveError):
    """The process could not load the batches; the message is the reason."""


def drop_cached(folders: Iterable[Path]) -> None:
    """Drop all arrays in these folders from the page cache."""
    for folder in folders:
        for path in sorted(folder.rglob("*.npy")):
            drop_file(path)


def run_loading(
    given: Loading, limit: Cgroup | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Loaded:  # fmt: skip
    """Load batches in a process of its own, which ends when this call does, whatever happens;
    LoadingFailed: it failed, or was killed."""
    command = [sys.executable, "-m", "gnndrive.cli.commands.loading", json.dumps(asdict(given))]
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    last: dict[str, Any] = {}
    with nullcontext() if limit is None else limit.run() as run, tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command if run is None else run.command(command),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment,
            process_group=0,  # Ctrl-C reaches only this process, which ends the child
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                last = json.loads(line)
                if "done" in last:
                    progress(last["done"], given.warm_up + given.batches)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        said.seek(0)
        complaint = said.read().decode(errors="replace").strip()
    if "failed" in last:
        raise LoadingFailed(last["failed"])
    if code or "seconds" not in last:
        raise LoadingFailed(_why(code, complaint, limit is not None))
    if complaint:
        print(complaint, file=sys.stderr)
    return Loaded(**last)


def _why(code: int, complaint: str, limited: bool) -> str:
    if code == -signal.SIGKILL:
        return "killed, probably by the memory limit" if limited else "killed (signal 9)"
    end = f"its process ended with {code}"
    return f"{end}: {complaint.splitlines()[-1]}" if complaint else end


def main(text: str) -> None:
    """Load what a `Loading` in JSON says, and print how it ended."""
    fields = json.loads(text)
    given = Loading(**fields | {"fanout": tuple(fields["fanout"])})
    try:
        print(json.dumps(asdict(load(given))), flush=True)
    except (GNNDriveError, NotImplementedError) as error:
        print(json.dumps({"failed": str(error)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
