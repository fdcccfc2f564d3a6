"""PyG's `BidirectionalNeighborSampler`, which samples in both directions, without pyg-lib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_geometric.sampler import NeighborSampler as PyGNeighborSampler
from torch_geometric.sampler.base import SubgraphType

from gnndrive.pyg.sampler import NeighborSampler

try:
    from torch_geometric.sampler.neighbor_sampler import (
        BidirectionalNeighborSampler as _PyGBidirectional,
    )
except ImportError:  # PyG before 2.7 has no such sampler, so its users have no use for this one
    _PyGBidirectional = PyGNeighborSampler


class BidirectionalNeighborSampler(_PyGBidirectional):  # type: ignore[misc]
    """PyG's `BidirectionalNeighborSampler` for homogeneous graphs, without pyg-lib.

    It samples along edges and against them.

    Args:
        data: a Data or a (FeatureStore, GraphStore).
        num_neighbors: neighbours to sample for each node in each hop and direction.
        subgraph_type, *arguments, **kwargs: as `NeighborSampler`'s.

    Raises:
        RuntimeError: num_neighbors is a dict, which is for heterogeneous graphs.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: SubgraphType | str = "directional",
        *arguments: Any,
        **kwargs: Any,
    ) -> None:
        if isinstance(getattr(num_neighbors, "values", num_neighbors), Mapping):
            raise RuntimeError(
                "BidirectionalNeighborSampler samples homogeneous graphs: give num_neighbors as a "
                "list"
            )
        given = (data, num_neighbors, subgraph_type, *arguments)
        self.forward_sampler = NeighborSampler(*given, sample_direction="forward", **kwargs)
        self.backward_sampler = NeighborSampler(*given, sample_direction="backward", **kwargs)
        self.num_neighbors = num_neighbors
        self.subgraph_type = SubgraphType(subgraph_type)
