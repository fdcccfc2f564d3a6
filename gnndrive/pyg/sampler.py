"""`NeighborSampler`: PyTorch Geometric's sampler of that name, which draws with gnndrive's C core.

PyG's own class converts a Data, a HeteroData or a (FeatureStore, GraphStore) to CSC, keeps times
and permutations, and calls pyg-lib or torch-sparse. This class inherits all but that call, so it
needs neither. It works wherever a `BaseSampler` does: in PyG's NodeLoader and LinkLoader,
LightningNodeData, a custom loop. A store is CSC already and is not converted.

A sample depends only on its seeds and on torch's random state at the call; in gnndrive's pipeline,
on its seeds and the batch's key. Lists of neighbours need not be sorted by time.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler import NeighborSampler as PyGNeighborSampler
from torch_geometric.sampler.base import DataType, SubgraphType

from gnndrive.common.array_pool import divided
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import widen
from gnndrive.common.forks import ForkLock
from gnndrive.common.names import did_you_mean
from gnndrive.common.records import (
    EdgeKey,
    EdgeType,
    IndexPointers,
    Int64Array,
    NodeKey,
    Subgraph,
)
from gnndrive.pyg.attributes import Attributes
from gnndrive.pyg.choices import checked_subgraph_type, checked_temporal_strategy
from gnndrive.pyg.conversions import (
    as_array,
    as_dtype,
    as_fanout,
    as_int64,
    as_times,
    as_topology,
    as_weights,
    check_ends,
    check_rows,
    each_of,
    edge_index,
    is_edge_level,
    permuted,
    select,
    with_edge_index_in_memory,
)
from gnndrive.sampling.degrees import Degrees
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers._native import (
    InScratch,
    Native,
    Relation,
    SamplingOptions,
    SeededBatch,
    SeedGroup,
)
from gnndrive.sampling.samplers.base import Bounds, most
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.reader import Store
from gnndrive.store.types import folder
from gnndrive.store.views import StoredEdges, StoredNodes

BIDIRECTIONAL_BYTES = 136  # the copies that PyG makes of an edge to add the reverse ones (measured)
CANDIDATE_BYTES = 24  # native/sampler.h: its rank and order, and a sum of weights

_STEP = 1 << 20  # numbers that are converted at once


class StoredGraph:
    """The graph of a store. It reads times and weights into memory at their first use, and again
    when this process has set others. Their attributes' names may be None.

    Attributes:
        of_nodes: whether the times are an attribute of nodes; else of edges.
    """

    def __init__(self, store: Store, time_attr: str | None, weight_attr: str | None) -> None:
        self.store, self._time, self._weight = store, time_attr, weight_attr
        # By what they are: the types that have them, what this process had set, the value.
        self._loaded: dict[str, tuple[list[Any], list[Any], Any]] = {}  # shared with `for_an_epoch`
        self._own = self._loaded
        self._lock = ForkLock()
        self._nodes = store.all_nodes()
        self._edges = store.all_edges()
        of_nodes = {name for nodes in self._nodes for name in nodes.row_names}
        of_edges = {name for edges in self._edges for name in edges.row_names}
        self.of_nodes = time_attr in of_nodes
        self._check("time_attr", time_attr, of_nodes | of_edges)
        self._check("weight_attr", weight_attr, of_edges)
        if self.of_nodes and time_attr in of_edges:
            raise ConfigError(
                f"time_attr={time_attr!r}: nodes and edges of {store.path} both have it, and a "
                "loader respects the times of one: give them names of their own before the store "
                "is made, or import with --time for one of them"
            )

    def _check(self, what: str, name: str | None, names: set[str]) -> None:
        if name is not None and name not in names:
            store, of_nodes = self.store, self._nodes[0].row_names
            either = not store.is_hetero and _is_either(name, store.num_nodes, store.num_edges)
            if either and name in of_nodes:  # so it is no time
                raise ConfigError(
                    f"{what}={name!r}: {store.path} has {name} as an attribute of nodes, and "
                    f"weights are an attribute of edges: {_rule(name)} before the store is made"
                )
            raise ConfigError(
                f"{what}={name!r}: {self.store.path} has no such attribute"
                f"{did_you_mean(name, names)}, but {', '.join(sorted(names)) or 'none'}: give one "
                "of these"
            )

    @property
    def temporal(self) -> bool:
        """Whether the sampler respects times."""
        return self._time is not None

    @property
    def weighted(self) -> bool:
        """Whether the sampler draws by weights."""
        return self._weight is not None

    @property
    def identity(self) -> str:
        """A text that names the attributes of times and weights."""
        return f"time={self._time} weight={self._weight}"

    @property
    def _timed(self) -> Sequence[StoredNodes | StoredEdges]:
        if self._time is None:
            return []
        timed: Sequence[StoredNodes | StoredEdges] = self._nodes if self.of_nodes else self._edges
        return [each for each in timed if self._time in each.row_names]

    @property
    def _weighted(self) -> list[StoredEdges]:
        if self._weight is None:
            return []
        return [edges for edges in self._edges if self._weight in edges.row_names]

    @property
    def nbytes(self) -> int:
        """Bytes of times and weights in memory."""
        return 8 * sum(each.count for each in (*self._timed, *self._weighted))

    def for_an_epoch(self) -> StoredGraph:
        """A graph with the times and weights of this moment, whatever is set on the store later."""
        other = StoredGraph(copy.copy(self.store), self._time, self._weight)
        other._loaded, other._own, other._lock = self._loaded, {}, self._lock
        return other

    def topologies(self) -> list[Topology]:
        """Topologies with memory-mapped indices, one for each edge type, for a sampler that is used
        outside a pipeline."""
        return [mapped(edges) for edges in self._edges]

    @property
    def degree_max(self) -> int:
        """The most in-edges of a node; 0 without times and weights, because then a sampler does not
        look at whole lists."""
        if self._time is None and self._weight is None:
            return 0
        return max((_degree_max(edges.index_pointers) for edges in self._edges), default=0)

    def times(self) -> Any:
        """Times of nodes, int64 [nodes], or of edges at CSC positions, int64 [edges]: a tensor; of
        a heterogeneous store a dict by node type, or by the name of the edge type's folder, of the
        types that have times; None without times."""
        return self._attributes("times", self._timed, self._time, as_times)

    def weights(self) -> Any:
        """Weights of edges at CSC positions, float32 or float64 [edges], in the form of `times`."""
        return self._attributes("weights", self._weighted, self._weight, as_weights)

    def _attributes(
        self, what: str, given: Sequence[StoredNodes | StoredEdges], name: str | None,
        convert: Callable[[Tensor], npt.NDArray[Any]],
    ) -> Any:  # fmt: skip
        """The attribute `name` of the types in `given`, read at the first call; `what` keys it."""
        if name is None:
            return None
        types: list[NodeKey | EdgeKey] = [each.type for each in given]
        set_here = [self.store.overlay.values(type).get(name) for type in types]
        with self._lock:
            for kept in (self._own, self._loaded):
                found = kept.get(what)
                if found and found[0] == types and all(map(is_, found[1], set_here)):
                    break
            else:
                if not given:
                    raise ConfigError(f"{name!r} was deleted: set it again, or make a new loader")
                attributes = Attributes(self.store)
                value = {
                    folder(each.type): _load(attributes, each, name, convert) for each in given
                }
                found = types, set_here, value if self.store.is_hetero else value[""]
                self._loaded[what] = found
            self._own[what] = found
            return found[2]

    def edge_ids(self) -> Any:
        """The original number of the edge at each CSC position, memory-mapped; None: the number is
        the position. Of a heterogeneous store: a dict by edge type."""
        numbers = {edges.type: edges.mapped_edge_id() for edges in self._edges}
        return numbers if self.store.is_hetero else numbers[None]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_loaded": None, "_own": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._loaded = ForkLock(), {}
        self._own = self._loaded


def _is_either(name: str, num_nodes: int, num_edges: int) -> bool:
    """Whether a node attribute of a homogeneous graph may have been meant for the edges: numbers of
    rows do not tell, and PyG's rule did."""
    return num_nodes == num_edges and "edge" not in name


def _rule(name: str) -> str:
    return (
        "the graph has as many nodes as edges, and an attribute without 'edge' in its name is then "
        f"the nodes', as in PyG; if it is the edges', call it edge_{name}"
    )


def _degree_max(pointers: IndexPointers) -> int:
    steps = range(0, len(pointers) - 1, _STEP)
    return max((int(np.diff(pointers[at : at + _STEP + 1]).max()) for at in steps), default=0)


def _load(
    attributes: Attributes,
    given: StoredNodes | StoredEdges,
    name: str,
    convert: Callable[[Tensor], npt.NDArray[Any]],
) -> Tensor:
    """Read an attribute of nodes, or of edges at CSC positions, and convert it by pieces."""
    set_here = given.attached(given.group).get(name)
    full = given.name_of(name)
    edge_id = given.edge_id_name if isinstance(given, StoredEdges) else None

    def pick(rows: Int64Array) -> Tensor:
        if set_here is None:
            return attributes.pick(full, rows)
        return select(set_here[0], 0, torch.from_numpy(rows))

    none = pick(np.empty(0, np.int64))
    whole = torch.from_numpy(np.empty(given.count, convert(none).dtype))
    for at in range(0, given.count, _STEP):
        rows = np.arange(at, min(at + _STEP, given.count))
        if edge_id is not None:
            rows = attributes.pick(edge_id, rows).to(torch.int64).numpy()
        flat = torch.from_numpy(convert(pick(rows)))
        if flat.shape != (len(rows),):
            raise ConfigError(f"{full}: give one number for each node or edge")
        whole[at : at + len(rows)] = flat
    return whole


class NeighborSampler(PyGNeighborSampler):  # type: ignore[misc]
    """Samples neighbourhoods of a graph in memory or in a store; PyG's class without pyg-lib.

    Args:
        data: a Data, a HeteroData, a (FeatureStore, GraphStore), or a store.
        num_neighbors: neighbours to sample for each node in each hop, -1: all; for a heterogeneous
            graph a list for all edge types or a dict.
        subgraph_type: "directional", "bidirectional", or "induced": all edges between the sampled
            nodes.
        replace: whether to sample with replacement.
        disjoint: whether each seed has a separate subgraph; always so with times.
        temporal_strategy: which edges not later than the seed are drawn: "uniform" (any) or "last".
        time_attr: the node or edge attribute that holds the time, int64.
        weight_attr: the edge attribute by which neighbours are drawn: finite, not negative;
            edges of weight 0 are never drawn.
        is_sorted: whether edges are sorted by column already.
        share_memory: whether the graph is put into shared memory, for worker processes.
        directed: deprecated by PyG; False means subgraph_type="induced".
        **kwargs: further arguments of the installed PyG's class, such as sample_direction.

    Raises:
        ConfigError: an argument cannot work.
        StoreError: an edge in memory names a node that does not exist.
        ValueError, NotImplementedError: as PyG's.
    """

    # PyG's attributes: tensors for a homogeneous graph, else dicts by type or relation.
    num_nodes: Any
    node_time: Any
    edge_time: Any
    edge_weight: Any
    _graph: StoredGraph | None = None  # None: the graph is in memory
    leaves_out = False
    """Whether sampling takes memory for neighbours that the sample leaves out. What samples hold
    then does not say what sampling takes, so plans draw none."""

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        checked_temporal_strategy(temporal_strategy)
        kind = checked_subgraph_type(subgraph_type, directed)
        self._native = Native()
        self._topologies: Sequence[Topology] | None = None
        self.key: int | None = None  # what draws depend on; None: torch's random state
        self.gathered: list[tuple[SeededBatch, Any]] | None = None  # see `gathering`
        if isinstance(data, Store):
            if kwargs.pop("sample_direction", "forward") != "forward":
                raise NotImplementedError("a store has in-neighbours only: sample it 'forward'")
            if kwargs:
                raise TypeError(
                    f"NeighborSampler() has no argument {(name := next(iter(kwargs)))!r}"
                    f"{did_you_mean(name, inspect.signature(NeighborSampler).parameters)}"
                )
            graph = StoredGraph(data, time_attr, weight_attr)
            self._take_store(graph)
            if time_attr and graph.of_nodes and not data.is_hetero:
                self._warn_of_time(time_attr, data.num_nodes, data.num_edges)
            if isinstance(num_neighbors, Mapping):
                num_neighbors = data.info.types.by_edge_key(num_neighbors)
            self.num_neighbors, self.subgraph_type, self.replace = num_neighbors, kind, replace
            self.disjoint, self.temporal_strategy = disjoint, temporal_strategy
            self.keep_orig_edges = False
            self._refuse_induced_trees()
            return
        data = with_edge_index_in_memory(data)
        check_ends(data)
        check_rows(data, "time_attr", time_attr)
        check_rows(data, "weight_attr", weight_attr)
        # PyG refuses these two without a recent pyg-lib; they are added below.
        edge_time = time_attr if time_attr and is_edge_level(data, time_attr) else None
        node_time = None if edge_time else time_attr
        if time_attr and kwargs.get("sample_direction") == "backward":
            node_time = time_attr  # which PyG's class refuses
        if weight_attr and DataType.from_data(data) == DataType.remote:
            raise NotImplementedError(
                "'weight_attr' is not supported for (FeatureStore, GraphStore) inputs: give a Data "
                "or a HeteroData"
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using '.*' without a 'pyg-lib' installation")
            super().__init__(
                data, num_neighbors, subgraph_type, replace, disjoint, temporal_strategy, node_time,
                None, is_sorted, share_memory, directed, **kwargs,
            )  # fmt: skip
        if edge_time:
            self.edge_time = self._of_edges(data, edge_time)
        if weight_attr:
            self.edge_weight = self._of_edges(data, weight_attr)
        if self.data_type == DataType.homogeneous:
            if node_time:
                self._warn_of_time(node_time, data.num_nodes, data.num_edges)
            if weight_attr and _is_either(weight_attr, data.num_nodes, data.num_edges):
                warnings.warn(
                    f"weight_attr={weight_attr!r} is taken as weights of edges, but batches have "
                    f"{weight_attr} as an attribute of nodes: {_rule(weight_attr)}",
                    stacklevel=4,
                )
        # Convert once here, instead of for each sample.
        self.node_time = each_of(as_times, self.node_time)
        self.edge_time = each_of(as_times, self.edge_time)
        self.edge_weight = each_of(as_weights, self.edge_weight)
        self._refuse_induced_trees()

    def _warn_of_time(self, name: str, num_nodes: int, num_edges: int) -> None:
        """Say how `time_attr=` of a homogeneous graph was understood, if it can be either."""
        if _is_either(name, num_nodes, num_edges):
            warnings.warn(
                f"time_attr={name!r} is taken as times of nodes: {_rule(name)}", stacklevel=5
            )

    def _refuse_induced_trees(self) -> None:
        if self.disjoint and self.subgraph_type == SubgraphType.induced:
            raise ConfigError(
                "induced subgraphs cannot be disjoint, as those with times are: give "
                "subgraph_type='directional'"
            )

    # ---- a store ----

    def _take_store(self, graph: StoredGraph) -> None:
        self._graph = graph
        store = graph.store
        self.data_type, self.sample_direction = DataType.homogeneous, "forward"
        self.num_nodes = store.num_nodes
        if store.is_hetero:
            self.data_type = DataType.heterogeneous
            self.num_nodes = {name: store[name].num_nodes for name in store.node_types}
            self.node_types, self.edge_types = store.metadata()
            self.to_rel_type = {name: folder(name) for name in store.edge_types}
            self.to_edge_type = {name: type for type, name in self.to_rel_type.items()}
        self.node_time = self.edge_time = self.edge_weight = None

    def _load(self) -> None:
        """Load a store's times and weights into memory, unless they are there."""
        if self._graph is not None:
            times, self.edge_weight = self._graph.times(), self._graph.weights()
            self.node_time, self.edge_time = (
                (times, None) if self._graph.of_nodes else (None, times)
            )

    @property
    def identity(self) -> str:
        """A text that identifies all but seeds, fanout and key; equal text means equal draws."""
        graph = "" if self._graph is None else f" {self._graph.identity}"
        kind = f"{self.subgraph_type.value} disjoint={self.disjoint} {self.temporal_strategy}"
        return kind + graph

    @property
    def fanouts(self) -> dict[EdgeKey, list[int]]:
        """Numbers of neighbours to sample for each hop, by edge type."""
        if self.data_type == DataType.homogeneous:
            return {None: list(self.num_neighbors.get_mapped_values())}
        given = self._num_neighbors.get_mapped_values(self.edge_types)
        return {type: list(given[name]) for type, name in self.to_rel_type.items()}

    def bounds(
        self, seeds: Mapping[NodeKey, int], nodes: Mapping[NodeKey, int],
        edges: Mapping[EdgeKey, int], degrees: Mapping[EdgeKey, Degrees] | None = None,
    ) -> Bounds:  # fmt: skip
        """The most that one sample of so many distinct seeds can hold, by type, but for disjoint
        trees and other edges than those drawn; see `most` for the other arguments."""
        return most(seeds, self.fanouts, nodes, edges, self.replace, degrees)

    @property
    def edge_temporaries(self) -> int:
        """Bytes for each edge of a sample that Python code takes while it samples."""
        return BIDIRECTIONAL_BYTES if self.subgraph_type == SubgraphType.bidirectional else 0

    @property
    def edge_level(self) -> bool:
        """Whether times are an attribute of edges."""
        return self.edge_time is not None if self._graph is None else not self._graph.of_nodes

    @property
    def graph_bytes(self) -> int:
        """Bytes of memory that a store's times and weights take once they are loaded."""
        return 0 if self._graph is None else self._graph.nbytes

    @property
    def candidate_bytes(self) -> int:
        """Bytes of a sampling thread's scratch for the longest list of neighbours in a store."""
        degree = 0 if self._graph is None else self._graph.degree_max
        return CANDIDATE_BYTES << degree.bit_length() if degree else 0

    @property
    def is_temporal(self) -> bool:
        """Whether samples respect times."""
        return bool(super().is_temporal) if self._graph is None else self._graph.temporal

    @property
    def is_weighted(self) -> bool:
        """Whether neighbours are drawn by weights."""
        return self.edge_weight is not None if self._graph is None else self._graph.weighted

    # ---- in gnndrive's pipeline ----

    def for_an_epoch(self, *most: Sequence[int]) -> NeighborSampler:
        """A copy for one epoch, with the times and weights of this moment; its `stop` does not stop
        this sampler. `most`: see `Native`."""
        other = copy.copy(self)
        if self._graph is not None:
            other._graph = self._graph.for_an_epoch()
        other._native = Native(*most)
        return other

    def keyed(self, key: int, topologies: Sequence[Topology]) -> NeighborSampler:
        """A copy that draws by `key` alone, on these topologies; it shares all else."""
        other = copy.copy(self)
        other.key, other._topologies = key, topologies
        return other

    def groups(self, of_edges: bool, topologies: Sequence[Topology] | None = None) -> bool:
        """Whether `gathering` serves for such seeds on these topologies (None: the graph is in
        memory): PyG's code leaves alone what was sampled around them, and C does not wait for
        neighbours."""
        return (
            type(self) is NeighborSampler and (self._graph is None) == (topologies is None)
            and self.subgraph_type == SubgraphType.directional
            and not (of_edges and self.disjoint)
            and all(each.csc().indices for each in topologies or ())
        )  # fmt: skip

    def gathering(self, topologies: Sequence[Topology] | None = None) -> NeighborSampler:
        """A copy whose samples, each by the `key` that it has then, are empty until
        `sample_gathered` gets what the copy has `gathered`. Use it in one thread."""
        other = copy.copy(self)
        other._topologies, other.gathered = topologies, []
        return other

    def gather_nodes(
        self, inputs: NodeSamplerInput, parts: Sequence[Sized], keys: Sequence[int]
    ) -> list[tuple[SeededBatch, Any]]:
        """What `gathering` gathers of a group whose seeds are nodes. `inputs`: those of all
        batches; each has as many as its part, and its key."""
        type, node_time = inputs.input_type, self.node_time
        if type is not None:
            node_time = (node_time or {}).get(type)
        number = 0 if type is None else self._hetero_types[0].index(type)
        time = self._seed_time(inputs.node, inputs.time, node_time)
        times = repeat(None) if time is None else divided(time, parts)
        metadata = [repeat(None) if each is None else divided(each, parts)
                    for each in (inputs.input_id, inputs.time)]  # fmt: skip
        nodes, gathered = divided(as_int64(inputs.node), parts), list[tuple[SeededBatch, Any]]()
        for key, node, time, *of_seeds in zip(keys, nodes, times, *metadata, strict=False):
            out = _empty_output(type is not None)
            out.metadata = tuple(of_seeds)
            gathered.append((SeededBatch(key, [SeedGroup(node, number, time)]), out))
        return gathered

    def sample_gathered(
        self, gathered: Sequence[tuple[SeededBatch, Any]]
    ) -> tuple[list[Subgraph], Exception | None]:
        """Sample what was gathered in one call. Returns the samples, and why the one behind them
        could not be drawn."""
        found = list[Subgraph]()
        hetero, node_types, edge_types = self.data_type != DataType.homogeneous, [None], [None]
        if hetero:
            node_types, edge_types = self._hetero_types  # type: ignore[assignment]
        relations, nodes = self._relations(hetero)
        options = SamplingOptions(0, self.replace, self.disjoint, self.temporal_strategy == "last")
        batches = [batch for batch, _ in gathered]
        with self._native.sampled_group(relations, nodes, batches, options) as group:
            for (_, out), (each, drawn) in zip(gathered, group.samples(), strict=False):
                coo = [(*ends[:: -1 if self._backward else 1], *rest) for ends, *rest in drawn]
                self._fill(out, each, coo, self._dtype(hetero))
                (node,) = _by_type(node_types, each, 1)
                ends, edge = _by_type(edge_types, drawn, 2)
                edges = sum(position.size for _, position, _ in drawn)
                found.append(Subgraph(node, edge, edges, out, ends=ends))
            return found, group.error

    def stop(self) -> None:
        """Make running and later samples end at once with ClosedError."""
        self._native.stop()

    # ---- attributes of edges ----

    def _of_edges(self, data: Any, name: str) -> Tensor | dict[str, Tensor]:
        """An edge attribute in the order of the CSC arrays; a dict by relation if heterogeneous."""
        if self.data_type == DataType.homogeneous:
            if len(data[name]) != data.num_edges:
                raise ConfigError(
                    f"{name!r} as an attribute of edges: data has {len(data[name])} rows and "
                    f"{data.num_edges} edges: give the name of one with a row for each edge"
                )
            return permuted(data[name], self.perm)
        if self.data_type == DataType.heterogeneous:
            given = data.collect(name)
        else:
            attributes = [a for a in data[0].get_all_tensor_attrs() if a.attr_name == name]
            for attribute in attributes:
                attribute.index = None
            tensors = data[0].multi_get_tensor(attributes)
            if not self.is_hetero:
                return permuted(tensors[0], self.perm)
            given = {a.group_name: each for a, each in zip(attributes, tensors, strict=True)}
        found = {}
        for edge_type, value in given.items():
            known = edge_type if edge_type in self.to_rel_type else tuple(reversed(edge_type))
            found[self.to_rel_type[known]] = permuted(value, (self.perm or {}).get(known))
        return found

    # ---- the graph ----

    @property
    def _hetero_types(self) -> tuple[list[str], list[EdgeType]]:
        node_types, edge_types = list(self.node_types), list(self.edge_types)
        if self.data_type == DataType.remote:  # PyG takes them from sets, in any order
            return sorted(node_types), sorted(edge_types)
        return node_types, edge_types

    def _relations(self, hetero: bool) -> tuple[list[Relation], list[int]]:
        """The relations that C samples, and the number of nodes of each type."""
        if self._topologies is None and self._graph is not None:
            self._topologies = self._graph.topologies()
        if not hetero:
            nodes = [int(self.num_nodes)]
            if self._topologies is None:
                self._topologies = [as_topology(self.colptr, self.row, nodes[0], "edge_index")]
            fanout = as_fanout(self.num_neighbors.get_mapped_values())
            return [
                Relation(
                    self._topologies[0], fanout, node_time=as_array(self.node_time),
                    edge_time=as_array(self.edge_time), weight=as_array(self.edge_weight),
                )
            ], nodes  # fmt: skip
        node_types, edge_types = self._hetero_types
        fanouts = self._num_neighbors.get_mapped_values(edge_types)
        place = {name: number for number, name in enumerate(node_types)}
        names = [self.to_rel_type[edge_type] for edge_type in edge_types]
        if self._topologies is None:
            self._topologies = [
                as_topology(
                    self.colptr_dict[name], self.row_dict[name], self.num_nodes[edge_type[2]], name
                )
                for name, edge_type in zip(names, edge_types, strict=True)
            ]
        node_time, edge_time = self.node_time or {}, self.edge_time or {}
        relations = [
            Relation(
                topology, as_fanout(fanouts[name]), place[source], place[target],
                as_array(node_time.get(source)), as_array(edge_time.get(name)),
                as_array((self.edge_weight or {}).get(name)),
            )
            for topology, name, (source, _, target) in zip(
                self._topologies, names, edge_types, strict=True
            )
        ]  # fmt: skip
        return relations, [int(self.num_nodes[name]) for name in node_types]

    # ---- sampling ----

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
        """See `BaseSampler.sample_from_edges`."""
        self._load()  # negative edges have times too
        return super().sample_from_edges(inputs, neg_sampling)

    def _sample(
        self,
        seed: Tensor | dict[str, Tensor],
        seed_time: Any = None,
        **kwargs: Any,
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Sample around `seed`, in PyG's form; replaces PyG's call of pyg-lib."""
        self._load()
        key, hetero = self.batch_key(), isinstance(seed, dict)
        out = _empty_output(hetero)
        if isinstance(seed, dict):
            node_types, _ = self._hetero_types
            groups = [
                SeedGroup(
                    as_int64(each), node_types.index(name),
                    self._seed_time(each, (seed_time or {}).get(name),
                                    (self.node_time or {}).get(name)),
                )
                for name, each in seed.items()
            ]  # fmt: skip
        else:
            times = self._seed_time(seed, seed_time, self.node_time)
            groups = [SeedGroup(as_int64(seed), 0, times)]
        if self.gathered is not None:
            self.gathered.append((SeededBatch(key, groups), out))
            return out
        induced = self.subgraph_type == SubgraphType.induced
        options = SamplingOptions(
            key, self.replace, self.disjoint, self.temporal_strategy == "last", induced
        )
        relations, nodes = self._relations(hetero)
        with self._native.sampled(relations, nodes, groups, options) as sampled:
            of_nodes = [sampled.nodes(number) for number in range(len(nodes))]
            of_edges = [self._coo(sampled, number) for number in range(len(relations))]
            self._fill(out, of_nodes, of_edges, self._dtype(hetero))
        return out

    def _dtype(self, hetero: bool) -> torch.dtype:
        """That of ids and places in samples."""
        if self._graph is not None:
            return torch.int64
        arrays: list[Tensor] = list(self.colptr_dict.values()) if hetero else [self.colptr]
        return arrays[0].dtype if arrays else torch.int64

    def batch_key(self) -> int:
        """The key of the next batch, drawn from torch's generator."""
        if self.key is not None:
            return self.key
        return int(torch.empty((), dtype=torch.int64).random_().item())

    def _seed_time(
        self, seed: Tensor, given: Tensor | None, node_time: Tensor | None
    ) -> Int64Array | None:
        if not self.is_temporal:
            return None
        if given is None and node_time is None:
            raise ValueError(
                "temporal sampling needs the seeds' times: give input_time or edge_label_time"
            )
        return as_times(node_time[seed] if given is None else given)  # type: ignore[index]

    def _fill(
        self, out: Any, of_nodes: Iterable[Any], of_edges: Iterable[Any], dtype: torch.dtype
    ) -> None:
        """Put what was sampled of each type into PyG's form: what `InScratch.nodes` and `_coo`
        return."""
        induced = self.subgraph_type == SubgraphType.induced
        nodes = [
            (as_dtype(torch.from_numpy(node), dtype), _batch(tree), list(per_hop))
            for node, tree, per_hop in of_nodes
        ]
        edges = [
            (*(as_dtype(torch.from_numpy(each), dtype) for each in coo), list(per_hop))
            for *coo, per_hop in of_edges
        ]
        if isinstance(out, SamplerOutput):
            ((out.node, out.batch, nodes_per_hop),) = nodes
            ((out.row, out.col, out.edge, edges_per_hop),) = edges
        else:
            node_types, edge_types = self._hetero_types
            if self._backward:
                edge_types = [self.to_restored_edge_type[each] for each in edge_types]
            out.node, batch, nodes_per_hop = _by_type(node_types, nodes, 3)
            out.row, out.col, out.edge, edges_per_hop = _by_type(edge_types, edges, 4)
            out.batch = batch if self.disjoint else None
        out.num_sampled_nodes = None if induced else nodes_per_hop
        out.num_sampled_edges = None if induced else edges_per_hop

    def _coo(
        self, sampled: InScratch, number: int
    ) -> tuple[Int64Array, Int64Array, Int64Array, tuple[int, ...]]:
        """Row, col and CSC position of a sample's edges of a type, and how many each hop has."""
        row, colptr, edge, per_hop = sampled.edges(number)
        position = np.empty(len(edge), np.int64)
        widen(edge, position)
        ends = edge_index(row, colptr)
        first, second = ends[::-1] if self._backward else ends
        return first, second, position, per_hop

    @property
    def _backward(self) -> bool:
        return getattr(self, "sample_direction", "forward") == "backward"

    @property
    def edge_permutation(self) -> Any:
        """The original number of the edge at each CSC position, int64 [edges]; a dict by edge type
        if heterogeneous. None: the number is the position."""
        return self.perm if self._graph is None else self._graph.edge_ids()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_topologies": None}  # a copy makes its own for C


def _empty_output(hetero: bool) -> Any:
    return HeteroSamplerOutput({}, {}, {}, {}) if hetero else SamplerOutput(*4 * [None])


def _by_type(types: Sequence[Any], values: Sequence[Sequence[Any]], fields: int) -> Any:
    """Dicts by type of the first fields of each type's values."""
    return [dict(zip(types, [each[n] for each in values], strict=True)) for n in range(fields)]


def _batch(tree: npt.NDArray[Any] | None) -> Tensor | None:
    """PyG's `batch`: the number of the seed whose tree each node is in, int64 [nodes]."""
    return None if tree is None else torch.from_numpy(tree).to(torch.int64)
