"""Admission by hand, where the model of `test_model.py` does not go, and the gather."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from gnndrive.common.ffi import ffi, lib, pointer

from .slot_tables import CoreTable

INT64_MAX = 2**63 - 1


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
