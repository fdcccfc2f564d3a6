"""The C feature buffer as the tests of this folder call it: plain lists in, plain lists out.

Every output array has a guard behind its last entry, so that a write beyond it is found. For tests
only: it copies each row in Python.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnndrive.common.ffi import ffi, lib

FREE, LOADING, VALID, FAILED = lib.GD_FREE, lib.GD_LOADING, lib.GD_VALID, lib.GD_FAILED
GUARD = -77


@dataclass(frozen=True, slots=True)
class Answer:
    """What `probe` or `admit` answered; the lists are empty unless a batch was admitted.

    Attributes:
        code: 0 or -errno.
        alias: the slot of each id.
        pending: the slots that were not valid yet.
        loads: (row, slot) of the rows that this lease must load.
    """

    code: int
    hits: int
    waits: int
    load_count: int
    pending_count: int
    deficit: int
    alias: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    loads: tuple[tuple[int, int], ...] = ()

    @property
    def verdict(self) -> tuple[int, ...]:
        """The numbers to compare; with an id out of range only the code means something."""
        if self.code == -errno.ERANGE:
            return (self.code,)
        numbers = (self.hits, self.waits, self.load_count, self.pending_count, self.deficit)
        return (self.code, *numbers)


class Ranked:
    """A gd_ranking whose cases are those of a window, without classes."""

    def __init__(self, rows: int) -> None:
        self.window: Any = ffi.gc(lib.gd_window_new(rows), lib.gd_window_free)
        self.base: Any = ffi.new("int64_t[]", lib.GD_WINDOW_SETS)
        self.mask: Any = ffi.new("uint8_t[]", lib.GD_WINDOW_SETS)
        self.c: Any = ffi.new("gd_ranking *", (self.base, self.mask, ffi.NULL, self.window))


class CoreTable:
    """One gd_buffer over `rows` rows with `slots` slots."""

    def __init__(self, rows: int, slots: int) -> None:
        self.rows, self.slots = rows, slots
        self.c = ffi.gc(lib.gd_buffer_new(rows, slots), lib.gd_buffer_free)
        assert self.c != ffi.NULL

    def probe(self, ids: Sequence[int]) -> Answer:
        a = ffi.new("gd_admission *")
        code = lib.gd_buffer_probe(self.c, ffi.new("int64_t[]", ids), len(ids), a)
        return Answer(code, a.hits, a.waits, a.loads, a.pending, a.deficit)

    def holds(self, ids: Sequence[int]) -> int:
        return int(lib.gd_buffer_holds(self.c, ffi.new("int64_t[]", ids), len(ids)))

    def hold(self, ids: Sequence[int]) -> Answer:
        n, a = len(ids), ffi.new("gd_admission *")
        alias, pending = (ffi.new("int32_t[]", [GUARD] * (n + 1)) for _ in range(2))
        wanted = ffi.new("int64_t[]", ids)
        code = lib.gd_buffer_hold(self.c, ffi.NULL, wanted, ffi.NULL, n, alias, pending, a)
        done = n * (code == 0), a.pending * (code == 0)
        kept = _taken(alias, n, done[0]), _taken(pending, n, done[1])
        return Answer(code, a.hits, a.waits, a.loads, a.pending, a.deficit, *kept)

    def admit(self, ids: Sequence[int], keys: Sequence[int] | None = None) -> Answer:
        n, a = len(ids), ffi.new("gd_admission *")
        alias, pending, slots = (ffi.new("int32_t[]", [GUARD] * (n + 1)) for _ in range(3))
        rows = ffi.new("int64_t[]", [GUARD] * (n + 1))
        ranking = None if keys is None else self.ranking(ids, keys)
        code = lib.gd_buffer_admit(
            self.c, ffi.NULL if ranking is None else ranking.c, ffi.new("int64_t[]", ids),
            ffi.NULL, n, alias, pending, rows, slots, ffi.NULL, a,
        )  # fmt: skip
        done = [count * (code == 0) for count in (n, a.pending, a.loads, a.loads)]
        arrays = zip((alias, pending, rows, slots), done, strict=True)
        kept = [_taken(array, n, count) for array, count in arrays]
        loads = tuple(zip(kept[2], kept[3], strict=True))
        return Answer(code, a.hits, a.waits, a.loads, a.pending, a.deficit, kept[0], kept[1], loads)

    def ranking(self, ids: Sequence[int], keys: Sequence[int]) -> Ranked:
        """A ranking that gives each row its last key; at most eight different keys, because its
        window has a batch for the rows of each key."""
        ranked, key_of = Ranked(self.rows), dict(zip(ids, keys, strict=True))
        for place, key in enumerate(sorted(set(key_of.values()))):
            rows = [row for row, its in key_of.items() if its == key and 0 <= row < self.rows]
            added = lib.gd_window_add(ranked.window, place, ffi.new("int64_t[]", rows), len(rows))
            assert added == 0
            ranked.base[1 << place] = key
        return ranked

    def commit(self, slots: Sequence[int]) -> int:
        return int(lib.gd_buffer_commit(self.c, ffi.new("int32_t[]", slots), len(slots)))

    def fail(self, slots: Sequence[int]) -> int:
        return int(lib.gd_buffer_fail(self.c, ffi.new("int32_t[]", slots), len(slots)))

    def release(self, alias: Sequence[int]) -> int:
        return int(lib.gd_buffer_release(self.c, ffi.new("int32_t[]", alias), len(alias)))

    def rekey(self, rows: Sequence[int], keys: Sequence[int]) -> int:
        ranking = self.ranking(rows, keys)
        return int(lib.gd_buffer_rekey(self.c, ranking.c, ffi.new("int64_t[]", rows), len(rows)))

    def settled(self, pending: Sequence[int], position: int = 0) -> tuple[int, int]:
        """(0 or 1, the position it advanced to)."""
        at = ffi.new("int64_t *", position)
        code = lib.gd_buffer_settled(self.c, ffi.new("int32_t[]", pending), len(pending), at)
        return code, at[0]

    def first_failed(self, alias: Sequence[int]) -> int:
        return int(lib.gd_buffer_first_failed(self.c, ffi.new("int32_t[]", alias), len(alias)))

    def available(self) -> int:
        return int(lib.gd_buffer_room(self.c).available)

    def slot_of(self, row: int) -> int:
        return int(lib.gd_buffer_slot_of(self.c, row))

    def verify(self) -> int:
        return int(lib.gd_buffer_verify(self.c))

    def stats(self) -> dict[str, int]:
        out: Any = ffi.new("gd_buffer_stats *")
        lib.gd_buffer_get_stats(self.c, out)
        return {name: getattr(out, name) for name in STATS}

    def observe(self) -> tuple[list[int], ...]:
        """Everything that can be seen: slot of each row, row, state and references of each slot."""
        c, slots = self.c, range(self.slots)
        slot_of, row_of = lib.gd_buffer_slot_of, lib.gd_buffer_row_of
        state, references = lib.gd_buffer_state_of, lib.gd_buffer_references
        return (
            [slot_of(c, row) for row in range(-1, self.rows + 1)],
            [row_of(c, slot) for slot in slots],
            [state(c, slot) for slot in slots],
            [references(c, slot) for slot in slots],
            [lib.gd_buffer_room(c).available],
        )

    def serve(self, ids: Sequence[int]) -> Answer:
        """Admit and commit; the lease stays with the caller."""
        answer = self.admit(ids)
        assert answer.code == 0
        assert self.commit([slot for _, slot in answer.loads]) == 0
        return answer


def _taken(array: Any, n: int, count: int) -> tuple[int, ...]:
    values = ffi.unpack(array, n + 1)
    assert values[count:] == [GUARD] * (n + 1 - count), "wrote more than it said"
    return tuple(values[:count])


STATS = [name for name, _ in ffi.typeof("gd_buffer_stats").fields]
