"""`gnndrive demo`: a graph with planted communities, a GraphSAGE trained on it with little memory,
and the same batches through a memory map.

Everything is measured in one run on this machine, and what the figures depend on is said beside
them: how the caches were made cold, and under which memory limit. When not to use it: to compare
disks or papers; bench/ does that with graphs that are really larger than memory.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console

from gnndrive.cli.commands.compare import LOADERS, Timing, compare, drop_cached, memory_limit
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.commands.train import LoaderOptions, SplitBatches, run_training
from gnndrive.cli.report import final_report, say
from gnndrive.cli.report.text import si
from gnndrive.cli.training import TrainSettings
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.generate import planted_communities
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

DIM, CLASSES = 256, 16
OPTIONS = LoaderOptions(fanout=(10, 10), batch_size=1024, seed=0, buffer="256MB")
HIDDEN, DROPOUT, LR = 64, 0.5, 0.003
TRAIN_BATCHES, TEST_BATCHES = 100, 20
COLD_BATCHES, LIMITED_BATCHES = 5, 20
LIMIT_BYTES = 1_000_000_000
MAPPED_S_MAX = 45.0  # so that the demo ends in its time on a slow disk too


def run(folder: Path, nodes: int, keep: bool) -> None:
    """The demo, from nothing to its figures.

    Args:
        folder: where the graph is generated, or already lies.
        nodes: of the graph.
        keep: whether it is left there.

    Raises:
        ConfigError, StoreError, ReadError: what is wrong, with the remedy.
    """
    started = perf_counter()
    console = Console(stderr=True)
    path = folder / f"planted-{nodes}x{DIM}.gnn"
    try:
        store = _graph(path, nodes, console)
        say(console, f"[2/3] GraphSAGE, {OPTIONS.buffer} for features, caches cold")
        print(_train(store, console))
        del store  # what a process maps stays in the page cache, however it is dropped
        say(console, "[3/3] the same batches through gnndrive and through a memory map")
        print(_compare(path))
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
    place = f"; the graph stays in {path}" if keep else ""
    print(f"the demo took {perf_counter() - started:.0f} s{place}")


def _graph(path: Path, nodes: int, console: Console) -> Store:
    """The generated store: the one that is there, if it is whole, or a new one."""
    size = format_size(nodes * DIM * 4)
    try:
        store = open_store(path)
        if (store.num_nodes, store.num_features, store.num_classes) == (nodes, DIM, CLASSES):
            say(console, f"[1/3] {path} is there: {nodes:,} nodes, {size} of features")
            return store
    except StoreError:
        pass  # none, or damaged
    say(console, f"[1/3] generating {nodes:,} nodes with {CLASSES} communities, {size} of features")
    path.parent.mkdir(parents=True, exist_ok=True)
    seeds = OPTIONS.batch_size
    fractions = {
        "train": min(TRAIN_BATCHES * seeds / nodes, 0.8),
        "test": min(TEST_BATCHES * seeds / nodes, 0.2),
    }
    with Bars(console) as bars:
        planted_communities(
            path, nodes, DIM, CLASSES, fractions=fractions, overwrite=True, progress=bars
        )
    return open_store(path)


def _train(store: Store, console: Console) -> str:
    drop_cached(store)
    torch.manual_seed(0)
    batches = SplitBatches(store, OPTIONS, epochs=1, console=console)
    settings = TrainSettings(epochs=1, lr=LR, evaluate=("test",))
    history = run_training(batches, "sage", HIDDEN, DROPOUT, settings)
    accuracy = history.epochs[-1].accuracy["test"]
    return final_report(
        batches.stats,
        title="training",
        results={"test accuracy": f"{accuracy:.3f}; by chance {1 / store.num_classes:.3f}"},
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """One comparison: how many batches, under which limit."""

    batches: int
    limit: Path | None
    said: str


def _compare(path: Path) -> str:
    """Both loaders on the same batches: as the machine is, and under a limit where it may be."""
    store = open_store(path)  # a new one: whoever maps the files keeps their caches warm
    with memory_limit(LIMIT_BYTES) as group, Bars() as bars:
        free = f"the first {COLD_BATCHES} batches, no memory limit (the page cache may keep all)"
        settings = [_Setting(COLD_BATCHES, None, free)]
        if group is not None:
            limited = f"{LIMITED_BATCHES} batches, each in {format_size(LIMIT_BYTES)} of memory"
            settings.append(
                _Setting(LIMITED_BATCHES, group, f"{limited}, page cache counted (cgroup)")
            )
        lines = [
            "gnndrive and a memory-mapped loader (MADV_RANDOM, the same sampler in one thread, "
            "torch's gather) on the same batches,",
            "each in a process of its own, files dropped from the page cache before "
            "(posix_fadvise DONTNEED)",
        ]
        for setting in settings:
            label = "limited " if setting.limit else ""
            timings = compare(
                store,
                OPTIONS,
                setting.batches,
                MAPPED_S_MAX,
                limit=setting.limit,
                bars=bars,
                label=label,
            )
            lines += [f"  {setting.said}", *_table(timings)]
    if group is None:
        lines.append(
            "  no memory limit could be set (that needs root and a memory cgroup), and the "
            "features fit into this machine's page cache:\n  with more batches the mapped loader "
            "reads from memory; it is for graphs larger than memory that gnndrive is made"
        )
    return "\n".join(lines)


def _table(timings: dict[str, Timing]) -> list[str]:
    lines = [
        f"    {kind:<8} : {t.batches} batches, {t.seconds:5.1f} s, "
        f"{t.seconds / t.batches:.3f} s a batch, {si(t.rows_per_s)} rows/s, "
        f"peak memory {format_size(t.peak_bytes)}"
        for kind, t in timings.items()
    ]
    mapped, ours = (timings[kind] for kind in LOADERS)
    ratio = mapped.seconds / ours.seconds
    return [*lines, f"    ratio    : {ratio:.2f} (mapped / gnndrive)"]
