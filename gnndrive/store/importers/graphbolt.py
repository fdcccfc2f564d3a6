"""Import a dataset of DGL's GraphBolt, which a metadata.yaml describes.

The files are those of GraphBolt's OnDiskDataset: edges in CSV or .npy, features and sets of seeds
in .npy or as tensors; or those that its preprocessing made of them, with the edges as one CSC
(fused_graph.py).
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size, parse_size
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, EdgeType, Int64Array, NodeKey, ends_of
from gnndrive.store.format import AnyDType
from gnndrive.store.if_exists import IfExists, with_if_exists
from gnndrive.store.importers.dataset import Dataset, checked_rows, write_dataset
from gnndrive.store.importers.ends import CsvEnds, Ends, NpyEnds
from gnndrive.store.importers.features import (
    Array,
    Features,
    as_labels,
    as_numpy,
    flat,
    open_features,
    open_tensor,
    rows_per_chunk,
    two_dimensional,
)
from gnndrive.store.importers.fused_graph import FusedGraph
from gnndrive.store.importers.link_task import LinkSet
from gnndrive.store.importers.text import count_rows
from gnndrive.store.link_split.opened import task_name
from gnndrive.store.reader import Store
from gnndrive.store.types import Types

METADATA, PREPROCESSED = "metadata.yaml", "preprocessed"
_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}
_SEEDS = ("seeds", "seed_nodes")
_LABELS = ("labels", "label")
_PAIRS = (*_SEEDS, "node_pairs")
_LINK_DATA = ("node_pairs", "negative_srcs", "negative_dsts", "indexes")


@with_if_exists()
def from_graphbolt(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    memory: str | int = "4GB",
    dtype: AnyDType | None = None,
    made_by: str | None = None,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> Store:
    """Write a store from a dataset of GraphBolt's OnDiskDataset, before preprocessing or after it.

    The node feature "feat" becomes x [nodes, columns] and the edge feature "feat" becomes edge_attr
    [edges, columns]; other features keep their names and shapes. The first task of nodes gives the
    splits train, val and test, and the labels y of the nodes in its sets. If it has no labels, a
    node feature "label" or "labels" becomes y. Further tasks of nodes give the splits TASK_train
    and so on, and labels TASK_y. Edge ids are positions in the list of edges.

    Tasks of links are written beside the arrays: `gnndrive.open_links(path)` opens the first one,
    `gnndrive.open_links(path, TASK)` any. Their sets have edge_label_index, with negatives behind
    the pairs that are given; edge_label, int64 if labels are whole numbers, else float32, 1 for a
    pair without a label and 0 for a negative; and edge_label_query if there are indexes or
    negatives: those of a pair have the query of the pair.

    Of a preprocessed dataset, edge ids are positions in the list of edges if it was preprocessed
    with include_original_edge_id=True; otherwise they are positions in GraphBolt's CSC, and
    features of edges are left out, because nothing says which edge a row belongs to. A feature of
    one number a node is [nodes, 1], as GraphBolt writes it. No code that its graph, a pickle, names
    is run.

    Args:
        source: the dataset's folder, the folder "preprocessed" in it, or a metadata.yaml of either.
            For the dataset's folder, the preprocessed dataset is read only if a file is missing
            that the other metadata.yaml names.
        path: the folder to make.
        memory: bytes, or a text such as "4GB". Sorting takes 40 bytes an edge; if the edges of a
            type need more than `memory`, DuckDB sorts them and spills beside the store.
        dtype: dtype of x in the store; "bfloat16" is allowed. None: the dtype in the file.
        made_by: a text that says how the store was made; None: a text that names the source.
        if_exists: as for `from_data`; a store that is opened is not compared.
        progress: called as progress(what, done, total).

    Returns:
        The open store, which is homogeneous if the metadata names no types. y is int64 with -1 for
        a missing label, or, if a label is not whole, float32 with nan; its shape is [nodes], or
        [nodes, labels] if nodes have several labels. If y holds classes, `num_classes` is at least
        that of the first task of nodes.

    Raises:
        ConfigError: arguments do not fit together, `path` exists, or a package is needed and is not
            installed: PyYAML, pyarrow, DuckDB, torch 2.5 for a preprocessed dataset.
        StoreError: the metadata is invalid, a file is missing or damaged (the message names the
            file and the line), an edge, seed or feature does not fit, or the disk is full; nothing
            is left behind.

    Warns:
        UserWarning: something is left out: tasks whose seeds are three or more nodes, data of a set
            other than GraphBolt's, features of the whole graph, and features of edges of a
            preprocessed dataset without edge ids.
    """
    budget = parse_size(memory, "memory")
    top = read_metadata(Path(source))
    add = _add_preprocessed if isinstance(top, Preprocessed) else _add_raw
    dataset = add(top, budget, dtype)
    return write_dataset(
        dataset, path, memory=budget, overwrite=if_exists == "replace", progress=progress,
        made_by=made_by or f"gnndrive.from_graphbolt({os.fspath(source)})",
    )  # fmt: skip


def _add_raw(top: Entry, budget: int, dtype: AnyDType | None) -> Dataset:
    """The dataset as it is before preprocessing."""
    graph = top.inner("graph")
    num_nodes = _nodes(graph)
    dataset = Dataset(num_nodes, dict(_edges(graph, num_nodes)))
    labels = _add_tasks(dataset, top, budget)
    for entry in [*graph.entries("feature_data"), *top.entries("feature_data")]:
        _add_feature(dataset, entry, labels, dtype)
    return dataset


def _add_preprocessed(top: Entry, budget: int, dtype: AnyDType | None) -> Dataset:
    """The dataset as GraphBolt's preprocessing leaves it, which keeps features of edges in the
    order of the dataset's own lists of edges."""
    topology = top.inner("graph_topology")
    topology.text("type", "FusedCSCSamplingGraph")
    graph = FusedGraph(topology.path())
    dataset = Dataset(graph.num_nodes, graph.edges)
    labels = _add_tasks(dataset, top, budget)
    left_out = []
    for entry in top.entries("feature_data"):
        if entry.text("domain") == "edge" and graph.ids is None:
            left_out.append(entry.text("name"))
        else:
            _add_feature(dataset, entry, labels, dtype)
    for node_type, name, rows in graph.node_attributes():
        _add_rows(dataset, "node", node_type, name, rows, labels, dtype)
    # GraphBolt's samplers read attributes of a graph in the order of its CSC. Its preprocessing
    # does not write them so, and says by this field that it wrote the file.
    known = graph.ids is not None and top.fields.get("include_original_edge_id") is True
    for edge_type, name, rows in graph.edge_attributes():
        if known:
            _add_rows(dataset, "edge", edge_type, name, rows, labels, dtype)
        else:
            left_out.append(name)
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        warnings.warn(
            f"{graph.path} does not say which edge each row of {names} belongs to, so these "
            "features of edges are left out; to have them, preprocess the dataset again with "
            "include_original_edge_id=True, or import it as it is before",
            stacklevel=3,
        )
    return dataset


# ---- the graph


def _nodes(graph: Entry) -> dict[NodeKey, int]:
    found: dict[NodeKey, int] = {}
    entries = graph.entries("nodes")
    for entry in entries:
        name = entry.text_or_none("type")
        if name in found or (name is None and len(entries) > 1):
            raise entry.error("has no 'type' of its own")
        found[name] = entry.whole("num")
    if not found:
        raise graph.error("has no 'nodes'")
    return found


def _edges(graph: Entry, num_nodes: dict[NodeKey, int]) -> Iterator[tuple[EdgeKey, Ends]]:
    entries = graph.entries("edges")
    seen: set[EdgeKey] = set()
    for entry in entries:
        key: EdgeKey = None if None in num_nodes else entry.edge_type()
        if None in num_nodes and entry.has("type"):
            raise entry.error("has a 'type', but the nodes have none")
        if key in seen:
            raise entry.error("has no 'type' of its own")
        seen.add(key)
        if key is not None:
            try:
                Types.of({str(name): count for name, count in num_nodes.items()}, {key: 0})
            except ConfigError as error:
                raise entry.error(f"is not valid: {error}") from None
        path = entry.path()
        if entry.text("format", "csv", "numpy") == "numpy":
            yield key, NpyEnds(path)
        else:
            yield key, CsvEnds(path, count_rows(path), "the first reading of it")
    if None in num_nodes and not entries:
        raise graph.error("has no 'edges'")


# ---- features


def _open(entry: Entry) -> Features:
    numpy = entry.text("format", "numpy", "torch") == "numpy"
    return open_features(entry.path()) if numpy else open_tensor(entry.path())


def _add_feature(
    dataset: Dataset, entry: Entry, labels: set[NodeKey], dtype: AnyDType | None
) -> None:
    domain, name = entry.text("domain", "node", "edge", "graph"), entry.text("name")
    if domain == "graph":
        warnings.warn(
            f"a store holds features of nodes and edges; left out: {name}, of the whole graph",
            stacklevel=4,
        )
        return
    counts: dict[Any, int] = dict(dataset.num_nodes)
    key: Any = entry.text_or_none("type")
    if domain == "edge":
        counts = {type: ends.count for type, ends in dataset.edges.items()}
        key = None if key is None else entry.edge_type()
    if key not in counts:
        if None in counts:
            raise entry.error(f"has the {domain} type {key!r}, but the nodes have no types")
        known = ", ".join(map(str, counts))
        raise entry.error(f"has the {domain} type {key!r}, but the types are {known}")
    rows = checked_rows(
        _open(entry), counts[key], str(entry.path()), f"{os.path.basename(entry.where)}'s graph"
    )
    _add_rows(dataset, domain, key, name, rows, labels, dtype)


def _add_rows(
    dataset: Dataset, domain: str, key: Any, name: str, rows: Features, labels: set[NodeKey],
    dtype: AnyDType | None,
) -> None:  # fmt: skip
    if name == "feat":
        leaf, wanted = ("x", dtype) if domain == "node" else ("edge_attr", None)
        dataset.add(f"{domain}s", key, leaf, two_dimensional(rows), wanted)
    elif domain == "node" and name in _LABELS and key not in labels:
        dataset.add("nodes", key, "y", as_labels(rows))
    else:
        dataset.add(f"{domain}s", key, name, rows)


# ---- tasks


def _add_tasks(dataset: Dataset, top: Entry, budget: int) -> set[NodeKey]:
    """Add all tasks; return the node types with labels of the first task of nodes."""
    labelled: set[NodeKey] | None = None
    for place, task in enumerate(top.entries("tasks")):
        name = task_name(task.text_or_none("name") or f"task{place}")
        if _is_link_task(task):
            if name in dataset.links:
                raise task.error(f"has the name {name!r} of another task: rename one")
            if found := _link_task(dataset, task):
                dataset.links[name] = found
        elif labelled is None:
            labelled = _add_node_task(dataset, task, "", budget)
            if task.has("num_classes"):
                types = {key for key, _ in dataset.splits}
                dataset.classes_min.update(dict.fromkeys(types, task.whole("num_classes")))
        else:
            _add_node_task(dataset, task, f"{name}_", budget)
    return labelled or set()


def _add_node_task(dataset: Dataset, task: Entry, prefix: str, budget: int) -> set[NodeKey]:
    """Add the splits and labels of a task of nodes; return the node types with labels."""
    splits: dict[tuple[NodeKey, str], Int64Array] = {}
    labelled: dict[NodeKey, list[tuple[Int64Array, Features, Entry]]] = {}
    for set_name, part in _SETS.items():
        for entry in task.entries(set_name):
            key = entry.text_or_none("type")
            if key not in dataset.num_nodes:
                known = ", ".join(map(str, dataset.num_nodes))
                raise entry.error(f"has the node type {key!r}, but the types are {known}")
            seeds, labels = _seeds_and_labels(entry, dataset.num_nodes[key])
            place = key, f"{prefix}{part}"
            splits[place] = np.concatenate([splits.get(place, seeds[:0]), seeds])
            if labels is not None:
                labelled.setdefault(key, []).append((seeds, *labels))
    if both := sorted(name for _, name in splits.keys() & dataset.splits.keys()):
        raise task.error(f"would make the split {both[0]!r}, as another task does: rename one")
    dataset.splits.update(splits)
    for key, parts in labelled.items():
        y = _labels_of_all(dataset.num_nodes[key], parts, budget)
        dataset.add("nodes", key, f"{prefix}y", Array(y))
    return set(labelled)


def _is_link_task(task: Entry) -> bool:
    for set_name in _SETS:
        for entry in task.entries(set_name):
            if ":" in (entry.text_or_none("type") or ""):
                return True
            for data in entry.entries("data"):
                name = data.text("name")
                if name in _LINK_DATA or (name in _SEEDS and len(_open(data).shape) != 1):
                    return True
    return False


def _link_task(dataset: Dataset, task: Entry) -> dict[EdgeKey, dict[str, LinkSet]] | None:
    """Open the sets of a task of links; None, with a warning: its seeds are no pairs."""
    found: dict[EdgeKey, dict[str, LinkSet]] = {}
    for set_name, part in _SETS.items():
        for entry in task.entries(set_name):
            key = None if None in dataset.num_nodes else entry.edge_type()
            if key not in dataset.edges or (key is None and entry.has("type")):
                known = ", ".join(map(str, dataset.edges))
                raise entry.error(f"is of an edge type that is not there; the types are {known}")
            sets = found.setdefault(key, {})
            if part in sets:
                raise entry.error("is a second set of its type")
            links = _link_set(dataset, key, entry)
            if links is None:
                return None
            sets[part] = links
    return found


def _link_set(dataset: Dataset, key: EdgeKey, entry: Entry) -> LinkSet | None:
    data, given = _data_of(entry, (*_SEEDS, *_LABELS, *_LINK_DATA))
    pairs = _open(given)
    if len(pairs.shape) == 2 and pairs.shape[1] > 2:
        warnings.warn(
            f"{entry.where}: {entry.place} has seeds of {pairs.shape[1]} nodes each; the task is "
            "left out, because a task of links has pairs of nodes",
            stacklevel=6,
        )
        return None
    source, target = (dataset.num_nodes[end] for end in ends_of(key))
    labels = next((data[name] for name in _LABELS if name in data), None)
    negatives = [data.get(name) for name in ("negative_srcs", "negative_dsts")]
    others = (*negatives, labels, data.get("indexes"))
    found = LinkSet(
        _whole_numbers(given, pairs, 2),
        (source, target),
        tuple(str((each or given).path()) for each in (given, *others)),
        None if labels is None else _open(labels),
        _opened(data.get("indexes"), 1),
        *(_opened(each, 2) for each in negatives),
    )
    for each in others:
        if each is not None:
            checked_rows(_open(each), pairs.shape[0], str(each.path()), str(given.path()))
    if found.labels is not None and len(flat(found.labels).shape) != 1:
        raise entry.error(f"has labels of shape {list(found.labels.shape)}, not one for each pair")
    if pairs.shape[1] != 2:
        raise entry.error(f"has seeds of shape {list(pairs.shape)}, not pairs [n, 2]")
    shapes = {each.shape for each in (found.sources, found.targets) if each is not None}
    if len(shapes) > 1:
        both = " and ".join(str(list(shape)) for shape in sorted(shapes))
        raise entry.error(f"has negatives of shapes {both}")
    return found


def _opened(entry: Entry | None, dimensions: int) -> Features | None:
    return None if entry is None else _whole_numbers(entry, _open(entry), dimensions)


def _whole_numbers(entry: Entry, rows: Features, dimensions: int) -> Features:
    """The rows of a file; StoreError: they are not whole numbers of so many dimensions."""
    if rows.dtype.kind not in "iu" or len(rows.shape) != dimensions:
        shape = ", ".join("nk"[:dimensions])
        raise entry.error(
            f"names {entry.path()}, which holds {rows.dtype} {list(rows.shape)} and not whole "
            f"numbers [{shape}]"
        )
    return rows


def _data_of(entry: Entry, known: Collection[str]) -> tuple[dict[str, Entry], Entry]:
    """The data of a set by name, and that of its seeds; warns of data that is left out."""
    data = {each.text("name"): each for each in entry.entries("data")}
    if left_out := [name for name in data if name not in known]:
        warnings.warn(
            f"{entry.where}: {entry.place} has data other than seeds and labels; left out: "
            f"{', '.join(left_out)}",
            stacklevel=7,
        )
    given = next((data[name] for name in _PAIRS if name in data), None)
    if given is None:
        raise entry.error("has no data named 'seeds'")
    return data, given


def _seeds_and_labels(
    entry: Entry, num_nodes: int
) -> tuple[Int64Array, tuple[Features, Entry] | None]:
    """Read and check the node ids of a set, and open their labels, which come with their entry."""
    data, given = _data_of(entry, (*_SEEDS, *_LABELS))
    seeds = _open(given).all_rows()
    if seeds.dtype.kind not in "iu":
        raise given.error(f"names {given.path()}, which holds {seeds.dtype} and not node ids")
    bad = np.flatnonzero((seeds < 0) | (seeds >= num_nodes))
    if len(bad):
        raise given.error(
            f"names {given.path()}, whose entry {bad[0]} is node {seeds[bad[0]]}, but there are "
            f"{num_nodes} nodes, numbered from 0"
        )
    ids = seeds.astype(np.int64)
    labels = next((data[name] for name in _LABELS if name in data), None)
    if labels is None:
        return ids, None
    rows = checked_rows(_open(labels), len(ids), str(labels.path()), str(given.path()))
    return ids, (rows, labels)


def _labels_of_all(
    num_nodes: int, parts: list[tuple[Int64Array, Features, Entry]], budget: int
) -> npt.NDArray[Any]:
    """Spread the labels of some nodes over an array of all nodes: int64 with -1 for a missing
    label if the labels of every set are whole, else float32 with nan.

    Args:
        parts: node ids of a set, their labels, and the labels' entry.
        budget: bytes that the array may take.
    """
    row = flat(parts[0][1]).shape[1:]
    needed = 8 * num_nodes * math.prod(row)
    if needed > budget:
        raise ConfigError(
            f"the labels of {num_nodes:,} nodes take {format_size(needed)}, more than memory=: "
            "raise it"
        )
    whole = all(as_labels(labels).dtype.kind == "i" for _, labels, _ in parts)
    y = np.full((num_nodes, *row), -1 if whole else np.nan, np.int64 if whole else np.float32)
    for seeds, labels, entry in parts:
        if flat(labels).shape[1:] != row:
            raise entry.error(
                f"has labels of shape {list(labels.shape)}, but another set has {[*row]} for each "
                "node"
            )
        # -1 is a missing label in a set of integers, and a number in a set of floats.
        given = as_labels(labels) if whole else flat(labels)
        done = 0
        for chunk in map(as_numpy, given.chunks(max(1, rows_per_chunk(given.shape, 8) // 8))):
            if not whole and chunk.dtype.kind in "iu":
                chunk = np.where(chunk == -1, np.nan, chunk)
            found = chunk.astype(y.dtype)
            nodes = seeds[done : done + len(chunk)]
            if len(bad := _spread(y, nodes, found)):
                raise StoreError(
                    f"{entry.path()}: row {done + bad[0]} gives node {nodes[bad[0]]} the label "
                    f"{found[bad[0]].tolist()}, and another row gives it another one; leave one "
                    "of the two"
                )
            done += len(chunk)
    return y


def _spread(y: npt.NDArray[Any], nodes: Int64Array, labels: npt.NDArray[Any]) -> Int64Array:
    """Set the labels of nodes, but for those that are missing; return the rows whose node has
    another label."""
    before = y[nodes]
    given = ~_missing(labels)
    row, *column = np.nonzero(given)
    y[(nodes[row], *column)] = labels[given]
    after = y[nodes]
    # Of a node that occurs twice in `nodes`, `after` has one label.
    bad = (given & (after != labels)) | (~_missing(before) & (after != before))
    return np.flatnonzero(bad.reshape(len(bad), -1).any(1))


def _missing(labels: npt.NDArray[Any]) -> Any:
    """Which labels are missing, bool."""
    return np.isnan(labels) if labels.dtype.kind == "f" else labels == -1


class Entry(Record):
    """An object in the file; what is null counts as absent."""

    def entries(self, name: str) -> list[Entry]:
        """The objects in a list; [] if it is absent."""
        return list(self.each(name).values()) if self.has(name) else []

    def text(self, name: str, *allowed: str) -> str:
        """A text, which is not empty, and one of `allowed` if there are any."""
        found = super().text(name)
        if not found or (allowed and found not in allowed):
            raise self.wrong(name, f"one of {', '.join(allowed)}" if allowed else "a text")
        return found

    def text_or_none(self, name: str) -> str | None:
        """A text; None if it is absent."""
        return self.text(name) if self.has(name) else None

    def edge_type(self) -> EdgeType:
        """The edge type in "type", written "source:relation:target"."""
        parts = self.text("type").split(":")
        if len(parts) != 3:
            raise self.wrong("type", "source:relation:target")
        return parts[0], parts[1], parts[2]

    @property
    def folder(self) -> Path:
        """The dataset's folder, in which paths begin."""
        return Path(self.where).parent

    def path(self) -> Path:
        """The file that "path" names, in the dataset's folder or below; it is there."""
        given = os.path.normpath(self.text("path"))
        path = self.folder / given
        if os.path.isabs(given) or given.startswith(".."):
            raise self.error(
                f"names {given!r}, which is not in the folder of the dataset: move it there"
            )
        if not _is_there(path):
            raise self.error(f"names {path}, which is not there")
        return path


class Preprocessed(Entry):
    """An object in the metadata of a preprocessed dataset."""

    @property
    def folder(self) -> Path:
        """See `Entry.folder`; the metadata lies in a folder in it."""
        return Path(self.where).absolute().parent.parent


def read_metadata(source: Path) -> Entry:
    """Read the metadata of a dataset: that of the dataset as it is before preprocessing if all
    files are there that it names, else that of the preprocessed dataset, if there is one.

    Args:
        source: the dataset's folder, the folder "preprocessed" in it, or a metadata.yaml of either.
    """
    file = source / METADATA if source.is_dir() else source
    preprocessed = file.parent / PREPROCESSED / METADATA
    if not preprocessed.is_file():
        return _read(file)
    if file.is_file():
        top = _read(file)
        if isinstance(top, Preprocessed) or all(
            _is_there(top.folder / path) for path in _paths(top.fields)
        ):
            return top
    return _read(preprocessed)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long for a file
        return False


def _paths(found: Any) -> Iterator[str]:
    """The paths that metadata names. It may hold anything, lists that hold themselves too."""
    seen: set[int] = set()
    left = [found]
    while left:
        each = left.pop()
        if isinstance(each, list | dict) and id(each) not in seen:
            seen.add(id(each))
            left += each.values() if isinstance(each, dict) else each
            if isinstance(each, dict) and isinstance(each.get("path"), str):
                yield each["path"]


def _read(file: Path) -> Entry:
    try:
        import yaml
    except ImportError:
        raise ConfigError("metadata.yaml needs PyYAML: pip install 'gnndrive[import]'") from None
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f"{file} is missing: give a {METADATA} of GraphBolt, or the folder that holds it"
        ) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{file} cannot be read ({error}): give a {METADATA} in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "it is not valid YAML"
        raise StoreError(f"{file}{line}: {problem}; correct the file") from None
    except Exception as error:  # PyYAML passes on what its constructors of numbers and dates raise
        raise StoreError(f"{file}: {error}; correct the file") from None
    top = Entry(content, str(file), "correct the file")
    if top.has("graph") or not top.has("graph_topology"):
        return top
    return Preprocessed(content, str(file), "correct the file")
