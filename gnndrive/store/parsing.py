"""Parse store.json. It may come from a stranger, so every value is checked before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gnndrive.common.checked_json import COUNT_MAX, Record
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.format import (
    ADDED_FORMAT,
    FORMAT,
    HETEROGENEOUS,
    HOMOGENEOUS,
    ArrayInfo,
    Part,
    Shard,
    StoreInfo,
    fits,
    missing_arrays,
    storage_dtype,
)
from gnndrive.store.graph_values import decode
from gnndrive.store.types import NodeType, Types, is_value_name

SHARDS_MAX, SHIFT_MAX = 1 << 20, 40
_DAMAGED = "the store is damaged: copy it again from where it came, or import it again"


def parse(content: bytes, where: str) -> StoreInfo:
    """Parse the bytes of store.json; `where` is its path, for errors.

    Raises:
        StoreError: it is invalid, of another version of the format, or contradicts itself.
    """
    top = Record.parse(content, where, _DAMAGED)
    if top.text("format") != FORMAT:
        raise StoreError(f"{where} does not belong to a gnndrive store: choose another folder")
    version = top.whole("version")
    if version not in (HOMOGENEOUS, HETEROGENEOUS):
        raise StoreError(
            f"{where} has format version {version} and this gnndrive reads {HOMOGENEOUS} and "
            f"{HETEROGENEOUS}: install the gnndrive that made the store, or import it again"
        )
    if version == HETEROGENEOUS:
        types = _parse_types(top)
    else:
        types = Types({None: _parse_nodes(top)}, {None: top.whole("num_edges")})
    arrays = {
        name: _parse_array(name, record, types) for name, record in top.each("arrays", dict).items()
    }
    for name in missing_arrays(arrays, types):
        raise StoreError(f"{where}: 'arrays' has no {name}; {_DAMAGED}")
    for name, array in arrays.items():
        if not fits(array, types):
            raise StoreError(
                f"{where}: {name} is {array.dtype} {list(array.shape)}, which does not fit "
                f"{types.num_nodes} nodes and {types.num_edges} edges; {_DAMAGED}"
            )
    values = _parse_values(top, types)
    return StoreInfo(types, top.text("made_by"), arrays, values, _parse_shard(top, arrays))


def _parse_shard(top: Record, arrays: Mapping[str, ArrayInfo]) -> Shard | None:
    if "shard" not in top.fields:
        return None
    record, parts = top.inside("shard", top.fields["shard"]), dict[str, Part]()
    shards = record.whole("shards", 1, SHARDS_MAX)
    for name, each in record.each("parts", dict).items():
        if name not in arrays or not name.startswith(("nodes/", "edges/")):
            raise each.error("is no array with a row for each node or edge")
        parts[name] = Part(each.whole("shift", 0, SHIFT_MAX), _parse_sha256(each))
    return Shard(record.whole("index", 0, shards - 1), shards, parts)


def parse_added(content: bytes, where: str, own: StoreInfo, folder: str) -> dict[str, ArrayInfo]:
    """Parse the record of arrays that were added to a store (added.py): the arrays by name. `own`
    is what store.json says; `folder`, relative to the store's, has the folders of the arrays.

    Raises:
        StoreError: it is invalid, or belongs to another store.
    """
    mend = f"remove {where}, and run the inference again that made it"
    top = Record.parse(content, where, mend)
    if top.text("format") != ADDED_FORMAT or top.whole("version") != 1:
        raise top.error(f"is not of the format {ADDED_FORMAT}, version 1")
    if top.text("store") != own.identity:
        raise top.error("belongs to another store")
    run = top.text("run")
    if not re.fullmatch("[0-9a-f]{16}", run):
        raise top.error("has a 'run' that is not 16 hexadecimal digits")
    arrays = {}
    for name, record in top.each("arrays", dict).items():
        array = replace(_parse_array(name, record, own.types), folder=f"{folder}/{run}")
        if not name.startswith("nodes/") or name in own.arrays or not fits(array, own.types):
            raise record.error("is no new attribute with one row for each node")
        arrays[name] = array
    return arrays


def _parse_sha256(record: Record) -> str:
    sha256 = record.text("sha256")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise record.error("has a 'sha256' that is not 64 hexadecimal digits")
    return sha256


def _parse_types(top: Record) -> Types:
    nodes: dict[NodeKey, NodeType] = {
        name: _parse_nodes(record) for name, record in top.each("node_types", dict).items()
    }
    edges: dict[EdgeKey, int] = {}
    for record in top.each("edge_types").values():
        type: Any = tuple(record.texts("type") or ())
        if type in edges:
            raise record.error("has the 'type' of an earlier entry")
        edges[type] = record.whole("num_edges")
    types = Types(nodes, edges)
    try:
        types.check()
    except ConfigError as error:
        raise top.error(f"has invalid types: {error}") from None
    if types.num_nodes >= COUNT_MAX or types.num_edges >= COUNT_MAX:
        raise top.error("has more nodes or edges than a store can hold")
    return types


def _parse_values(top: Record, types: Types) -> dict[NodeKey | EdgeKey, dict[str, Any]]:
    found: dict[NodeKey | EdgeKey, dict[str, Any]] = {}
    for record in top.each("values").values() if "values" in top.fields else ():
        type, name = record.fields.get("type"), record.text("name")
        if isinstance(type, list):
            type = tuple(record.texts("type") or ())
        if type is not None and (not types.hetero or type not in (*types.nodes, *types.edges)):
            raise record.error("has a 'type' that the store has not")
        if not is_value_name(name, type, types) or name in found.get(type, {}):
            raise record.error("has a 'name' that no value may have, or that is there twice")
        try:
            decode(value := record.fields.get("value"))
        except ValueError as error:
            raise record.error(str(error)) from None
        found.setdefault(type, {})[name] = value
    return found


def _parse_nodes(record: Record) -> NodeType:
    nodes = NodeType(
        record.whole("num_nodes"), record.whole("num_classes"), record.texts("classes")
    )
    if nodes.classes is not None and nodes.num_classes < len(nodes.classes):
        raise record.error("has a 'num_classes' below the number of 'classes'")
    return nodes


def parse_kind(record: Record) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of an array."""
    dtype, shape = record.text("dtype"), record.value("shape", list)
    try:
        storage_dtype(dtype)  # not np.dtype, which accepts far more names
    except ConfigError as error:
        raise record.error(f"is refused: {error}") from None
    if not 1 <= len(shape) <= 8 or any(type(size) is not int or size < 0 for size in shape):
        raise record.error("has a 'shape' that is not a list of 1 to 8 sizes")
    if math.prod(max(size, 1) for size in shape) >= COUNT_MAX:
        raise record.error("has a 'shape' that is too large")
    return dtype, tuple(shape)


def _parse_array(name: str, record: Record, types: Types) -> ArrayInfo:
    try:
        types.place(name)
    except ConfigError as error:
        raise record.error(f"is refused: {error}") from None
    dtype, shape = parse_kind(record)
    info = ArrayInfo(name, dtype, shape, _parse_sha256(record))
    if record.whole("bytes") != info.nbytes:
        raise record.error(
            f"has 'bytes' {record.whole('bytes')}, but by its shape there are {info.nbytes}"
        )
    return info
