"""The feature buffer's rules in dicts and sets; the C core is compared with it.

It says what an admission must answer and which slots it may take, not which free slot goes to which
row: it reads that from the C core's answer and checks it against the rules.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field

from .slot_tables import FAILED, FREE, LOADING, VALID, Answer


@dataclass
class Lease:
    """A batch that was admitted and not released yet."""

    alias: tuple[int, ...]
    pending: tuple[int, ...]
    position: int = 0


@dataclass
class Model:
    """A feature buffer of `slots` slots over `rows` rows.

    Attributes:
        standby: slot → (key, the moment it was put there).
        key: the standby key set at admission; None is the tick of the release.
        tick: commits and releases so far.
    """

    rows: int
    slots: int
    slot_of: dict[int, int] = field(default_factory=dict)
    row_of: dict[int, int] = field(default_factory=dict)
    state: dict[int, int] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)
    key: dict[int, int | None] = field(default_factory=dict)
    standby: dict[int, tuple[int, int]] = field(default_factory=dict)
    moment: int = 0
    tick: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = dict.fromkeys(range(self.slots), FREE)
        self.references = dict.fromkeys(range(self.slots), 0)
        names = "admitted refused hits waits loads evictions commits failures releases"
        self.counts = dict.fromkeys(names.split(), 0)

    def slots_in(self, state: int) -> set[int]:
        return {slot for slot, now in self.state.items() if now == state}

    def present(self, ids: Sequence[int], state: int) -> set[int]:
        """The slots of those of `ids` that are mapped and in `state`."""
        mapped = {self.slot_of[row] for row in ids if row in self.slot_of}
        return {slot for slot in mapped if self.state[slot] == state}

    def judge(self, ids: Sequence[int]) -> Answer:
        """What a probe or an admission must answer now."""
        if not all(0 <= row < self.rows for row in ids):
            return Answer(-errno.ERANGE, 0, 0, 0, 0, 0)
        hits, waits = self.present(ids, VALID), self.present(ids, LOADING)
        loads = set(ids) - self.slot_of.keys()
        usable = len(self.slots_in(FREE)) + len(self.standby.keys() - hits)
        code = deficit = 0
        if len(set(ids)) > self.slots:
            code, deficit = -errno.ENOSPC, len(set(ids)) - self.slots
        elif len(loads) > usable:
            code, deficit = -errno.EAGAIN, len(loads) - usable
        pending = len(loads) + len(waits)
        return Answer(code, len(hits), len(waits), len(loads), pending, deficit)

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
            self.references[slot] += 1
            self.key[slot] = None if keys is None else keys[i]
        expected = {"hits": answer.hits, "waits": answer.waits, "loads": len(misses)}
        for name, more in {**expected, "admitted": 1, "evictions": len(victims)}.items():
            self.counts[name] += more
        return Lease(answer.alias, answer.pending)

    def retire(self, slot: int, key: int | None) -> None:
        self.moment += 1
        self.standby[slot] = (self.tick if key is None else key, self.moment)

    def commit(self, slots: Sequence[int]) -> None:
        self.tick += 1
        for slot in slots:
            self.state[slot] = VALID
            self.counts["commits"] += 1
            if not self.references[slot]:
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
            self.references[slot] -= 1
        for slot in sorted(set(alias)):
            if self.references[slot]:
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
        """The same as `CoreTable.observe`."""
        slots = range(self.slots)
        return (
            [self.slot_of.get(row, -1) for row in range(-1, self.rows + 1)],
            [self.row_of.get(slot, -1) for slot in slots],
            [self.state[slot] for slot in slots],
            [self.references[slot] for slot in slots],
            [len(self.slots_in(FREE)) + len(self.standby)],
        )

    def stats(self) -> dict[str, int]:
        """The same as `CoreTable.stats`."""
        return {
            "rows": self.rows,
            "slots": self.slots,
            "free": len(self.slots_in(FREE)),
            "standby": len(self.standby),
            **self.counts,
        }
