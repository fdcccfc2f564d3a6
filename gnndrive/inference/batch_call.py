"""`BatchCall`: calls a layer for one batch, with its tensors where and as the layer takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import return_free_memory
from gnndrive.common.records import EdgeKey, NodeKey, TableFile, ends_of
from gnndrive.inference.degrees import Normaliser, pads
from gnndrive.inference.edge_values import EdgeValues
from gnndrive.inference.layers import Layers
from gnndrive.inference.self_check import (
    REFUSALS,
    Given,
    is_close,
    is_telling,
    uses_more,
    widened,
)
from gnndrive.inference.subgraphs import OneHop
from gnndrive.inference.targets import TargetBatch
from gnndrive.store.format import torch_dtype
from gnndrive.store.reader import Store

SCALE = "x_scale"  # multiplies stored integers, as loaders do with feature_dtype=


class BatchCall:
    """Calls layers for batches, on the device `where`. `values` are attributes of edges by the name
    of the argument; they take `edge_bytes` for each edge of a batch. `normaliser` gives convs the
    weights of the whole graph."""

    def __init__(
        self,
        store: Store,
        layers: Layers,
        values: Mapping[str, EdgeValues],
        normaliser: Normaliser,
        where: torch.device,
    ) -> None:
        self._store, self._layers, self._values = store, layers, values
        self._normaliser, self._where = normaliser, where
        self._scales: dict[NodeKey, torch.Tensor] = {}
        floats = (each.dtype for each in layers.parameters if each.is_floating_point())
        self._dtype = next(floats, None)
        # Where a layer leaves out nodes that are no targets, edges into them are an IndexError on
        # the CPU, but on a GPU end the process's use of it.
        self._can_check = where.type == "cpu" or not layers.may_leave_out
        self._can_check &= not any(map(pads, layers.modules))  # warned of by convs_of
        self.edge_bytes = sum(2 * each.row_bytes + 8 for each in values.values())

    def of_layer(
        self, layer: int, type: NodeKey, files: Mapping[NodeKey, TableFile]
    ) -> Callable[[OneHop], torch.Tensor | None]:
        """A function that computes the rows of a batch's targets. `files` has the rows that the
        layer reads, by node type."""

        checked = not self._can_check

        def compute(batch: OneHop) -> torch.Tensor | None:
            nonlocal checked
            given = self._given(layer, type, batch, files)
            if checked or not is_telling(batch, type, self._store.nodes(type).num_nodes):
                rows = self._target_rows(layer, type, given)
                return None if rows is None else rows.detach().to("cpu")
            checked = True
            rows = self._target_rows(layer, type, given.copy())  # a layer may change what it gets
            if rows is None:
                return None
            rows = rows.detach().clone()  # and may return the same memory again
            # The holes that large copies leave would be added to what the next ones take.
            return_free_memory()
            self._check(layer, type, given, rows)
            return_free_memory()
            return rows.to("cpu")

        return compute

    def of_one_node(
        self, layer: int, type: NodeKey, files: Mapping[NodeKey, TableFile]
    ) -> torch.Tensor | None:
        """The row that a layer computes for a target of zeros without edges; else as `of_layer`."""
        rows = {
            each: torch.zeros(1, *file.row_shape, dtype=torch_dtype(file.dtype))
            for each, file in files.items()
        }
        batch = OneHop(TargetBatch(0, 1, {}), rows, dict.fromkeys(files, np.zeros(1, np.int64)), {})
        x = {each: self._rows(layer, each, batch, file) for each, file in files.items()}
        edge_index: dict[Any, Any] = {}
        values: dict[str, Any] = {argument: {} for argument in self._values}
        self._fill(x, edge_index, values)
        return self._target_rows(layer, type, Given(batch, x, edge_index, values))

    def _given(
        self, layer: int, type: NodeKey, batch: OneHop, files: Mapping[NodeKey, TableFile]
    ) -> Given:
        """The tensors of a batch, where the layer is."""
        x = {each: self._rows(layer, each, batch, files[each]) for each in files}
        edge_index = {key: ends.to(self._where) for key, ends in batch.edge_index.items()}
        values = {
            argument: {
                key: found.read(key, *batch.batch.edges[key]).to(self._where) for key in edge_index
            }
            for argument, found in self._values.items()
        }
        if type is not None:
            self._fill(x, edge_index, values)
        return Given(batch, x, edge_index, values)

    def _target_rows(self, layer: int, type: NodeKey, given: Given) -> torch.Tensor | None:
        """The rows that a layer computes for the targets; None: none of their type."""
        count = given.batch.batch.last - given.batch.batch.first
        self._normaliser.show(given.batch, given.edge_index, given.values.get("edge_weight", {}))
        made = self._call(layer, given.x, given.edge_index, count, given.values)
        return target_rows(made, type, count, layer)

    def _check(self, layer: int, type: NodeKey, given: Given, rows: torch.Tensor) -> None:
        """Refuse a layer that uses more of the graph than a batch has (self_check.py)."""
        try:
            wide = self._target_rows(layer, type, widened(given, type))
            if wide is None or is_close(rows, wide):
                return
            again = self._target_rows(layer, type, given)
        except REFUSALS:
            return  # it takes no further nodes or edges, so it cannot be tried
        if again is not None and is_close(rows, again):  # else it draws random numbers
            raise ConfigError(uses_more(layer))

    def _call(self, layer: int, x: Any, edge_index: Any, count: int, values: dict[str, Any]) -> Any:
        """Call a layer with tensors, or with dicts if the store is heterogeneous."""
        if not self._store.is_hetero:
            x, edge_index = x[None], edge_index[None]
            values = {argument: each[None] for argument, each in values.items()}
        if values and (conv := self._layers.takes_values(layer)) is not None:

            def add(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
                return args, kwargs | values

            # Before other hooks, because the normaliser's replaces edge_weight.
            with conv.register_forward_pre_hook(add, prepend=True, with_kwargs=True):
                return self._layers.call(layer, x, edge_index, count, {})
        return self._layers.call(layer, x, edge_index, count, values)

    def _rows(self, layer: int, type: NodeKey, batch: OneHop, file: TableFile) -> torch.Tensor:
        """A type's rows in a batch, in the dtype of the layers' parameters."""
        rows = batch.rows.get(type)
        if rows is None:
            rows = torch.empty((0, *file.row_shape), dtype=torch_dtype(file.dtype))
        moved = rows.to(self._where)
        if self._dtype is None or moved.dtype == self._dtype:
            return moved
        wide = moved.to(self._dtype)
        nodes = self._store.nodes(type)
        if layer == 0 and not moved.is_floating_point() and SCALE in nodes and len(rows):
            if type not in self._scales:
                self._scales[type] = nodes.tensor(SCALE)
            scale = self._scales[type][torch.from_numpy(batch.nodes[type])].to(wide)
            wide *= scale.view(*scale.shape, *[1] * (wide.dim() - scale.dim()))
        return wide

    def _fill(self, x: dict[Any, Any], edge_index: dict[Any, Any], values: dict[str, Any]) -> None:
        """Give a layer of a heterogeneous graph the other types too, without edges."""
        for edges in self._store.all_edges():
            key: EdgeKey = edges.type
            if key not in edge_index and set(ends_of(key)) <= set(x):
                edge_index[key] = torch.empty((2, 0), dtype=torch.int64, device=self._where)
                for argument, found in self._values.items():
                    values[argument][key] = found.read(key, 0, 0).to(self._where)


def target_rows(made: Any, type: NodeKey, count: int, layer: int) -> torch.Tensor | None:
    """The targets' rows [count, …] of what a layer returned: a tensor, or for a heterogeneous graph
    a dict of them; None: it makes no rows of this type. ConfigError: it returned something else."""
    rows = made
    if type is not None and isinstance(made, dict):
        rows = made.get(type)
        if rows is None:
            return None
    if not isinstance(rows, torch.Tensor) or rows.dim() < 1 or len(rows) < count:
        wanted = "a tensor" if type is None else "a dict with a tensor for each node type"
        shape = f" of shape {list(rows.shape)}" if isinstance(rows, torch.Tensor) else ""
        raise ConfigError(
            f"layer {layer + 1} returned {rows.__class__.__name__}{shape} for {count} targets: "
            f"return {wanted}, with a row for each node of x, or for each target"
        )
    return rows[:count]
