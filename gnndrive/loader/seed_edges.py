"""Checks of a link loader's arguments: the seed edges, and how negative edges are drawn.

`LinkNeighborLoader` calls `checked_negatives` and `checked_input_edges`. The ends of seed edges
are looked up batch by batch, by `GivenEnds` or `StoredEnds`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import NegativeSampling

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, Int64Array, TableFile
from gnndrive.loader.seed_nodes import checked_input_id
from gnndrive.pyg.choices import refuse_sparse
from gnndrive.sampling.schedules.base import InputEdges, digest
from gnndrive.store.format import torch_dtype
from gnndrive.store.mapped_rows import pick_rows
from gnndrive.store.reader import Store
from gnndrive.store.views import StoredEdges


def checked_negatives(
    neg_sampling: Any, ratio: float | None, label: torch.Tensor | None
) -> NegativeSampling | None:
    """Check `neg_sampling=` and `neg_sampling_ratio=`; returns None for no negative edges.

    Raises:
        ConfigError: PyG refuses the mode or the amount, or `label` is given for triplets.
    """
    try:
        if ratio is not None and ratio != 0.0:
            neg_sampling = NegativeSampling("binary", ratio)
        negatives: NegativeSampling | None = NegativeSampling.cast(neg_sampling)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"neg_sampling={neg_sampling!r} cannot be used ({error}): give 'binary', 'triplet', or "
            "torch_geometric.sampler.NegativeSampling(mode, amount) with an amount above 0"
        ) from None
    if negatives is not None and negatives.is_triplet() and label is not None:
        raise ConfigError(
            "edge_label= cannot be used with triplets: leave it out, and use the batch's "
            "src_index, dst_pos_index and dst_neg_index"
        )
    return negatives


def checked_input_edges(
    store: Store,
    edges: Any,
    label: torch.Tensor | None,
    time: torch.Tensor | None,
    negatives: NegativeSampling | None,
    input_id: Any = None,
) -> InputEdges:
    """Check `edge_label_index=`, `edge_label=`, `edge_label_time=` and `input_id=`.

    Args:
        store: the store that has the graph.
        edges: integers [2, edges], or None for all edges of the graph; of a heterogeneous store an
            edge type, or a pair (edge type, edges). A type may be short: (source, target).
        label: the labels of the edges [edges], or None.
        time: the times of the edges, integers [edges], or None.
        negatives: how negative edges are drawn, or None. Their label is 0, so labels that contain
            0 are increased by 1, as in PyG.
        input_id: a whole number for each edge, or None.

    Returns:
        The seed edges.

    Raises:
        ConfigError: an argument has another shape or dtype, an id is out of range, or there is no
            such edge type.
    """
    type, edges = _split_type(store, edges)
    refuse_sparse(edge_label_index=edges, edge_label=label, edge_label_time=time)
    graph = store.edges(type)
    count = graph.num_edges
    if edges is not None:
        edges = _checked_edges(torch.as_tensor(edges), graph)
        count = edges.shape[1]
    for name, value in (("edge_label", label), ("edge_label_time", time)):
        if value is not None and len(value) != count:
            raise ConfigError(
                f"{name} has {len(value)} entries for {count} edges: give one for each"
            )
    if label is not None:
        label = torch.as_tensor(label).cpu()
        if negatives is not None and negatives.is_binary() and len(label) and label.min() == 0:
            label = label + 1
    if time is not None:
        time = torch.as_tensor(time)
        if time.is_floating_point():
            raise ConfigError(f"edge_label_time is {time.dtype}: give whole numbers")
        time = time.to("cpu", torch.int64)
    ids = checked_input_id(input_id, count)
    if edges is None:
        return InputEdges(count, StoredEnds(graph), "all", label, time, type=type, input_id=ids)
    ends = GivenEnds(edges)
    return InputEdges(count, ends, digest(edges), label, time, edges.nbytes, type, ids)


def _split_type(store: Store, edges: Any) -> tuple[EdgeKey, Any]:
    """Split `edge_label_index=` into the edge type (None in a homogeneous store) and the edges."""
    if not store.is_hetero:
        return None, edges
    key = store.info.types.edge_key
    names = edges if isinstance(edges, tuple | list) and len(edges) in (2, 3) else ()
    if isinstance(edges, str) or (names and all(isinstance(each, str) for each in names)):
        return key(edges), None
    if len(names) == 2 and isinstance(names[0], str | tuple):
        return key(names[0]), names[1]
    raise ConfigError(
        "this store is heterogeneous: give edge_label_index as an edge type, or as (type, edges); "
        f"the types are {', '.join(map(str, store.edge_types))}"
    )


def _checked_edges(edges: torch.Tensor, graph: StoredEdges) -> torch.Tensor:
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point():
        raise ConfigError(
            f"edge_label_index is {edges.dtype} {list(edges.shape)}: give the source and target of "
            "each edge as integers, [2, edges]"
        )
    edges = edges.to("cpu", torch.int64, copy=True).contiguous()
    for ends, nodes in zip(edges, (graph.source, graph.target), strict=True):
        if ends.numel() and not (int(ends.min()) >= 0 and int(ends.max()) < nodes.num_nodes):
            last = nodes.num_nodes - 1
            raise ConfigError(
                f"edge_label_index has ids outside 0 … {last}: give ids in that range"
            )
    return edges


class GivenEnds:
    """Ends of the seed edges that the user gave, int64 [2, edges]."""

    def __init__(self, edges: torch.Tensor) -> None:
        self._edges = edges

    def __call__(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Source, target and position of the seed edges at `position`, each int64 [n]."""
        return self._edges[0, position], self._edges[1, position], position


class StoredEnds:
    """Ends of the graph's own edges, read from the memory-mapped adjacency."""

    def __init__(self, graph: StoredEdges) -> None:
        self._graph = graph

    def __call__(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Source, target and original number of the edges at CSC positions, each int64 [n]."""
        at, graph = position.numpy(), self._graph
        source = _picked(graph.indices_file, graph.indices, at)
        target = np.searchsorted(graph.index_pointers, at, side="right") - 1
        number = position
        if graph.edge_id_file is not None and graph.edge_id is not None:
            number = _picked(graph.edge_id_file, graph.edge_id, at)
        return source, torch.from_numpy(target), number


def _picked(file: TableFile, mapped: npt.NDArray[Any], at: Int64Array) -> torch.Tensor:
    out = torch.empty(len(at), dtype=torch_dtype(file.dtype))
    return pick_rows(file, mapped, at, out).to(torch.int64)
