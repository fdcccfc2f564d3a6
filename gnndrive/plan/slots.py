"""`RowSlots`: the feature buffer whose rows have slots of their own; `second_buffer`: that of an
iterator that starts while another one runs.

It has what the budget leaves, but never more slots than rows. `split_slots` divides that among the
tables: a homogeneous store usually has one, a heterogeneous store one for each type with features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gnndrive.buffer.items import slot_bytes, slot_table_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.items import Item, Life, Shape, TableShape
from gnndrive.common.memory import format_size, least_text
from gnndrive.plan.plan import Budget, Plan, Slots, TablePlan, default_bytes, host_bytes

ALL_FIT = (
    "all rows and the adjacency fit into memory: a loader over a Data, without a store, would do"
)
LESS = "a smaller buffer= or more {}="
NO_HOST_LEVEL = 'a strategy without a host level: dataclasses.replace(strategy, tiers=("disk",))'
SMALL_SHARE = 16  # a table is small if its largest batch takes at most 1/16 of the memory
SMALL_TABLES = 2  # the small tables' largest batches together take at most 1/2 of the memory


@dataclass(frozen=True, slots=True)
class RowSlots(Slots):
    """A feature buffer in which each row has a slot of its own; see `plan.plan.Slots`."""

    whole_batches: bool = False
    """Whether it must hold a largest batch, unless `buffer=` is given; else a row is enough."""

    def fit(
        self, shape: Shape, budget: Budget, items: Sequence[Item]
    ) -> tuple[tuple[TablePlan, ...], str]:
        """See `Slots.fit`."""
        slots, why = self._choose(shape, budget, items)
        tables = tuple(map(TablePlan.of, shape.tables, slots))
        if all(table.slots >= table.rows for table in tables):
            why = "because the whole table fits" if len(tables) == 1 else "because all tables fit"
        return tables, f"{_counted(tables)}, {why}"

    def said(self, plan: Plan) -> tuple[str, ...]:
        """See `Slots.said`: whether a store is needed at all."""
        more = plan.served or plan.device_lines or plan.sampling_bytes or plan.fetched
        alone = plan.ranks == 1 and not more
        graph = plan.topology.nbytes and not plan.topology.has_ring  # all of it is in memory
        return (ALL_FIT,) if alone and graph and plan.holds_everything else ()

    def _choose(self, shape: Shape, budget: Budget, items: Sequence[Item]) -> tuple[list[int], str]:
        """The number of slots of each table in one buffer, and the reason."""
        tables, per_slot, buffers = shape.tables, slot_bytes(shape), shape.buffers
        row_bytes = [table.row_bytes for table in tables]
        on_device = sum(item.nbytes for item in items if item.on_device)
        left = None  # of memory=, for one buffer
        if budget.memory is not None:
            left = (budget.memory - host_bytes(items)) // buffers
        if budget.buffer is not None:
            slots = split_slots(budget.buffer // buffers, tables, row_bytes)
            why = "because buffer= has room for them"
        elif budget.device_memory is not None:
            slots = split_slots(budget.device_memory - on_device, tables, row_bytes)
            why = budget.device_why
            own = slot_table_bytes(shape)
            if left is not None and left < own * sum(slots):
                slots = split_slots(left, tables, [own] * len(tables))
                why = "because memory= has room for their slot tables only"
        elif left is not None:
            slots = split_slots(left, tables, per_slot)
            why = "because the rest leaves that much of memory="
        else:
            given = default_bytes(shape.ranks, budget.served)
            slots = split_slots(given // buffers, tables, per_slot)
            why = (
                "because the default is a quarter of the memory that is left; set memory= or "
                "buffer= to change it"
            )
        whole = self.whole_batches and budget.buffer is None
        for table, count in zip(tables, slots, strict=True):
            least = min(table.batch_rows_max, table.rows) if whole else 1
            if count < least and table.batch_rows_max > 0:
                short = left is not None and left < max(per_slot) * least
                raise ConfigError(_no_room(shape, table, budget, items, short))
        return slots, why


def _counted(tables: Sequence[TablePlan]) -> str:
    if len(tables) == 1:
        return f"{tables[0].slots:,} of {tables[0].rows:,} rows"
    parts = [f"{each.slots:,} of {each.rows:,} {each.name}" for each in tables]
    return ", ".join(parts) or "no rows"


def _no_room(
    shape: Shape, table: TableShape, budget: Budget, items: Sequence[Item], short: bool
) -> str:
    """The error message for a table without a slot; `short`: host memory has no room for one."""
    several = f" for {shape.buffers} ranks" if shape.buffers > 1 else ""
    row = f"one row of {table.name} is" if len(shape.tables) > 1 else "one row is"
    batch = sum(min(each.batch_rows_max, each.rows) * each.row_bytes for each in shape.tables)
    if budget.buffer is not None:
        return (
            f"buffer={format_size(budget.buffer)}{several} holds no row: {row} "
            f"{table.row_bytes:,} bytes, and a batch has up to {table.batch_rows_max:,}: give "
            f'buffer="{least_text(shape.buffers * batch)}", which holds any batch'
        )
    if budget.device_memory is not None and not short:
        here = [item for item in items if item.on_device]
        live = sum(item.nbytes for item in here if item.life is Life.KEPT)
        least = least_text(batch + sum(item.nbytes for item in here))
        return (
            f"{budget.said('device_memory')} leaves no room for a feature buffer on the device, "
            f"because two live batches take up to {format_size(live)}: give "
            f'device_memory="{least}", free some of the device\'s memory, give device_memory=0 '
            "to have the buffer in host memory, or give a smaller batch_size or num_neighbors"
        )
    if budget.memory is not None:
        host = [item for item in items if not item.on_device]
        others = host_bytes(host)
        return (
            f"memory={format_size(budget.memory, others)}{several} leaves no room for a feature "
            f"buffer: everything else needs {format_size(others, budget.memory)}\n"
            + "\n".join(
                f"  {each.what}: {format_size(each.host_bytes)} ({each.why})" for each in host
            )
        )
    quarter = f"{format_size(default_bytes(shape.ranks, budget.served))}{several}"
    return (
        f"a quarter of the memory that is left, {quarter}, holds no row of {table.row_bytes:,} "
        "bytes: set memory= or buffer="
    )


def split_slots(nbytes: int, tables: Sequence[TableShape], costs: Sequence[int]) -> list[int]:
    """Divide memory among tables, so that each holds the same multiple of its largest batch.

    There are two exceptions. No table gets more slots than it has rows. A small table always holds
    its largest batch: batches have about as many rows of a small type as the plan counts, but far
    fewer of a large type, for which the plan counts the worst case.

    Negative `nbytes` count as 0; `costs` are the bytes of a slot of each table. A table that no
    batch needs has no slot.
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


# ---- of a second live iterator


def second_buffer(plan: Plan, others: int, free: Callable[[], int | None]) -> list[TablePlan]:
    """Plan the feature buffer of a further live iterator: it holds one largest batch. `plan` is the
    first iterator's, `others` live ones have such a buffer already, and `free` returns the bytes of
    the device that are free now (None: it is the host). ConfigError if the buffer does not fit into
    `memory=` or the device's memory; each of several ranks may have such an iterator."""
    tables = [_for_one_batch(each) for each in plan.tables]
    rows_bytes = sum(each.slots * each.row_bytes for each in tables)
    slot_table_bytes = plan.slot_table_bytes * sum(each.slots for each in tables if not each.places)
    own = slot_table_bytes + (0 if plan.on_device else rows_bytes)
    host = plan.epoch_bytes + plan.buffers * own
    if plan.memory is not None:
        left = plan.memory - plan.host_bytes - others * host
        evicted = any(each.evicted for each in plan.tables)  # it takes what more memory= would give
        remedy = NO_HOST_LEVEL if evicted else LESS.format("memory")
        _check_room(host, left, f"memory={format_size(plan.memory)}", "left", remedy)
    if not plan.on_device:
        return tables
    device = rows_bytes + plan.live_device_bytes
    if plan.device_memory is None:
        _check_room(device, free() or 0, "the device", "free", LESS.format("device_memory"))
    else:
        left = plan.device_memory - plan.device_bytes - others * device
        budget = f"device_memory={format_size(plan.device_memory)}"
        _check_room(device, left, budget, "left", LESS.format("device_memory"))
    return tables


def _for_one_batch(table: TablePlan) -> TablePlan:
    """A table that holds one largest batch, or has a place for it, and nothing beside it."""
    if table.places:
        rows = table.batch_rows_max
        return replace(table, slots=rows, residents=0, places=1, place_rows=rows, kept=0)
    slots = max(min(table.slots, table.batch_rows_max), 1)
    return replace(table, slots=slots, kept=0, evicted=0)


def _check_room(more: int, left: int, budget: str, how: str, remedy: str) -> None:
    if left < more:
        raise ConfigError(
            "a second live iterator needs a feature buffer and batches of its own, "
            f"{format_size(more, left)}, and {budget} has {format_size(left, more)} {how}: "
            f"close the first iterator, or give {remedy}"
        )
