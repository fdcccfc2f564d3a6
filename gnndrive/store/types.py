"""The types of nodes and edges of a store, and the names of its arrays: `nodes/paper/x`.

A homogeneous store has one type of nodes and one of edges, both named None, and arrays such as
`nodes/x`. The folder of an edge type is its three names: `graph/author__writes__paper/indptr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import EdgeKey, EdgeType, NodeKey, ends_of

GRAPH = ("indptr", "indices", "edge_id")
_OF_NODES = ("nodes", "splits")
_LEAF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")


@dataclass(frozen=True, slots=True)
class NodeType:
    """Nodes of one type. `classes` are the names of the classes in the order of their ids."""

    num_nodes: int
    num_classes: int = 0  # of their `y`; 0 if there are none
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The group that an array belongs to, and the counts that its shape and values must fit:
    `sources` and `targets` are numbers of nodes of the types that the array's edges come from and
    go to; for an array of nodes, both are the number of nodes of their type."""

    group: str  # "graph", "nodes", "edges" or "splits"
    leaf: str  # the last part of the array's name: "x", "indptr"
    sources: int
    targets: int
    edges: int  # of the array's type; 0 for an array of nodes


@dataclass(frozen=True)
class Types:
    """The types of a store: node types by name, and numbers of edges by type. A homogeneous store
    has one of each, named None."""

    nodes: Mapping[NodeKey, NodeType]
    edges: Mapping[EdgeKey, int]

    @classmethod
    def of(
        cls, num_nodes: int | Mapping[str, int], num_edges: int | Mapping[EdgeType, int]
    ) -> Types:
        """Make the types of a store from two numbers, or from numbers by type; errors as for
        `check`."""
        if not isinstance(num_nodes, Mapping) and not isinstance(num_edges, Mapping):
            return cls({None: NodeType(num_nodes)}, {None: num_edges})
        if not isinstance(num_nodes, Mapping) or not isinstance(num_edges, Mapping):
            raise ConfigError(
                "num_nodes and num_edges go together: give two numbers, or two dicts by type"
            )
        nodes: dict[NodeKey, NodeType] = {
            name: NodeType(count) for name, count in num_nodes.items()
        }
        types = cls(nodes, dict(num_edges.items()))
        types.check()
        return types

    def check(self) -> None:
        """Check the types of a heterogeneous store.

        Raises:
            ConfigError: a type's name cannot be a folder's, or an edge type begins or ends at an
                unknown node type.
        """
        for type in self.edges:
            if not isinstance(type, tuple) or len(type) != 3:
                raise ConfigError(f"an edge type is {type!r}: give (source, relation, target)")
        for name in [*self.nodes, *(part for type in self.edges for part in type or ())]:
            if not isinstance(name, str) or not _TYPE.fullmatch(name):
                raise ConfigError(
                    f"a type is called {name!r}: folders are named after types, so use up to 64 "
                    "letters, digits, '_', '-' and '.'; rename it first"
                )
        if not self.nodes:
            raise ConfigError("there are no node types: give one at least")
        for type in self.edges:
            if not set(ends_of(type)) <= set(self.nodes):
                raise ConfigError(
                    f"the edge type {type} begins or ends at a node type that does not exist: the "
                    f"node types are {', '.join(map(str, self.nodes))}"
                )
        folders = [folder(type) for type in self.edges]
        if len(set(folders)) < len(folders):
            raise ConfigError(
                f"two edge types would share a folder, {', '.join(sorted(folders))}: rename one, "
                "without '__' in it"
            )

    @property
    def hetero(self) -> bool:
        """Whether types have names."""
        return None not in self.nodes

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of all types."""
        return sum(type.num_nodes for type in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges, of all types."""
        return sum(self.edges.values())

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the graph of such a store takes on disk."""
        return 8 * (self.num_nodes + len(self.nodes) + self.num_edges)

    @cached_property
    def _node_folders(self) -> dict[str, NodeType]:
        return {folder(type): nodes for type, nodes in self.nodes.items()}

    @cached_property
    def _edge_folders(self) -> dict[str, EdgeKey]:
        return {folder(type): type for type in self.edges}

    def key(self, given: Any) -> NodeKey | EdgeKey:
        """The node or edge type that a user means, as in PyG: a node type; an edge type, whole or
        as (source, target), as its relation, or as "source__relation__target". ConfigError: there
        is no such type, or there are several."""
        if (given is None or isinstance(given, str)) and given in self.nodes:
            return given
        return self.edge_key(given)

    def edge_key(self, given: Any) -> EdgeKey:
        """The edge type that a user means; see `key`."""
        found = self._meant(given)
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(map(str, found))
            raise ConfigError(f"{given!r} is short for several edge types: name one of {several}")
        if not self.hetero:
            raise ConfigError(f"the store is homogeneous: it has no type {given!r}; leave it out")
        asked = "name a type: store[TYPE]" if given is None else f"there is no {given!r}"
        known = [*map(str, self.nodes), *map(str, self.edges)]
        short = [type[1] for type in self.edges if type is not None]
        raise ConfigError(
            f"the store is heterogeneous: {asked}{did_you_mean(given, [*known, *short])}; the "
            f"types are {', '.join(known)}"
        )

    def _meant(self, given: Any) -> list[EdgeKey]:
        """The edge types that `given` may mean."""
        if isinstance(given, list):
            given = tuple(given)
        if (isinstance(given, tuple) or given is None) and given in self.edges:
            return [given]
        named = [type for type in self.edges if type is not None]
        if isinstance(given, str):
            return [type for type in named if given in (folder(type), type[1])]
        return [type for type in named if (type[0], type[2]) == given]

    def by_edge_key(self, given: Mapping[Any, Any]) -> dict[Any, Any]:
        """A user's dict by edge type, short types replaced by whole ones; ConfigError: one fits
        several edge types, or two are the same. A type that does not exist stays as it is."""
        found = {}
        for type, value in given.items():
            key = self.edge_key(type) if self._meant(type) else type
            if key in found:
                raise ConfigError(f"{type!r} is the edge type {key}, which is there twice")
            found[key] = value
        return found

    def place(self, name: str) -> Place:
        """The place of the array called `name`; ConfigError: no array can have that name."""
        group, _, rest = name.partition("/")
        where, _, leaf = rest.rpartition("/")
        of_nodes = group in _OF_NODES
        if _LEAF.fullmatch(leaf) and of_nodes and where in self._node_folders:
            count = self._node_folders[where].num_nodes
            return Place(group, leaf, count, count, 0)
        of_edges = group == "edges" or (group == "graph" and leaf in GRAPH)
        if _LEAF.fullmatch(leaf) and of_edges and where in self._edge_folders:
            type = self._edge_folders[where]
            source, target = (self.nodes[end].num_nodes for end in ends_of(type))
            return Place(group, leaf, source, target, self.edges[type])
        kind = "/TYPE" if self.hetero else ""
        types = f"; TYPE is one of {', '.join(map(folder, [*self.nodes, *self.edges]))}"
        raise ConfigError(
            f"{name!r} is not a name for an array: use nodes{kind}/NAME, edges{kind}/NAME, "
            f"splits{kind}/NAME with letters, digits, '_', '-' and '.', or "
            f"{', '.join(f'graph{kind}/{each}' for each in GRAPH)}{types if kind else ''}"
        )


def is_value_name(name: str, type: NodeKey | EdgeKey, types: Types) -> bool:
    """Whether a value of the whole graph (type None) or of a type may have this name."""
    if name in ("num_nodes", "num_edges", "edge_index") or (type is None and name in types.nodes):
        return False
    return not name.startswith("_") and bool(_LEAF.fullmatch(name))


def folder(type: NodeKey | EdgeKey) -> str:
    """The folder of a type within a group; "" in a homogeneous store."""
    if type is None:
        return ""
    return type if isinstance(type, str) else "__".join(type)


@lru_cache
def array_name(group: str, type: NodeKey | EdgeKey, leaf: str) -> str:
    """The name of an array in store.json: "nodes/x", "nodes/paper/x"."""
    return "/".join(part for part in (group, folder(type), leaf) if part)
