"""Admission by hand: one case a rule of DESIGN.md's protocol (3, 5, 6, 7, 8), no model between."""

from __future__ import annotations

import errno

import pytest

from gnndrive.common.ffi import ffi, lib

from .books import FAILED, FREE, LOADING, VALID, Books

INT64_MAX = 2**63 - 1


def slots_of(loads: tuple[tuple[int, int], ...]) -> list[int]:
    return [slot for _, slot in loads]


@pytest.fixture
def books() -> Books:
    return Books(rows=20, slots=4)


def retire(books: Books, rows: list[int]) -> None:
    """Load `rows` as one batch and release it: they lie on standby."""
    assert books.release(books.serve(rows).alias) == 0


def unchanged(books: Books, code: int, rows: list[int]) -> int:
    """Probe and admit `rows`; both answer `code` alike and change nothing; the deficit."""
    before = books.observe()
    probed, refused = books.probe(rows), books.stats()["refused"]
    answer = books.admit(rows, [row % 8 for row in rows])
    assert probed.verdict == answer.verdict
    assert answer.code == code
    assert books.observe() == before
    assert books.stats()["refused"] == refused + 1
    assert books.verify() == 0
    return answer.deficit


def test_duplicates_share_a_slot_and_hold_a_reference_each(books: Books) -> None:
    answer = books.admit([7, 3, 7, 7, 3])
    assert (answer.hits, answer.waits, answer.load_count) == (0, 0, 2)
    assert [row for row, _ in answer.loads] == [7, 3]
    seven, three = slots_of(answer.loads)
    assert answer.alias == (seven, three, seven, seven, three)
    assert (books.references(seven), books.references(three)) == (3, 2)
    assert books.release([seven, seven]) == 0
    assert books.references(seven) == 1


def test_hit_wait_and_load_are_told_apart(books: Books) -> None:
    valid = books.serve([1])
    loading = books.admit([2])
    answer = books.admit([3, 2, 1, 2, 1, 3])
    assert (answer.hits, answer.waits, answer.load_count, answer.pending_count) == (1, 1, 1, 2)
    assert [row for row, _ in answer.loads] == [3]
    assert set(answer.pending) == {loading.alias[0], answer.alias[0]}
    assert answer.alias[2] == valid.alias[0]


def test_a_row_loaded_by_one_lease_is_loaded_by_no_other(books: Books) -> None:
    leases = [books.admit([5, 6]) for _ in range(4)]
    assert [lease.load_count for lease in leases] == [2, 0, 0, 0]
    assert [lease.waits for lease in leases] == [0, 2, 2, 2]


def test_an_empty_batch_is_admitted(books: Books) -> None:
    assert books.admit([]).verdict == (0, 0, 0, 0, 0, 0)
    assert books.release([]) == 0


def test_a_batch_of_exactly_all_slots_fits(books: Books) -> None:
    retire(books, [0, 1, 2, 3])
    answer = books.admit([4, 5, 6, 7, 4])
    assert (answer.code, answer.load_count) == (0, 4)
    assert books.stats()["evictions"] == 4


def test_one_row_more_than_slots_never_fits(books: Books) -> None:
    assert unchanged(books, -errno.ENOSPC, [0, 1, 2, 3, 4, 4]) == 1
    assert unchanged(books, -errno.ENOSPC, list(range(20))) == 16


def test_never_is_said_also_when_some_rows_are_there(books: Books) -> None:
    held = books.serve([0, 1, 2])
    assert unchanged(books, -errno.ENOSPC, [0, 1, 2, 3, 4]) == 1
    books.release(held.alias)
    assert unchanged(books, -errno.ENOSPC, [0, 1, 2, 3, 4]) == 1


def test_not_now_says_by_how_many_slots(books: Books) -> None:
    held = books.serve([0, 1, 2])
    for rows, deficit in ([10, 11], 1), ([10, 11, 12], 2), ([10, 11, 12, 13], 3):
        assert unchanged(books, -errno.EAGAIN, rows) == deficit
    assert books.probe([10]).code == 0
    books.release(held.alias[:1])
    assert unchanged(books, -errno.EAGAIN, [10, 11, 12]) == 1
    assert books.admit([10, 11]).code == 0


def test_own_hits_on_standby_are_not_available(books: Books) -> None:
    retire(books, [0, 1])
    held = books.serve([2, 3])
    assert books.available() == 2
    # Two slots are available, but both hold rows of this very batch.
    assert unchanged(books, -errno.EAGAIN, [0, 1, 10]) == 1
    assert unchanged(books, -errno.EAGAIN, [0, 10, 11]) == 1
    assert books.admit([0, 10]).code == 0
    assert books.rows_held() == {0, 2, 3, 10}
    assert books.release(held.alias) == 0


def test_holding_takes_what_is_there_and_nothing_else(books: Books) -> None:
    retire(books, [0])
    loading = books.admit([1])
    before = books.available()
    held = books.hold([5, 0, 1, 5, 1, 0])
    assert (held.code, held.hits, held.waits, held.load_count) == (0, 1, 1, 1)
    absent, there, coming = held.alias[0], held.alias[1], held.alias[2]
    assert held.alias == (-1, there, coming, -2, coming, there)
    assert absent == -1
    assert held.pending == (coming,) == loading.alias
    assert books.available() == before - 1, "out of standby, and no slot taken"
    assert books.probe([5]).load_count == 1, "not marked"
    assert books.hold([0, 10**9]).code == -errno.ERANGE
    seen = books.observe()
    assert books.hold([0, 1, 5, 6, 7]).code == -errno.ENOSPC
    assert books.observe() == seen
    assert lib.gd_buffer_commit(books.c, ffi.new("int32_t[]", [coming]), 1) == 0
    assert books.release(loading.alias) == 0
    assert books.release([alias for alias in held.alias if alias >= 0]) == 0
    assert books.available() == before + 1
    assert lib.gd_buffer_verify(books.c) == 0


def test_a_hit_that_another_lease_holds_costs_nothing(books: Books) -> None:
    books.serve([0, 1])
    retire(books, [2, 3])
    assert books.probe([0, 1, 10, 11]).code == 0


def test_hits_are_not_evicted_by_own_loads(books: Books) -> None:
    retire(books, [0])
    retire(books, [1])
    retire(books, [2])
    retire(books, [3])
    # 0 and 1 are the oldest; behind the misses in the batch, they are its own hits all the same.
    answer = books.admit([10, 11, 0, 1])
    assert (answer.hits, answer.load_count) == (2, 2)
    assert books.rows_held() == {0, 1, 10, 11}
    assert books.references(answer.alias[2]) == books.references(answer.alias[3]) == 1


def test_free_slots_are_used_before_any_row_is_evicted(books: Books) -> None:
    retire(books, [0, 1])
    books.admit([10, 11])
    assert books.rows_held() == {0, 1, 10, 11}
    assert books.stats()["evictions"] == 0


@pytest.mark.parametrize("bad", [-1, 20, 2**31, 2**32, INT64_MAX, -INT64_MAX - 1])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_an_id_out_of_range_leaves_no_marks(books: Books, bad: int, place: int) -> None:
    retire(books, [0, 1])
    books.admit([2])
    rows = [0, 1, 2, 10, 11, 0]
    rows.insert(place, bad)
    unchanged(books, -errno.ERANGE, rows)
    answer = books.admit([0, 2, 10])
    assert (answer.hits, answer.waits, answer.load_count) == (1, 1, 1)


def test_an_id_out_of_range_far_behind_is_found() -> None:
    """The loops look ahead by some rows: the last id of a long batch counts like the first."""
    books = Books(rows=1000, slots=1000)
    for bad in (-1, 1000):
        unchanged(books, -errno.ERANGE, [*range(1000), bad])
    assert books.admit(list(range(1000))).load_count == 1000


def test_the_whole_batch_or_nothing(books: Books) -> None:
    retire(books, [0, 1])
    held = books.serve([2])
    before = books.observe()
    assert books.admit([0, 10, 11, 12]).code == -errno.EAGAIN
    assert books.observe() == before
    books.release(held.alias)
    answer = books.admit([0, 10, 11, 12])
    assert (answer.code, answer.hits, answer.load_count) == (0, 1, 3)


def test_a_loading_slot_that_nobody_wants_stays_out_of_use(books: Books) -> None:
    orphan = books.admit([1, 2, 3, 4])
    assert books.release(orphan.alias) == 0
    assert {books.state(slot) for slot in orphan.alias} == {LOADING}
    # The kernel may still write all four.
    assert books.available() == 0
    assert unchanged(books, -errno.EAGAIN, [10]) == 1
    assert books.commit(orphan.alias[:1]) == 0
    assert books.fail(orphan.alias[1:2]) == 0
    assert (books.stats()["standby"], books.stats()["free"]) == (1, 1)
    answer = books.admit([10, 11])
    assert set(answer.alias) == set(orphan.alias[:2])


def test_an_orphan_is_waited_for_and_not_read_again(books: Books) -> None:
    orphan = books.admit([1])
    books.release(orphan.alias)
    heir = books.admit([1])
    assert (heir.waits, heir.load_count, heir.alias) == (1, 0, orphan.alias)
    books.commit(orphan.alias)
    assert (books.state(heir.alias[0]), books.references(heir.alias[0])) == (VALID, 1)
    assert books.stats()["standby"] == 0


def test_a_failed_row_is_unmapped_at_once_and_its_slot_free_at_the_last_release(
    books: Books,
) -> None:
    loader, waiter = books.admit([1]), books.admit([2, 1])
    (slot,) = loader.alias
    assert books.fail([slot]) == 0
    assert (books.slot_of(1), books.state(slot)) == (-1, FAILED)
    assert books.first_failed(loader.alias) == 0
    assert books.first_failed(waiter.alias) == 1
    # Who comes now reads it anew, into another slot.
    again = books.admit([1])
    assert again.load_count == 1
    assert again.alias != loader.alias
    books.release(loader.alias)
    assert books.state(slot) == FAILED
    books.release(waiter.alias)
    assert books.state(slot) == FREE
    assert books.state(waiter.alias[0]) == LOADING
    assert books.verify() == 0


def test_the_free_slot_of_a_failed_row_is_used_again() -> None:
    books = Books(rows=20, slots=1)
    for row in range(5):
        lease = books.admit([row])
        books.fail(lease.alias)
        assert books.admit([row]).code == -errno.EAGAIN
        books.release(lease.alias)
    assert books.serve([9]).load_count == 1
    assert books.stats()["evictions"] == 0


def test_settled_stops_at_what_is_still_loading(books: Books) -> None:
    lease = books.admit([1, 2, 3])
    first, second, third = lease.pending
    assert books.settled(lease.pending) == (0, 0)
    books.commit([second])
    assert books.settled(lease.pending) == (0, 0)
    books.fail([first])
    assert books.settled(lease.pending) == (0, 2)
    books.commit([third])
    assert books.settled(lease.pending, 2) == (1, 3)
    assert books.settled([]) == (1, 0)


def test_a_row_becomes_valid_only_by_its_commit(books: Books) -> None:
    lease = books.admit([1])
    assert books.state(lease.alias[0]) == LOADING
    assert books.probe([1]).waits == 1
    books.commit(lease.alias)
    assert (books.probe([1]).hits, books.probe([1]).pending_count) == (1, 0)


def test_what_cannot_be_is_refused(books: Books) -> None:
    lease = books.serve([1])
    for slot in (*lease.alias, 3, -1, 4):  # valid, free, and not a slot
        assert books.commit([slot]) == books.fail([slot]) == -errno.EINVAL
    assert books.release([3]) == books.release([-1]) == books.release([4]) == -errno.EINVAL
    assert books.release(lease.alias) == 0
    assert books.release(lease.alias) == -errno.EINVAL
    assert books.rekey([20], [0]) == books.rekey([-1], [0]) == -errno.ERANGE
    assert books.verify() == 0


def test_the_newest_batch_overwrites_the_key(books: Books) -> None:
    books = Books(rows=20, slots=2)
    books.release(books.serve([1], [-50]).alias)
    books.release(books.serve([2], [-40]).alias)
    books.release(books.serve([1], [-30]).alias)
    books.release(books.serve([3], [-20]).alias)
    assert books.rows_held() == {1, 3}


def test_sizes_that_cannot_be_are_refused() -> None:
    for rows, slots in (-1, 1), (1, 0), (1, -1), (1, 2**31 - 1), (1, 2**40):
        assert lib.gd_buffer_new(rows, slots) == ffi.NULL
    empty = Books(rows=0, slots=1)
    assert empty.admit([]).code == 0
    assert empty.admit([0]).code == -errno.ERANGE


def test_slot_of_a_row_out_of_range_is_none(books: Books) -> None:
    for row in (-1, 20, INT64_MAX, -INT64_MAX - 1):
        assert books.slot_of(row) == -1


def test_gather_copies_by_alias() -> None:
    row_bytes, stride, slots = 5, 8, 40
    table = ffi.new("uint8_t[]", bytes(slot * 3 + at for slot in range(slots) for at in range(8)))
    alias = [39, 0, 7, 7, *range(20)]
    rows = ffi.new("uint8_t[]", len(alias) * row_bytes + 1)
    lib.gd_gather(table, stride, ffi.new("int32_t[]", alias), len(alias), row_bytes, rows)
    expected = bytes(slot * 3 + at for slot in alias for at in range(row_bytes))
    assert bytes(ffi.buffer(rows)) == expected + b"\0"
