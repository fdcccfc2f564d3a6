"""Codes of next uses at admission: Belady's rule with superbatches, by exhaustive search."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gnndrive.buffer.partial_admission import PartialAdmission
from gnndrive.buffer.policies.base import NO_USE, Policy
from gnndrive.buffer.policies.belady import Belady
from gnndrive.buffer.policies.lru import LRU
from gnndrive.buffer.policies.static import Static
from gnndrive.buffer.ranking import Classes
from gnndrive.buffer.slot_table import SlotHold, SlotTable
from gnndrive.common.ffi import lib
from gnndrive.common.records import FAILURE, Codes, Evicted, Int64Array, Stretch
from tests.soak import product

NONE = lib.GD_NO_CODE
Batch = tuple[int, ...]


def table_of(
    rows: int, slots: int, policy: Policy | None = None, classes: Classes | None = None,
    foreseen: bool = True, takes_offers: bool = False,
) -> SlotTable:  # fmt: skip
    """A table without memory for slots, over a tier that fetches nothing; its rows are committed by
    hand."""
    memory: Any = None
    tier: Any = SimpleNamespace(takes_offers=takes_offers, ranked=(), rows_served=0, bytes_read=0)
    return SlotTable(rows, slots, 8, memory, tier, policy, classes=classes, foreseen=foreseen)


def codes_of(batches: Sequence[Batch], rows: int, first: int = 0) -> tuple[list[Codes], Codes]:
    """The code of each row of each batch, by a search forwards; and the first use of each row."""
    codes = []
    for place, batch in enumerate(batches):
        uses = [
            next((k for k in range(place + 1, len(batches)) if row in batches[k]), None)
            for row in batch
        ]
        codes.append(_coded(uses, first))
    firsts = [next((k for k, b in enumerate(batches) if row in b), None) for row in range(rows)]
    return codes, _coded(firsts, first)


def _coded(uses: Sequence[int | None], first: int) -> Codes:
    return np.array([NONE if use is None else (first + use) % NONE for use in uses], np.uint16)


def admit(
    table: SlotTable, batches: Sequence[Batch], codes: Sequence[Codes], part: int
) -> SlotHold:
    """Admit the batches of a sweep, in parts of `part` rows or (0) whole, and commit them."""
    rows = np.array([row for batch in batches for row in batch], np.int64)
    joined = np.concatenate(codes)
    if not part:
        code, _, hold = table.admit(rows, joined)
        assert code == 0
        table.commit(Stretch(hold.loads[1]))
        return hold

    refuse = Mock(side_effect=AssertionError("it is refused"))
    admission = PartialAdmission({"x": table}, {"x": rows}, {"x": joined}, part, refuse)
    while admission.unfinished:
        some = admission.admit_next()
        table.commit(Stretch(some.loads[1]))
    return admission.holds()["x"]


def loads_of(
    table: SlotTable, sweeps: Sequence[Sequence[Batch]], codes: Sequence[Codes], part: int
) -> int:
    """Rows that the table loads; a sweep is released when the next one is admitted."""
    held, index = None, 0
    for sweep in sweeps:
        of_sweep = codes[index : index + len(sweep)]
        for number in range(index, index + len(sweep)):
            table.withdraw(number, np.empty(0, np.int64))
        hold = admit(table, sweep, of_sweep, part)
        index += len(sweep)
        if held is not None:
            held.release(0, len(held.alias))
        held = hold
        table.verify()
    return table.stats()["loads"]


def fewest_loads(sweeps: Sequence[Sequence[Batch]], slots: int) -> int:
    """Fewest loads of any choice of what leaves: each choice is tried."""
    wanted = [frozenset(row for batch in sweep for row in batch) for sweep in sweeps]

    @cache
    def best(place: int, resident: frozenset[int]) -> int:
        if place == len(wanted):
            return 0
        held = wanted[place - 1] if place else frozenset()
        missing, kept = wanted[place] - resident, resident - wanted[place] - held
        leave = max(len(resident) + len(missing) - slots, 0)
        return len(missing) + min(
            best(place + 1, resident - frozenset(left) | wanted[place])
            for left in combinations(sorted(kept), leave)
        )

    return best(0, frozenset())


def drawn_sweeps(draw: random.Random, rows: int, slots: int) -> list[list[Batch]]:
    """Sweeps of one to three batches, two neighbouring sweeps fit into the slots together."""
    sweeps: list[list[Batch]] = []
    while len(sweeps) < 6:
        sweep = [
            tuple(draw.choices(range(rows), k=draw.randint(1, 2)))
            for _ in range(draw.randint(1, 3))
        ]
        both = [*(sweeps[-1] if sweeps else []), *sweep]
        if len({row for batch in both for row in batch}) <= slots:
            sweeps.append(sweep)
    return sweeps


def test_belady_loads_as_few_rows_as_any_choice(seeds):
    """With sweeps, admission in parts, rows that come twice, and two sweeps in flight."""
    better_than_lru = 0
    for seed in seeds(100):
        draw = random.Random(seed)
        rows, slots = draw.randint(6, 9), draw.randint(4, 6)
        sweeps = drawn_sweeps(draw, rows, slots)
        codes, first = codes_of([batch for sweep in sweeps for batch in sweep], rows)
        table, lru = table_of(rows, slots, Belady()), table_of(rows, slots, foreseen=False)
        table.foresee(0, 0, None)
        table.foresee(0, len(codes), first)
        part = draw.choice((0, 1, 2))
        loads = loads_of(table, sweeps, codes, part)
        assert loads == fewest_loads(sweeps, slots)
        better_than_lru += loads < loads_of(lru, sweeps, codes, part)
    assert better_than_lru


def modelled_loads(
    batches: Sequence[Batch], slots: int, classes: Classes, known: Sequence[int]
) -> int:
    """Loads if batch i is admitted while the batches before known[i] are known, each released
    before the next is admitted."""
    resident: set[int] = set()
    loads = 0
    for place, batch in enumerate(batches):
        wanted, last = set(batch), known[place]

        def rank(row: int, place: int = place, last: int = last) -> tuple[int, int]:
            use = next((k for k in range(place, last) if row in batches[k]), None)
            return (0, int(classes[row])) if use is None else (1, -use)

        missing = wanted - resident
        loads += len(missing)
        candidates = sorted(resident - wanted, key=rank)
        leave = max(len(resident) + len(missing) - slots, 0)
        resident = resident - set(candidates[:leave]) | wanted
    return loads


@product("early,first", [False, True], [0, NONE - 7])
def test_what_another_superbatch_needs_stays(early, first, seeds):
    """Whether its codes come at the boundary or while the one before is replayed; also where the
    codes begin anew."""
    rows, slots, size = 30, 9, 10
    for seed in seeds(8):
        draw = random.Random(seed)
        batches = [tuple(draw.sample(range(rows), 4)) for _ in range(4 * size)]
        classes = np.array(draw.sample(range(256), rows), np.uint8)
        parts = [batches[start : start + size] for start in range(0, len(batches), size)]
        coded = [codes_of(part, rows, first + k * size) for k, part in enumerate(parts)]
        codes = [each for of_part, _ in coded for each in of_part]
        table = table_of(rows, slots, Belady(), classes)
        table.foresee(first, first, None)
        known, held, reach = 0, None, []
        for index, batch in enumerate(batches):
            until = index + 5 if early else index
            reach.append(min((until // size + 1) * size, len(batches)))
            while known < reach[-1]:
                later = coded[known // size][1]
                table.foresee(first + known, first + known + size, later)
                for k in range(index, known):  # batches that are replayed from now on
                    at = codes[k] == NONE
                    codes[k][at] = later[list(batches[k])][at]
                known += size
            if held is not None:
                held.release(0, len(held.alias))
            table.withdraw(first + index, np.empty(0, np.int64))
            held = admit(table, [batch], [codes[index]], part=0)
        assert table.stats()["loads"] == modelled_loads(batches, slots, classes, reach)


def test_an_epoch_begins_with_nothing_known():
    """Codes of the epoch before mean other batches now."""
    classes = np.array([3, 2, 1, 0], np.uint8)
    table = table_of(4, 3, Belady(), classes)
    table.foresee(0, 0, None)
    later = np.array([NONE, 9, 8, NONE], np.uint16)
    table.foresee(0, 10, later)
    admit(table, [(0, 1, 2)], [later[:3]], part=0).release(0, 3)
    table.withdraw(6, np.empty(0, np.int64))
    table.foresee(0, 0, None)
    assert table._ranking.now == -1
    admit(table, [(3,)], [np.array([NONE], np.uint16)], part=0)
    assert lib.gd_buffer_slot_of(table.handle, 2) < 0, "the lowest class stays"


# ---- what an admission evicts

ROWS, SLOTS = 12, 4


def offering(policy: Policy, foreseen: bool = False, takes: bool = True) -> SlotTable:
    return table_of(ROWS, SLOTS, policy, None, foreseen, takes)


def ids(*rows: int) -> Int64Array:
    return np.array(rows, np.int64)


def serve(
    table: SlotTable, rows: Int64Array, codes: Sequence[int] | None = None
) -> list[tuple[int, int, int]]:
    """Admit, commit and release rows; (row, slot, next use) of what was evicted."""
    given = None if codes is None else np.array(codes, np.uint16)
    _, _, hold = table.admit(rows, given)
    table.commit(Stretch(hold.loads[1]))
    hold.release(0, len(rows))
    table.verify()
    return listed(hold.evicted)


def listed(evicted: Evicted | None) -> list[tuple[int, int, int]]:
    if evicted is None:
        return []
    rows, slots = evicted.rows["row"].tolist(), evicted.rows["slot"].tolist()
    assert evicted.rows["key"].tolist() == sorted(evicted.rows["key"].tolist())
    return list(zip(rows, slots, evicted.next_use.tolist(), strict=True))


def test_rows_of_announced_batches_are_reported_with_their_next_use():
    """Row 3, which no batch needs, leaves first; then the row that is needed last."""
    table = offering(Belady())
    assert serve(table, ids(0, 1, 2, 3)) == []
    for index, rows in ((5, ids(0)), (6, ids(1, 2)), (7, ids(0, 2))):
        table.announce(index, rows)
    assert serve(table, ids(8)) == [(3, 3, NO_USE)]
    table.announce(4, ids(8))
    assert serve(table, ids(9, 10)) == [(1, 1, 6), (2, 2, 6)]
    table.announce(3, ids(9, 10))
    assert serve(table, ids(4, 5, 6)) == [(0, 0, 5), (8, 3, 4), (9, 1, 3)]


def test_codes_tell_the_next_use_beyond_the_window():
    table = offering(Belady(), foreseen=True)
    table.foresee(0, 0, None)
    table.foresee(0, 300, np.full(ROWS, NONE, np.uint16))
    assert serve(table, ids(0, 1, 2, 3), [299, 40, NONE, 17]) == []
    table.withdraw(0, ids())
    assert serve(table, ids(4, 5, 6), [9, 9, 9]) == [(2, 2, NO_USE), (0, 0, 299), (1, 1, 40)]
    assert table._ranking.now == 0
    _, _, hold = table.admit(ids(7), np.array([NONE], np.uint16))
    assert (listed(hold.evicted), hold.evicted.now) == ([(3, 3, 17)], 0)


def test_a_batch_that_was_withdrawn_does_not_want_its_rows():
    table = offering(Belady())
    serve(table, ids(0, 1, 2, 3))
    table.announce(1, ids(0, 1))
    table.withdraw(1, ids(0, 1))
    table.rekey(ids(0, 1))
    assert {use for *_, use in serve(table, ids(4, 5, 6, 7))} == {NO_USE}


def test_a_slot_that_loads_or_has_failed_is_never_reported():
    """Even if its row is wanted and no lease holds it."""
    table = offering(Belady())
    table.announce(1, ids(0, 1, 2, 3))
    _, _, first = table.admit(ids(0, 1, 2, 3), None)
    first.release(0, 4)
    failures = np.zeros(1, FAILURE)
    failures["slot"] = first.loads[1][1]
    table.commit(Stretch(first.loads[1][:1], failures))
    assert table.available == 2
    assert listed(table.admit(ids(8, 9), None)[2].evicted) == [(0, 0, 1)]
    assert table.admit(ids(10), None)[0] != 0


@pytest.mark.parametrize("policy", [LRU(), Static(), Belady()])
def test_rows_are_reported_to_a_tier_that_takes_offers(policy):
    """By a policy that knows no next use too, in the order in which they leave."""
    for takes in (False, True):
        table = offering(policy, takes=takes)
        serve(table, ids(0, 1, 2, 3))
        left = [(row, row, NO_USE) for row in range(3)]
        assert serve(table, ids(4, 5, 6)) == (left if takes else [])
