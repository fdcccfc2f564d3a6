"""Choose the hot nodes: those whose rows stay in memory during training (DiskGNN §4.2).

All batches are recorded before they are packed, so the uses of each node are known exactly, and the
nodes with the most uses save the most reads. The rows of the hot nodes lie on disk in bands, the
hottest first, so that training with less memory keeps a first part of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.store.format import index_dtype

BANDS = 32
"""Into how many bands the hot nodes are divided by their uses. Within a band they lie by id, so
that a part of the table holds the rows of at most as many stretches of the file."""

_CHUNK = 1 << 22  # nodes that are looked at at once
Counts = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class HotNodes:
    """The hot nodes in the order of their rows on disk; a node's place in it is its slot.

    Attributes:
        node: the hot nodes, int32 or int64 [slots]: band after band, the hottest first, and by id
            within a band.
        band_ends: the slot after the last one of each band, int64 [BANDS]; a band may be empty.
        band_uses: the uses of each band's nodes together, int64 [BANDS].
    """

    node: Int32Array | Int64Array
    band_ends: Int64Array
    band_uses: Int64Array

    @property
    def uses(self) -> int:
        """The uses of all hot nodes together."""
        return int(self.band_uses.sum())


def choose_hot(counts: Counts, slots: int) -> HotNodes:
    """Return the nodes with the most uses; of those with equally many, the ones with lowest id.

    A node without uses is never hot. Nodes with equally many uses are in the same band; apart from
    that, the bands have about equally many nodes. Needs 8 bytes for each number up to the largest
    count and a few bytes for each slot, besides `counts`.

    Args:
        counts: how many batches use each node, uint32 [nodes].
        slots: how many nodes may be hot.
    """
    having = _histogram(counts)
    with_more = having[::-1].cumsum()[::-1] - having  # nodes with more uses than 0, 1, ...
    fitting = np.flatnonzero(with_more[1:] < slots) + 1
    if not len(fitting):
        return HotNodes(np.empty(0, index_dtype(len(counts))), *np.zeros((2, BANDS), np.int64))
    threshold = int(fitting[0])
    taken = having.copy()
    taken[:threshold] = 0
    taken[threshold] = min(having[threshold], slots - with_more[threshold])
    band_of = np.zeros(len(having), np.uint8)
    # If no node has just this count, all hot nodes may have more uses, and the quotient is BANDS.
    band_of[threshold:] = np.minimum(with_more[threshold:] * BANDS // taken.sum(), BANDS - 1)
    sizes = np.zeros(BANDS, np.int64)
    uses = np.zeros(BANDS, np.int64)
    np.add.at(sizes, band_of, taken)
    np.add.at(uses, band_of, taken * np.arange(len(taken)))
    node = _collect(counts, threshold, int(taken[threshold]), band_of, sizes)
    return HotNodes(node, sizes.cumsum(), uses)


def _chunks(counts: Counts) -> Iterator[tuple[int, Counts]]:
    for start in range(0, len(counts), _CHUNK):
        yield start, counts[start : start + _CHUNK]


def _histogram(counts: Counts) -> Int64Array:
    """How many nodes have 0, 1, 2 ... uses, int64 [largest count + 1]."""
    largest = int(counts.max(initial=0))
    having = np.zeros(largest + 1, np.int64)
    for _, chunk in _chunks(counts):
        having += np.bincount(chunk, minlength=largest + 1)
    return having


def _collect(
    counts: Counts, threshold: int, ties: int, band_of: npt.NDArray[np.uint8], sizes: Int64Array
) -> npt.NDArray[Any]:
    """The nodes above the threshold, and the first `ties` at it, each put into its band."""
    node = np.empty(int(sizes.sum()), index_dtype(len(counts)))
    at = sizes.cumsum() - sizes
    for start, chunk in _chunks(counts):
        chosen = np.flatnonzero(chunk >= threshold)
        tied = np.flatnonzero(chunk[chosen] == threshold)
        chosen = np.delete(chosen, tied[ties:])
        ties -= min(ties, len(tied))
        band = band_of[chunk[chosen]]
        chosen = chosen[np.argsort(band, kind="stable")]
        end = 0
        for number, count in enumerate(np.bincount(band, minlength=BANDS).tolist()):
            node[at[number] : at[number] + count] = chosen[end : end + count] + start
            at[number] += count
            end += count
    return node
