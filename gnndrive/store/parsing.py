"""Parse store.json. It may come from a stranger, so every value is checked before it is used."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from hashlib import sha256
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.format import (
    ADDED_FORMAT,
    COUNT_MAX,
    FORMAT,
    HETEROGENEOUS,
    HOMOGENEOUS,
    ArrayInfo,
    StoreInfo,
    dump,
    fits,
    is_plain_text,
    missing_arrays,
    storage_dtype,
)
from gnndrive.store.graph_values import decode
from gnndrive.store.types import NodeType, Types, is_value_name

_DAMAGED = "the store is damaged: copy it again from where it came, or import it again"


def parse(content: bytes, where: str) -> StoreInfo:
    """Parse store.json.

    Args:
        content: its bytes, which may come from a stranger.
        where: its path, for errors.

    Raises:
        StoreError: it is invalid, of another version of the format, or contradicts itself.
    """
    top = Record.parse(content, where, "store.json")
    if top.text("format") != FORMAT:
        raise StoreError(f"{where} does not belong to a gnndrive store: choose another folder")
    version = top.whole("version")
    if version not in (HOMOGENEOUS, HETEROGENEOUS):
        raise StoreError(
            f"{where} has format version {version} and this gnndrive reads {HOMOGENEOUS} and "
            f"{HETEROGENEOUS}: install the gnndrive that made the store, or import it again"
        )
    types = _parse_types(top) if version == HETEROGENEOUS else _parse_counts(top)
    arrays = {}
    listed = top.value("arrays", dict)
    for name in listed:
        record = Record(listed[name], where, f"arrays[{name!r}]")
        arrays[name] = _parse_array(name, record, types)
    info = StoreInfo(types, top.text("made_by"), arrays, _parse_values(top, types))
    _check_counts(info, where)
    return info


def parse_added(content: bytes, where: str, own: StoreInfo, folder: str) -> dict[str, ArrayInfo]:
    """Parse the record of arrays that were added to a store (added.py).

    Args:
        content: its bytes, which may come from a stranger.
        where: its path, for errors.
        own: what the store's store.json says.
        folder: the only folder, relative to the store's, below which the arrays' folder may be.

    Returns:
        The arrays by name.

    Raises:
        StoreError: it is invalid, or belongs to another store.
    """
    mend = f"remove {where}, and run the inference again that made it"
    top = Record.parse(content, where, "the record", mend)
    if top.text("format") != ADDED_FORMAT or top.whole("version") != 1:
        raise top.error(f"is not of the format {ADDED_FORMAT}, version 1")
    if top.text("store") != sha256(dump(own)).hexdigest():
        raise top.error("belongs to another store")
    run = top.text("run")
    if not re.fullmatch("[0-9a-f]{16}", run):
        raise top.error("has a 'run' that is not 16 hexadecimal digits")
    arrays, listed = {}, top.value("arrays", dict)
    for name in listed:
        record = Record(listed[name], where, f"arrays[{name!r}]", mend)
        array = replace(_parse_array(name, record, own.types), folder=f"{folder}/{run}")
        if not name.startswith("nodes/") or name in own.arrays or not fits(array, own.types):
            raise record.error("is no new attribute with one row for each node")
        arrays[name] = array
    return arrays


def _parse_counts(top: Record) -> Types:
    return Types({None: _parse_nodes(top)}, {None: top.whole("num_edges")})


def _parse_types(top: Record) -> Types:
    given = top.value("node_types", dict)
    nodes: dict[NodeKey, NodeType] = {
        name: _parse_nodes(Record(given[name], top.where, f"node_types[{name!r}]"))
        for name in given
    }
    edges: dict[EdgeKey, int] = {}
    for place, fields in enumerate(top.value("edge_types", list)):
        record = Record(fields, top.where, f"edge_types[{place}]")
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
    for place, fields in enumerate(top.value("values", list) if "values" in top.fields else ()):
        record = Record(fields, top.where, f"values[{place}]")
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


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, for which json calls this; JSON does not allow them.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is not a number in JSON")


class Record:
    """A JSON object of a stranger, whose fields are checked as they are taken.

    Args:
        fields: the object.
        where: its file, for errors.
        what: what it is, for errors.
        mend: what to do about an error.
    """

    def __init__(self, fields: Any, where: str, what: str, mend: str = _DAMAGED) -> None:
        self.where, self.what, self.mend = where, what, mend
        if not isinstance(fields, dict):
            raise self.error("is not an object")
        self.fields = fields

    @classmethod
    def parse(cls, content: bytes, where: str, what: str, mend: str = _DAMAGED) -> Record:
        """The object that a file of JSON holds.

        Raises:
            StoreError: it is invalid.
        """
        try:
            document = json.loads(content.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{where} is not valid JSON ({error}): {mend}") from None
        return cls(document, where, what, mend)

    def inner(self, key: str) -> Record:
        """The object in a field.

        Raises:
            StoreError: the field is missing, or no object.
        """
        return Record(self.value(key, dict), self.where, key, self.mend)

    def error(self, problem: str) -> StoreError:
        """The error for a problem of this object; `problem` follows its name."""
        return StoreError(f"{self.where}: {self.what} {problem}; {self.mend}")

    def value(self, key: str, kind: type) -> Any:
        """A field of exactly this type.

        Raises:
            StoreError: it is missing, or of another type.
        """
        if key not in self.fields:
            raise self.error(f"has no {key!r}")
        value = self.fields[key]
        if type(value) is not kind:  # not isinstance, because True is an int
            raise self.error(f"has a {key!r} that is not {kind.__name__}")
        return value

    def whole(self, key: str) -> int:
        """A whole number from 0 to `COUNT_MAX` - 1.

        Raises:
            StoreError: the field is missing, or no such number.
        """
        value: int = self.value(key, int)
        if not 0 <= value < COUNT_MAX:
            raise self.error(f"has a {key!r} out of range")
        return value

    def text(self, key: str) -> str:
        """A text that may be printed.

        Raises:
            StoreError: the field is missing, or no such text.
        """
        value: str = self.value(key, str)
        if not is_plain_text(value):
            raise self.error(f"has a {key!r} with control characters in it")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Texts that may be printed; None: the field is null.

        Raises:
            StoreError: the field is missing, or no list of such texts.
        """
        if key in self.fields and self.fields[key] is None:
            return None
        values = self.value(key, list)
        if not all(isinstance(value, str) and is_plain_text(value) for value in values):
            raise self.error(f"has {key!r} that are not all printable text")
        return tuple(values)


def _parse_array(name: str, record: Record, types: Types) -> ArrayInfo:
    try:
        types.place(name)
        dtype = record.text("dtype")
        storage_dtype(dtype)  # not np.dtype, which accepts far more names
    except ConfigError as error:
        raise record.error(f"is refused: {error}") from None
    shape = record.value("shape", list)
    if not 1 <= len(shape) <= 8 or any(type(size) is not int or size < 0 for size in shape):
        raise record.error("has a 'shape' that is not a list of 1 to 8 sizes")
    if math.prod(max(size, 1) for size in shape) >= COUNT_MAX:
        raise record.error("has a 'shape' that is too large")
    sha256 = record.text("sha256")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise record.error("has a 'sha256' that is not 64 hexadecimal digits")
    info = ArrayInfo(name, dtype, tuple(shape), sha256)
    if record.whole("bytes") != info.nbytes:
        raise record.error(
            f"has 'bytes' {record.whole('bytes')}, but by its shape there are {info.nbytes}"
        )
    return info


def _check_counts(info: StoreInfo, where: str) -> None:
    """Check the arrays' shapes and dtypes against the numbers of nodes and edges."""
    for name in missing_arrays(info.arrays, info.types):
        raise StoreError(f"{where}: 'arrays' has no {name}; {_DAMAGED}")
    for name, array in info.arrays.items():
        if not fits(array, info.types):
            raise StoreError(
                f"{where}: {name} is {array.dtype} {list(array.shape)}, which does not fit "
                f"{info.types.num_nodes} nodes and {info.types.num_edges} edges; {_DAMAGED}"
            )
