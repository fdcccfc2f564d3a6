"""The store's format: store.json and .npy files whose data starts on a 4,096-byte boundary.

`store.json` lists every array with its dtype, shape, size and sha256; files that it does not list
are never read. Each array `group/name` is the file `group/name.npy`: a header of exactly 4,096
bytes in numpy's own format, then the rows in C order. `numpy.load(mmap_mode="r")` opens the file as
it is, and the rows are aligned for direct reads. bfloat16, which numpy does not have, is stored as
uint16 and called bfloat16 in store.json. No file holds a pickle.

The groups: `graph/indptr`, `graph/indices` and `graph/edge_id` (CSC), `nodes/*` with one row per
node, `edges/*` with one row per edge in the order that edge_id refers to, `splits/*` with node ids.
A heterogeneous store, version 2 of the format, has these groups for each type (types.py). Small
values of the whole graph are in `store.json` itself (graph_values.py).

A shard (shards.py) has the store.json of the whole store, and beside it what tells the shard from
the others (`Shard`): the files of some arrays have a part of the rows.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.owners import Owners
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.types import NodeType, Types, array_name

FORMAT = "gnndrive-store"
ADDED_FORMAT = "gnndrive-added"
HOMOGENEOUS, HETEROGENEOUS = 1, 2  # versions of the format
DATA_OFFSET = 4096
STORE_JSON = "store.json"
JSON_BYTES_MAX = 64 << 20
CHUNK_BYTES = 64 << 20

AnyDType: TypeAlias = "torch.dtype | npt.DTypeLike"
"""A dtype of numpy or torch, or its name; "bfloat16" is allowed."""

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_STORAGE: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("bool", *_INTEGERS, "float16", "float32", "float64")
} | {"bfloat16": np.dtype(np.uint16)}
_REQUIRED = ("indptr", "indices")  # of types.GRAPH


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array of a store."""

    name: str  # "group/name", such as "nodes/x"
    dtype: str  # a numpy name or "bfloat16"
    shape: tuple[int, ...]  # rows first; at least one dimension
    sha256: str  # of the whole file, as `sha256sum` prints it; "" until it is written
    folder: str = ""  # of an added array, relative to the store's; "" for the store's own

    @property
    def file(self) -> str:
        """The file, relative to the store's folder."""
        return f"{self.folder}/{self.name}.npy" if self.folder else f"{self.name}.npy"

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy dtype in the file: uint16 for bfloat16."""
        return storage_dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.storage.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        return DATA_OFFSET + self.shape[0] * self.row_bytes

    def as_dict(self) -> dict[str, Any]:
        """The array's record in store.json; that of an added array names its folder."""
        record: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape)}
        record |= {"bytes": self.nbytes, "sha256": self.sha256}
        return record | {"folder": self.folder} if self.folder else record


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows of an array a shard has: stretches of 2^`shift` rows are dealt to the shards in
    turn (`Owners`)."""

    shift: int
    sha256: str  # of the shard's file


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of the `shards` of a store one is, from 0, and what it has of arrays of which it has
    not all rows, by their names."""

    index: int
    shards: int
    parts: Mapping[str, Part]

    def owners(self, array: ArrayInfo) -> Owners:
        """Which shard has which rows of an array of `parts`."""
        return Owners(array.shape[0], self.shards, self.parts[array.name].shift)

    def stored(self, array: ArrayInfo) -> ArrayInfo:
        """The array that the shard's file of an array has."""
        if array.name not in self.parts:
            return array
        shape = (self.owners(array).count(self.index), *array.shape[1:])
        return replace(array, shape=shape, sha256=self.parts[array.name].sha256)

    def as_dict(self) -> dict[str, Any]:
        """The shard's record in store.json."""
        parts = {
            name: {"shift": each.shift, "sha256": each.sha256} for name, each in self.parts.items()
        }
        return {"index": self.index, "shards": self.shards, "parts": parts}


@dataclass(frozen=True)
class StoreInfo:
    """The content of store.json. `values` are those of the whole graph (None) and of types, by
    name, as `graph_values.encode` returns them. `arrays` are those of the whole store, also if this
    is a `shard` of it."""

    types: Types
    made_by: str  # a text that says how the store was made
    arrays: Mapping[str, ArrayInfo]  # by name, the added ones too (see added.py)
    values: Mapping[NodeKey | EdgeKey, Mapping[str, Any]] = field(default_factory=dict)
    shard: Shard | None = None

    @cached_property
    def own(self) -> StoreInfo:
        """What store.json itself holds, without added arrays."""
        own = {name: array for name, array in self.arrays.items() if not array.folder}
        return replace(self, arrays=own)

    @cached_property
    def identity(self) -> str:
        """The SHA-256 of the store.json of the whole store."""
        return sha256(dump(replace(self, shard=None))).hexdigest()

    @cached_property
    def stored(self) -> dict[str, ArrayInfo]:
        """The arrays as they are in the store's files, by name."""
        shard = self.shard
        return {
            name: array if shard is None else shard.stored(array)
            for name, array in self.arrays.items()
        }

    @cached_property
    def leaves(self) -> dict[str, tuple[str, ...]]:
        """The last parts of the arrays' names by folder, such as {"nodes/paper": ("x", "y")}."""
        leaves = defaultdict[str, list[str]](list)
        for name in self.arrays:
            folder, _, leaf = name.rpartition("/")
            leaves[folder].append(leaf)
        return {folder: tuple(found) for folder, found in leaves.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays' files."""
        return sum(array.nbytes for array in self.stored.values())

    def as_dict(self) -> dict[str, Any]:
        """The content of store.json, for display and `--json`."""
        nodes, edges = self.types.nodes, self.types.edges
        counts: dict[str, Any] = {
            "node_types": {
                name: {"num_nodes": each.num_nodes, **_classes(each)}
                for name, each in nodes.items()
            },
            "edge_types": [
                {"type": list(type or ()), "num_edges": count} for type, count in edges.items()
            ],
        }
        if not self.types.hetero:
            counts = {"num_nodes": self.types.num_nodes, "num_edges": self.types.num_edges}
            counts |= _classes(nodes[None])
        values = [
            {"type": list(type) if isinstance(type, tuple) else type, "name": name, "value": value}
            for type, of_type in self.values.items()
            for name, value in of_type.items()
        ]
        return {
            "format": FORMAT,
            "version": HETEROGENEOUS if self.types.hetero else HOMOGENEOUS,
            "made_by": self.made_by,
            **counts,
            **({"values": values} if values else {}),
            **({} if self.shard is None else {"shard": self.shard.as_dict()}),
            "arrays": {array.name: array.as_dict() for array in self.arrays.values()},
        }


def _classes(nodes: NodeType) -> dict[str, Any]:
    names = None if nodes.classes is None else list(nodes.classes)
    return {"num_classes": nodes.num_classes, "classes": names}


def storage_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype in which a store's files hold elements of dtype `name`; ConfigError: a store
    cannot hold them."""
    try:
        return _STORAGE[name]
    except KeyError:
        raise ConfigError(
            f"a store cannot hold dtype {name!r}: convert to one of {', '.join(_STORAGE)}"
        ) from None


def dtype_name(dtype: AnyDType) -> str:
    """The store's name of a dtype; ConfigError: a store cannot hold it."""
    if isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
    elif isinstance(dtype, str) and dtype in _STORAGE:
        name = dtype
    else:
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError):
            name = str(dtype)
    storage_dtype(name)
    return name


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of elements of dtype `name`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def index_dtype(values: int) -> str:
    """The dtype of whole numbers from 0 to `values` - 1: int32 if `values` < 2**31, else int64."""
    return "int32" if values < 2**31 else "int64"


def npy_header(info: ArrayInfo) -> bytes:
    """The first 4,096 bytes of an array's file: a header in .npy format 1.0, padded with spaces."""
    descr = info.storage.newbyteorder("<").str
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {info.shape!r}, }}"
    body = text.encode("ascii").ljust(DATA_OFFSET - 11) + b"\n"
    header = b"\x93NUMPY\x01\x00" + (DATA_OFFSET - 10).to_bytes(2, "little") + body
    assert len(header) == DATA_OFFSET
    return header


def dump(info: StoreInfo) -> bytes:
    """The bytes of store.json."""
    return (json.dumps(info.own.as_dict(), indent=1, ensure_ascii=False) + "\n").encode()


def fits(array: ArrayInfo, types: Types) -> bool:
    """Whether a store of these types may hold an array of this name, shape and dtype; errors as for
    `Types.place`."""
    place = types.place(array.name)
    if place.group == "splits":
        return len(array.shape) == 1 and array.dtype == "int64"
    if place.group != "graph":
        return array.shape[0] == (place.sources if place.group == "nodes" else place.edges)
    if place.leaf == "indptr":
        return array.shape == (place.targets + 1,) and array.dtype == "int64"
    values = place.sources if place.leaf == "indices" else place.edges
    return array.shape == (place.edges,) and array.dtype in {index_dtype(values), "int64"}


def missing_arrays(arrays: Mapping[str, Any], types: Types) -> list[str]:
    """Names of the arrays that a store of these types must have and `arrays` lacks."""
    required = [array_name("graph", type, leaf) for type in types.edges for leaf in _REQUIRED]
    return [name for name in required if name not in arrays]
