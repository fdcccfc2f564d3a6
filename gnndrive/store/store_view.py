"""`StoreView`: what PyG's `Data` and `HeteroData` answer as a whole, answered by a store.

A homogeneous store has the attributes of its nodes and edges itself, as a `Data` has; a
heterogeneous one has node and edge types, and attributes of the whole graph. `data_view.py` has
what the nodes or edges of one type answer.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Self

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import EdgeType
from gnndrive.store.data_view import COUNTS, GRAPH, DataView, Key, Overlay, own_name_error, refuse
from gnndrive.store.mapped_arrays import MappedArrays
from gnndrive.store.views import StoredEdges, StoredNodes, check_room, has_isolated_nodes

# PyG's Data answers None for these, even if it has no such attribute.
_NONE_IF_ABSENT = (
    "x", "y", "edge_attr", "edge_weight", "pos", "batch", "time", "face",
)  # fmt: skip
OWN = ("path", "info", "overlay")  # attributes of a `MappedArrays`
_UNDIRECTED_BYTES = 96  # an edge, while PyG sorts both directions


class StoreView(DataView, MappedArrays):
    """The surface of a `Data` or a `HeteroData`; see `Store`."""

    # ---- PyG's storages ----

    @property
    def node_types(self) -> list[str]:
        """The names of the node types; [] in a homogeneous store."""
        return [name for name in self.info.types.nodes if name is not None]

    @property
    def edge_types(self) -> list[EdgeType]:
        """The edge types, (source, relation, target) each; [] in a homogeneous store."""
        return [name for name in self.info.types.edges if name is not None]

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Node and edge types, as `torch_geometric.nn.to_hetero` takes them."""
        return self.node_types, self.edge_types

    @property
    def is_hetero(self) -> bool:
        """Whether the store has named types of nodes and edges."""
        return self.info.types.hetero

    def all_nodes(self) -> list[StoredNodes]:
        """The nodes of each type; one in a homogeneous store."""
        return [StoredNodes(self, type) for type in self.info.types.nodes]

    def all_edges(self) -> list[StoredEdges]:
        """The edges of each type; one in a homogeneous store."""
        return [StoredEdges(self, type) for type in self.info.types.edges]

    @property
    def node_stores(self) -> Sequence[DataView]:
        """What has attributes of nodes: the nodes of each type, or a homogeneous store itself."""
        return self.all_nodes() if self.is_hetero else [self]

    @property
    def edge_stores(self) -> Sequence[DataView]:
        """What has attributes of edges: the edges of each type, or a homogeneous store itself."""
        return self.all_edges() if self.is_hetero else [self]

    @property
    def stores(self) -> Sequence[DataView]:
        """All of them."""
        return [*self.node_stores, *self.edge_stores] if self.is_hetero else [self]

    def node_items(self) -> list[tuple[str, StoredNodes]]:
        """Node types and their nodes."""
        return [(type, StoredNodes(self, type)) for type in self.node_types]

    def edge_items(self) -> list[tuple[EdgeType, StoredEdges]]:
        """Edge types and their edges."""
        return [(type, StoredEdges(self, type)) for type in self.edge_types]

    def collect(self, key: str, allow_empty: bool = False) -> dict[Any, Any]:
        """An attribute of all types that have it; `store.x_dict` is the same.

        Raises:
            KeyError: no type has it, unless `allow_empty`.
        """
        if not self.is_hetero:
            raise KeyError(f"{self.path} is homogeneous: read the attribute {key!r} itself")
        found = {}
        for view in (*self.all_nodes(), *self.all_edges()):
            value = getattr(view, key, None)
            if value is not None:
                found[view.type] = value
        if not found and not allow_empty:
            raise KeyError(
                f"no type of {self.path} has {key!r}{self._meant(key)}; it has: {self._known()}"
            )
        return found

    # ---- counts ----

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of all types."""
        return self.info.types.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of directed edges, of all types."""
        return self.info.types.num_edges

    @property
    def num_node_features(self) -> Any:
        """Columns of x, 0 if there is no x; a dict by node type if heterogeneous."""
        return self._by_type({each.type: each.num_features for each in self.all_nodes()})

    @property
    def num_features(self) -> Any:
        """`num_node_features` under PyG's other name."""
        return self.num_node_features

    @property
    def num_edge_features(self) -> Any:
        """Columns of edge_attr, 0 if there is none; a dict by edge type if heterogeneous."""
        return self._by_type({each.type: each.num_edge_features for each in self.all_edges()})

    def _by_type(self, found: dict[Any, int]) -> Any:
        return found if self.is_hetero else found[None]

    @property
    def num_node_types(self) -> int:
        """Number of node types; 1 in a homogeneous store."""
        return len(self.info.types.nodes)

    @property
    def num_edge_types(self) -> int:
        """Number of edge types; 1 in a homogeneous store."""
        return len(self.info.types.edges)

    def size(self, dim: int | None = None) -> Any:
        """(num_nodes, num_nodes), or one of the two."""
        return (self.num_nodes, self.num_nodes)[slice(None) if dim is None else dim]

    # ---- the graph ----

    def is_bipartite(self) -> bool:
        """False: a store as a whole has no two sides; the edges of one type may have."""
        return False

    def has_self_loops(self) -> bool:
        """Whether an edge goes from a node to itself; reads all edges."""
        return any(each.has_self_loops() for each in self.all_edges())

    def has_isolated_nodes(self) -> bool:
        """Whether a node has no edge but self loops; reads all edges."""
        counts = {each.type: each.num_nodes for each in self.all_nodes()}
        return has_isolated_nodes(self.all_edges(), counts)

    def is_undirected(self) -> bool:
        """Whether each edge has its reverse, with the same edge_attr in a homogeneous store.

        Raises:
            ConfigError: memory has no room to sort all edges.
        """
        from torch_geometric.data import Data, HeteroData

        check_room(
            _UNDIRECTED_BYTES * self.num_edges, "is_undirected()",
            "ask before the import; `gnndrive import --undirected` adds the reverse of each edge",
        )  # fmt: skip
        data: Any = HeteroData() if self.is_hetero else Data()
        for nodes in self.all_nodes():
            (data if nodes.type is None else data[nodes.type]).num_nodes = nodes.num_nodes
        for edges in self.all_edges():
            (data if edges.type is None else data[edges.type]).edge_index = edges["edge_index"]
        if not self.is_hetero and "edge_attr" in self:
            data.edge_attr = self["edge_attr"]
        return bool(data.is_undirected())

    def is_directed(self) -> bool:
        """The opposite of `is_undirected`."""
        return not self.is_undirected()

    # ---- moving and copying ----

    @property
    def is_cuda(self) -> bool:
        """False: a store is on disk."""
        return False

    def to(self, device: Any = None, *names: str, non_blocking: bool = False) -> Self:
        """The store itself; warns once if `device` is not the host, because nothing is moved.

        A loader delivers batches on `device=`.
        """
        moves = isinstance(device, int | str | torch.device) and torch.device(device).type != "cpu"
        if moves:
            _tell_not_moved()
        return self

    def cuda(self, device: Any = None, *names: str, non_blocking: bool = False) -> Self:
        """See `to`."""
        _tell_not_moved()
        return self

    def cpu(self, *names: str) -> Self:
        """The store itself."""
        return self

    def pin_memory(self, *names: str) -> Self:
        """The store itself; a loader pins batches with its own `pin_memory=True`."""
        return self

    def contiguous(self, *names: str) -> Self:
        """The store itself, whose rows are contiguous."""
        return self

    def only(self, names: Collection[str]) -> Self:
        """Another object for the same store with fewer attributes; the graph stays.

        Args:
            names: the names of the attributes that it has, of any type. With a name, such as "x",
                it has the scale "x_scale" too, without which integers are no features.

        Raises:
            ConfigError: nothing has such an attribute, or `names` is no list of names.
        """
        given = not isinstance(names, str) and isinstance(names, Collection)
        if not (given and all(isinstance(each, str) for each in names)):
            raise ConfigError(f"attrs={names!r}: give a list of attributes' names, such as ['x']")
        other = self.__copy__()
        views: list[DataView] = [other, *other.all_nodes(), *other.all_edges()]
        there = set(chain.from_iterable(view.keys() for view in views))
        if unknown := [name for name in names if name not in there]:
            gone = any(unknown[0] in view._overlay.hidden(view._key) for view in views)
            raise ConfigError(
                f"attrs={list(names)!r}: {self.path} has no {unknown[0]!r}"
                f"{', which was deleted since it was opened' if gone else ''}"
                f"{did_you_mean(unknown[0], there)}; it has: "
                f"{', '.join(sorted(there))}"
            )
        kept = {*names, *(f"{name}_scale" for name in names), *GRAPH, *COUNTS}
        for view in views:
            for name in {*view.keys()} - kept:
                other.overlay.delete(view._key, name)
        return other

    def __copy__(self) -> Self:
        """Another object for the same store, with attributes set and deleted of its own."""
        if _called_by("RandomLinkSplit"):
            refuse("PyG's RandomLinkSplit cannot be applied")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__["overlay"] = self.overlay.copy()
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = self.__copy__()
        other.overlay.copy_values(memo)
        memo[id(self)] = other
        return other

    # ---- see DataView ----

    @property
    def _overlay(self) -> Overlay:
        return self.overlay

    @property
    def _key(self) -> Key:
        return None

    def _makers(self) -> Mapping[str, Callable[[], Any]]:
        if self.is_hetero:
            return {}
        (nodes,), (edges,) = self.all_nodes(), self.all_edges()
        return {**edges._makers(), **nodes._makers()}

    @property
    def _stored_values(self) -> Mapping[str, Any]:
        return self.info.values.get(None, {})

    def _rows(self, name: str, count: int) -> str:
        return "" if self.is_hetero else self.all_nodes()[0]._rows(name, count)

    def _stored_group(self, name: str) -> str:
        if self.is_hetero:
            return ""
        return self.all_nodes()[0]._stored_group(name) or self.all_edges()[0]._stored_group(name)

    def _whose(self) -> str:
        return str(self.path)

    def _known(self) -> str:
        if not self.is_hetero:
            return super()._known()
        types = ", ".join(map(str, (*self.node_types, *self.edge_types)))
        names = dict.fromkeys(chain.from_iterable(each.keys() for each in self.stores))
        return f"{', '.join((*names, *super().keys()))}, of the types {types}"

    def keys(self, *names: str) -> list[str]:
        """Names of all attributes, of all types; or those of `names` that there are."""
        if not self.is_hetero:
            return super().keys(*names)
        found = dict.fromkeys(name for each in self.stores for name in each.keys(*names))
        return [*found, *(name for name in super().keys(*names) if name not in found)]

    def to_dict(self) -> dict[Any, Any]:
        """All attributes by name; if heterogeneous, by type and name."""
        if not self.is_hetero:
            return super().to_dict()
        return {view.type: view.to_dict() for view in (*self.all_nodes(), *self.all_edges())}

    def node_attrs(self) -> list[str]:
        """Names of the attributes that have one row for each node."""
        if not self.is_hetero:
            return super().node_attrs()
        return list(dict.fromkeys(name for each in self.node_stores for name in each.node_attrs()))

    def edge_attrs(self) -> list[str]:
        """Names of the attributes that have one row for each edge, edge_index included."""
        if not self.is_hetero:
            return super().edge_attrs()
        return list(dict.fromkeys(name for each in self.edge_stores for name in each.edge_attrs()))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and attributes, as a Data gives them."""
        if self.is_hetero:
            raise TypeError(f"{self.path} is heterogeneous: iterate over store.node_items()")
        return iter(self.items())

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_dict") and not name.startswith("_") and self.is_hetero:  # "x_dict"
            found = self.collect(name.removesuffix("_dict"), allow_empty=True)
            if found:
                return found
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _NONE_IF_ABSENT and not self.is_hetero:
                return None
            raise

    def __setitem__(self, name: Any, value: Any) -> None:
        if self.is_hetero:
            refuse(f"store[{name!r}] cannot be set")
        super().__setitem__(name, value)

    def __delitem__(self, name: Any) -> None:
        if self.is_hetero:
            refuse(f"store[{name!r}] cannot be deleted")
        super().__delitem__(name)

    def _set(self, name: str, value: Any) -> None:
        if name in OWN:
            raise own_name_error(name, self)
        super()._set(name, value)


def _called_by(transform: str) -> bool:
    """Whether a transform of PyG copies the store, by its class's name. PyG's RandomLinkSplit takes
    what is no HeteroData for a Data and ends with an AssertionError that has no text."""
    frame = sys._getframe(1)
    for _ in range(2):  # of `__copy__` and of `copy.copy`
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return type(frame.f_locals.get("self")).__name__ == transform


_told = False


def _tell_not_moved() -> None:
    global _told
    if not _told:
        _told = True
        warnings.warn(
            "a store stays on disk, so moving it to a device does nothing: give a loader device=, "
            "and its batches are there",
            stacklevel=4,
        )
