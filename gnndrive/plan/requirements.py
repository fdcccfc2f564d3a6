"""`Requirements`: the sizes that a plan depends on, in bytes and numbers of rows.

`make_planner` (`plan/request.py`) fills them in; `make_plan` and `choose_topology` compute with
them. They know neither the store nor the loader, so a test can plan with numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

# A slot's entries in native/buffer.c and standby.c. Standby also has one bucket for each distinct
# key; these are not counted, because LRU has few.
SLOT_TABLE_BYTES = 38
CODE_BYTES = 2  # when a row is needed next, of a superbatch
SAMPLE_NODE_BYTES = 8  # a node of a queued sample: its id
SAMPLE_EXPANDED_BYTES = 4  # and, if its neighbours were sampled, where its edges start
SUBGRAPH_NODE_BYTES = 16  # a node of a queued sample in PyG's form: its id, its tree's number
SUBGRAPH_EDGE_BYTES = 24  # an edge of a queued sample in PyG's form: source, target, position
ALIAS_BYTES = 4  # a row of a batch: its slot
NODE_ID_BYTES = 8  # a node's n_id in a batch
BATCH_EDGE_BYTES = 24  # edge_index, e_id
MAKING_EDGE_BYTES = 20  # while a batch is made: col, positions, original numbers


@dataclass(frozen=True, slots=True)
class TableRequirements:
    """The sizes of one table of the feature buffer.

    Attributes:
        name: the table's name, such as "nodes/x".
        rows: number of rows of the table.
        row_bytes: bytes of one row as it is stored.
        batch_rows_max: the most distinct rows that a batch can need.
        batch_entries_max: the most rows that a batch can have. They can be more than the distinct
            rows, because the same node may be in several disjoint trees.
        converted_bytes: bytes of a row as it is delivered; 0: rows are delivered as stored.
    """

    name: str
    rows: int
    row_bytes: int
    batch_rows_max: int
    batch_entries_max: int = 0
    converted_bytes: int = 0

    @property
    def batch_bytes(self) -> int:
        """Bytes of the table's rows in the largest batch."""
        entries = max(self.batch_entries_max, self.batch_rows_max)
        return (self.row_bytes + self.converted_bytes) * entries


@dataclass(frozen=True, slots=True)
class Served:
    """What a service that a user has started (`gnndrive serve`) has left for a loader.

    Attributes:
        left: bytes that it may still use; None: it has no limit.
        graphs: the topologies whose arrays it has in memory already.
    """

    left: int | None
    graphs: frozenset[str] = frozenset()

    def graph_room(self, topology: str, given: int) -> int:
        """Bytes that the service has for the arrays of a topology, beside a loader's own part.

        Args:
            topology: its name.
            given: bytes that the loader may use in all.
        """
        if self.left is None or topology in self.graphs:
            return 1 << 62
        return self.left - given


@dataclass(frozen=True, slots=True)
class Requirements:
    """The sizes that a plan depends on.

    Attributes:
        tables: the tables of the feature buffer.
        batch_nodes_max, batch_edges_max: numbers of nodes and edges of the largest batch; a node
            counts once in each disjoint tree.
        batch_expanded_max: number of nodes of the largest batch whose neighbours are sampled; None:
            all of them.
        position_bytes: bytes of an edge's position in the graph, 4 or 8.
        batches_queued: samples that can be alive at once.
        batches_extracted: batches that can be extracted at once, each with its lease.
        samplers: sampling threads.
        seed_bytes: bytes of the input nodes or edges and their order.
        staging_bytes: bytes of the engine's staging.
        index_pointer_bytes: bytes of the graph's index pointers in memory.
        label_bytes: bytes of the labels that are kept in memory.
        looks_ahead: whether the policy needs to know the rows' next uses.
        ranked_rows: rows of the tables whose classes the policy ranks rows by, a byte each.
        device_memory: bytes of the device for the feature buffer and live batches; None: both are
            in host memory.
        device_given: whether the user gave `device_memory`; if not, it is free memory of the
            device.
        device_why: the reason for the feature buffer's size on the device, as `plan()` prints it.
        pinned_bytes: bytes of pinned staging, through which rows reach the device.
        pinned_per_byte: bytes of pinned copies for each byte that is copied to the device.
        device_scratch_bytes: bytes of the device that moving rows into and out of slots takes.
        attribute_bytes: bytes of the largest batch's attributes that no table holds.
        edge_number_bytes: bytes of an edge's number in a queued sample; 0 unless edges have a
            table.
        subgraphs: whether samples are in PyG's own form, which is larger.
        graph_bytes: bytes of times and weights in memory.
        candidate_bytes: bytes of a sampling thread's scratch for the longest list of neighbours, if
            times or weights are used, or to choose neighbours with shared numbers.
        scratch_bytes: bytes of a sampling thread's scratch for the largest batch.
        drawn: what is known of batches that were drawn, as `plan()` prints it; None: the largest
            batch is the largest that the fanout allows.
        whole_batches: whether the feature buffer must hold a largest batch; else a row is enough.
        foreseen_rows: rows of the tables whose next uses come from superbatches.
        record_bytes: bytes of the largest sample on its way to or from the disk, if samples wait
            there; else 0.
        kept_seed_bytes: bytes of the seeds of batches that are sampled ahead.
        apart: whether a superbatch is sampled before the feature buffer is made, and the adjacency
            is freed meanwhile.
        mapped_bytes: bytes of memory-mapped files that are counted as staying in memory.
        fetch_bytes: bytes that reading attributes takes, if their files are not mapped.
        ranks: ranks on this host; everything above is one rank's.
        shared: whether the ranks share one feature buffer, and the graph.
        shared_graph: whether they share the graph.
        served: what a service that a user has started has left; None: the ranks share what one of
            them starts, or nothing. Such a service has the graph once for several loaders, so that
            it is no part of a loader's memory.
        victim_bytes: bytes of the victim buffers of all ranks; None: what memory leaves; 0: there
            are none.
        copy_out_bytes: bytes of pinned memory that rows take on their way to a victim buffer.
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
    batch_expanded_max: int | None = None
    looks_ahead: bool = False
    ranked_rows: int = 0
    device_memory: int | None = None
    device_given: bool = False
    device_why: str = ""
    pinned_bytes: int = 0
    pinned_per_byte: int = 0
    device_scratch_bytes: int = 0
    attribute_bytes: int = 0
    edge_number_bytes: int = 0
    subgraphs: bool = False
    graph_bytes: int = 0
    candidate_bytes: int = 0
    scratch_bytes: int = 0
    drawn: str | None = None
    whole_batches: bool = False
    foreseen_rows: int = 0
    record_bytes: int = 0
    kept_seed_bytes: int = 0
    apart: bool = False
    mapped_bytes: int = 0
    fetch_bytes: int = 0
    ranks: int = 1
    shared: bool = False
    shared_graph: bool = False
    served: Served | None = None
    victim_bytes: int | None = 0
    copy_out_bytes: int = 0

    @property
    def graphs(self) -> int:
        """How many times index pointers, labels and a resident adjacency are on this host for this
        loader."""
        if self.served is not None and self.shared_graph:
            return 0
        return 1 if self.shared or self.shared_graph else self.ranks

    @property
    def slot_table_bytes(self) -> int:
        """Bytes of a slot in the slot tables."""
        return SLOT_TABLE_BYTES + CODE_BYTES * (self.foreseen_rows > 0)

    @property
    def buffers(self) -> int:
        """Number of feature buffers on this host."""
        return 1 if self.shared else self.ranks

    @property
    def table_rows(self) -> int:
        """Number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the largest sample."""
        node, edge = SAMPLE_NODE_BYTES, 4 + self.position_bytes
        if self.subgraphs:
            node, edge = SUBGRAPH_NODE_BYTES, SUBGRAPH_EDGE_BYTES
        expanded = self.batch_expanded_max
        if expanded is None:
            expanded = self.batch_nodes_max
        nbytes = node * self.batch_nodes_max + SAMPLE_EXPANDED_BYTES * (expanded + 1)
        return nbytes + (edge + self.edge_number_bytes) * self.batch_edges_max

    @property
    def features_bytes(self) -> int:
        """Bytes of all tables' rows in the largest batch."""
        return sum(table.batch_bytes for table in self.tables)

    @property
    def entries_max(self) -> int:
        """Number of rows of the largest batch, over all tables."""
        return sum(max(table.batch_entries_max, table.batch_rows_max) for table in self.tables)

    @property
    def copied_bytes(self) -> int:
        """Bytes of the largest batch that are copied to the device beside its rows."""
        return self.batch_bytes - self.features_bytes + ALIAS_BYTES * self.entries_max

    @property
    def making_bytes(self) -> int:
        """Bytes that making the largest batch takes beside the batch."""
        return MAKING_EDGE_BYTES * self.batch_edges_max

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        ids = NODE_ID_BYTES * self.batch_nodes_max + BATCH_EDGE_BYTES * self.batch_edges_max
        return self.features_bytes + self.attribute_bytes + ids
