"""The window of batches that are announced and not admitted, against sets."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.policies.base import NO_USE
from gnndrive.common.ffi import ffi, lib, pointer

ROWS = 50


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
