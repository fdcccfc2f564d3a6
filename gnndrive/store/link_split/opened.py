"""`open_links`: the three parts of a split, each a store with labelled edges.

A split is the store of the training graph, with folders beside its arrays: `test` and, if some
training edges pass no messages, `val` are stores with more edges; `links` holds `links.json` and
the labelled edges of each part. A dataset that is imported with a task of links becomes such a
folder too; all parts have the whole graph. Further tasks of links are in `links/tasks/NAME`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.limits import named_limit
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.files import open_plain, read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.types import Types, folder
from gnndrive.store.views import StoredEdges

EDGES, LABELS = "edges.npy", "labels.npy"  # the labelled edges of a part, [n, 2] and [n]
QUERIES = "queries.npy"  # their queries [n], if there are any
LINKS, LINKS_JSON, PARTS = "links", "links.json", ("train", "val", "test")
TASKS = f"{LINKS}/tasks"
_AGAIN = 'split the links again, or import the dataset again, with if_exists="replace"'
_LABELLED = ("edge_label_index", "edge_label", "edge_label_query")


class Labels(NamedTuple):
    """The labelled edges of a type of a part, mapped: ends [2, n], labels [n], queries [n]."""

    ends: torch.Tensor
    label: torch.Tensor
    query: torch.Tensor | None


class LabelledEdges(StoredEdges):
    """The edges of a type of a part, with the labelled edges of that type."""

    def __init__(self, part: PartStore, type: EdgeKey, labels: Labels) -> None:
        super().__init__(part, type)
        self._labels = labels

    @property
    def edge_label_index(self) -> torch.Tensor:
        """Ends of the labelled edges, int64 [2, n], mapped."""
        return self._labels.ends

    @property
    def edge_label(self) -> torch.Tensor:
        """Their labels [n], mapped: 1 for an edge, 0 for a pair of nodes without one."""
        return self._labels.label

    @property
    def edge_label_query(self) -> torch.Tensor | None:
        """See `PartStore.edge_label_query`."""
        return self._labels.query

    def _makers(self) -> Mapping[str, Callable[[], Any]]:
        labels = self._labels
        more: dict[str, Callable[[], Any]] = {
            "edge_label_index": lambda: labels.ends,
            "edge_label": lambda: labels.label,
        }
        if labels.query is not None:
            more["edge_label_query"] = lambda: labels.query
        return {**super()._makers(), **more}

    def _stored_group(self, name: str) -> str:
        return "" if name in _LABELLED else super()._stored_group(name)


class PartStore(Store):
    """A part of a split, or a set of a task of links: a store whose edges pass messages, and
    labelled edges to supervise with.

    `part.edge_label_index` and `part.edge_label` stand where PyG's RandomLinkSplit puts them; in a
    heterogeneous part `part["user", "rates", "movie"]` has them.
    """

    _labels: Mapping[EdgeKey, Labels]
    _root: Path
    _part: str
    _task: str | None

    def edges(self, type: Any = None) -> StoredEdges:
        """See `Store.edges`; the edges of a type that was split have labels too."""
        found = super().edges(type)
        labels = self._labels.get(found.type)
        return found if labels is None else LabelledEdges(self, found.type, labels)

    @property
    def labelled_types(self) -> list[EdgeKey]:
        """The edge types that have labels; [None] in a homogeneous part."""
        return list(self._labels)

    def all_edges(self) -> list[StoredEdges]:
        """See `Store.all_edges`."""
        return [self.edges(type) for type in self.info.types.edges]

    def __getitem__(self, type: Any) -> Any:
        found = super().__getitem__(type)
        return self.edges(found.type) if isinstance(found, StoredEdges) else found

    @property
    def edge_label_index(self) -> torch.Tensor:
        """Ends of the labelled edges, int64 [2, n], mapped.

        Raises:
            ConfigError: several edge types have labels.
        """
        return self._only().ends

    @property
    def edge_label(self) -> torch.Tensor:
        """Their labels [n], mapped: 1 for an edge, 0 for a pair of nodes without one; if the store
        has labels of edges, those, plus 1 if there are pairs without an edge."""
        return self._only().label

    @property
    def edge_label_query(self) -> torch.Tensor | None:
        """The query that each labelled edge belongs to, int64 [n], mapped: an edge and the pairs of
        nodes that a model has to rank below it have the same. None: the dataset has no queries."""
        return self._only().query

    def _only(self) -> Labels:
        if len(self._labels) > 1:
            raise ConfigError(
                "several edge types have labels: read part[TYPE].edge_label_index, where TYPE is "
                f"one of {', '.join(map(str, self._labels))}"
            )
        return next(iter(self._labels.values()))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (
            _same_part,
            (str(self._root), self._part, self.identity, self.overlay, self._task),
        )


class LinkSplit(NamedTuple):
    """The parts of a split, as RandomLinkSplit returns them.

    Attributes:
        train, val, test: the parts.
    """

    train: PartStore
    val: PartStore
    test: PartStore


class LinkTask(NamedTuple):
    """A task of links, or a split (`name` is None): its edge types, [None] in a homogeneous store,
    and the number of labelled edges of all types in each part."""

    name: str | None
    edge_types: list[EdgeKey]
    labelled: dict[str, int]


def open_links(path: str | os.PathLike[str], task: str | None = None) -> LinkSplit:
    """Open what `split_links` wrote, or a task of links that `from_graphbolt` found in a dataset.

    Args:
        path: the folder.
        task: the name of the task in the dataset; None: the first one.

    Raises:
        ConfigError: there is no such task.
        StoreError: the folder is missing, damaged or no split.
    """
    root = Path(os.path.abspath(path))
    links, settings = _of_task(root, task)
    types = _edge_types(settings)
    known = open_store(root).info.types
    if not types or len(set(types)) < len(types) or not set(types) <= set(known.edges):
        raise _not_a_split(root)
    parts = []
    for part in PARTS:
        at = root / part if (root / part).is_dir() else root
        store = object.__new__(PartStore)
        store.__dict__.update(open_store(at).__dict__)
        if not _same_types(store.info.types, known):
            raise _not_a_split(root)
        labels = {type: _read_labels(root, labels_folder(part, type, links)) for type in types}
        store.__dict__.update(_labels=labels, _root=root, _part=part, _task=task)
        parts.append(store)
    return LinkSplit(*parts)


def _of_task(root: Path, task: str | None) -> tuple[str, dict[str, Any]]:
    """The folder of a task's links in `root`, and what its links.json holds."""
    first = read_settings(root)
    name = None if task is None else task_name(task)
    if name is None or name == first.get("task"):
        return LINKS, first
    there = _further_tasks(root)
    if name not in there:
        named = [each for each in (first.get("task"), *there) if each is not None]
        known = f"it has: {', '.join(map(repr, named))}" if named else "leave it out"
        near = did_you_mean(name, named)
        raise ConfigError(f"{root} has no task {task!r} of links{near}; {known}")
    return f"{TASKS}/{name}", read_settings(root, f"{TASKS}/{name}")


def link_tasks(root: Path) -> list[LinkTask]:
    """The tasks of links of the store `root`, its split included, read without torch; [] if there
    are none. StoreError: one is damaged."""
    if not os.path.lexists(root / LINKS):
        return []
    found = []
    for links in (LINKS, *(f"{TASKS}/{name}" for name in _further_tasks(root))):
        settings = read_settings(root, links)
        types, task, labelled = _edge_types(settings), settings.get("task"), dict.fromkeys(PARTS, 0)
        for part in PARTS:
            for type in types:
                edges = _read_array(root, labels_folder(part, type, links) / EDGES)
                if edges.ndim != 2 or not isinstance(task, str | None):
                    raise _not_a_split(root)
                labelled[part] += len(edges)
        found.append(LinkTask(task, types, labelled))
    return found


def _further_tasks(root: Path) -> list[str]:
    return sorted(os.listdir(root / TASKS)) if (root / TASKS).is_dir() else []


def _edge_types(settings: Mapping[str, Any]) -> list[EdgeKey]:
    return [tuple(type) if type else None for type in settings["edge_types"]]


def task_name(name: str) -> str:
    """A task's name as a store has it, where it is one of folders and arrays."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def _not_a_split(root: Path) -> StoreError:
    return StoreError(
        f"{root} is not a split of links: make one with gnndrive.split_links, or import a dataset "
        "with a task of links"
    )


def _same_types(one: Types, other: Types) -> bool:
    def counts(types: Types) -> dict[NodeKey, int]:
        return {type: each.num_nodes for type, each in types.nodes.items()}

    return counts(one) == counts(other) and one.edges.keys() == other.edges.keys()


def labels_folder(part: str, type: Any, links: str = LINKS) -> Path:
    """The folder of the labelled edges of a type in a part, relative to the split's."""
    return Path(links, part, folder(type))


def read_settings(root: Path, links: str = LINKS) -> dict[str, Any]:
    """What links.json holds; StoreError: the folder is no split."""
    try:
        content: dict[str, Any] = json.loads(
            read_plain(root, f"{links}/{LINKS_JSON}", JSON_BYTES_MAX)
        )
        for type in content["edge_types"]:  # [] in a homogeneous store
            names = isinstance(type, list) and all(isinstance(name, str) for name in type)
            if not names or len(type) not in (0, 3):
                raise ValueError(f"{type!r} is no edge type")
    except (StoreError, ValueError, TypeError, KeyError, RecursionError):
        raise _not_a_split(root) from None
    return content


def _same_part(root: str, part: str, identity: str, overlay: Any, task: str | None) -> PartStore:
    """Open a part that was pickled; a StoreError if it was overwritten since."""
    found: PartStore = getattr(open_links(root, task), part)
    if found.identity != identity:
        raise StoreError(f"{root} was overwritten since it was pickled: open it again")
    found.__dict__["overlay"] = overlay
    return found


def _read_labels(root: Path, folder: Path) -> Labels:
    """Map the labelled edges of a part of the split `root`; StoreError: a file is missing or
    damaged."""
    edges, labels = (_read_tensor(root, folder / name) for name in (EDGES, LABELS))
    queries = None
    if os.path.lexists(root / folder / QUERIES):
        queries = _read_tensor(root, folder / QUERIES)
    good = edges.dtype == torch.int64 and edges.shape == (len(labels), 2) and labels.dim() == 1
    if queries is not None:
        good = good and queries.dtype == torch.int64 and queries.shape == labels.shape
    if not good:
        raise StoreError(f"{root / folder} does not hold labelled edges: {_AGAIN}")
    return Labels(edges.t(), labels, queries)


def _read_tensor(root: Path, file: Path) -> torch.Tensor:
    try:
        return torch.from_numpy(_read_array(root, file))
    except TypeError as error:  # torch has no such dtype
        raise _unreadable(root / file, error) from None


def _read_array(root: Path, file: Path) -> npt.NDArray[Any]:
    try:
        with named_limit(), os.fdopen(open_plain(root, str(file)), "rb") as opened:
            return _mapped(opened)
    except (OSError, StoreError, ValueError, TypeError, EOFError, OverflowError) as error:
        raise _unreadable(root / file, error) from None


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} cannot be read ({error}): {_AGAIN}")


def _mapped(file: BinaryIO) -> npt.NDArray[Any]:
    """Map the array of an open .npy file, which may be damaged."""
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if fortran or dtype.hasobject:
        raise ValueError("no array of rows")
    # "c": torch wants to be able to write; that changes this process's memory alone.
    return np.memmap(file, dtype, "c", file.tell(), shape)
