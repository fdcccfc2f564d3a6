"""The standby list against a sorted list."""

from __future__ import annotations

import itertools
from random import Random

from gnndrive.common.ffi import ffi, lib
from tests.soak import product

from .slot_tables import CoreTable

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Standby:
    """gd_standby beside a dict of (key, moment); every call is compared with the dict."""

    def __init__(self, slots: int) -> None:
        self.c = ffi.gc(lib.gd_standby_new(slots), lib.gd_standby_free)
        self.slots, self.moment = slots, 0
        self.expected: dict[int, tuple[int, int]] = {}

    def push(self, slot: int, key: int) -> None:
        self.moment += 1
        self.expected[slot] = (key, self.moment)
        lib.gd_standby_push(self.c, slot, key)

    def remove(self, slot: int) -> None:
        del self.expected[slot]
        lib.gd_standby_remove(self.c, slot)

    def pop(self) -> int:
        slot = int(lib.gd_standby_pop(self.c))
        assert slot == min(self.expected, key=lambda s: self.expected[s], default=-1)
        self.expected.pop(slot, None)
        return slot

    def check(self) -> None:
        assert lib.gd_standby_count(self.c) == len(self.expected)
        for slot in range(-1, self.slots + 1):
            assert lib.gd_standby_holds(self.c, slot) == (slot in self.expected)
        for slot, (key, _) in self.expected.items():
            assert lib.gd_standby_key(self.c, slot) == key

    def drain(self) -> list[int]:
        return [self.pop() for _ in range(len(self.expected))]


def cache_place(key: int) -> int:
    """Where standby.c's cache of recent keys looks for `key`."""
    return (key * 0x9E3779B97F4A7C15 % 2**64) >> 56


def colliding_keys(count: int) -> list[int]:
    """Keys that all share one place of the cache, so that each makes it forget the one before."""
    return list(itertools.islice((k for k in itertools.count() if cache_place(k) == 7), count))


KEYS = {
    "one": [5],
    "few": [-2, -1, 0, 1, 2, 3],
    "extreme": [INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX],
    "colliding": colliding_keys(6),
    "more than the cache": list(range(-400, 400)),
    "any": [],
}


@product("kind,slots", list(KEYS), [1, 2, 7, 64, 700])
def test_equals_a_sorted_list(kind, slots, seeds):
    for seed in seeds(1):
        rng, standby = Random(f"{kind} {slots} {seed}"), Standby(slots)
        out = list(range(slots))
        for step in range(4_000):
            # A fill level that swings, so that it runs empty and full again and again.
            fill = 0.5 + 0.45 * (-1) ** (step * 4 // 4_000)
            if out and rng.random() < fill:
                slot = out.pop(rng.randrange(len(out)))
                key = rng.choice(KEYS[kind]) if KEYS[kind] else rng.randint(INT64_MIN, INT64_MAX)
                standby.push(slot, key)
            elif standby.expected and rng.random() < 0.5:
                slot = rng.choice(list(standby.expected))
                standby.remove(slot)
                out.append(slot)
            elif (slot := standby.pop()) >= 0:
                out.append(slot)
            if step % 97 == 0:
                standby.check()
        standby.drain()
        standby.check()


def test_a_bucket_used_again_for_another_key_is_not_mistaken():
    """The cache still points at a bucket that went to another key, or back to the first."""
    a, b = colliding_keys(2)
    other = next(k for k in itertools.count(a + 1) if cache_place(k) != cache_place(a))
    standby = Standby(8)
    standby.push(0, a)
    standby.remove(0)  # its bucket is free, the cache points at it
    standby.push(1, other)  # takes the same bucket
    standby.push(2, a)  # must not land in it
    standby.remove(1)
    for slot, key in enumerate([b, a, other], start=3):
        standby.push(slot, key)
    standby.drain()
    for keys in itertools.product([a, b, other], repeat=5):
        standby = Standby(5)
        for slot, key in enumerate(keys):
            standby.push(slot, key)
            if slot % 2:
                standby.remove(slot - 1)
        standby.drain()


def test_slots_of_one_release_leave_in_the_order_of_slots():
    table = CoreTable(rows=18000, slots=9000)
    lease = table.serve(list(range(9000)))
    shuffled = Random(1).sample(lease.alias, 9000)
    assert table.release(shuffled[:4500]) == 0
    assert table.release(shuffled[4500:]) == 0
    expected = sorted(shuffled[:4500]) + sorted(shuffled[4500:])
    assert (table.available(), table.verify()) == (9000, 0)
    assert [slot for _, slot in table.admit(list(range(9000, 18000))).loads] == expected
