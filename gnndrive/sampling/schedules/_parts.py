"""`InputParts`: a loader's input nodes or edges by the partitions that they lie in.

Schedules of mega-batches need to know which inputs each partition has. `InputNodes.parts` and
`InputEdges.parts` find out at the first use, and keep the result for all epochs of the loader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnndrive.common.forks import ForkLock
from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.sampling.schedules._order import order_width

_CHUNK = 1 << 16  # inputs whose partitions are looked up together
_CHUNK_BYTES_EACH = 128  # of the arrays of one lookup


class Partitions(Protocol):
    """What schedules ask of a partitioned store."""

    @property
    def num_parts(self) -> int:
        """The number of partitions."""

    def part_of(self, nodes: Int64Array) -> Int32Array:
        """Return the partition of each node, int32 [n]; reads a mapped file."""


@dataclass(frozen=True, slots=True)
class InputParts:
    """Inputs in the order of their keys. The key of a node is its partition; the key of an edge is
    partition of the source × number of partitions + partition of the target.

    Attributes:
        keys: the keys that at least one input has, ascending, int64 [n].
        bounds: `positions[bounds[k]]` to `positions[bounds[k + 1]]` have `keys[k]`; int64 [n + 1].
        positions: positions among the inputs, ascending for each key; int32 or int64 [inputs].
    """

    keys: Int64Array
    bounds: Int64Array
    positions: Int32Array | Int64Array


class KeptParts:
    """Keeps the `InputParts` of one loader's inputs; is pickled without them."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._found: tuple[Partitions, InputParts] | None = None

    def get(self, partitioned: Partitions, find: Callable[[], InputParts]) -> InputParts:
        """Return what `find` returns, which is called once for each partitioned store."""
        with self._lock:
            if self._found is None or self._found[0] is not partitioned:
                self._found = partitioned, find()
            return self._found[1]

    def __reduce__(self) -> tuple[type[KeptParts], tuple[()]]:
        return KeptParts, ()


def parts_bytes(count: int, keys_end: int) -> int:
    """Return the bytes of the `InputParts` of `count` inputs with keys below `keys_end`."""
    return order_width(count) * count + 16 * (min(count, keys_end) + 1)


def finding_bytes(count: int, keys_end: int) -> int:
    """Return the bytes that `find_parts` takes beside its result."""
    chunk = _CHUNK_BYTES_EACH * min(count, _CHUNK)
    return order_width(keys_end) * count + keys_end + 16 * min(count, keys_end) + chunk


def find_parts(
    count: int, keys_end: int, keys_of: Callable[[Int64Array], Int64Array]
) -> InputParts:
    """Sort inputs by their keys, which `keys_of` returns for positions, and which are all below
    `keys_end`. Takes no more memory than `finding_bytes` beside the result."""
    key, has = np.empty(count, f"i{order_width(keys_end)}"), np.zeros(keys_end, bool)
    chunks = [slice(at, min(at + _CHUNK, count)) for at in range(0, count, _CHUNK)]
    for chunk in chunks:
        key[chunk] = keys_of(np.arange(chunk.start, chunk.stop))
        has[key[chunk]] = True
    keys = np.flatnonzero(has)
    bounds = np.zeros(len(keys) + 1, np.int64)
    for chunk in chunks:
        which, lengths = np.unique(np.searchsorted(keys, key[chunk]), return_counts=True)
        bounds[which + 1] += lengths
    np.cumsum(bounds, out=bounds)
    positions, free = np.empty(count, f"i{order_width(count)}"), bounds[:-1].copy()
    for chunk in chunks:
        order = np.argsort(key[chunk], kind="stable")
        which, starts, lengths = np.unique(
            np.searchsorted(keys, key[chunk][order]), return_index=True, return_counts=True
        )
        places = np.repeat(free[which] - starts, lengths) + np.arange(len(order))
        positions[places] = order + chunk.start
        free[which] += lengths
    return InputParts(keys, bounds, positions)
