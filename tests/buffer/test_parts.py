"""Dividing the missing rows of a sweep into parts, against what the header promises."""

from __future__ import annotations

import errno
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnndrive.common.ffi import ffi, lib, pointer


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
ROWS = st.lists(
    st.tuples(st.one_of(st.integers(0, 30), st.integers(0, FAR)), st.booleans()), max_size=60
)


@settings(max_examples=40)
@given(ROWS, st.integers(1, 20))
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
