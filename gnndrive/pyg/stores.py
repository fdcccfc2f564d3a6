"""A store as PyTorch Geometric's FeatureStore and GraphStore, for PyG's own loaders,
LightningNodeData, and samplers that take such a pair.

    features, graph = FeatureStore(store), GraphStore(store)
    NodeLoader((features, graph), node_sampler=NeighborSampler(store, [10, 10]), ...)

Features are read from disk on demand, several attributes of a batch at once, at the ring's full
depth. Nothing is kept between batches, so `gnndrive.NeighborLoader` is faster. The adjacency is
memory-mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import EdgeAttr, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import Int64Array
from gnndrive.disk.row_reader import RowReader
from gnndrive.store.reader import Store
from gnndrive.store.types import array_name
from gnndrive.store.views import StoredEdges, StoredNodes

READ_ONLY = "a store is read-only: write another with gnndrive.write_store or gnndrive.StoreWriter"


class FeatureStore(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """A store's attributes, by group_name, attr_name and index.

    group_name is a node or edge type, or None for the nodes of a homogeneous store. The index of an
    edge attribute is the edge's original number, `e_id`.

    Args:
        store: from `gnndrive.open`.
        engine, io_depth, gap: as `gnndrive.NeighborLoader`'s.
    """

    def __init__(
        self,
        store: Store,
        engine: str = "auto",
        io_depth: int = 128,
        gap: str | int | None = None,
    ) -> None:
        super().__init__()
        self.store, self._read_options = store, (engine, io_depth, gap)
        self._rows = RowReader(store, engine, io_depth, gap)

    async def aget_tensor(self, attr: TensorAttr) -> Tensor:
        """Await rows of one attribute, [n, *row], as `get_tensor` returns them."""
        return (await self.amulti_get_tensor([attr]))[0]

    async def amulti_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[Tensor]:
        """Await rows of several attributes, read at once, as `multi_get_tensor` returns them."""
        whole = [self._whole(attr) for attr in attrs]
        read = await self._rows.aread(self._requests(attrs))
        return _merged(whole, read)

    def close(self) -> None:
        """Wait for reads under way and free everything; idempotent."""
        self._rows.close()

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[Tensor]:
        whole = [self._whole(attr) for attr in attrs]
        return _merged(whole, self._rows.read(self._requests(attrs)))

    def _whole(self, attr: TensorAttr) -> Tensor | None:
        """All rows, memory-mapped, if the attribute has no index."""
        view = self._view(attr)
        return view.tensor(attr.attr_name) if attr.index is None else None

    def _requests(self, attrs: Sequence[TensorAttr]) -> list[tuple[str, Int64Array]]:
        requests = []
        for attr in attrs:
            if attr.index is not None:
                view = self._view(attr)
                rows = _row_numbers(attr.index, view.table(attr.attr_name).row_count)
                requests.append((view.name_of(attr.attr_name), rows))
        return requests

    def _views(self) -> list[StoredNodes | StoredEdges]:
        """The nodes and edges whose attributes group and name identify."""
        named = [edges for edges in self.store.all_edges() if edges.type is not None]
        return [*self.store.all_nodes(), *named]

    def _view(self, attr: TensorAttr) -> StoredNodes | StoredEdges:
        """The nodes or edges of an attribute's group."""
        for view in self._views():
            if view.type == attr.group_name and attr.attr_name in view.names:
                return view
        names = [name for view in self._views() for name in view.names]
        known = "; ".join(
            f"{', '.join(view.names) or 'none'} of {view.type}" for view in self._views()
        )
        raise KeyError(
            f"{self.store.path} has no attribute {attr.attr_name!r} of {attr.group_name!r}"
            f"{did_you_mean(attr.attr_name, names)}; it has {known}"
        )

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        file = self._view(attr).table(attr.attr_name)
        return (file.row_count, *file.row_shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """List every attribute."""
        return [TensorAttr(view.type, name, None) for view in self._views() for name in view.names]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise ConfigError(READ_ONLY)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise ConfigError(READ_ONLY)

    def __reduce__(self) -> Any:
        return (type(self), (self.store, *self._read_options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.store.path)!r})"


class GraphStore(torch_geometric.data.GraphStore):  # type: ignore[misc]
    """A store's adjacency by edge type (None in a homogeneous store), as CSC.

    Args:
        store: from `gnndrive.open`.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """List every edge type."""
        found = []
        for edges in self.store.all_edges():
            size = (edges.source.num_nodes, edges.target.num_nodes)
            found.append(EdgeAttr(edges.type, EdgeLayout.CSC, True, size))
        return found

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        known = edge_attr.edge_type in self.store.info.types.edges
        if not known or edge_attr.layout != EdgeLayout.CSC:
            return None
        names = (array_name("graph", edge_attr.edge_type, each) for each in ("indices", "indptr"))
        row, colptr = (self.store.tensor(name) for name in names)
        return row, colptr

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise ConfigError(READ_ONLY)

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise ConfigError(READ_ONLY)

    def __reduce__(self) -> Any:
        return (type(self), (self.store,))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.store.path)!r})"


def _row_numbers(index: Any, count: int) -> Int64Array:
    """PyG's index (numbers, a mask or a slice) as row numbers, int64 [n]."""
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    index = torch.as_tensor(index).cpu()
    if index.dtype == torch.bool:
        index = index.nonzero()
    numbers: Int64Array = index.reshape(-1).to(torch.int64).numpy()
    return np.where(numbers < 0, numbers + count, numbers)


def _merged(whole: Sequence[Tensor | None], read: Sequence[Tensor]) -> list[Tensor]:
    """Replace each None of `whole` with the next tensor of `read`."""
    rest = iter(read)
    return [next(rest) if each is None else each for each in whole]
