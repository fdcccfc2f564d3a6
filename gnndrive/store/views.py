"""The nodes or the edges of one type of a store, as `data["paper"]` in PyG.

A homogeneous store has one type of nodes and one of edges, both None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import EdgeKey, IndexPointers, Int64Array, NodeKey, TableFile, ends_of
from gnndrive.store.checks import count_classes
from gnndrive.store.data_view import DataView, Key, Overlay
from gnndrive.store.mapped_arrays import MappedArrays
from gnndrive.store.types import array_name

_STEP = 1 << 22  # edges that are converted at once


@dataclass(frozen=True, slots=True)
class Chunk:
    """All in-edges of the nodes `low` to `high` - 1; [n] each, and `first` is the position of the
    first edge in CSC order."""

    first: int
    low: int
    high: int
    source: Int64Array
    target: Int64Array


class _View(DataView):
    """The arrays of one type of nodes or edges."""

    group: str  # of their attributes, "nodes" or "edges"
    id_name: str  # the name of their ids in a batch, "n_id" or "e_id"

    def __init__(self, arrays: MappedArrays, type: NodeKey | EdgeKey) -> None:
        self._arrays, self._type = arrays, type

    def _named(self, group: str, leaf: str) -> str:
        return array_name(group, self._type, leaf)

    def _names(self, group: str) -> tuple[str, ...]:
        return self._arrays.info.leaves.get(self._named(group, ""), ())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes that are read from the store. What this process has deleted, or
        set to another value, is not among them."""
        hidden = self._overlay.hidden(self._key)
        return tuple(name for name in self._names(self.group) if name not in hidden)

    def name_of(self, attribute: str) -> str:
        """An attribute's full name in the store: "nodes/paper/x" for "x"."""
        return self._named(self.group, attribute)

    def table(self, attribute: str) -> TableFile:
        """Where an attribute's rows lie on disk; see `Store.table`."""
        return self._arrays.table(self.name_of(attribute))

    def tensor(self, attribute: str, random: bool = False) -> torch.Tensor:
        """An attribute as a mapped tensor; see `Store.tensor`."""
        return self._arrays.tensor(self.name_of(attribute), random)

    def attribute(self, name: str) -> torch.Tensor:
        """An attribute with one row for each node or edge, which this process has set or the store
        has."""
        set_here = self.attached(self.group).get(name)
        return self.tensor(name) if set_here is None else set_here[0]

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the attributes with one row for each node or edge, those that this process has
        set included."""
        return (*self.names, *self.attached(self.group))

    # ---- see DataView ----

    @property
    def _overlay(self) -> Overlay:
        return self._arrays.overlay

    @property
    def _key(self) -> Key:
        return self._type

    def _stored_group(self, name: str) -> str:
        return self.group if name in self.keys() and name not in self._stored_values else ""

    @property
    def _stored_values(self) -> Mapping[str, Any]:
        return {} if self._type is None else self._arrays.info.values.get(self._type, {})

    def _columns_of(self, attribute: str) -> int:
        if attribute in self.names:
            shape = self._arrays.info.arrays[self.name_of(attribute)].shape
            return shape[-1] if len(shape) > 1 else 1
        return self._columns(attribute)

    def _whose(self) -> str:
        return str(self._arrays.path) if self._type is None else repr(self._type)

    def unchanged(self) -> AbstractContextManager[None]:
        """See `MappedArrays.unchanged`."""
        return self._arrays.unchanged()


class StoredNodes(_View):
    """Nodes of one type.

    Args:
        arrays: the store's arrays.
        type: the nodes' type; None in a homogeneous store.
    """

    group, id_name = "nodes", "n_id"
    _type: NodeKey

    @property
    def type(self) -> NodeKey:
        """The nodes' type; None in a homogeneous store."""
        return self._type

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self._arrays.info.types.nodes[self._type].num_nodes

    @property
    def count(self) -> int:
        """`num_nodes`, as edges have it too."""
        return self.num_nodes

    @property
    def num_features(self) -> int:
        """Columns of their x; 0 if there is no x."""
        return self._columns_of("x")

    @property
    def num_node_features(self) -> int:
        """`num_features` under PyG's other name."""
        return self.num_features

    @property
    def num_classes(self) -> int:
        """Classes of their y, also of one that this process has set; 0 if there are none."""
        if "y" in self._overlay.hidden(self._key):
            y = self.attached(self.group).get("y")
            return 0 if y is None else count_classes(y[0])
        return self._arrays.info.types.nodes[self._type].num_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of their ids; None if they have no names."""
        return self._arrays.info.types.nodes[self._type].classes

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of their splits, those whose masks this process has set included."""
        attached = self.attached("nodes").items()
        masks = [name for name, (value, _) in attached if value.dtype == torch.bool]
        set_here = (name.removesuffix("_mask") for name in masks if name.endswith("_mask"))
        return tuple(dict.fromkeys((*self._names("splits"), *set_here)))

    def split(self, name: str) -> torch.Tensor:
        """The node ids of a split, int64 [n], in memory. If this process has set the split's mask,
        `store.train_mask = …`, these are the nodes of the mask.

        Raises:
            ConfigError: there is no such split, or the mask is not one truth value for each node.
            StoreError: an id is out of range.
        """
        attached = self.attached("nodes")
        of_name = (mask for mask, of in _mask_names(self._names("splits")).items() if of == name)
        set_here = next((mask for mask in (f"{name}_mask", *of_name) if mask in attached), None)
        if set_here is None:
            return self.stored_split(name)
        mask = attached[set_here][0]
        if mask.dtype != torch.bool or mask.ndim != 1:
            raise ConfigError(
                f"{set_here} was set to {mask.dtype} {list(mask.shape)}: for the split {name!r}, "
                "set one truth value for each node, or give the node ids"
            )
        return torch.nonzero(mask).view(-1).cpu()

    def stored_split(self, name: str) -> torch.Tensor:
        """`split` without what this process has set."""
        if name not in self._names("splits"):
            known = ", ".join(self.split_names) or (
                "none; import it with splits=, or masks such as train_mask, or give node ids"
            )
            whose = "" if self._type is None else f" of {self._type!r}"
            meant = did_you_mean(name, self.split_names)
            raise ConfigError(
                f"{self._arrays.path} has no split {name!r}{whose}{meant}; it has: {known}"
            )
        return torch.from_numpy(self._arrays.in_memory(self._named("splits", name)))

    def _mask(self, split: str) -> torch.Tensor:
        """The mask of a split, bool [num_nodes], made of its node ids, if memory has room."""
        instead = f"give a loader the node ids, store.split({split!r})"
        check_room(self.num_nodes, f"the mask of the split {split!r}", instead)
        mask = torch.zeros(self.num_nodes, dtype=torch.bool)
        mask[self.stored_split(split)] = True
        return mask

    def _makers(self) -> Mapping[str, Callable[[], Any]]:
        of_arrays = self._arrays.kept_tensor
        made = {name: partial(of_arrays, self.name_of(name)) for name in self._names(self.group)}
        for name, split in _mask_names(self._names("splits")).items():
            if name not in made:
                make = partial(self._mask, split)
                made[name] = partial(self._arrays.kept, self.name_of(name), make)
        return made

    def _rows(self, name: str, count: int) -> str:
        # Only a homogeneous store has one set of names for attributes of nodes and of edges.
        edges = self._arrays.info.types.edges[None] if self._type is None else None
        return _group(name, count, self.num_nodes, edges)

    def __repr__(self) -> str:
        return f"StoredNodes({self._type!r}, num_nodes={self.num_nodes}, names={list(self.names)})"


class StoredEdges(_View):
    """Edges of one type, as CSC: the in-neighbours of each node of the target type.

    Args:
        arrays: the store's arrays.
        type: (source, relation, target); None in a homogeneous store.
    """

    group, id_name = "edges", "e_id"
    _type: EdgeKey

    @property
    def type(self) -> EdgeKey:
        """The edges' type; None in a homogeneous store."""
        return self._type

    @property
    def source(self) -> StoredNodes:
        """The nodes that the edges come from."""
        return StoredNodes(self._arrays, ends_of(self._type)[0])

    @property
    def target(self) -> StoredNodes:
        """The nodes that the edges go to."""
        return StoredNodes(self._arrays, ends_of(self._type)[1])

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self._arrays.info.types.edges[self._type]

    @property
    def count(self) -> int:
        """`num_edges`, as nodes have it too."""
        return self.num_edges

    @property
    def num_edge_features(self) -> int:
        """Columns of their edge_attr; 0 if there is no edge_attr."""
        return self._columns_of("edge_attr")

    @property
    def num_features(self) -> int:
        """`num_edge_features` under PyG's other name."""
        return self.num_edge_features

    def size(self, dim: int | None = None) -> Any:
        """(source nodes, target nodes), or one of the two."""
        both = self.source.num_nodes, self.target.num_nodes
        return both if dim is None else both[dim]

    def is_bipartite(self) -> bool:
        """Whether they go from one type of nodes to another."""
        return self.source.type != self.target.type

    def ranges(self, most: int) -> Iterator[tuple[int, Int64Array]]:
        """The first node of each chunk, and the index pointers of its nodes and of the next one. A
        chunk has so few nodes that their share of all edges is `most` at most."""
        pointers = self.index_pointers
        nodes, low = len(pointers) - 1, 0
        step = max(1, most * nodes // max(1, nodes, self.num_edges))
        while low < nodes:
            ends = pointers[low : low + step + 1].astype(np.int64)
            count = max(1, int(np.searchsorted(ends[1:], ends[0] + most, side="right")))
            yield low, ends[: count + 1]
            low += count

    def chunks(self, most: int) -> Iterator[Chunk]:
        """The edges in CSC order, some `most` at a time; more only if a node has more.

        Raises:
            StoreError: the store is damaged.
        """
        indices, sources = self.indices, self.source.num_nodes
        for low, ends in self.ranges(most):
            first, high = int(ends[0]), low + len(ends) - 1
            source = indices[first : int(ends[-1])].astype(np.int64)
            if len(source) and not 0 <= int(source.min()) <= int(source.max()) < sources:
                raise self._damaged("indices")
            yield Chunk(first, low, high, source, np.repeat(np.arange(low, high), np.diff(ends)))

    def _edge_index(self) -> torch.Tensor:
        """The edges as COO, in the original order: edge `e_id` is column `e_id`; int64 [2, edges].

        Raises:
            ConfigError: memory has no room for it.
            StoreError: the store is damaged.
        """
        whose = "edge_index" if self._type is None else f"edge_index of {self._type}"
        view = "store" if self._type is None else f"store[{self._type}]"
        check_room(
            16 * self.num_edges,
            whose,
            "give the store itself to a loader, which samples from the disk. "
            f"{view}.indptr and {view}.indices are the same edges as mapped CSC arrays",
        )
        made = np.full((2, self.num_edges), -1, np.int64)
        numbers = self.edge_id
        for chunk in self.chunks(_STEP):
            at: Any = slice(chunk.first, chunk.first + len(chunk.source))
            if numbers is not None:
                at = np.asarray(numbers[at], np.int64)
                if len(at) and not 0 <= int(at.min()) <= int(at.max()) < self.num_edges:
                    raise self._damaged("edge_id")
            made[0, at], made[1, at] = chunk.source, chunk.target
        if made.size and made.min() < 0:
            raise self._damaged("edge_id")
        return torch.from_numpy(made)

    def _damaged(self, name: str) -> StoreError:
        return StoreError(
            f"{self.indices_path.parent}/{name}.npy holds a number out of range: run `gnndrive "
            "verify` and import the store again"
        )

    def has_self_loops(self) -> bool:
        """Whether one of them goes from a node to itself; reads all of them."""
        return not self.is_bipartite() and any(
            bool((chunk.source == chunk.target).any()) for chunk in self.chunks(_STEP)
        )

    def has_isolated_nodes(self) -> bool:
        """Whether a target, or a node of the only type, has none of them but self loops; reads all
        of them."""
        return has_isolated_nodes([self], {self.target.type: self.target.num_nodes})

    def _makers(self) -> Mapping[str, Callable[[], Any]]:
        of_arrays, kept = self._arrays.kept_tensor, self._arrays.kept
        graph = self._named("graph", "edge_index")
        made: dict[str, Callable[[], Any]] = {"edge_index": lambda: kept(graph, self._edge_index)}
        names = self._names(self.group)
        return made | {name: partial(of_arrays, self.name_of(name)) for name in names}

    def _rows(self, name: str, count: int) -> str:
        if self._type is None:
            return _group(name, count, self.source.num_nodes, self.num_edges)
        return "edges" if count == self.num_edges else ""

    @property
    def index_pointers(self) -> IndexPointers:
        """CSC index pointers [targets + 1], in memory and read-only; uint32 if there are fewer than
        2^32 edges, else int64. They are read at the first use and kept (see `use_pointers`).

        Raises:
            StoreError: they cannot be read or are damaged, or the store was overwritten since it
                was opened.
        """
        return self._arrays.pointers_in_memory(self._type)

    @property
    def indptr(self) -> np.memmap[Any, Any]:
        """CSC index pointers, int64 [targets + 1], mapped."""
        return self._arrays.array(self._named("graph", "indptr"))

    @property
    def indices(self) -> np.memmap[Any, Any]:
        """In-neighbours, int32 or int64 [num_edges], mapped; those of v are at indptr[v] to
        indptr[v + 1] - 1."""
        return self._arrays.array(self._named("graph", "indices"))

    @property
    def indices_file(self) -> TableFile:
        """Where the values of `indices` lie on disk."""
        return self._arrays.table(self._named("graph", "indices"))

    @property
    def indices_path(self) -> Path:
        """The file of `indices`; the values start at byte 4,096."""
        return Path(self.indices_file.path)

    @property
    def edge_id_name(self) -> str | None:
        """The full name of the array `edge_id`; None if there is no such array."""
        name = self._named("graph", "edge_id")
        return name if name in self._arrays.info.arrays else None

    @property
    def edge_id_file(self) -> TableFile | None:
        """Where the values of `edge_id` lie on disk."""
        return None if self.edge_id_name is None else self._arrays.table(self.edge_id_name)

    @property
    def edge_id(self) -> np.memmap[Any, Any] | None:
        """The original number of the edge at each CSC position, int32 or int64 [num_edges], mapped;
        None if each edge's number is its position.
        """
        return None if self.edge_id_name is None else self._arrays.array(self.edge_id_name)

    def mapped_edge_id(self) -> torch.Tensor | None:
        """`edge_id` as a mapped tensor."""
        return None if self.edge_id_name is None else self._arrays.tensor(self.edge_id_name)

    def __repr__(self) -> str:
        return f"StoredEdges({self._type!r}, num_edges={self.num_edges}, names={list(self.names)})"


def _group(name: str, count: int, num_nodes: int, num_edges: int | None) -> str:
    """Whether `count` rows are those of nodes or of edges, decided as PyG does."""
    if count == num_nodes and (count != num_edges or "edge" not in name):
        return "nodes"
    return "edges" if count == num_edges else ""


def _mask_names(splits: Sequence[str]) -> dict[str, str]:
    """The splits by the names of their masks: train_mask, …; val_mask of OGB's split valid too."""
    names = {f"{split}_mask": split for split in splits}
    if "valid" in splits:
        names.setdefault("val_mask", "valid")
    return names


def has_isolated_nodes(graph: Iterable[StoredEdges], counts: Mapping[NodeKey, int]) -> bool:
    """Whether a node has no edge of `graph` but self loops; `counts` has numbers of nodes, by the
    types that count."""
    seen = {type: np.zeros(count, bool) for type, count in counts.items()}
    for edges in graph:
        source_type, target_type = ends_of(edges.type)
        for chunk in edges.chunks(_STEP):
            source, target = chunk.source, chunk.target
            if source_type == target_type:
                others = source != target
                source, target = source[others], target[others]
            for type, found in ((source_type, source), (target_type, target)):
                if type in seen:
                    seen[type][found] = True
    return not all(each.all() for each in seen.values())


def check_room(nbytes: int, what: str, instead: str) -> None:
    """Check that something that is made of a store takes at most half of the available memory.
    `what` is its name, and `instead` what to do if there is no room, for the ConfigError."""
    left = available_memory()
    if nbytes > left // 2:
        raise ConfigError(
            f"{what} would take {format_size(nbytes)} of memory, and {format_size(left)} are left: "
            f"{instead}"
        )
