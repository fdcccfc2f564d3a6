"""`PlaceTable` against a model: which places are free, and what each batch waits for."""

from __future__ import annotations

import errno
import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer import place_table
from gnndrive.buffer.place_table import PlaceHold, PlaceTable
from gnndrive.common.errors import ClosedError, ConfigError, ReadError, StoreError
from gnndrive.common.records import FAILURE, Stretch

ROWS, PLACE_ROWS, PART_ROWS = 40, 6, 4
ERRORS = (errno.EIO, errno.ECANCELED, errno.ENODATA)

happened: Counter[str] = Counter()


def make(residents: int, places: int, place_rows: int = PLACE_ROWS) -> PlaceTable:
    tier: Any = SimpleNamespace(path="/packed/rows.npy")
    memory: Any = None  # no test of this file moves rows
    return PlaceTable(ROWS, residents, places, place_rows, 8, memory, tier)


def ended(landed: list[int], failed: dict[int, int]) -> Stretch:
    """A stretch of slots that have landed, and of others with their errno."""
    failures = np.zeros(len(failed), FAILURE)
    failures["slot"], failures["error"] = list(failed), list(failed.values())
    failures["offset"] = 4096
    return Stretch(np.array(landed, np.int32), failures)


@dataclass
class Batch:
    """An admitted batch: its entries that are not released, and its slots that are loading."""

    hold: PlaceHold
    entries: int
    loading: set[int]
    slots: set[int]
    error: int = 0


@dataclass
class Residents:
    """Which residents are valid and loading, the first error since they were begun, and whether all
    have been asked for since."""

    valid: set[int] = field(default_factory=set)
    loading: set[int] = field(default_factory=set)
    error: int = 0
    asked: bool = False


class Places:
    """One place table, the batches that are in it, and its residents."""

    def __init__(self, residents: int, places: int) -> None:
        self.table, self.count, self.places = make(residents, places), residents, places
        self.batches: list[Batch] = []
        self.residents = Residents(asked=not residents)

    def admit(self, ids: bytes) -> None:
        rows = np.array([byte % ROWS for byte in ids], np.int64)
        cold = rows[rows >= self.count].tolist()
        free = not len(rows) or len(self.held()) < self.places
        assert self.table.probe(rows) == ((0, 0) if free else (-errno.EAGAIN, PLACE_ROWS))
        if free and len(cold) > PLACE_ROWS:
            happened["too large"] += 1
            with pytest.raises(StoreError, match=r"rows\.npy .*damaged"):
                self.table.admit(rows)
            return
        code, _, hold = self.table.admit(rows)
        assert (code == 0) is free
        happened["granted" if free else "refused"] += 1
        if hold is None:
            return
        assert hold.loads[0].tolist() == cold
        slots = hold.loads[1].tolist()
        taken = set().union(*(each.slots for each in self.held()))
        assert len(set(slots)) == len(slots), "two rows in one slot"
        assert not taken & set(slots), "a slot of another batch"
        assert all(self.count <= slot < self.table.slots for slot in slots)
        expected = iter(slots)
        assert hold.alias.tolist() == [r if r < self.count else next(expected) for r in rows]
        happened["repeats"] += len(set(cold)) < len(cold)
        self.batches.append(Batch(hold, len(rows), set(slots), set(slots)))

    def held(self) -> list[Batch]:
        """The batches whose places are not free."""
        return [each for each in self.batches if each.entries or each.loading]

    def end_reads(self, which: int, choice: bytes, fails: bool) -> None:
        batches = [each for each in self.batches if each.loading]
        if not batches:
            return
        batch = batches[which % len(batches)]
        slots = self.some(batch.loading, choice)
        error = ERRORS[choice[0] % 3]
        failed = slots[:1] if fails else []
        happened["orphans end"] += not batch.entries
        self.table.commit(ended(slots[len(failed) :], dict.fromkeys(failed, error)))
        batch.loading -= set(slots)
        if failed:
            batch.error = batch.error or error

    def refuse_the_fetch(self, which: int, choice: bytes) -> None:
        batches = [each for each in self.batches if each.hold.loads is not None and each.loading]
        if not batches:
            return
        batch = batches[which % len(batches)]
        rows, slots = batch.hold.loads
        if batch.loading != set(slots.tolist()):
            return  # it was fetched
        begun = choice[0] % (len(slots) + 1)
        batch.hold.loads = rows[begun:], slots[begun:]
        batch.hold.fail_unfetched()
        batch.hold.loads = None
        batch.loading -= set(slots[begun:].tolist())
        if begun < len(slots):
            batch.error = batch.error or errno.ENOMEM

    def release(self, which: int, part: int) -> None:
        batches = [each for each in self.batches if each.entries]
        if not batches:
            return
        batch = batches[which % len(batches)]
        begin = min(part, batch.entries)
        batch.hold.release(begin, batch.entries)
        happened["released while loading"] += not begin and bool(batch.loading)
        batch.entries = begin

    def begin_residents(self) -> None:
        self.table.begin_residents()
        self.residents.error, self.residents.asked = 0, not self.count

    def next_residents(self) -> None:
        hold, state = self.table.next_residents(), self.residents
        missing = set(range(self.count)) - state.valid - state.loading
        if hold is None:
            waits = bool(state.error) or len(state.loading) > PART_ROWS // 2
            assert not missing or waits or state.asked
            state.asked |= not missing and not waits
            return
        part, slots = hold.loads
        assert not state.error
        assert len(state.loading) <= PART_ROWS // 2
        assert 0 < len(part) <= PART_ROWS
        assert part.tolist() == slots.tolist()
        assert not set(part.tolist()) & (state.loading | state.valid), "a row is read twice"
        assert max(part.tolist()) < self.count
        state.loading |= set(part.tolist())
        happened["residents in parts"] += len(part) < self.count
        state.asked = max(part.tolist()) // PART_ROWS == (self.count - 1) // PART_ROWS

    def end_residents(self, choice: bytes, fails: bool) -> None:
        state = self.residents
        slots = self.some(state.loading, choice)
        if not slots:
            return
        error, failed = ERRORS[choice[0] % 3], slots[:1] if fails else []
        self.table.commit(ended(slots[len(failed) :], dict.fromkeys(failed, error)))
        state.loading -= set(slots)
        state.valid |= set(slots[len(failed) :])
        if failed:
            happened["residents fail"] += 1
            state.error = state.error or error

    @staticmethod
    def some(slots: set[int], choice: bytes) -> list[int]:
        left = sorted(slots)
        return [left.pop(byte % len(left)) for byte in choice[: len(left)]]

    def agrees(self) -> None:
        self.table.verify()
        state, table = self.residents, self.table
        free = self.places - len(self.held())
        assert table.available == PLACE_ROWS * free
        whole = not state.loading and bool(state.error or len(state.valid) == self.count)
        assert table.residents_settled is (whole and (state.asked or bool(state.error)))
        for batch in self.batches:
            if not batch.entries:
                continue
            settled = batch.hold.settled()
            assert settled is (table.residents_settled and not batch.loading)
            happened["settled"] += settled
            error = batch.hold.error()
            code = batch.error or state.error
            if not code:
                assert error is None
            elif code == errno.ECANCELED:
                assert isinstance(error, ClosedError)
            else:
                assert isinstance(error, ReadError)
                assert (error.errno, error.path) == (code, "/packed/rows.npy")
        self.batches = [each for each in self.batches if each.entries or each.loading]


def walk(seed: int) -> None:
    """Take steps that the seed decides, and compare after each."""
    draw = random.Random(seed)
    places = Places(draw.choice([0, 3, 17, ROWS]), draw.randint(1, 3))
    steps = [
        lambda: places.admit(draw.randbytes(draw.randint(0, 10))),
        lambda: places.end_reads(draw.randint(0, 5), some_bytes(), draw.random() < 0.5),
        lambda: places.refuse_the_fetch(draw.randint(0, 5), some_bytes()),
        lambda: places.release(draw.randint(0, 5), draw.choice([0, 0, 0, 4])),
        places.begin_residents,
        places.next_residents,
        lambda: places.end_residents(some_bytes(), draw.random() < 0.2),
    ]

    def some_bytes() -> bytes:
        return draw.randbytes(draw.randint(1, 6))

    for _ in range(60):
        draw.choice(steps)()
        places.agrees()


def test_places_follow_the_model(monkeypatch, seeds):
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", PART_ROWS)
    for seed in seeds(60):
        walk(seed)
    names = (
        "granted", "refused", "too large", "repeats", "orphans end", "released while loading",
        "residents in parts", "residents fail", "settled",
    )  # fmt: skip
    assert all(happened[name] for name in names), happened


def test_all_residents_settle():
    """In order, with failures: those that failed are read again when they are begun again."""
    table = make(17, 2)
    admitted = table.admit(np.arange(10))[2]
    assert not admitted.settled(), "no resident has been read"
    table.begin_residents()
    hold = table.next_residents()
    assert hold.loads[0].tolist() == list(range(17))
    assert table.next_residents() is None
    table.commit(ended([*range(16)], {16: errno.EIO}))
    assert admitted.settled()
    assert isinstance(admitted.error(), ReadError)
    table.begin_residents()
    assert not admitted.settled()
    again = table.next_residents()
    assert again.loads[0].tolist() == [16]
    again.fail_unfetched()
    assert admitted.settled()
    table.begin_residents()
    assert table.next_residents() is not None
    table.commit(ended([16], {}))
    assert admitted.settled()
    assert admitted.error() is None
    table.begin_residents()
    assert table.next_residents() is None


def test_ids_out_of_range_take_no_place():
    table = make(3, 1)
    for bad in (-1, ROWS, 2**40, -(2**63)):
        assert table.admit(np.array([5, bad]))[0] == -errno.ERANGE
        assert table.available == PLACE_ROWS


def test_batches_without_other_rows_take_turns_too():
    """A place without rows counts as one slot, so that a batch that waits for it is tried again."""
    table = make(ROWS, 1, 0)
    first = table.admit(np.arange(5))[2]
    code, deficit, _ = table.admit(np.arange(5))
    assert code == -errno.EAGAIN
    needed = table.available + deficit
    first.release(0, 5)
    assert table.available >= needed


def test_a_batch_without_rows_shares_no_place():
    table = make(0, 1)
    nothing = table.admit(np.empty(0, np.int64))[2]
    table.admit(np.arange(5))
    assert nothing.settled(), "it waits for another batch"
    table.commit(ended([1, 2, 3, 4], {0: errno.EIO}))
    assert nothing.error() is None, "it has another batch's error"
    assert table.admit(np.empty(0, np.int64))[0] == 0, "it waits for a place"


def test_more_slots_than_have_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"2,147,483,648 slots, .*less"):
        make(1 << 31, 1, 0)
    with pytest.raises(ConfigError, match="less"):
        make(0, 2, 1 << 30)


def test_a_release_too_many_is_found():
    table = make(0, 1)
    hold = table.admit(np.arange(5))[2]
    hold.release(0, 5)
    with pytest.raises(AssertionError, match="twice"):
        hold.release(0, 1)
