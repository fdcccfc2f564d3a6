"""`NeighborLoader` and `LinkNeighborLoader`: drop-in replacements of PyTorch Geometric's loaders.

If `data` is a store, the constructor checks the arguments and `StoreLoader` (`store_loader.py`)
loads batches through GNNDrive's pipeline. If `data` is in memory, PyG's own class does it, with
gnndrive's sampler in place of pyg-lib's; where it can, gnndrive joins a batch's rows and makes
several batches at once (`in_memory.py`). Both are `torch.utils.data.DataLoader`s, because
frameworks such as Lightning inspect and rebuild those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch_geometric.loader import LinkNeighborLoader as PyGLinkNeighborLoader
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.typing import EdgeType

from gnndrive.common.errors import ConfigError
from gnndrive.host.connect import opened
from gnndrive.loader.arguments import (
    OWN_ARGUMENTS,
    PYG_ARGUMENTS,
    PYG_LINK_ARGUMENTS,
    OnStats,
    Tuning,
    checked_neighbors,
    is_plain,
    refuse_old_names,
    refuse_own,
    refuse_unknown,
)
from gnndrive.loader.seeds import checked_input_edges, checked_input_nodes, checked_negatives
from gnndrive.loader.store_loader import StoreLoader
from gnndrive.pyg.conversions import with_edge_index_in_memory
from gnndrive.pyg.in_memory import RowsInMemory
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.pyg.seed_edges import excluded_edges, excluded_in_memory
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.labor import Labor
from gnndrive.store.reader import Store
from gnndrive.strategies.base import Strategy


class NeighborLoader(StoreLoader, PyGNeighborLoader):  # type: ignore[misc]
    """Yields batches: seed nodes, the neighbourhoods sampled around them, and their features.

    The arguments up to `directed` and those in `kwargs` are PyG's and torch's. The arguments from
    `memory` on are gnndrive's; they need a store. Sizes are bytes or a text such as "8GB".

    Args:
        data: a store from `gnndrive.open` or `gnndrive.connect`; or its path, or the name of a
            service, such as "gnndrive://papers100M", which is opened; or data in memory (PyG's
            Data, HeteroData or a pair of FeatureStore and GraphStore), for which this is PyG's
            loader with gnndrive's sampler. A sparse `adj_t` of torch in place of edge_index becomes
            edges as in `gnndrive.from_data`; transform=ToSparseTensor() makes batch.adj_t.
        num_neighbors: how many neighbours to sample for each node, a number for each hop; -1: all
            of them. For a heterogeneous graph: such a list for all edge types, or a dict of one
            list for each edge type.
        input_nodes: the seeds: node ids (integers [seeds]), a mask (bool [num_nodes]) or None for
            all nodes. For a heterogeneous graph: a node type, or a pair (node type, ids or mask).
        input_time: the time of each seed, integers [seeds]; needs `time_attr`.
        replace: whether to sample with replacement.
        subgraph_type: "directional" (edges point towards the seeds), "bidirectional" (also their
            reverse edges) or "induced" (all edges between the sampled nodes).
        disjoint: whether each seed gets a subgraph of its own.
        temporal_strategy: which neighbours to sample of those that are not later than the seed:
            "uniform" (random ones) or "last" (the latest).
        time_attr: the name of the node or edge attribute that holds times, or None.
        weight_attr: the name of the edge attribute that holds sampling weights, or None; edges of
            weight 0 are never drawn.
        transform: a function applied to each batch, or None.
        transform_sampler_output: a function applied to each sample before its features are joined,
            or None.
        is_sorted: whether the edges of data in memory are already sorted by column.
        filter_per_worker: whether features of data in memory are joined in torch's workers.
        neighbor_sampler: a PyG `BaseSampler` to use instead of gnndrive's `NeighborSampler`.
        directed: deprecated by PyG; False means subgraph_type="induced".
        memory: the host memory that loading may use in all; `plan()` says for what. The first plan
            samples a few batches to know how large they are (docs/tasks/memory.md). "50%": of the
            memory that this process may have, the machine's or, if that is less, its cgroup's.
            None: no limit, and `buffer` has a default of its own.
        buffer: the feature buffer's size. None: what `memory` leaves, or on a GPU what
            `device_memory` leaves; without `memory`, a quarter of the available host memory.
        device: where the feature buffer and the batches live: "cpu", "cuda", "cuda:1", a
            torch.device, or a device plug-in's name or class.
        device_memory: the GPU memory that loading may use. 0: the feature buffer is in host memory,
            and the GPU's has two batches. None: the first batches go through a small buffer while
            the loader measures what training uses; the rest goes through a large one. With
            in_order=False, or a strategy that samples inside windows: half of the free GPU memory.
        feature_dtype: the floating dtype in which x is delivered, such as "float32"; x is converted
            on the device. int8 features are multiplied by the node attribute `x_scale` if there is
            one. None: the dtype of the store.
        attrs: the names of the store's attributes that batches have, such as ["x", "y"]; what else
            the store has, as what `gnndrive.infer` added, is not read. None: all of them.
        pad: "power-of-two": each type's nodes and edges of a batch are padded to a power of two, so
            that shapes repeat, as compiled models and CUDA graphs need it (docs/tasks/gpu.md). A
            number such as 1.1: to sizes that grow by a tenth, which are more and waste less.
            Padding nodes, at least one, are copies of the last node, behind the others; padding
            edges join them alone. `num_sampled_nodes` and `num_sampled_edges` count them in the
            last hop. Not with `exchange`. None: batches have the sizes that sampling gives.
        strategy: the published design to run: its name, a name with arguments of its own
            ("ginex:phases=apart"), or an object, `gnndrive.strategies.Ginex(phases="apart")`, whose
            class says which arguments there are. "auto": the one whose batches are predicted to
            cost least, of those that have the batches of "gnndrive" (docs/tasks/strategies.md).
        sampling: how neighbours are drawn: "neighbor" (each node draws for itself), or "labor" or
            `gnndrive.Labor(dependency=64)` (LABOR-0: nodes with common neighbours take the same
            ones, so a batch has fewer distinct nodes; docs/tasks/sampling.md). LABOR looks at the
            whole list of each node, and with topology="direct" reads it from disk.
        seed: makes every epoch's batches reproducible. None: each `iter` draws a seed from
            `generator`, as torch's loaders do; with `ranks`, the first rank's counts for all.
        ranks: True: deal the batches of an epoch to all ranks of torch.distributed; or the process
            group whose ranks they are dealt to. The ranks together yield the batches that one
            process would. Each rank begins each epoch, because each `iter` compares the ranks'
            arguments. `memory` and `buffer` are then for all ranks of a host together
            (docs/tasks/ranks.md). None: all batches, or those of a sampler that splits, such as
            torch's DistributedSampler.
        host_service: whether a host service has the feature buffer and the adjacency: for the ranks
            of a host, which share them, or if `data` is that of a service. False: this process has
            its own. "auto": the service has them where it can.
        trace: the file to which the timeline of all batches is written, for Perfetto or
            chrome://tracing: "epoch.json", or compressed, "epoch.json.gz". It is replaced. Of
            several ranks, each writes its own, with its number in the name. None: none is written.
        on_stats: a function that is called in the iterating thread, between batches, with a dict of
            numbers: what happened in the last `stats_interval` seconds, and at the end of an epoch
            since then (docs/tasks/see.md). What it raises ends the epoch, as an error of
            `transform` does. None: none is called.
        stats_interval: the seconds between two calls of `on_stats`.
        tuning: how the pipeline works, which changes no batch, such as
            `gnndrive.Tuning(topology="direct")`; its docstring says what there is.
        **kwargs: arguments of torch's DataLoader: batch_size, shuffle, drop_last, sampler,
            generator, num_workers, timeout, in_order, …; and PyG's custom_cls, which makes an empty
            batch, and input_id, a whole number for each seed that `batch.input_id` has.

    Raises:
        ConfigError: an argument cannot work; the message says what to give.
        NotImplementedError: an argument is not built for stores; the message names it.
    """

    def __init__(
        self, data: Any, num_neighbors: Any, input_nodes: Any = None, input_time: Any = None,
        replace: bool = False, subgraph_type: str = "directional", disjoint: bool = False,
        temporal_strategy: str = "uniform", time_attr: str | None = None,
        weight_attr: str | None = None, transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None, is_sorted: bool = False,
        filter_per_worker: bool | None = None, neighbor_sampler: Any = None, directed: bool = True,
        *,
        memory: str | int | None = None, buffer: str | int | None = None, device: Any = "cpu",
        device_memory: str | int | None = None, feature_dtype: str | torch.dtype | None = None,
        attrs: Sequence[str] | None = None, pad: str | float | None = None,
        strategy: str | Strategy = "gnndrive", sampling: str | Labor = "neighbor",
        seed: int | None = None, ranks: Any = None, host_service: str | bool = "auto",
        trace: Any = None, on_stats: OnStats | None = None, stats_interval: float = 10.0,
        tuning: Tuning | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        arguments = dict(locals())
        data, own = checked_data(self, arguments)
        if not isinstance(data, Store):
            PyGNeighborLoader.__init__(
                self, data, num_neighbors, input_nodes, input_time,
                time_attr=time_attr, transform=transform, filter_per_worker=filter_per_worker,
                transform_sampler_output=transform_sampler_output,
                neighbor_sampler=neighbor_sampler or _default_sampler(data, arguments), **kwargs,
            )  # fmt: skip
            return
        pyg_arguments = {name: arguments[name] for name in PYG_ARGUMENTS}
        if input_time is not None and time_attr is None:
            raise ConfigError("input_time= is given and time_attr= is not: give both, or neither")
        # Frameworks look for each argument in the attribute of its name.
        self.__dict__.update(pyg_arguments)
        self.num_neighbors = arguments["num_neighbors"] = checked_neighbors(data, num_neighbors)
        self.replace, self.transform = replace, transform
        inputs = checked_input_nodes(data, input_nodes, input_time, kwargs.get("input_id"))
        self.node_sampler = neighbor_sampler or _default_sampler(data, arguments)
        subgraphs = None
        if data.is_hetero or not is_plain(pyg_arguments):
            subgraphs = SubgraphSampling(self.node_sampler, transform_sampler_output)
        self._open_store(data, inputs, subgraphs, own, kwargs)


class LinkNeighborLoader(StoreLoader, PyGLinkNeighborLoader):  # type: ignore[misc]
    """Yields batches: seed edges, the neighbourhoods sampled around their ends, and features.

    Args:
        data: as for `NeighborLoader`.
        num_neighbors: as for `NeighborLoader`.
        edge_label_index: the seed edges, integers [2, edges]: sources and targets. None: all edges,
            which a store yields in its own order; `input_id` is then the original number of an
            edge. For a heterogeneous graph: an edge type, or a pair (edge type, seed edges); a type
            may be short, (source, target).
        edge_label: the labels of the seed edges [edges], or None.
        edge_label_time: the times of the seed edges, integers [edges], or None; give it together
            with `time_attr`.
        replace, subgraph_type, disjoint, temporal_strategy: as for `NeighborLoader`.
        neg_sampling: how to draw negative edges: PyG's NegativeSampling, its mode ("binary" or
            "triplet") or a dict of its arguments; None: no negative edges. With strategy="marius"
            negative nodes are drawn among those of the batch's window, as in the paper.
        neg_sampling_ratio: deprecated by PyG; the number of binary negatives for each seed edge.
        time_attr, …, directed: as for `NeighborLoader`.
        exclude_seed_edges: whether edges that join the ends of one of a batch's seed edges are left
            out of its messages, in memory too; nodes stay. True: from source to target, parallel
            edges too. "reverse": also from target to source; in a heterogeneous graph edges of the
            type "rev_" + name, as PyG's ToUndirected calls it, or a dict {type: reverse type}.
        memory, …, tuning: as for `NeighborLoader`; they need a store. `sampling` can only
            be "neighbor".
        **kwargs: arguments of torch's DataLoader.

    Raises:
        ConfigError, ValueError: arguments are wrong or contradict each other.
        NotImplementedError: an argument is not built for stores; the message names it.
    """

    def __init__(
        self, data: Any, num_neighbors: Any, edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None, edge_label_time: torch.Tensor | None = None,
        replace: bool = False, subgraph_type: str = "directional", disjoint: bool = False,
        temporal_strategy: str = "uniform", neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None, time_attr: str | None = None,
        weight_attr: str | None = None, transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None, is_sorted: bool = False,
        filter_per_worker: bool | None = None, neighbor_sampler: Any = None, directed: bool = True,
        *,
        exclude_seed_edges: bool | str | Mapping[EdgeType, EdgeType] = False,
        memory: str | int | None = None, buffer: str | int | None = None, device: Any = "cpu",
        device_memory: str | int | None = None, feature_dtype: str | torch.dtype | None = None,
        attrs: Sequence[str] | None = None, pad: str | float | None = None,
        strategy: str | Strategy = "gnndrive", sampling: str | Labor = "neighbor",
        seed: int | None = None, ranks: Any = None, host_service: str | bool = "auto",
        trace: Any = None, on_stats: OnStats | None = None, stats_interval: float = 10.0,
        tuning: Tuning | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        arguments = dict(locals())
        data, own = checked_data(self, arguments)
        seed_edges = edge_label_index, edge_label, edge_label_time
        self.exclude_seed_edges = exclude_seed_edges
        if not isinstance(data, Store):
            transform_sampler_output = excluded_in_memory(
                exclude_seed_edges, data, edge_label_index, transform_sampler_output
            )
            PyGLinkNeighborLoader.__init__(
                self, data, num_neighbors, *seed_edges,
                neg_sampling=neg_sampling, neg_sampling_ratio=neg_sampling_ratio,
                time_attr=time_attr, transform=transform, filter_per_worker=filter_per_worker,
                transform_sampler_output=transform_sampler_output,
                neighbor_sampler=neighbor_sampler or _default_sampler(data, arguments), **kwargs,
            )  # fmt: skip
            return
        if (edge_label_time is None) != (time_attr is None):
            raise ConfigError("edge_label_time= and time_attr= go together: give both, or neither")
        self.__dict__.update({name: arguments[name] for name in PYG_LINK_ARGUMENTS})
        self.num_neighbors = arguments["num_neighbors"] = checked_neighbors(data, num_neighbors)
        self.replace, self.transform = replace, transform
        self.neg_sampling = checked_negatives(neg_sampling, neg_sampling_ratio, edge_label)
        inputs = checked_input_edges(data, *seed_edges, self.neg_sampling, kwargs.get("input_id"))
        self.link_sampler = neighbor_sampler or _default_sampler(data, arguments)
        types = data.edge_types if data.is_hetero else [None]
        subgraphs = SubgraphSampling(
            self.link_sampler, transform_sampler_output, self.neg_sampling,
            excluded_edges(exclude_seed_edges, inputs.type, types),
        )  # fmt: skip
        self._open_store(data, inputs, subgraphs, own, kwargs)


def checked_data(loader: StoreLoader, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The data, and the values of `OWN_ARGUMENTS`, which are the defaults for data in memory."""
    refuse_old_names(arguments["kwargs"], arguments["strategy"])
    refuse_unknown(type(loader).__name__, arguments)
    own = {name: arguments[name] for name in OWN_ARGUMENTS}
    if not isinstance(data := opened(arguments["data"]), Store):
        refuse_own(data, own)
        loader.__dict__.update(own, _rows=RowsInMemory())
        data = with_edge_index_in_memory(data)
    return data, own


def _default_sampler(data: Any, arguments: dict[str, Any]) -> NeighborSampler:
    """gnndrive's sampler for a loader over `data` with these arguments."""
    shared = (
        "num_neighbors", "subgraph_type", "replace", "disjoint", "temporal_strategy",
        "time_attr", "weight_attr", "is_sorted", "directed",
    )  # fmt: skip
    workers = arguments["kwargs"].get("num_workers") or 0
    given = {name: arguments[name] for name in shared}
    return NeighborSampler(data, **given, share_memory=workers > 0)
