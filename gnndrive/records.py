"""The frozen records that cross rooms: what one part hands to the next, and nothing else.

A batch is a list of seeds (`Seeds`), becomes a `Sample`, its missing rows become C reads whose
progress comes back as `Stretch`es, and ends as a torch_geometric `Data`. Records know nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
FAILURE = np.dtype([("slot", np.int32), ("error", np.int32), ("offset", np.int64)])
"""A row that could not be read: its slot, errno and where in the file; C's gd_failure."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds of one batch.

    Attributes:
        index: the batch's place in its epoch, from 0.
        node: global node ids, int64 [batch_size].
        input_id: what PyG calls `input_id`: positions in `input_nodes`, or ids for a mask; int64
            [batch_size].
    """

    index: int
    node: Int64Array
    input_id: Int64Array


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled subgraph (GNNDrive §4.1, sample stage): seeds first, then by hop.

    Attributes:
        node: global node ids, int64 [nodes].
        row, col: edge `e` goes from `node[row[e]]` to `node[col[e]]`; int32 [edges].
        edge: the edges' positions in the CSC graph, int64 [edges].
        num_sampled_nodes: new nodes per hop, hops + 1 numbers, the seeds first.
        num_sampled_edges: edges per hop, hops numbers.
    """

    node: Int64Array
    row: Int32Array
    col: Int32Array
    edge: Int64Array
    num_sampled_nodes: tuple[int, ...]
    num_sampled_edges: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows whose reads have ended since the last stretch of the same reads.

    Attributes:
        slots: slots whose row has landed whole, int32 [rows]; not valid before the device's commit.
        failures: rows that could not be read, `FAILURE` [rows].
    """

    slots: Int32Array
    failures: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, FAILURE))


@dataclass(frozen=True, slots=True)
class TableFile:
    """Where a table of rows lies on disk.

    Attributes:
        path: the file.
        data_offset: where row 0 starts, in bytes (a multiple of 4,096 in a store).
        row_count: number of rows.
        row_bytes: bytes of one row; rows lie one behind the other.
        dtype: the name of the element type: a numpy name or "bfloat16".
        row_shape: the shape of one row.
    """

    path: str
    data_offset: int
    row_count: int
    row_bytes: int
    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """Where rows land: slot `s` of the feature buffer starts at `address + s * slot_stride`.

    Attributes:
        address: an address in this process, aligned to 4,096 bytes.
        slot_stride: bytes from one slot to the next.
        direct: whether a row of whole aligned sectors may be read straight into its slot.
        owner: keeps the memory alive for as long as somebody may land rows in it.
    """

    address: int
    slot_stride: int
    direct: bool
    owner: Any = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine reads.

    Attributes:
        depth: requests in flight at once (uring), or threads (threads: at most 16 of them).
        block_bytes: bytes of one staging block; no extent is longer.
        seed: what the simulated engine draws its faults and its order from.
        faults: the simulated engine's fault rates, see `gnndrive.testing`.
    """

    depth: int = 128
    block_bytes: int = 65536
    seed: int = 0
    faults: Any = None
