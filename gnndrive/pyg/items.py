"""The memory of batches as users get them, and of the attributes that they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gnndrive.common.items import BATCH_SIZE, Item, Life, Owner, Phase, Shape, Use, if_any

NODE_ID_BYTES = 8  # a node's n_id in a batch
BATCH_EDGE_BYTES = 24  # edge_index, e_id
MAKING_EDGE_BYTES = 20  # while a batch is made: col, positions, original numbers
LIVE = "one in use, one ready"
LIVE_WITHOUT_FEATURES = "without features: made on the host, then copied to the device"


def batch_bytes(nodes: int, edges: int, attribute_bytes: int = 0) -> int:
    """Bytes of a batch, beside the rows of the feature buffer's tables; a node counts once in each
    disjoint tree."""
    return attribute_bytes + NODE_ID_BYTES * nodes + BATCH_EDGE_BYTES * edges


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of all nodes that are kept in memory."""

    nbytes: int

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        why = "of all nodes, in the smallest dtype"
        yield Item("labels", self.nbytes, why, Owner.GRAPH, use=Use.GRAPH)


class LiveBatches:
    """Batches that are ready or in the user's hands."""

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        whole = shape.whole_batch_bytes
        here = shape.batch_bytes if shape.delivers else whole
        nbytes = 2 * here + MAKING_EDGE_BYTES * max(shape.edges, shape.padded_edges)
        why = LIVE_WITHOUT_FEATURES if shape.delivers else LIVE
        if shape.group > 1:
            why = f"two groups of {shape.group}, one in use, one ready"
        if shape.padded_edges > shape.edges:
            why += ", with padding"
        yield Item("live batches", nbytes, why, life=Life.KEPT, argument=BATCH_SIZE)
        if shape.delivers:
            yield Item("live batches", 2 * whole, LIVE, life=Life.KEPT, on_device=True)


@dataclass(frozen=True, slots=True)
class AttributeMemory:
    """The attributes that are no table of the feature buffer.

    Attributes:
        fetch_bytes: bytes that reading attributes takes, if their files are not mapped.
        mapped_bytes: bytes of memory-mapped files that are counted as staying in memory.
    """

    fetch_bytes: int = 0
    mapped_bytes: int = 0

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        why = "to read rows of other attributes, whose files are too large for memory"
        of_epoch = Owner.RANK, Life.EPOCH, Phase.EXTRACTION
        yield from if_any(Item("attributes", self.fetch_bytes, why, *of_epoch, use=Use.READING))
        why = "small files of other attributes, which stay in memory"
        yield from if_any(
            Item("mapped files", self.mapped_bytes, why, Owner.HOST, use=Use.FEATURES)
        )
