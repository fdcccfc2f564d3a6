"""`PlaceTable` against a model: which places are free, and what each batch waits for."""

import errno
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer import place_table
from gnndrive.buffer.feature_buffer import raise_refusal
from gnndrive.buffer.place_table import PlaceHold, PlaceTable
from gnndrive.common.errors import ClosedError, ConfigError, ReadError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.common.records import FAILURE, Stretch

ROWS, PLACE_ROWS, PART_ROWS = 40, 6, 4
ERRORS = (errno.EIO, errno.ECANCELED, errno.ENODATA)

happened: Counter[str] = Counter()


def make(residents: int, places: int, place_rows: int = PLACE_ROWS) -> PlaceTable:
    tier: Any = SimpleNamespace(
        path="/packed/rows.npy", row_error=partial(ReadError, "/packed/rows.npy")
    )
    memory: Any = None  # no test of this file moves rows
    return PlaceTable(ROWS, residents, places, place_rows, 8, memory, tier)


def ended(landed: list[int], failed: dict[int, int]) -> Stretch:
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
    def __init__(self, draw: random.Random) -> None:
        self.draw, self.count, self.places = draw, draw.choice([0, 3, 17, ROWS]), draw.randint(1, 3)
        self.table = make(self.count, self.places)
        self.batches: list[Batch] = []
        self.residents = Residents(asked=not self.count)

    def admit(self) -> None:
        rows = np.array(self.draw.choices(range(ROWS), k=self.draw.randint(0, 10)), np.int64)
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
        return [each for each in self.batches if each.entries or each.loading]

    def end_some(self, loading: set[int], fail_share: float) -> tuple[list[int], int]:
        """End the reads of some slots, the first of which may fail; those that have landed, and the
        errno."""
        slots = self.draw.sample(sorted(loading), self.draw.randint(1, min(6, len(loading))))
        fails = self.draw.random() < fail_share
        error = self.draw.choice(ERRORS) if fails else 0
        self.table.commit(ended(slots[fails:], dict.fromkeys(slots[:fails], error)))
        loading -= set(slots)
        return slots[fails:], error

    def end_reads(self) -> None:
        if batches := [each for each in self.batches if each.loading]:
            batch = self.draw.choice(batches)
            happened["orphans end"] += not batch.entries
            _, error = self.end_some(batch.loading, 0.5)
            batch.error = batch.error or error

    def refuse_the_fetch(self) -> None:
        """Of a batch of which some rows were fetched, and none has landed yet."""
        batches = [each for each in self.batches if each.hold.loads is not None and each.loading]
        batch = self.draw.choice(batches or [None])
        if batch is None or batch.loading != set(batch.hold.loads[1].tolist()):
            return
        rows, slots = batch.hold.loads
        begun = self.draw.randint(0, len(slots))
        batch.hold.loads = rows[begun:], slots[begun:]
        batch.hold.fail_unfetched()
        batch.hold.loads = None
        batch.loading -= set(slots[begun:].tolist())
        if begun < len(slots):
            batch.error = batch.error or errno.ENOMEM

    def release(self) -> None:
        if batches := [each for each in self.batches if each.entries]:
            batch = self.draw.choice(batches)
            begin = min(self.draw.choice([0, 0, 0, 4]), batch.entries)
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

    def end_residents(self) -> None:
        state = self.residents
        if state.loading:
            landed, error = self.end_some(state.loading, 0.2)
            state.valid |= set(landed)
            happened["residents fail"] += bool(error)
            state.error = state.error or error

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
            failure = batch.hold.failure()
            error = failure and failure[1]
            code = batch.error or state.error
            if not code:
                assert error is None
            elif code == errno.ECANCELED:
                assert isinstance(error, ClosedError)
            else:
                assert isinstance(error, ReadError)
                assert (error.errno, error.path) == (code, "/packed/rows.npy")
        self.batches = [each for each in self.batches if each.entries or each.loading]


def test_places_follow_the_model(monkeypatch, seeds):
    monkeypatch.setattr(place_table, "RESIDENT_PART_ROWS", PART_ROWS)
    for seed in seeds(60):
        draw = random.Random(seed)
        places = Places(draw)
        steps = (
            places.admit, places.end_reads, places.refuse_the_fetch, places.release,
            places.begin_residents, places.next_residents, places.end_residents,
        )  # fmt: skip
        for _ in range(60):
            draw.choice(steps)()
            places.agrees()
    names = (
        "granted", "refused", "too large", "repeats", "orphans end", "released while loading",
        "residents in parts", "residents fail", "settled",
    )  # fmt: skip
    assert all(happened[name] for name in names), happened


def test_ids_out_of_range_take_no_place_and_a_release_too_many_is_found():
    table = make(3, 1)
    for bad in (-1, ROWS, 2**40, -(2**63)):
        assert table.admit(np.array([5, bad]))[0] == -errno.ERANGE
        assert table.available == PLACE_ROWS
    hold = table.admit(np.arange(5))[2]
    hold.release(0, 5)
    with pytest.raises(AssertionError, match="twice"):
        hold.release(0, 1)


def test_batches_without_other_rows_take_turns_too():
    """A place without rows counts as one slot, so that a batch that waits for it is tried again."""
    table = make(ROWS, 1, 0)
    first = table.admit(np.arange(5))[2]
    code, deficit, _ = table.admit(np.arange(5))
    assert code == -errno.EAGAIN
    needed = table.available + deficit
    first.release(0, 5)
    assert table.available >= needed


def test_more_slots_than_have_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"2,147,483,648 slots, .*less"):
        make(1 << 31, 1, 0)
    with pytest.raises(ConfigError, match="less"):
        make(0, 2, 1 << 30)


# ---- the smallest `buffer=` that the error for a batch too large names


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_ranks_with_buffers_of_their_own_need_one_each(buffers):
    tables: Any = {"nodes/x": SimpleNamespace(slots=1_000, row_bytes=512, batch_rows_max=3_000)}
    with pytest.raises(ConfigError, match="but a batch needs 1,250") as caught:
        raise_refusal(tables, buffers, "nodes/x", -errno.ENOSPC, 250)
    text = str(caught.value)
    sizes = re.findall(r'buffer="([\w.]+)"| \(([\w.]+) holds any batch\)', text)
    named, any_batch = (parse_size(one or other, "buffer") for one, other in sizes)
    for given, rows in ((named, 1_250), (any_batch, 3_000)):
        assert given // buffers // 512 >= rows
        assert (given - 1_000) // buffers // 512 < rows
    assert (f"for all {buffers} ranks of this host" in text) is (buffers > 1)
