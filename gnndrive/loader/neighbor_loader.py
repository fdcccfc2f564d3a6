"""`NeighborLoader` and `LinkNeighborLoader`: PyTorch Geometric's loaders of those names.

What their data is decides: a store on disk is loaded from by GNNDrive's pipeline
(`gnndrive/loader/store_loader.py`); data in memory by PyG's own class, with gnndrive's sampler in
place of pyg-lib's. Both are `torch.utils.data.DataLoader`s, so that frameworks which rebuild or
inspect loaders find what they expect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.loader import LinkNeighborLoader as PyGLinkNeighborLoader
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

from gnndrive.common.errors import ConfigError
from gnndrive.loader.arguments import (
    OWN_ARGUMENTS,
    PYG_ARGUMENTS,
    PYG_LINK_ARGUMENTS,
    checked_input_nodes,
    checked_neighbors,
    is_plain,
    refuse_own,
)
from gnndrive.loader.seed_edges import checked_input_edges, checked_negatives
from gnndrive.loader.store_loader import StoreLoader
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.store.reader import Store


class NeighborLoader(StoreLoader, PyGNeighborLoader):  # type: ignore[misc]
    """Samples neighbourhoods around nodes, of a graph on disk or in memory.

    The arguments up to `directed` and those in `kwargs` are PyG's and torch's; those that are not
    built yet for stores raise NotImplementedError with their name. Those from `memory` on are for
    stores.

    Args:
        data: a store, from `gnndrive.open`; or, in memory, PyG's Data, HeteroData or (FeatureStore,
            GraphStore): then it is PyG's own loader with gnndrive's sampler.
        num_neighbors: neighbours to sample for each node in each hop; -1: all; of a heterogeneous
            graph a list for all edge types, or a dict by edge type.
        input_nodes: seeds: ids (int64), a mask (bool [num_nodes]) or None for all nodes; of a
            heterogeneous graph a node type, or (type, one of them).
        input_time: the seeds' times, int64 [seeds].
        replace: whether to sample with replacement.
        subgraph_type: "directional", "bidirectional" or "induced".
        disjoint: whether each seed has a subgraph of its own.
        temporal_strategy: "uniform" or "last", of what is not later than the seed.
        time_attr, weight_attr: attributes that neighbours are drawn by.
        transform: applied to each batch.
        transform_sampler_output: applied to what was sampled, before features are joined to it.
        is_sorted: whether edges in memory are sorted by column already.
        filter_per_worker: whether features in memory are picked in torch's worker processes.
        neighbor_sampler: samples instead of gnndrive's `NeighborSampler`.
        directed: deprecated by PyG: False is subgraph_type="induced".
        memory: what loading may use in all, bytes or text ("8GB"); see `plan`.
        buffer: the feature buffer's size, bytes or text; by default what `memory` leaves.
        device: where the feature buffer and the batches live: "cpu", or "cuda", which one too.
        device_memory: what loading may use of a GPU's memory, bytes or text; by default what
            training leaves: after a few batches through a small buffer it is measured, and the
            epoch goes on through a large one (half of what is free if not in_order).
        feature_dtype: what x is delivered in, converted on the device, such as "float32" for rows
            stored as float16, bfloat16, or int8 with a node attribute `x_scale`.
        strategy: the published design to run, see `gnndrive.strategies`.
        topology: where the adjacency is: "resident" in memory, "mmap" in the page cache, "direct"
            on disk; "auto": by the memory there is, see `gnndrive.sampling.graph`.
        neighbour_cache: what "direct" keeps of the adjacency in memory, bytes or text.
        engine: "uring", "threads" or "auto": io_uring where it is allowed.
        io_depth: reads in flight at once.
        gap: rows with at most so many unwanted bytes between them on disk are read as one; 0: only
            rows that share a sector or touch, as in the paper. By default what a request costs in
            bytes on this disk, if `gnndrive bench disk` has measured it, else 8192.
        policy: what leaves the feature buffer first: "lru", as in the paper; "belady", what the
            queued samples want last; "auto": belady, unless the buffer holds everything.
        sweep: batches read in one sorted pass, if they wait already; "auto": as many as the buffer
            has room for, up to four, or one where it holds everything. 1 is the paper.
        samplers, extractors: samples that are drawn at once, with "direct" in rounds that read
            together, and tasks that extract; `num_workers`, if positive, sets `samplers`.
        extracting_queue, training_queue: bounds of the two queues, in batches.
        seed: makes every epoch's batches reproducible; by default drawn from `generator` at each
            `iter`, as torch does.
        **kwargs: torch's DataLoader arguments: batch_size, shuffle, drop_last, sampler, generator,
            …

    Raises:
        ConfigError: an argument cannot work.
        NotImplementedError: an argument that is not built yet; the message names it.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        memory: str | int | None = None,
        buffer: str | int | None = None,
        device: str | torch.device = "cpu",
        device_memory: str | int | None = None,
        feature_dtype: str | torch.dtype | None = None,
        strategy: str = "gnndrive",
        topology: str = "auto",
        neighbour_cache: str | int | None = None,
        engine: str = "auto",
        io_depth: int = 128,
        gap: str | int | None = None,
        policy: str = "auto",
        sweep: str | int = "auto",
        samplers: int = 4,
        extractors: int = 4,
        extracting_queue: int = 6,
        training_queue: int = 4,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        named = dict(locals())
        own = {name: named[name] for name in OWN_ARGUMENTS}
        if not isinstance(data, Store):
            refuse_own(data, own)
            self.__dict__.update(own)
            PyGNeighborLoader.__init__(
                self, data, num_neighbors, input_nodes, input_time,
                time_attr=time_attr,
                transform=transform,
                transform_sampler_output=transform_sampler_output,
                filter_per_worker=filter_per_worker,
                neighbor_sampler=neighbor_sampler or _sampler(named),
                **kwargs,
            )  # fmt: skip
            return
        given = {name: named[name] for name in PYG_ARGUMENTS}
        if input_time is not None and time_attr is None:
            raise ConfigError("input_time= is given and time_attr= is not: give both")
        self.__dict__.update(given)  # frameworks look for arguments under their own names
        self.num_neighbors, self.replace = checked_neighbors(data, num_neighbors), replace
        self.transform = transform
        inputs = checked_input_nodes(data, input_nodes, input_time)
        subgraphs = None
        if data.is_hetero or not is_plain(given):
            named["num_neighbors"] = self.num_neighbors
            subgraphs = SubgraphSampling(
                neighbor_sampler or _sampler(named), transform_sampler_output
            )
        self._open_store(data, inputs, subgraphs, own, kwargs)


class LinkNeighborLoader(StoreLoader, PyGLinkNeighborLoader):  # type: ignore[misc]
    """Samples neighbourhoods around edges, of a graph on disk or in memory.

    Args:
        data: as `NeighborLoader`'s.
        num_neighbors: as `NeighborLoader`'s.
        edge_label_index: the seed edges, int64 [2, edges]; None: all, of a store in the order in
            which they lie there, `input_id` being their original numbers; heterogeneous: an edge
            type, or an edge type and edges.
        edge_label: their labels [edges].
        edge_label_time: their times, int64 [edges]; given together with `time_attr`.
        replace, subgraph_type, disjoint, temporal_strategy: as `NeighborLoader`'s.
        neg_sampling: PyG's NegativeSampling, its mode, or a dict of its arguments.
        neg_sampling_ratio: binary negatives for each edge.
        time_attr, …, directed: as `NeighborLoader`'s.
        memory, …, seed: as `NeighborLoader`'s, for stores.
        **kwargs: torch's DataLoader arguments.

    Raises:
        ConfigError, ValueError: arguments that contradict each other.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        edge_label_time: torch.Tensor | None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        memory: str | int | None = None,
        buffer: str | int | None = None,
        device: str | torch.device = "cpu",
        device_memory: str | int | None = None,
        feature_dtype: str | torch.dtype | None = None,
        strategy: str = "gnndrive",
        topology: str = "auto",
        neighbour_cache: str | int | None = None,
        engine: str = "auto",
        io_depth: int = 128,
        gap: str | int | None = None,
        policy: str = "auto",
        sweep: str | int = "auto",
        samplers: int = 4,
        extractors: int = 4,
        extracting_queue: int = 6,
        training_queue: int = 4,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        named = dict(locals())
        own = {name: named[name] for name in OWN_ARGUMENTS}
        labelled = edge_label_index, edge_label, edge_label_time
        if not isinstance(data, Store):
            refuse_own(data, own)
            self.__dict__.update(own)
            PyGLinkNeighborLoader.__init__(
                self, data, num_neighbors, *labelled,
                neg_sampling=neg_sampling, neg_sampling_ratio=neg_sampling_ratio,
                time_attr=time_attr,
                transform=transform,
                transform_sampler_output=transform_sampler_output,
                filter_per_worker=filter_per_worker,
                neighbor_sampler=neighbor_sampler or _sampler(named),
                **kwargs,
            )  # fmt: skip
            return
        if (edge_label_time is None) != (time_attr is None):
            raise ConfigError("edge_label_time= and time_attr= go together: give both, or neither")
        self.__dict__.update({name: named[name] for name in PYG_LINK_ARGUMENTS})
        self.num_neighbors = named["num_neighbors"] = checked_neighbors(data, num_neighbors)
        self.replace, self.transform = replace, transform
        self.neg_sampling = checked_negatives(neg_sampling, neg_sampling_ratio, edge_label)
        inputs = checked_input_edges(data, *labelled, self.neg_sampling)
        sampler = neighbor_sampler or _sampler(named)
        subgraphs = SubgraphSampling(sampler, transform_sampler_output, self.neg_sampling)
        self._open_store(data, inputs, subgraphs, own, kwargs)


def _sampler(named: dict[str, Any]) -> NeighborSampler:
    """The sampler of a loader with these arguments."""
    same = (
        "data", "num_neighbors", "subgraph_type", "replace", "disjoint", "temporal_strategy",
        "time_attr", "weight_attr", "is_sorted", "directed",
    )  # fmt: skip
    workers = named["kwargs"].get("num_workers") or 0
    return NeighborSampler(**{name: named[name] for name in same}, share_memory=workers > 0)
