"""The memory of the graph beside its adjacency, and of samples on their way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gnndrive.common.items import BATCH_SIZE, Item, Life, Owner, Phase, Shape, Use, if_any

SAMPLE_NODE_BYTES = 8  # a node of a queued sample: its id
SAMPLE_EXPANDED_BYTES = 4  # and, if its neighbours were sampled, where its edges start
SUBGRAPH_NODE_BYTES = 16  # a node of a queued sample in PyG's form: its id, its tree's number
SUBGRAPH_EDGE_BYTES = 24  # an edge of a queued sample in PyG's form: source, target, position


def sample_bytes(
    nodes: int, edges: int, expanded: int | None, position_bytes: int, subgraphs: bool = False,
    edge_number_bytes: int = 0,
) -> int:  # fmt: skip
    """Bytes of a sample.

    Args:
        nodes: a node counts once in each disjoint tree.
        expanded: number of nodes whose neighbours are sampled; None: all of them.
        position_bytes: bytes of an edge's position in the graph, 4 or 8.
        subgraphs: whether the sample is in PyG's own form, which is larger.
        edge_number_bytes: bytes of an edge's number; 0 unless edges have a table.
    """
    node, edge = SAMPLE_NODE_BYTES, 4 + position_bytes
    if subgraphs:
        node, edge = SUBGRAPH_NODE_BYTES, SUBGRAPH_EDGE_BYTES
    nbytes = node * nodes + SAMPLE_EXPANDED_BYTES * ((nodes if expanded is None else expanded) + 1)
    return nbytes + (edge + edge_number_bytes) * edges


@dataclass(frozen=True, slots=True)
class Graph:
    """What a graph takes beside its indices, whose topology states them.

    Attributes:
        index_pointer_bytes: bytes of the index pointers in memory.
        weight_bytes: bytes of times and weights in memory.
    """

    index_pointer_bytes: int
    weight_bytes: int = 0

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        why = "where each node's neighbours begin"
        yield Item("index pointers", self.index_pointer_bytes, why, Owner.GRAPH, use=Use.GRAPH)
        why = "of all edges, in memory"
        yield from if_any(Item("times, weights", self.weight_bytes, why, use=Use.GRAPH))


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in the queues, and the threads that draw them.

    Attributes:
        scratch_bytes: bytes of a sampling thread's scratch for the largest batch.
        list_bytes: bytes of its scratch for the longest list of neighbours, if times or weights are
            used, or to choose neighbours with shared numbers.
        drawn: what is known of batches that were drawn, as `plan()` prints it; None: the largest
            batch is the largest that the fanout allows.
    """

    scratch_bytes: int = 0
    list_bytes: int = 0
    drawn: str | None = None

    def items(self, shape: Shape) -> Iterator[Item]:
        """See `Part`."""
        nodes, edges = f"{shape.nodes:,} nodes", f"{shape.edges:,} edges"
        largest = f"{shape.grouped} has at most {nodes} and {edges}"
        if self.drawn is not None:
            of_group = "" if shape.group == 1 else f" for {shape.grouped}"
            largest = f"{self.drawn}; planned{of_group}: {nodes} and {edges}"
        why = f"{shape.group * shape.queued} that wait; {largest}"
        yield Item(
            "queued samples", shape.sample_bytes * shape.queued, why, life=Life.EPOCH,
            during=Phase.EXTRACTION, argument=BATCH_SIZE,
        )  # fmt: skip
        # One call samples a group, and its samples are copied out at the end.
        kept = shape.sample_bytes if shape.group > 1 else 0
        scratch = (self.scratch_bytes + self.list_bytes + kept) * shape.samplers
        during = Phase.SAMPLING if shape.apart else Phase.BOTH
        why = f"working memory of {shape.samplers} sampling thread{'s' * (shape.samplers > 1)}"
        yield Item(
            "sampler scratch", scratch, why, life=Life.EPOCH, during=during, argument=BATCH_SIZE
        )  # fmt: skip
