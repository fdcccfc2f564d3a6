"""How the feature buffer's memory is divided among tables."""

from __future__ import annotations

from collections.abc import Sequence

from gnndrive.plan.requirements import TableRequirements

SMALL_SHARE = 16  # a table is small if its largest batch takes no more than 1/16 of the memory
SMALL_TABLES = 2  # and all of those together no more than half of it


def split_slots(
    nbytes: int, tables: Sequence[TableRequirements], costs: Sequence[int]
) -> list[int]:
    """Divide memory among tables: slots for as many largest batches of each, and none more than it
    has rows. Those whose largest batch is little beside the others' hold it whole in any case: how
    many rows a batch has of a small type is known, of a large one it is a worst case.

    Args:
        nbytes: what there is.
        tables: who wants some.
        costs: bytes of a slot of each.

    Returns:
        How many slots each gets; 0 for a table that no batch needs.
    """
    costs, left = [max(cost, 1) for cost in costs], max(nbytes, 0)
    slots = [0] * len(tables)
    needs = [min(table.batch_rows_max, table.rows) for table in tables]
    sharing = [i for i, need in enumerate(needs) if need]
    least = dict.fromkeys(sharing, 0)
    small = nbytes // SMALL_TABLES
    for i in sorted(sharing, key=lambda i: needs[i] * costs[i]):
        if needs[i] * costs[i] * SMALL_SHARE > nbytes or needs[i] * costs[i] > small:
            break
        small -= needs[i] * costs[i]
        least[i] = needs[i]
    while sharing:
        of_batch = sum(needs[i] * costs[i] for i in sharing)
        for i in sharing:
            slots[i] = max(left, 0) * needs[i] // of_batch
        settled = [i for i in sharing if slots[i] < least[i]]
        for i in settled:
            slots[i] = least[i]
        if not settled:  # only now, for these leave less to the others, and whole tables more
            settled = [i for i in sharing if slots[i] >= tables[i].rows]
            for i in settled:
                slots[i] = tables[i].rows
        if not settled:
            break
        left -= sum(slots[i] * costs[i] for i in settled)
        sharing = [i for i in sharing if i not in settled]
    return slots
