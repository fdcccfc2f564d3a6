"""What `gnndrive info` and `verify` say of packs: those of a store, or one by its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.progress import Bars
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.format import STORE_JSON
from gnndrive.store.packed.format import PACK_JSON, PACKED, PackInfo, open_pack, packs_of
from gnndrive.store.packed.settings import PackSettings
from gnndrive.store.packed.unfinished import settings_of, unfinished_packs
from gnndrive.store.packed.verify import verify_pack
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.unfinished_layout import UnfinishedLayout


def is_pack(path: Path) -> bool:
    """Whether a folder is a pack's, and not a store's."""
    return (path / PACK_JSON).is_file() and not (path / STORE_JSON).is_file()


def show_pack(path: Path, as_json: bool) -> None:
    """Print what a pack holds.

    Raises:
        StoreError: it is damaged.
    """
    info = open_pack(path)
    if as_json:
        content = {"path": str(path), **pack_dict(info), "arrays": sizes(info)}
        print(json.dumps(content, indent=2))
        return
    settings = info.settings
    head = {
        "batches": f"{info.batches:,} × {info.epochs} recorded {_epochs(info.epochs)}",
        "fanout": _said(settings.num_neighbors),
        **{name.replace("_", " "): _said(each) for name, each in settings.as_dict().items()},
        "segment": f"{info.segment} batches",
        "size": f"{format_size(info.actual_bytes)}, predicted {format_size(info.predicted_bytes)}",
    }
    for name in ("memory", "disk", "device memory"):
        size = getattr(settings, name.replace(" ", "_"))
        head[name] = "not said" if size is None else format_size(size)
    del head["num neighbors"], head["epochs"]
    width = max(map(len, head))
    lines = [str(path), *(f"  {name:<{width}} : {text}" for name, text in head.items())]
    lines += [f"  {name:<{width}}   {format_size(size):>8}" for name, size in sizes(info).items()]
    print("\n".join(lines))


def pack_dict(info: PackInfo) -> dict[str, Any]:
    """What there is to know of a pack, for JSON; without the arrays and sections."""
    return {
        "batches": info.batches, "epochs": info.epochs, "segment": info.segment,
        "predicted_bytes": info.predicted_bytes, "actual_bytes": info.actual_bytes,
        "settings": info.settings.as_dict(), "store": info.store,
    }  # fmt: skip


def sizes(info: PackInfo) -> dict[str, int]:
    """Bytes of a pack's arrays: index, samples, ids, and the rows of each table."""
    found: dict[str, int] = {}
    for name, array in sorted(info.arrays.items()):
        group = name if name.startswith("rows/") else name.split("/")[0]
        found[group] = found.get(group, 0) + array.nbytes
    return found


def summary(info: PackInfo) -> str:
    """Describe a pack in one line."""
    count = f"{info.batches:,} batches × {info.epochs} {_epochs(info.epochs)}"
    segment, size = f"segments of {info.segment}", format_size(info.actual_bytes)
    return ", ".join([count, *_settings(info.settings), segment, size])


def _settings(settings: PackSettings) -> list[str]:
    parts = [f"fanout {_said(settings.num_neighbors)}", f"batch size {settings.batch_size}"]
    parts += [f"seed {settings.seed}", f"order {settings.order}"]
    return parts if settings.shuffle else [*parts, "not shuffled"]


def _epochs(count: int) -> str:
    return "epoch" if count == 1 else "epochs"


def _said(value: Any) -> str:
    """A setting as the command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_said(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


# ---- the packs of a store


def pack_lines(store: Store) -> list[str]:
    """Describe the packs of a store, damaged and unfinished ones included; a line for each."""
    lines = []
    for pack in packs_of(store):
        text = f"damaged: {pack.problem}" if pack.info is None else summary(pack.info)
        lines.append(f"{PACKED}/{pack.path.name}  {text}")
    for each in _unfinished(store):
        settings = settings_of(each)
        parts = [] if settings is None else [f"{settings.epochs} {_epochs(settings.epochs)}"]
        parts += [] if settings is None else _settings(settings)
        lines.append(
            f"{PACKED}/{each.path.name}  {_state(each)}: "
            f"{', '.join([*parts, f'{format_size(each.nbytes)} so far'])}"
        )
    return lines


def _state(pack: UnfinishedLayout) -> str:
    if pack.in_use:
        return "being packed"
    if pack.is_whole:
        return "whole (gnndrive clean puts it into its place)"
    if settings_of(pack) is None:
        return "the rest of a removed pack (gnndrive clean removes it)"
    return "unfinished (gnndrive pack goes on with it, gnndrive clean removes it)"


def pack_dicts(store: Store) -> list[dict[str, Any]]:
    """The packs of a store for JSON; "state" is whole, damaged, unfinished or packing."""
    found: list[dict[str, Any]] = []
    for pack in packs_of(store):
        if pack.info is None:
            more = {"state": "damaged", "problem": pack.problem}
        else:
            more = {"state": "whole", **pack_dict(pack.info)}
        found.append({"path": str(pack.path), **more})
    for each in _unfinished(store):
        settings = settings_of(each)
        found.append(
            {
                "path": str(each.path),
                "state": "packing" if each.in_use else "unfinished",
                "actual_bytes": each.nbytes,
                "settings": None if settings is None else settings.as_dict(),
            }
        )
    return found


def _unfinished(store: Store) -> list[UnfinishedLayout]:
    try:
        return unfinished_packs(Path(store.path, PACKED))
    except OSError:
        return []


# ---- verifying


def verify_packs(store: Store) -> None:
    """Read and check all packs of a store, show progress, and print a line for each.

    Raises:
        StoreError: one is damaged.
    """
    for pack in packs_of(store):
        if pack.info is None:
            raise StoreError(pack.problem)
        verify_one(pack.path, store)


def verify_one(path: Path, store: Store) -> None:
    """Read and check a pack.

    Raises:
        StoreError: it is damaged, or belongs to another store.
    """
    with Bars() as bars:
        info = verify_pack(
            path, store, lambda what, done, total: bars(f"{path.name} {what}", done, total)
        )
    print(f"{path}: sound, {format_size(info.actual_bytes)} read")


def store_of(path: Path, of: Path | None) -> Store:
    """The store of a pack: `of`, or the one in which the pack lies.

    Raises:
        ConfigError: the pack lies in no store, and `of` is None.
        StoreError: the store cannot be opened.
    """
    if of is None:
        of = path.resolve().parent.parent
        if not (of / STORE_JSON).is_file():
            raise ConfigError(
                f"the rows of {path} are compared with its store's, and it lies in none: name the "
                "store with --of"
            )
    return open_store(of)
