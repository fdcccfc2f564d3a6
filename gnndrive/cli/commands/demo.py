"""`gnndrive demo`: generate a graph with communities, train a GraphSAGE on it with little memory,
and load the same batches through a memory map.

The memory-mapped loader is PyG+ (`strategies/pyg_plus.py`); a checksum of the node ids proves that
its batches are the same. Each loads in a process of its own, with cold caches, and, where the
machine allows it, under one memory limit that counts the page cache. Do not use the demo to compare
disks or papers: bench/ does that with graphs that are really larger than memory.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from rich.console import Console

from gnndrive.cli.commands.loader_options import SAMPLERS, LoaderOptions
from gnndrive.cli.commands.loading import Loaded, Loading, LoadingFailed, drop_cached, run_loading
from gnndrive.cli.commands.split_batches import SplitBatches
from gnndrive.cli.commands.train import run_training
from gnndrive.cli.measure.memory_limit import Cgroup, memory_limit
from gnndrive.cli.report import Bars, final_report, say
from gnndrive.cli.report.text import si
from gnndrive.cli.training import TrainSettings
from gnndrive.common.errors import GNNDriveError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.generate import planted_communities
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.strategies.pyg_plus import PyGPlus

DIM, CLASSES = 256, 16
OPTIONS = LoaderOptions(buffer="256MB")
HIDDEN, DROPOUT, LR = 64, 0.5, 0.003
TRAIN_BATCHES, TEST_BATCHES = 100, 20
COLD_BATCHES, LIMITED_BATCHES = 5, 20
LIMIT_BYTES = 1_000_000_000
MAPPED_S_MAX = 45.0  # seconds, so that the demo does not take too long on a slow disk
LOADERS = ("mapped", "gnndrive")  # in the order in which they run


def run(
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the graph.")] = Path(".demo"),
    nodes: Annotated[int, typer.Option(min=10_000, help="Nodes of the graph.")] = 2_000_000,
    keep: Annotated[bool, typer.Option(help="Keep the graph for the next run.")] = True,
) -> None:
    """Generate a graph, train on it with 256 MB for features, compare with a memory map."""
    started = perf_counter()
    console = Console(stderr=True)
    path = folder / f"planted-{nodes}x{DIM}.gnn"
    try:
        store = _graph(path, nodes, console)
        say(console, f"[2/3] GraphSAGE, {OPTIONS.buffer} for features, caches cold")
        print(_train(store, console))
        del store  # pages that a process maps cannot be dropped from the page cache
        say(console, "[3/3] the same batches through gnndrive and through a memory map")
        print(_compare(path))
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
    place = f"; the graph stays in {path}" if keep else ""
    print(f"the demo took {perf_counter() - started:.0f} s{place}")


def _graph(path: Path, nodes: int, console: Console) -> Store:
    size = format_size(nodes * DIM * 4)
    try:
        store = open_store(path)
        if (store.num_nodes, store.num_features, store.num_classes) == (nodes, DIM, CLASSES):
            say(console, f"[1/3] {path} exists: {nodes:,} nodes, {size} of features")
            return store
    except StoreError:
        pass  # there is no store, or it is damaged
    say(console, f"[1/3] generating {nodes:,} nodes with {CLASSES} communities, {size} of features")
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = OPTIONS.batch_size / nodes
    fractions = {"train": min(TRAIN_BATCHES * batch, 0.8), "test": min(TEST_BATCHES * batch, 0.2)}
    with Bars(console) as bars:
        planted_communities(
            path, nodes, DIM, CLASSES, fractions=fractions, overwrite=True, progress=bars
        )
    return open_store(path)


def _train(store: Store, console: Console) -> str:
    drop_cached([store.path])
    torch.manual_seed(0)
    batches = SplitBatches(store, OPTIONS, epochs=1, console=console)
    settings = TrainSettings(epochs=1, lr=LR, evaluate=("test",), eval_every=0)
    history = run_training(batches, "sage", HIDDEN, DROPOUT, settings)
    accuracy = history.epochs[-1].accuracy["test"]
    results = {"test accuracy": f"{accuracy:.3f}; by chance {1 / store.num_classes:.3f}"}
    return final_report(batches.stats, title="training", results=results)


def _compare(path: Path) -> str:
    """Run both loaders on the same batches: without a limit, and under one if possible."""
    store = open_store(path)  # a new one, because mapped files stay in the page cache
    with memory_limit(LIMIT_BYTES) as (group, words), Bars() as bars:
        lines = [
            "gnndrive and a memory-mapped loader (pyg+: the same sampler, rows gathered in as many "
            "threads as are fastest) on the same batches,",
            "each in a separate process, files dropped from the page cache before "
            "(posix_fadvise DONTNEED)",
            f"  the first {COLD_BATCHES} batches, no memory limit (the page cache may keep all)",
            *_table(compare(store, COLD_BATCHES, None, bars)),
        ]
        if group is not None:
            lines += [
                f"  {LIMITED_BATCHES} batches, each in {words}",
                *_table(compare(store, LIMITED_BATCHES, group, bars)),
            ]
    if group is None:
        lines.append(
            f"  {words}.\n  The features fit into this machine's page cache: with more batches the "
            "mapped loader reads from memory, but gnndrive is made for graphs larger than memory"
        )
    return "\n".join(lines)


def compare(store: Store, batches: int, limit: Cgroup | None, bars: Bars) -> dict[str, Loaded]:
    """Time each of `LOADERS` on the same batches, with cold caches.

    Args:
        store: no process may map its files.
        batches: the most batches: the mapped loader stops after the batch in which `MAPPED_S_MAX`
            is over, and gnndrive loads as many.
        limit: a memory limit for each loader's process.
    """
    found = dict[str, Loaded]()
    for kind in LOADERS:
        mapped = kind == "mapped"
        given = Loading(
            str(store.path), PyGPlus.name if mapped else kind, OPTIONS.hops, OPTIONS.batch_size,
            batches, seconds=MAPPED_S_MAX if mapped else None, split="train", seed=OPTIONS.seed,
            arguments={} if mapped else {"buffer": OPTIONS.buffer, "samplers": SAMPLERS},
        )  # fmt: skip
        drop_cached([store.path])
        try:
            label = f"{'limited ' if limit else ''}{kind}"
            found[kind] = run_loading(given, limit, partial(bars, label))
        except LoadingFailed as error:
            raise GNNDriveError(f"the {kind} loader failed: {error}") from None
        batches = found[kind].batches
    if len({each.checksums[-1] for each in found.values()}) != 1:
        raise GNNDriveError("the two loaders did not give the same batches: please report this")
    return found


def _table(found: dict[str, Loaded]) -> list[str]:
    lines = [
        f"    {kind:<8} : {each.batches} batches, {each.seconds:5.1f} s, "
        f"{each.seconds / each.batches:.3f} s a batch, {si(each.nodes / each.seconds)} rows/s, "
        f"peak memory {format_size(each.peak_bytes)}"
        for kind, each in found.items()
    ]
    mapped, gnndrive = (found[kind] for kind in LOADERS)
    ratio = mapped.seconds / gnndrive.seconds
    return [*lines, f"    ratio    : {ratio:.2f} (mapped / gnndrive)"]
