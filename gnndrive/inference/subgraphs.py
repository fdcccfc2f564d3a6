"""A batch: the targets, all their in-edges, and the rows at both ends, as PyG's layers take them.

As in PyG's loaders, targets come first and other nodes follow in the order in which edges name
them. Numbers are local to the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.host_memory import gather_threads
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, ends_of
from gnndrive.inference.row_cache import RowCache
from gnndrive.inference.targets import TargetBatch

ENTRY_BYTES = 64  # for each target and in-edge of a batch: its lists, and both ends as int64

Ids = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OneHop:
    """The subgraph of a batch of targets.

    Attributes:
        batch: the targets, and where their in-edges lie.
        rows: rows by node type, [nodes, *row], those of the targets first; valid until the next
            batch is made.
        nodes: by node type, the nodes of `rows`, int64 [nodes].
        edge_index: by edge type, int64 [2, edges]: places in `rows`, in the order of the CSC graph.
    """

    batch: TargetBatch
    rows: dict[NodeKey, torch.Tensor]
    nodes: dict[NodeKey, Int64Array]
    edge_index: dict[EdgeKey, torch.Tensor]


class SubgraphMaker:
    """Makes the batches of one target type from the rows in memory, which `caches` has of each
    type; `pointers` are those of each edge type into the targets."""

    def __init__(
        self,
        type: NodeKey,
        caches: Mapping[NodeKey, RowCache],
        largest: Mapping[NodeKey, int],
        pointers: Mapping[EdgeKey, Ids],
    ) -> None:
        self._type, self._pointers = type, pointers
        self._gathers = {name: _Gather(cache, largest[name]) for name, cache in caches.items()}

    def make(self, batch: TargetBatch, indices: Mapping[EdgeKey, Ids]) -> OneHop:
        """Number and gather a batch, whose rows must all be in memory; `indices` has the targets'
        in-neighbours by edge type."""
        edge_index = {key: np.empty((2, len(ids)), np.int64) for key, ids in indices.items()}
        count = batch.last - batch.first
        rows, nodes = {}, {}
        for type, gather in self._gathers.items():
            keys = [key for key in indices if ends_of(key)[0] == type]
            parts = [indices[key] for key in keys]
            if type == self._type:
                parts.insert(0, np.arange(batch.first, batch.last))
            numbers, rows[type], nodes[type] = gather.gather(parts)
            for key, number in zip(keys, numbers[len(parts) - len(keys) :], strict=True):
                edge_index[key][0] = number
        for key, ends in edge_index.items():
            degrees = np.diff(self._pointers[key][batch.first : batch.last + 1]).astype(np.int64)
            ends[1] = np.repeat(np.arange(count), degrees)
        tensors = {key: torch.from_numpy(ends) for key, ends in edge_index.items()}
        return OneHop(batch, rows, nodes, tensors)


class _Gather:
    """Numbers and gathers the rows of one type."""

    def __init__(self, cache: RowCache, rows_max: int) -> None:
        self._cache = cache
        slots = len(cache.memory)
        self._place = np.empty(slots, np.int32)
        most = min(rows_max, slots)
        self._out = torch.empty((most, *cache.memory.shape[1:]), dtype=cache.memory.dtype)

    def gather(self, parts: list[Ids]) -> tuple[list[Ids], torch.Tensor, Int64Array]:
        """Number the nodes in the order of their first mention: returns the number of each node of
        each part, and the rows and the nodes in the order of numbers."""
        ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
        slots = self._cache.slot_of[ids]
        order = np.arange(len(ids), dtype=np.int32)
        self._place[slots[::-1]] = order[::-1]  # of several assignments to a place the last holds
        first = self._place[slots]
        is_first = first == order
        number = (np.cumsum(is_first, dtype=np.int32) - 1)[first]
        wanted = slots[is_first]
        rows, memory = self._out[: len(wanted)], self._cache.memory
        width = memory.stride(0) * memory.element_size()
        lib.gd_gather(
            ffi.cast("uint8_t *", memory.data_ptr()), width, pointer(wanted), len(wanted), width,
            ffi.cast("uint8_t *", rows.data_ptr()), gather_threads(),
        )  # fmt: skip
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return np.split(number, ends), rows, ids[is_first].astype(np.int64, copy=False)
