"""Stores: a graph and its features as a folder of plain .npy files; format.py describes them."""

from gnndrive.store.array_writer import ArrayWriter
from gnndrive.store.arrays import write_store
from gnndrive.store.format import ArrayInfo, Progress, StoreInfo
from gnndrive.store.reader import Store, open
from gnndrive.store.views import StoredEdges, StoredNodes
from gnndrive.store.writer import StoreWriter

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
