"""`gnndrive stripe`: copy the feature rows of a store to several disks, or remove the copies."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gnndrive.cli.commands.info import layout_json, summary
from gnndrive.cli.commands.options import Json, StorePath
from gnndrive.cli.report import Bars
from gnndrive.cli.report.text import labelled
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.store.reader import open as open_store
from gnndrive.store.striped.format import striped_path
from gnndrive.store.striped.stripe import remove_stripes
from gnndrive.store.striped.stripe import stripe as stripe_store


def stripe(
    store: StorePath,
    paths: Annotated[str, typer.Argument(metavar="PATH,PATH…", help="A folder on each disk.")] = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the stripes that there are.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a store's features to several disks, from all of which loaders then read; goes on if
    interrupted."""
    opened, began = open_store(store), time.monotonic()
    if bool(paths) == remove:
        raise ConfigError("give either the paths of folders on the disks, or --remove")
    if remove:
        for folder in remove_stripes(opened):
            print(f"{folder} is left: its disk is not there, or it is that of another store")
        print(f"{opened.path}: loaders read its own rows")
        return
    with Bars(kept="written") as bars:
        info = stripe_store(opened, paths.split(","), bars)
    seconds, path = time.monotonic() - began, striped_path(opened)
    if as_json:
        print(layout_json(path, info, seconds=seconds))
        return
    sizes = {name: format_size(size) for name, size in info.sizes().items()}
    print("\n".join([f"{path}: {summary(info)}", *labelled(sizes | {"time": f"{seconds:.0f} s"})]))
