"""What `gnndrive info` and `verify` say of partitioned folders: those of a store, or one alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.progress import Bars
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.format import STORE_JSON
from gnndrive.store.partitioned.folder import settings_of, unfinished_partitions
from gnndrive.store.partitioned.format import (
    PARTITION_JSON,
    PARTITIONED,
    PartitionInfo,
    read_partition,
)
from gnndrive.store.partitioned.partitioned import partitions_of
from gnndrive.store.partitioned.settings import PartitionSettings
from gnndrive.store.partitioned.verify import verify_partition
from gnndrive.store.reader import Store
from gnndrive.store.unfinished_layout import UnfinishedLayout

WINDOWS = {"an eighth": 8, "a third": 3}  # of the partitions


def is_partition(path: Path) -> bool:
    """Whether a folder is a partitioned one, and not a store's."""
    return (path / PARTITION_JSON).is_file() and not (path / STORE_JSON).is_file()


def show_partition(path: Path, as_json: bool) -> None:
    """Print what a partitioned folder holds.

    Raises:
        StoreError: it is damaged.
    """
    info = read_partition(path)
    if as_json:
        content = {"path": str(path), **partition_dict(info), "arrays": sizes(info)}
        print(json.dumps(content, indent=2))
        return
    settings = info.settings
    head = {
        "partitions": f"{info.num_parts:,}, {info.num_nodes / info.num_parts:,.0f} nodes each on "
        "average",
        "method": _method(settings),
        "seed": str(settings.seed),
        "static nodes": f"{info.num_static:,} ({_percent(settings.static)} of the nodes)",
        **kept(info),
        "size": format_size(info.nbytes),
    }
    width = max(map(len, head))
    lines = [str(path), *(f"  {name:<{width}} : {text}" for name, text in head.items())]
    lines += [f"  {name:<{width}}   {format_size(size):>8}" for name, size in sizes(info).items()]
    print("\n".join(lines))


def kept(info: PartitionInfo) -> dict[str, str]:
    """Which share of the in-edges sampling inside keeps, in lines for a user."""
    found = {"edges kept": f"{_percent(info.share_inside)} of the in-edges lie inside a partition"}
    for name, part in WINDOWS.items():
        count = max(round(info.num_parts / part), 1)
        of = "partition" if count == 1 else "partitions"
        hot, cold = info.share_kept(count), info.share_kept(count, hot=False)
        found[f"  in {name}"] = (
            f"{_percent(hot)} in a window of {count:,} {of} and the hottest hundredth of the "
            f"nodes, {_percent(cold)} without these"
        )
    return found


def partition_dict(info: PartitionInfo) -> dict[str, Any]:
    """What there is to know of a partitioned folder, for JSON; without the arrays."""
    content = info.as_dict()
    for name in ("format", "version", "arrays"):
        del content[name]
    windows = {
        str(count): info.share_kept(count)
        for count in (max(round(info.num_parts / part), 1) for part in WINDOWS.values())
    }
    return content | {"num_parts": info.num_parts, "share_kept": windows, "bytes": info.nbytes}


def sizes(info: PartitionInfo) -> dict[str, int]:
    """Bytes of the arrays' files."""
    return {name: info.arrays[name].nbytes for name in sorted(info.arrays)}


def summary(info: PartitionInfo) -> str:
    """Describe a partitioned folder in one line."""
    parts = [*_settings(info.settings), f"{_percent(info.share_inside)} of the in-edges inside"]
    return ", ".join([*parts, format_size(info.nbytes)])


def _settings(settings: PartitionSettings) -> list[str]:
    count = f"{settings.parts:,} partition{'' if settings.parts == 1 else 's'}"
    return [
        count,
        _method(settings),
        f"seed {settings.seed}",
        f"{_percent(settings.static)} static",
    ]


def _method(settings: PartitionSettings) -> str:
    name = "from a file" if settings.method == "file" else settings.method
    return f"{name}, training nodes first" if settings.train_first else name


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


# ---- the partitioned folders of a store


def partition_lines(store: Store) -> list[str]:
    """Describe the partitioned folders of a store, damaged and unfinished ones included; a line
    for each."""
    lines = []
    for each in partitions_of(store):
        text = f"damaged: {each.problem}" if each.info is None else summary(each.info)
        lines.append(f"{PARTITIONED}/{each.path.name}  {text}")
    for left in _unfinished(store):
        settings = settings_of(left)
        parts = [] if settings is None else _settings(settings)
        text = ", ".join([*parts, f"{format_size(left.nbytes)} so far"])
        lines.append(f"{PARTITIONED}/{left.path.name}  {_state(left)}: {text}")
    return lines


def _state(unfinished: UnfinishedLayout) -> str:
    if unfinished.in_use:
        return "being partitioned"
    if unfinished.is_whole:
        return "whole (gnndrive clean puts it into its place)"
    if settings_of(unfinished) is None:
        return "the rest of a removed folder (gnndrive clean removes it)"
    return "unfinished (gnndrive partition goes on with it, gnndrive clean removes it)"


def partition_dicts(store: Store) -> list[dict[str, Any]]:
    """The partitioned folders of a store for JSON; "state" is whole, damaged, unfinished or
    partitioning."""
    found: list[dict[str, Any]] = []
    for each in partitions_of(store):
        if each.info is None:
            more: dict[str, Any] = {"state": "damaged", "problem": each.problem}
        else:
            more = {"state": "whole", **partition_dict(each.info)}
        found.append({"path": str(each.path), **more})
    for left in _unfinished(store):
        settings = settings_of(left)
        found.append(
            {
                "path": str(left.path),
                "state": "partitioning" if left.in_use else "unfinished",
                "bytes": left.nbytes,
                "settings": None if settings is None else settings.as_dict(),
            }
        )
    return found


def _unfinished(store: Store) -> list[UnfinishedLayout]:
    try:
        return unfinished_partitions(Path(store.path, PARTITIONED))
    except OSError:
        return []


# ---- verifying


def verify_partitions(store: Store) -> None:
    """Read and check all partitioned folders of a store, show progress, print a line for each.

    Raises:
        StoreError: one is damaged.
    """
    for each in partitions_of(store):
        if each.info is None:
            raise StoreError(each.problem)
        verify_one_partition(each.path, store)


def verify_one_partition(path: Path, store: Store) -> None:
    """Read and check a partitioned folder.

    Raises:
        StoreError: it is damaged, or belongs to another store.
    """
    with Bars() as bars:
        info = verify_partition(
            path, store, lambda what, done, total: bars(f"{path.name} {what}", done, total)
        )
    print(f"{path}: sound, {format_size(info.nbytes)} read")
