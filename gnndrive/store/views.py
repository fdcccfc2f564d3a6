"""The nodes or the edges of one type of a store, as `data["paper"]` in PyG.

A homogeneous store has one type of nodes and one of edges, both None.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, IndexPointers, NodeKey, TableFile, ends_of
from gnndrive.store.mapped_arrays import MappedArrays
from gnndrive.store.types import array_name


class _View:
    """The arrays of one type of nodes or edges.

    Attributes:
        group: the group of their attributes, "nodes" or "edges".
        ids: the name of their ids in a batch, "n_id" or "e_id".
    """

    group: str
    ids: str

    def __init__(self, arrays: MappedArrays, type: NodeKey | EdgeKey) -> None:
        self._arrays, self._type = arrays, type

    def _named(self, group: str, leaf: str) -> str:
        return array_name(group, self._type, leaf)

    def _names(self, group: str) -> tuple[str, ...]:
        return self._arrays.info.leaves.get(self._named(group, ""), ())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return self._names(self.group)

    def name_of(self, attribute: str) -> str:
        """An attribute's full name in the store: "nodes/paper/x" for "x"."""
        return self._named(self.group, attribute)

    def table(self, attribute: str) -> TableFile:
        """Where an attribute's rows lie on disk; see `Store.table`."""
        return self._arrays.table(self.name_of(attribute))

    def tensor(self, attribute: str, random: bool = False) -> torch.Tensor:
        """An attribute as a mapped tensor; see `Store.tensor`."""
        return self._arrays.tensor(self.name_of(attribute), random)

    def __contains__(self, attribute: object) -> bool:
        return attribute in self.names


class StoredNodes(_View):
    """Nodes of one type.

    Args:
        arrays: the store's arrays.
        type: the nodes' type; None in a homogeneous store.
    """

    group, ids = "nodes", "n_id"
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
    def num_features(self) -> int:
        """Columns of their x; 0 if there is no x."""
        return self._arrays.info.num_features(self._type)

    @property
    def num_node_features(self) -> int:
        """`num_features` under PyG's other name."""
        return self.num_features

    @property
    def num_classes(self) -> int:
        """Classes of their y; 0 if there are none."""
        return self._arrays.info.types.nodes[self._type].num_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of their ids; None if they have no names."""
        return self._arrays.info.types.nodes[self._type].classes

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of their splits."""
        return self._names("splits")

    def split(self, name: str) -> torch.Tensor:
        """The node ids of a split, int64 [n], in memory.

        Raises:
            ConfigError: there is no such split.
            StoreError: an id is out of range.
        """
        if name not in self.split_names:
            known = ", ".join(self.split_names) or "none"
            whose = "" if self._type is None else f" of {self._type!r}"
            raise ConfigError(f"{self._arrays.path} has no split {name!r}{whose}; it has: {known}")
        return torch.from_numpy(self._arrays.in_memory(self._named("splits", name)))

    def __repr__(self) -> str:
        return f"StoredNodes({self._type!r}, num_nodes={self.num_nodes}, names={list(self.names)})"


class StoredEdges(_View):
    """Edges of one type, as CSC: the in-neighbours of each node of the target type.

    Args:
        arrays: the store's arrays.
        type: (source, relation, target); None in a homogeneous store.
    """

    group, ids = "edges", "e_id"
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
    def index_pointers(self) -> IndexPointers:
        """CSC index pointers [targets + 1], in memory and read-only, checked when the store was
        opened; uint32 if there are fewer than 2^32 edges, else int64."""
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
