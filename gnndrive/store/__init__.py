"""Stores: a graph and its features as a folder of plain .npy files; format.py describes them."""

from gnndrive.common.progress import Progress
from gnndrive.store.format import ArrayInfo, StoreInfo
from gnndrive.store.reader import Store, open
from gnndrive.store.views import StoredEdges, StoredNodes
from gnndrive.store.writer import ArrayWriter, StoreWriter, write_store

__all__ = [
    "ArrayInfo",
    "ArrayWriter",
    "Progress",
    "Store",
    "StoreInfo",
    "StoreWriter",
    "StoredEdges",
    "StoredNodes",
    "open",
    "write_store",
]
