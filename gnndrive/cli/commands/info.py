"""`gnndrive info`: what a store, a pack or a partitioned folder holds.

Only what json files say and the headers of arrays are read, without PyTorch.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.options import Json, StoreOrPack
from gnndrive.cli.measure.text import costs
from gnndrive.cli.report.text import labelled
from gnndrive.common.errors import StoreError
from gnndrive.common.memory import format_size
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.store.added import DERIVED
from gnndrive.store.cache import BATCHES_JSON, TRACES
from gnndrive.store.calibration import DISK_JSON, calibrate_command, gap_bytes, load_calibration
from gnndrive.store.format import STORE_JSON, ArrayInfo
from gnndrive.store.layout.folder import UnfinishedLayout, unfinished_layouts
from gnndrive.store.layout.kind import LayoutInfo, LayoutKind
from gnndrive.store.layout.kinds import KINDS
from gnndrive.store.link_split.opened import LINKS, PARTS, LinkTask, link_tasks
from gnndrive.store.packed.format import PACKS
from gnndrive.store.partitioned.format import PARTITIONS
from gnndrive.store.reader import Store, open_unread
from gnndrive.store.row_classes import FOLDER as CLASSES
from gnndrive.store.striped.format import STRIPES
from gnndrive.store.types import array_name
from gnndrive.store.views import StoredNodes


def info(store: StoreOrPack, json_: Json = False) -> None:
    """Print what a store, a pack or a partitioned folder holds: counts, arrays, how it was made."""
    if (kind := kind_of(store)) is not None:
        _show_layout(kind, store, json_)
        return
    opened = open_unread(store)
    print(json.dumps(_info_dict(opened), indent=2) if json_ else info_text(opened))


def _info_dict(store: Store) -> dict[str, Any]:
    cost, sizes = load_calibration(store), sizes_in(store.path)
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
    return {
        "path": str(store.path),
        **store.info.as_dict(),
        "num_features": features,
        "splits": splits,
        "bytes": store.info.nbytes,
        "bytes_in_all": sum(sizes.values()),
        "sizes": sizes,
        "disk": None if cost is None else asdict(cost),
        "gap_bytes": gap_bytes(cost, SWEEP_BLOCK_BYTES),
        "packs": _layout_dicts(store, PACKS),
        "partitioned": _layout_dicts(store, PARTITIONS),
        "stripes": _layout_dicts(store, STRIPES),
        "links": _link_dicts(store),
    }


def info_text(store: Store) -> str:
    """What `gnndrive info` prints of a store."""
    info = store.info
    width = max(map(len, info.arrays))
    head = {
        "nodes": f"{store.num_nodes:,}",
        "edges": f"{store.num_edges:,}",
        **(_types(store) if store.is_hetero else _features_and_classes(store.nodes())),
        "made by": info.made_by,
        **({"part": part_of(store)} if info.shard else {}),
        "size": _sizes_text(sizes_in(store.path)),
        "disk": _disk(store),
    }
    lines = [str(store.path), *labelled(head)]
    lines += [f"  {name:<{width}}  {_array(array)}" for name, array in info.stored.items()]
    lines += [f"  {line}" for line in [*_link_lines(store), *_layout_lines(store)]]
    return "\n".join(lines)


def part_of(store: Store) -> str:
    """Which part of a store one is, and what it has; "": it is whole."""
    if (shard := store.info.shard) is None:
        return ""
    arrays, stored = store.info.arrays, store.info.stored
    rows = (
        f"{stored[name].shape[0]:,} of {arrays[name].shape[0]:,} rows of {name}"
        for name in shard.parts
    )
    return f"{shard.index} of {shard.shards}, from 0: {', '.join(rows)}"


def _disk(store: Store) -> str:
    cost = load_calibration(store)
    text = f"not calibrated: run {calibrate_command(store)}" if cost is None else costs(cost)
    return f"{text}; gaps of up to {gap_bytes(cost, SWEEP_BLOCK_BYTES):,} bytes are read over"


def _features_and_classes(nodes: StoredNodes) -> dict[str, str]:
    names = "" if nodes.classes is None else f" ({', '.join(nodes.classes[:8])}"
    if names:
        names += ", …)" if len(nodes.classes or ()) > 8 else ")"
    return {"features": f"{nodes.num_features:,}", "classes": f"{nodes.num_classes}{names}"}


def _types(store: Store) -> dict[str, str]:
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


# ---- what takes how much of the disk

_ATTRIBUTES = "other attributes"
_HOLDS = {
    "graph": "graph", "nodes": _ATTRIBUTES, "edges": _ATTRIBUTES, "splits": _ATTRIBUTES,
    DERIVED: "added by gnndrive infer",
    PACKS.inside: "packs", PARTITIONS.inside: "partitions", STRIPES.inside: "stripes",
    **dict.fromkeys((LINKS, *PARTS), LINKS),
    **dict.fromkeys((CLASSES, TRACES, BATCHES_JSON, DISK_JSON), "kept by loaders"),
}  # fmt: skip
"""What an entry of a store's folder holds, by its name."""


def sizes_in(folder: Path) -> dict[str, int]:
    """The bytes of all files in a store's folder by what they hold, the most first. A file with
    several names, as parts of a split have it, counts once."""
    sizes, seen = Counter[str](), set[tuple[int, int]]()
    for root, folders, files in os.walk(folder):
        folders.sort()  # a store's own files before those of its parts
        for file in files:
            path = Path(root, file)
            with suppress(OSError):  # another process has just removed it
                status = os.lstat(path)
                if (status.st_dev, status.st_ino) not in seen:
                    top = path.relative_to(folder).parts[0]
                    features = (top, file) == ("nodes", "x.npy")
                    sizes["features" if features else _HOLDS.get(top, "other files")] += (
                        status.st_size
                    )
                seen.add((status.st_dev, status.st_ino))
    return dict(sizes.most_common())


def _sizes_text(sizes: dict[str, int]) -> str:
    parts = ", ".join(f"{what} {format_size(size)}" for what, size in sizes.items())
    return f"{format_size(sum(sizes.values()))} in all: {parts}"


# ---- tasks of links


def _link_lines(store: Store) -> list[str]:
    try:
        return [f"{LINKS}  {_link_text(task)}" for task in link_tasks(store.path)]
    except StoreError as error:
        return [f"{LINKS}  damaged: {error}"]


def _link_text(task: LinkTask) -> str:
    counts = ", ".join(f"{count:,} {part}" for part, count in task.labelled.items())
    types = ", ".join(" → ".join(type) for type in task.edge_types if type)
    named = "split" if task.name is None else f"task {task.name!r}"
    return f"{named}: {counts} labelled edges{types and f' of {types}'}"


def _link_dicts(store: Store) -> list[dict[str, Any]]:
    try:
        tasks = link_tasks(store.path)
    except StoreError as error:
        return [{"state": "damaged", "problem": str(error)}]
    return [
        {
            "task": task.name,
            "state": "whole",
            "edge_types": [list(type or ()) for type in task.edge_types],
            "labelled_edges": task.labelled,
        }
        for task in tasks
    ]


# ---- derived layouts: those of a store, or one alone


def kind_of(path: Path) -> LayoutKind[Any] | None:
    """The kind of the layout in a folder; None: it is a store's, or of no layout."""
    if (path / STORE_JSON).is_file():
        return None
    return next((kind for kind in KINDS if (path / kind.json).is_file()), None)


def _show_layout(kind: LayoutKind[Any], path: Path, as_json: bool) -> None:
    info: LayoutInfo = kind.read(path)
    if as_json:
        print(layout_json(path, info))
        return
    head = info.lines()
    width = max(map(len, head))
    sizes = [f"  {name:<{width}}   {format_size(size):>8}" for name, size in info.sizes().items()]
    print("\n".join([str(path), *labelled(head), *sizes]))


def layout_json(path: Path, info: LayoutInfo, **more: Any) -> str:
    """What there is to know of a layout, as JSON."""
    content = {"path": str(path), **info.shown(), "arrays": info.sizes(), **more}
    return json.dumps(content, indent=2)


def summary(info: LayoutInfo) -> str:
    """Describe a layout in one line."""
    return ", ".join([*info.texts(), format_size(info.nbytes)])


def _layout_lines(store: Store) -> list[str]:
    """Describe the layouts of a store, damaged and unfinished ones included; a line for each."""
    lines = []
    for kind in KINDS:
        for each in kind.of(store):
            text = f"damaged: {each.problem}" if each.info is None else summary(each.info)
            lines.append(f"{kind.inside}/{each.path.name}  {text}")
        for left in _unfinished(store, kind):
            settings = left.settings()
            parts = [] if settings is None else settings.texts()
            text = ", ".join([*parts, f"{format_size(left.nbytes)} so far"])
            lines.append(f"{kind.inside}/{left.path.name}  {_state(left)}: {text}")
    return lines


def _state(layout: UnfinishedLayout) -> str:
    kind = layout.kind
    if layout.in_use:
        return f"a process is {kind.doing} now"
    if layout.is_whole:
        return "whole (gnndrive clean puts it into its place)"
    if layout.settings() is None:
        return f"the rest of {kind.called} that was removed (gnndrive clean removes it)"
    return f"unfinished ({kind.made_by} goes on with it, gnndrive clean removes it)"


def _layout_dicts(store: Store, kind: LayoutKind[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in kind.of(store):
        if each.info is None:
            more = {"state": "damaged", "problem": each.problem}
        else:
            more = {"state": "whole", **each.info.shown()}
        found.append({"path": str(each.path), **more})
    for left in _unfinished(store, kind):
        settings = left.settings()
        found.append(
            {
                "path": str(left.path),
                "state": kind.doing if left.in_use else "unfinished",
                "bytes": left.nbytes,
                "settings": None if settings is None else settings.as_dict(),
            }
        )
    return found


def _unfinished(store: Store, kind: LayoutKind[Any]) -> list[UnfinishedLayout]:
    try:
        return unfinished_layouts(Path(store.path, kind.inside), kind)
    except OSError:
        return []
