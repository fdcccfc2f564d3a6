"""`second_buffer`: the feature buffer of an iterator that starts while another one runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.plan.plan import Plan, TablePlan


def second_buffer(plan: Plan, others: int, free: Callable[[], int | None]) -> list[TablePlan]:
    """Plan the feature buffer of a further live iterator: it holds one largest batch. `plan` is the
    first iterator's, `others` live ones have such a buffer already, and `free` returns the bytes of
    the device that are free now (None: it is the host). ConfigError if the buffer does not fit into
    `memory=` or the device's memory; each of several ranks may have such an iterator."""
    tables = [_for_one_batch(each) for each in plan.tables]
    rows_bytes = sum(each.slots * each.row_bytes for each in tables)
    slot_table_bytes = plan.slot_table_bytes * sum(each.slots for each in tables if not each.places)
    own = slot_table_bytes + (0 if plan.device_lines else rows_bytes)
    host = plan.epoch_bytes + plan.buffers * own
    if plan.memory is not None:
        left = plan.memory - plan.host_bytes - others * host
        _check_room(host, left, f"memory={format_size(plan.memory)}", "left", "memory")
    if not plan.device_lines:
        return tables
    device = rows_bytes + plan.live_device_bytes
    if plan.device_memory is None:
        _check_room(device, free() or 0, "the device", "free", "device_memory")
    else:
        left = plan.device_memory - plan.device_bytes - others * device
        budget = f"device_memory={format_size(plan.device_memory)}"
        _check_room(device, left, budget, "left", "device_memory")
    return tables


def _for_one_batch(table: TablePlan) -> TablePlan:
    """A table that holds one largest batch, and no rows in host memory beside it; one with places
    has a place for it and no residents."""
    if table.places:
        rows = table.batch_rows_max
        return replace(table, slots=rows, residents=0, places=1, place_rows=rows, kept=0)
    slots = max(min(table.slots, table.batch_rows_max), 1)
    return replace(table, slots=slots, kept=0, evicted=0)


def _check_room(more: int, left: int, budget: str, how: str, name: str) -> None:
    if left < more:
        raise ConfigError(
            "a second live iterator needs a feature buffer and batches of its own, "
            f"{format_size(more)}, and {budget} has {format_size(left)} {how}: "
            f"give a smaller buffer=, more {name}=, or close the first iterator"
        )
