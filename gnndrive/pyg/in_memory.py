"""Join samples with the attributes of a Data or HeteroData in memory, as PyG's loaders do it, in a
fraction of their time.

PyG allocates a batch's rows anew, and to clear their pages takes the kernel longer than it takes to
copy rows. PyG also decides for each batch which attributes have a row for each node or edge, and
looks up the numbers of a batch's edges once for each attribute of edges. `RowsInMemory` copies rows
into memory that earlier batches have left, and looks at the attributes again only if one was set.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gnndrive.common.array_pool import SMALL_BYTES, ArrayPool, empty_tensor
from gnndrive.pyg.collate import describe
from gnndrive.pyg.conversions import as_dtype, select
from gnndrive.pyg.sampler import NeighborSampler

BLOCKS_MOST = 8  # of memory that stay with a loader when its batches are gone
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Attributes:
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
        """Whether the storage has the same attributes still."""
        now: dict[str, Any] = self.storage._mapping
        return len(now) == len(self.all) and all(
            now.get(name) is value for name, value in self.all.items()
        )

    @property
    def versions(self) -> list[int]:
        """Numbers that change when rows are written in place."""
        return [value._version for _, value in (*self.of_nodes, *self.of_edges)]


class RowsInMemory:
    """Joins the samples of one loader over a Data or HeteroData on the CPU."""

    def __init__(self) -> None:
        self._pool = ArrayPool(BLOCKS_MOST)
        self._known: tuple[Any, list[Attributes]] = None, []

    def __reduce__(self) -> Any:
        return RowsInMemory, ()

    def attributes(self, data: Any) -> list[Attributes]:
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
        data, of_edges = loader.data, hasattr(loader, "link_sampler")
        sampler = loader.link_sampler if of_edges else loader.node_sampler
        attributes = self.attributes(data) if isinstance(sampler, NeighborSampler) else []
        if not attributes:
            return None
        if loader.transform_sampler_output:
            out = loader.transform_sampler_output(out)
        kind = SamplerOutput if type(data) is Data else HeteroSamplerOutput
        if not isinstance(out, kind):
            raise TypeError(f"{type(loader).__name__} needs a {kind.__name__}, not {type(out)}")
        batch = copy.copy(data)
        if isinstance(out, SamplerOutput):
            self._join(batch._store._mapping, attributes[0], out, sampler.edge_permutation)
        else:
            self._join_types(batch, attributes, out, sampler.edge_permutation)
        describe(batch, loader.input_data.input_type, of_edges, out)
        return batch if loader.transform is None else loader.transform(batch)

    def _join(
        self, values: dict[str, Any], given: Attributes, out: SamplerOutput, numbers: Any
    ) -> None:
        self._join_nodes(values, given, out.node)
        self._join_edges(values, given, (out.row, out.col, out.edge), numbers)

    def _join_types(
        self, batch: HeteroData, given: list[Attributes], out: HeteroSamplerOutput, numbers: Any
    ) -> None:
        for each in given:
            type = each.storage._key
            if type is None:
                continue
            values = batch[type]._mapping
            if isinstance(type, str):
                self._join_nodes(values, each, out.node.setdefault(type, _NONE))
            else:
                ends = [by_type.get(type, _NONE) for by_type in (out.row, out.col, out.edge)]
                self._join_edges(values, each, ends, (numbers or {}).get(type))

    def _join_nodes(self, values: dict[str, Any], given: Attributes, node: Tensor) -> None:
        at = as_dtype(node, torch.int64)
        for name, value in given.of_nodes:
            values[name] = self.pick(value, at)
        if "num_nodes" in values:
            values["num_nodes"] = len(node)
        values.setdefault("n_id", node)

    def _join_edges(
        self, values: dict[str, Any], given: Attributes, edges: Any, numbers: Tensor | None
    ) -> None:
        """`edges`: their sources, targets and CSC positions, [n] each; positions may be None."""
        row, col, edge = edges
        values["edge_index"] = torch.stack([row, col])
        if edge is None:
            for name, _ in given.of_edges:
                del values[name]
            return
        at = numbered(as_dtype(edge, torch.int64), numbers)
        for name, value in given.of_edges:
            values[name] = self.pick(value, at)
        values.setdefault("e_id", at)

    def pick(self, value: Tensor, at: Tensor) -> Tensor:
        """`value[at]`, in memory of the pool if it is large."""
        if len(at) * value[:1].nbytes < SMALL_BYTES:
            return select(value, 0, at)
        out = empty_tensor(self._pool.empty, (len(at), *value.shape[1:]), value.dtype)
        return select(value, 0, at, out)


def numbered(position: Tensor, numbers: Tensor | None) -> Tensor:
    """The numbers of the edges at these CSC positions, int64 [n]."""
    return position if numbers is None else torch.index_select(numbers, 0, position)


def _attributes(storage: Any) -> Attributes | None:
    """The attributes of a storage, or None; see `RowsInMemory.attributes`."""
    found = Attributes(storage, dict(storage._mapping), [], [])
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
