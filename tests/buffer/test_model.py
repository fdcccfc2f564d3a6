"""The feature buffer against a model of its rules in dicts and sets, in random steps."""

import errno
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnndrive.common.ffi import ffi, lib

FREE, LOADING, VALID = lib.GD_FREE, lib.GD_LOADING, lib.GD_VALID
FAILED, KEPT = lib.GD_FAILED, lib.GD_KEPT
GUARD = -77  # behind the last entry of every output array, so that a write beyond it is found
ROWS = 20
LEASES_MAX = 6
IDS_MAX, CHOICES_MAX = 10, 4
# Few keys, so that many are equal; the ticks of releases without keys lie between them. The
# smallest must leave first, and not be taken for "no key: the tick of the release".
KEYS = (-(2**63), -2, -2, -1, 0, 5, 20, 40)
OUT_OF_RANGE = (-1, ROWS, 2**31, 2**32, 2**63 - 1, -(2**63))
CASES = {
    "granted", "EAGAIN", "ENOSPC", "ERANGE", "refused for its own hits", "evicted", "duplicates",
    "evicted beside its own hits", "waits for an orphan", "commit of an orphan",
    "failure of an orphan", "failure of a shared row", "release while loading",
    "release of a failed row", "rekey in standby", "kept", "EAGAIN beside kept rows",
    "ENOSPC beside kept rows", "left at its release",
}  # fmt: skip
happened: Counter[str] = Counter()


# ---- the C feature buffer: plain lists in, plain lists out


@dataclass(frozen=True, slots=True)
class Answer:
    """What `probe` or `admit` answered, with 0 or -errno: how many hits, waits, loads, pending
    slots and missing slots, unless an id is out of range; and if it was admitted the slot of each
    id, those that were not valid yet, and (row, slot) of the rows that this lease must load."""

    code: int
    counts: tuple[int, ...] = ()
    alias: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    loads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, code: int, found: Any, *arrays: Any) -> "Answer":
        counts = found.hits, found.waits, found.loads, found.pending, found.deficit
        return cls(code, () if code == -errno.ERANGE else counts, *arrays)


class CoreTable:
    """One gd_buffer over `rows` rows with `slots` slots. `keep_from` > 0: the rows from this number
    on are kept, and the others leave at their release."""

    def __init__(self, rows: int, slots: int, keep_from: int = 0) -> None:
        self.rows, self.slots, self.keep_from = rows, slots, keep_from
        self.c = ffi.gc(lib.gd_buffer_new(rows, slots), lib.gd_buffer_free)
        assert self.c != ffi.NULL

    def probe(self, ids: Sequence[int]) -> Answer:
        a = ffi.new("gd_admission *")
        code = lib.gd_buffer_probe(self.c, ffi.new("int64_t[]", ids), len(ids), a)
        return Answer.of(code, a)

    def holds(self, ids: Sequence[int]) -> int:
        return int(lib.gd_buffer_holds(self.c, ffi.new("int64_t[]", ids), len(ids)))

    def admit(self, ids: Sequence[int], keys: Sequence[int] | None = None) -> Answer:
        n, a = len(ids), ffi.new("gd_admission *")
        alias, pending, slots = (ffi.new("int32_t[]", [GUARD] * (n + 1)) for _ in range(3))
        rows = ffi.new("int64_t[]", [GUARD] * (n + 1))
        ranking = self.ranking(ids, keys) if keys else (ffi.NULL,)
        if self.keep_from:
            ranking = self.keeping()
        code = lib.gd_buffer_admit(
            self.c, ranking[0], ffi.new("int64_t[]", ids),
            ffi.NULL, n, alias, pending, rows, slots, ffi.NULL, a,
        )  # fmt: skip
        done = [count * (code == 0) for count in (n, a.pending, a.loads, a.loads)]
        arrays = zip((alias, pending, rows, slots), done, strict=True)
        kept = [_taken(array, n, count) for array, count in arrays]
        return Answer.of(code, a, *kept[:2], tuple(zip(*kept[2:], strict=True)))

    def ranking(self, ids: Sequence[int], keys: Sequence[int]) -> tuple[Any, ...]:
        """A gd_ranking that gives each row its last key, and what it refers to; at most eight
        different keys, because its window has a batch for the rows of each key."""
        window = ffi.gc(lib.gd_window_new(self.rows), lib.gd_window_free)
        base: Any = ffi.new("int64_t[]", lib.GD_WINDOW_SETS)
        mask, key_of = ffi.new("uint8_t[]", lib.GD_WINDOW_SETS), dict(zip(ids, keys, strict=True))
        for place, key in enumerate(sorted(set(key_of.values()))):
            rows = [row for row, its in key_of.items() if its == key and 0 <= row < self.rows]
            assert lib.gd_window_add(window, place, ffi.new("int64_t[]", rows), len(rows)) == 0
            base[1 << place] = key
        return ffi.new("gd_ranking *", (base, mask, ffi.NULL, window)), base, mask, window

    def keeping(self) -> tuple[Any, ...]:
        """A gd_ranking that keeps rows, and what it refers to; a row's number is its class."""
        base, mask = ffi.new("int64_t[]", 1), ffi.new("uint8_t[]", 1)
        classes = ffi.new("uint8_t[]", list(range(self.rows)))
        r = ffi.new("gd_ranking *", (base, mask, classes, ffi.NULL, self.keep_from))
        return r, base, mask, classes

    def commit(self, slots: Sequence[int]) -> int:
        return int(lib.gd_buffer_commit(self.c, ffi.new("int32_t[]", slots), len(slots)))

    def fail(self, slots: Sequence[int]) -> int:
        return int(lib.gd_buffer_fail(self.c, ffi.new("int32_t[]", slots), len(slots)))

    def release(self, alias: Sequence[int]) -> int:
        return int(lib.gd_buffer_release(self.c, ffi.new("int32_t[]", alias), len(alias)))

    def rekey(self, rows: Sequence[int], keys: Sequence[int]) -> int:
        ranking = self.ranking(rows, keys)
        return int(lib.gd_buffer_rekey(self.c, ranking[0], ffi.new("int64_t[]", rows), len(rows)))

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
        return {name: getattr(out, name) for name, _ in ffi.typeof("gd_buffer_stats").fields}

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


# ---- the model


@dataclass
class Lease:
    """A batch that was admitted and not released yet."""

    alias: tuple[int, ...]
    pending: tuple[int, ...]
    position: int = 0


class Model:
    """A feature buffer of `slots` slots over `rows` rows.

    Attributes:
        keep_from: the rows from this number on are kept: nothing is counted of them once they are
            valid. 0: all rows, if there is a slot for each, or none.
        standby: slot → (key, the moment it was put there).
        key: the standby key set at admission; None is the tick of the release.
        tick: commits and releases so far.
    """

    def __init__(self, rows: int, slots: int, keep_from: int) -> None:
        self.rows, self.slots, self.keep_from = rows, slots, keep_from
        self.slot_of, self.row_of = dict[int, int](), dict[int, int]()
        self.state = dict.fromkeys(range(slots), FREE)
        self.references = dict.fromkeys(range(slots), 0)
        self.key, self.standby = dict[int, int | None](), dict[int, tuple[int, int]]()
        self.moment = self.tick = 0
        self.counts = Counter[str]()

    def is_kept(self, slot: int) -> bool:
        return self.state.get(slot) == KEPT

    def keeps(self, row: int) -> bool:
        return self.slots >= self.rows or 0 < self.keep_from <= row

    def slots_in(self, state: int) -> set[int]:
        return {slot for slot, now in self.state.items() if now == state}

    def present(self, ids: Sequence[int], state: int) -> set[int]:
        """The slots of those of `ids` that are mapped and in `state`."""
        mapped = {self.slot_of[row] for row in ids if row in self.slot_of}
        return {slot for slot in mapped if self.state[slot] == state}

    def judge(self, ids: Sequence[int]) -> Answer:
        """What a probe or an admission must answer now."""
        if not all(0 <= row < self.rows for row in ids):
            return Answer(-errno.ERANGE)
        kept, waits = self.present(ids, KEPT), self.present(ids, LOADING)
        hits = self.present(ids, VALID) | kept
        loads = set(ids) - self.slot_of.keys()
        usable = len(self.slots_in(FREE)) + len(self.standby.keys() - hits)
        code = deficit = 0
        keeping = {s for s in self.slots_in(LOADING) if 0 < self.keep_from <= self.row_of[s]}
        needed = len(set(ids)) - len(kept) - len(waits & keeping)
        most = self.slots - len(self.slots_in(KEPT)) - len(keeping)
        if needed > most:
            code, deficit = -errno.ENOSPC, needed - most
        elif len(loads) > usable:
            code, deficit = -errno.EAGAIN, len(loads) - usable
        pending = len(loads) + len(waits)
        return Answer(code, (len(hits), len(waits), len(loads), pending, deficit))

    def takes(self, ids: Sequence[int]) -> tuple[set[int], set[int]]:
        """(free slots it may take, standby slots that it must give up) to admit `ids`."""
        free, misses = self.slots_in(FREE), len(set(ids) - self.slot_of.keys())
        own = self.present(ids, VALID)
        order = sorted((key, slot) for slot, key in self.standby.items() if slot not in own)
        return free, {slot for _, slot in order[: max(0, misses - len(free))]}

    def admit(self, ids: Sequence[int], keys: Sequence[int] | None, answer: Answer) -> Lease:
        """Check an admission that was granted against the rules, and do the same."""
        free, victims = self.takes(ids)
        misses, waits = set(ids) - self.slot_of.keys(), self.present(ids, LOADING)
        taken = [slot for _, slot in answer.loads]
        assert {row for row, _ in answer.loads} == misses
        assert len(answer.loads) == len(misses) == len(set(taken))
        assert victims <= set(taken) <= free | victims
        assert len(answer.pending) == len(set(answer.pending))
        assert set(answer.pending) == waits | set(taken)
        for slot in self.present(ids, VALID) | victims:
            self.standby.pop(slot, None)
        for slot in victims:
            del self.slot_of[self.row_of.pop(slot)]
        for row, slot in answer.loads:
            self.slot_of[row], self.row_of[slot], self.state[slot] = slot, row, LOADING
        assert list(answer.alias) == [self.slot_of[row] for row in ids]
        for i, slot in enumerate(answer.alias):
            self.references[slot] += not self.is_kept(slot)
            self.key[slot] = None if keys is None else keys[i]
        hits, all_waits, *_ = answer.counts
        self.counts.update(
            hits=hits, waits=all_waits, loads=len(misses), admitted=1, evictions=len(victims)
        )
        return Lease(answer.alias, answer.pending)

    def retire(self, slot: int, key: int | None) -> None:
        if self.keep_from:
            del self.slot_of[self.row_of.pop(slot)]
            self.state[slot] = FREE
            self.counts["evictions"] += 1
            return
        self.moment += 1
        self.standby[slot] = (self.tick if key is None else key, self.moment)

    def commit(self, slots: Sequence[int]) -> None:
        self.tick += 1
        for slot in slots:
            self.state[slot] = VALID
            self.counts["commits"] += 1
            if self.keeps(self.row_of[slot]):
                self.state[slot], self.references[slot] = KEPT, 0
            elif not self.references[slot]:
                self.retire(slot, self.key[slot])

    def fail(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.slot_of[self.row_of.pop(slot)]
            self.state[slot] = FAILED if self.references[slot] else FREE
            self.counts["failures"] += 1

    def release(self, alias: Sequence[int]) -> None:
        self.tick += 1
        self.counts["releases"] += 1
        for slot in alias:
            self.references[slot] -= not self.is_kept(slot)
        for slot in sorted(set(alias)):
            if self.references[slot] or self.is_kept(slot):
                continue
            if self.state[slot] == VALID:
                self.retire(slot, self.key[slot])
            elif self.state[slot] == FAILED:
                self.state[slot] = FREE

    def rekey(self, rows: Sequence[int], keys: Sequence[int]) -> None:
        for row, key in dict(zip(rows, keys, strict=True)).items():
            slot = self.slot_of.get(row)
            if slot is None or self.key[slot] == key:
                continue
            self.key[slot] = key
            if slot in self.standby:
                self.retire(slot, key)

    def observe(self) -> tuple[list[int], ...]:
        slots = range(self.slots)
        return (
            [self.slot_of.get(row, -1) for row in range(-1, self.rows + 1)],
            [self.row_of.get(slot, -1) for slot in slots],
            [self.state[slot] for slot in slots],
            [self.references[slot] for slot in slots],
            [len(self.slots_in(FREE)) + len(self.standby)],
        )

    def stats(self) -> Counter[str]:
        free, standby = len(self.slots_in(FREE)), len(self.standby)
        standby += len(self.slots_in(KEPT))
        return self.counts + Counter(rows=self.rows, slots=self.slots, free=free, standby=standby)


# ---- the two side by side


def some(draw: random.Random, slots: set[int]) -> list[int]:
    return draw.sample(sorted(slots), draw.randint(0, min(len(slots), CHOICES_MAX)))


class FeatureBuffer:
    def __init__(self, draw: random.Random) -> None:
        slots = draw.choice([8, 12, 5, 3, 1, ROWS, ROWS + 1])
        keep_from = draw.choice([0, 0, 0, ROWS - 2, ROWS - 5, ROWS]) if slots < ROWS else 0
        self.draw, self.table = draw, CoreTable(ROWS, slots, keep_from)
        self.model = Model(ROWS, slots, keep_from)
        self.leases: list[Lease] = []
        steps = (
            self.admit, self.admit_with_keys, self.probe, self.commit, self.fail, self.commit_all,
            self.release_oldest, self.release_any, self.rekey, self.misuse,
        )  # fmt: skip
        left_out = draw.choices(range(2 * len(steps)), k=draw.randint(0, 6))
        self.steps = [each for n, each in enumerate(steps) if n not in left_out]

    def step(self) -> None:
        step = self.draw.choice(self.steps)
        step(self.draw.choices(range(ROWS), k=self.draw.randint(0, IDS_MAX)))
        self.same_as_the_model()

    def admit(self, rows: list[int], keys: list[int] | None = None) -> None:
        if len(self.leases) == LEASES_MAX:
            return
        model = self.model
        expected = model.judge(rows)
        own = model.present(rows, VALID) & model.standby.keys()
        orphan = any(not model.references[slot] for slot in model.present(rows, LOADING))
        evictions, usable = model.counts["evictions"], self.table.available()
        answer = self.table.admit(rows, keys)
        assert (answer.code, answer.counts) == (expected.code, expected.counts)
        happened[errno.errorcode.get(-answer.code, "granted")] += 1
        if answer.code:
            model.counts["refused"] += 1
            if answer.code == -errno.EAGAIN:
                happened["refused for its own hits"] += expected.counts[2] <= usable
                happened["EAGAIN beside kept rows"] += bool(model.slots_in(KEPT))
            elif answer.code == -errno.ENOSPC:
                happened["ENOSPC beside kept rows"] += len(set(rows)) <= model.slots
            return
        self.leases.append(model.admit(rows, keys, answer))
        evicted = model.counts["evictions"] > evictions
        happened["evicted"] += evicted
        happened["evicted beside its own hits"] += evicted and bool(own)
        happened["waits for an orphan"] += orphan
        happened["duplicates"] += len(set(rows)) < len(rows)

    def admit_with_keys(self, rows: list[int]) -> None:
        self.admit(rows, self.draw.choices(KEYS, k=len(rows)))

    def probe(self, rows: list[int]) -> None:
        before = self.table.observe(), self.table.stats()
        assert self.table.probe(rows) == self.model.judge(rows)
        too_many = len(set(rows)) > self.model.slots
        assert self.table.holds(rows) == (-errno.ENOSPC if too_many else 0)
        assert (self.table.observe(), self.table.stats()) == before

    def commit(self, rows: list[int]) -> None:
        self.commit_these(some(self.draw, self.model.slots_in(LOADING)))

    def commit_all(self, rows: list[int]) -> None:
        self.commit_these(sorted(self.model.slots_in(LOADING)))

    def commit_these(self, slots: list[int]) -> None:
        happened["commit of an orphan"] += any(not self.model.references[s] for s in slots)
        assert self.table.commit(slots) == 0
        self.model.commit(slots)

    def fail(self, rows: list[int]) -> None:
        slots = some(self.draw, self.model.slots_in(LOADING))
        happened["failure of an orphan"] += any(not self.model.references[s] for s in slots)
        happened["failure of a shared row"] += any(self.model.references[s] > 1 for s in slots)
        assert self.table.fail(slots) == 0
        self.model.fail(slots)

    def release_oldest(self, rows: list[int]) -> None:
        self.release(0)

    def release_any(self, rows: list[int]) -> None:
        self.release(self.draw.randrange(LEASES_MAX))

    def release(self, which: int) -> None:
        if not self.leases:
            return
        alias = self.leases.pop(which % len(self.leases)).alias
        happened["kept"] += any(map(self.model.is_kept, alias))
        happened["release while loading"] += any(self.model.state[s] == LOADING for s in alias)
        happened["release of a failed row"] += any(self.model.state[s] == FAILED for s in alias)
        free = len(self.model.slots_in(FREE))
        assert self.table.release(alias) == 0
        self.model.release(alias)
        left = len(self.model.slots_in(FREE)) > free
        happened["left at its release"] += left and self.model.keep_from > 0

    def rekey(self, rows: list[int]) -> None:
        if self.model.keep_from:
            return
        keys = self.draw.choices(KEYS, k=len(rows))
        happened["rekey in standby"] += any(
            self.model.slot_of.get(row) in self.model.standby for row in rows
        )
        assert self.table.rekey(rows, keys) == 0
        self.model.rekey(rows, keys)

    def known_first(self, rows: list[int]) -> int:
        """What `holds` answers for rows of which one is out of range."""
        for i, row in enumerate(rows):
            distinct = len(set(rows[:i]))
            if distinct > self.model.slots:
                return -errno.ENOSPC
            if distinct + len(rows) - i <= self.model.slots:
                return 0
            if not 0 <= row < ROWS:
                return -errno.ERANGE
        raise AssertionError("one is out of range")

    def misuse(self, rows: list[int]) -> None:
        """An id out of range, or a call that a slot's state forbids, changes nothing."""
        rows.insert(self.draw.randrange(10), self.draw.choice(OUT_OF_RANGE))
        assert self.table.probe(rows).code == -errno.ERANGE
        assert self.table.holds(rows) == self.known_first(rows)
        self.admit(rows)
        slot = self.draw.randint(-1, self.model.slots)
        if self.model.state.get(slot) != LOADING:
            loading = sorted(self.model.slots_in(LOADING))
            for slots in [slot], [*loading, slot], [*loading[:1] * 2, slot]:
                assert self.table.commit(slots) == self.table.fail(slots) == -errno.EINVAL
        if not self.model.references.get(slot) and not self.model.is_kept(slot):
            held = [alias for lease in self.leases for alias in lease.alias]
            all_kept = all(map(self.model.is_kept, held))
            for slots in [slot], [*held, slot], [] if all_kept else [*held, *held]:
                if slots:
                    assert self.table.release(slots) == -errno.EINVAL

    def same_as_the_model(self) -> None:
        table, model = self.table, self.model
        assert table.verify() == 0
        assert table.observe() == model.observe()
        assert Counter(table.stats()) == model.stats()
        for lease in self.leases:
            states = [model.state[slot] for slot in lease.alias]
            first = states.index(FAILED) if FAILED in states else -1
            assert table.first_failed(lease.alias) == first
            waiting = [i for i, slot in enumerate(lease.pending) if model.state[slot] == LOADING]
            settled, position = table.settled(lease.pending, lease.position)
            assert settled == (not waiting)
            assert position == (waiting[0] if waiting else len(lease.pending))
            lease.position = position


def test_feature_buffer_equals_its_model(seeds):
    for seed in seeds(60):
        draw = random.Random(seed)
        buffer = FeatureBuffer(draw)
        for _ in range(120):
            buffer.step()
    # A run that never met the hard cases would prove little.
    assert {name for name, count in happened.items() if count} == CASES
