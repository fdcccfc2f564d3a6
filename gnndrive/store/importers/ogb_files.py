"""Open the files of an OGB node property dataset: CSV or .npz, with one or several types of nodes.

The places are those of OGB's own readers (ogb/io/read_graph_raw.py). In CSV, each array is a file
in raw/ or, with types, in raw/relations/SOURCE___RELATION___TARGET, raw/node-feat/TYPE and
raw/node-label/TYPE. In the binary form, one .npz holds all arrays or, with types, each array is an
.npz with a member for each type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import StoreError
from gnndrive.common.records import EdgeKey, EdgeType, NodeKey
from gnndrive.store.importers.dataset import checked_rows, require
from gnndrive.store.importers.ends import CsvEnds, Ends, NpzEnds
from gnndrive.store.importers.features import Features, members, open_member
from gnndrive.store.importers.text import columns_of, read_counted, read_numbers, read_small
from gnndrive.store.types import Types

_ENDING = ".csv.gz"
_FETCH_AGAIN = "fetch or unzip the dataset again"


@dataclass(frozen=True, slots=True)
class Raw:
    """The raw files' arrays, opened and not read yet. The type of a homogeneous graph is None.

    Attributes:
        num_nodes: numbers of nodes by type.
        edges: edges by type.
        nodes, of_edges: arrays by type and OGB's name: "node_feat", "node_year", …
        labels: labels by node type.
    """

    num_nodes: dict[NodeKey, int]
    edges: dict[EdgeKey, Ends] = field(default_factory=dict)
    nodes: dict[tuple[NodeKey, str], Features] = field(default_factory=dict)
    of_edges: dict[tuple[EdgeKey, str], Features] = field(default_factory=dict)
    labels: dict[NodeKey, Features] = field(default_factory=dict)


def open_raw(folder: Path) -> Raw:
    """Open the raw files of an OGB folder in any of their forms.

    Raises:
        StoreError: `folder` is not an OGB folder, or a file is missing or damaged.
    """
    raw = folder / "raw"
    forms = {
        "data.npz": _binary,
        "edge_index_dict.npz": _binary_of_types,
        "triplet-type-list.csv.gz": _csv_of_types,
        "edge.csv.gz": _csv,
    }
    for name, open_form in forms.items():
        if (raw / name).is_file():
            return open_form(raw)
    raise StoreError(
        f"{folder} is not an OGB folder: raw/ holds none of {', '.join(forms)}; give the unzipped "
        "folder of a node property dataset, such as dataset/ogbn_arxiv"
    )


# ---- CSV


class _CsvRows(Features):
    """Rows of numbers in a CSV file, of which `count_source` says that there are `count`.

    Args:
        kind: "int64", or "float64" with nan for an empty field; None: int64 if the file holds whole
            numbers only, else float64; the file is then read once more.
    """

    def __init__(self, path: Path, count: int, count_source: str, kind: str | None = None) -> None:
        self._path, self._count_source = path, count_source
        self._columns = columns_of(path)
        if kind is None:
            kind = "int64" if self._all_whole() else "float64"
        self.dtype = np.dtype(kind)
        self.shape = (count, self._columns) if self._columns else (count, 1)

    def _all_whole(self) -> bool:
        try:
            for _ in read_numbers(self._path, self._columns):
                pass
        except StoreError:
            return False
        return True

    def chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        given = self._path, self._columns, self.dtype.name, self.shape[0], self._count_source
        for block in read_counted(*given):
            for start in range(0, len(block), rows):
                yield block[start : start + rows]


def _csv(raw: Path) -> Raw:
    num_nodes, num_edges = (
        _count(raw / "num-node-list.csv.gz"),
        _count(raw / "num-edge-list.csv.gz"),
    )
    found = Raw({None: num_nodes})
    found.edges[None] = CsvEnds(raw / "edge.csv.gz", num_edges, "num-edge-list.csv.gz")
    for name, rows in _csv_arrays(raw, "node", num_nodes, "num-node-list.csv.gz"):
        found.nodes[None, name] = rows
    for name, rows in _csv_arrays(raw, "edge", num_edges, "num-edge-list.csv.gz"):
        found.of_edges[None, name] = rows
    labels = require(raw / "node-label.csv.gz")
    found.labels[None] = _CsvRows(labels, num_nodes, "num-node-list.csv.gz", "float64")
    return found


def _csv_of_types(raw: Path) -> Raw:
    names, counts = _two_lines(raw / "num-node-dict.csv.gz")
    triplets = read_small(raw / "triplet-type-list.csv.gz")
    for place, triplet in enumerate(triplets, 1):
        if len(triplet) != 3:
            raise StoreError(
                f"{raw / 'triplet-type-list.csv.gz'}, line {place}: {triplet} is not source, "
                f"relation and target; {_FETCH_AGAIN}"
            )
    num_nodes: dict[NodeKey, int] = {
        name: _parse_count(count, raw / "num-node-dict.csv.gz")
        for name, count in zip(names, counts, strict=True)
    }
    types: list[EdgeType] = [(source, relation, target) for source, relation, target in triplets]
    _check_types(num_nodes, dict.fromkeys(types, 0))  # they become names of folders
    found = Raw(num_nodes)
    for type in sorted(types):
        folder = raw / "relations" / "___".join(type)
        count = _count(folder / "num-edge-list.csv.gz")
        found.edges[type] = CsvEnds(require(folder / "edge.csv.gz"), count, "num-edge-list.csv.gz")
        for name, rows in _csv_arrays(folder, "edge", count, "num-edge-list.csv.gz"):
            found.of_edges[type, name] = rows
    featured, labelled = (
        _types_with_true(raw / f"nodetype-has-{what}.csv.gz") for what in ("feat", "label")
    )
    for node_type, count in num_nodes.items():
        folder = raw / "node-feat" / str(node_type)
        for name, rows in _csv_arrays(folder, "node", count, "num-node-dict.csv.gz"):
            found.nodes[node_type, name] = rows
        if node_type in featured and (node_type, "node_feat") not in found.nodes:
            require(folder / "node-feat.csv.gz")
        labels = raw / "node-label" / str(node_type) / "node-label.csv.gz"
        if node_type in labelled or labels.is_file():
            count_source = "num-node-dict.csv.gz"
            found.labels[node_type] = _CsvRows(require(labels), count, count_source, "float64")
    return found


def _csv_arrays(
    folder: Path, group: str, count: int, count_source: str
) -> Iterator[tuple[str, Features]]:
    """Yield (OGB's name, rows) of each array of nodes or edges in a folder."""
    for file in sorted(folder.glob(f"*{_ENDING}")):
        name = file.name.removesuffix(_ENDING)
        if group == "node" and name == "species":  # as ogbn-proteins calls it
            name = "node_species"
        if name == f"{group}-feat":
            kind = "float64" if group == "node" else None
            yield f"{group}_feat", _CsvRows(file, count, count_source, kind)
        elif name.startswith(f"{group}_"):
            yield name, _CsvRows(file, count, count_source)


def _count(path: Path) -> int:
    """The count in a file that holds one count."""
    lines = read_small(require(path))
    if len(lines) != 1:
        raise StoreError(
            f"{path} says that there are {len(lines)} graphs: give a dataset of one graph, whose "
            "name begins with ogbn"
        )
    return _parse_count(lines[0][0], path)


def _parse_count(text: str, path: Path) -> int:
    try:
        count = float(text)  # because OGB writes some counts as 5.0
    except ValueError:
        count = -1.0
    if not (0 <= count < 2**48 and count == int(count)):
        raise StoreError(f"{path}: {text!r} is not a count; {_FETCH_AGAIN}")
    return int(count)


def _two_lines(path: Path) -> tuple[list[str], list[str]]:
    """The names in a file's first line, and the values in its second."""
    lines = read_small(require(path))
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise StoreError(
            f"{path} has {len(lines)} lines and should have two, names and one value for each: "
            f"give a dataset of one graph, whose name begins with ogbn, or {_FETCH_AGAIN}"
        )
    return lines[0], lines[1]


def _types_with_true(path: Path) -> set[str]:
    """The types for which a file says True; empty if there is no such file."""
    if not path.is_file():
        return set()
    pairs = zip(*_two_lines(path), strict=True)
    return {name for name, value in pairs if value.lower() in ("true", "1")}


# ---- .npz


def _binary(raw: Path) -> Raw:
    path = raw / "data.npz"
    names = members(path)
    num_nodes = _member_count(path, "num_nodes_list")
    num_edges = _member_count(path, "num_edges_list")
    found = Raw({None: num_nodes}, {None: _npz_ends(path, "edge_index", num_edges, path)})
    for name in names:
        if name in ("edge_index", "num_nodes_list", "num_edges_list"):
            continue
        group = _group(name, path)
        count, count_source = (num_nodes, "num_nodes_list") if group == "node" else (
            num_edges, "num_edges_list"
        )  # fmt: skip
        rows = checked_rows(open_member(path, name), count, f"{path} ({name})", count_source)
        if group == "node":
            found.nodes[None, name] = rows
        else:
            found.of_edges[None, name] = rows
    labels = require(raw / "node-label.npz")
    found.labels[None] = checked_rows(
        open_member(labels, "node_label"), num_nodes, f"{labels} (node_label)", "num_nodes_list"
    )
    return found


def _binary_of_types(raw: Path) -> Raw:
    nodes_file, edges_file = (require(raw / f"num_{of}_dict.npz") for of in ("nodes", "edges"))
    num_nodes: dict[NodeKey, int] = {
        name: _member_count(nodes_file, name) for name in sorted(members(nodes_file))
    }
    types = {_triplet(name, edges_file): name for name in sorted(members(edges_file))}
    num_edges: dict[EdgeKey, int] = {
        type: _member_count(edges_file, name) for type, name in types.items()
    }
    _check_types(num_nodes, num_edges)
    found = Raw(num_nodes)
    for type, name in types.items():
        ends = _npz_ends(raw / "edge_index_dict.npz", name, num_edges[type], edges_file)
        found.edges[type] = ends
    for path in sorted(raw.glob("*.npz")):
        attribute = path.name.removesuffix(".npz").removesuffix("_dict")
        if path in (nodes_file, edges_file) or attribute == "edge_index":
            continue
        for name in members(path):
            where = f"{path} ({name})"
            if attribute == "node-label" or _group(attribute, path) == "node":
                count = _count_of(num_nodes, name, path)
                rows = checked_rows(open_member(path, name), count, where, nodes_file.name)
                if attribute == "node-label":
                    found.labels[name] = rows
                else:
                    found.nodes[name, attribute] = rows
            else:
                type = _triplet(name, path)
                count = _count_of(num_edges, type, path)
                rows = checked_rows(open_member(path, name), count, where, edges_file.name)
                found.of_edges[type, attribute] = rows
    return found


def _member_count(path: Path, name: str) -> int:
    """The count in a member that holds one count."""
    member = open_member(path, name)
    few = math.prod(member.shape) <= 4  # because a larger array could fill the memory
    values = member.all_rows().reshape(-1) if few else np.empty(0, np.int64)
    if len(values) != 1 or values.dtype.kind not in "iu" or values[0] < 0:
        raise StoreError(
            f"{path} ({name}) holds {values[:4].tolist()} and not the count of one graph: give a "
            "dataset of one graph, whose name begins with ogbn"
        )
    return int(values[0])


def _npz_ends(path: Path, name: str, count: int, count_source: Path) -> Ends:
    ends = NpzEnds(path, name)
    if ends.count != count:
        raise StoreError(
            f"{ends.where} has {ends.count} edges, but {count_source.name} says {count}: one of "
            f"them is damaged; {_FETCH_AGAIN}"
        )
    return ends


def _group(name: str, path: Path) -> str:
    group = name[:5]
    if group not in ("node_", "edge_"):
        raise StoreError(
            f"{path}: {name!r} belongs neither to nodes nor to edges, because OGB's names begin "
            "with node_ or edge_: rename it, or take it out"
        )
    return group[:4]


def _triplet(name: str, path: Path) -> EdgeType:
    parts = name.split("___")
    if len(parts) != 3:
        raise StoreError(
            f"{path}: {name!r} is not an edge type, which OGB writes as "
            "source___relation___target: rename it"
        )
    return parts[0], parts[1], parts[2]


def _count_of(counts: Mapping[Any, int], name: Any, path: Path) -> int:
    if name not in counts:
        known = ", ".join(map(str, counts))
        raise StoreError(
            f"{path} has an array of {name!r}, but the types are {known}; {_FETCH_AGAIN}"
        )
    return counts[name]


def _check_types(nodes: Mapping[NodeKey, int], edges: Mapping[Any, int]) -> None:
    Types.of({str(name): count for name, count in nodes.items()}, dict(edges))
