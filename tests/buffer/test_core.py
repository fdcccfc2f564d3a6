"""The C core's parts of the buffer, where the model of `test_model.py` does not go: admission and
the gather; the standby list, the window of announced batches and the parts of a sweep, against
Python's lists and sets."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnndrive.buffer.policies.base import NO_USE
from gnndrive.common.ffi import ffi, lib, pointer
from tests.soak import product

from .slot_tables import CoreTable

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ROWS = 50  # of windows


@pytest.fixture
def table():
    return CoreTable(rows=20, slots=4)


def test_hold_takes_only_rows_that_have_a_slot(table):
    assert table.release(table.serve([0]).alias) == 0
    loading = table.admit([1])
    before = table.available()
    held = table.hold([5, 0, 1, 5, 1, 0])
    assert (held.code, held.hits, held.waits, held.load_count) == (0, 1, 1, 1)
    absent, there, coming = held.alias[0], held.alias[1], held.alias[2]
    assert held.alias == (-1, there, coming, -2, coming, there)
    assert absent == -1
    assert held.pending == (coming,) == loading.alias
    assert table.available() == before - 1, "out of standby, and no slot taken"
    assert table.probe([5]).load_count == 1, "not marked"
    assert table.hold([0, 10**9]).code == -errno.ERANGE
    seen = table.observe()
    assert table.hold([0, 1, 5, 6, 7]).code == -errno.ENOSPC
    assert table.observe() == seen
    assert lib.gd_buffer_commit(table.c, ffi.new("int32_t[]", [coming]), 1) == 0
    assert table.release(loading.alias) == 0
    assert table.release([alias for alias in held.alias if alias >= 0]) == 0
    assert table.available() == before + 1
    assert lib.gd_buffer_verify(table.c) == 0


def test_an_id_out_of_range_far_behind_is_found():
    """The loops look ahead by some rows: the last id of a long batch counts like the first."""
    table = CoreTable(rows=1000, slots=1000)
    for bad in (-1, 1000):
        before, rows = table.observe(), [*range(1000), bad]
        assert table.probe(rows).code == table.admit(rows).code == -errno.ERANGE
        assert table.observe() == before
    assert table.admit(list(range(1000))).load_count == 1000


def test_keys_of_rows_out_of_range_are_refused(table):
    table.serve([1])
    assert table.rekey([20], [0]) == table.rekey([-1], [0]) == -errno.ERANGE
    assert table.verify() == 0


def test_invalid_sizes_are_refused():
    for rows, slots in (-1, 1), (1, 0), (1, -1), (1, 2**31 - 1), (1, 2**40):
        assert lib.gd_buffer_new(rows, slots) == ffi.NULL
    empty = CoreTable(rows=0, slots=1)
    assert empty.admit([]).code == 0
    assert empty.admit([0]).code == -errno.ERANGE


def test_slot_of_a_row_out_of_range_is_none(table):
    for row in (-1, 20, INT64_MAX, -INT64_MAX - 1):
        assert table.slot_of(row) == -1


def test_gather_copies_by_alias():
    row_bytes, stride, slots = 5, 8, 40
    table = ffi.new("uint8_t[]", bytes(slot * 3 + at for slot in range(slots) for at in range(8)))
    alias = [39, 0, 7, 7, *range(20)]
    rows = ffi.new("uint8_t[]", len(alias) * row_bytes + 1)
    lib.gd_gather(table, stride, ffi.new("int32_t[]", alias), len(alias), row_bytes, rows, 1)
    expected = bytes(slot * 3 + at for slot in alias for at in range(row_bytes))
    assert bytes(ffi.buffer(rows)) == expected + b"\0"


def test_a_gather_runs_in_a_few_threads():
    most = min(os.cpu_count() or 1, 4)
    for threads in range(6):
        assert lib.gd_gather_threads(0, threads) == 1
        assert lib.gd_gather_threads(1 << 40, threads) == max(min(threads, most), 1)
    assert lib.gd_gather_threads(20 << 20, 4) == min(most, 2)


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_gather_the_same(threads):
    table = np.arange(1000 * 4096, dtype=np.int32).reshape(1000, -1)
    alias = np.arange(4000, dtype=np.int32) * 7 % 1000
    rows = np.empty((len(alias), table.shape[1]), np.int32)
    width = table.strides[0]
    assert rows.nbytes > 3 << 24, "enough for four threads"
    into = ffi.cast("uint8_t *", pointer(rows))
    slots = ffi.cast("uint8_t *", pointer(table))
    lib.gd_gather(slots, width, pointer(alias), len(alias), width, into, threads)
    assert np.array_equal(rows, table[alias])


# ---- the standby list, against a sorted list


class Standby:
    """gd_standby beside a dict of (key, moment); every call is compared with the dict."""

    def __init__(self, slots: int) -> None:
        self.c = ffi.gc(lib.gd_standby_new(slots), lib.gd_standby_free)
        self.slots, self.moment = slots, 0
        self.expected: dict[int, tuple[int, int]] = {}

    def push(self, slot: int, key: int) -> None:
        self.moment += 1
        self.expected[slot] = (key, self.moment)
        lib.gd_standby_push(self.c, slot, key)

    def remove(self, slot: int) -> None:
        del self.expected[slot]
        lib.gd_standby_remove(self.c, slot)

    def pop(self) -> int:
        slot = int(lib.gd_standby_pop(self.c))
        assert slot == min(self.expected, key=lambda s: self.expected[s], default=-1)
        self.expected.pop(slot, None)
        return slot

    def check(self) -> None:
        assert lib.gd_standby_count(self.c) == len(self.expected)
        for slot in range(-1, self.slots + 1):
            assert lib.gd_standby_holds(self.c, slot) == (slot in self.expected)
        for slot, (key, _) in self.expected.items():
            assert lib.gd_standby_key(self.c, slot) == key

    def drain(self) -> list[int]:
        return [self.pop() for _ in range(len(self.expected))]


def cache_place(key: int) -> int:
    """Where standby.c's cache of recent keys looks for `key`."""
    return (key * 0x9E3779B97F4A7C15 % 2**64) >> 56


def colliding_keys(count: int) -> list[int]:
    """Keys that all share one place of the cache, so that each makes it forget the one before."""
    return list(itertools.islice((k for k in itertools.count() if cache_place(k) == 7), count))


KEYS = {
    "one": [5],
    "few": [-2, -1, 0, 1, 2, 3],
    "extreme": [INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX],
    "colliding": colliding_keys(6),
    "more than the cache": list(range(-400, 400)),
    "any": [],
}


@product("kind,slots", list(KEYS), [1, 2, 7, 64, 700])
def test_equals_a_sorted_list(kind, slots, seeds):
    for seed in seeds(1):
        rng, standby = Random(f"{kind} {slots} {seed}"), Standby(slots)
        out = list(range(slots))
        for step in range(4_000):
            # A fill level that swings, so that it runs empty and full again and again.
            fill = 0.5 + 0.45 * (-1) ** (step * 4 // 4_000)
            if out and rng.random() < fill:
                slot = out.pop(rng.randrange(len(out)))
                key = rng.choice(KEYS[kind]) if KEYS[kind] else rng.randint(INT64_MIN, INT64_MAX)
                standby.push(slot, key)
            elif standby.expected and rng.random() < 0.5:
                slot = rng.choice(list(standby.expected))
                standby.remove(slot)
                out.append(slot)
            elif (slot := standby.pop()) >= 0:
                out.append(slot)
            if step % 97 == 0:
                standby.check()
        standby.drain()
        standby.check()


def test_a_bucket_used_again_for_another_key_is_not_mistaken():
    """The cache still points at a bucket that went to another key, or back to the first."""
    a, b = colliding_keys(2)
    other = next(k for k in itertools.count(a + 1) if cache_place(k) != cache_place(a))
    standby = Standby(8)
    standby.push(0, a)
    standby.remove(0)  # its bucket is free, the cache points at it
    standby.push(1, other)  # takes the same bucket
    standby.push(2, a)  # must not land in it
    standby.remove(1)
    for slot, key in enumerate([b, a, other], start=3):
        standby.push(slot, key)
    standby.drain()
    for keys in itertools.product([a, b, other], repeat=5):
        standby = Standby(5)
        for slot, key in enumerate(keys):
            standby.push(slot, key)
            if slot % 2:
                standby.remove(slot - 1)
        standby.drain()


def test_slots_of_one_release_leave_in_the_order_of_slots():
    table = CoreTable(rows=18000, slots=9000)
    lease = table.serve(list(range(9000)))
    shuffled = Random(1).sample(lease.alias, 9000)
    assert table.release(shuffled[:4500]) == 0
    assert table.release(shuffled[4500:]) == 0
    expected = sorted(shuffled[:4500]) + sorted(shuffled[4500:])
    assert (table.available(), table.verify()) == (9000, 0)
    assert [slot for _, slot in table.admit(list(range(9000, 18000))).loads] == expected


# ---- the window of batches that are announced and not admitted, against sets


@pytest.fixture
def window() -> Iterator[object]:
    made = lib.gd_window_new(ROWS)
    yield made
    lib.gd_window_free(made)


def add(window: object, index: int, rows: list[int]) -> int:
    ids = np.array(rows, np.int64)
    return int(lib.gd_window_add(window, index, pointer(ids), len(ids)))


def drop(window: object, index: int, rows: list[int]) -> int:
    ids = np.array(rows, np.int64)
    return int(lib.gd_window_drop(window, index, pointer(ids), len(ids)))


def together(window: object, indices: list[int]) -> int:
    numbers = np.array(indices, np.int64)
    return int(lib.gd_window_together(window, pointer(numbers), len(numbers)))


def next_uses(window: object, rows: list[int]) -> list[int]:
    uses: Any = lib.gd_window_next_uses(window)
    return [int(uses[lib.gd_window_wanted(window, row)]) for row in rows]


def test_next_uses_are_those_of_a_dictionary_of_sets(window, seeds):
    draw = random.Random(str(seeds(1)))
    known: dict[int, list[int]] = {}
    for _ in range(300):
        if known and draw.random() < 0.5:
            index = draw.choice(sorted(known))
            assert drop(window, index, known.pop(index)) == 0
        elif len(known) < lib.GD_WINDOW_BATCHES:
            index = draw.choice([n for n in range(100) if n not in known])  # in any order
            known[index] = [draw.randrange(ROWS) for _ in range(draw.randrange(20))]
            assert add(window, index, known[index]) == 0
        assert lib.gd_window_count(window) == len(known)
        some = draw.sample(sorted(known), draw.randrange(len(known) + 1))
        assert together(window, some) == len({row for index in some for row in known[index]})
        expected = [
            min((index for index, rows in known.items() if row in rows), default=NO_USE)
            for row in range(ROWS)
        ]
        assert next_uses(window, list(range(ROWS))) == expected


def test_what_is_refused_changes_nothing(window):
    assert add(window, 3, [1, 2]) == 0
    assert add(window, 3, [4]) == -errno.EINVAL
    assert add(window, -1, [4]) == -errno.EINVAL
    assert add(window, 4, [5, ROWS]) == -errno.ERANGE
    assert add(window, 4, [5, -1]) == -errno.ERANGE
    assert drop(window, 7, [1]) == -errno.ENOENT
    assert drop(window, -1, [1]) == -errno.ENOENT
    assert together(window, [3, 7]) == together(window, [-1]) == -errno.ENOENT
    assert next_uses(window, [1, 2, 4, 5]) == [3, 3, NO_USE, NO_USE]
    for index in range(10, 10 + lib.GD_WINDOW_BATCHES - 1):
        assert add(window, index, [6]) == 0
    assert add(window, 99, [7]) == -errno.ENOSPC
    assert next_uses(window, [6, 7]) == [10, NO_USE]
    assert lib.gd_window_wanted(window, ROWS) == lib.gd_window_wanted(window, -1) == -errno.ERANGE


def test_no_memory_and_no_window():
    assert lib.gd_window_new(-1) == ffi.NULL
    lib.gd_window_free(ffi.NULL)


# ---- the missing rows of a sweep in parts, against what the header promises


def divide(rows: list[int], there: list[bool], part_rows: int) -> tuple[int, list[list[int]]]:
    """How many parts there are, and the places in each; checks the slots that each needs."""
    ids, alias = np.array(rows, np.int64), np.where(there, 0, -1).astype(np.int32)
    seen = set()
    for place in np.flatnonzero(alias < 0):
        alias[place] = -2 if rows[place] in seen else -1  # as gd_buffer_hold marks it
        seen.add(rows[place])
    order = np.full(len(rows), -7, np.int32)
    found = ffi.new("gd_part[]", [(-7, -7)] * (len(rows) // part_rows + 6))
    count = lib.gd_parts(pointer(ids), pointer(alias), len(rows), part_rows, pointer(order), found)
    assert all((part.end, part.slots) == (-7, -7) for part in list(found)[max(count, 0) :])
    cuts = [0, *(part.end for part in found[0:count])]
    parts = [order[a:b].tolist() for a, b in pairwise(cuts)]
    for places, part in zip(parts, found[0:count], strict=True):
        assert part.slots == len({rows[place] for place in places})
    return count, parts


FAR = 1 << 40
HELD_ROWS = st.lists(
    st.tuples(st.one_of(st.integers(0, 30), st.integers(0, FAR)), st.booleans()), max_size=60
)


@settings(max_examples=40)
@given(HELD_ROWS, st.integers(1, 20))
@example([(FAR, False), (0, False), (FAR, False), (FAR - 1, False)], 1)
@example([(2**62, False), (0, False)], 1)
@example([(5, False)], 1)
def test_parts(rows, part_rows):
    ids, there = [row for row, _ in rows], [held for _, held in rows]
    count, parts = divide(ids, there, part_rows)
    assert count == len(parts)
    missing = [place for place, held in enumerate(there) if not held]
    assert sorted(place for part in parts for place in part) == missing
    assert count <= len(ids) // part_rows + 5
    assert all(parts)
    before = 0
    for part in parts[:-1]:
        assert len(part) >= min(max(part_rows // 8, before), part_rows)
        before += len(part)
    wanted = [[ids[place] for place in part] for part in parts]
    for one, next_one in pairwise(wanted):
        assert max(one) < min(next_one)  # in the file's order, equal rows together


def test_a_parts_rows_come_from_their_places_and_its_aliases_go_there():
    rows, alias = np.array([50, 40, 30, 20], np.int64), np.array([7, -1, -2, -1], np.int32)
    order, part = np.array([3, 1], np.int32), np.empty(2, np.int64)
    lib.gd_part_take(pointer(rows), pointer(order), 2, pointer(part))
    assert part.tolist() == [20, 40]
    admitted = np.array([5, 6], np.int32)
    lib.gd_part_put(pointer(admitted), pointer(order), 2, pointer(alias))
    assert alias.tolist() == [7, 6, -2, 5]


def test_a_part_has_few_rows_more_than_asked():
    """The first is an eighth, then each as large as all before it, up to that."""
    count, parts = divide(list(range(100_000)), [False] * 100_000, 8_000)
    asked = [1_000, 1_000, 2_000, 4_000] + [8_000] * 11
    assert count == len(asked) + 1
    for part, least in zip(parts, asked, strict=False):
        assert least <= len(part) < least + 8 * 100_000 // 2048


def test_nothing_is_missing():
    assert divide([3, 3], [True, True], 1) == (0, [])
    assert divide([], [], 1) == (0, [])


def test_a_part_of_no_rows():
    nothing = pointer(np.empty(0, np.int64))
    none = pointer(np.empty(0, np.int32))
    parts = ffi.new("gd_part[]", 2)
    assert lib.gd_parts(nothing, none, 0, 0, none, parts) == -errno.EINVAL
