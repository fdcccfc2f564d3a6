"""Import an OGB node property dataset from its folder, without the ogb package.

The places are those of OGB's own readers (ogb/io/read_graph_raw.py). In CSV, each array is a file
in raw/ or, with types, in raw/relations/SOURCE___RELATION___TARGET, raw/node-feat/TYPE and
raw/node-label/TYPE. In the binary form, one .npz holds all arrays or, with types, each array is an
.npz with a member for each type. When not to use it: for OGB's link and graph property datasets,
and for a dataset that is already in memory (`from_data`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, EdgeType, Int64Array, NodeKey
from gnndrive.store.format import AnyDType
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.dataset import Dataset, checked_rows, require, write_dataset
from gnndrive.store.importers.ends import BothWays, CsvEnds, Ends, NpzEnds
from gnndrive.store.importers.features import (
    Features,
    as_labels,
    flat,
    members,
    open_member,
    twice,
    two_dimensional,
)
from gnndrive.store.importers.tensor_file import REPEATS, repeats
from gnndrive.store.importers.text import (
    columns_of,
    read_counted,
    read_ids,
    read_numbers,
    read_small,
)
from gnndrive.store.reader import Store
from gnndrive.store.types import Types

_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_ENDING = ".csv.gz"
_FETCH_AGAIN = "fetch or unzip the dataset again"
Split: TypeAlias = "tuple[NodeKey, str, Int64Array]"
"""A node type, a split's name, and its ids."""


@with_if_exists()
def from_ogb(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    memory: str | int = "4GB",
    undirected: bool = False,
    dtype: AnyDType = "float32",
    made_by: str | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from an OGB node property dataset that is downloaded and unzipped.

    Node features become x [nodes, columns], edge features edge_attr [edges, columns], labels y.
    Every other array keeps its name, such as node_year, node_species and edge_reltype; an array of
    one column becomes [n]. Arrays in CSV become int64 if they hold whole numbers only, else
    float32, as in OGB's own reader; arrays in .npz keep their dtype, but float64 becomes float32.
    Edge ids are positions in OGB's list of edges.

    Args:
        folder: a folder with raw/ and split/ in it, such as dataset/ogbn_arxiv. The CSV form
            (ogbn-arxiv, -products, -proteins, -mag) is read faster if pyarrow is installed.
        path: the folder to make.
        memory: bytes, or a text such as "4GB". Sorting takes 40 bytes an edge; if the edges of a
            type need more than `memory`, DuckDB sorts them and spills beside the store.
        undirected: insert the reverse of each edge after the edge, with the same features, and keep
            repetitions. This is OGB's add_inverse_edge, which OGB's loaders set for ogbn-products
            and ogbn-proteins. Not allowed with several edge types: OGB's loaders insert no reverse
            edges into ogbn-mag.
        dtype: dtype of x in the store; "bfloat16" is allowed.
        made_by: a text that says how the store was made; None: a text that names the folder.
        if_exists: as for `from_data`; a store that is opened is not compared.
        progress: called as progress(what, done, total).

    Returns:
        The open store: homogeneous, or with OGB's types. y is int64 with -1 for a missing label if
        all labels are whole numbers, else float32 with nan; its shape is [nodes], or [nodes,
        columns] if there are several columns. The splits are train, val and test; if the folder has
        several schemes of splits, they are SCHEME_train and so on.

    Raises:
        ConfigError: arguments do not fit together, `path` exists, or pyarrow or DuckDB is needed
            and is not installed.
        StoreError: `folder` is not an OGB folder, a file is missing or damaged, counts or edges
            contradict each other (the message names the file and the line), or the disk is full;
            nothing is left behind.
    """
    budget, root = parse_size(memory, "memory"), Path(folder)
    raw = open_raw(root)
    if undirected and None not in raw.num_nodes:
        raise ConfigError(
            "undirected= is for one type of edges: leave it out, and add edge types of reverse "
            "edges to the dataset yourself"
        )
    if undirected:
        raw.edges[None] = BothWays(raw.edges[None])
    dataset = Dataset(raw.num_nodes, raw.edges)
    _add_arrays(dataset, raw, undirected, dtype)
    for node_type, name, ids in _splits(root / "split", raw):
        dataset.splits[node_type, name] = ids
    reverse = ", undirected" if undirected else ""
    made_by = made_by or f"gnndrive.from_ogb({os.fspath(folder)}{reverse})"
    return write_dataset(
        dataset, path, memory=budget, made_by=made_by, overwrite=if_exists == "replace",
        progress=progress,
    )  # fmt: skip


def _add_arrays(dataset: Dataset, raw: Raw, undirected: bool, dtype: AnyDType) -> None:
    for (node_type, name), rows in raw.nodes.items():
        if name == "node_feat":
            dataset.add("nodes", node_type, "x", two_dimensional(rows), dtype)
        else:
            dataset.add("nodes", node_type, name, flat(rows), _as_ogb_reads(rows))
    for (edge_type, name), rows in raw.of_edges.items():
        each = twice(rows) if undirected else rows
        if name == "edge_feat":
            each, name = two_dimensional(each), "edge_attr"
        else:
            each = flat(each)
        dataset.add("edges", edge_type, name, each, _as_ogb_reads(rows))
    if not raw.labels:
        raise StoreError("the dataset has no labels: give an OGB node property dataset (ogbn-…)")
    for node_type, rows in raw.labels.items():
        dataset.add("nodes", node_type, "y", as_labels(rows))


def _as_ogb_reads(rows: Features) -> str:
    return "float32" if rows.dtype == np.float64 else rows.stored


# ---- splits


def _splits(folder: Path, raw: Raw) -> Iterator[Split]:
    schemes = sorted(each for each in folder.glob("*") if each.is_dir())
    if not schemes:
        raise StoreError(
            f"{folder} holds no scheme of splits, such as split/time: fetch or unzip the dataset "
            "again"
        )
    for scheme in schemes:
        prefix = "" if len(schemes) == 1 else f"{scheme.name}_"
        for node_type, name, ids in _scheme(scheme, raw):
            yield node_type, prefix + _SPLITS[name], ids


def _scheme(folder: Path, raw: Raw) -> Iterator[Split]:
    flags = folder / "nodetype-has-split.csv.gz"
    pickled = folder / "split_dict.pt"
    if pickled.is_file() and not flags.is_file() and not (folder / "train.csv.gz").is_file():
        yield from _pickled(pickled, raw)
        return
    types = list(raw.num_nodes)
    if None not in raw.num_nodes:
        split = _types_with_true(require(flags))
        types = [each for each in types if each in split]
        if not types:
            raise StoreError(f"{flags} says that no node type is split: fetch the dataset again")
    for node_type in types:
        for name in _SPLITS:
            file = require(folder / (node_type or "") / f"{name}.csv.gz")
            yield node_type, name, read_ids(file, raw.num_nodes[node_type], of_dataset=True)


def _pickled(path: Path, raw: Raw) -> Iterator[Split]:
    """Yield the splits that OGB's DatasetSaver wrote as tensors; arrays are refused, because only a
    pickle can hold them."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # because a damaged pickle can raise anything
        raise StoreError(
            f"{path} is not loaded, because it holds more than tensors and a pickle can run any "
            "code: if you trust it, write its ids beside it as other OGB datasets have them, in "
            "train.csv.gz, valid.csv.gz and test.csv.gz, an id a line"
        ) from None
    for name in _SPLITS:
        each: Any = found.get(name) if isinstance(found, dict) else None
        by_type = {None: each} if None in raw.num_nodes else each
        if not isinstance(by_type, dict) or not set(by_type) <= set(raw.num_nodes):
            raise StoreError(f"{path} has no {name!r} for these node types: fetch it again")
        for node_type, ids in by_type.items():
            if not isinstance(ids, torch.Tensor) or ids.dim() != 1 or ids.is_floating_point():
                raise StoreError(f"{path}: {name!r} is not a tensor of node ids: fetch it again")
            if repeats(ids):
                raise StoreError(f"{path}: {name!r} is a tensor with {REPEATS}")
            values = ids.numpy().astype(np.int64)
            bad = np.flatnonzero((values < 0) | (values >= raw.num_nodes[node_type]))
            if len(bad):
                raise StoreError(
                    f"{path}: entry {bad[0]} of {name!r} names node {values[bad[0]]}, but there "
                    f"are {raw.num_nodes[node_type]} nodes, numbered from 0; correct it"
                )
            yield node_type, name, values


# ---- the raw files


@dataclass(frozen=True, slots=True)
class Raw:
    """The raw files' arrays, opened and not read yet, by type; those of nodes and edges also by
    OGB's names: "node_feat", "node_year", …"""

    num_nodes: dict[NodeKey, int]
    edges: dict[EdgeKey, Ends] = field(default_factory=dict)
    nodes: dict[tuple[NodeKey, str], Features] = field(default_factory=dict)
    of_edges: dict[tuple[EdgeKey, str], Features] = field(default_factory=dict)
    labels: dict[NodeKey, Features] = field(default_factory=dict)


def open_raw(folder: Path) -> Raw:
    """Open the raw files of an OGB folder in any of their forms."""
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
    num_nodes = _count(raw / "num-node-list.csv.gz")
    num_edges = _count(raw / "num-edge-list.csv.gz")
    found = Raw({None: num_nodes})
    found.edges[None] = CsvEnds(raw / "edge.csv.gz", num_edges, "num-edge-list.csv.gz")
    found.nodes.update(_csv_arrays(raw, None, "node", num_nodes, "num-node-list.csv.gz"))
    found.of_edges.update(_csv_arrays(raw, None, "edge", num_edges, "num-edge-list.csv.gz"))
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
        found.of_edges.update(_csv_arrays(folder, type, "edge", count, "num-edge-list.csv.gz"))
    featured = _types_with_true(raw / "nodetype-has-feat.csv.gz")
    labelled = _types_with_true(raw / "nodetype-has-label.csv.gz")
    count_source = "num-node-dict.csv.gz"
    for node_type, count in num_nodes.items():
        folder = raw / "node-feat" / str(node_type)
        found.nodes.update(_csv_arrays(folder, node_type, "node", count, count_source))
        if node_type in featured and (node_type, "node_feat") not in found.nodes:
            require(folder / "node-feat.csv.gz")
        labels = raw / "node-label" / str(node_type) / "node-label.csv.gz"
        if node_type in labelled or labels.is_file():
            found.labels[node_type] = _CsvRows(require(labels), count, count_source, "float64")
    return found


def _csv_arrays(
    folder: Path, type: Any, group: str, count: int, count_source: str
) -> Iterator[tuple[tuple[Any, str], Features]]:
    """Yield ((type, OGB's name), rows) of each array of nodes or edges in a folder."""
    for file in sorted(folder.glob(f"*{_ENDING}")):
        name = file.name.removesuffix(_ENDING)
        if group == "node" and name == "species":  # as ogbn-proteins calls it
            name = "node_species"
        if name == f"{group}-feat":
            kind = "float64" if group == "node" else None
            yield (type, f"{group}_feat"), _CsvRows(file, count, count_source, kind)
        elif name.startswith(f"{group}_"):
            yield (type, name), _CsvRows(file, count, count_source)


def _count(path: Path) -> int:
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
        if _group(name, path) == "node":
            found.nodes[None, name] = _rows(path, name, num_nodes, "num_nodes_list")
        else:
            found.of_edges[None, name] = _rows(path, name, num_edges, "num_edges_list")
    labels = require(raw / "node-label.npz")
    found.labels[None] = _rows(labels, "node_label", num_nodes, "num_nodes_list")
    return found


def _rows(path: Path, name: str, count: int, count_source: str) -> Features:
    return checked_rows(open_member(path, name), count, f"{path} ({name})", count_source)


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
            if attribute == "node-label" or _group(attribute, path) == "node":
                rows = _rows(path, name, _count_of(num_nodes, name, path), nodes_file.name)
                if attribute == "node-label":
                    found.labels[name] = rows
                else:
                    found.nodes[name, attribute] = rows
            else:
                type = _triplet(name, path)
                count = _count_of(num_edges, type, path)
                found.of_edges[type, attribute] = _rows(path, name, count, edges_file.name)
    return found


def _member_count(path: Path, name: str) -> int:
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
