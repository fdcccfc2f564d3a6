"""`StoredGraph`: times, weights and edge ids of a store's graph, for `NeighborSampler`.

In the pipeline, the runtime gives the sampler its topologies. A sampler that is used alone takes
memory-mapped ones from here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnndrive.common.errors import ConfigError
from gnndrive.common.forks import ForkLock
from gnndrive.common.records import EdgeKey, IndexPointers, Int64Array, NodeKey
from gnndrive.pyg.attributes import Attributes
from gnndrive.pyg.conversions import as_times, as_weights, select
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.topologies.base import Topology
from gnndrive.store.reader import Store
from gnndrive.store.types import folder
from gnndrive.store.views import StoredEdges, StoredNodes

_STEP = 1 << 20  # numbers that are converted at once


class StoredGraph:
    """The graph of a store. It reads times and weights into memory at their first use, and again
    when this process has set others. Their attributes' names may be None.

    Attributes:
        of_nodes: whether the times are an attribute of nodes; else of edges.

    Raises:
        ConfigError: the store has no such attribute.
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

    def _check(self, what: str, name: str | None, names: set[str]) -> None:
        if name is not None and name not in names:
            raise ConfigError(
                f"{what}={name!r}: {self.store.path} has no such attribute, but "
                f"{', '.join(sorted(names)) or 'none'}: give one of these"
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
        """The types of nodes or edges that have times."""
        timed: Sequence[StoredNodes | StoredEdges] = self._nodes if self.of_nodes else self._edges
        return [each for each in timed if self._time in each.row_names]

    @property
    def _weighted(self) -> list[StoredEdges]:
        """The types of edges that have weights."""
        return [edges for edges in self._edges if self._weight in edges.row_names]

    @property
    def nbytes(self) -> int:
        """Bytes of times and weights in memory."""
        return 8 * sum(each.count for each in self._timed) + 8 * sum(
            edges.num_edges for edges in self._weighted
        )

    def for_an_epoch(self) -> StoredGraph:
        """A graph with the times and weights of this moment, whatever is set on the store later.

        Raises:
            ConfigError: they were deleted.
        """
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
        types that have times; None without times.

        Raises:
            ConfigError: they are not one whole number for each node or edge.
        """
        return self._attributes("times", self._timed, self._time, as_times)

    def weights(self) -> Any:
        """Weights of edges at CSC positions, float32 or float64 [edges]: a tensor; of a
        heterogeneous store a dict by the name of the edge type's folder, of the types that have
        weights; None without weights.

        Raises:
            ConfigError: they are not one number for each edge.
        """
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


def _degree_max(pointers: IndexPointers) -> int:
    """The largest difference of two neighbouring index pointers."""
    steps = range(0, len(pointers) - 1, _STEP)
    return max((int(np.diff(pointers[at : at + _STEP + 1]).max()) for at in steps), default=0)


def _load(
    attributes: Attributes,
    given: StoredNodes | StoredEdges,
    name: str,
    convert: Callable[[Tensor], npt.NDArray[Any]],
) -> Tensor:
    """Read an attribute of nodes, or of edges at CSC positions, and convert it piece by piece."""
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
