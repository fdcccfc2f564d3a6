"""Which partitions are in memory one after another (MariusGNN §5, EuroSys 2023).

A state is what is in memory at one time: `resident` of `count` partitions. Each state but the first
differs from the one before in one partition, which takes the place of another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnndrive.common.records import Int64Array
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.schedules._order import Order


class Draws:
    """Random draws that depend on a key alone; each draw differs from those before.

    Args:
        key: determines the draws.
    """

    def __init__(self, key: int) -> None:
        self._key, self._drawn = key, 0

    def key(self) -> int:
        """Return a key of 64 bits, another one at each call."""
        self._drawn += 1
        return batch_key(self._key, self._drawn, 0)

    def permutation(self, count: int) -> list[int]:
        """Return the numbers below `count` in random order."""
        order: list[int] = Order(count, self.key(), 0).next(count).tolist()
        return order

    def below(self, count: int) -> int:
        """Return a random number below `count`, which is at least 1."""
        return self.key() % count

    def each_below(self, counts: Int64Array) -> Int64Array:
        """Return a random number below each of `counts`, which are at least 1; int64 [n]."""
        random = np.random.Philox(key=self.key()).random_raw(len(counts))
        return (random % counts.astype(np.uint64)).astype(np.int64)


def dispersed(count: int, resident: int, draws: Draws) -> Iterator[list[int]]:
    """Yield states that together have each partition, each read once: in each, a random partition
    gives way to one that was not in memory before. There are count − resident swaps."""
    order = draws.permutation(count)
    state = order[:resident]
    yield list(state)
    for unseen in order[resident:]:
        state[draws.below(resident)] = unseen
        yield list(state)


def beta(count: int, resident: int, draws: Draws) -> Iterator[list[int]]:
    """Yield states of which for any two partitions one has both (BETA, Marius, OSDI 2021).

    Needs 2 ≤ resident ≤ count; `beta_swaps` has the number of swaps.
    """
    order = draws.permutation(count)
    state, left = order[:resident], order[resident:]
    yield list(state)
    while left:
        state = [state[at] for at in draws.permutation(resident)]
        left = [left[at] for at in draws.permutation(len(left))]
        for at, new in enumerate(left):
            state[-1], left[at] = new, state[-1]
            yield list(state)
        left = [left[at] for at in draws.permutation(len(left))]
        stay = min(resident - 1, len(left))
        for at in range(stay):
            state[at] = left[at]
            yield list(state)
        left = left[stay:]


def beta_swaps(count: int, resident: int) -> int:
    """Return how many swaps `beta` makes; its states are one more."""
    swapped = count - resident
    if not swapped:
        return 0
    whole = swapped // (resident - 1)
    return swapped + (whole + 1) * swapped - (whole + 1) * whole * (resident - 1) // 2
