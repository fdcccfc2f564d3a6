"""`gnndrive import`, `info`, `verify` and `plan`: what concerns a store and trains nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnndrive.commands.progress import Bars
from gnndrive.commands.train import LoaderOptions
from gnndrive.layouts.base import FEATURE_BLOCK_BYTES
from gnndrive.measure.text import costs
from gnndrive.sizes import format_size
from gnndrive.store.disk import gap_bytes, load_calibration
from gnndrive.store.format import ArrayInfo
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


def import_graph(make: Callable[..., Store], **given: Any) -> None:
    """Make a store with `gnndrive.from_csv` or `from_edges`, showing progress, and say what it
    holds.

    Raises:
        ConfigError, StoreError: as `make`.
    """
    with Bars() as bars:
        store = make(**given, progress=bars)
    print(info_text(store))


def show_info(path: Path, as_json: bool) -> None:
    """Print what a store holds.

    Raises:
        StoreError: it cannot be opened.
    """
    store = open_store(path)
    if not as_json:
        print(info_text(store))
        return
    cost = load_calibration(store)
    counts = {name: store.info.arrays[f"splits/{name}"].shape[0] for name in store.split_names}
    content: dict[str, Any] = {
        "path": str(store.path),
        **store.info.as_dict(),
        "num_features": store.num_features,
        "splits": counts,
        "bytes": store.info.nbytes,
        "disk": None if cost is None else asdict(cost),
        "gap_bytes": gap_bytes(cost, FEATURE_BLOCK_BYTES),
    }
    print(json.dumps(content, indent=2))


def verify(path: Path) -> None:
    """Read and check a whole store, showing progress.

    Raises:
        StoreError: the first thing that is wrong.
    """
    store = open_store(path)
    with Bars() as bars:
        store.verify(bars)
    print(f"{store.path}: sound, {format_size(store.info.nbytes)} read")


def show_plan(path: Path, options: LoaderOptions) -> None:
    """Print what a loader over the train split would use, or over all nodes where there is none.

    Raises:
        ConfigError, StoreError: as `NeighborLoader`.
    """
    store = open_store(path)
    seeds = store.split("train") if "train" in store.split_names else None
    with options.loader(store, seeds, shuffle=True) as loader:
        print(loader.plan())


def info_text(store: Store) -> str:
    """What a store holds, as aligned lines."""
    info = store.info
    arrays = list(info.arrays.values())
    names = [array.name for array in arrays]
    width = max(len(name) for name in names)
    head = {
        "nodes": f"{info.num_nodes:,}",
        "edges": f"{info.num_edges:,}",
        "features": f"{info.num_features:,}",
        "classes": _classes(store),
        "made by": info.made_by,
        "size": format_size(info.nbytes),
        "disk": _disk(store),
    }
    lines = [str(store.path)]
    lines += [f"  {name:<8} : {value}" for name, value in head.items()]
    lines += [f"  {array.name:<{width}}  {_array(array)}" for array in arrays]
    return "\n".join(lines)


def _disk(store: Store) -> str:
    """What reading costs here, and the gap between rows that follows from it."""
    cost = load_calibration(store)
    said = f"not calibrated: run gnndrive bench disk {store.path}" if cost is None else costs(cost)
    return f"{said}; gaps of up to {gap_bytes(cost, FEATURE_BLOCK_BYTES):,} bytes are read over"


def _classes(store: Store) -> str:
    names = "" if store.classes is None else f" ({', '.join(store.classes[:8])}"
    if names:
        names += ", …)" if len(store.classes or ()) > 8 else ")"
    return f"{store.num_classes}{names}"


def _array(array: ArrayInfo) -> str:
    shape = " × ".join(f"{size:,}" for size in array.shape)
    return f"{array.dtype:<8} {shape:<24} {format_size(array.nbytes):>8}"
