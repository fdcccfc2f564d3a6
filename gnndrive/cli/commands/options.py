"""Options that several commands have, as types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="A store's folder.")]
StoreOrPack = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="A store's folder, or that of a pack or of partitions."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what is there.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write, instead of one in STORE.")]
Threads = Annotated[int | None, typer.Option(min=1, help="torch's threads.")]
Fanout = Annotated[str, typer.Option(help="Neighbours to sample for a node in each hop; -1: all.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Seeds in a batch.")]
Buffer = Annotated[str | None, typer.Option(help="Size of the feature buffer, such as 256MB.")]
Memory = Annotated[str | None, typer.Option(help="Memory for all of loading, such as 8GB.")]
OwnMemory = Annotated[str | None, typer.Option(help="Memory for this command, such as 1GB.")]
Device = Annotated[
    str | None,
    typer.Option(help="Where rows, batches and the model are: cpu, cuda, cuda:1, …"),
]
Engine = Annotated[
    Literal["uring", "threads"] | None,
    typer.Option(help="Engine that carries out the reads; default: uring."),
]
StrategyName = Annotated[
    str,
    typer.Option(
        help="gnndrive, ginex, ali+pg, lsm-gnn, diskgnn (of gnndrive pack), hierbatching or marius "
        "(of gnndrive partition), or auto; with arguments as ginex:superbatch=256,phases=apart."
    ),
]
Sampling = Annotated[
    str,
    typer.Option(
        help="neighbor, or labor (fewer distinct nodes: common neighbours are taken together), or "
        "labor:dependency=64 (random numbers change over 64 batches)."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]
ModelName = Annotated[
    Literal["sage", "gcn", "gat"] | None,
    typer.Option(help="PyG's GraphSAGE, GCN or GAT; default: sage."),
]
Hidden = Annotated[int | None, typer.Option(min=1, help="Units of a hidden layer; default: 128.")]
TimedBatches = Annotated[int, typer.Option(min=1, help="Batches that are timed in a run.")]
Rounds = Annotated[int, typer.Option(min=1, help="Runs of each, in turn.")]
IfExists = Annotated[
    Literal["error", "open", "replace"],
    typer.Option(help="If there is a store at OUT: fail, keep it, or make it anew."),
]

FANOUT, BATCH_SIZE, INPUT = "10,10", 1024, "train"
"""The defaults of commands that train, and of those that pack for them."""
SAMPLING, MODEL, HIDDEN = "neighbor", "sage", 128
