"""The tier of host memory over a fake that answers when the test says so."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from gnndrive.common.records import FAILURE, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers import host_rows
from gnndrive.disk.tiers._copied import spread_rows
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext
from gnndrive.disk.tiers.host_rows import HostRows
from gnndrive.testing.loop import run
from tests.disk.engines.conftest import Rows

ROWS, ROW_BYTES, FIRST, END = 60, 64, 10, 40
CONTENT = np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)


class Below(Tier):
    """Has all rows; a fetch ends when `go` is set, or is cancelled.

    Attributes:
        asked: the rows of each fetch.
        errors: raised by the next fetches; None: such a fetch works.
        followed: fetches that a listener followed to their ends.
    """

    name = path = "below"

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.errors: list[Exception | None] = []
        self.go = asyncio.Event()
        self.go.set()
        self.closed = self.followed = 0

    @classmethod
    def make(cls, context: TierContext) -> Below:
        return cls()

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        if self.errors and (error := self.errors.pop(0)):
            self.asked.append([])
            raise error
        self.asked.append(rows.tolist())
        return _Answer(self, rows, places, landing)

    async def aclose(self) -> None:
        self.closed += 1


class _Answer:
    def __init__(self, below: Below, rows: Int64Array, places: Int32Array, landing: Landing):
        self._below, self._rows, self._places, self._landing = below, rows, places, landing
        self._cancelled = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Stretch]:
        waits = [asyncio.ensure_future(each.wait()) for each in (self._below.go, self._cancelled)]
        _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        if self._cancelled.is_set():
            failures = np.zeros(len(self._rows), FAILURE)
            failures["slot"], failures["error"] = self._places, errno.ECANCELED
            yield Stretch(np.empty(0, np.int32), failures)
            return
        spread_rows(CONTENT.ctypes.data, ROW_BYTES, self._rows, self._places, self._landing)
        yield Stretch(self._places)
        self._below.followed += 1

    def cancel(self) -> None:
        self._cancelled.set()


class Bench:
    """The tier, and slots for all rows."""

    def __init__(self) -> None:
        self.below = Below()
        self.tier = HostRows(self.below, FIRST, END, ROW_BYTES)
        memory = np.zeros((ROWS, ROW_BYTES), np.uint8)
        landing = Landing(memory.ctypes.data, ROW_BYTES, True, memory)
        self.rows = Rows(CONTENT, memory, landing)

    def fetch(self) -> Fetch:
        """Begin to fetch all rows, each to the slot of its number."""
        self.rows.memory[:] = 0
        every = np.arange(ROWS)
        return self.tier.fetch(every, every.astype(np.int32), self.rows.landing)

    async def bring(self) -> None:
        await self.end(self.fetch())

    async def end(self, fetch: Fetch) -> None:
        """Wait for all rows and check them."""
        assert not (await self.rows.ended(fetch, np.arange(ROWS), np.arange(ROWS)))[1]

    async def bring_and_wait(self) -> None:
        """Bring all rows, and wait until the filling that this begins has ended."""
        await self.bring()
        assert self.tier._filling is not None
        await asyncio.wait([self.tier._filling])

    async def fill(self) -> None:
        await self.bring_and_wait()
        await self.bring()
        assert self.below.asked[-1] == [*range(FIRST), *range(END, ROWS)], "it keeps its rows"


class Gate:
    """Holds copies back until `go` is set.

    Attributes:
        began, go: set when a copy begins; lets it go on.
        thread: in which thread it was made.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go, self.thread = threading.Event(), threading.Event(), 0
        real = HostRows._copy

        def copy(tier: HostRows, *arguments: Any) -> None:
            self.thread = threading.get_ident()
            self.began.set()
            self.go.wait()
            real(tier, *arguments)

        monkeypatch.setattr(HostRows, "_copy", copy)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_another_thread_copies_from_the_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on meanwhile, and the rows are announced when they are there."""
    bench = Bench()
    await bench.fill()
    gate = Gate(monkeypatch)
    fetch = bench.fetch()
    gate.began.wait()  # without a turn of the loop
    ending = asyncio.ensure_future(bench.end(fetch))
    await some_turns()
    assert not ending.done()
    assert not bench.rows.memory[FIRST:END].any()
    gate.go.set()
    await ending
    assert gate.thread != threading.get_ident()
    await bench.tier.aclose()


async def test_a_cancelled_listener_waits_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which writes to memory that may be freed afterwards."""
    bench = Bench()
    await bench.fill()
    gate = Gate(monkeypatch)
    ending = asyncio.ensure_future(bench.end(bench.fetch()))
    for _ in range(2):
        await some_turns()
        ending.cancel()
    await some_turns()
    assert not ending.done()
    gate.go.set()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert np.array_equal(bench.rows.memory[FIRST:END], CONTENT[FIRST:END])
    await bench.tier.aclose()


async def test_closing_waits_for_a_copy_that_nobody_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.fill()
    gate = Gate(monkeypatch)
    bench.fetch()
    threading.Timer(0, gate.go.set).start()
    await bench.tier.aclose()
    assert np.array_equal(bench.rows.memory[FIRST:END], CONTENT[FIRST:END])


def test_closing_frees_the_rows_and_the_thread() -> None:
    """At once, even if something still refers to the tier."""

    async def main() -> None:
        bench = Bench()
        await bench.fill()
        (thread,) = bench.tier._thread._threads
        memory = weakref.ref(bench.tier._map)
        await bench.tier.aclose()
        assert memory() is None
        assert not thread.is_alive()
        await bench.tier.aclose()
        assert bench.below.closed == 2

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_closing_ends_the_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part under way is cancelled, and no other begins."""
    monkeypatch.setattr(host_rows, "PART_ROWS", 8)

    async def main() -> None:
        bench = Bench()
        await bench.bring()
        bench.below.go.clear()
        await some_turns()
        parts = bench.below.asked[1:]
        assert 0 < len(parts) < 4, "the filling waits"
        await bench.tier.aclose()
        assert bench.below.asked[1:] == parts
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_rows_are_brought_in_parts_and_those_that_are_there_only_once(monkeypatch):
    monkeypatch.setattr(host_rows, "PART_ROWS", 8)

    async def main() -> None:
        bench = Bench()
        bench.tier._valid[[0, 1, 5, *range(8, 16)]] = True
        await bench.bring_and_wait()
        assert bench.below.asked[1:] == [
            [12, 13, 14, 16, 17], [*range(26, 34)], [*range(34, 40)],
        ]  # fmt: skip
        await bench.tier.aclose()

    run(main())


@pytest.mark.parametrize("error", [ValueError("the layout is closed"), MemoryError()])
def test_a_later_fetch_fills_after_an_error(error: Exception) -> None:
    """Nothing is reported, because no batch waits for the rows; those fetched have come."""
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        bench = Bench()
        bench.below.errors = [None, error]
        await bench.bring_and_wait()
        assert bench.below.asked[1:] == [[]]
        assert not bench.tier._full
        await bench.fill()
        await bench.tier.aclose()

    run(main())
    gc.collect()  # asyncio reports exceptions that no code retrieved
    assert not reported
