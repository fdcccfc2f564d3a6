"""The feature buffer against a model: a Hypothesis state machine, at least 100,000 steps.

Each step makes one change (or one that must change nothing), and after each one everything that
can be seen of the C core is compared with the model, its statistics and `gd_buffer_verify` too.
About ten steps, with their ids and choices, are drawn as one string of bytes, because a draw takes
Hypothesis longer than a step takes the core and its model. Bytes shrink well: 0 ends a string.
"""

from __future__ import annotations

import errno
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from .model import Lease, Model
from .slot_tables import FAILED, LOADING, VALID, CoreTable

ROWS = 20
LEASES_MAX = 6
STEPS_MIN = 100_000
STRINGS_PER_EXAMPLE = 10
EXAMPLES = 1_800
IDS_MAX, CHOICES_MAX = 10, 4
STRING = st.binary(min_size=100, max_size=100)
# Few keys, so that many are equal; the ticks of releases without keys lie between them.
KEYS = (-3, -2, -2, -1, 0, 5, 20, 40)

OUT_OF_RANGE = (-1, ROWS, 2**40, -(2**63))

steps: Counter[str] = Counter()
happened: Counter[str] = Counter()


def rows_of(ids: bytes) -> list[int]:
    """Row ids in range, duplicates among them."""
    return [byte % ROWS for byte in ids]


def keys_of(ids: bytes) -> list[int]:
    return [KEYS[byte // ROWS % len(KEYS)] for byte in ids]


def pick(slots: set[int], choice: bytes) -> list[int]:
    """Some of `slots`, in any order."""
    left = sorted(slots)
    return [left.pop(byte % len(left)) for byte in choice[: min(len(left), CHOICES_MAX)]]


class FeatureBuffer(RuleBasedStateMachine):
    """One feature buffer, its model, and the leases that are alive."""

    @initialize(slots=st.sampled_from([8, 12, 5, 3, 1]), without=st.binary(max_size=6))
    def create(self, slots: int, without: bytes) -> None:
        self.table, self.model = CoreTable(ROWS, slots), Model(ROWS, slots)
        self.leases: list[Lease] = []
        all_steps = (
            self.admit, self.admit_with_keys, self.probe, self.commit, self.fail, self.commit_all,
            self.release_oldest, self.release_any, self.rekey, self.misuse,
        )  # fmt: skip
        left_out = {byte % (2 * len(all_steps)) for byte in without}
        self.steps = [each for n, each in enumerate(all_steps) if n not in left_out]
        steps["create"] += 1

    @rule(string=STRING)
    def run(self, string: bytes) -> None:
        """Take steps: a byte says which, one how many ids it has, and one is for its choices."""
        left = string
        while left and left[0]:
            step, count = self.steps[left[0] % len(self.steps)], left[1:2]
            ids = left[2 : 2 + sum(count) % (IDS_MAX + 1)]
            left = left[2 + len(ids) :]
            if self.may(step.__name__):
                step(ids, sum(left[:1]))
                self.same_as_the_model()
            left = left[1:]

    def may(self, step: str) -> bool:
        """Whether a step can be taken now."""
        if step in ("commit", "fail", "commit_all"):
            return bool(self.model.slots_in(LOADING))
        if step in ("admit", "admit_with_keys"):
            return len(self.leases) < LEASES_MAX
        return bool(self.leases) or not step.startswith("release")

    def try_admit(self, rows: list[int], keys: list[int] | None) -> None:
        model = self.model
        expected = model.judge(rows)
        own = model.present(rows, VALID) & model.standby.keys()
        orphan = any(not model.references[slot] for slot in model.present(rows, LOADING))
        evictions, usable = model.counts["evictions"], self.table.available()
        answer = self.table.admit(rows, keys)
        assert answer.verdict == expected.verdict
        happened[errno.errorcode.get(-answer.code, "granted")] += 1
        if answer.code:
            model.counts["refused"] += 1
            happened["refused for its own hits"] += expected.load_count <= usable and bool(own)
            return
        self.leases.append(model.admit(rows, keys, answer))
        evicted = model.counts["evictions"] > evictions
        happened["evicted"] += evicted
        happened["evicted beside its own hits"] += evicted and bool(own)
        happened["waits for an orphan"] += orphan
        happened["duplicates"] += len(set(rows)) < len(rows)

    def admit(self, ids: bytes, byte: int) -> None:
        steps["admit"] += 1
        self.try_admit(rows_of(ids), None)

    def admit_with_keys(self, ids: bytes, byte: int) -> None:
        steps["admit_with_keys"] += 1
        self.try_admit(rows_of(ids), keys_of(ids))

    def probe(self, ids: bytes, byte: int) -> None:
        steps["probe"] += 1
        before = self.table.observe(), self.table.stats()
        assert self.table.probe(rows_of(ids)).verdict == self.model.judge(rows_of(ids)).verdict
        too_many = len(set(rows_of(ids))) > self.model.slots
        assert self.table.holds(rows_of(ids)) == (-errno.ENOSPC if too_many else 0)
        assert (self.table.observe(), self.table.stats()) == before

    def commit(self, choice: bytes, byte: int) -> None:
        steps["commit"] += 1
        slots = pick(self.model.slots_in(LOADING), choice)
        happened["commit of an orphan"] += any(not self.model.references[s] for s in slots)
        assert self.table.commit(slots) == 0
        self.model.commit(slots)

    def fail(self, choice: bytes, byte: int) -> None:
        steps["fail"] += 1
        slots = pick(self.model.slots_in(LOADING), choice)
        happened["failure of an orphan"] += any(not self.model.references[s] for s in slots)
        happened["failure of a shared row"] += any(self.model.references[s] > 1 for s in slots)
        assert self.table.fail(slots) == 0
        self.model.fail(slots)

    def commit_all(self, ids: bytes, byte: int) -> None:
        steps["commit"] += 1
        slots = sorted(self.model.slots_in(LOADING))
        assert self.table.commit(slots) == 0
        self.model.commit(slots)

    def release_oldest(self, ids: bytes, byte: int) -> None:
        self.release(0)

    def release_any(self, ids: bytes, byte: int) -> None:
        self.release(byte)

    def release(self, which: int) -> None:
        steps["release"] += 1
        alias = self.leases.pop(which % len(self.leases)).alias
        happened["release while loading"] += any(self.model.state[s] == LOADING for s in alias)
        happened["release of a failed row"] += any(self.model.state[s] == FAILED for s in alias)
        assert self.table.release(alias) == 0
        self.model.release(alias)

    def rekey(self, ids: bytes, byte: int) -> None:
        steps["rekey"] += 1
        rows, keys = rows_of(ids), keys_of(ids)
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

    def misuse(self, ids: bytes, byte: int) -> None:
        """An id out of range, or a call that a slot's state forbids, changes nothing."""
        steps["misuse"] += 1
        rows = rows_of(ids)
        rows.insert(byte % 10, OUT_OF_RANGE[byte % len(OUT_OF_RANGE)])
        assert self.table.probe(rows).code == -errno.ERANGE
        assert self.table.holds(rows) == self.known_first(rows)
        self.try_admit(rows, None)
        slot = (-1, self.model.slots, *range(self.model.slots))[byte % (self.model.slots + 2)]
        if self.model.state.get(slot) != LOADING:
            loading = sorted(self.model.slots_in(LOADING))
            for slots in [slot], [*loading, slot], [*loading[:1] * 2, slot]:
                assert self.table.commit(slots) == self.table.fail(slots) == -errno.EINVAL
        if not self.model.references.get(slot):
            held = [alias for lease in self.leases for alias in lease.alias]
            for slots in [slot], [*held, slot], [*held, *held]:
                if slots:
                    assert self.table.release(slots) == -errno.EINVAL

    def same_as_the_model(self) -> None:
        table, model = self.table, self.model
        assert table.verify() == 0
        assert table.observe() == model.observe()
        assert table.stats() == model.stats()
        for lease in self.leases:
            states = [model.state[slot] for slot in lease.alias]
            first = states.index(FAILED) if FAILED in states else -1
            assert table.first_failed(lease.alias) == first
            waiting = [i for i, slot in enumerate(lease.pending) if model.state[slot] == LOADING]
            settled, position = table.settled(lease.pending, lease.position)
            assert settled == (not waiting)
            assert position == (waiting[0] if waiting else len(lease.pending))
            lease.position = position


def test_feature_buffer_equals_its_model():
    steps.clear()
    happened.clear()
    run_state_machine_as_test(
        FeatureBuffer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STRINGS_PER_EXAMPLE,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert steps.total() - steps["create"] >= STEPS_MIN, steps
    # A run that never met the hard cases would prove little.
    rare = {name: count for name, count in happened.items() if count < 100}
    assert len(happened) == 15, sorted(happened)
    assert not rare
