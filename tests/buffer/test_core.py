"""The C core's parts of the buffer, where the model of `test_model.py` does not go."""

import ctypes
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

from gnndrive.buffer.items import MAPPING_BYTES, SLOT_TABLE_BYTES
from gnndrive.buffer.policies.base import NO_USE
from gnndrive.common.ffi import ffi, lib, pointer
from tests.soak import product

from .test_model import CoreTable

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ROWS = 50  # of windows


def test_an_id_out_of_range_far_behind_is_found():
    """The loops look ahead by some rows: the last id of a long batch counts like the first."""
    table = CoreTable(rows=1000, slots=1000)
    for bad in (-1, 1000):
        before, rows = table.observe(), [*range(1000), bad]
        assert table.probe(rows).code == table.admit(rows).code == -errno.ERANGE
        assert table.observe() == before
    assert len(table.admit(list(range(1000))).loads) == 1000


def test_what_is_out_of_range_is_refused():
    for rows, slots in (-1, 1), (1, 0), (1, -1), (1, 2**31 - 1), (1, 2**40):
        assert lib.gd_buffer_new(rows, slots) == ffi.NULL
    table = CoreTable(rows=20, slots=4)
    table.serve([1])
    for row in (-1, 20, INT64_MIN, INT64_MAX):
        assert table.slot_of(row) == -1
        assert table.rekey([row], [0]) == -errno.ERANGE
    empty = CoreTable(rows=0, slots=1)
    assert empty.admit([]).code == 0
    assert empty.admit([0]).code == -errno.ERANGE


class _Mallinfo2(ctypes.Structure):
    """What glibc's `mallinfo2` returns: `mmapped` and `given` are its hblkhd and uordblks."""

    _fields_ = (
        ("_other", 4 * ctypes.c_size_t),
        ("mmapped", ctypes.c_size_t),
        ("_more", 2 * ctypes.c_size_t),
        ("given", ctypes.c_size_t),
        ("_rest", 2 * ctypes.c_size_t),
    )


def _allocated() -> int:
    """Bytes that malloc has given out."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo2
    found = library.mallinfo2()
    return int(found.given + found.mmapped)


def test_a_slot_table_allocates_what_plans_count():
    """The buckets of the standby list are not among it: few are used, in a mapping of their own."""
    slots, rows = 100_000, 300_000
    before = _allocated()
    buffer = ffi.gc(lib.gd_buffer_new(rows, slots), lib.gd_buffer_free)
    counted = SLOT_TABLE_BYTES * slots + MAPPING_BYTES * rows
    assert buffer
    assert _allocated() - before < counted + (1 << 17)


def test_a_gather_runs_in_a_few_threads():
    most = min(os.cpu_count() or 1, 4)
    for threads in range(6):
        assert lib.gd_gather_threads(0, threads) == 1
        assert lib.gd_gather_threads(1 << 40, threads) == max(min(threads, most), 1)
    assert lib.gd_gather_threads(20 << 20, 4) == min(most, 2)


@pytest.mark.parametrize(
    ("slots", "stride", "row_bytes", "rows", "threads"),
    [(40, 8, 5, 24, 1), (1000, 16384, 16384, 4000, 1), (1000, 16384, 16384, 4000, 4)],
)
def test_a_gather_copies_by_alias(slots, stride, row_bytes, rows, threads):
    table = np.random.default_rng(0).integers(0, 256, (slots, stride), np.uint8)
    alias = np.arange(rows, dtype=np.int32) * 7 % slots
    into = np.zeros(rows * row_bytes + 1, np.uint8)
    assert threads == 1 or into.nbytes > 3 << 24, "enough for four threads"
    read, written = (ffi.cast("uint8_t *", pointer(each)) for each in (table, into))
    lib.gd_gather(read, stride, pointer(alias), rows, row_bytes, written, threads)
    assert np.array_equal(into[:-1].reshape(rows, row_bytes), table[alias, :row_bytes])
    assert into[-1] == 0


# ---- the standby list, against a sorted list


def colliding_keys(count: int) -> list[int]:
    """Keys that share one place of standby.c's cache of recent keys: each makes it forget the one
    before."""
    places = ((key * 0x9E3779B97F4A7C15 % 2**64) >> 56 for key in itertools.count())
    return list(itertools.islice((key for key, at in enumerate(places) if at == 7), count))


KEYS = {
    "one": [5],
    "few": [-2, -1, 0, 1, 2, 3],
    "extreme": [INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX],
    "colliding": [*colliding_keys(3), 1],
    "more than the cache": list(range(-400, 400)),
    "any": [],
}


@product("kind,slots", list(KEYS), [1, 2, 7, 64, 700])
def test_equals_a_sorted_list(kind, slots, seeds):
    for seed in seeds(1):
        rng = Random(f"{kind} {slots} {seed}")
        standby = ffi.gc(lib.gd_standby_new(slots), lib.gd_standby_free)
        expected = dict[int, tuple[int, int]]()  # slot → (key, when it was put there)
        out = list(range(slots))

        def pop(standby=standby, expected=expected) -> int:
            slot = int(lib.gd_standby_pop(standby))
            assert slot == min(expected, key=expected.__getitem__, default=-1)
            expected.pop(slot, None)
            return slot

        for step in range(4_000):
            # A fill level that swings, so that it runs empty and full again and again.
            fill = 0.5 + 0.45 * (-1) ** (step * 4 // 4_000)
            if out and rng.random() < fill:
                slot = out.pop(rng.randrange(len(out)))
                key = rng.choice(KEYS[kind]) if KEYS[kind] else rng.randint(INT64_MIN, INT64_MAX)
                lib.gd_standby_push(standby, slot, key)
                expected[slot] = key, step
            elif expected and rng.random() < 0.5:
                slot = rng.choice(list(expected))
                lib.gd_standby_remove(standby, slot)
                del expected[slot]
                out.append(slot)
            elif (slot := pop()) >= 0:
                out.append(slot)
            if step % 97 == 0:
                assert lib.gd_standby_count(standby) == len(expected)
                for slot in range(-1, slots + 1):
                    assert lib.gd_standby_holds(standby, slot) == (slot in expected)
                for slot, (key, _) in expected.items():
                    assert lib.gd_standby_key(standby, slot) == key
        while pop() >= 0:
            pass
        assert lib.gd_standby_count(standby) == 0


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
    return int(lib.gd_window_add(window, index, ffi.new("int64_t[]", rows), len(rows)))


def drop(window: object, index: int, rows: list[int]) -> int:
    return int(lib.gd_window_drop(window, index, ffi.new("int64_t[]", rows), len(rows)))


def together(window: object, indices: list[int]) -> int:
    return int(lib.gd_window_together(window, ffi.new("int64_t[]", indices), len(indices)))


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
    assert lib.gd_window_new(-1) == ffi.NULL
    nothing, parts = pointer(np.empty(0, np.int64)), ffi.new("gd_part[]", 2)
    none = pointer(np.empty(0, np.int32))
    assert lib.gd_parts(nothing, none, 0, 0, none, parts) == -errno.EINVAL, "parts of no rows"


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
@example([(3, True), (3, True)], 1)
@example([], 1)
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


def test_a_part_has_few_rows_more_than_asked():
    """The first is an eighth, then each as large as all before it, up to that."""
    count, parts = divide(list(range(100_000)), [False] * 100_000, 8_000)
    asked = [1_000, 1_000, 2_000, 4_000] + [8_000] * 11
    assert count == len(asked) + 1
    for part, least in zip(parts, asked, strict=False):
        assert least <= len(part) < least + 8 * 100_000 // 2048
