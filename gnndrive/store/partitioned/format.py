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

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.format import ArrayInfo, index_dtype
from gnndrive.store.layout.arrays import LayoutArray, parse_arrays
from gnndrive.store.layout.kind import LayoutKind, digest_of
from gnndrive.store.reader import Store

FORMAT, VERSION = "gnndrive-partition", 2
PARTITIONED, PARTITION_JSON = "partitioned", "partition.json"
MEND = "remove the folder, and partition the store again (gnndrive partition)"
TABLE = "nodes/x"  # the store's table whose rows `x` has in the new order
ARRAYS = (
    "order", "bounds", "edge_bounds", "place", "home", "static_bounds", "static_indices",
    "indices", "x",
)  # fmt: skip
METHODS = ("auto", "metis", "ldg", "random", "file")
STATIC_DEFAULT = 0.04
PARTS_MAX = 1 << 31
HOT_SHARE = 0.01  # of the nodes: as many static nodes a loader holds if nothing else is said
_WINDOWS = {"an eighth": 8, "a third": 3}  # of the partitions
NAME = re.compile(r"[^\W.][\w.\-]{0,100}")
_FILE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """What a partitioned folder depends on, beside the store; ConfigError: a value is refused.

    Attributes:
        method: how the partition of each node is found, one of `METHODS`.
        parts: the number of partitions; some may be empty.
        static: the share of the nodes whose lists are copied to be held in memory; 0 to 1.
        train_first: whether the nodes of the split "train" fill the first partitions.
        file: of the method "file", the SHA-256 of the file that gives the partitions; else "".
    """

    method: str
    parts: int
    static: float = STATIC_DEFAULT
    train_first: bool = False
    seed: int = 0
    file: str = ""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r}: give one of {', '.join(METHODS)}")
        if type(self.parts) is not int or not 1 <= self.parts < PARTS_MAX:
            raise ConfigError(
                f"parts={self.parts!r}: give a whole number from 1 to {PARTS_MAX - 1}"
            )
        is_number = isinstance(self.static, float | int) and not isinstance(self.static, bool)
        if not (is_number and math.isfinite(self.static) and 0 <= self.static <= 1):
            raise ConfigError(f"static={self.static!r}: give a share of the nodes, from 0 to 1")
        if type(self.seed) is not int or not -(1 << 63) <= self.seed < 1 << 64:
            raise ConfigError(f"seed={self.seed!r}: give a whole number of 64 bits")
        if (self.method == "file") != bool(_FILE.fullmatch(self.file)):
            raise ConfigError(
                f"file={self.file!r}: give the SHA-256 of the file with method='file', and nothing "
                "with another method"
            )

    @property
    def digest(self) -> str:
        """See `LayoutSettings.digest`; for the hidden folder's name."""
        return digest_of(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """See `LayoutSettings.as_dict`; equal settings are equal there."""
        return asdict(self) | {"static": float(self.static)}

    @property
    def said_method(self) -> str:
        """How the partitions were found, in words."""
        name = "from a file" if self.method == "file" else self.method
        return f"{name}, training nodes first" if self.train_first else name

    def texts(self) -> list[str]:
        """See `LayoutSettings.texts`."""
        count = f"{self.parts:,} partition{'' if self.parts == 1 else 's'}"
        return [count, self.said_method, f"seed {self.seed}", f"{percent(self.static)} static"]


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.3g} %"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The content of partition.json.

    Attributes:
        store: the identity of the store (`Store.identity`).
        share_inside: the share of in-edges that come from the partition of their target.
        share_hot: the share of in-edges that come from another partition, but from one of the
            hottest hundredth of the nodes.
    """

    store: str
    settings: PartitionSettings
    num_nodes: int
    num_edges: int
    num_static: int
    share_inside: float
    share_hot: float
    arrays: Mapping[str, LayoutArray]

    @property
    def num_parts(self) -> int:
        """The number of partitions."""
        return self.settings.parts

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays' files."""
        return sum(array.nbytes for array in self.arrays.values())

    def share_kept(self, partitions: int, hot: bool = True) -> float:
        """The share of in-edges that sampling inside a window of so many partitions keeps, expected
        over random windows; `hot`: with the hottest hundredth of the nodes always in memory."""
        always = self.share_inside + (self.share_hot if hot else 0)
        chance = (partitions - 1) / (self.num_parts - 1) if self.num_parts > 1 else 1.0
        return min(always + (1 - always) * min(max(chance, 0.0), 1.0), 1.0)

    def _windows(self) -> dict[str, int]:
        """How many partitions some windows have."""
        return {name: max(round(self.num_parts / part), 1) for name, part in _WINDOWS.items()}

    def shown(self) -> dict[str, Any]:
        """See `LayoutInfo.shown`."""
        content = self.as_dict()
        for name in ("format", "version", "arrays"):
            del content[name]
        windows = {str(count): self.share_kept(count) for count in self._windows().values()}
        return content | {
            "num_parts": self.num_parts, "share_kept": windows, "bytes": self.nbytes,
        }  # fmt: skip

    def sizes(self) -> dict[str, int]:
        """Bytes of the arrays' files."""
        return {name: self.arrays[name].nbytes for name in sorted(self.arrays)}

    def texts(self) -> list[str]:
        """See `LayoutInfo.texts`."""
        return [*self.settings.texts(), f"{percent(self.share_inside)} of the in-edges inside"]

    def lines(self) -> dict[str, str]:
        """See `LayoutInfo.lines`."""
        settings = self.settings
        return {
            "partitions": f"{self.num_parts:,}, {self.num_nodes / self.num_parts:,.0f} nodes each "
            "on average",
            "method": settings.said_method,
            "seed": str(settings.seed),
            "static nodes": f"{self.num_static:,} ({percent(settings.static)} of the nodes)",
            **self.kept(),
            "size": format_size(self.nbytes),
        }

    def kept(self) -> dict[str, str]:
        """Which share of the in-edges sampling inside keeps, in lines for a user."""
        found = {
            "edges kept": f"{percent(self.share_inside)} of the in-edges lie inside a partition"
        }
        for name, count in self._windows().items():
            of = "partition" if count == 1 else "partitions"
            hot, cold = self.share_kept(count), self.share_kept(count, hot=False)
            found[f"  in {name}"] = (
                f"{percent(hot)} in a window of {count:,} {of} and the hottest hundredth of the "
                f"nodes, {percent(cold)} without these"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """See `LayoutInfo.as_dict`."""
        return {
            "format": FORMAT, "version": VERSION, "store": self.store,
            "settings": self.settings.as_dict(), "num_nodes": self.num_nodes,
            "num_edges": self.num_edges, "num_static": self.num_static,
            "share_inside": self.share_inside, "share_hot": self.share_hot,
            "arrays": {name: each.as_dict() for name, each in sorted(self.arrays.items())},
        }  # fmt: skip


def array_infos(
    nodes: int, edges: int, parts: int, static: int, static_edges: int, x: ArrayInfo
) -> dict[str, ArrayInfo]:
    """Every array of a folder by name, without checksums. `nodes` and `edges` are the store's,
    `static_edges` the entries of the static nodes' lists; of `x` the dtype and the shape of a row
    are taken."""
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


class PartitionKind(LayoutKind[PartitionInfo]):
    """Partitioned folders; see `LayoutKind`."""

    def info(self, top: Record, settings: Any, store: str) -> PartitionInfo:
        """See `LayoutKind.info`."""
        if set(top.value("arrays", dict)) != set(ARRAYS):
            raise top.error(f"does not list the arrays {', '.join(ARRAYS)}")
        arrays = parse_arrays(top, ARRAYS)
        nodes, edges, static = map(top.whole, ("num_nodes", "num_edges", "num_static"))
        inside, hot = top.value("share_inside", float), top.value("share_hot", float)
        if not (inside >= 0 and hot >= 0 and inside + hot <= 1 + 1e-9):  # NaN is refused, too
            raise top.error("has shares of in-edges that are none")
        if not max(static, settings.parts) <= nodes:
            raise top.error("has more static nodes or partitions than nodes")
        static_edges, x = arrays["static_indices"].shape[0], arrays["x"].info
        expected = array_infos(nodes, edges, settings.parts, static, static_edges, x)
        for name, array in expected.items():
            found = arrays[name]
            if (found.dtype, found.shape) != (array.dtype, array.shape):
                raise top.error(
                    f"has {name} as {found.dtype} {list(found.shape)} instead of {array.dtype} "
                    f"{list(array.shape)}"
                )
        return PartitionInfo(store, settings, nodes, edges, static, inside, hot, arrays)

    def settings(self, record: Record) -> PartitionSettings:
        """See `LayoutKind.settings`."""
        static, seed = record.value("static", float), record.value("seed", int)
        try:
            return PartitionSettings(
                record.text("method"), record.whole("parts"), static,
                record.value("train_first", bool), seed, record.text("file"),
            )  # fmt: skip
        except ConfigError as error:
            raise record.error(f"is refused: {error}") from None

    def check_store(self, info: PartitionInfo, root: Path, store: Store) -> None:
        """See `LayoutKind.check_store`."""
        super().check_store(info, root, store)
        x = store.info.arrays.get(TABLE)
        counts = store.num_nodes, store.num_edges
        found = info.arrays["x"]
        if x is None or (x.dtype, x.shape[1:]) != (found.dtype, found.shape[1:]):
            raise StoreError(f"{root} has rows of another shape or dtype than {store.path}: {MEND}")
        if (info.num_nodes, info.num_edges) != counts:
            raise StoreError(
                f"{root} has other numbers of nodes or edges than {store.path}: {MEND}"
            )


PARTITIONS = PartitionKind(
    PARTITIONED, PARTITION_JSON, FORMAT, VERSION, ".partitioning", ARRAYS, NAME,
    anywhere=False, called="a partitioned folder", doing="partitioning",
    made_by="gnndrive partition", mend=MEND,
    in_the_way="replace it with overwrite=True, or give another name=",
    elsewhere="copy the store to another one, and partition it there",
)  # fmt: skip


def partitioned_path(store: Store, name: str) -> Path:
    """The folder `name` of a store's partitions; ConfigError: a folder cannot have that name."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name={name!r}: give letters, digits, '_', '-' and '.', a letter or digit first"
        )
    return Path(store.path, PARTITIONED, name)
