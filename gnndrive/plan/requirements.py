"""What a plan depends on: tables, the largest batch, queues."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE_NODE_BYTES = 12  # a node of a queued sample: its id, where its edges start
SUBGRAPH_NODE_BYTES = 16  # the same in PyG's form: its id, whose tree it is in
SUBGRAPH_EDGE_BYTES = 24  # source, target, position
NODE_ID_BYTES = 8  # n_id
BATCH_EDGE_BYTES = 44  # edge_index, e_id, and making them: col, positions, original numbers


@dataclass(frozen=True, slots=True)
class TableRequirements:
    """What the plan depends on of one table of the feature buffer.

    Attributes:
        name: its name.
        rows: how many it has.
        row_bytes: bytes of one.
        batch_rows_max: the most distinct rows that a batch can need.
        batch_entries_max: its rows, if they can be more, for in disjoint trees one may come often.
        converted_bytes: bytes of a row as it is delivered, if it is converted.
    """

    name: str
    rows: int
    row_bytes: int
    batch_rows_max: int
    batch_entries_max: int = 0
    converted_bytes: int = 0

    @property
    def batch_bytes(self) -> int:
        """Bytes of its rows in the largest batch."""
        entries = max(self.batch_entries_max, self.batch_rows_max)
        return (self.row_bytes + self.converted_bytes) * entries


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the plan depends on.

    Attributes:
        tables: that go through the feature buffer.
        batch_nodes_max, batch_edges_max: the largest batch's nodes, as often as they come, and
            edges.
        attribute_bytes: bytes of the largest batch's other attributes.
        edge_number_bytes: bytes of an edge's number in a queued sample, if edges have a table.
        subgraphs: whether samples are in PyG's own form, which is larger.
        graph_bytes: of times and weights in memory.
        mapped_bytes: of files that are mapped and shall stay in memory.
        fetch_bytes: of reading attributes that are not mapped.
        candidate_bytes: of a sampling thread's scratch for the longest list, where they have a say.
        position_bytes: bytes of an edge's position in the graph, 4 or 8.
        batches_queued: samples that can be alive at once.
        batches_extracted: batches in the training window, each with its lease.
        samplers: sampling threads.
        seed_bytes: the input nodes and their order.
        staging_bytes: what the engine needs.
        index_pointer_bytes: the graph's, in memory.
        label_bytes: the labels that are kept in memory.
        looks_ahead: whether the policy wants to know rows' next uses.
        device_memory: bytes of the device for the buffer and live batches; None: they are in host
            memory.
        device_given: whether the user said so many; else the device had them free.
        device_why: why so many.
        pinned_bytes: staging before the device.
    """

    tables: tuple[TableRequirements, ...]
    batch_nodes_max: int
    batch_edges_max: int
    position_bytes: int
    batches_queued: int
    batches_extracted: int
    samplers: int
    seed_bytes: int
    staging_bytes: int
    index_pointer_bytes: int
    label_bytes: int = 0
    looks_ahead: bool = False
    device_memory: int | None = None
    device_given: bool = False
    device_why: str = ""
    pinned_bytes: int = 0
    attribute_bytes: int = 0
    edge_number_bytes: int = 0
    subgraphs: bool = False
    graph_bytes: int = 0
    candidate_bytes: int = 0
    mapped_bytes: int = 0
    fetch_bytes: int = 0

    @property
    def table_rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the largest sample."""
        node, edge = SAMPLE_NODE_BYTES, 4 + self.position_bytes
        if self.subgraphs:
            node, edge = SUBGRAPH_NODE_BYTES, SUBGRAPH_EDGE_BYTES
        return node * self.batch_nodes_max + (edge + self.edge_number_bytes) * self.batch_edges_max

    @property
    def features_bytes(self) -> int:
        """Bytes of the rows of the feature buffer in the largest batch."""
        return sum(table.batch_bytes for table in self.tables)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        ids = NODE_ID_BYTES * self.batch_nodes_max + BATCH_EDGE_BYTES * self.batch_edges_max
        return self.features_bytes + self.attribute_bytes + ids
