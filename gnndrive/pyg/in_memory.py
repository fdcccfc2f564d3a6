"""Join samples with the attributes of a Data or HeteroData in memory, as PyG's loaders do it, in a
fraction of their time.

PyG allocates a batch's rows anew, and to clear their pages takes the kernel longer than it takes to
copy rows. PyG also decides for each batch which attributes have a row for each node or edge, and
looks up the numbers of a batch's edges once for each attribute of edges. `RowsInMemory` copies rows
into memory that earlier batches have left, and looks at the attributes again only if one was set.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gnndrive.common.array_pool import SMALL_BYTES, ArrayPool, divided, empty_tensor
from gnndrive.pyg.collate import describe
from gnndrive.pyg.conversions import as_dtype, select
from gnndrive.pyg.sampler import NeighborSampler

BLOCKS_MOST = 8  # of memory that stay with a loader when its batches are gone
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class StorageAttributes:
    """The attributes of a storage of the data.

    Attributes:
        storage: PyG's.
        all: the values by name.
        of_nodes, of_edges: the names and values of those with a row for each node or edge.
    """

    storage: Any
    all: dict[str, Any]
    of_nodes: list[tuple[str, Tensor]]
    of_edges: list[tuple[str, Tensor]]

    @property
    def current(self) -> bool:
        """Whether the storage has the same attributes still, and rows can be copied still."""
        now: dict[str, Any] = self.storage._mapping
        return (
            len(now) == len(self.all)
            and all(now.get(name) is value for name, value in self.all.items())
            and all(_is_plain(value) for _, value in (*self.of_nodes, *self.of_edges))
        )

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Numbers that change when torch writes rows in place, or gives a tensor other memory."""
        rows = (*self.of_nodes, *self.of_edges)
        return [(value._version, value.data_ptr()) for _, value in rows]


class RowsInMemory:
    """Joins the samples of one loader over a Data or HeteroData on the CPU."""

    def __init__(self) -> None:
        self._pool = ArrayPool(BLOCKS_MOST)
        self._known: tuple[Any, list[StorageAttributes]] = None, []

    def __reduce__(self) -> Any:
        return RowsInMemory, ()

    def attributes(self, data: Any) -> list[StorageAttributes]:
        """The attributes of each storage; []: PyG's loader is to join them, or to refuse them."""
        if get_worker_info() is not None:  # where PyG puts rows into shared memory
            return []
        known, attributes = self._known
        if known is not data or not all(each.current for each in attributes):
            attributes = []
            if type(data) in (Data, HeteroData):
                found = [_attributes(storage) for storage in data.stores]
                attributes = [each for each in found if each is not None]
                if len(attributes) < len(found):
                    attributes = []
            self._known = data, attributes
        return attributes

    def batch(self, loader: Any, out: Any) -> Any:
        """What PyG's `filter_fn` of a loader in memory makes of `out`; None: it is to be called."""
        data = loader.data
        attributes = self.attributes(data)
        if not attributes or not isinstance(sampler_of(loader), NeighborSampler):
            return None
        if loader.transform_sampler_output:
            out = loader.transform_sampler_output(out)
        kind = SamplerOutput if type(data) is Data else HeteroSamplerOutput
        if not isinstance(out, kind):
            raise TypeError(f"{type(loader).__name__} needs a {kind.__name__}, not {type(out)}")
        (batch,) = self.joined(loader, attributes, [out])
        return batch if loader.transform is None else loader.transform(batch)

    def joined(
        self, loader: Any, attributes: list[StorageAttributes], outs: Sequence[Any]
    ) -> list[Any]:
        """The same for samples of several batches, before the transforms. Each has memory of its
        own as far as torch sees. `attributes`: those of the loader's data."""
        batches = [copy.copy(loader.data) for _ in outs]
        numbers, of_edges = sampler_of(loader).edge_permutation, hasattr(loader, "link_sampler")
        for each in attributes:
            key = each.storage._key
            if isinstance(loader.data, Data):
                values = [batch._store._mapping for batch in batches]
                self._join_nodes(each, values, [out.node for out in outs])
                edges = [(out.row, out.col, out.edge) for out in outs]
                self._join_edges(each, values, edges, numbers)
            elif key is not None:
                values = [batch[key]._mapping for batch in batches]
                if isinstance(key, str):
                    nodes = [out.node.setdefault(key, _NONE) for out in outs]
                    self._join_nodes(each, values, nodes)
                else:
                    edges = [
                        tuple(by_type.get(key, _NONE) for by_type in (out.row, out.col, out.edge))
                        for out in outs
                    ]
                    self._join_edges(each, values, edges, (numbers or {}).get(key))
        for batch, out in zip(batches, outs, strict=True):
            describe(batch, loader.input_data.input_type, of_edges, out)
        return batches

    def _join_nodes(
        self, given: StorageAttributes, values: list[dict[str, Any]], nodes: list[Tensor]
    ) -> None:
        self._pick(given.of_nodes, values, [as_dtype(node, torch.int64) for node in nodes])
        for each, node in zip(values, nodes, strict=True):
            if "num_nodes" in each:
                each["num_nodes"] = len(node)
            each.setdefault("n_id", node)

    def _join_edges(
        self, given: StorageAttributes, values: list[dict[str, Any]], edges: Sequence[Any],
        numbers: Tensor | None,
    ) -> None:  # fmt: skip
        """`edges`: for each batch their sources, targets and CSC positions, [n] each; positions may
        be None."""
        for each, (row, col, _) in zip(values, edges, strict=True):
            each["edge_index"] = torch.stack([row, col])
        if any(edge is None for _, _, edge in edges):
            for each in values:
                for name, _ in given.of_edges:
                    del each[name]
            return
        at = [as_dtype(edge, torch.int64) for _, _, edge in edges]
        if numbers is not None:
            whole = torch.index_select(numbers, 0, _one(at))
            at = [whole] if len(at) == 1 else list(divided(whole, at))
        self._pick(given.of_edges, values, at)
        for each, number in zip(values, at, strict=True):
            each.setdefault("e_id", number)

    def _pick(
        self, attributes: list[tuple[str, Tensor]], values: list[dict[str, Any]], at: list[Tensor]
    ) -> None:
        """Add to the values of each batch the rows `at` of the attributes."""
        whole = _one(at) if attributes else _NONE
        for name, value in attributes:
            rows = self._rows(value, whole)
            divisions = [rows] if len(at) == 1 else divided(rows, at)
            for each, own in zip(values, divisions, strict=True):
                each[name] = own

    def _rows(self, value: Tensor, at: Tensor) -> Tensor:
        """`value[at]`, in memory of the pool if it is large."""
        if len(at) * value[:1].nbytes < SMALL_BYTES:
            return select(value, 0, at)
        out = empty_tensor(self._pool.empty, (len(at), *value.shape[1:]), value.dtype)
        return select(value, 0, at, out)


def _one(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def sampler_of(loader: Any) -> Any:
    """The sampler of a PyG loader, of nodes or links."""
    return loader.link_sampler if hasattr(loader, "link_sampler") else loader.node_sampler


def _attributes(storage: Any) -> StorageAttributes | None:
    """The attributes of a storage, or None; see `RowsInMemory.attributes`."""
    found = StorageAttributes(storage, dict(storage._mapping), [], [])
    for name, value in found.all.items():
        if name == "adj_t" or (name == "edge_index" and value.device.type != "cpu"):
            return None
        if name in ("num_nodes", "edge_index"):
            continue
        if getattr(storage, "is_node_attr", _never)(name):
            rows = found.of_nodes
        elif getattr(storage, "is_edge_attr", _never)(name):
            rows = found.of_edges
        else:
            continue
        if not _is_plain(value) or storage._parent().__cat_dim__(name, value, storage) != 0:
            return None
        rows.append((name, value))
    return found


def _never(name: str) -> bool:
    return False


def _is_plain(value: Any) -> bool:
    return (
        type(value) is Tensor
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
        and not value.is_inference()
    )
