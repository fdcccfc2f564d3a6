"""Fetches from a victim buffer that fail: nothing writes to the landing when they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ClosedError
from gnndrive.common.records import EVICTED, Evicted, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers import _victims
from gnndrive.disk.tiers.base import Fetch
from gnndrive.disk.tiers.victim import Victim
from gnndrive.testing.loop import run

ROW_BYTES = 8
CONTENT = np.arange(10 * ROW_BYTES, dtype=np.uint8).reshape(10, ROW_BYTES)


class Memory:
    """Victim memory whose copies out of slots, which are rows, are made at once."""

    def __init__(self) -> None:
        self.rows, self.rows_max = np.zeros((4, ROW_BYTES), np.uint8), None

    def copy_out(self, slots: Int32Array, places: Int32Array) -> Callable[[], Any]:
        self.rows[places] = CONTENT[slots]

        async def ended() -> None:
            pass

        return ended

    def close(self) -> None:
        pass


class Answer:
    """A fetch of given stretches."""

    def __init__(self, stretches: AsyncIterator[Stretch]) -> None:
        self._stretches = stretches

    def __aiter__(self) -> AsyncIterator[Stretch]:
        return self._stretches

    def cancel(self) -> None:
        pass


class Below:
    """The tier below.

    Attributes:
        error: raised by the next fetch; None: it works.
        ended: fetches that a listener followed to their ends.
    """

    path = "below"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.ended = 0

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        if self.error is not None:
            raise self.error

        async def stretches() -> AsyncIterator[Stretch]:
            yield Stretch(places)
            self.ended += 1

        return Answer(stretches())

    async def aclose(self) -> None:
        pass


async def make() -> tuple[Victim, Below]:
    """A victim buffer that has rows 1 and 2."""
    below: Any = Below()
    tier = Victim(below, len(CONTENT), Memory())
    left = np.zeros(2, EVICTED)
    left["row"] = left["slot"] = [1, 2]
    tier.offer(Evicted(left, np.array([5, 5], np.int64), 0))
    while tier._copies_out:
        await next(iter(tier._copies_out))
    return tier, below


def begin(tier: Victim) -> tuple[Fetch, np.ndarray]:
    """Begin to fetch rows 0 to 3; also their landing."""
    slots = np.zeros((4, ROW_BYTES), np.uint8)
    landing = Landing(slots.ctypes.data, ROW_BYTES, True, slots)
    return tier.fetch(np.arange(4), np.arange(4, dtype=np.int32), landing), slots


async def follow(fetch: Fetch, landed: list[list[int]]) -> None:
    """Add the places of each stretch to `landed`."""
    async for stretch in fetch:
        landed.append(stretch.slots.tolist())


def test_a_fetch_that_the_tier_below_refuses_copies_nothing_and_keeps_the_rows() -> None:
    async def main() -> None:
        tier, below = await make()
        below.error = ClosedError("the engine was closed")
        with pytest.raises(ClosedError):
            begin(tier)
        assert tier._copies_back
        await asyncio.wait(tier._copies_back)
        below.error = None
        fetch, slots = begin(tier)
        landed: list[list[int]] = []
        await follow(fetch, landed)
        assert landed == [[1, 2], [0, 3]]
        assert np.array_equal(slots[1:3], CONTENT[1:3])
        assert tier.rows_served == 2
        tier.verify()
        await tier.aclose()

    run(main())


def test_a_copy_back_that_fails_is_reported_after_the_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a drain would return while the disk still writes (rule 13)."""

    def refuse(*given: Any) -> None:
        raise MemoryError("none is left")

    async def main() -> None:
        tier, below = await make()
        monkeypatch.setattr(_victims, "spread_rows", refuse)
        fetch, _ = begin(tier)
        landed: list[list[int]] = []
        with pytest.raises(MemoryError, match="none is left"):
            await follow(fetch, landed)
        assert landed == [[0, 3]]
        assert below.ended == 1
        await tier.aclose()

    run(main())


def test_a_copy_back_that_cannot_begin_does_not_end_the_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the reads have begun, only the fetch's iteration may raise (law 3)."""

    def refuse(*given: Any) -> None:
        raise MemoryError("none is left")

    async def main() -> None:
        tier, below = await make()
        monkeypatch.setattr(_victims, "begin_copy", refuse)
        fetch, _ = begin(tier)
        with pytest.raises(MemoryError, match="none is left"):
            await follow(fetch, [])
        assert below.ended == 1
        await tier.aclose()

    run(main())
