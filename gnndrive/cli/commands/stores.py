"""`gnndrive import`, `info` and `verify`: the commands on a store that do not train."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.layout_text import (
    kind_of,
    layout_dicts,
    layout_lines,
    show_layout,
    store_of,
    verify_layout,
    verify_layouts,
)
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.measure.text import costs
from gnndrive.common.memory import format_size
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.format import ArrayInfo
from gnndrive.store.link_split import LabelledEdges, split_links
from gnndrive.store.packed.format import PACKS
from gnndrive.store.partitioned.format import PARTITIONS
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.types import array_name
from gnndrive.store.views import StoredNodes


def import_graph(make: Callable[..., Store], **given: Any) -> None:
    """Make a store with one of gnndrive's importers, show progress, print what the store holds.

    Raises:
        ConfigError, StoreError: as `make`.
    """
    with Bars() as bars:
        store = make(**given, progress=bars)
    print(info_text(store))


def split(path: Path, out: Path | None, **given: Any) -> None:
    """Split the edges of a store with `split_links`, show progress, print what the parts hold.

    Raises:
        ConfigError, StoreError: as `split_links`.
    """
    for name in ("num_val", "num_test"):
        given[name] = int(given[name]) if given[name] > 1 else given[name]
    with Bars() as bars:
        parts = split_links(open_store(path), out, **given, progress=bars)
    print(parts.train.path)
    for name, part in parts._asdict().items():
        print(f"  {name:<5} : {part.num_edges:,} edges pass messages; labels:", end=" ")
        views = [view for view in part.all_edges() if isinstance(view, LabelledEdges)]
        print(f"{sum(len(view.edge_label) for view in views):,}")


def show_info(path: Path, as_json: bool) -> None:
    """Print what a store, a pack or a partitioned folder holds.

    Raises:
        StoreError: it cannot be opened.
    """
    if (kind := kind_of(path)) is not None:
        show_layout(kind, path, as_json)
        return
    store = open_store(path)
    if not as_json:
        print(info_text(store))
        return
    cost = load_calibration(store)
    arrays, nodes = store.info.arrays, store.all_nodes()
    features: Any = {each.type: each.num_features for each in nodes}
    splits: Any = {
        each.type: {
            name: arrays[array_name("splits", each.type, name)].shape[0]
            for name in each.split_names
        }
        for each in nodes
    }
    if not store.is_hetero:
        features, splits = features[None], splits[None]
    content: dict[str, Any] = {
        "path": str(store.path),
        **store.info.as_dict(),
        "num_features": features,
        "splits": splits,
        "bytes": store.info.nbytes,
        "disk": None if cost is None else asdict(cost),
        "gap_bytes": gap_bytes(cost, SWEEP_BLOCK_BYTES),
        "packs": layout_dicts(store, PACKS),
        "partitioned": layout_dicts(store, PARTITIONS),
    }
    print(json.dumps(content, indent=2))


def verify(path: Path, of: Path | None = None) -> None:
    """Read and check a whole store with its packs and partitioned folders, or one of these, and
    show progress.

    Args:
        path: the folder of a store, of a pack or of partitions.
        of: the store of a pack or of partitions; None: the one in which it lies.

    Raises:
        ConfigError: the store of a pack or of partitions is not known.
        StoreError: something is damaged; the message names the first damage found.
    """
    if (kind := kind_of(path)) is not None:
        verify_layout(kind, path, store_of(path, of))
        return
    store = open_store(path)
    with Bars() as bars:
        store.verify(bars)
    print(f"{store.path}: sound, {format_size(store.info.nbytes)} read")
    verify_layouts(store)


def info_text(store: Store) -> str:
    """Describe the content of a store in aligned lines."""
    info = store.info
    arrays = list(info.arrays.values())
    names = [array.name for array in arrays]
    width = max(len(name) for name in names)
    head = {
        "nodes": f"{store.num_nodes:,}",
        "edges": f"{store.num_edges:,}",
        **(_types(store) if store.is_hetero else _features_and_classes(store.nodes())),
        "made by": info.made_by,
        "size": format_size(info.nbytes),
        "disk": _disk(store),
    }
    lines = [str(store.path)]
    wide = max(map(len, head))
    lines += [f"  {name:<{wide}} : {value}" for name, value in head.items()]
    lines += [f"  {array.name:<{width}}  {_array(array)}" for array in arrays]
    lines += [f"  {line}" for line in layout_lines(store)]
    return "\n".join(lines)


def _disk(store: Store) -> str:
    """Describe the cost of reading from the disk, and the gap between rows that follows from it."""
    cost = load_calibration(store)
    text = f"not calibrated: run gnndrive bench disk {store.path}" if cost is None else costs(cost)
    return f"{text}; gaps of up to {gap_bytes(cost, SWEEP_BLOCK_BYTES):,} bytes are read over"


def _features_and_classes(nodes: StoredNodes) -> dict[str, str]:
    """Describe features and classes."""
    names = "" if nodes.classes is None else f" ({', '.join(nodes.classes[:8])}"
    if names:
        names += ", …)" if len(nodes.classes or ()) > 8 else ")"
    return {"features": f"{nodes.num_features:,}", "classes": f"{nodes.num_classes}{names}"}


def _types(store: Store) -> dict[str, str]:
    """Describe the nodes and edges of each type."""
    lines = {}
    for name in store.node_types:
        text = ", ".join(
            f"{what} {value}" for what, value in _features_and_classes(store[name]).items()
        )
        lines[name] = f"{store[name].num_nodes:,} nodes, {text}"
    for edge_type in store.edge_types:
        lines[" → ".join(edge_type)] = f"{store[edge_type].num_edges:,} edges"
    return lines


def _array(array: ArrayInfo) -> str:
    shape = " × ".join(f"{size:,}" for size in array.shape)
    added = "  added by gnndrive infer" if array.folder else ""
    return f"{array.dtype:<8} {shape:<24} {format_size(array.nbytes):>8}{added}"
