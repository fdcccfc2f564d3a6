"""Admission by hand: one case for a rule of the protocol (3, 5, 6, 7, 8), without the model."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from gnndrive.common.ffi import ffi, lib, pointer

from .slot_tables import FAILED, FREE, LOADING, VALID, CoreTable

INT64_MAX = 2**63 - 1


def slots_of(loads: tuple[tuple[int, int], ...]) -> list[int]:
    return [slot for _, slot in loads]


@pytest.fixture
def table() -> CoreTable:
    return CoreTable(rows=20, slots=4)


def retire(table: CoreTable, rows: list[int]) -> None:
    """Load `rows` as one batch and release it: they lie on standby."""
    assert table.release(table.serve(rows).alias) == 0


def unchanged(table: CoreTable, code: int, rows: list[int]) -> int:
    """Probe and admit `rows`; both answer `code` alike and change nothing; the deficit."""
    before = table.observe()
    probed, refused = table.probe(rows), table.stats()["refused"]
    answer = table.admit(rows, [row % 8 for row in rows])
    assert probed.verdict == answer.verdict
    assert answer.code == code
    assert table.observe() == before
    assert table.stats()["refused"] == refused + 1
    assert table.verify() == 0
    return answer.deficit


def test_duplicates_share_a_slot_and_hold_a_reference_each(table):
    answer = table.admit([7, 3, 7, 7, 3])
    assert (answer.hits, answer.waits, answer.load_count) == (0, 0, 2)
    assert [row for row, _ in answer.loads] == [7, 3]
    seven, three = slots_of(answer.loads)
    assert answer.alias == (seven, three, seven, seven, three)
    assert (table.references(seven), table.references(three)) == (3, 2)
    assert table.release([seven, seven]) == 0
    assert table.references(seven) == 1


def test_hit_wait_and_load_are_told_apart(table):
    valid = table.serve([1])
    loading = table.admit([2])
    answer = table.admit([3, 2, 1, 2, 1, 3])
    assert (answer.hits, answer.waits, answer.load_count, answer.pending_count) == (1, 1, 1, 2)
    assert [row for row, _ in answer.loads] == [3]
    assert set(answer.pending) == {loading.alias[0], answer.alias[0]}
    assert answer.alias[2] == valid.alias[0]


def test_a_row_loaded_by_one_lease_is_loaded_by_no_other(table):
    leases = [table.admit([5, 6]) for _ in range(4)]
    assert [lease.load_count for lease in leases] == [2, 0, 0, 0]
    assert [lease.waits for lease in leases] == [0, 2, 2, 2]


def test_an_empty_batch_is_admitted(table):
    assert table.admit([]).verdict == (0, 0, 0, 0, 0, 0)
    assert table.release([]) == 0


def test_a_batch_of_exactly_all_slots_fits(table):
    retire(table, [0, 1, 2, 3])
    answer = table.admit([4, 5, 6, 7, 4])
    assert (answer.code, answer.load_count) == (0, 4)
    assert table.stats()["evictions"] == 4


def test_one_row_more_than_slots_never_fits(table):
    assert unchanged(table, -errno.ENOSPC, [0, 1, 2, 3, 4, 4]) == 1
    assert unchanged(table, -errno.ENOSPC, list(range(20))) == 16


def test_a_batch_that_never_fits_is_refused_also_when_some_rows_are_there(table):
    held = table.serve([0, 1, 2])
    assert unchanged(table, -errno.ENOSPC, [0, 1, 2, 3, 4]) == 1
    table.release(held.alias)
    assert unchanged(table, -errno.ENOSPC, [0, 1, 2, 3, 4]) == 1


def test_a_batch_that_does_not_fit_now_gets_its_deficit(table):
    held = table.serve([0, 1, 2])
    for rows, deficit in ([10, 11], 1), ([10, 11, 12], 2), ([10, 11, 12, 13], 3):
        assert unchanged(table, -errno.EAGAIN, rows) == deficit
    assert table.probe([10]).code == 0
    table.release(held.alias[:1])
    assert unchanged(table, -errno.EAGAIN, [10, 11, 12]) == 1
    assert table.admit([10, 11]).code == 0


def test_own_hits_on_standby_are_not_available(table):
    retire(table, [0, 1])
    held = table.serve([2, 3])
    assert table.available() == 2
    # Two slots are available, but both hold rows of this very batch.
    assert unchanged(table, -errno.EAGAIN, [0, 1, 10]) == 1
    assert unchanged(table, -errno.EAGAIN, [0, 10, 11]) == 1
    assert table.admit([0, 10]).code == 0
    assert table.rows_held() == {0, 2, 3, 10}
    assert table.release(held.alias) == 0


def test_hold_takes_only_rows_that_have_a_slot(table):
    retire(table, [0])
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


def test_a_hit_that_another_lease_holds_costs_nothing(table):
    table.serve([0, 1])
    retire(table, [2, 3])
    assert table.probe([0, 1, 10, 11]).code == 0


def test_hits_are_not_evicted_by_own_loads(table):
    retire(table, [0])
    retire(table, [1])
    retire(table, [2])
    retire(table, [3])
    # 0 and 1 are the oldest; behind the misses in the batch, they are its own hits all the same.
    answer = table.admit([10, 11, 0, 1])
    assert (answer.hits, answer.load_count) == (2, 2)
    assert table.rows_held() == {0, 1, 10, 11}
    assert table.references(answer.alias[2]) == table.references(answer.alias[3]) == 1


def test_free_slots_are_used_before_any_row_is_evicted(table):
    retire(table, [0, 1])
    table.admit([10, 11])
    assert table.rows_held() == {0, 1, 10, 11}
    assert table.stats()["evictions"] == 0


@pytest.mark.parametrize("bad", [-1, 20, 2**31, 2**32, INT64_MAX, -INT64_MAX - 1])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_an_id_out_of_range_leaves_no_marks(table, bad, place):
    retire(table, [0, 1])
    table.admit([2])
    rows = [0, 1, 2, 10, 11, 0]
    rows.insert(place, bad)
    unchanged(table, -errno.ERANGE, rows)
    answer = table.admit([0, 2, 10])
    assert (answer.hits, answer.waits, answer.load_count) == (1, 1, 1)


def test_an_id_out_of_range_far_behind_is_found():
    """The loops look ahead by some rows: the last id of a long batch counts like the first."""
    table = CoreTable(rows=1000, slots=1000)
    for bad in (-1, 1000):
        unchanged(table, -errno.ERANGE, [*range(1000), bad])
    assert table.admit(list(range(1000))).load_count == 1000


def test_the_whole_batch_or_nothing(table):
    retire(table, [0, 1])
    held = table.serve([2])
    before = table.observe()
    assert table.admit([0, 10, 11, 12]).code == -errno.EAGAIN
    assert table.observe() == before
    table.release(held.alias)
    answer = table.admit([0, 10, 11, 12])
    assert (answer.code, answer.hits, answer.load_count) == (0, 1, 3)


def test_a_loading_slot_that_no_lease_holds_stays_out_of_use(table):
    orphan = table.admit([1, 2, 3, 4])
    assert table.release(orphan.alias) == 0
    assert {table.state(slot) for slot in orphan.alias} == {LOADING}
    # The kernel may still write all four.
    assert table.available() == 0
    assert unchanged(table, -errno.EAGAIN, [10]) == 1
    assert table.commit(orphan.alias[:1]) == 0
    assert table.fail(orphan.alias[1:2]) == 0
    assert (table.stats()["standby"], table.stats()["free"]) == (1, 1)
    answer = table.admit([10, 11])
    assert set(answer.alias) == set(orphan.alias[:2])


def test_an_orphan_is_waited_for_and_not_read_again(table):
    orphan = table.admit([1])
    table.release(orphan.alias)
    heir = table.admit([1])
    assert (heir.waits, heir.load_count, heir.alias) == (1, 0, orphan.alias)
    table.commit(orphan.alias)
    assert (table.state(heir.alias[0]), table.references(heir.alias[0])) == (VALID, 1)
    assert table.stats()["standby"] == 0


def test_a_failed_row_is_unmapped_at_once_and_its_slot_free_at_the_last_release(table):
    loader, waiter = table.admit([1]), table.admit([2, 1])
    (slot,) = loader.alias
    assert table.fail([slot]) == 0
    assert (table.slot_of(1), table.state(slot)) == (-1, FAILED)
    assert table.first_failed(loader.alias) == 0
    assert table.first_failed(waiter.alias) == 1
    # A later batch reads the row again, into another slot.
    again = table.admit([1])
    assert again.load_count == 1
    assert again.alias != loader.alias
    table.release(loader.alias)
    assert table.state(slot) == FAILED
    table.release(waiter.alias)
    assert table.state(slot) == FREE
    assert table.state(waiter.alias[0]) == LOADING
    assert table.verify() == 0


def test_the_free_slot_of_a_failed_row_is_used_again():
    table = CoreTable(rows=20, slots=1)
    for row in range(5):
        lease = table.admit([row])
        table.fail(lease.alias)
        assert table.admit([row]).code == -errno.EAGAIN
        table.release(lease.alias)
    assert table.serve([9]).load_count == 1
    assert table.stats()["evictions"] == 0


def test_settled_stops_at_what_is_still_loading(table):
    lease = table.admit([1, 2, 3])
    first, second, third = lease.pending
    assert table.settled(lease.pending) == (0, 0)
    table.commit([second])
    assert table.settled(lease.pending) == (0, 0)
    table.fail([first])
    assert table.settled(lease.pending) == (0, 2)
    table.commit([third])
    assert table.settled(lease.pending, 2) == (1, 3)
    assert table.settled([]) == (1, 0)


def test_a_row_becomes_valid_only_by_its_commit(table):
    lease = table.admit([1])
    assert table.state(lease.alias[0]) == LOADING
    assert table.probe([1]).waits == 1
    table.commit(lease.alias)
    assert (table.probe([1]).hits, table.probe([1]).pending_count) == (1, 0)


def test_invalid_slots_and_rows_are_refused(table):
    lease = table.serve([1])
    for slot in (*lease.alias, 3, -1, 4):  # valid, free, and not a slot
        assert table.commit([slot]) == table.fail([slot]) == -errno.EINVAL
    assert table.release([3]) == table.release([-1]) == table.release([4]) == -errno.EINVAL
    assert table.release(lease.alias) == 0
    assert table.release(lease.alias) == -errno.EINVAL
    assert table.rekey([20], [0]) == table.rekey([-1], [0]) == -errno.ERANGE
    assert table.verify() == 0


def test_the_newest_batch_overwrites_the_key(table):
    table = CoreTable(rows=20, slots=2)
    table.release(table.serve([1], [-50]).alias)
    table.release(table.serve([2], [-40]).alias)
    table.release(table.serve([1], [-30]).alias)
    table.release(table.serve([3], [-20]).alias)
    assert table.rows_held() == {1, 3}


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


@pytest.mark.parametrize("threads", [1, 2, 4])
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
