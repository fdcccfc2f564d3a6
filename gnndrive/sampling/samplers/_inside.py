"""`InsideDraws`: what the samplers have in common that draw from the graph of a window.

`inside.py` draws around nodes; `gnndrive/pyg/links_inside.py` draws around edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, Sample
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.labor import DRAWN_APART, Sampling
from gnndrive.sampling.samplers._uniform import UniformDraws
from gnndrive.sampling.samplers.base import Bounds, position_dtype
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.window_graph import WindowGraph
from gnndrive.store.partitioned.format import TABLE


class InsideDraws(UniformDraws):
    """Draws `num_neighbors[h]` in-neighbours of each node of hop h among the nodes of the window.

    What is drawn for a node depends on the key, its id in the store, and its in-edges within the
    window, not on local ids: two windows with the same nodes give the same sample.
    """

    def __init__(
        self, num_neighbors: Sequence[int], replace: bool = False, empty: Allocate = np.empty,
        limits: Bounds | None = None, window_nodes: int | None = None,
        sampling: Sampling = DRAWN_APART,
    ) -> None:  # fmt: skip
        super().__init__(num_neighbors, replace, empty, limits, sampling)
        self._window_nodes = window_nodes

    def window(self, topologies: Sequence[Topology]) -> WindowGraph:
        """The graph of a batch's window, of what `Sampler.sample` gets."""
        (graph,) = topologies
        if not isinstance(graph, WindowGraph):
            raise ConfigError(
                f"the sampler {self.name!r} draws inside windows, and {graph.path} is a whole "
                "graph: use a strategy whose schedule has windows with partitions, such as "
                "'hierbatching', or another sampler"
            )
        return graph

    def sample_window(self, seeds: Int64Array, key: int, graph: WindowGraph) -> Sample:
        """Sample around nodes of a window, by their ids in the store; see `sample_nodes`."""
        drawn = self.sample_nodes(graph.to_local(seeds), key, graph)
        return Sample(
            self._picked(graph.store_ids, drawn.node, np.int64), drawn.row, drawn.colptr,
            self._picked(graph.positions, drawn.edge, position_dtype(graph.store_edges)),
            drawn.num_sampled_nodes, drawn.num_sampled_edges,
            rows={TABLE: self._picked(graph.new_ids, drawn.node, np.int64)},
        )  # fmt: skip

    def _picked(
        self, numbers: npt.NDArray[Any], places: npt.NDArray[Any], dtype: type[Any]
    ) -> npt.NDArray[Any]:
        out = self._empty(len(places), dtype)
        out[:] = numbers[places]
        return out

    def bounds(
        self, batch_size: int, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int],
        degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """See `Sampler.bounds`; no more nodes than a window has."""
        if self._window_nodes is not None:
            nodes = {type: min(count, self._window_nodes) for type, count in nodes.items()}
        return super().bounds(batch_size, nodes, edges, degrees)
