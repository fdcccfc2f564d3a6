"""`PlanItem`: one use of memory; `other_items` lists all uses except the feature buffer.

`make_plan` (`plan/plan.py`) calls it; a new use of memory is added here. What the items count is an
upper bound for batches of the planned size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnndrive.common.memory import format_size
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.requirements import CODE_BYTES, SLOT_TABLE_BYTES, Requirements
from gnndrive.plan.slot_split import split_slots

MAPPING_BYTES = 4  # a row's entry in the mapping table
# For each row of a batch in extraction: joined 8, alias 4, pending 4, load_rows 8 and load_slots 4,
# planned reads 21. If it is admitted by parts, also its order 4 and its part's pending 4, but
# then load_rows and load_slots are one part's, unless reads wait for a device's staging.
LEASE_BYTES, LEASE_BYTES_STAGED = 49, 57
# An announced row: its id in the rank's arena; and from its batch's turn on, in the service too.
ANNOUNCED_BYTES, JOINED_BYTES = 4, 8
WINDOW_BYTES = 1  # a row's entry in native/window.c
# A place of a victim buffer: a slot table's entries, its code, and its slot and place on their way,
# which torch rounds up. And an evicted row of a part, with its next use, until it is offered.
VICTIM_PLACE_BYTES = SLOT_TABLE_BYTES + 2 + 16
EVICTED_BYTES, EVICTED_ROWS_MAX = 48, 1 << 18
PER_EPOCH = (  # the items that each live iterator has for itself
    "mapping table",
    "window graphs",
    "queued samples",
    "records",
    "next uses",
    "sampler scratch",
    "leases",
    "live batches",
    "look-ahead",
    "pinned staging",
    "pinned copies",
    "attributes",
)
VICTIMS = ("victim buffer", "victim table")
SHARE = (  # the items that are in the host service if it has the feature buffer
    "feature buffer",
    "slot tables",
    "mapping table",
    "staging",
    "announced rows",
    "leases",
    "look-ahead",
    "row classes",
)
SAMPLING = ("topology", "sampler scratch")  # the items that only sampling needs
WHILE_SAMPLING = (  # the items that are in memory while a superbatch is sampled apart
    *SAMPLING,
    "index pointers",
    "mapped files",
    "input nodes",
    "labels",
    "staging",
    "row classes",
    "next uses",
    "records",
    "live batches",
    "pinned copies",
)
RANKED = "a byte a row: its class, by which rows leave"
LIVE = "one in use, one ready"
NO_VICTIMS = {
    "slots": "none: the feature buffer's slots are in host memory themselves",
    "policy": "none: the policy does not look ahead, so that no row is known to be needed again",
    "whole": "none: no row ever leaves the device",
    "room": "none: the other items leave no memory for it",
}
LIVE_WITHOUT_FEATURES = "without features: made on the host, then copied to the device"


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One use of memory.

    Attributes:
        what: the item's name, such as "staging".
        nbytes: an upper bound, in bytes.
        why: what it holds and why it has this size, as `plan()` prints it.
        copies: how many of it there are on the host: one for each rank, or 1 if the ranks share it;
            0: it is there once for several loaders, and a service counts it.
    """

    what: str
    nbytes: int
    why: str
    copies: int = 1

    @property
    def host_bytes(self) -> int:
        """Bytes of all copies."""
        return self.copies * self.nbytes


def item_if_any(what: str, nbytes: int, why: str, copies: int = 1) -> list[PlanItem]:
    """One item, or none of no bytes."""
    return [PlanItem(what, nbytes, why, copies)] if nbytes else []


def format_items(
    items: tuple[PlanItem, ...], budget: int | None, name: str, ranks: int = 1,
    mark: Callable[[PlanItem], str] = lambda item: "",
) -> str:  # fmt: skip
    """One line for each item and one for their total.

    Args:
        items: what to list.
        budget, name: what limits them, and the argument that set it.
        ranks: ranks on this host.
        mark: says whose memory an item is.
    """
    width = max(len(item.what) for item in items)
    marks = [mark(item) for item in items]
    wide = max(map(len, marks)) + 2 if any(marks) else 0
    rows = [
        f"{item.what:<{width}}  {format_size(item.nbytes):>8}  {whose:<{wide}}{item.why}"
        for item, whose in zip(items, marks, strict=True)
    ]
    text = f"{format_size(sum(item.host_bytes for item in items)):>8}"
    if ranks > 1 and all(item.copies > 1 for item in items):
        of_one = format_size(sum(item.nbytes for item in items))
        text = f"{of_one:>8}  × {ranks} = {text.strip()}"
    of_budget = "" if budget is None else f"  of {name}={format_size(budget)}"
    return "\n".join([*rows, f"{'total':<{width}}  {text}{of_budget}"])


def slot_bytes(requirements: Requirements) -> list[int]:
    """For each table, bytes of host memory of a slot and its entries in the slot table."""
    on_host = requirements.device_memory is None
    own = requirements.slot_table_bytes
    return [own + max(table.row_bytes, 1) * on_host for table in requirements.tables]


def rest_bytes(requirements: Requirements) -> int:
    """Bytes on this host of everything except feature buffers, slot tables and the topology; if a
    superbatch is sampled apart, of everything then but the topology."""
    items = other_items(requirements, None)
    wanted = WHILE_SAMPLING if requirements.apart else [item.what for item in items]
    return sum(item.host_bytes for item in items if item.what in wanted)


def extraction_items(
    requirements: Requirements, topology: TopologyChoice | None
) -> tuple[PlanItem, ...]:
    """The items of `other_items` that are in memory beside the feature buffer."""
    items = other_items(requirements, topology)
    return tuple(item for item in items if not (requirements.apart and item.what in SAMPLING))


def other_items(
    requirements: Requirements, topology: TopologyChoice | None
) -> tuple[PlanItem, ...]:
    """All items of host memory except the feature buffer and its slot tables, and a victim buffer
    whose size depends on what these leave.

    If ranks share a feature buffer, its tables, index pointers and labels are there once on this
    host, and leases are those of all ranks. So is the adjacency, unless each rank reads what it
    needs of it; and pages of mapped files are in memory once in any case.
    """
    each, once, graphs = requirements.ranks, requirements.buffers, requirements.graphs
    on_device = requirements.device_memory is not None
    in_memory = "the graph's, in memory"
    entry = f"an entry for each of {requirements.table_rows:,} rows"
    pinned = PlanItem(
        "pinned staging", requirements.pinned_bytes, "for rows on their way to the device", each
    )
    return (
        PlanItem("mapping table", MAPPING_BYTES * requirements.table_rows, entry, once),
        PlanItem("index pointers", requirements.index_pointer_bytes, in_memory, graphs),
        *item_if_any("times, weights", requirements.graph_bytes, in_memory, each),
        *([] if topology is None else [_topology_item(requirements, topology)]),
        *item_if_any(
            "attributes", requirements.fetch_bytes, "to read rows of files too large for memory",
            each,
        ),
        *item_if_any("mapped files", requirements.mapped_bytes, "attributes with small files"),
        PlanItem("input nodes", requirements.seed_bytes, "their ids and order", each),
        PlanItem("labels", requirements.label_bytes, "of all nodes, in the smallest dtype", graphs),
        PlanItem("staging", requirements.staging_bytes, "for reads in flight", once),
        *([pinned] if on_device else []),
        *item_if_any(
            "pinned copies",
            requirements.pinned_per_byte * requirements.copied_bytes,
            "of two batches without features, rounded up by torch",
            each,
        ),
        *_batch_items(requirements),
        PlanItem(
            "look-ahead", _window_bytes(requirements), "which queued samples need a row", once
        ),
        *item_if_any("row classes", requirements.ranked_rows, RANKED, once),
        *([] if requirements.victim_bytes is None
          else victim_items(requirements, victim_places(requirements))),
    )  # fmt: skip


def victims_planned(requirements: Requirements) -> str | None:
    """Why there is no victim buffer although the strategy has one, a key of `NO_VICTIMS`; None:
    there may be one."""
    if requirements.device_memory is None:
        return "slots"
    return None if requirements.looks_ahead else "policy"


def victim_places(requirements: Requirements, left: int = 0) -> list[int]:
    """How many rows of each table the victim buffer of one rank has room for.

    Args:
        requirements: their `victim_bytes` are for rows.
        left: if these are None, bytes of one rank for all items of `victim_items`.
    """
    tables, given = requirements.tables, requirements.victim_bytes
    if victims_planned(requirements) is not None or given == 0:
        return [0] * len(tables)
    row_bytes = [max(table.row_bytes, 1) for table in tables]
    if given is not None:
        return split_slots(given // requirements.ranks, tables, row_bytes)
    left -= sum(item.nbytes for item in victim_items(requirements, [0] * len(tables)))
    return split_slots(left, tables, [each + VICTIM_PLACE_BYTES for each in row_bytes])


def victim_items(
    requirements: Requirements, places: Sequence[int], none: str | None = None
) -> list[PlanItem]:
    """The items of a victim buffer with so many places for the rows of each table; `none`: a key of
    `NO_VICTIMS`, why there is none."""
    if requirements.victim_bytes == 0:
        return []
    none = none or victims_planned(requirements)
    if none is not None:
        return [PlanItem("victim buffer", 0, NO_VICTIMS[none])]
    ranks, tables = requirements.ranks, requirements.tables
    nbytes = sum(n * max(each.row_bytes, 1) for n, each in zip(places, tables, strict=True))
    table_bytes = MAPPING_BYTES * requirements.table_rows + VICTIM_PLACE_BYTES * sum(places)
    table_bytes += EVICTED_BYTES * min(requirements.entries_max, EVICTED_ROWS_MAX)
    on_the_way = requirements.copy_out_bytes * len(tables)
    rows = f"{sum(places):,} rows that leave the device and are needed again, pinned"
    return [
        PlanItem("victim buffer", nbytes + on_the_way, rows, ranks),
        PlanItem("victim table", table_bytes, "where which of these rows is", ranks),
    ]


def _topology_item(requirements: Requirements, topology: TopologyChoice) -> PlanItem:
    copies = requirements.ranks if topology.has_ring else requirements.graphs
    return PlanItem("topology", topology.nbytes, topology.why, copies)


def _batch_items(requirements: Requirements) -> tuple[PlanItem, ...]:
    """The items that hold batches on their way."""
    each, once = requirements.ranks, requirements.buffers
    nodes, edges = requirements.batch_nodes_max, requirements.batch_edges_max
    on_device = requirements.device_memory is not None
    live = requirements.batch_bytes - (requirements.features_bytes if on_device else 0)
    scratch = requirements.scratch_bytes + requirements.candidate_bytes
    lease_bytes = LEASE_BYTES_STAGED if on_device else LEASE_BYTES
    leased = requirements.batches_extracted * (each // once)
    largest = f"a batch has at most {nodes:,} nodes and {edges:,} edges"
    if requirements.drawn is not None:
        largest = f"{requirements.drawn}; planned: {nodes:,} nodes and {edges:,} edges"
    return (
        PlanItem(
            "queued samples",
            requirements.sample_bytes * requirements.batches_queued,
            f"{requirements.batches_queued} samples; {largest}",
            each,
        ),
        PlanItem(
            "sampler scratch",
            scratch * requirements.samplers,
            f"of {requirements.samplers} samplers",
            each,
        ),
        PlanItem(
            "leases",
            lease_bytes * requirements.entries_max * leased,
            f"aliases and reads of {leased} batches",
            once,
        ),
        *_announced(requirements),
        *_superbatch_items(requirements),
        PlanItem(
            "live batches",
            2 * live + requirements.making_bytes,
            LIVE_WITHOUT_FEATURES if on_device else LIVE,
            each,
        ),
    )


def _window_bytes(requirements: Requirements) -> int:
    """Bytes of the windows of tables whose next uses do not come from superbatches."""
    rows = requirements.table_rows - requirements.foreseen_rows
    return requirements.looks_ahead * WINDOW_BYTES * rows


def _superbatch_items(requirements: Requirements) -> list[PlanItem]:
    """What samples take that wait on disk, and what is known of them."""
    rows, record = requirements.foreseen_rows, requirements.record_bytes
    codes = CODE_BYTES * requirements.batch_nodes_max * (requirements.batches_queued + 1)
    samplers, sample = requirements.samplers, requirements.sample_bytes
    return [
        *item_if_any(
            "next uses", CODE_BYTES * rows + codes * (rows > 0), "of each row, in a superbatch"
        ),
        *item_if_any(
            "records",
            record and (record + sample) * samplers + requirements.kept_seed_bytes,
            f"{samplers} samples and their records, and seeds of batches sampled ahead",
        ),
    ]


def _announced(requirements: Requirements) -> list[PlanItem]:
    """What ranks that share a feature buffer hand to the host service."""
    if not requirements.shared:
        return []
    entries, ranks = requirements.entries_max, requirements.ranks
    announced = requirements.batches_queued * ranks
    joined = requirements.batches_extracted * ranks
    nbytes = (ANNOUNCED_BYTES * announced + JOINED_BYTES * joined) * entries
    return [PlanItem("announced rows", nbytes, f"row ids of {announced} batches of all ranks")]
