"""`split_slots`: divides the feature buffer's memory among its tables.

`RowSlots` and `choose_topology` call it. A homogeneous store usually has one table, which gets all
the memory; a heterogeneous store has one for each type with features.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnndrive.common.items import TableShape

SMALL_SHARE = 16  # a table is small if its largest batch takes at most 1/16 of the memory
SMALL_TABLES = 2  # the small tables' largest batches together take at most 1/2 of the memory


def split_slots(nbytes: int, tables: Sequence[TableShape], costs: Sequence[int]) -> list[int]:
    """Divide memory among tables, so that each holds the same multiple of its largest batch.

    There are two exceptions. No table gets more slots than it has rows. A small table always holds
    its largest batch: batches have about as many rows of a small type as the plan counts, but far
    fewer of a large type, for which the plan counts the worst case.

    Args:
        nbytes: bytes to divide; a negative number counts as 0.
        tables: the tables.
        costs: bytes of a slot of each table.

    Returns:
        The number of slots of each table; 0 for a table that no batch needs.
    """
    costs, left = [max(cost, 1) for cost in costs], max(nbytes, 0)
    slots = [0] * len(tables)
    needs = [min(table.batch_rows_max, table.rows) for table in tables]
    needs_bytes = [need * cost for need, cost in zip(needs, costs, strict=True)]
    sharing = [i for i, need in enumerate(needs) if need]
    least = dict.fromkeys(sharing, 0)
    left_for_small = nbytes // SMALL_TABLES
    for i in sorted(sharing, key=lambda i: needs_bytes[i]):
        if needs_bytes[i] * SMALL_SHARE > nbytes or needs_bytes[i] > left_for_small:
            break
        left_for_small -= needs_bytes[i]
        least[i] = needs[i]
    while sharing:
        batch_bytes = sum(needs_bytes[i] for i in sharing)
        for i in sharing:
            slots[i] = max(left, 0) * needs[i] // batch_bytes
        settled = [i for i in sharing if slots[i] < least[i]]
        for i in settled:
            slots[i] = least[i]
        # Tables that fit are settled only if no small table needed more than its share, because
        # small tables leave less for the others and tables that fit leave more.
        if not settled:
            settled = [i for i in sharing if slots[i] >= tables[i].rows]
            for i in settled:
                slots[i] = tables[i].rows
        if not settled:
            break
        left -= sum(slots[i] * costs[i] for i in settled)
        sharing = [i for i in sharing if i not in settled]
    return slots
