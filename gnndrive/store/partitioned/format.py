"""The partitioned folder of a store: `STORE/partitioned/NAME/`, with x and lists in a new order.

A partition's nodes get consecutive new ids, in the order of their ids in the store. The files, with
the store's .npy headers, for N nodes, E edges, P partitions and K static nodes:

- order [N + K]: the store id of each new id, and then of each static node.
- bounds, edge_bounds, int64 [P + 1]: the first new id of each partition, and where the lists of its
  nodes begin in `indices`.
- x [N + K, …]: the rows in that order. So the static rows, which lie scattered over the
  partitions, lie together once more.
- indices [E]: all in-neighbours, as codes, target after target in the new order; each list in the
  store's order.
- place [N]: the code of each store id. A code less than K is the rank of a static node; other codes
  are K + the new id.
- home, int64 [K]: the new id of each static node, those with the most out-edges first: by rank.
- static_bounds, int64 [K + 1], static_indices: copies of the static nodes' lists, by rank.

A list has as many entries as the store's, so the folder has no index pointers. partition.json lists
the arrays with their checksums; other files are never read. A folder may come from a stranger: its
numbers are checked when it is opened (`open_partitioned`), or when they are used.

When not to use it: the store's own arrays are in store.json (`gnndrive/store/format.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.files import read_plain
from gnndrive.store.format import JSON_BYTES_MAX, ArrayInfo, index_dtype
from gnndrive.store.packed.format import PackArray, parse_array
from gnndrive.store.parsing import Record
from gnndrive.store.partitioned.settings import PartitionSettings, parse_settings
from gnndrive.store.reader import Store

FORMAT, VERSION = "gnndrive-partition", 2
PARTITIONED, PARTITION_JSON = "partitioned", "partition.json"
MEND = "remove the folder, and partition the store again (gnndrive partition)"
TABLE = "nodes/x"  # the store's table whose rows `x` has in the new order
ARRAYS = (
    "order", "bounds", "edge_bounds", "place", "home", "static_bounds", "static_indices",
    "indices", "x",
)  # fmt: skip
HOT_SHARE = 0.01  # of the nodes: as many static nodes a loader holds if nothing else is said
NAME = re.compile(r"[^\W.][\w.\-]{0,100}")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The content of partition.json.

    Attributes:
        store: the identity of the store (`Store.identity`).
        settings: what the folder was made with.
        num_nodes, num_edges: of the store.
        num_static: the number of static nodes.
        share_inside: the share of in-edges that come from the partition of their target.
        share_hot: the share of in-edges that come from another partition, but from one of the
            hottest hundredth of the nodes.
        arrays: every array by name.
        version: the version of the format.
    """

    store: str
    settings: PartitionSettings
    num_nodes: int
    num_edges: int
    num_static: int
    share_inside: float
    share_hot: float
    arrays: Mapping[str, PackArray]
    version: int = VERSION

    @property
    def num_parts(self) -> int:
        """The number of partitions."""
        return self.settings.parts

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays' files."""
        return sum(array.nbytes for array in self.arrays.values())

    def share_kept(self, partitions: int, hot: bool = True) -> float:
        """The share of in-edges that sampling inside a window keeps, expected over random windows.

        Args:
            partitions: how many the window has.
            hot: whether the hottest hundredth of the nodes is always in memory.
        """
        always = self.share_inside + (self.share_hot if hot else 0)
        chance = (partitions - 1) / (self.num_parts - 1) if self.num_parts > 1 else 1.0
        return min(always + (1 - always) * min(max(chance, 0.0), 1.0), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The content of partition.json, for display and `--json`."""
        return {
            "format": FORMAT, "version": self.version, "store": self.store,
            "settings": self.settings.as_dict(), "num_nodes": self.num_nodes,
            "num_edges": self.num_edges, "num_static": self.num_static,
            "share_inside": self.share_inside, "share_hot": self.share_hot,
            "arrays": {name: each.as_dict() for name, each in sorted(self.arrays.items())},
        }  # fmt: skip


def array_infos(
    nodes: int, edges: int, parts: int, static: int, static_edges: int, x: ArrayInfo | PackArray
) -> dict[str, ArrayInfo]:
    """Every array of a folder by name, without checksums.

    Args:
        nodes, edges: of the store.
        parts, static: the numbers of partitions and of static nodes.
        static_edges: the entries of the static nodes' lists.
        x: the table of rows; its dtype and the shape of a row are taken.
    """
    codes = index_dtype(nodes + static)
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {
        "order": (codes, (nodes + static,)),
        "bounds": ("int64", (parts + 1,)),
        "edge_bounds": ("int64", (parts + 1,)),
        "place": (codes, (nodes,)),
        "home": ("int64", (static,)),
        "static_bounds": ("int64", (static + 1,)),
        "static_indices": (codes, (static_edges,)),
        "indices": (codes, (edges,)),
        "x": (x.dtype, (nodes + static, *x.shape[1:])),
    }
    return {name: ArrayInfo(name, *kinds[name], "") for name in ARRAYS}


def dump(info: PartitionInfo) -> bytes:
    """The bytes of partition.json."""
    text = json.dumps(info.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def parse(content: bytes, where: str) -> PartitionInfo:
    """Parse partition.json.

    Args:
        content: its bytes, which may come from a stranger.
        where: its path, for errors.

    Raises:
        StoreError: it is invalid, of another version of the format, or contradicts itself.
    """
    top = Record.parse(content, where, PARTITION_JSON, MEND)
    if top.text("format") != FORMAT:
        raise StoreError(f"{where} does not belong to a partitioned store: choose another folder")
    if top.whole("version") != VERSION:
        raise top.error(f"has version {top.whole('version')}, and this gnndrive reads {VERSION}")
    settings = parse_settings(Record(top.value("settings", dict), where, "settings", MEND))
    listed = top.value("arrays", dict)
    if set(listed) != set(ARRAYS):
        raise top.error(f"does not list the arrays {', '.join(ARRAYS)}")
    arrays = {
        name: parse_array(name, Record(listed[name], where, f"arrays[{name!r}]", MEND), ARRAYS)
        for name in listed
    }
    store = top.text("store")
    if not re.fullmatch("[0-9a-f]{64}", store):
        raise top.error("has a 'store' that is not 64 hexadecimal digits")
    nodes, edges, static = map(top.whole, ("num_nodes", "num_edges", "num_static"))
    inside, hot = top.value("share_inside", float), top.value("share_hot", float)
    if not (inside >= 0 and hot >= 0 and inside + hot <= 1 + 1e-9):  # NaN is refused, too
        raise top.error("has shares of in-edges that are none")
    info = PartitionInfo(store, settings, nodes, edges, static, inside, hot, arrays)
    _check(info, top)
    return info


def _check(info: PartitionInfo, top: Record) -> None:
    """Check that the arrays have the dtypes and shapes that follow from the numbers.

    Raises:
        StoreError: one has others.
    """
    if not max(info.num_static, info.num_parts) <= info.num_nodes:
        raise top.error("has more static nodes or partitions than nodes")
    static_edges = info.arrays["static_indices"].shape[0]
    expected = array_infos(
        info.num_nodes, info.num_edges, info.num_parts, info.num_static, static_edges,
        info.arrays["x"],
    )  # fmt: skip
    for name, array in expected.items():
        found = info.arrays[name]
        if (found.dtype, found.shape) != (array.dtype, array.shape):
            raise top.error(
                f"has {name} as {found.dtype} {list(found.shape)} instead of {array.dtype} "
                f"{list(array.shape)}"
            )


def partitioned_path(store: Store, name: str) -> Path:
    """The folder of a store's partitions.

    Args:
        store: the store.
        name: the folder's name.

    Raises:
        ConfigError: a folder cannot have that name.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name={name!r}: give letters, digits, '_', '-' and '.', a letter or digit first"
        )
    return Path(store.path, PARTITIONED, name)


def read_partition(path: str | os.PathLike[str], store: Store | None = None) -> PartitionInfo:
    """Read partition.json; opens no array.

    Args:
        path: the folder.
        store: the store that it must belong to; None: any.

    Raises:
        StoreError: there is no such folder, it is damaged, or the store has changed since.
    """
    root = Path(os.path.abspath(path))
    if not os.path.lexists(root / PARTITION_JSON):
        raise StoreError(
            f"{root / PARTITION_JSON} is not there: {root} is no partitioned folder; make one with "
            "gnndrive partition"
        )
    try:
        content = read_plain(root, PARTITION_JSON, JSON_BYTES_MAX + 1, MEND)
    except OSError as error:
        raise StoreError(
            f"{root / PARTITION_JSON} cannot be read ({error.strerror}): {MEND}"
        ) from None
    if len(content) > JSON_BYTES_MAX:
        raise StoreError(f"{root / PARTITION_JSON} is too large: {MEND}")
    info = parse(content, str(root / PARTITION_JSON))
    if store is not None:
        _check_store(info, root, store)
    return info


def _check_store(info: PartitionInfo, root: Path, store: Store) -> None:
    """Check that the folder is of this store, as it is now.

    Raises:
        StoreError: it is not.
    """
    if info.store != store.identity:
        raise StoreError(f"{store.path} has changed since {root} was made: {MEND}")
    x = store.info.arrays.get(TABLE)
    counts = store.num_nodes, store.num_edges
    found = info.arrays["x"]
    if x is None or (x.dtype, x.shape[1:]) != (found.dtype, found.shape[1:]):
        raise StoreError(f"{root} has rows of another shape or dtype than {store.path}: {MEND}")
    if (info.num_nodes, info.num_edges) != counts:
        raise StoreError(f"{root} has other numbers of nodes or edges than {store.path}: {MEND}")
