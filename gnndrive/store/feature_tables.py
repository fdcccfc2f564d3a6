"""Which arrays of a store go through the feature buffer: the features of nodes, and of edges.

They are `x` of every node type; the nodes' attributes that `gnndrive.infer` added; and `edge_attr`
of every edge type. Of the latter two, only those whose rows are much larger than an entry of the
mapping table. All other arrays are read through memory maps. A type without features has no table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.owners import Owners
from gnndrive.common.records import EdgeKey, NodeKey, TableFile
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges, StoredNodes

NODE_FEATURES, EDGE_FEATURES = "x", "edge_attr"
ROW_BYTES_MIN = 64  # beside smaller rows, a mapping table of 4 bytes a row is too large


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """A table of the feature buffer."""

    name: str  # the array's full name: "nodes/x", "edges/author__writes__paper/edge_attr"
    attribute: str  # the array's name in a batch: "x", "h", "edge_attr"
    type: NodeKey | EdgeKey
    of_edges: bool  # whether its rows belong to edges; else to nodes
    file: TableFile  # where its rows lie on disk, those that are here
    parts: Owners | None = None  # how its rows were divided; None: all are here

    @property
    def rows(self) -> int:
        """How many there are, those that are not here too."""
        return self.file.row_count if self.parts is None else self.parts.rows

    def file_in(self, folder: Path) -> str:
        """The file's path within the store's folder."""
        return os.path.relpath(self.file.path, folder)


def feature_tables(store: Store) -> tuple[FeatureTable, ...]:
    """A store's tables of the feature buffer: those of nodes, then those of edges."""
    found = []
    for nodes in store.all_nodes():
        if NODE_FEATURES in nodes.names:
            found.append(_table(store, nodes, NODE_FEATURES))
        for name in nodes.names:
            array = store.info.arrays[nodes.name_of(name)]
            if array.folder and array.row_bytes >= ROW_BYTES_MIN:
                found.append(_table(store, nodes, name))
    for edges in store.all_edges():
        if EDGE_FEATURES in edges.names:
            table = _table(store, edges, EDGE_FEATURES)
            found += [table] if table.file.row_bytes >= ROW_BYTES_MIN else []
    return tuple(table for table in found if table.rows and table.file.row_bytes)


def _table(store: Store, view: StoredNodes | StoredEdges, attribute: str) -> FeatureTable:
    name, of_edges = view.name_of(attribute), view.group == "edges"
    return FeatureTable(name, attribute, view.type, of_edges, store.part(name), store.parts(name))
