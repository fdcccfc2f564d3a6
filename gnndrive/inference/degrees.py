"""The normalisation of GCN by the whole graph's degrees, for convs that see one batch at a time.

`GCNConv` divides a message by the roots of its source's and its target's degrees, which it counts
in the edges that it is given. In a batch these are the targets' in-edges, so the degrees of other
nodes would be wrong, and results would depend on the batches. So degrees are counted once in the
whole graph, 4 bytes a node, and the conv is given the finished weights.

Convs that use other nodes' degrees in another way are refused.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch_geometric import nn

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, Int64Array, ends_of
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.inference.edge_values import EdgeValues
from gnndrive.inference.subgraphs import OneHop
from gnndrive.store.views import StoredEdges

NODE_BYTES = 16  # for each node while degrees are counted; 4 of them stay
NORMALISED = (nn.GCNConv, nn.GCN2Conv, nn.LGConv)
BEYOND = (nn.GatedGraphConv, nn.DirGNNConv, nn.HypergraphConv, nn.GPSConv)  # of several hops
PADDED = (
    nn.GRUAggregation, nn.LCMAggregation, nn.LSTMAggregation, nn.PatchTransformerAggregation,
)  # fmt: skip
OF_DEGREES = ("gcn_norm", "get_laplacian")

Form = tuple[EdgeKey, bool, bool]  # an edge type, whether self-loops are added, "improved"


def convs_of(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """The convs that need `Normaliser`; ConfigError: one needs more of the graph than a batch
    has."""
    found = []
    for conv in (each for module in modules for each in module.modules()):
        several = isinstance(conv, nn.AntiSymmetricConv) and conv.num_iters > 1
        if several or isinstance(conv, BEYOND):
            raise ConfigError(
                f"{type(conv).__name__} needs more than its targets' in-edges and the rows at "
                "their ends, and inference gives a layer nothing else: use a conv of one hop, or a "
                "loader's batches"
            )
        if isinstance(conv, PADDED):
            warnings.warn(
                f"{type(conv).__name__} pads the neighbours of all targets to the most that one of "
                "them has, and reads the padding too: its rows depend on which targets are "
                "computed together, in PyG as well; mean, max, sum and softmax do not",
                stacklevel=2,
            )
        if not isinstance(conv, nn.MessagePassing):
            continue
        if conv.flow != "source_to_target":
            raise ConfigError(
                f"{type(conv).__name__} has flow={conv.flow!r}, and inference gives a layer the "
                "in-edges of its targets: reverse the edges when the store is made, and use "
                "flow='source_to_target'"
            )
        if isinstance(conv, NORMALISED):
            if conv.normalize:
                found.append(conv)
            continue
        home = vars(sys.modules[type(conv).__module__])
        if any(name in home for name in OF_DEGREES):
            raise ConfigError(
                f"{type(conv).__name__} uses the degrees of other nodes than its targets, or "
                "several hops at once, and inference sees the in-edges of one batch: use GCNConv, "
                "or compute the weights before, and use a conv that takes them"
            )
    return found


def pads(module: torch.nn.Module) -> bool:
    """Whether a module has an aggregation that reads its padding."""
    return any(isinstance(each, PADDED) for each in module.modules())


class Normaliser:
    """Gives convs, as `convs_of` returned them, the weights that they would compute in the whole
    graph. `weights` are those of the edges; None: all are 1."""

    def __init__(
        self, convs: list[Any], edges: Iterable[StoredEdges], weights: EdgeValues | None
    ) -> None:
        self._convs, self._weights = convs, weights
        self._edges = {each.type: each for each in edges}
        self._roots: dict[Form, torch.Tensor] = {}
        self._batch: OneHop | None = None
        self._types: dict[int, EdgeKey] = {}
        self._given: dict[EdgeKey, torch.Tensor] = {}

    def show(
        self, batch: OneHop, edge_index: Mapping[EdgeKey, torch.Tensor],
        weights: Mapping[EdgeKey, torch.Tensor],
    ) -> None:  # fmt: skip
        """Say for which batch, and with which tensors, layers are called next."""
        self._batch, self._given = batch, dict(weights)
        self._types = {id(tensor): key for key, tensor in edge_index.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While this lasts, the convs get their weights from here."""
        hooks = [
            each.register_forward_pre_hook(self._before, with_kwargs=True) for each in self._convs
        ]
        try:
            for conv in self._convs:
                conv.normalize = False
            yield
        finally:
            for conv in self._convs:
                conv.normalize = True
            for hook in hooks:
                hook.remove()
            self._batch = None

    def _before(self, conv: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Replace `edge_index` and `edge_weight` in a conv's arguments."""
        given = inspect.signature(conv.forward).bind(*args, **kwargs)
        edge_index = given.arguments["edge_index"]
        if id(edge_index) not in self._types:
            raise ConfigError(
                f"{type(conv).__name__} was called with other edges than the layer was given: give "
                "it edge_index as it is, or compute its weights yourself and make it with "
                "normalize=False"
            )
        key = self._types[id(edge_index)]
        source, target = ends_of(key)
        if source != target:
            raise ConfigError(
                f"{type(conv).__name__} is for edges within one type of nodes, not for {key}"
            )
        loops = bool(getattr(conv, "add_self_loops", False))
        # As in PyG, "improved" has no effect on edges without weights.
        improved = bool(getattr(conv, "improved", False)) and self._weights is not None
        form = key, loops, improved
        rows = given.arguments["x"]
        edges, weight = self._normalised(form, edge_index)
        given.arguments["edge_index"] = edges
        given.arguments["edge_weight"] = weight.to(rows.dtype)
        return given.args, given.kwargs

    def _normalised(
        self, form: Form, edge_index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch's edges, with self-loops of its targets if asked for, and their weights."""
        assert self._batch is not None
        key, loops, improved = form
        where, count = edge_index.device, self._batch.batch.last - self._batch.batch.first
        if key not in self._batch.batch.edges:  # edges into other nodes than the targets: none
            return edge_index, torch.ones(0, device=where)
        if form not in self._roots:
            self._roots[form] = self._count(key, loops, 2.0 if improved else 1.0)
        source, target = edge_index
        weight = self._given.get(key)
        if weight is None:
            weight = torch.ones(len(source), device=where)
        weight = weight.view(-1).to(torch.float32)
        if loops:
            own, other = source == target, source != target
            looped = torch.full((count,), 2.0 if improved else 1.0, device=where)
            looped[target[own]] = weight[own]
            ends = torch.arange(count, device=where)
            weight = torch.cat([weight[other], looped])
            source, target = torch.cat([source[other], ends]), torch.cat([target[other], ends])
        nodes = torch.from_numpy(self._batch.nodes[ends_of(key)[0]])
        root = self._roots[form][nodes].to(where)
        return torch.stack([source, target]), root[source] * weight * root[target]

    def _count(self, key: EdgeKey, loops: bool, fill: float) -> torch.Tensor:
        """1 / the root of each node's degree, float32 [nodes]; 0 if it has none."""
        view = self._edges[key]
        pointers = view.index_pointers
        degree = np.zeros(view.target.num_nodes, np.float64)
        looped = np.full(len(degree) if loops else 0, fill, np.float32)
        with SequentialReader(view.indices_file) as indices:
            for first, sources in indices.stretches():
                target = targets_of(pointers, first, first + len(sources))
                weight = None
                if self._weights is not None:
                    weight = self._weights.read(key, first, first + len(sources)).view(-1).numpy()
                if loops:
                    own = sources == target
                    looped[target[own]] = 1 if weight is None else weight[own]
                    target = target[~own]
                    weight = None if weight is None else weight[~own]
                if len(target):  # they ascend
                    starts = np.flatnonzero(np.diff(target, prepend=-1))
                    if weight is None:
                        counts = np.diff(starts, append=len(target))
                    else:
                        counts = np.add.reduceat(weight.astype(np.float64), starts)
                    degree[target[starts]] += counts
        if loops:
            degree += looped
            del looped
        with np.errstate(divide="ignore", invalid="ignore"):
            np.power(degree, -0.5, out=degree, where=degree != 0)
        root = degree.astype(np.float32)
        return torch.from_numpy(root)


def targets_of(pointers: Any, first: int, last: int) -> Int64Array:
    """The targets of the edges at the CSC positions [first, last), int64."""
    ends = np.array([first, last], pointers.dtype)  # of another dtype, all pointers were copied
    low = int(np.searchsorted(pointers, ends[0], "right")) - 1
    high = int(np.searchsorted(pointers, ends[1], "left"))
    bounds = np.clip(pointers[low : high + 1].astype(np.int64), first, last)
    return np.repeat(np.arange(low, high), np.diff(bounds))
