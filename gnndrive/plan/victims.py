"""`victims_left`: the victim buffer that has what the other uses of host memory leave.

`make_plan` (`plan/plan.py`) calls it after the feature buffer's slots are chosen. With
`victim_buffer=` the size is known before; `plan/items.py` has its items.
"""

from __future__ import annotations

from gnndrive.plan.items import PlanItem, victim_items, victim_places, victims_planned
from gnndrive.plan.requirements import Requirements


def victims_left(
    requirements: Requirements, left: int, whole: bool
) -> tuple[list[int], list[PlanItem]]:
    """Plan the victim buffers.

    Args:
        requirements: the sizes.
        left: bytes of all ranks that the other items leave.
        whole: whether the feature buffer holds all rows.

    Returns:
        The places of one rank's victim buffer for each table, and the items that are not among
        `other_items`.
    """
    places = victim_places(requirements, left // requirements.ranks)
    if requirements.victim_bytes is not None:
        return places, []
    none = victims_planned(requirements)
    if none is None and (whole or not any(places)):
        places, none = [0] * len(places), "whole" if whole else "room"
    return places, victim_items(requirements, places, none)
