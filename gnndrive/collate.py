"""A sample and its rows become the `Data` that PyTorch Geometric's NeighborLoader would have
yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnndrive import labels
from gnndrive.blocks import Allocate, empty_tensor
from gnndrive.devices.base import Device
from gnndrive.errors import ConfigError, StoreError
from gnndrive.records import Int32Array, Int64Array, Sample, Seeds, Subgraph
from gnndrive.store.format import torch_dtype

if TYPE_CHECKING:
    from gnndrive.store.reader import Store


BINARY = ("edge_label_index", "edge_label", "edge_label_time")
TRIPLET = ("src_index", "dst_pos_index", "dst_neg_index", "seed_time")
"""What PyG's samplers of edges say of a batch behind its input_id, without and with triplets."""


class Collate:
    """Makes batches of one loader.

    Args:
        store: where attributes other than the features come from, through its memory maps.
        features: the node attribute that comes through the feature buffer.
        transform: the user's, applied last.
        pin_memory: whether batches are pinned, where there is a CUDA device to pin for.
        feature_dtype: what features are delivered in; None: as they are stored. Integers are
            multiplied by the node attribute `x_scale`, a number or a row a node, if there is one.
    """

    def __init__(
        self,
        store: Store,
        features: str,
        transform: Callable[[Data], Any] | None,
        pin_memory: bool,
        feature_dtype: torch.dtype | None = None,
    ) -> None:
        self._store, self._features = store, features
        self._transform = transform
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._feature_dtype = feature_dtype
        self._maps: dict[str, torch.Tensor] = {}
        self._labels = labels.Labels(store)

    def __call__(
        self,
        seeds: Seeds,
        sample: Sample | Subgraph,
        rows: Mapping[str, torch.Tensor],
        empty: Allocate = np.empty,
        device: Device | None = None,
        where: torch.device | None = None,
    ) -> Any:
        """The batch.

        Args:
            seeds: the batch's seeds.
            sample: what was sampled around them.
            rows: the features by name, [nodes, *row], on the device.
            empty: where the batch's other arrays get their memory from.
            device: delivers the batch; None: it stays where it is.
            where: where it is moved if no device delivers it; None: nowhere.

        Returns:
            A Data with x, edge_index (int64 [2, edges]), every other attribute of the store, n_id,
            e_id (int64), num_sampled_nodes, num_sampled_edges, input_id, batch_size, and what the
            kind of sampling adds; or what the transform makes of it.
        """
        batch = Data()
        self._join_nodes(batch, sample.node, rows, empty)
        if isinstance(sample, Subgraph):
            self._join_output(batch, seeds, sample, empty)
        else:
            self._join_sample(batch, seeds, sample, empty)
        if not self._store.node_names:
            batch.num_nodes = len(sample.node)
        if self._pin_memory and all(value.device.type == "cpu" for value in rows.values()):
            batch = batch.pin_memory()
        if device is not None:
            batch = device.deliver(batch, rows.keys())
        elif where is not None:
            batch = batch.to(where)
        if self._feature_dtype is None and self._transform is None:
            return batch
        with nullcontext() if device is None else device.computing():
            self._convert(batch)
            return batch if self._transform is None else self._transform(batch)

    def _join_nodes(
        self, batch: Data, node: Int64Array, rows: Mapping[str, torch.Tensor], empty: Allocate
    ) -> None:
        """Attributes of the batch's nodes."""
        for name in self._store.node_names:
            given = rows.get(name)
            if given is None and name == labels.NAME:
                given = self._labels.pick(node, empty)
            if given is None:
                given = _picked(self._map(f"nodes/{name}"), node, empty)
            batch[name] = given
        if "n_id" not in self._store.node_names:
            batch.n_id = torch.from_numpy(node)

    def _join_edges(self, batch: Data, edge: Int64Array, empty: Allocate) -> None:
        """Attributes of the batch's edges, by their original numbers."""
        for name in self._store.edge_names:
            batch[name] = _picked(self._map(f"edges/{name}"), edge, empty)
        if "e_id" not in self._store.edge_names:
            batch.e_id = torch.from_numpy(edge)

    def _join_sample(self, batch: Data, seeds: Seeds, sample: Sample, empty: Allocate) -> None:
        edge_index = empty((2, sample.num_edges), np.int64)
        edge_index[0], edge_index[1] = sample.row, sample.col
        batch.edge_index = torch.from_numpy(edge_index)
        self._join_edges(batch, self._numbers(sample.edge, empty), empty)
        batch.num_sampled_nodes = list(sample.num_sampled_nodes)
        batch.num_sampled_edges = list(sample.num_sampled_edges)
        batch.input_id = torch.from_numpy(seeds.input_id)
        batch.batch_size = len(seeds.node)

    def _join_output(self, batch: Data, seeds: Seeds, sample: Subgraph, empty: Allocate) -> None:
        """What PyG's NodeLoader and LinkLoader make of a sampler's output."""
        out: SamplerOutput = sample.output
        batch.edge_index = torch.stack([out.row, out.col]).to(torch.int64)
        if out.edge is not None:  # both-way subgraphs have edges that are none of the graph's
            edge = out.edge.to(torch.int64).contiguous().numpy()
            if len(edge) and not 0 <= int(edge.min()) <= int(edge.max()) < self._store.num_edges:
                raise ConfigError(
                    f"neighbor_sampler= or transform_sampler_output= named edge {edge.min()} or "
                    f"{edge.max()}, and there are {self._store.num_edges}"
                )
            self._join_edges(batch, edge if sample.numbered else self._numbers(edge, empty), empty)
        if out.orig_row is not None and out.orig_col is not None:
            batch._orig_edge_index = torch.stack([out.orig_row, out.orig_col])
        said: dict[str, Any] = {
            "batch": out.batch,
            "num_sampled_nodes": out.num_sampled_nodes,
            "num_sampled_edges": out.num_sampled_edges,
            "input_id": out.metadata[0],
        }
        if not seeds.of_edges:
            said |= {"seed_time": out.metadata[1], "batch_size": len(out.metadata[0])}
        else:
            names = BINARY if len(out.metadata) == len(BINARY) + 1 else TRIPLET
            said |= dict(zip(names, out.metadata[1:], strict=True))
        for name, value in said.items():
            if value is not None:
                batch[name] = value
            elif name in batch:  # the store's attribute of that name is another thing
                del batch[name]

    def converted_bytes(self, name: str) -> int:
        """Bytes of a row of the features as they are delivered; 0: they are not converted."""
        dtype, (stored, shape) = self._feature_dtype, self.row_type(name)
        return 0 if dtype is None or dtype == stored else dtype.itemsize * prod(shape)

    def _convert(self, batch: Data) -> None:
        """Give the features the element type that they are delivered in."""
        name, dtype = self._features, self._feature_dtype
        stored = batch[name]
        if dtype is None or stored.dtype == dtype:
            return
        batch[name] = stored.to(dtype)
        scale = batch.get(f"{name}_scale")
        if scale is not None and not stored.is_floating_point():
            wide = [-1] + [1] * (stored.dim() - 1) if scale.dim() == 1 else scale.shape
            batch[name] *= scale.to(dtype).view(*wide)

    def row_type(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The element type and shape of a row of node attribute `name`."""
        file = self._store.table(name)
        return torch_dtype(file.dtype), file.row_shape

    def from_map(
        self, seeds: Seeds, sample: Sample | Subgraph, where: torch.device | None = None
    ) -> Any:
        """The batch with its features read through the memory map: for one batch, without a
        pipeline.
        """
        rows = {
            name: _picked(self._map(f"nodes/{name}"), sample.node, np.empty)
            for name in self._store.node_names
        }
        return self(seeds, sample, rows, where=where)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}

    def _numbers(self, position: Int32Array | Int64Array, empty: Allocate) -> Int64Array:
        """The numbers, in the original order, of the edges at these CSC positions, int64 [edges].

        Raises:
            StoreError: the store is damaged; a wrong number must not wrap around to another edge.
        """
        position = _wide(position, empty)
        edge_id: Any = self._store.edge_id
        if edge_id is None:
            return position
        # The positions are the sampler's and lie within the graph; "clip" spares a temporary.
        found = np.take(edge_id, position, out=empty(len(position), edge_id.dtype), mode="clip")
        edge = _wide(found, empty)
        if len(edge) and not (int(edge.min()) >= 0 and int(edge.max()) < self._store.num_edges):
            raise StoreError(
                f"{self._store.path}/graph/edge_id.npy names an edge that is not there: run "
                "`gnndrive verify` and import the store again"
            )
        return edge

    def close(self) -> None:
        """Let go of memory maps and labels; they come back when they are wanted."""
        self._maps.clear()
        self._labels.close()

    def _map(self, name: str) -> torch.Tensor:
        """The array as a mapped tensor, mapped once."""
        if name not in self._maps:
            self._maps[name] = self._store.tensor(name)
        return self._maps[name]


def _wide(numbers: Int32Array | Int64Array, empty: Allocate) -> Int64Array:
    """`numbers` as int64, in memory from `empty` if they are not."""
    if numbers.dtype == np.int64:
        return cast(Int64Array, numbers)
    wide: Int64Array = empty(len(numbers), np.int64)
    wide[:] = numbers
    return wide


def _picked(table: torch.Tensor, row: Int64Array, empty: Allocate) -> torch.Tensor:
    """`table[row]` in memory from `empty`."""
    out = empty_tensor(empty, (len(row), *table.shape[1:]), table.dtype)
    return torch.index_select(table, 0, torch.from_numpy(row), out=out)
