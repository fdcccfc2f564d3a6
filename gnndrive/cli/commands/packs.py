"""`gnndrive pack`: record batches and pack their rows on disk.

The defaults are those of `gnndrive train`, so that it finds the pack without further options.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gnndrive.cli.commands.info import layout_json, summary
from gnndrive.cli.commands.loader_options import (
    LoaderOptions,
    parse_tuning,
    trained_attributes,
    with_loader_options,
)
from gnndrive.cli.commands.options import (
    BATCH_SIZE,
    FANOUT,
    INPUT,
    SAMPLING,
    Json,
    Out,
    Overwrite,
    StorePath,
)
from gnndrive.cli.report import Bars
from gnndrive.cli.report.text import labelled
from gnndrive.common.memory import format_size
from gnndrive.loader.arguments import Tuning
from gnndrive.store.packed.format import PACKS, PackInfo, differences, pack_path
from gnndrive.store.reader import Store, open_homogeneous
from gnndrive.strategies.diskgnn import DiskGNN
from gnndrive.strategies.packs.pack import pack as pack_batches
from gnndrive.strategies.packs.recording import OF_REPLAYING


@with_loader_options("strategy", "buffer", "device")
def pack(
    options: LoaderOptions,
    store: StorePath,
    input: Annotated[str, typer.Option(help="Split whose nodes are the seeds.")] = INPUT,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to record.")] = 1,
    shuffle: Annotated[bool, typer.Option(help="Whether training shuffles its seeds.")] = True,
    disk: Annotated[str | None, typer.Option(help="The most that the pack may take.")] = None,
    order: Annotated[
        Literal["sets", "minhash", "id"], typer.Option(help="Order of rows that batches share.")
    ] = "sets",
    segment: Annotated[
        int | None, typer.Option(min=1, help="Batches that share rows; 1: none do.")
    ] = None,
    out: Out = None,
    packing_memory: Annotated[
        str | None, typer.Option(help="Memory for packing; default: --memory.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Record batches and pack their rows, for train --strategy diskgnn; goes on if interrupted.

    Give it the options that training will have; --memory and --device-memory are for training.
    """
    opened, hops = open_homogeneous(store, "gnndrive pack"), list(options.hops)
    names = ("batch_size", "seed", "sampling", "memory", "device_memory")
    given = {name: getattr(options, name) for name in names}
    tuning = parse_tuning(options.tuning)
    with Bars(kept="packed") as bars:
        info = pack_batches(
            opened, hops, opened.split(input), epochs=epochs, shuffle=shuffle, disk=disk,
            order=order, segment=segment, out=out, packing_memory=packing_memory,
            overwrite=overwrite, progress=bars, attrs=trained_attributes(opened),
            tuning=Tuning(**tuning), **given,
        )  # fmt: skip
    path = pack_path(opened, info.settings) if out is None else out
    if as_json:
        print(layout_json(path, info))
        return
    sizes = {"predicted": info.predicted_bytes, "actual": info.actual_bytes}
    said = {name: f"{format_size(size)} ({size:,} bytes)" for name, size in sizes.items()}
    lines = [f"{path}: {summary(info)}", *labelled(said)]
    call = {"batch_size": options.batch_size, "shuffle": shuffle, "memory": options.memory}
    call |= {"sampling": options.sampling} if options.sampling != SAMPLING else {}
    if options.device_memory:
        call |= {"device": "cuda", "device_memory": options.device_memory}
    call["strategy"] = DiskGNN(packed=_name(opened, info, out)).text
    replaying = {name: each for name, each in tuning.items() if name in OF_REPLAYING}
    call = {name: each for name, each in call.items() if each is not None}
    if input == INPUT and shuffle:
        lines += [
            "train from it:",
            f"  gnndrive train {shlex.quote(str(store))} "
            f"{_options(call, options.fanout, replaying)}",
        ]
    more = "".join(
        f", {name}={json.dumps(each) if isinstance(each, str) else each}"
        for name, each in call.items()
    )
    if replaying:
        more += f", tuning=gnndrive.Tuning({', '.join(f'{n}={v!r}' for n, v in replaying.items())})"
    lines += [
        "or in Python:",
        f'  NeighborLoader(store, {hops}, store.split("{input}"){more})',
    ]
    print("\n".join(lines))


def _options(call: dict[str, Any], fanout: str, tuning: dict[str, Any]) -> str:
    """The options of `gnndrive train` for a loader's arguments that are not its defaults."""
    given = {"fanout": fanout} | {name.replace("_", "-"): each for name, each in call.items()}
    if tuning:
        given["tuning"] = ",".join(f"{name}={each}" for name, each in tuning.items())
    default = {"fanout": FANOUT, "batch-size": BATCH_SIZE, "shuffle": True}
    return " ".join(
        f"--{name} {shlex.quote(str(each))}"
        for name, each in given.items()
        if each != default.get(name)
    )


def _name(store: Store, info: PackInfo, out: Path | None) -> str | None:
    """What `packed=` must say to replay a pack; None: no other of the store has these batches."""
    if out is not None:
        return str(out)
    others = [each.info.settings for each in PACKS.of(store) if each.info is not None]
    fitting = [each for each in others if not differences(each, info.settings)]
    return info.settings.digest if len(fitting) > 1 else None
