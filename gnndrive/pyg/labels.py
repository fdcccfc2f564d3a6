"""Labels in memory, in the narrowest integer that holds the classes: int8 for 50, int16 for 5,000.

A batch has the labels of all its nodes, as in PyG: 800,000 numbers from all over a file with eight
bytes a node. Through a memory map, each batch touches every page of the file, and a tight memory
limit makes each batch read it again. That costs more than keeping the labels in memory, at an
eighth of the size. Labels with several columns or in floating point stay mapped. Processes of one
host may share the memory: one reads the labels (`read_labels`), the others use them (`use`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.array_pool import Allocate
from gnndrive.common.ffi import address, core_for, ffi, pointer, widen
from gnndrive.common.forks import ForkLock
from gnndrive.common.records import Int64Array
from gnndrive.disk.sequential_reader import SequentialReader

if TYPE_CHECKING:
    from gnndrive.store.views import StoredNodes

NAME = "y"


@dataclass(frozen=True, slots=True)
class SharedLabels:
    """What `read_labels` returned in another process, perhaps read-only; None: they are not
    kept."""

    labels: npt.NDArray[Any] | None


class Labels:
    """The labels of a store's nodes of a type, read at the first use.

    Attributes:
        shared: the labels that `use` was called with; None: this process reads its own.
    """

    def __init__(self, nodes: StoredNodes) -> None:
        self._nodes = nodes
        self._dtype = nodes.table(NAME).dtype if NAME in nodes.names else ""
        self.shared: SharedLabels | None = None
        self._kept: npt.NDArray[Any] | None = None
        self._looked = False
        self._reading = ForkLock()

    def read(self) -> npt.NDArray[Any] | None:
        """Read all labels, unless they were read before: [nodes], in the dtype of `kept_dtype`;
        None: they are not kept in memory."""
        with self._reading:
            if not self._looked:
                self._keep(read_labels(self._nodes))
            return self._kept

    def use(self, shared: SharedLabels | None) -> None:
        """Use labels that another process has read, until `close`; None: nothing changes."""
        with self._reading:
            if shared is not None:
                self.shared = shared
                self._keep(shared.labels)

    def _keep(self, labels: npt.NDArray[Any] | None) -> None:
        self._kept, self._looked = labels, True

    def pick(self, node: Int64Array, empty: Allocate) -> torch.Tensor | None:
        """The labels of nodes, [n], in the store's dtype; None: they are not kept in memory."""
        kept = self.read()
        if kept is None:
            return None
        count, core = len(node), core_for(len(node))
        narrow, out = np.empty(count, kept.dtype), empty(count, self._dtype)
        if core.gd_pick(
            address(kept), kept.itemsize, len(kept), pointer(node), count, address(narrow),
            ffi.new("int64_t *"),
        ):  # fmt: skip
            raise IndexError("a node id is out of range: check neighbor_sampler=")
        if out.dtype == np.int64:
            widen(narrow, out)
        else:
            out[:] = narrow
        return torch.from_numpy(out)

    def __reduce__(self) -> tuple[type[Labels], tuple[StoredNodes]]:
        return Labels, (self._nodes,)

    def close(self) -> None:
        """Drop the labels; the next `read` or `pick` reads them again."""
        with self._reading:
            self._kept, self._looked, self.shared = None, False, None


def kept_dtype(nodes: StoredNodes) -> np.dtype[Any] | None:
    """The dtype in which the labels are kept in memory; None: they are not kept."""
    if NAME not in nodes.names or nodes.num_classes < 1:
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


def read_labels(nodes: StoredNodes, empty: Allocate = np.empty) -> npt.NDArray[Any] | None:
    """Read the labels of a store's nodes of a type in `kept_dtype`, [nodes]; None: they are not
    kept, or a label that is no class does not fit into that dtype."""
    dtype = kept_dtype(nodes)
    if dtype is None:
        return None
    limits = np.iinfo(dtype)
    kept = empty(nodes.num_nodes, dtype)
    with nodes.unchanged():
        reader = SequentialReader(nodes.table(NAME))
    with reader:
        for first, labels in reader.stretches():
            if labels.min() < limits.min or labels.max() > limits.max:
                return None
            kept[first : first + len(labels)] = labels
    return kept
