"""Dividing what a sweep misses into parts, against what the header promises."""

from __future__ import annotations

import errno
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gnndrive._ffi import ffi, lib, pointer


def divide(rows: list[int], there: list[bool], part_rows: int) -> tuple[int, list[list[int]]]:
    """How many parts there are, and the places in each, which take as many slots as they say."""
    ids, alias = np.array(rows, np.int64), np.where(there, 0, -1).astype(np.int32)
    seen = set()
    for place in np.flatnonzero(alias < 0):
        alias[place] = -2 if rows[place] in seen else -1  # as gd_buffer_hold says it
        seen.add(rows[place])
    order = np.full(len(rows), -7, np.int32)
    found = ffi.new("gd_part[]", [(-7, -7)] * (len(rows) // part_rows + 3))
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


@given(ROWS, st.integers(1, 20))
@example([(FAR, False), (0, False), (FAR, False), (FAR - 1, False)], 1)
@example([(2**62, False), (0, False)], 1)
@example([(5, False)], 1)
def test_parts(rows: list[tuple[int, bool]], part_rows: int) -> None:
    ids, there = [row for row, _ in rows], [held for _, held in rows]
    count, parts = divide(ids, there, part_rows)
    assert count == len(parts)
    missing = [place for place, held in enumerate(there) if not held]
    assert sorted(place for part in parts for place in part) == missing
    assert all(len(part) >= part_rows for part in parts[1:-1])
    assert all(len(part) >= part_rows // 4 for part in parts[:-1])
    assert all(parts)
    wanted = [[ids[place] for place in part] for part in parts]
    for before, after in pairwise(wanted):
        assert max(before) < min(after)  # in the file's order, equal rows together


def test_a_part_is_little_more_than_was_asked() -> None:
    count, parts = divide(list(range(100_000)), [False] * 100_000, 10_000)
    assert count == 11
    assert 2_500 <= len(parts[0]) < 2_500 + 100_000 // 2048
    assert all(10_000 <= len(part) < 10_000 + 100_000 // 2048 for part in parts[1:-1])


def test_nothing_is_missing() -> None:
    assert divide([3, 3], [True, True], 1) == (0, [])
    assert divide([], [], 1) == (0, [])


def test_a_part_of_no_rows() -> None:
    nothing = pointer(np.empty(0, np.int64))
    none = pointer(np.empty(0, np.int32))
    parts = ffi.new("gd_part[]", 2)
    assert lib.gd_parts(nothing, none, 0, 0, none, parts) == -errno.EINVAL
