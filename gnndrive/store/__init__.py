"""Stores: a graph and its features as a folder of plain .npy files (format.py says which)."""

from gnndrive.store.arrays import write_store
from gnndrive.store.format import ArrayInfo, Progress, StoreInfo
from gnndrive.store.reader import Store, open
from gnndrive.store.writer import ArrayWriter, StoreWriter

__all__ = [
    "ArrayInfo",
    "ArrayWriter",
    "Progress",
    "Store",
    "StoreInfo",
    "StoreWriter",
    "open",
    "write_store",
]
