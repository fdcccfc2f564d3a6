"""`HGTLoader`: a drop-in replacement of PyTorch Geometric's loader of that name.

It samples with `HGTSampler` (`pyg/hgt_sampler.py`), without torch-sparse. For a store,
`StoreLoader` loads batches through GNNDrive's pipeline; for a HeteroData in memory PyG's class does
all else. When not to use it: for models that need a sample of each node's neighbours, because a
batch may have none of a node's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch_geometric.loader import HGTLoader as PyGHGTLoader
from torch_geometric.loader import NodeLoader

from gnndrive.common.errors import ConfigError
from gnndrive.loader.arguments import OnStats, Tuning
from gnndrive.loader.neighbor_loader import checked_data
from gnndrive.loader.seeds import checked_input_nodes, checked_node_type
from gnndrive.loader.store_loader import StoreLoader
from gnndrive.pyg.hgt_sampler import NEIGHBORS_MAX, HGTSampler
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.labor import Labor
from gnndrive.store.reader import Store
from gnndrive.strategies.base import Strategy


class HGTLoader(StoreLoader, PyGHGTLoader):  # type: ignore[misc]
    """Yields batches with about as many nodes of every type, and all edges among them.

    The sampler is that of the Heterogeneous Graph Transformer (Hu et al., WWW 2020): in each hop it
    draws so many nodes of each type among the in-neighbours of those drawn before, those with most
    connections most likely. The seeds come first; nodes are in the order in which they were drawn.

    Args:
        data: a heterogeneous store, or the name of a service; or a HeteroData in memory.
        num_samples: how many nodes to draw in each hop: a list for all node types, or a dict of one
            list for each node type.
        input_nodes: the seeds: a node type, or a pair (node type, ids or mask).
        is_sorted, transform, transform_sampler_output, filter_per_worker: as for `NeighborLoader`.
        memory, …, tuning: as for `NeighborLoader`; they need a store. `sampling` can only be
            "neighbor". With `memory` the plan counts the most edges that num_samples allows, 50 for
            each node and edge type.
        **kwargs: arguments of torch's DataLoader, and PyG's `input_time`, `input_id` and, in
            memory, `custom_cls`. Batches have the times as `seed_time`; sampling ignores them.

    Raises:
        ConfigError: an argument cannot work; the message says what to give.
        NotImplementedError: the data has no node types.
    """

    def __init__(
        self, data: Any, num_samples: Any, input_nodes: Any, is_sorted: bool = False,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        filter_per_worker: bool | None = None,
        *,
        memory: str | int | None = None, buffer: str | int | None = None, device: Any = "cpu",
        device_memory: str | int | None = None, feature_dtype: str | torch.dtype | None = None,
        attrs: Sequence[str] | None = None, pad: str | float | None = None,
        strategy: str | Strategy = "gnndrive", sampling: str | Labor = "neighbor",
        seed: int | None = None, ranks: Any = None, host_service: str | bool = "auto",
        trace: Any = None, on_stats: OnStats | None = None, stats_interval: float = 10.0,
        tuning: Tuning | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        _refuse_arguments(kwargs)
        data, own = checked_data(self, dict(locals()))
        workers = kwargs.get("num_workers") or 0
        sampler = HGTSampler(data, num_samples, is_sorted, share_memory=workers > 0)
        if not isinstance(data, Store):
            checked_node_type(data.node_types, input_nodes)
            NodeLoader.__init__(
                self, data, sampler, input_nodes, transform=transform,
                transform_sampler_output=transform_sampler_output,
                filter_per_worker=filter_per_worker, **kwargs,
            )  # fmt: skip
            return
        # Frameworks look for each argument in the attribute of its name.
        self.num_samples, self.input_nodes, self.is_sorted = num_samples, input_nodes, is_sorted
        self.transform, self.transform_sampler_output = transform, transform_sampler_output
        self.filter_per_worker, self.node_sampler = filter_per_worker, sampler
        self.num_neighbors, self.replace = [NEIGHBORS_MAX], False
        self.input_time = kwargs.pop("input_time", None)
        inputs = checked_input_nodes(data, input_nodes, self.input_time, kwargs.get("input_id"))
        subgraphs = SubgraphSampling(sampler, transform_sampler_output)
        self._open_store(data, inputs, subgraphs, own, kwargs)


def _refuse_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of NeighborLoader that say how other samplers draw."""
    for name in ("time_attr", "weight_attr", "replace", "disjoint"):
        if name in given:
            raise ConfigError(
                f"HGTLoader has no {name}=, because HGT samples without times, weights, "
                "replacement and trees: leave it out, or use NeighborLoader"
            )
