"""Importers: functions that make a store of other data, one file for each kind of source."""

from gnndrive.store.importers.csc import csc_from_edges, to_undirected
from gnndrive.store.importers.detect import from_dataset
from gnndrive.store.importers.graphbolt import from_graphbolt
from gnndrive.store.importers.ogb import from_ogb
from gnndrive.store.importers.plain_files import from_csv, from_edges
from gnndrive.store.importers.pyg import from_data, open_or_make
from gnndrive.store.importers.pyg_file import from_pt
from gnndrive.store.importers.splits import RandomSplit, random_split
from gnndrive.store.importers.tables import from_tables

__all__ = [
    "RandomSplit",
    "csc_from_edges",
    "from_csv",
    "from_data",
    "from_dataset",
    "from_edges",
    "from_graphbolt",
    "from_ogb",
    "from_pt",
    "from_tables",
    "open_or_make",
    "random_split",
    "to_undirected",
]
