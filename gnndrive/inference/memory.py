"""How much memory inference uses for what: `plan_rows` divides `memory=`.

As for loaders, `memory=` counts what inference itself holds: rows, their tables, the adjacency of
two blocks, one batch, staging, what is being written. It does not count Python, torch, the model
and what its layers allocate, such as a message for each edge of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_file import STRETCH_BYTES
from gnndrive.common.io.direct_writer import WRITER_BYTES
from gnndrive.common.items import TableShape
from gnndrive.common.memory import least_text
from gnndrive.common.records import NodeKey, TableFile
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.inference.row_cache import ROW_BYTES, SLOT_BYTES
from gnndrive.inference.subgraphs import ENTRY_BYTES
from gnndrive.inference.targets import Targets
from gnndrive.plan.slots import split_slots
from gnndrive.store.format import index_dtype

PLACE_BYTES = 4  # a slot's entry in the table that numbers a batch
EDGES_SHARE = 24  # in-edges of the blocks held take at most 1/24 of what is left for rows
BLOCKS_HELD = 3  # one is computed, one is read, one is planned


class TooLittleMemory(ConfigError):
    """`memory` is too small for any plan; `least` bytes are enough."""

    def __init__(self, least: int) -> None:
        super().__init__(f"memory={least_text(least)} is needed")
        self.least = least


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What the passes over one target type may hold: by node type, `slots` rows in memory and the
    `largest` number of rows of a batch, duplicates counted; and the in-edges of a block."""

    slots: Mapping[NodeKey, int]
    edges_max: int
    largest: Mapping[NodeKey, int]


def plan_rows(
    targets: Targets,
    files: Mapping[NodeKey, TableFile],
    memory: int,
    io_depth: int,
    node_bytes: int,
    edge_bytes: int,
) -> RowPlan:
    """Divide `memory` among the rows of each type, which the layer reads from `files`.

    `node_bytes` are further bytes for each node of these types, such as its degree, and
    `edge_bytes` for each in-edge of a batch, such as its weight. TooLittleMemory: the budget is too
    small for the largest batch.
    """
    largest = targets.largest()
    least = {type: min(largest[type], files[type].row_count) for type in largest}
    costs = {type: file.row_bytes + SLOT_BYTES + PLACE_BYTES for type, file in files.items()}
    sources = (view.source.num_nodes for view in targets.edges.values())
    width = np.dtype(index_dtype(max(sources, default=0))).itemsize
    batch_edges = targets.largest_edges()
    fixed = _fixed(targets, files, least, largest, io_depth, node_bytes)
    fixed += batch_edges * edge_bytes
    rows_least = sum(least[type] * costs[type] for type in least)
    needed = fixed + rows_least + BLOCKS_HELD * width * batch_edges
    if memory < needed:
        raise TooLittleMemory(needed)
    left = memory - fixed - rows_least
    edges_max = max(left // EDGES_SHARE // (BLOCKS_HELD * width), batch_edges)
    left -= BLOCKS_HELD * width * edges_max
    types = list(least)
    more = split_slots(
        left,
        [
            TableShape(
                str(type), files[type].row_count - least[type], files[type].row_bytes,
                min(largest[type], files[type].row_count - least[type]),
            )
            for type in types
        ],
        [costs[type] for type in types],
    )  # fmt: skip
    slots = {type: least[type] + extra for type, extra in zip(types, more, strict=True)}
    return RowPlan(slots, edges_max, largest)


def _fixed(
    targets: Targets, files: Mapping[NodeKey, TableFile], least: Mapping[NodeKey, int],
    largest: Mapping[NodeKey, int], io_depth: int, node_bytes: int,
) -> int:  # fmt: skip
    """Bytes that do not depend on the number of slots."""
    widest = max(file.row_bytes for file in files.values())
    tables = sum((ROW_BYTES + node_bytes) * file.row_count for file in files.values())
    pointers = sum(view.index_pointers.nbytes for view in targets.edges.values())
    batch = sum(
        2 * least[type] * files[type].row_bytes + ENTRY_BYTES * largest[type] for type in least
    )
    staging = io_depth * block_bytes(widest)
    return tables + pointers + batch + staging + WRITER_BYTES + len(targets.edges) * STRETCH_BYTES
