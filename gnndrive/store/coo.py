"""The edges of a store as PyG has them, made from CSC: `edge_index`, and facts about the graph.

`edge_index` takes 16 bytes an edge in memory, so it is made only if memory has room. The facts are
found in one pass over the adjacency, which needs a byte for each node.

When not to use it: in a loader. A loader samples from the CSC arrays themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import available_memory, format_size
from gnndrive.common.records import EdgeKey, IndexPointers, Int64Array, NodeKey, ends_of

_STEP = 1 << 22  # edges that are converted at once, about


@dataclass(frozen=True, slots=True)
class MappedCSC:
    """The edges of one type as they lie in a store.

    Attributes:
        type: the edge type; None in a homogeneous store.
        num_sources: the number of nodes that edges may come from.
        pointers: index pointers [targets + 1].
        indices: in-neighbours [num_edges], mapped.
        edge_id: the original number of the edge at each position [num_edges], mapped; None: the
            number is the position.
        folder: where the arrays lie, for errors.
    """

    type: EdgeKey
    num_sources: int
    pointers: IndexPointers
    indices: npt.NDArray[Any]
    edge_id: npt.NDArray[Any] | None
    folder: str


def check_room(nbytes: int, what: str, instead: str) -> None:
    """Check that memory has room for something that is made of a store. `what` is its name, and
    `instead` what to do if there is no room, for the error.

    Raises:
        ConfigError: it takes more than half of the available memory.
    """
    left = available_memory()
    if nbytes > left // 2:
        raise ConfigError(
            f"{what} would take {format_size(nbytes)} of memory, and {format_size(left)} are left: "
            f"{instead}"
        )


def edge_index(csc: MappedCSC) -> torch.Tensor:
    """Make the edges of a type as COO, in the original order: edge `e_id` is column `e_id`; int64
    [2, num_edges].

    Raises:
        ConfigError: memory has no room for it.
        StoreError: the store is damaged.
    """
    whose = "edge_index" if csc.type is None else f"edge_index of {csc.type}"
    view = "store" if csc.type is None else f"store[{csc.type}]"
    check_room(
        16 * len(csc.indices),
        whose,
        "give the store itself to a loader, which samples from the disk. "
        f"{view}.indptr and {view}.indices are the same edges as mapped CSC arrays",
    )
    made = np.full((2, len(csc.indices)), -1, np.int64)
    for first, source, target in chunks(csc):
        at: Any = slice(first, first + len(source))
        if csc.edge_id is not None:
            at = np.asarray(csc.edge_id[at], np.int64)
            if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(csc.indices):
                raise _damaged(csc, "edge_id")
        made[0, at], made[1, at] = source, target
    if made.size and made.min() < 0:
        raise _damaged(csc, "edge_id")
    return torch.from_numpy(made)


def chunks(csc: MappedCSC) -> Iterator[tuple[int, Int64Array, Int64Array]]:
    """Read the edges of a type in CSC order: the position of the first edge, and sources and
    targets, int64 [n].

    Raises:
        StoreError: the store is damaged.
    """
    pointers, indices = csc.pointers, csc.indices
    targets = len(pointers) - 1
    step = max(1, _STEP * targets // max(len(indices), 1))
    for node in range(0, targets, step):
        ends = pointers[node : node + step + 1].astype(np.int64)
        source = np.asarray(indices[ends[0] : ends[-1]], np.int64)
        if len(source) and not 0 <= int(source.min()) <= int(source.max()) < csc.num_sources:
            raise _damaged(csc, "indices")
        target = np.repeat(np.arange(node, node + len(ends) - 1), np.diff(ends))
        yield int(ends[0]), source, target


def has_self_loops(graph: Sequence[MappedCSC]) -> bool:
    """Whether an edge goes from a node to itself; `graph` has the edges of each type."""
    return any(
        bool((source == target).any())
        for csc in graph
        if len(set(ends_of(csc.type))) == 1
        for _, source, target in chunks(csc)
    )


def has_isolated_nodes(graph: Sequence[MappedCSC], counts: Mapping[NodeKey, int]) -> bool:
    """Whether a node has no edge but self loops. `graph` has the edges of each type, `counts` the
    number of nodes, by the types that count."""
    seen = {type: np.zeros(count, bool) for type, count in counts.items()}
    for csc in graph:
        source_type, target_type = ends_of(csc.type)
        for _, source, target in chunks(csc):
            if source_type == target_type:
                others = source != target
                source, target = source[others], target[others]
            for type, found in ((source_type, source), (target_type, target)):
                if type in seen:
                    seen[type][found] = True
    return not all(each.all() for each in seen.values())


def _damaged(csc: MappedCSC, name: str) -> StoreError:
    return StoreError(
        f"{csc.folder}/{name}.npy holds a number out of range: run `gnndrive verify` and import "
        "the store again"
    )
