"""Labels in memory, in as few bytes as there are classes: one for 50, two for 50,000.

A batch has the labels of all its nodes, as PyG's has: 800,000 numbers all over a file of eight
bytes a node, each batch anew. Through a memory map that is every page of the file, and under a
tight memory limit they are read again and again; an eighth of it in memory is cheaper. Not for
labels of several columns or of floating point: those stay mapped.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnndrive.common.array_pool import Allocate, empty_tensor
from gnndrive.common.records import Int64Array
from gnndrive.disk.sequential_reader import SequentialReader

if TYPE_CHECKING:
    from gnndrive.store.views import StoredNodes

NAME = "y"


class Labels:
    """The labels of a store's nodes of a type, read when the first are asked for.

    Args:
        nodes: whose.
    """

    def __init__(self, nodes: StoredNodes) -> None:
        self._nodes = nodes
        self._kept: torch.Tensor | None = None
        self._looked = False
        self._reading = threading.Lock()

    def read(self) -> torch.Tensor | None:
        """All of them, [nodes], read unless they were before; None: they are not kept here.

        Raises:
            StoreError, ReadError: they cannot be read.
        """
        with self._reading:
            if not self._looked:
                self._kept = _read(self._nodes)
                self._looked = True
            return self._kept

    def pick(self, node: Int64Array, empty: Allocate) -> torch.Tensor | None:
        """The labels of `node`, [n] in the store's dtype and in memory from `empty`; None: they are
        not kept here.

        Raises:
            StoreError, ReadError: they cannot be read.
        """
        kept = self.read()
        if kept is None:
            return None
        dtype = getattr(torch, self._nodes.table(NAME).dtype)
        out = empty_tensor(empty, (len(node),), dtype)
        return out.copy_(torch.index_select(kept, 0, torch.from_numpy(node)))

    def __reduce__(self) -> tuple[type[Labels], tuple[StoredNodes]]:
        return Labels, (self._nodes,)

    def close(self) -> None:
        """Let go of them; they come back when they are wanted."""
        with self._reading:
            self._kept, self._looked = None, False


def kept_dtype(nodes: StoredNodes) -> np.dtype[Any] | None:
    """What the labels are kept in; None: they are not kept."""
    if NAME not in nodes or nodes.num_classes < 1:
        return None
    file = nodes.table(NAME)
    if file.row_shape or not file.dtype.startswith("int"):
        return None
    for narrow in (np.int8, np.int16, np.int32):
        dtype = np.dtype(narrow)
        if nodes.num_classes - 1 <= np.iinfo(narrow).max:
            return dtype if dtype.itemsize < file.row_bytes else None
    return None


def kept_bytes(nodes: StoredNodes) -> int:
    """Bytes that the labels take in memory."""
    dtype = kept_dtype(nodes)
    return 0 if dtype is None else dtype.itemsize * nodes.num_nodes


def _read(nodes: StoredNodes) -> torch.Tensor | None:
    """The labels, narrow; None: they are not kept, or some are no class and need more room."""
    dtype = kept_dtype(nodes)
    if dtype is None:
        return None
    limits = np.iinfo(dtype)
    kept = np.empty(nodes.num_nodes, dtype)
    with SequentialReader(nodes.table(NAME)) as stream:
        for first, labels in stream.stretches():
            if labels.min() < limits.min or labels.max() > limits.max:
                return None
            kept[first : first + len(labels)] = labels
    return torch.from_numpy(kept)
