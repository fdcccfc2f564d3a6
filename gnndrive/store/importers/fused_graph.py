"""Read the graph of a preprocessed GraphBolt dataset, fused_csc_sampling_graph.pt.

torch.save wrote an object of two classes, one of DGL and one of torch; what they hold are dicts of
tensors. torch's restricted unpickler reads the file here with two classes in their place that keep
what they are given, so no code that the file names runs. The tensors are mapped.

The graph is one CSC: nodes of all types have one numbering, type after type, and the edges of all
types lie together, with the type of each. They are taken apart in chunks, and stay in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, Int64Array, NodeKey, ends_of
from gnndrive.store.checks import Pointers, check_permutation
from gnndrive.store.format import index_dtype
from gnndrive.store.importers.ends import CHUNK, Ends
from gnndrive.store.importers.features import Features, TensorRows
from gnndrive.store.importers.tensor_file import BadTensorFile, load
from gnndrive.store.types import GRAPH, Types, array_name
from gnndrive.store.writer import StoreWriter

_ORIGINAL_IDS = "_ORIGINAL_EDGE_ID"  # of edge_attributes
_VERSION = 6199  # DGL's, of what such a graph is pickled as
_MEND = (
    "preprocess the dataset again with GraphBolt, or import it as it is before, from its own "
    "metadata.yaml"
)
Chunk: TypeAlias = "tuple[slice, npt.NDArray[np.bool_]]"
"""Positions in the CSC, and which of the edges there are of a type."""


class _State:
    """An object of a pickle, of which only the state is kept."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


# torch finds a class by these two names.
_CLASSES: list[Any] = [
    type(name, (_State,), {"__module__": module, "__qualname__": name})
    for module, name in (
        ("dgl.graphbolt.impl.fused_csc_sampling_graph", "FusedCSCSamplingGraph"),
        ("torch", "ScriptObject"),
    )
]


def _load(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The graph's tensors by group and name; StoreError: the file holds anything else."""
    if not hasattr(torch.serialization, "safe_globals"):
        raise ConfigError("a preprocessed GraphBolt dataset needs torch 2.5 or newer")
    try:
        found = load(path, classes=_CLASSES)
    except BadTensorFile as error:
        raise StoreError(
            f"{path} cannot be read as GraphBolt's graph ({error}), and a pickle that holds more "
            f"can run any code; {_MEND}"
        ) from None
    match found:
        case _State(state={"_c_csc_graph": _State(state=(dict() as groups, str()))}):
            if all(map(_is_group, groups.values())):
                return groups
    raise StoreError(f"{path} does not hold GraphBolt's FusedCSCSamplingGraph; {_MEND}")


def _is_group(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    )


def _as_numpy(found: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's values; none if it is of a kind that numpy does not have, such as sparse, or if it
    repeats its elements, with which a small file could keep a process busy for ever."""
    try:
        values: npt.NDArray[Any] = found.detach().numpy()
        return values if found.is_contiguous() else np.empty(0)
    except (RuntimeError, TypeError):
        return np.empty(0)


class FusedGraph:
    """The graph in a file; StoreError: it is damaged.

    Attributes:
        num_nodes: numbers of nodes by type.
        edges: the edges by type.
        ids: the number of each edge in the dataset's own list of the edges of its type, [edges];
            None: the file does not say it.
    """

    num_nodes: dict[NodeKey, int]
    edges: dict[EdgeKey, FusedEnds]
    _starts: dict[NodeKey, int]  # the first node of each type in the numbering of all

    def __init__(self, path: Path) -> None:
        self.path, groups = path, _load(path)
        tensors = groups.get("independent_tensors", {})
        version = self._whole_numbers("version_number", tensors)
        if version[:2].tolist() != [_VERSION]:
            raise self.error(f"has the version {version[:2].tolist()}, and {_VERSION} is known")
        self.indptr = self._whole_numbers("indptr", tensors)
        self.indices = self._whole_numbers("indices", tensors)
        self.kinds: npt.NDArray[Any] | None = None  # the number of each edge's type
        check = Pointers(f"{path}: indptr", len(self.indices))
        for start in range(0, len(self.indptr), CHUNK):
            check.feed(self.indptr[start : start + CHUNK])
        check.finish()
        if not len(self.indptr):
            raise self.error("has an empty indptr")
        of_edges = groups.get("edge_attributes", {})
        self.ids: npt.NDArray[Any] | None = None
        if _ORIGINAL_IDS in of_edges:
            self.ids = self._whole_numbers(_ORIGINAL_IDS, of_edges, len(self.indices))
        if "type_per_edge" in tensors or "node_type_offset" in tensors:
            self._take_apart(tensors, groups)
        else:
            nodes = len(self.indptr) - 1
            self.num_nodes, self._starts = {None: nodes}, {None: 0}
            self.edges = {None: FusedEnds(self, None, 0, len(self.indices))}
        self._of_nodes, self._of_edges = groups.get("node_attributes", {}), of_edges

    def error(self, problem: str) -> StoreError:
        """The error for a problem of the graph; `problem` follows the file's name."""
        return StoreError(f"{self.path} {problem}; {_MEND}")

    def _whole_numbers(
        self, name: str, tensors: Mapping[str, torch.Tensor], count: int | None = None
    ) -> npt.NDArray[Any]:
        """A tensor of whole numbers [n], of which there are `count`."""
        found = tensors.get(name)
        if found is None:
            raise self.error(f"has no {name}")
        values = _as_numpy(found)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise self.error(
                f"has {name} of {found.dtype} {list(found.shape)}, not whole numbers [n], dense"
            )
        if count is not None and len(values) != count:
            raise self.error(f"has {len(values)} values of {name}, but {count} edges")
        return values

    # ---- types

    def _take_apart(
        self, tensors: Mapping[str, torch.Tensor], groups: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Check and count the types of a heterogeneous graph."""
        self.kinds = self._whole_numbers("type_per_edge", tensors, len(self.indices))
        node_types = self._names("node_type_to_id", groups)
        offsets = self._whole_numbers("node_type_offset", tensors)[: len(node_types) + 2]
        offsets = offsets.astype(np.int64)
        nodes = len(self.indptr) - 1
        good = len(offsets) == len(node_types) + 1 and offsets[0] == 0 and offsets[-1] == nodes
        if not good or bool((offsets[1:] < offsets[:-1]).any()):
            raise self.error(
                f"has node_type_offset {offsets[:9].tolist()}, which does not divide {nodes} nodes "
                f"into {len(node_types)} types"
            )
        counts = np.diff(offsets)
        self.num_nodes = {name: int(counts[place]) for place, name in enumerate(node_types)}
        self._starts = {name: int(offsets[place]) for place, name in enumerate(node_types)}
        edge_types: list[Any] = [
            tuple(name.split(":")) for name in self._names("edge_type_to_id", groups)
        ]
        try:
            Types.of(
                dict(zip(node_types, counts.tolist(), strict=True)), dict.fromkeys(edge_types, 0)
            )
        except ConfigError as error:
            raise self.error(f"has types that are not valid ({error})") from None
        self.edges = {}
        for place, count in enumerate(self._count(edge_types).tolist()):
            type = edge_types[place]
            self.edges[type] = FusedEnds(self, type, place, count)

    def _names(self, name: str, groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """The types that `name` numbers, in the order of their numbers."""
        found = groups.get(name, {})
        numbers = {type: _as_numpy(each).reshape(-1)[:2].tolist() for type, each in found.items()}
        if not found or sorted(numbers.values()) != [[place] for place in range(len(found))]:
            raise self.error(f"has a {name} that does not number the types from 0")
        return sorted(numbers, key=lambda type: numbers[type])

    def _count(self, types: list[EdgeKey]) -> Int64Array:
        """The number of edges of each type, int64 [types]; each of them goes to a node of the type
        that its own type says."""
        counts = np.zeros(len(types), np.int64)
        for node_type in self.num_nodes:
            allowed = np.array([ends_of(type)[1] == node_type for type in types])
            for part in self.parts(node_type):
                kinds = self._kinds_of(part)
                bad = (kinds < 0) | (kinds >= len(types))
                if not bad.any():
                    bad = ~allowed[kinds]
                if bad.any():
                    at = int(np.flatnonzero(bad)[0])
                    raise self.error(
                        f"says that edge {part.start + at} of its CSC (from 0), which goes to a "
                        f"node of type {node_type!r}, is of type {int(kinds[at])}; the types are "
                        f"{', '.join(f'{place} {type}' for place, type in enumerate(types))}"
                    )
                counts += np.bincount(kinds, minlength=len(types))
        return counts

    def _kinds_of(self, part: slice) -> Int64Array:
        assert self.kinds is not None
        return self.kinds[part].astype(np.int64)

    def nodes(self, type: NodeKey) -> tuple[int, int]:
        """The first node of a type in the numbering of all nodes, and the one behind its last."""
        first = self._starts[type]
        return first, first + self.num_nodes[type]

    def parts(self, target: NodeKey) -> Iterator[slice]:
        """The positions of the edges that go to nodes of a type, in chunks."""
        first, last = (int(self.indptr[node]) for node in self.nodes(target))
        for start in range(first, last, CHUNK):
            yield slice(start, min(start + CHUNK, last))

    def chunks(self, type: EdgeKey, place: int) -> Iterator[Chunk]:
        """Where the edges of a type lie; `place` is its number."""
        for part in self.parts(ends_of(type)[1]):
            if self.kinds is None:
                yield part, np.ones(part.stop - part.start, np.bool_)
            else:
                yield part, self._kinds_of(part) == place

    # ---- attributes

    def node_attributes(self) -> Iterator[tuple[NodeKey, str, Features]]:
        """Yield the type, name and rows of the attributes of nodes."""
        for name, found in self._of_nodes.items():
            for type in self.num_nodes:
                yield type, name, self._rows(name, found, *self.nodes(type), len(self.indptr) - 1)

    def edge_attributes(self) -> Iterator[tuple[EdgeKey, str, Features]]:
        """Yield the type, name and rows of the attributes of edges. GraphBolt's preprocessing keeps
        them in the order of the dataset's own lists of edges, one type's after the other's; it does
        not bring them into the order of the CSC."""
        for name, found in self._of_edges.items():
            first = 0
            for type, ends in self.edges.items() if name != _ORIGINAL_IDS else ():
                last = first + ends.count
                yield type, name, self._rows(name, found, first, last, len(self.indices))
                first = last

    def _rows(self, name: str, found: torch.Tensor, first: int, last: int, count: int) -> Features:
        """Rows of the attribute of a type, which has `count` rows for all types."""
        try:
            if len(found) != count:
                raise ValueError(f"it has {len(found)} rows, and there are {count}")
            return TensorRows(found[first:last])
        except (ValueError, TypeError, RuntimeError) as error:
            raise self.error(f"has an attribute {name!r} that cannot be read ({error})") from None


class FusedEnds(Ends):
    """The edges of one type of a graph; they are sorted already, and keep their order."""

    def __init__(self, graph: FusedGraph, type: EdgeKey, place: int, count: int) -> None:
        self.count, self.where = count, str(graph.path)
        self._graph, self._type, self._place = graph, type, place

    def write(
        self, writer: StoreWriter, type: EdgeKey, memory: int, progress: Progress | None
    ) -> None:
        """See `Ends.write`. Edges have the numbers that they had in the dataset's list of edges if
        the file has these."""
        graph = self._graph
        source, target = ends_of(type)
        low, high = graph.nodes(target)
        first_source, last_source = graph.nodes(source)
        names = [array_name("graph", type, leaf) for leaf in GRAPH]
        dtype = index_dtype(graph.num_nodes[source])
        indices = writer.array(names[1], dtype, (self.count,))
        pointers = graph.indptr[low : high + 1].astype(np.int64)
        name = f"reading {'edges' if type is None else ' '.join(type)}"
        node = done = 0
        for part, mine in self._chunks():
            # How many edges of the type come before each position; the pointers of the nodes whose
            # edges begin in this chunk become such numbers in place.
            before = np.concatenate([[done], done + np.cumsum(mine)])
            end = node + int(np.searchsorted(pointers[node:], part.stop))
            pointers[node:end] = before[pointers[node:end] - part.start]
            found = graph.indices[part][mine].astype(np.int64)
            wrong = (found < first_source) | (found >= last_source)
            if wrong.any():
                bad = int(np.flatnonzero(wrong)[0])
                nodes = "nodes" if source is None else f"nodes of type {source!r}"
                raise graph.error(
                    f"says that edge {part.start + int(np.flatnonzero(mine)[bad])} of its CSC "
                    f"(from 0) comes from node {found[bad]}, but the {nodes} are {first_source} to "
                    f"{last_source - 1}"
                )
            indices.write(found - first_source)
            node, done = end, int(before[-1])
            if progress is not None:
                progress(name, done, self.count)
        pointers[node:] = done
        writer.write(names[0], pointers)
        if graph.ids is None:
            return
        where = f"{graph.path}: {_ORIGINAL_IDS}{'' if type is None else f' of {type}'}"
        check_permutation(partial(self._ids, graph.ids), self.count, where, _MEND, memory)
        edge_id = writer.array(names[2], index_dtype(self.count), (self.count,))
        for ids in self._ids(graph.ids):
            edge_id.write(ids)

    def _chunks(self) -> Iterator[Chunk]:
        return self._graph.chunks(self._type, self._place)

    def _ids(self, ids: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """The edges' original numbers, in chunks."""
        for part, mine in self._chunks():
            yield ids[part][mine]
