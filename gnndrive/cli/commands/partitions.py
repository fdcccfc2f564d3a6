"""`gnndrive partition`: divide the nodes of a store, and write rows and lists by partition."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gnndrive.cli.commands.info import layout_json, summary
from gnndrive.cli.commands.options import Json, Overwrite, OwnMemory, Seed, StorePath
from gnndrive.cli.report import Bars
from gnndrive.cli.report.text import labelled
from gnndrive.common.memory import format_size
from gnndrive.store.partitioned.format import STATIC_DEFAULT, partitioned_path
from gnndrive.store.partitioned.partition import partition as partition_store
from gnndrive.store.reader import open as open_store


def partition(
    store: StorePath,
    parts: Annotated[
        int | None, typer.Option(help="Partitions; default: one for 8,192 nodes, at least 16.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="auto|metis|ldg|random|FILE",
            help="How the partition of each node is found; FILE: .npy or text.",
        ),
    ] = "auto",
    memory: OwnMemory = None,
    static: Annotated[
        float, typer.Option(help="Share of the nodes whose lists may be held in memory.")
    ] = STATIC_DEFAULT,
    train_first: Annotated[
        bool, typer.Option("--train-first", help="Training nodes fill the first partitions.")
    ] = False,
    seed: Seed = 0,
    name: Annotated[str, typer.Option(help="Name of the folder in STORE/partitioned.")] = "default",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Divide a store's nodes into partitions, for loading by windows; goes on if interrupted."""
    opened, began = open_store(store), time.monotonic()
    path = partitioned_path(opened, name)
    with Bars(kept="done") as bars:
        info = partition_store(
            opened, parts, method, memory, static, train_first, seed, name, overwrite, bars
        )
    seconds = time.monotonic() - began
    if as_json:
        print(layout_json(path, info, seconds=seconds))
        return
    lines = {**info.kept(), "time": f"{seconds:.0f} s", "size": format_size(info.nbytes)}
    print("\n".join([f"{path}: {summary(info)}", *labelled(lines)]))
